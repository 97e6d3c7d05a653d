"""Budget for the memory of streams on the Server and the trainer, besides their samples. Sans-I/O.

A stream's signature alone may have 60 kB, a link may carry a thousand streams, and the number of links is unlimited.
Without bounds, a single stolen bundle could fill the memory of both. Opened and closed again and again, its streams
could also fill the trainer's link with announcements, so their bytes have a rate.
"""

from __future__ import annotations

from collections import Counter, defaultdict

from tmrl_core.token_bucket import TokenBucket

STREAM_BYTES = 6_144
"""Cost of a stream besides its signature, with the longest name and wait reason in the widest characters."""
OF_ONE_BYTES = 32 << 20
"""Maximum cost of the streams of one certificate, enough for 5,000 usual ones."""
OF_TOKEN_BYTES = 96 << 20
"""The same of a role's token, which a fleet may share: for 14,000, and a quarter of all is left to certificates."""
IN_ALL_BYTES = 128 << 20
"""Maximum cost of all streams."""
ANNOUNCED_BYTES, ANNOUNCED_BYTES_PER_S = 16 << 20, 256 << 10
"""Bytes of signatures that one identity may announce at once, enough for a fleet that connects again, and then per
second."""
LINKS_OF_ONE = 256
"""Maximum number of simultaneous links of one worker's certificate: an idle one costs 53 kB, and 45 us of each second.
A role's token, which a fleet may share, has no such limit."""


class StreamBudget:
    """Memory budget of all known streams, with the cost and the owner of each.

    Args:
        of_one_bytes, in_all_bytes: bounds of the memory.
        announced_bytes, announced_bytes_per_s: bounds of the announcements of one identity.
        of_token_bytes: as `of_one_bytes`, for whoever has a role's token.
    """

    def __init__(
        self,
        of_one_bytes: int = OF_ONE_BYTES,
        in_all_bytes: int = IN_ALL_BYTES,
        announced_bytes: int = ANNOUNCED_BYTES,
        announced_bytes_per_s: int = ANNOUNCED_BYTES_PER_S,
        of_token_bytes: int = OF_TOKEN_BYTES,
    ) -> None:
        self._of_one_bytes = of_one_bytes
        self._of_token_bytes = of_token_bytes
        self._in_all_bytes = in_all_bytes
        self._announced_bytes = announced_bytes
        self._announcements = defaultdict[str, TokenBucket](lambda: TokenBucket(announced_bytes_per_s, announced_bytes))
        self._taken: dict[bytes, tuple[str, int]] = {}
        self._of: Counter[str] = Counter()
        self._all = 0

    def acquire(self, stream: bytes, identity: str, signature_bytes: int, now: float, *, by_token: bool = False) -> str:
        """Reserve memory for a stream of `identity`, in place of its earlier cost. Return the reason of a refusal.

        Args:
            stream: its id.
            identity: owner.
            signature_bytes: size of the stream's signature.
            now: seconds.
            by_token: True: the owner is whoever has a role's token.
        """
        self.release(stream)
        bucket = self._announcements[identity]
        if bucket.available(now) < signature_bytes:
            return (
                f"these credentials announced more than {self._announced_bytes >> 20} MB of signatures in a short time"
            )
        cost = STREAM_BYTES + signature_bytes
        most = self._of_token_bytes if by_token else self._of_one_bytes
        if self._of[identity] + cost > most:
            return f"the streams of these credentials would take more than {most >> 20} MB of memory"
        if self._all + cost > self._in_all_bytes:
            return f"all streams here would take more than {self._in_all_bytes >> 20} MB of memory"
        bucket.spend(signature_bytes)
        self._taken[stream] = identity, cost
        self._of[identity] += cost
        self._all += cost
        return ""

    def release(self, stream: bytes) -> None:
        """Release a stream's memory if it was reserved."""
        identity, cost = self._taken.pop(stream, ("", 0))
        self._all -= cost
        self._of[identity] -= cost
        if not self._of[identity]:
            del self._of[identity]
