"""A rate limit that allows bursts. Sans-I/O: the caller passes the time."""

from __future__ import annotations


class TokenBucket:
    """Allow a burst of `burst` tokens, then `rate_per_s` tokens per second. The bucket starts full.

    Args:
        rate_per_s: tokens refilled per second.
        burst: capacity of the bucket in tokens.
    """

    __slots__ = ("_at", "_burst", "_rate_per_s", "_tokens")

    def __init__(self, rate_per_s: float, burst: float) -> None:
        self._rate_per_s = rate_per_s
        self._burst = burst
        self._tokens = float(burst)
        self._at: float | None = None

    def available(self, now: float) -> float:
        """Return the tokens in the bucket at the time `now`, in seconds of any clock.

        A clock that goes back adds none.
        """
        if self._at is not None:
            self._tokens = min(self._burst, self._tokens + max(0.0, now - self._at) * self._rate_per_s)
        self._at = now
        return self._tokens

    def spend(self, tokens: float = 1.0) -> None:
        """Take tokens that are available."""
        self._tokens -= tokens

    def give_back(self) -> None:
        """Return one token."""
        self._tokens = min(self._burst, self._tokens + 1.0)

    def take(self, now: float) -> bool:
        """Take one token; return False if there is none."""
        if self.available(now) < 1.0:
            return False
        self._tokens -= 1.0
        return True
