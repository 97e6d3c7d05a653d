"""Common parts of agents on sequences: their batches, burn-in, targets over several ticks, and priorities.

Shape suffixes: B sequences, T ticks of a sequence, N = B * T ticks of all, K critics. A sequence of T ticks has T + 1
observations. Padded ticks hold copies of the first observation and action instead of what the memory has there, and
their weight is 0: they change neither loss, target, priority nor gradient.
"""

# Theory of operation
#
# This file turns a batch of a `SequenceMemory` into what agents on sequences compute with. It knows neither an
# algorithm nor how a sequence was cut; rows arrive padded to one length, with the policy's state before their first
# tick.
#
# A sequence is [B, T] ticks with T + 1 observations: the one before the first action, and one after each. All ticks of
# a batch are then one axis of N = B T rows, so that the losses for single transitions serve unchanged.
#
# Three kinds of ticks, in numbers, for T = 6, a burn-in of 2 and an episode that ends after 4 ticks:
#
#     tick          0  1  2  3  4  5
#     is_alive      1  1  1  1  0  0     padding is dead
#     learns        0  0  1  1  0  0     in the middle of an episode
#     learns        1  1  1  1  0  0     at the beginning of one
#     weight        0  0  3  3  0  0     learns / its mean over the batch, here of one sequence
#
# The weights have a mean of 1 over the batch, so a mean over N ticks is one over the ticks that learn. Selecting these
# ticks instead would make shapes that depend on the data, for which an update would wait for its device.
#
# Padding is overwritten by copies of the first tick. A weight of 0 alone is not enough: whatever was stored there could
# be NaN, and 0 times NaN is NaN, in the loss as in its gradient.
#
# Burn-in. A stored state is as old as the policy that computed it. The first ticks of a sequence renew it with the
# current weights; they have no loss, and gradients end behind them. The first ticks of an episode need no burn-in,
# since their state is known to be zeros: without the exception, the beginnings of episodes would never be trained with
# a long burn-in.
#
# Rejected: a state with every step (512 bytes for 128 units, which no compression removes), and states that the trainer
# computes from the episode's beginning, since it would have to hold whole episodes and the weights have changed
# meanwhile.

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from tmrl_core.actor.module import STATE_COLUMN, RecurrentActor
from tmrl_core.errors import ConfigError
from tmrl_core.training.agents.losses import td_target
from tmrl_core.training.batches import FIRST_TICK, TICKS, Transitions
from tmrl_core.training.value_types import Tree

Outputs = TypeVar("Outputs")
RecurrentState = TypeVar("RecurrentState")


class SequenceBatch(NamedTuple):
    """A batch of sequences.

    Attributes:
        obs: nested as the observation space is, leaves [B, T + 1, *shape].
        action: [B, T, *action shape].
        reward_BT, terminated_BT: [B, T] float32.
        is_alive_BT: [B, T] bool; False: padding.
        learns_BT: [B, T] float32, 1 where a tick is alive and not burnt in.
        begins_B: [B] bool; True: the first tick is that of an episode.
        discount: gamma.
        state: recurrent state before the first tick, [B, size] each; empty: the memory holds none.
        weight_N: [N] weights of the ticks: 0 where a tick does not learn, else the importance of its sequence, divided
            by the share of ticks that learn. A mean over N ticks with these weights is one over those that learn.
        burn_in: number of first ticks without gradient, unless they are those of an episode.
    """

    obs: Tree
    action: Tensor
    reward_BT: Tensor
    terminated_BT: Tensor
    is_alive_BT: Tensor
    learns_BT: Tensor
    begins_B: Tensor
    discount: float | Tensor
    state: dict[str, Tensor]
    weight_N: Tensor
    burn_in: int


def sequences_of(t: Transitions, burn_in: int) -> SequenceBatch:
    """Return the sequences of a `SequenceMemory`'s batch.

    Args:
        t: the unpacked batch.
        burn_in: ticks at the beginning of a sequence from which nothing is learned: they renew the recurrent state. The
            first ticks of an episode need none, because its first state is known.

    Raises:
        ConfigError: these are not sequences, or they are not longer than the burn-in.
    """
    if t.sequence is None:
        raise ConfigError(
            "recurrent agents learn from sequences, and the batch holds single transitions. Take memory.cls: "
            "tmrl_core.training:SequenceMemory."
        )
    length = t.reward_B.shape[1]
    if burn_in >= length:
        raise ConfigError(
            f"agent.kwargs.burn_in: found {burn_in}, allowed: less than the {length} ticks of a sequence "
            "(memory.kwargs.length)."
        )
    tick_T = torch.arange(length, device=t.reward_B.device)
    is_alive_BT = tick_T < t.sequence[TICKS].unsqueeze(1)
    begins_B = t.sequence[FIRST_TICK] == 0
    learns_BT = (is_alive_BT & ((tick_T >= burn_in) | begins_B.unsqueeze(1))).float()
    # The bound is one tick of the batch: where none learns, all weights are 0 instead of NaN.
    weight_BT = learns_BT / learns_BT.mean().clamp(min=1.0 / learns_BT.numel())
    if t.weight_B is not None:
        weight_BT = weight_BT * t.weight_B.unsqueeze(1)

    def alive(values_BT: Tensor, other_B: Tensor) -> Tensor:
        is_alive = is_alive_BT.reshape(*is_alive_BT.shape, *[1] * (values_BT.ndim - 2))
        return torch.where(is_alive, values_BT, other_B.unsqueeze(1))

    def observations(first_B: Tensor, next_BT: Tensor) -> Tensor:
        return torch.cat([first_B.unsqueeze(1), alive(next_BT, first_B)], dim=1)

    zero_B = torch.zeros_like(t.reward_B[:, 0])
    return SequenceBatch(
        tree_map(observations, t.obs, t.next_obs),
        alive(t.action, t.action[:, 0]),
        alive(t.reward_B, zero_B),
        alive(t.terminated_B, zero_B),
        is_alive_BT,
        learns_BT,
        begins_B,
        t.discount,
        {name.removeprefix(STATE_COLUMN): state for name, state in t.sequence.items() if name.startswith(STATE_COLUMN)},
        weight_BT.flatten(),
        burn_in,
    )


def state_of(actor: RecurrentActor, s: SequenceBatch) -> Mapping[str, Tensor | np.ndarray]:
    """Return a policy's state before the first tick: the stored one, or without any that of a new episode."""
    return s.state or actor.initial_state(len(s.begins_B))


def unrolled(
    unroll: Callable[[Tree, RecurrentState], tuple[Outputs, RecurrentState]], s: SequenceBatch, state: RecurrentState
) -> Outputs:
    """Return the outputs for all observations, [B, T + 1, ...]; gradients end at the burn-in of a sequence.

    Args:
        unroll: `(obs, state) -> (outputs, state)` with leaves [B, ticks, ...] and [B, ...].
        s: the sequences.
        state: before the first tick.
    """
    if not s.burn_in:
        return unroll(s.obs, state)[0]
    before, state = unroll(tree_map(lambda leaf: leaf[:, : s.burn_in], s.obs), state)
    begins_B1 = s.begins_B.unsqueeze(1)
    # At the beginning of an episode the burnt ticks learn too, so their gradients go on.
    state = tree_map(lambda leaf: torch.where(begins_B1, leaf, leaf.detach()), state)
    after, _ = unroll(tree_map(lambda leaf: leaf[:, s.burn_in :], s.obs), state)
    joined: Outputs = tree_map(lambda *leaves: torch.cat(leaves, dim=1), before, after)
    return joined


def n_tick_target(s: SequenceBatch, next_value_BT: Tensor, n_step: int) -> Tensor:
    """Return [B, T] TD targets over up to `n_step` ticks, fewer at the end of a sequence.

    Args:
        s: the sequences.
        next_value_BT: [B, T] value of the observation after each tick.
        n_step: number of ticks.

    Source: Sutton & Barto, Reinforcement Learning, 2nd ed., eq. 7.1.
    """

    def target(value_BT: Tensor) -> Tensor:
        return td_target(s.reward_BT.flatten(), s.terminated_BT.flatten(), value_BT.flatten(), s.discount).view_as(
            value_BT
        )

    # Backwards in n: a target of n ticks is the reward and the discounted target of n - 1 ticks from the next tick. The
    # last tick that is alive has no next one, and bootstraps.
    target_BT = target(next_value_BT)
    for _ in range(n_step - 1):
        later_BT = torch.where(s.is_alive_BT[:, 1:], target_BT[:, 1:], next_value_BT[:, :-1])
        target_BT = target(torch.cat([later_BT, next_value_BT[:, -1:]], dim=1))
    return target_BT


def sequence_priority(td_error_BT: Tensor, learns_BT: Tensor) -> Tensor:
    """Return [B] priorities: 0.9 of the largest and 0.1 of the mean absolute TD error of the ticks that learn.

    Args:
        td_error_BT: [B, T] absolute TD errors.
        learns_BT: [B, T] 1 where a tick counts.

    Source: Kapturowski et al., "Recurrent Experience Replay in Distributed Reinforcement Learning", ICLR 2019, 2.3.
    """
    error_BT = td_error_BT * learns_BT
    mean_B = error_BT.sum(dim=1) / learns_BT.sum(dim=1).clamp(min=1.0)
    return 0.9 * error_BT.amax(dim=1) + 0.1 * mean_B


def rescaled(value: Tensor) -> Tensor:
    """Return h(x) = sign(x) (sqrt(|x| + 1) - 1) + 0.001 x, which shrinks large values.

    Source: Pohlen et al., arXiv:1805.11593, proposition A.2.
    """
    return value.sign() * ((value.abs() + 1.0).sqrt() - 1.0) + _EPSILON * value


def unrescaled(value: Tensor) -> Tensor:
    """Return the inverse of `rescaled`."""
    root = (1.0 + 4.0 * _EPSILON * (value.abs() + 1.0 + _EPSILON)).sqrt()
    return value.sign() * (((root - 1.0) / (2.0 * _EPSILON)).square() - 1.0)


_EPSILON = 1e-3
