"""Interface of one rank: the meetings at which all ranks agree."""

# Theory of operation
#
# A rank has its own link, workers and memory, so its interface is a `RemoteInterface`. What this file adds is what must
# be equal on all ranks: when training waits, when it stops, when a checkpoint is written. These follow from clocks,
# signals and arriving samples, which differ between ranks, so no rank may act on its own. At a meeting, each rank sends
# its standing (some 100 bytes), and all compute the same answer from the same list; between two meetings nothing that
# decides changes.
#
# - Samples: the sum. Ratios, the start of training and the workers' waiting follow it.
# - Lack: training waits while one rank has no batch. The reason names that rank and is shown. Workers of other ranks
#   are not told: they would conclude that they and the trainer wait for each other.
# - Scale of rewards: that of the returns in all memories.
# - Stop, time limit: one rank is enough.
# - Checkpoint: one rank is enough, if each has samples. It is written at the next `rest`, which every rank reaches
#   before its next update, so that all write the state of the same update.
# - Target: rank 0 evaluates, on the workers of its Server; the others wait for its word.
# - Starvation: only if every rank's workers and trainer wait for each other.
# - Incarnation: the largest, so that versions are equal on all Servers as soon as each has admitted its rank.
#
# A waiting rank looks for samples for at most `MEETING_S` before it meets the others, since one rank with samples and
# one without would otherwise hold each other up for a second at a time.

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from typing import Any

import msgspec

from tmrl_core.decodable import decodable
from tmrl_core.metrics import names
from tmrl_core.metrics.records import Value
from tmrl_core.networking.protocol.messages import Progress
from tmrl_core.samples import EpisodeRecord
from tmrl_core.training.interface import Standing
from tmrl_core.training.memories.return_scale import Moments, ReturnScale
from tmrl_core.training.rank_group import RankGroup
from tmrl_core.training.remote.interface import RemoteInterface
from tmrl_core.training.value_types import Metrics

MEETING_S = 0.1
"""Maximum wait in seconds for samples between two meetings."""
NAMED = 3
"""Maximum number of ranks whose reasons are shown."""

_SUMS = frozenset({"memory_len", "samples_stale", "samples_per_s", "episodes", "redistributed"})
"""Values of a round that are added; of others the mean is taken, or the largest or smallest by their names."""


@decodable
class RankStanding(msgspec.Struct, frozen=True, array_like=True):
    """State of one rank at a meeting.

    Args:
        samples: environment steps received.
        lack: what its memory lacks for a batch.
        stop: a stop was requested.
        over: its time limit has passed.
        reached: an evaluation has reached the target.
        checkpoint: a checkpoint is due.
        has_turn: its synchronous workers have finished their turn.
        starves: it and all its workers wait for each other.
        workers: number of linked workers.
        arrived: samples that have reached it.
        incarnation: of its link.
        returns: moments of the returns in its memory, if rewards are scaled.
    """

    samples: int = 0
    lack: str = ""
    stop: bool = False
    over: bool = False
    reached: bool = False
    checkpoint: bool = False
    has_turn: bool = True
    starves: bool = False
    workers: int = 0
    arrived: int = 0
    incarnation: int = 0
    returns: Moments = (0, 0.0, 0.0, 0.0)


class RankInterface(RemoteInterface):
    """Interface of a rank to its Server and to the other ranks. Arguments as for `RemoteInterface`.

    Args:
        ranks: the group.
        checkpoint_due: returns True if this rank would write a checkpoint.
        returns: scale of rewards; None: they stay as they are.
    """

    def __init__(
        self,
        *args: Any,
        ranks: RankGroup,
        checkpoint_due: Callable[[], bool],
        returns: ReturnScale | None,
        **kwargs: Any,
    ) -> None:
        self._ranks = ranks
        self._returns = returns
        self._checkpoint_due = checkpoint_due
        self._all: list[RankStanding] = [RankStanding()] * ranks.size
        """Standings at the latest meeting."""
        self._met = False
        self._suggested = 0
        """Highest incarnation of another rank that the link was told."""
        self._write = False
        """True: the ranks have agreed on a checkpoint that is not written yet."""
        self._own_reached = False
        self._confirming = False
        super().__init__(*args, **kwargs)
        # A rank that is held meets nobody, so that it would hear of no stop.
        self.operations.together = "this run has several ranks, which act together: pause its workers"

    # --- meetings -----------------------------------------------------------------------------------------------------

    def meet(self, own: Standing) -> Standing:
        """Tell the other ranks this one's standing, and return that of all.

        Raises:
            NetworkError: the Server refuses this rank permanently.
            RankLostError: another rank has ended.
        """
        self.link.check()
        counts = self.link.counts
        standing = RankStanding(
            samples=own.samples,
            lack=own.lack,
            stop=self._stop,
            over=super().time_limit_reached,
            reached=self._own_reached,
            checkpoint=self._checkpoint_due(),
            has_turn=super().has_turn(),
            starves=bool(super()._starving_workers()),
            workers=counts.workers,
            arrived=self._samples_before + counts.samples_received - counts.samples_refused,
            incarnation=self.link.trainer.holding,
            returns=(0, 0.0, 0.0, 0.0) if self._returns is None else self._returns.moments,
        )
        found = self._ranks.exchange(msgspec.msgpack.encode(standing))
        self._all = [msgspec.msgpack.decode(part, type=RankStanding) for part in found]
        self._met = True
        if self._returns is not None:
            self._returns.agree([one.returns for one in self._all])
        if any(one.stop for one in self._all):
            self.stop()
        if all(one.samples for one in self._all):
            self._write = self._write or any(one.checkpoint for one in self._all)
        highest = max(one.incarnation for one in self._all)
        if highest > max(standing.incarnation, self._suggested) and self.link.suggest(highest):
            self._suggested = highest
        return self._agreed()

    def agreed(self, own: Standing) -> Standing:
        """Return the standing of all ranks at the latest meeting."""
        return self._agreed() if self._met else own

    def _agreed(self) -> Standing:
        alone = ", and no worker is linked to its Server"
        lacks = [
            f"rank {rank}: {one.lack}{'' if one.workers else alone}" for rank, one in enumerate(self._all) if one.lack
        ]
        more = f"; and {len(lacks) - NAMED} more ranks" if len(lacks) > NAMED else ""
        return Standing(sum(one.samples for one in self._all), "; ".join(lacks[:NAMED]) + more)

    def _told(self, progress: Progress) -> Progress:
        # Workers end when they and the trainer wait for each other; these wait for another rank's workers.
        of_others = any(one.lack for rank, one in enumerate(self._all) if rank != self._ranks.rank)
        told = super()._told(progress)
        return msgspec.structs.replace(told, lack="") if of_others and not progress.gave_up else told

    @property
    def stopping(self) -> bool:
        """True: the ranks have agreed to end training."""
        if self.ending:
            return False
        return any(one.stop or one.over or (one.reached and not self._in_round) for one in self._all)

    @property
    def time_limit_reached(self) -> bool:
        """Return True if the ranks have agreed that the time limit has passed."""
        return any(one.over for one in self._all)

    @property
    def reached_target(self) -> bool:
        """True: the ranks have agreed that the target is reached."""
        return self._own_reached if self._confirming else any(one.reached for one in self._all)

    @reached_target.setter
    def reached_target(self, reached: bool) -> None:
        self._own_reached = reached

    def confirm_target(self) -> bool:
        """Return the answer of rank 0, which has evaluated the policy again."""
        self._confirming = True
        try:
            if self._ranks.rank == 0:
                super().confirm_target()
        finally:
            self._confirming = False
        reached = self._ranks.exchange(bytes([self._own_reached]))[0] == b"\1"
        self._own_reached = reached and self._ranks.rank == 0
        self._all = [msgspec.structs.replace(one, reached=reached) for one in self._all]
        return reached

    def has_turn(self) -> bool:
        """Return True if the synchronous workers of all ranks had finished their turn at the latest meeting."""
        return all(one.has_turn for one in self._all)

    def rest(self) -> None:
        """Write a checkpoint if the ranks have agreed on one."""
        if self._write:
            self._write = False
            super().rest()

    def wait(self, timeout_s: float) -> bool:
        """Wait for samples, but not long: the other ranks wait for the next meeting."""
        return super().wait(min(timeout_s, MEETING_S))

    def _starving_workers(self) -> list[tuple[str, str]]:
        return super()._starving_workers() if all(one.starves for one in self._all) else []

    # --- records ------------------------------------------------------------------------------------------------------

    def record_round(self, row: Metrics, latest: Collection[EpisodeRecord] = ()) -> None:
        """Record the row of a round, reduced over the ranks, on rank 0."""
        returns = [record.episode_return for record in latest]
        lengths = [record.length for record in latest]
        own = RankRow({name: float(value) for name, value in row.items()}, returns, lengths)
        found = [
            msgspec.msgpack.decode(part, type=RankRow) for part in self._ranks.exchange(msgspec.msgpack.encode(own))
        ]
        if self._ranks.rank:
            return
        values: Metrics = dict(row)
        values |= reduced([one.values for one in found])
        episodes = [episode for one in found for episode in one.returns]
        if episodes:
            values[names.RETURN_MEAN] = math.fsum(episodes) / len(episodes)
            steps = [length for one in found for length in one.lengths]
            values[names.EPISODE_LENGTH_MEAN] = sum(steps) / len(steps)
        super().record_round(values)

    def _link_values(self) -> dict[str, Value]:
        values = super()._link_values()
        others = [one for rank, one in enumerate(self._all) if rank != self._ranks.rank]
        for name, more in (
            (names.WORKERS, sum(one.workers for one in others)),
            (names.SAMPLES_ARRIVED, sum(one.arrived for one in others)),
        ):
            own = values[name]
            values[name] = (own if isinstance(own, int) else 0) + more
        return values


@decodable
class RankRow(msgspec.Struct, frozen=True, array_like=True):
    """Row of a round of one rank, with the returns and lengths of its latest training episodes."""

    values: dict[str, float]
    returns: list[float]
    lengths: list[int]


def reduced(rows: list[dict[str, float]]) -> Metrics:
    """Return the values of a round of all ranks; NaN stands for a rank that has none."""
    found: Metrics = {}
    for name in dict.fromkeys(name for row in rows for name in row):
        present = [row[name] for row in rows if name in row and not math.isnan(row[name])]
        if not present:
            found[name] = math.nan
        elif name in _SUMS:
            found[name] = sum(present)
        elif name.endswith("_max"):
            found[name] = max(present)
        elif name.endswith("_min"):
            found[name] = min(present)
        else:
            mean = math.fsum(present) / len(present)
            # Counters that are equal on all ranks stay whole numbers.
            found[name] = int(mean) if mean.is_integer() and all(value == mean for value in present) else mean
    return found
