"""How fast a worker may collect: the ratio of synchronous mode, the brake of asynchronous mode, and who starves."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterator

from tmrl_core.networking.protocol.messages import Progress

SLICE_S = 0.2
"""Seconds between two looks at anything but the environment; also how late a worker notices a directive to finish."""

_LONGEST_SLICE = 4096


class Slices:
    """How many steps to take between two looks at the world, so that it costs nothing and is never long ago.

    Args:
        clock: seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.length = 16
        self._clock = clock
        self._start = clock()

    def begin(self) -> None:
        """A slice begins."""
        self._start = self._clock()

    def end(self, steps: int) -> None:
        """A slice of so many steps has ended; the next is as long as SLICE_S allows, at most four times as long."""
        elapsed = self._clock() - self._start
        if steps < 1:
            return
        fitting = _LONGEST_SLICE if elapsed <= 0 else round(SLICE_S * steps / elapsed)
        self.length = max(1, min(fitting, 4 * self.length, _LONGEST_SLICE))


class Ratio:
    """Keeps (steps + 1) / (1 + models received) at or below a maximum, which need not be whole.

    Args:
        max_steps_per_update: the maximum; infinite: no limit.
    """

    def __init__(self, max_steps_per_update: float) -> None:
        if not max_steps_per_update > 0:
            raise ValueError(f"max_steps_per_update must be above 0, got {max_steps_per_update}")
        self.maximum = max_steps_per_update
        self.models = 0

    def allows(self, steps: int) -> bool:
        """True: after `steps` steps one more may be taken."""
        return (steps + 1) / (1 + self.models) <= self.maximum

    def room(self, steps: int) -> float:
        """How many more steps may be taken after `steps`; infinite without a limit."""
        if math.isinf(self.maximum):
            return math.inf
        room = math.floor(self.maximum * (1 + self.models)) - steps
        while room > 0 and not self.allows(steps + room - 1):  # the product rounds, the rule is the quotient
            room -= 1
        while room >= 0 and self.allows(steps + room):
            room += 1
        return max(room, 0)


class Brake:
    """Makes asynchronous workers wait when the trainer has more environment steps than its updates call for.

    Args:
        max_env_steps_per_update: of all workers together, once training has begun; None: never wait.
    """

    def __init__(self, max_env_steps_per_update: float | None) -> None:
        self.limit = max_env_steps_per_update

    def holds(self, progress: Progress, unacknowledged: int) -> bool:
        """True: wait.

        One update of slack: a trainer whose ratio is just met by this one then makes one more, never one less.
        """
        if self.limit is None:
            return False
        allowed = progress.start_training + (progress.updates + 1) * self.limit
        return progress.samples + unacknowledged > allowed


class StarvationWatch:
    """Notices that worker and trainer wait for each other, from the worker's side.

    The trainer, who hears of all workers, is the one to say that it gives up. Without that word another worker may
    still bring what it lacks, once it has found back to the Server, so nothing at all must move for a while: longer
    than three of the longest episodes seen here, and at least a minute.

    Args:
        longest_episode_s: how long the longest episode so far took, in seconds.
        least_s: the shortest time without movement that counts.
        clock: seconds.
    """

    def __init__(
        self, longest_episode_s: float, least_s: float = 60.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._window_s = max(least_s, 3.0 * longest_episode_s)
        self._clock = clock
        self._still: tuple[Progress, int] | None = None
        self._since = 0.0

    def starving(self, progress: Progress, versions: int, unacknowledged: int) -> bool:
        """True: everything of ours has arrived, the trainer waits too, and nothing has moved for the whole window."""
        if unacknowledged or not progress.lack:
            self._still = None
            return False
        if progress.gave_up:
            return True
        if self._still != (progress, versions):
            self._still = progress, versions
            self._since = self._clock()
            return False
        return self._clock() - self._since >= self._window_s


def count_to(number: float) -> Iterator[int]:
    """Count from 0 to below a number, which may be infinite."""
    return itertools.count() if number == math.inf else iter(range(int(number)))
