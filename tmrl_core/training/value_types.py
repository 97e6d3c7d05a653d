"""Names for the types of values that pass between the parts of training."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

import gymnasium

if TYPE_CHECKING:
    import torch

Space: TypeAlias = gymnasium.Space[Any]
"""Space of observations or actions."""
Tree: TypeAlias = Any
"""Array, tensor or number, or dicts and tuples of these, with the structure of a space."""
Batch: TypeAlias = Any
"""Batch of a memory, usually `(prev_obs, new_act, rew, new_obs, terminated, truncated)` and a dict of extras."""
Metrics: TypeAlias = dict[str, Any]
"""Numbers or detached scalar tensors by name."""
State: TypeAlias = dict[str, Any]
"""State of a part for a checkpoint: numbers, strings, bytes, containers, arrays and tensors by name."""
Settings: TypeAlias = dict[str, Any]
"""Keyword arguments."""
Maker: TypeAlias = Callable[..., Any]
"""Class or function that makes a part: a model, a policy."""
Policy: TypeAlias = Any
"""Actor to publish: an `ActorModule`, an object with `act` and `to_blob`, or a `PolicyBundle`."""
Indices: TypeAlias = Any
"""Indices of the transitions of a batch: an array or a tensor."""
Device: TypeAlias = "torch.device | str | None"
"""Torch device; None: the default."""
