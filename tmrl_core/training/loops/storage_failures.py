"""Rate-limited log of samples that a full or broken disk does not accept."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from tmrl_core.errors import StorageError

logger = logging.getLogger(__name__)

LOG_INTERVAL_S = 30.0
"""Interval in seconds between two log lines."""


class Unwritten:
    """The current reason why samples cannot be written.

    Args:
        clock: seconds.

    Attributes:
        why: the reason; empty while samples can be written.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._logged_s: float | None = None
        self.why = ""

    def note(self, exc: StorageError) -> None:
        """Record that samples could not be written."""
        self.why = str(exc)
        now = self._clock()
        if self._logged_s is None or now - self._logged_s >= LOG_INTERVAL_S:
            self._logged_s = now
            logger.error(
                "samples cannot be stored: %s. They are not acknowledged, so their workers keep them. No more are "
                "inserted until they can be written, which is tried repeatedly. Training continues with the stored "
                "samples, as far as its ratio allows.",
                str(exc).rstrip("."),
            )

    def over(self) -> None:
        """Record that samples were written."""
        if self.why:
            logger.warning("the replay memory can be written again")
            self.why = ""
