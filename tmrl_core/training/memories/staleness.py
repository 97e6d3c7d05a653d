"""Which transitions are of a policy that is recent enough to be drawn, and how far behind those are that were drawn.

Transitions come as runs of one policy version, a few for each message, so that a list of runs says of all of them how
old they are: it costs nothing per transition, and is the same for rows in RAM and on disk. A uniform draw is a draw of
a number below the sum of the runs' lengths. Runs leave the list when they have become too old, or their rows have gone.
"""

from __future__ import annotations

from collections import deque

import numpy as np

from tmrl_core.training.memories.layout import Array

MOST_NOTED = 4096


class FreshRows:
    """The rows whose policy is at most `max_lag` versions behind the latest.

    Rows have absolute indices, as in `Rows`. Those from `readable` on are stored and cannot be read yet.

    Args:
        max_lag: versions.

    Attributes:
        counter: number of the latest version.
    """

    def __init__(self, max_lag: int) -> None:
        self.max_lag = max_lag
        self.counter = 0
        self._starts: Array = np.zeros(0, np.int64)
        self._stops: Array = np.zeros(0, np.int64)
        self._counters: Array = np.zeros(0, np.int64)
        self._within: tuple[tuple[int, int], Array, Array] | None = None
        """For the rows [first, readable): where each run begins, and the running sum of their lengths."""

    @property
    def stop(self) -> int:
        """Index after the newest row that it knows."""
        return int(self._stops[-1]) if len(self._stops) else 0

    def add(self, start: int, counters: Array) -> None:
        """Rows from `start` on are stored; `counters` [n] are the numbers of their versions."""
        if not len(counters):
            return
        begins = np.concatenate([[0], np.flatnonzero(np.diff(counters)) + 1])
        ends = np.append(begins[1:], len(counters))
        self._starts = np.concatenate([self._starts, start + begins])
        self._stops = np.concatenate([self._stops, start + ends])
        self._counters = np.concatenate([self._counters, counters[begins]])
        self._within = None

    def cut(self, stop: int) -> None:
        """Rows from `stop` on were not stored after all."""
        self._keep(self._starts < stop)
        self._stops = np.minimum(self._stops, stop)

    def _keep(self, kept: Array) -> None:
        if not kept.all():
            self._starts, self._stops, self._counters = self._starts[kept], self._stops[kept], self._counters[kept]
        self._within = None

    def expire(self, first: int, readable: int) -> list[tuple[int, int]]:
        """Let go of the runs in [first, readable) that are too old by now, and say which rows they were."""
        old = (self._counters < self.counter - self.max_lag) & (self._stops <= readable)
        gone = old | (self._stops <= first)
        if not gone.any():
            return []
        found = [
            (max(start, first), stop)
            for start, stop in zip(self._starts[old].tolist(), self._stops[old].tolist(), strict=True)
            if stop > first
        ]
        self._keep(~gone)
        return found

    def _bounds(self, first: int, readable: int) -> tuple[Array, Array]:
        if self._within is None or self._within[0] != (first, readable):
            starts, stops = np.maximum(self._starts, first), np.minimum(self._stops, readable)
            self._within = ((first, readable), starts, np.maximum(stops - starts, 0).cumsum())
        return self._within[1], self._within[2]

    def count(self, first: int, readable: int) -> int:
        """How many of the rows [first, readable) may be drawn."""
        running = self._bounds(first, readable)[1]
        return int(running[-1]) if len(running) else 0

    def draw(self, generator: np.random.Generator, size: int, first: int, readable: int) -> Array:
        """Absolute indices [size] of rows in [first, readable), each that may be drawn as likely as any other.

        Raises:
            ValueError: none may be drawn.
        """
        starts, running = self._bounds(first, readable)
        if not len(running) or running[-1] == 0:
            raise ValueError(f"no transition is of a policy at most {self.max_lag} versions behind")
        drawn = generator.integers(0, running[-1], size=size)
        run = running.searchsorted(drawn, "right")
        # A run's place is counted from its end, as the running sum says where that is.
        lengths = np.diff(running, prepend=0)
        indices: Array = starts[run] + (drawn - (running[run] - lengths[run]))
        return indices


class DrawnLag:
    """By how many versions the policies of what was drawn are behind the latest one.

    Attributes:
        counter: number of the latest version.
    """

    def __init__(self) -> None:
        self.counter = 0
        # Looked at when somebody asks: a batch is drawn in less time than a mean takes.
        self._drawn: deque[tuple[int, Array]] = deque(maxlen=MOST_NOTED)

    def note(self, counters: Array) -> None:
        """A batch with these versions, or a part of it, goes to training."""
        self._drawn.append((self.counter, counters))

    def take(self) -> tuple[float, int] | None:
        """Mean and maximum since the last call, of the latest `MOST_NOTED` notes; None: nothing was drawn."""
        if not self._drawn:
            return None
        behind = np.concatenate([np.maximum(latest - counters, 0) for latest, counters in self._drawn])
        self._drawn.clear()
        return float(behind.mean()), int(behind.max())
