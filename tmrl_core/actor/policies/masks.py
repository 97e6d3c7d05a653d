"""Action masks: which discrete actions are allowed in a state.

An environment has a mask if its actions are Discrete and its observation space is a Dict with the key `action_mask`, an
array with one number for each action: positive: allowed. MultiDiscrete and MultiBinary actions consist of several
choices. Their mask is a tuple of one array for each choice, as `sample` of Gymnasium's MultiDiscrete takes it, or these
arrays as one. The mask is no input of the networks; it limits exploration, distributions and targets. Q-values stay as
they are learned, beside the mask. Logits of other actions become `FORBIDDEN`: a finite number, since minus infinity
times a probability of 0 is NaN in entropies and gradients.

No action at all is allowed at the end of an episode in some environments. As a next state, such a state has the value
0. As a state to act in, it is an error, because each action would break the environment's rules.

Shape suffixes: B batch, N discrete actions, or the values of all choices.
"""

# Theory of operation
#
# The mask is the end of the flat vector, behind the inputs of the networks, so rows and sequences carry it along
# without a column of their own. Values stay as they are learned, because samples may hold actions that a person chose
# against the mask; only maxima, expectations and exploration are limited.
#
# Acting where nothing is allowed is an error and no random action, because the promise that no forbidden action is
# taken would break. The worker treats it as a failure of the environment, a role whose environments are clients as one
# of the client.

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from tmrl_core.actor.policies.spaces import choice_counts
from tmrl_core.errors import ConfigError, ObservationError
from tmrl_core.samples.columns import map_leaves

ACTION_MASK = "action_mask"
"""Key of the mask in an observation."""
ALLOWED = "allowed"
"""Name of the mask among the outputs of a policy: bool."""
FORBIDDEN = -1e9
"""Logit of an action that is not allowed; its probability is exactly 0."""


def is_masked(observation_space: Any, action_space: Any) -> bool:
    """Tell whether an environment has an action mask.

    Raises:
        ConfigError: there is one, of another shape than one number for each value of each choice.
    """
    counts = choice_counts(action_space)
    if not (counts and isinstance(observation_space, spaces.Dict)):
        return False
    mask = observation_space.spaces.get(ACTION_MASK)
    if mask is None:
        return False
    of_each = isinstance(mask, spaces.Tuple) and not isinstance(action_space, spaces.Discrete)
    shapes = [part.shape for part in mask.spaces] if isinstance(mask, spaces.Tuple) else [mask.shape]
    if shapes != ([(count,) for count in counts] if of_each else [(sum(counts),)]):
        stacked = mask.shape is not None and mask.shape[1:] == (sum(counts),)
        advice = "Stack the other entries only" if stacked else "Name the observation otherwise if it is no mask"
        example = f"Box(0, 1, ({sum(counts)},), np.int8)"
        if not isinstance(action_space, spaces.Discrete):
            example += f", or a Tuple of {len(counts)} arrays, one for each choice, with the lengths {counts}"
        raise ConfigError(
            f"the observation's {ACTION_MASK} is of the space {mask}, the action space is {action_space}. Allowed: one "
            f"number for each action, such as {example:.300}. {advice}."
        )
    return True


def mask_of(obs: Any) -> np.ndarray:
    """Return the mask [..., N] of one observation, or of a batch of them, as bool."""
    mask = obs[ACTION_MASK]
    return np.asarray(np.concatenate(mask, axis=-1) if isinstance(mask, tuple | list) else mask) > 0


def allows_each(allowed_BN: np.ndarray, counts: Sequence[int]) -> np.ndarray:
    """Return [...] True where each choice has an allowed value.

    Args:
        allowed_BN: [..., N] bool mask.
        counts: number of values of each choice.
    """
    each = np.logical_or.reduceat(allowed_BN, np.cumsum((0, *counts[:-1])), axis=-1)
    return np.asarray(each.all(axis=-1))


def with_all_allowed(obs_B: Any, rows: np.ndarray) -> Any:
    """Return a batch of observations whose masks allow every action in some rows.

    Args:
        obs_B: observations of an environment with a mask.
        rows: [B] bool.
    """

    def allowing(mask_BN: np.ndarray) -> np.ndarray:
        changed = np.array(mask_BN)
        changed[rows] = 1
        return changed

    return {**obs_B, ACTION_MASK: map_leaves(allowing, obs_B[ACTION_MASK])}


def allowed_values(obs: Any, counts: Sequence[int]) -> list[np.ndarray]:
    """Return the indices of the values of each choice that one observation allows.

    Args:
        obs: observation of an environment with a mask.
        counts: number of values of each choice.

    Raises:
        ValueError: the mask has another shape.
        ObservationError: a choice has no allowed value.
    """
    allowed_N = mask_of(obs)
    if allowed_N.shape != (sum(counts),):
        raise ValueError(f"observation[{ACTION_MASK!r}] has the shape {allowed_N.shape}, not {(sum(counts),)}")
    check_allowed(bool(allows_each(allowed_N, counts)))
    return [np.flatnonzero(part) for part in np.split(allowed_N, np.cumsum(counts)[:-1])]


def allowed_indices(obs: Any, count: int) -> np.ndarray:
    """Return the indices of the Discrete actions that one observation allows, as `allowed_values`."""
    return allowed_values(obs, (count,))[0]


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
