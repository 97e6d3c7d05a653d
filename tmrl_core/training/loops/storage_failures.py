"""Samples that a full or broken disk does not take: why, said now and then and not each time that it is tried."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from tmrl_core.errors import StorageError

logger = logging.getLogger(__name__)

SAY_EVERY_S = 30.0
"""Seconds between two lines in the log."""


class Unwritten:
    """Why samples cannot be written, as long as they cannot.

    Args:
        clock: seconds.

    Attributes:
        why: in words; empty while all is well.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._said: float | None = None
        self.why = ""

    def note(self, exc: StorageError) -> None:
        """Record that samples could not be written."""
        self.why = str(exc)
        now = self._clock()
        if self._said is None or now - self._said >= SAY_EVERY_S:
            self._said = now
            logger.error(
                "samples cannot be stored: %s. They are not acknowledged, so their workers keep them. No more are "
                "inserted until they can be written, which is tried repeatedly. Training continues with the stored "
                "samples, as far as its ratio allows.",
                str(exc).rstrip("."),
            )

    def over(self) -> None:
        """Record that they were written."""
        if self.why:
            logger.warning("the replay memory can be written again")
            self.why = ""
