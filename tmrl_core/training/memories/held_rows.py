"""Last rows of streams, which their next rows may follow: limited in number and in bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableMapping
from typing import TypeVar

from tmrl_core.training.memories.memory import MAX_STREAMS

MAX_HELD_BYTES = 256 << 20
"""Maximum size of the rows, if one of each stream is held: images of 1 MB of 256 streams."""

Held = TypeVar("Held")


class HeldRows(MutableMapping[bytes, Held]):
    """Rows of each stream, in the order of the latest change.

    Beyond `MAX_STREAMS` or `max_bytes`, the rows of the stream that has been silent for longest are dropped first. A
    stream renews its rows with each message. So those of a stream that goes on are dropped only if all that go on are
    larger than the limit, or if a worker opens streams faster than others send.

    Args:
        size_of: returns the size of a stream's rows in bytes.
        max_bytes: maximum size of all.
        dropped: called with each stream whose rows are dropped.
    """

    def __init__(
        self,
        size_of: Callable[[Held], int],
        max_bytes: int = MAX_HELD_BYTES,
        dropped: Callable[[bytes], object] = lambda stream: None,
    ) -> None:
        self._size_of = size_of
        self._max_bytes = max_bytes
        self._dropped = dropped
        self._held: dict[bytes, Held] = {}
        self._bytes = 0

    def __getitem__(self, stream: bytes) -> Held:
        return self._held[stream]

    def __setitem__(self, stream: bytes, rows: Held) -> None:
        self.pop(stream, None)
        self._held[stream] = rows
        self._bytes += self._size_of(rows)
        while len(self) > MAX_STREAMS or (self._bytes > self._max_bytes and len(self) > 1):
            silent = next(iter(self))
            del self[silent]
            self._dropped(silent)

    def __delitem__(self, stream: bytes) -> None:
        self._bytes -= self._size_of(self._held.pop(stream))

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._held)

    def __len__(self) -> int:
        return len(self._held)
