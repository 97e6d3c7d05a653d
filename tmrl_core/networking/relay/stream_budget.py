"""Memory that streams cost the Server and the trainer, besides their samples. Sans-I/O.

A stream's signature alone may have 60 kB, a link may carry a thousand streams, and the number of links is unlimited.
Without bounds, a single stolen bundle could fill the memory of both.
"""

from __future__ import annotations

STREAM_BYTES = 2_048
"""Cost of a stream besides its signature."""
OF_ONE_BYTES = 32 << 20
"""Most that the streams of one identity may cost: 13,000 of the usual ones."""
IN_ALL_BYTES = 128 << 20
"""Most that all of them may."""
LINKS_OF_ONE = 2_048
"""Most links of one worker's certificate at a time. A role's token, which a fleet may share, has no such limit."""


class Room:
    """Remembers what the streams that are known cost, and whose they are.

    Args:
        of_one_bytes, in_all_bytes: bounds.
    """

    def __init__(self, of_one_bytes: int = OF_ONE_BYTES, in_all_bytes: int = IN_ALL_BYTES) -> None:
        self._of_one_bytes = of_one_bytes
        self._in_all_bytes = in_all_bytes
        self._taken: dict[bytes, tuple[str, int]] = {}
        self._of: dict[str, int] = {}
        self._all = 0

    def take(self, stream: bytes, identity: str, signature_bytes: int) -> str:
        """Have `identity` open a stream, instead of what that stream cost before; in words why not, or nothing."""
        self.give_back(stream)
        cost = STREAM_BYTES + signature_bytes
        of_one = self._of.get(identity, 0) + cost
        if of_one > self._of_one_bytes:
            return f"the streams of these credentials would take more than {self._of_one_bytes >> 20} MB of memory"
        if self._all + cost > self._in_all_bytes:
            return f"all streams here would take more than {self._in_all_bytes >> 20} MB of memory"
        self._taken[stream] = identity, cost
        self._of[identity] = of_one
        self._all += cost
        return ""

    def give_back(self, stream: bytes) -> None:
        """A stream is known no more; nothing happens where it has cost nothing."""
        identity, cost = self._taken.pop(stream, ("", 0))
        if cost:
            self._all -= cost
            left = self._of[identity] - cost
            if left:
                self._of[identity] = left
            else:
                del self._of[identity]
