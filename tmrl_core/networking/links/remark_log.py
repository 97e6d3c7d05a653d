"""Log of what other members cause, in a bounded number of lines for each of them."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable

from tmrl_core.networking.protocol.messages import MAX_NAME_CHARACTERS, plain
from tmrl_core.token_bucket import TokenBucket

LINES_AT_ONCE = 20
LINES_PER_S = 1 / 600
"""Rate of lines about one source after a burst."""
SUMMARY_S = 600.0
"""Minimum time between two summaries of what was not logged."""
MAX_SOURCES = 64
"""Maximum number of sources with lines of their own. Further ones share those of one source."""
_NAMED = 5
"""Number of sources that a summary names."""
_UNPROVEN = "unproven origin"
_OTHERS = "other certificates"


class _Source:
    """Lines of one source."""

    def __init__(self) -> None:
        self.lines = TokenBucket(LINES_PER_S, LINES_AT_ONCE)
        self.logged: deque[str] = deque(maxlen=LINES_AT_ONCE)
        self.left_out = 0
        """Number of remarks since the last summary that were not logged."""


class RemarkLog:
    """Log of remarks about other members, by the name in the certificate that has caused each.

    One member can neither fill the log nor use up the lines about others. A text is not repeated. What is left out is
    counted, and a summary every `SUMMARY_S` says how much it was.

    Args:
        logger: its owner's.
        clock: seconds of any clock.
    """

    def __init__(self, logger: logging.Logger, clock: Callable[[], float] = time.monotonic) -> None:
        self._logger = logger
        self._clock = clock
        self._sources: dict[str, _Source] = {}
        self._summary_due = clock() + SUMMARY_S

    def forged(self, what: str, source: str = "") -> None:
        """Log data that its alleged origin has not sent. The caller's seal counts it."""
        self._log(
            logging.ERROR,
            f"data without a valid proof of its origin was ignored: {what.rstrip('.')}. The Server, or a program with "
            "its key, has altered or invented it, or the two ends differ in network.end_to_end. Check both, and the "
            "Server's host (docs/security.md).",
            source,
        )

    def remark(self, text: str, source: str = "") -> None:
        """Log a reason why data of a member is not used."""
        self._log(logging.WARNING, text, source)

    def _log(self, level: int, text: str, source: str) -> None:
        self.summarize()
        name = plain(source, MAX_NAME_CHARACTERS) or _UNPROVEN
        if name not in self._sources and len(self._sources) >= MAX_SOURCES:
            name = _OTHERS
        about = self._sources.setdefault(name, _Source())
        if text in about.logged or not about.lines.take(self._clock()):
            about.left_out += 1
            return
        about.logged.append(text)
        self._logger.log(level, "%s", text)

    def summarize(self) -> None:
        """Log how much was left out since the last summary, if there was something and the time has come."""
        now = self._clock()
        if now < self._summary_due:
            return
        self._summary_due = now + SUMMARY_S
        left_out = sorted(((about.left_out, name) for name, about in self._sources.items()), reverse=True)
        total = sum(count for count, _ in left_out)
        if total:
            named = ", ".join(f"{count:,} about {name}" for count, name in left_out[:_NAMED] if count)
            self._logger.warning(
                "remarks that repeat earlier ones or are too many were not logged: %d (%s)", total, named
            )
        for name, about in list(self._sources.items()):
            about.left_out = 0
            if about.lines.available(now) >= LINES_AT_ONCE:  # nothing is lost by forgetting it
                del self._sources[name]
