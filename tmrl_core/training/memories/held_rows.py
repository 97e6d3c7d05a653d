"""Last rows of streams, which their next rows may follow: limited in number and in bytes."""

# Theory of operation
#
# The tails of a hundred honest workers take some MB. The limits are for the others: a certificate may open thousands of
# streams, and a row may be an image. Both the number of streams and their bytes are limited, and a tail that is dropped
# costs its stream the transition (or sequence) between two messages, nothing else.
#
# The origin (a certificate) with the most streams, or the most bytes, drops its own, so that one with thousands of them
# takes nothing from others. Of its streams, the one goes that has been silent for longest, since it may be gone. If all
# take turns, that is the next to continue, and each loses the transition between its messages: the log then says what
# to change.

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, MutableMapping
from typing import TypeVar

from tmrl_core.training.memories.memory import MAX_STREAMS

logger = logging.getLogger(__name__)

MAX_HELD_BYTES = 256 << 20
"""Maximum size of the rows, if one of each stream is held: images of 1 MB of 256 streams."""

Held = TypeVar("Held")


class HeldRows(MutableMapping[bytes, Held]):
    """Rows of each stream, in the order of the latest change.

    Beyond `MAX_STREAMS` or `max_bytes`, the stream of the origin (a certificate) with the most that has been silent for
    longest is dropped; if that origin has one stream only, or origins are unknown, the one of all.

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
        self._held: dict[bytes, tuple[Held, Hashable]] = {}
        self._streams: dict[Hashable, dict[bytes, None]] = {}
        """Streams of each origin, in the order of the latest change."""
        self._bytes: Counter[Hashable] = Counter()
        """Size of the rows of each origin."""
        self._total_bytes = 0
        self._logged = False

    def put(self, stream: bytes, rows: Held, origin: Hashable = None) -> None:
        """Replace the rows of a stream; `origin`: None: unknown."""
        self.pop(stream, None)
        self._held[stream] = rows, origin
        self._streams.setdefault(origin, {})[stream] = None
        self._count(origin, self._size_of(rows))
        while len(self) > MAX_STREAMS or (self._total_bytes > self._max_bytes and len(self) > 1):
            self._drop()

    def _drop(self) -> None:
        if len(self._streams) == len(self):
            self._drop_stream(next(iter(self._held)))  # each has an origin of its own: no search among all of them
            return
        too_many = len(self) > MAX_STREAMS
        most = max(self._streams, key=lambda origin: len(self._streams[origin]) if too_many else self._bytes[origin])
        streams = self._streams[most] if len(self._streams[most]) > 1 else self._held
        self._drop_stream(next(iter(streams)))

    def _drop_stream(self, stream: bytes) -> None:
        if not self._logged:
            self._logged = True
            logger.warning(
                "the last rows of more than %d streams, or more than %d MB of them, are not kept, so streams that have "
                "not ended lose the transition between two of their messages: raise worker.send_every (0: whole "
                "episodes), make observations smaller (docs/choosing.md), or use fewer workers",
                MAX_STREAMS,
                self._max_bytes >> 20,
            )
        del self[stream]
        self._dropped(stream)

    def _count(self, origin: Hashable, size: int) -> None:
        self._bytes[origin] += size
        self._total_bytes += size

    def __getitem__(self, stream: bytes) -> Held:
        return self._held[stream][0]

    def __setitem__(self, stream: bytes, rows: Held) -> None:
        self.put(stream, rows, self._held[stream][1] if stream in self._held else None)

    def __delitem__(self, stream: bytes) -> None:
        rows, origin = self._held.pop(stream)
        self._count(origin, -self._size_of(rows))
        del self._streams[origin][stream]
        if not self._streams[origin]:
            del self._streams[origin], self._bytes[origin]

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._held)

    def __len__(self) -> int:
        return len(self._held)
