"""Polling interval: number of environment steps between two polls of the link, so that polls are cheap and frequent."""

from __future__ import annotations

POLL_S = 0.2
"""Seconds between two polls of the link; also the delay with which a worker notices a directive to finish."""

FIRST_STEPS = 16
"""Number of steps of the first slice."""

_MOST_STEPS = 4096


def next_slice(length: int, steps: int, elapsed_s: float) -> int:
    """Return the number of steps of the next slice, which fits POLL_S and is at most four times as long as this one.

    Args:
        length: number of steps that were allowed in this slice.
        steps: number that was made.
        elapsed_s: its duration, in seconds.
    """
    if steps < 1:
        return length
    fitting = _MOST_STEPS if elapsed_s <= 0 else round(POLL_S * steps / elapsed_s)
    return max(1, min(fitting, 4 * length, _MOST_STEPS))
