"""Processor time of the Server that each principal may use besides its samples. Sans-I/O: transports measure it.

Samples cost what the trainer's credit and the turns of the principals allow. All other input (requests for credit,
streams that open and close, wait reasons, heartbeats, frames that are discarded) costs time that nothing else bounds.
Each principal has `SHARE` of a core for it, and never more than `SHARE_AT_ONCE`, so that others are read in between.
Beyond that, nothing is read from any of its links for a while. `ReadSize` keeps a single read short.
"""

from __future__ import annotations

from tmrl_core.token_bucket import TokenBucket

SHARE = 0.1
"""Part of a core that one principal may use. Honest workers use less than a hundredth."""
BURST_S = 1.0
"""Processor seconds at once, enough for a fleet that connects again."""
SHARE_AT_ONCE, AT_ONCE_S = 0.5, 0.05
"""Part of a core that one principal may use while it has a burst left, and processor seconds without a pause."""
MIN_PAUSE_S = 0.25
"""Minimum pause, because each one costs time for every link of the principal."""
MAX_PAUSE_S = 4.0
"""Maximum pause, less than the time after which a silent link is closed."""
READ_S = 0.002
"""Processor time that one read should cost at most. After a longer one, the other links have their turn."""
MIN_READ_BYTES, MAX_READ_BYTES = 4_096, 262_144


class ProcessorTime:
    """Processor time of all principals."""

    def __init__(self) -> None:
        self._buckets: dict[str, tuple[TokenBucket, TokenBucket]] = {}  # as many as there are certificates and roles

    def charge(self, principal: str, seconds: float, now: float) -> float:
        """Charge processor time to a principal. Return the seconds for which its links should not be read; 0: none."""
        buckets = self._buckets.get(principal)
        if buckets is None:
            buckets = TokenBucket(SHARE, BURST_S), TokenBucket(SHARE_AT_ONCE, AT_ONCE_S)
            self._buckets[principal] = buckets
        pause_s = 0.0
        for bucket, share in zip(buckets, (SHARE, SHARE_AT_ONCE), strict=True):
            pause_s = max(pause_s, (seconds - bucket.available(now)) / share)
            bucket.spend(seconds)
        return min(max(pause_s, MIN_PAUSE_S), MAX_PAUSE_S) if pause_s > 0 else 0.0

    def overspent(self, principal: str, now: float) -> bool:
        """Return True if a principal has used more than its share."""
        buckets = self._buckets.get(principal)
        return buckets is not None and buckets[0].available(now) <= 0


class ReadSize:
    """Bytes to read from one link at a time.

    A read of samples costs little, and the same bytes as tiny messages cost hundreds of times as much, in which the
    Server would read from nobody else.
    """

    def __init__(self) -> None:
        self.bytes = 4 * MIN_READ_BYTES

    def spent(self, seconds: float, n: int) -> bool:
        """Take the processor time of a read of `n` bytes into account. Return True if it cost too much."""
        costly = seconds > READ_S
        if costly:
            self.bytes = max(MIN_READ_BYTES, min(self.bytes, int(n * READ_S / seconds)))
        else:
            self.bytes = min(MAX_READ_BYTES, 2 * self.bytes)
        return costly
