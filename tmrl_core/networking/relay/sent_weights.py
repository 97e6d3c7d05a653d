"""Weights that one principal makes the Server send. Sans-I/O.

A principal receives each version of the policy once without a limit. What it receives in addition, because it has
several links or connects again and again, has a rate. A link beyond it waits, and then begins with the newest version.
"""

from __future__ import annotations

from tmrl_core.networking.protocol.messages import Version
from tmrl_core.token_bucket import TokenBucket

BYTES_PER_S = 128 << 20
"""Rate of repetitions: about a tenth of a core, and a gigabit per second."""
BURST_BYTES = 1 << 30
"""Repetitions at once, enough for many workers of one machine that connect again."""


class SentWeights:
    """Versions that were sent to each principal.

    Args:
        bytes_per_s, burst_bytes: rate of repetitions.
    """

    def __init__(self, bytes_per_s: int = BYTES_PER_S, burst_bytes: int = BURST_BYTES) -> None:
        self._rate = bytes_per_s, burst_bytes
        self._principals: dict[str, tuple[Version, TokenBucket]] = {}  # as many as there are certificates

    def wait_s(self, principal: str, version: Version, size: int, now: float) -> float:
        """Charge a version to a principal and return 0, or return the seconds until it may be sent."""
        newest, bucket = self._principals.get(principal) or ((0, 0), TokenBucket(*self._rate))
        if version > newest:
            self._principals[principal] = version, bucket
            return 0.0
        available = bucket.available(now)
        if available <= 0.0:
            return (1.0 - available) / self._rate[0]
        bucket.spend(size)
        return 0.0
