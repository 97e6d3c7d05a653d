"""Experiences as tensors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tmrl_core.errors import SampleRefusedError
from tmrl_core.multiagent.trajectory import IMPORTANCE, Columns
from tmrl_core.samples.columns import Tree, map_leaves
from tmrl_core.training.batches import Transitions

KEYS = frozenset({"state", "action", "reward", "next_state", "discount", "terminated", "truncated", IMPORTANCE})
"""Keys of experiences with a meaning of their own. All others are extras, such as `logp`."""


def tensors_of(columns: Tree, device: torch.device) -> Any:
    """Return columns as tensors on a device: floats and flags as float32, integers as they are."""

    def tensor(column: Any) -> Tensor:
        array = np.asarray(column)
        # A copy, because the arrays may be read-only or unaligned.
        array = np.array(array, np.float32 if array.dtype.kind in "fb" else array.dtype.newbyteorder("="), order="C")
        return torch.from_numpy(array).to(device)

    return map_leaves(tensor, columns)


def transitions_of(batch: Columns, device: torch.device) -> Transitions:
    """Return a batch of experiences as transitions.

    Without `next_state`, the rewards are complete returns: nothing is added to them.

    Args:
        batch: columns by key.
        device: of the tensors.

    Raises:
        SampleRefusedError: a column is missing.
    """
    require(batch, "state", "action", "reward", *(("discount", "terminated") if "next_state" in batch else ()))
    t = {key: tensors_of(batch[key], device) for key in KEYS & batch.keys()}
    reward_B: Tensor = t["reward"]
    complete = "next_state" not in t
    return Transitions(
        t["state"],
        t["action"],
        reward_B,
        t["state"] if complete else t["next_state"],
        torch.ones_like(reward_B) if complete else t["terminated"],
        0.0 if complete else t["discount"],
        t.get(IMPORTANCE),
    )


def require(batch: Mapping[str, Any], *keys: str) -> None:
    """Refuse a batch without these columns.

    Raises:
        SampleRefusedError: a column is missing.
    """
    if missing := [key for key in keys if key not in batch]:
        raise SampleRefusedError(
            f"the batch lacks {', '.join(missing)}; it has {', '.join(batch)}. KStepExperienceShaper makes these "
            "columns; an experience shaper of your own has to return them"
        )
