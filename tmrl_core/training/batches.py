"""A batch with named columns; positional columns stay at the public interface."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from tmrl_core.training.value_types import Batch, Tree

ENDS = "ends"
"""Extra of a batch: 1 where the next row does not continue this one, for any reason."""
PLACES = "places"
"""Extra of a batch: [T, 3] int64 stream, episode and step of each row. Rows of one episode with consecutive steps
continue each other, also across rounds."""


class Transitions(NamedTuple):
    """Transitions of a batch.

    Attributes:
        obs, next_obs: nested as the observation space is, leaves [B, *shape].
        action: [B, *action shape].
        reward_B: [B] float32; with n steps their discounted sum.
        terminated_B: [B] float32, 1 at the end of the task.
        discount: factor of the value of `next_obs`: gamma, or [B] gamma^n.
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
    """Return the transitions of a memory's batch.

    Args:
        batch: `(prev_obs, new_act, rew, new_obs, terminated, truncated)`, and, from some memories, a dict of further
            columns, of which `discount` [B] (gamma^n) and `weights` [B] are used.
        gamma: discount of one step, if the batch has no `discount`.
    """
    obs, action, reward_B, next_obs, terminated_B, _ = batch[:6]
    extras = batch[6] if len(batch) > 6 else {}
    return Transitions(
        obs, action, reward_B, next_obs, terminated_B, extras.get("discount", gamma), extras.get("weights")
    )
