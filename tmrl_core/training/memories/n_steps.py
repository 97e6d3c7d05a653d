"""Transitions over n steps: the discounted sum of n rewards, and the observation after them.

A transition leads from row s to row e = s + n, or to the last row of its run if the run ends before that: at the end of
an episode, or before a missing message. Its reward is sum(gamma^k * reward[s + 1 + k] for k < e - s). The discount of
the following value, gamma^(e - s), is the extra `discount`. If the run ends with a truncation or a gap, the value of
the last observation replaces the later rewards (`terminated` is 0). The tail holds the rows of an unfinished run whose
transitions are still incomplete.

Source: Sutton & Barto, Reinforcement Learning, 2nd ed., eq. 7.1.
"""

from __future__ import annotations

import numpy as np

from tmrl_core.samples import Chunk
from tmrl_core.training.memories.layout import Array, TreeSpec
from tmrl_core.training.memories.memory import last_row_of
from tmrl_core.training.memories.transitions import NO_EXTRAS, ChunkExtras, Tail, TransitionColumns, joined_leaves
from tmrl_core.training.memories.trees import flatten

DISCOUNT = "discount"


def join_n_steps(
    chunk: Chunk,
    follows: Array,
    tail: Tail | None,
    specs: tuple[TreeSpec, TreeSpec | None],
    n_step: int,
    gamma: float,
    most: int | None = None,
    extras: ChunkExtras = NO_EXTRAS,
) -> tuple[TransitionColumns | None, Tail | None]:
    """Build the transitions that a chunk completes, and the stream's tail after it.

    Args:
        chunk: new rows of the stream.
        follows: [rows] bool; see `rows_that_follow`.
        tail: tail of the stream, with the same specs. The chunk's first row need not follow the tail.
        specs: specifications of the chunk's observation and action; None for the action if no row has one.
        n_step: steps in a transition.
        gamma: discount factor of a step.
        most: maximum number of transitions; the newest ones are built.
        extras: extras of the chunk's samples. A transition gets those of its first action.
    """
    observation = [leaf for _, leaf in flatten(chunk.observation)]
    action_spec = specs[1]
    action = [leaf for _, leaf in flatten(chunk.action)] if action_spec is not None else []
    reward, version = np.asarray(chunk.reward, np.float64), chunk.version
    held = 0
    if tail is not None:
        assert tail.reward is not None
        assert tail.version is not None
        held = len(tail.reward)
        observation = joined_leaves(tail.observation, observation)
        reward, version = np.concatenate([tail.reward, reward]), np.concatenate([tail.version, version])
        if action_spec is None and tail.action_spec is not None:
            action_spec = tail.action_spec
            action = [_zeros(chunk.rows, leaf) for leaf in tail.action]
        before = tail.action or [_zeros(held, leaf) for leaf in action]
        action = joined_leaves(before, action)
        extras = {
            name: joined_leaves(tail.extras.get(name) or [_zeros(held, leaf) for leaf in leaves], leaves)
            for name, leaves in extras.items()
        }
    total = held + chunk.rows
    joined = np.ones(total, bool)
    joined[held:] = follows
    joined[0] = False
    terminated, truncated = np.zeros(total, bool), np.zeros(total, bool)
    terminated[held:], truncated[held:] = chunk.terminated, chunk.truncated

    # Runs: rows of one episode without a gap.
    starts = np.flatnonzero(~joined)
    ends = np.append(starts[1:], total) - 1
    end = np.repeat(ends, ends - starts + 1)
    goes_on = not (terminated[-1] or truncated[-1])
    s = np.arange(total)
    e = np.minimum(s + n_step, end)
    complete = (e > s) & ((e == s + n_step) | (end < total - 1) | (not goes_on))
    s, e = s[complete], e[complete]
    skipped = max(0, len(s) - most) if most is not None else 0
    s, e = s[skipped:], e[skipped:]

    made = None
    if len(s):
        steps = e - s
        rew = np.zeros(len(s))
        for k in range(int(steps.max())):
            rew += np.where(k < steps, gamma**k * reward[np.minimum(s + 1 + k, total - 1)], 0.0)
        made = TransitionColumns(
            len(s),
            [[leaf.take(s, axis=0)] for leaf in observation],
            [leaf.take(s + 1, axis=0) for leaf in action],
            rew,
            [leaf.take(e, axis=0) for leaf in observation],
            terminated[e],
            truncated[e],
            version.take(s + 1, axis=0),
            np.maximum(e - held, -1),
            skipped,
            {DISCOUNT: gamma**steps},
            {name: [leaf.take(s + 1, axis=0) for leaf in leaves] for name, leaves in extras.items()},
        )
    rest = None
    if goes_on:
        kept = slice(max(int(starts[-1]), total - n_step), total)
        last = last_row_of(chunk)
        rest = Tail(
            last.episode,
            last.step,
            specs[0],
            [np.array(leaf[kept]) for leaf in observation],
            action_spec,
            [np.array(leaf[kept]) for leaf in action],
            np.array(reward[kept]),
            np.array(version[kept]),
            {name: [np.array(leaf[kept]) for leaf in leaves] for name, leaves in extras.items()},
        )
    return made, rest


def _zeros(rows: int, like: Array) -> Array:
    return np.zeros((rows, *like.shape[1:]), like.dtype)
