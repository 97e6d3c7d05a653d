"""Discrete actions that may be chosen in a state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tmrl_core.actor.policies.masks import ACTION_MASK, allowed_indices


def choices_of(state: Any, count: int) -> np.ndarray:
    """Return the numbers, from 0, of the actions that may be chosen in one state.

    Args:
        state: the state, with or without an action mask.
        count: number of all actions.

    Raises:
        ObservationError: no action is allowed.
    """
    masked = isinstance(state, Mapping) and ACTION_MASK in state
    return allowed_indices(state, count) if masked else np.arange(count)
