"""Polling interval: number of environment steps between two polls of the link."""

from __future__ import annotations

POLL_S = 0.2
"""Seconds between two polls of the link; also the delay with which a worker notices a directive to finish."""

_MOST_STEPS = 4096


class PollingInterval:
    """Choose the number of steps between two polls of the link, so that polls are cheap and frequent.

    Attributes:
        length: number of steps of the next slice.
    """

    def __init__(self) -> None:
        self.length = 16

    def note(self, steps: int, elapsed_s: float) -> None:
        """Note the duration of a slice of steps. The next one fits POLL_S, and is at most four times as long."""
        if steps >= 1:
            fitting = _MOST_STEPS if elapsed_s <= 0 else round(POLL_S * steps / elapsed_s)
            self.length = max(1, min(fitting, 4 * self.length, _MOST_STEPS))
