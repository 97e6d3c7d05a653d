"""Policy lag of transitions: sampling of recent ones only, and statistics of the sampled ones."""

# Theory of operation
#
# Transitions arrive as runs of one policy version, a few per message. A list of runs therefore holds all lags at no
# cost per transition, both for rows in RAM and on disk. Uniform sampling chooses a number below the sum of the runs'
# lengths. Runs leave the list when they are too old, or when their rows have left the memory. Example: rows 0 to 99 of
# version 5 and 100 to 249 of version 6, with a maximum lag of 1. At version 7 the first run leaves, and a number below
# 150 chooses a row of the second. Prioritized sampling sets the priority of rows that leave to 0, which no later error
# raises.
#
# A worker may send rows of two versions in turn, so that the list has a run for each row of the memory. New runs are
# therefore put beside the list, and join it once it is used as a whole: when batches are sampled or the version
# changes.
#
# A version above the latest one, of an interrupted trainer or invented, counts as the latest of its time, and its
# transitions age like all others. A trainer that resumes publishes the latest policy again under the same number, so
# lags continue as without the interruption. A memory on disk reads the versions of its rows once, when it is opened.

from __future__ import annotations

from collections import deque

import numpy as np

from tmrl_core.errors import ConfigError
from tmrl_core.training.memories.layout import Array
from tmrl_core.training.memories.rows import Rows
from tmrl_core.training.memories.sampler import Sampler

MAX_NOTES = 4096
MAX_ADDED = 256
"""Number of additions after which their runs join the list, so that runs without rows leave it."""


class FreshRows:
    """The rows whose policy is at most `max_lag` versions behind the latest.

    Rows have absolute indices, as in `Rows`.

    Args:
        max_lag: versions.

    Raises:
        ConfigError: `max_lag` is negative.

    Attributes:
        counter: number of the latest version.
    """

    def __init__(self, max_lag: int) -> None:
        if max_lag < 0:
            raise ConfigError(f"memory.max_drawn_lag must be 0 or more, got {max_lag!r}")
        self.max_lag = max_lag
        self.counter = 0
        self._starts: Array = np.zeros(0, np.int64)
        self._stops: Array = np.zeros(0, np.int64)
        self._counters: Array = np.zeros(0, np.int64)
        self._added: list[tuple[Array, Array, Array]] = []
        """Starts, stops and counters of later runs, by addition."""
        self._recent = 0
        """Number of the first additions that have no old runs."""
        self._expired_at: int | None = None
        """Number of the version for which all old runs have left the list; None: some may be in it."""
        self._within: tuple[tuple[int, int], Array, Array] | None = None
        """First row of each run in [first, readable), and the running sum of the runs' lengths."""

    def follow(self, counter: int) -> None:
        """Set the number of the latest version. Rows that claim a later one are then rows of this version.

        Otherwise a worker that invents the number of a version could send rows that never expire.
        """
        if self.counter:  # the first number after a restart may be that of a checkpoint, and the rows on disk be newer
            self._join()
            self._counters = np.minimum(self._counters, counter)
        self.counter = counter

    def add_rows(self, rows: Rows, start: int) -> None:
        """Add the rows from `start` on, which can be read."""
        start = max(start, rows.readable - len(rows))
        self.add(start, rows.versions_of(start, rows.readable)[:, 1])

    def add(self, start: int, counters: Array) -> None:
        """Add the rows from `start` on; `counters` [n] are the numbers of their versions."""
        if not len(counters):
            return
        self._within = None
        changes = (counters[1:] != counters[:-1]).nonzero()[0]
        _, stops, latest = self._added[-1] if self._added else (self._starts, self._stops, self._counters)
        if not len(changes) and len(stops) and stops[-1] == start and latest[-1] == counters[0]:
            stops[-1] = start + len(counters)  # the rows continue the latest run
            return
        begins = np.concatenate([[0], changes + 1])
        ends = np.append(begins[1:], len(counters))
        self._added.append((start + begins, start + ends, counters[begins]))

    def _adds_old(self) -> bool:
        oldest = self.counter - self.max_lag
        return any((counters < oldest).any() for _, _, counters in self._added[self._recent :])

    def _join(self) -> None:
        """Let the added runs join the list."""
        if self._added:
            if self._adds_old():
                self._expired_at = None
            joined = zip((self._starts, self._stops, self._counters), *self._added, strict=True)
            self._starts, self._stops, self._counters = map(np.concatenate, joined)
            self._added, self._recent = [], 0

    def _keep(self, kept: Array) -> None:
        if not kept.all():
            self._starts, self._stops, self._counters = self._starts[kept], self._stops[kept], self._counters[kept]
        self._within = None

    def expire(self, first: int, readable: int) -> list[tuple[int, int]]:
        """Remove rows in [first, readable) that are too old now. Return them as ranges."""
        if self._expired_at == self.counter and len(self._added) < MAX_ADDED and not self._adds_old():
            self._recent = len(self._added)
            return []
        self._join()
        too_old = self._counters < self.counter - self.max_lag
        old = too_old & (self._starts < readable)
        self._expired_at = None if (too_old & (self._stops > readable)).any() else self.counter
        gone = self._stops <= first
        if not (old.any() or gone.any()):
            return []
        stops = np.minimum(self._stops[old], readable)
        found = [
            (max(start, first), stop)
            for start, stop in zip(self._starts[old].tolist(), stops.tolist(), strict=True)
            if stop > first
        ]
        self._starts[old] = stops
        self._keep(~gone & (self._starts < self._stops))
        return found

    def _bounds(self, first: int, readable: int) -> tuple[Array, Array]:
        self._join()
        if self._within is None or self._within[0] != (first, readable):
            starts, stops = np.maximum(self._starts, first), np.minimum(self._stops, readable)
            self._within = ((first, readable), starts, np.maximum(stops - starts, 0).cumsum())
        return self._within[1], self._within[2]

    def count(self, first: int, readable: int) -> int:
        """Return the number of rows in [first, readable) that may be sampled."""
        running = self._bounds(first, readable)[1]
        return int(running[-1]) if len(running) else 0

    def count_of(self, rows: Rows) -> int:
        """Return the number of rows that may be sampled."""
        return self.count(rows.readable - len(rows), rows.readable)

    def check(self, rows: Rows) -> None:
        """Raise ValueError if no row may be sampled."""
        if self.count_of(rows) == 0:
            raise ValueError(f"no transition is of a policy at most {self.max_lag} versions behind")

    def sample(self, generator: np.random.Generator, size: int, first: int, readable: int) -> Array:
        """Choose among the recent rows in [first, readable) with equal probability. There must be at least one.

        Returns:
            Absolute indices [size].
        """
        starts, running = self._bounds(first, readable)
        sampled = generator.integers(0, running[-1], size=size)
        run = running.searchsorted(sampled, "right")
        # The running sum gives the end of each run, so places in a run are counted from its end.
        lengths = np.diff(running, prepend=0)
        indices: Array = starts[run] + (sampled - (running[run] - lengths[run]))
        return indices


class RecentSampler(Sampler):
    """Uniform sampling of transitions whose policy is at most `max_lag` versions behind the latest.

    Args:
        max_lag: versions.

    Raises:
        ConfigError: it is negative.
    """

    follows_versions = True

    def __init__(self, max_lag: int) -> None:
        self.fresh = FreshRows(max_lag)

    def sample(
        self, rows: Rows, generator: np.random.Generator, batch_size: int, batches: int
    ) -> tuple[Array, dict[str, Array]]:
        """Choose rows from the runs of recent rows."""
        self.fresh.check(rows)
        first = rows.readable - len(rows)
        return rows.positions_of(self.fresh.sample(generator, batch_size * batches, first, rows.readable)), {}

    def count(self, rows: Rows) -> int:
        """Return the number of rows that are recent enough."""
        return self.fresh.count_of(rows)

    def add(self, rows: Rows, start: int) -> None:
        """Read the versions of new rows."""
        self.fresh.add_rows(rows, start)
        self._expire(rows)

    def note_version(self, rows: Rows, counter: int) -> bool:
        """Remove rows that are too old."""
        self.fresh.follow(counter)
        return self._expire(rows)

    def _expire(self, rows: Rows) -> bool:
        return bool(self.fresh.expire(rows.readable - len(rows), rows.readable))

    def load_state_dict(self, state: object, rows: Rows, complete: bool) -> None:
        """Read the versions of all rows."""
        self.fresh = FreshRows(self.fresh.max_lag)
        self.add(rows, rows.readable - len(rows))


class SampledLag:
    """Numbers of versions by which the policies of sampled transitions are behind the latest one.

    Attributes:
        counter: number of the latest version.
    """

    def __init__(self) -> None:
        self.counter = 0
        # Evaluated on request: sampling a batch takes less time than a mean.
        self._notes: deque[tuple[int, Array]] = deque(maxlen=MAX_NOTES)

    def note(self, counters: Array) -> None:
        """Add the versions of a batch for training, or of a part of it."""
        self._notes.append((self.counter, counters))

    def take(self) -> tuple[float, int] | None:
        """Return mean and maximum of the latest `MAX_NOTES` entries since the last call; None: there were none."""
        if not self._notes:
            return None
        behind = np.concatenate([np.maximum(latest - counters, 0) for latest, counters in self._notes])
        self._notes.clear()
        return float(behind.mean()), int(behind.max())
