"""A batch by names: inside, columns are not told apart by their position."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from tmrl_core.training.value_types import Batch, Tree

ENDS = "ends"
"""Extra of a batch: 1 where the next row is no continuation of this one, whatever the reason."""
PLACES = "places"
"""Extra of a batch: [T, 3] int64 stream, episode and step of each row. Steps of an episode that are in step and not of
one round go on from each other."""


class Transitions(NamedTuple):
    """Transitions of a batch.

    Attributes:
        obs, next_obs: nested as the observation space is, leaves [B, *shape].
        action: [B, *action shape].
        reward_B: [B] float32; with n steps their discounted sum.
        terminated_B: [B] float32, 1 where nothing follows.
        discount: what multiplies the value of `next_obs`: gamma, or [B] gamma^n.
        weight_B: [B] importance of each row, from a memory with non-uniform sampling; None: all equal.
    """

    obs: Tree
    action: Tensor
    reward_B: Tensor
    next_obs: Tree
    terminated_B: Tensor
    discount: float | Tensor
    weight_B: Tensor | None


def transitions_of(batch: Batch, gamma: float) -> Transitions:
    """The transitions of a memory's batch.

    Args:
        batch: `(prev_obs, new_act, rew, new_obs, terminated, truncated)`, and, from memories that have more to say, a
            dict of further columns: `discount` [B] (gamma^n) and `weights` [B] are looked at.
        gamma: discount of one step, where the batch says no other.
    """
    obs, action, reward_B, next_obs, terminated_B, _ = batch[:6]
    extras = batch[6] if len(batch) > 6 else {}
    return Transitions(
        obs, action, reward_B, next_obs, terminated_B, extras.get("discount", gamma), extras.get("weights")
    )
