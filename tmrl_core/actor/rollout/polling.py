"""Polling interval: number of environment steps between two polls of the link."""

from __future__ import annotations

import time
from collections.abc import Callable

POLL_S = 0.2
"""Seconds between two polls of the link; also the delay with which a worker notices a directive to finish."""

_MOST_STEPS = 4096


class PollingInterval:
    """Choose the number of steps between two polls of the link, so that polls are cheap and frequent.

    Args:
        clock: seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.length = 16
        """Return the number of steps of the next slice."""
        self._clock = clock
        self._start = clock()

    def begin(self) -> None:
        """Begin a slice of steps."""
        self._start = self._clock()

    def end(self, steps: int) -> None:
        """End a slice of `steps` steps. The next slice fits POLL_S, and is at most four times as long."""
        elapsed = self._clock() - self._start
        if steps < 1:
            return
        fitting = _MOST_STEPS if elapsed <= 0 else round(POLL_S * steps / elapsed)
        self.length = max(1, min(fitting, 4 * self.length, _MOST_STEPS))
