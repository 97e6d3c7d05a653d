"""Transitions over n steps: the discounted sum of n rewards, and the observation after them.

Source: Sutton & Barto, Reinforcement Learning, 2nd ed., eq. 7.1."""

# Theory of operation
#
# A transition leads from row s to row e = s + n, or to the last row of its run if the run ends before that: at the end
# of an episode, or before a missing message. Its reward is sum(gamma^k * reward[s + 1 + k] for k < e - s). The discount
# of the following value, gamma^(e - s), is the extra `discount`, and an agent uses it in place of gamma.
#
# Example with n = 3 and an episode of rows 0 to 4. The transitions are 0-3 and 1-4 with three rewards, 2-4 with two and
# 3-4 with one: the last ones are shorter instead of missing, since the steps before an end are the ones that carry its
# reward. If the run ends with a truncation or a gap, the value of the last observation replaces the later rewards
# (`terminated` is 0).
#
# The tail holds the rows of an unfinished run whose transitions are still incomplete: with rows 0 to 4 of an open
# episode, 0-3 and 1-4 are stored, and rows 2 to 4 wait.

from __future__ import annotations

import numpy as np

from tmrl_core.samples import Chunk
from tmrl_core.training.memories.joined_rows import JoinedRows
from tmrl_core.training.memories.layout import TreeSpec
from tmrl_core.training.memories.transitions import NO_EXTRAS, ChunkExtras, Tail, TransitionColumns

DISCOUNT = "discount"


def join_n_steps(
    chunk: Chunk,
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
        tail: tail of the stream, with the same specs. The chunk's first row need not follow the tail.
        specs: specifications of the chunk's observation and action; None for the action if no row has one.
        n_step: steps in a transition.
        gamma: discount factor of a step.
        most: maximum number of transitions; the newest ones are built.
        extras: extras of the chunk's samples. A transition gets those of its first action.
    """
    rows = JoinedRows.of(chunk, tail, specs, extras)
    total, reward, extras = len(rows), rows.reward, rows.extras
    end = np.repeat(rows.ends, rows.ends - rows.starts + 1)
    s = np.arange(total)
    e = np.minimum(s + n_step, end)
    complete = (e > s) & ((e == s + n_step) | (end < total - 1) | (not rows.is_open))
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
            [[leaf.take(s, axis=0)] for leaf in rows.observation],
            [leaf.take(s + 1, axis=0) for leaf in rows.action],
            rew,
            [leaf.take(e, axis=0) for leaf in rows.observation],
            rows.terminated[e],
            rows.truncated[e],
            rows.version.take(s + 1, axis=0),
            np.maximum(e - rows.held, -1),
            skipped,
            {DISCOUNT: gamma**steps},
            {name: [leaf.take(s + 1, axis=0) for leaf in leaves] for name, leaves in extras.items()},
        )
    return made, rows.tail(max(int(rows.starts[-1]), total - n_step)) if rows.is_open else None
