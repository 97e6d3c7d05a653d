"""Detection of starvation: worker and trainer wait for each other."""

from __future__ import annotations

import time
from collections.abc import Callable

from tmrl_core.networking.protocol.messages import Progress


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
