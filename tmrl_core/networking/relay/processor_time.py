"""Processor time of the Server that each principal may use besides its samples. Sans-I/O: transports measure it.

Samples cost what the trainer's credit and the turns of the principals allow. All other input (requests for credit,
streams that open and close, wait reasons, heartbeats, frames that are discarded) costs time that nothing else bounds.
Each principal has `SHARE` of a core for it. Beyond that, nothing is read from any of its links for a while.
"""

from __future__ import annotations

from tmrl_core.token_bucket import TokenBucket

SHARE = 0.1
"""Part of a core that one principal may use. Honest workers use less than a hundredth."""
BURST_S = 1.0
"""Processor seconds at once, enough for a fleet that connects again."""
MAX_PAUSE_S = 4.0
"""Maximum pause, less than the time after which a silent link is closed."""


class ProcessorTime:
    """Processor time of all principals."""

    def __init__(self) -> None:
        self._buckets: dict[str, TokenBucket] = {}  # as many as there are certificates and roles

    def charge(self, principal: str, seconds: float, now: float) -> float:
        """Charge processor time to a principal. Return the seconds for which its links should not be read; 0: none."""
        bucket = self._buckets.get(principal)
        if bucket is None:
            bucket = self._buckets[principal] = TokenBucket(SHARE, BURST_S)
        lacking_s = seconds - bucket.available(now)
        bucket.spend(seconds)
        return min(lacking_s / SHARE, MAX_PAUSE_S) if lacking_s > 0 else 0.0

    def overspent(self, principal: str, now: float) -> bool:
        """Return True if a principal has used more than its share."""
        bucket = self._buckets.get(principal)
        return bucket is not None and bucket.available(now) <= 0
