"""Episodes that all terminate at one same length: probably a time limit that the environment reports as an end."""

from __future__ import annotations

import logging

from tmrl_core.samples import EpisodeRecord

logger = logging.getLogger(__name__)

EPISODES = 10
"""Number of such episodes before the warning."""


class EqualEnds:
    """Warn once if all episodes of a run so far have terminated after the same number of steps, more than one."""

    def __init__(self) -> None:
        self._length = 0
        self._count = 0
        self._over = False

    def take(self, record: EpisodeRecord) -> None:
        """Take an episode's record."""
        if self._over or record.end == "aborted" or record.agent:
            return
        if record.end != "terminated" or record.length < 2 or self._length not in (0, record.length):
            self._over = True
            return
        self._length = record.length
        self._count += 1
        if self._count == EPISODES:
            self._over = True
            logger.warning(
                "All %d episodes so far have ended by `terminated` after exactly %d steps. If that is a time limit, "
                "set environment.time_limit: %d, so that they become truncations; else learners take the value of "
                "what follows as 0. If the task ends there, all is well.",
                EPISODES,
                self._length,
                self._length,
            )
