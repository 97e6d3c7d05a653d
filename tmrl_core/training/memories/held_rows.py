"""Last rows of streams, which their next rows may follow: limited in number and in bytes."""

# Theory of operation
#
# The tails of a hundred honest workers take some MB. The limits are for the others: a certificate may open thousands of
# streams, and a row may be an image. Both the number of streams and their bytes are limited, and a tail that is dropped
# costs its stream the transition (or sequence) between two messages, nothing else.
#
# Who loses its rows is decided in this order. First by origin: the certificate with the most streams, or the most
# bytes, drops its own. Then by silence: a stream that seems to be gone. Only if neither applies, because more streams
# are active than there is room for, by a hash of the stream, which changes after some time. Rejected: dropping the
# longest silent one. If all streams take turns, it is the next one to continue, so that one stream too many costs all
# of them everything. Example: room for 4 tails, and 5 streams that send in turn. With the longest silent one dropped,
# each finds its tail gone; with the hash, the same stream loses its tail each time and four keep theirs.

from __future__ import annotations

import logging
import zlib
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, MutableMapping
from typing import TypeVar

from tmrl_core.training.memories.memory import MAX_STREAMS

logger = logging.getLogger(__name__)

MAX_HELD_BYTES = 256 << 20
"""Maximum size of the rows, if one of each stream is held: images of 1 MB of 256 streams."""

GONE = 4
"""A stream counts as gone if it has been silent for this many times as long as streams that have returned."""
_RETURNS = 4_096
"""Number of changes within which the longest of these times is forgotten by two thirds."""
_ROTATION_BITS = 16
"""Binary logarithm of the number of changes after which other streams lose their rows, so that no worker's are always
missing."""

Held = TypeVar("Held")


class HeldRows(MutableMapping[bytes, Held]):
    """Rows of each stream, in the order of the latest change.

    Beyond `MAX_STREAMS` or `max_bytes`, rows of the origin (a certificate) with the most are dropped; if it has one
    stream only, or origins are unknown, rows of all. An origin with many streams thus drops its own.

    A stream renews its rows with each message. Those of the stream that has been silent for longest are dropped if it
    seems to be gone, or to make room for a new stream. But of more active streams than there is room for, that one is
    often the next to continue: if all take turns, each would find its rows dropped. The others therefore choose by a
    hash, so that most streams keep theirs.

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
        self._changes = 0
        self._changed: dict[bytes, int] = {}
        """Number of the latest change of each stream, also of dropped ones."""
        self._away = 0.0
        """Number of changes in which active streams return."""
        self._logged = False

    def put(self, stream: bytes, rows: Held, origin: Hashable = None) -> None:
        """Replace the rows of a stream; `origin`: None: unknown."""
        self.pop(stream, None)
        self._changes += 1
        before = self._changed.pop(stream, None)
        self._changed[stream] = self._changes
        if len(self._changed) > 4 * MAX_STREAMS:
            del self._changed[next(iter(self._changed))]
        self._away *= 1 - 1 / _RETURNS
        if before is not None:
            self._away = max(self._away, self._changes - before)
        self._held[stream] = rows, origin
        self._streams.setdefault(origin, {})[stream] = None
        self._count(origin, self._size_of(rows))
        while len(self) > MAX_STREAMS or (self._total_bytes > self._max_bytes and len(self) > 1):
            self._drop(is_new=before is None)

    def _drop(self, is_new: bool) -> None:
        too_many = len(self) > MAX_STREAMS
        most = max(self._streams, key=lambda origin: len(self._streams[origin]) if too_many else self._bytes[origin])
        streams = self._streams[most] if len(self._streams[most]) > 1 else self._held
        stream = next(iter(streams))  # silent for longest
        if not is_new and self._changes - self._changed.get(stream, 0) <= GONE * self._away:
            rotation = self._changes >> _ROTATION_BITS
            stream = min(streams, key=lambda stream: zlib.crc32(stream, rotation))
            if not self._logged:
                self._logged = True
                logger.warning(
                    "the last rows of %d streams take more than the %d MB (%d streams) that are kept, so some streams "
                    "lose the transitions between two of their messages: raise worker.send_every (0: whole episodes), "
                    "make observations smaller (docs/choosing.md), or use fewer workers",
                    len(self),
                    self._max_bytes >> 20,
                    MAX_STREAMS,
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
