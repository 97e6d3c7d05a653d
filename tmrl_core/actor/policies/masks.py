"""Action masks: which discrete actions are allowed in a state.

An environment has a mask if its actions are Discrete and its observation space is a Dict with the key `action_mask`, an
array with one number for each action: positive: allowed. The mask is no input of the networks; it limits exploration,
distributions and targets. Q-values stay as they are learned, beside the mask. Logits of other actions become
`FORBIDDEN`: a finite number, since minus infinity times a probability of 0 is NaN in entropies and gradients.

No action at all is allowed at the end of an episode in some environments. As a next state, such a state has the value
0. As a state to act in, it is an error, because each action would break the environment's rules.

Shape suffixes: B batch, N discrete actions.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from tmrl_core.errors import ConfigError, ObservationError

ACTION_MASK = "action_mask"
"""Key of the mask in an observation."""
ALLOWED = "allowed"
"""Name of the mask among the outputs of a policy: bool."""
FORBIDDEN = -1e9
"""Logit of an action that is not allowed; its probability is exactly 0."""


def is_masked(observation_space: Any, action_space: Any) -> bool:
    """Tell whether an environment has an action mask.

    Raises:
        ConfigError: there is one, of another shape than one number for each action.
    """
    if not (isinstance(action_space, spaces.Discrete) and isinstance(observation_space, spaces.Dict)):
        return False
    mask = observation_space.spaces.get(ACTION_MASK)
    if mask is not None and mask.shape != (action_space.n,):
        stacked = mask.shape is not None and mask.shape[1:] == (action_space.n,)
        advice = "Stack the other entries only" if stacked else "Name the observation otherwise if it is no mask"
        raise ConfigError(
            f"the observation's {ACTION_MASK} is of the space {mask}, the action space is {action_space}. Allowed: one "
            f"number for each action, such as Box(0, 1, ({action_space.n},), np.int8). {advice}."
        )
    return mask is not None


def allowed_indices(obs: Any, count: int) -> np.ndarray:
    """Return the indices of the actions that one observation allows.

    Args:
        obs: observation of an environment with a mask.
        count: number of actions.

    Raises:
        ValueError: the mask has another shape.
        ObservationError: no action is allowed.
    """
    mask_N = np.asarray(obs[ACTION_MASK])
    if mask_N.shape != (count,):
        raise ValueError(f"observation[{ACTION_MASK!r}] has the shape {mask_N.shape}, not {(count,)}")
    allowed = np.flatnonzero(mask_N > 0)
    check_allowed(len(allowed) > 0)
    return allowed


def check_allowed(is_allowed: bool) -> None:
    """Refuse to act where no action is allowed.

    Raises:
        ObservationError: `is_allowed` is False.
    """
    if not is_allowed:
        raise ObservationError(
            f"no action is allowed by the observation's {ACTION_MASK}, and the episode goes on. Allowed: at least one "
            "positive number. Let the environment terminate the episode there, or allow an action that does nothing."
        )


def limited_choice(allowed_BN: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return [B] indices of random actions among those allowed; 0 where there are none."""
    rank_B = rng.integers(np.maximum(allowed_BN.sum(axis=1), 1))
    index_B: np.ndarray = (allowed_BN.cumsum(axis=1) > rank_B[:, None]).argmax(axis=1)
    return index_B
