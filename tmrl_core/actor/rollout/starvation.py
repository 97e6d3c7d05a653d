"""Detection of starvation: worker and trainer wait for each other."""

# Theory of operation
#
# The ratios of both sides can make them wait for each other forever. The trainer's `Progress` contains its shortfall; a
# worker that may not continue, and whose samples are all acknowledged, reports its reason (`Waits`). The trainer
# decides, because it knows all workers: if it lacks samples and every worker waits for longer than the silence limit of
# a link, both sides end with an error that contains the numbers. It waits 30 s for workers whose links are lost, since
# they may return with the missing samples. A trainer that gives up says so in its last `Progress`, which stays valid
# after it has left; workers of a trainer that was killed wait for the next one.
#
# Rejected: inferring starvation from silence, which cannot tell it from a long episode.

from __future__ import annotations

import time
from collections.abc import Callable

from tmrl_core.networking.protocol.messages import Progress


class StarvationWatch:
    """Detect that worker and trainer wait for each other, from the worker's side.

    The trainer knows all workers and reports when it gives up. Before that, another worker may still reconnect and send
    the missing samples. Therefore this worker waits until nothing has changed for at least a minute, and for longer
    than three of its longest episodes.

    Args:
        longest_episode_s: duration of the longest episode so far, in seconds.
        least_s: minimum time without a change, in seconds.
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
        """Return True if all samples have arrived, the trainer waits too, and nothing has changed for that time."""
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
