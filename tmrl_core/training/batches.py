"""A batch with named columns; positional columns stay at the public interface."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from tmrl_core.actor.module import STATE_COLUMN
from tmrl_core.training.value_types import Batch, Tree

ENDS = "ends"
"""Extra of a batch: 1 where the next row does not continue this one, for any reason."""
PLACES = "places"
"""Extra of a batch: [T, 3] int64 stream, episode and step of each row. Consecutive steps of an episode continue each
other, also across rounds."""

TICKS = "ticks"
"""Extra of a batch of sequences: [B] float32, ticks before the padding."""
FIRST_TICK = "first_tick"
"""Extra of a batch of sequences: [B] float32, number of the first tick in its episode."""

SHOWN = "shown"
"""Extra of a batch: [B] float32, 1 where a person or an expert chose the action."""


class Transitions(NamedTuple):
    """Transitions of a batch, or sequences: `next_obs`, `action`, `reward_B` and `terminated_B` are then [B, T, ...].

    Attributes:
        obs, next_obs: nested as the observation space is, leaves [B, *shape].
        action: [B, *action shape].
        reward_B: [B] float32; with n steps their discounted sum.
        terminated_B: [B] float32, 1 at the end of the task.
        discount: factor of the value of `next_obs`: gamma, or [B] gamma^n.
        weight_B: [B] importance of each row, from a memory with non-uniform sampling; None: all equal.
        sequence: the extras `TICKS` and `FIRST_TICK` of sequences and the state before their first tick; None: the rows
            are transitions.
        shown_B: [B] 1 where a person or an expert chose the action, from a memory of several origins; None: unknown.
        shifts: [B, 2, images, 2] pixels by which the images of both observations are yet to be moved; None: by none.
    """

    obs: Tree
    action: Tensor
    reward_B: Tensor
    next_obs: Tree
    terminated_B: Tensor
    discount: float | Tensor
    weight_B: Tensor | None
    sequence: dict[str, Tensor] | None = None
    shown_B: Tensor | None = None
    shifts: Tensor | None = None


def transitions_of(batch: Batch, gamma: float) -> Transitions:
    """Return the transitions of a memory's batch.

    Args:
        batch: `(prev_obs, new_act, rew, new_obs, terminated, truncated)`, and, from some memories, a dict of further
            columns. Of these, `discount` [B] (gamma^n), `weights` [B] and `shown` [B] are used.
        gamma: discount factor of one step, for a batch without `discount`.
    """
    obs, action, reward_B, next_obs, terminated_B, _ = batch[:6]
    extras = batch[6] if len(batch) > 6 else {}
    discount, weight_B = extras.get("discount", gamma), extras.get("weights")
    if TICKS not in extras:
        shown_B = extras.get(SHOWN)
        return Transitions(obs, action, reward_B, next_obs, terminated_B, discount, weight_B, None, shown_B)
    sequence = {name: extras[name] for name in extras if name in (TICKS, FIRST_TICK) or name.startswith(STATE_COLUMN)}
    return Transitions(obs, action, reward_B, next_obs, terminated_B, discount, weight_B, sequence)
