"""Running scale of discounted returns, by which a memory divides the rewards of its batches."""

# Theory of operation
#
# An agent whose values lie between fixed bounds needs returns of a known size. It declares that with
# `TrainingAgent.return_scale`; `ReplayMemory.expect_agent` then makes one `ReturnScale`, adds each stored chunk to it,
# and divides rewards as a batch is drawn. Stored rewards stay as they are, so a scale that moves needs no rewriting,
# and a batch that was prepared early has the same rewards as one that was not.
#
# For each stream, the running return is G = discount G + reward. It begins anew after the end of an episode and after a
# gap, and each transition is counted once: the running return is kept with the stream's last row, so a stream goes on
# where it was after a resume. The moments of G, and the greatest |G|, are those of all streams together. The scale is
#
#     max(standard deviation of G, greatest |G| / bound)
#
# In numbers: with rewards of 1, discount 0.99 and episodes of 51 steps, G rises to 40 and its deviation is 11.5. With a
# bound of 5 the scale is max(11.5, 40 / 5) = 11.5, and the greatest scaled return 3.5.
#
# A reward counts as at most `LIMIT` times the greatest |G| so far, so one reward triples that at most. An absurd one of
# 1e9 beside returns of 100 would otherwise shrink all rewards by seven digits for ever. Rewards that really grow catch
# up within a few transitions. A limit of 1 would hold some down for ever: with G at -10 and a greatest |G| of 10, a
# reward of 100 counts as 10, and G becomes 0. The first reward that is not 0 counts in full.
#
# The scale of several ranks (rank_group.py) is that of the transitions of all, which they agree on between two updates
# (`agree`): a batch of each rank would otherwise have rewards of another unit.
#
# Memories of one agent share a scale (mixed.py): recorded and live rewards must mean the same. That of interventions
# holds copies of live samples, and counts none: a running return would begin anew with each message that came twice.
#
# Rejected: statistics in the agent, which sees batches and not streams, and the same transition many times. Scaling
# when a transition is stored: rows of different ages would have different units.

from __future__ import annotations

import logging
import math
from collections.abc import Sequence

from tmrl_core.samples import Chunk
from tmrl_core.training.memories.memory import MAX_STREAMS, LastRow, last_row_of, rows_that_follow
from tmrl_core.training.value_types import Tree

logger = logging.getLogger(__name__)

EPS = 1e-8
"""Added to the variance, so that returns which are all equal have a scale."""
Moments = tuple[int, float, float, float]
"""Count, mean, sum of squared distances from the mean, and greatest absolute value."""
LIMIT = 2.0
"""Greatest absolute reward that counts in full, in greatest absolute returns so far."""
LEARNED = 1_000
"""Transitions after which a bounded reward is logged; before that, growing rewards are no surprise."""


class ReturnScale:
    """Scale of discounted returns.

    Args:
        discount: factor of a step.
        bound: greatest absolute value of a scaled return.

    Attributes:
        count: number of transitions.
        bounded: number of rewards that counted as less than they were.
        agreed: scale over the memories of all ranks, in place of this one's; None: there is one memory.
    """

    def __init__(self, discount: float, bound: float) -> None:
        self.discount, self.bound = discount, bound
        self.count = self.bounded = 0
        self.mean = self.squares = self.greatest = 0.0
        self.agreed: float | None = None
        self._open: dict[bytes, tuple[int, int, float]] = {}
        """Episode, step and running return of each stream's last row, unless it ended its episode."""

    @property
    def scale(self) -> float:
        """Divisor of rewards; 1 before the first transition."""
        if self.agreed is not None:
            return self.agreed
        return self._of(self.count, self.squares, self.greatest)

    def _of(self, count: int, squares: float, greatest: float) -> float:
        return max(math.sqrt(squares / count + EPS), greatest / self.bound) if count else 1.0

    @property
    def moments(self) -> Moments:
        """Moments of this memory's returns."""
        return self.count, self.mean, self.squares, self.greatest

    def agree(self, parts: Sequence[Moments]) -> None:
        """Use the scale over several memories from now on; the same parts in the same order give the same number."""
        count = sum(part[0] for part in parts)
        mean = sum(part[0] * part[1] for part in parts) / max(count, 1)
        squares = sum(part[2] + part[0] * (part[1] - mean) ** 2 for part in parts)
        self.agreed = self._of(count, squares, max(part[3] for part in parts))

    def add(self, chunk: Chunk) -> None:
        """Count the transitions that end in a chunk."""
        if not chunk.rows:
            return
        last = self._open.pop(chunk.stream, None)
        follows = rows_that_follow(chunk, None if last is None else LastRow(last[0], last[1])).tolist()
        running = 0.0 if last is None else last[2]
        for reward, counts in zip(chunk.reward.tolist(), follows, strict=True):
            running = self.discount * running + self._limited(reward) if counts else 0.0
            if counts:
                self._count(running)
        if not (chunk.terminated[-1] or chunk.truncated[-1]):
            row = last_row_of(chunk)
            self._open[chunk.stream] = row.episode, row.step, running
            if len(self._open) > MAX_STREAMS:
                del self._open[next(iter(self._open))]

    def _limited(self, reward: float) -> float:
        if math.isnan(reward):
            return 0.0
        limit = LIMIT * self.greatest
        if abs(reward) <= limit or (limit == 0.0 and math.isfinite(reward)):
            return reward
        self.bounded += 1
        # The first, second, fourth, eighth, ... one: an environment may send them at each step.
        if self.count >= LEARNED and not self.bounded & (self.bounded - 1):
            logger.warning(
                "a reward of %g is beyond %g times the greatest discounted return so far, and counts as %g in the "
                "scale of rewards (%d such rewards). Check the environment's rewards if this goes on",
                reward,
                LIMIT,
                math.copysign(limit, reward),
                self.bounded,
            )
        return math.copysign(limit, reward)

    def _count(self, value: float) -> None:
        self.count += 1
        before = value - self.mean
        self.mean += before / self.count
        self.squares += before * (value - self.mean)
        self.greatest = max(self.greatest, abs(value))

    def state(self) -> list[Tree]:
        """Return the state, as numbers and lists."""
        streams = [[stream, *values] for stream, values in self._open.items()]
        return [self.count, self.bounded, self.mean, self.squares, self.greatest, streams]

    def load(self, state: Tree) -> None:
        """Load the result of `state`.

        Raises:
            ValueError, TypeError: it is something else.
        """
        count, bounded, mean, squares, greatest, streams = state
        numbers = [float(value) for value in (mean, squares, greatest)]
        found = {bytes(stream): (int(episode), int(step), float(value)) for stream, episode, step, value in streams}
        self.count, self.bounded, self._open = int(count), int(bounded), found
        self.mean, self.squares, self.greatest = numbers
