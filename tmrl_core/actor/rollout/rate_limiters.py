"""Rate limiters of collection: of the synchronous and the asynchronous mode, and the detection of starvation."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterator

from tmrl_core.networking.protocol.messages import Progress


class Ratio:
    """Keep (steps + 1) / (1 + models received) at or below a maximum, which need not be whole.

    Args:
        max_steps_per_update: the maximum; infinite: no limit.

    Raises:
        ValueError: it is not above 0.
    """

    def __init__(self, max_steps_per_update: float) -> None:
        if not max_steps_per_update > 0:
            raise ValueError(f"max_steps_per_update must be above 0, got {max_steps_per_update}")
        self.maximum = max_steps_per_update
        self.models = 0

    def allows(self, steps: int) -> bool:
        """Return True if one more step may be taken after `steps`."""
        return (steps + 1) / (1 + self.models) <= self.maximum

    def room(self, steps: int) -> float:
        """Return the number of steps that may be taken after `steps`; infinite without a limit."""
        if math.isinf(self.maximum):
            return math.inf
        room = math.floor(self.maximum * (1 + self.models)) - steps
        while room > 0 and not self.allows(steps + room - 1):  # the product rounds, the rule is the quotient
            room -= 1
        while room >= 0 and self.allows(steps + room):
            room += 1
        return max(room, 0)


class RateLimiter:
    """Make asynchronous workers wait while the trainer has more environment steps than its updates call for.

    Args:
        max_env_steps_per_update: of all workers together, once training has begun; None: never wait.
    """

    def __init__(self, max_env_steps_per_update: float | None) -> None:
        self.limit = max_env_steps_per_update

    def holds(self, progress: Progress, unacknowledged: int) -> bool:
        """Return True to wait.

        One update of slack: a trainer whose own limit is just met then makes one update more, never one less.

        Args:
            progress: the trainer's latest.
            unacknowledged: number of this worker's samples that the trainer has not counted yet.
        """
        if self.limit is None:
            return False
        allowed = progress.start_training + (progress.updates + 1) * self.limit
        return progress.samples + unacknowledged > allowed


class StarvationWatch:
    """Detect that worker and trainer wait for each other, from the worker's side.

    The trainer knows of all workers and reports that it gives up. Before that, another worker may still send the
    missing samples after it has reconnected. So nothing may have changed for longer than three of the longest episodes
    of this worker, and for at least a minute.

    Args:
        longest_episode_s: duration of the longest episode so far, in seconds.
        least_s: shortest time without a change that counts, in seconds.
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
        """Return True if all samples have arrived, the trainer waits too, and nothing has changed for so long."""
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
