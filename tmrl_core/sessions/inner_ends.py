"""Ends inside a recorded sequence: several tries in one episode of a dataset.

A dataset stores no observation after an end inside a sequence: the next one belongs to the next try. So a terminated
piece repeats its last observation, whose value is never used. A truncated piece loses its last step, since learning
would take the value of the missing observation. Flags that are repeated in consecutive steps, as by a recorder that
goes on after the end, are one end: the first.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from tmrl_core.samples import Tree
from tmrl_core.samples.columns import Array, map_leaves
from tmrl_core.sessions.session import Session

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class InnerEnds:
    """Splits the sequences of a dataset, and counts.

    Attributes:
        ends: number of ends before the last step of a sequence.
        episodes: number of sequences that have any.
        left_out: steps after an end that repeat its flag, and last steps of truncated pieces.
    """

    ends: int = 0
    episodes: int = 0
    left_out: int = 0

    def split(self, whole: Session, terminated: Array, truncated: Array, *, last_known: bool) -> Iterator[Session]:
        """Yield the sessions of a sequence.

        Args:
            whole: the sequence, with any last observation.
            terminated: [T] bool, by step.
            truncated: [T] bool, likewise.
            last_known: the last observation is the one after the last step.
        """
        ticks = len(whole)
        flagged = terminated | truncated
        # Recorders that go on after an end repeat its flag until the person resets: these steps are nobody's.
        again = flagged & np.append(False, flagged[:-1])
        stops = [int(end) + 1 for end in np.flatnonzero(flagged & ~again)]
        inner = sum(stop < ticks for stop in stops)
        self.ends += inner
        self.episodes += inner > 0
        self.left_out += int(np.count_nonzero(again))
        begin = 0
        for stop in stops:
            ended, cut = bool(terminated[stop - 1]), bool(truncated[stop - 1])
            known = last_known and stop == ticks
            # After a termination no value is taken of the next observation, so any may stand there. After a truncation
            # it is, and the next try's first one would be wrong: the step is left out.
            last = stop if known or ended else stop - 1
            self.left_out += stop - last
            if last > begin:
                piece = _piece(whole, begin, last, repeat=not known and last == stop)
                yield replace(piece, terminated=ended, truncated=cut)
            begin = stop + int(np.argmin(np.append(again[stop:], False)))
        if begin < ticks:
            yield _piece(whole, begin, ticks, repeat=False)

    def tell(self, dataset: object) -> None:
        """Log the counts, if there are any."""
        if self.ends:
            logger.warning(
                "%s: %d ends inside %d of the episodes, which are split there", dataset, self.ends, self.episodes
            )
        if self.left_out:
            logger.warning(
                "%s: %d steps are left out: they repeat an end's flag, or truncate an episode and no observation "
                "follows them",
                dataset,
                self.left_out,
            )


def _piece(whole: Session, begin: int, stop: int, *, repeat: bool) -> Session:
    """Return the steps of a range; `repeat`: its last observation is that of the last step, once more."""
    if begin == 0 and stop == len(whole) and not repeat:
        return replace(whole, terminated=False, truncated=False)

    def steps(tree: Tree) -> Tree:
        found: Tree = map_leaves(lambda column: column[begin:stop], tree)
        return found

    def observations(column: Array) -> Array:
        if repeat:
            return np.concatenate([column[begin:stop], column[stop - 1 : stop]])
        return column[begin : stop + 1]

    known = stop if repeat else stop + 1
    return replace(
        whole,
        observations=map_leaves(observations, whole.observations),
        actions=steps(whole.actions),
        rewards=whole.rewards[begin:stop],
        extras={name: steps(tree) for name, tree in whole.extras.items()},
        infos={row - begin: info for row, info in whole.infos.items() if begin <= row < known},
        terminated=False,
        truncated=False,
        # Each try begins with a reset of its own, whose seed nobody recorded.
        first_step=whole.first_step if begin == 0 else 0,
        seed=whole.seed if begin == 0 else None,
    )
