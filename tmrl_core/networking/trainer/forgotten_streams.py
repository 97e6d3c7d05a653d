"""Authenticated streams that a trainer has forgotten, so that nobody can replay them. Sans-I/O.

A trainer keeps the offsets of a limited number of absent streams. The id of an authenticated stream begins with the
time of its start and 4 bytes that name the holder of its certificate, and nobody else can make such ids. The trainer
forgets the oldest streams of the holder that has the most, so that nobody but the holder makes it forget a stream. It
remembers the latest start among those. An unknown stream of that holder that is not newer was forgotten: it may be a
replay. Ids that begin with an earlier time than `FIRST_START_S` are random ones, of streams without authentication.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterable

from tmrl_core.networking.protocol.messages import FIRST_START_S

_STREAM = struct.Struct(">I4s8s")
_MARK_HASH = bytes(8)


class ForgottenStreams:
    """Latest start of the forgotten streams of each holder."""

    def __init__(self) -> None:
        self._starts: dict[bytes, int] = {}

    def restore(self, stream: bytes, next_number: int) -> bool:
        """Handle an entry of a checkpoint's offsets. Return True if it was one of `marks`."""
        start, holder, hashed = _STREAM.unpack(stream) if len(stream) == _STREAM.size else (1, b"", b"")
        if start or hashed != _MARK_HASH:
            return False
        self._starts[holder] = next_number
        return True

    @property
    def marks(self) -> dict[bytes, int]:
        """Return entries for a checkpoint's offsets, under ids that no stream has."""
        return {_STREAM.pack(0, holder, _MARK_HASH): start for holder, start in self._starts.items()}

    def choose(self, known: Iterable[bytes], absent: Iterable[bytes], most: int) -> list[bytes]:
        """Choose at most `most` of the absent streams to forget."""
        counts = Counter(stream[4:8] for stream in known)

        def order(stream: bytes) -> tuple[bool, int, int]:
            start, holder, _ = _STREAM.unpack(stream)
            return start >= FIRST_START_S, -counts[holder], start

        return sorted(absent, key=order)[:most]

    def add(self, stream: bytes) -> None:
        """Record that a stream was forgotten."""
        start, holder, _ = _STREAM.unpack(stream)
        if start >= FIRST_START_S:
            self._starts[holder] = max(start, self._starts.get(holder, 0))

    def may_hold(self, stream: bytes) -> bool:
        """Return True if an unknown stream may be a forgotten one."""
        start, holder, _ = _STREAM.unpack(stream)
        return bool(start <= self._starts.get(holder, -1))
