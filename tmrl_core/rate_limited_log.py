"""A log in a bounded number of lines. Sans-I/O: the caller passes the time."""

from __future__ import annotations

from collections.abc import Callable

from tmrl_core.token_bucket import TokenBucket

LINES_AT_ONCE = 500
LINES_PER_S = 1.0
"""Rate of lines after a burst, so that a peer that keeps joining and leaving cannot fill a disk."""


class RateLimitedLog:
    """Rate-limited log: forward a burst of lines, then lines at a low rate, and count the rest.

    Args:
        say: writes a line to the log.
        what: description of the suppressed lines.
        lines_per_s: rate of lines after the burst; None: `LINES_PER_S`.
    """

    def __init__(self, say: Callable[[str], None], what: str, lines_per_s: float | None = None) -> None:
        self._say = say
        self._what = what
        self._lines = TokenBucket(LINES_PER_S if lines_per_s is None else lines_per_s, LINES_AT_ONCE)
        self._suppressed = 0

    def __call__(self, line: str, now: float) -> None:
        """Log a line or count it; `now` in seconds of any clock."""
        if not self._lines.take(now):
            self._suppressed += 1
            return
        if self._suppressed:
            line += f" (and {self._suppressed} {self._what} and were not logged)"
            self._suppressed = 0
        self._say(line)
