"""Content of tlspyo's messages: numbered pieces of one link's bytes, with a window. Sans-I/O.

tlspyo delivers messages, not a stream, and guarantees less than a link needs: it repeats a group's last broadcast to
each client that joins again, loses messages in flight when a connection breaks, and has no flow control. Therefore each
piece has a number: a repeated piece is discarded, and a gap ends the link (delivery then resumes on a new one). At most
`WINDOW_BYTES` are in flight that the other side has not reported as read.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from enum import IntEnum

from tmrl_core.errors import RemoteProtocolError

MAX_MESSAGE_BYTES = 65_536
"""Maximum size of a sent or accepted message of tlspyo, including header and password. tlspyo appends to its receive
buffer chunk by chunk and copies it each time, so that its time grows with the square of the size.
"""
WINDOW_BYTES = 2 << 20
"""Maximum number of unread bytes in transit, which bounds the buffers that a slow reader needs."""

_HEAD = struct.Struct("<QB")
_COUNT = struct.Struct("<Q")
_ENVELOPE_BYTES = 40
"""Bytes that MessagePack, a stamp, the command and the destination add to a piece, rounded up."""


class PieceKind(IntEnum):
    """Kind of a piece."""

    OPEN = 0
    """Message of the Server: the link is established."""
    DATA = 1
    """Bytes of the link, in order."""
    READ = 2
    """Number of bytes of the link that this side has read so far."""
    END = 3
    """End of the link's bytes."""
    REFUSED = 4
    """Message of the Server: the reason why the link is not established."""


_KINDS = frozenset(int(kind) for kind in PieceKind)


def piece_bytes(header_size: int, password: str) -> int:
    """Return the maximum size of a piece that fits one message of tlspyo."""
    return MAX_MESSAGE_BYTES - header_size - len(password.encode()) - _ENVELOPE_BYTES


def refusal(code: str, text: str) -> bytes:
    """Return the piece with which a Server refuses a peer that has no link yet."""
    return _HEAD.pack(0, PieceKind.REFUSED) + f"{code}\n{text}".encode()


class LinkPieces:
    """Both directions of one link.

    Args:
        limit: maximum size of one piece in bytes: `piece_bytes`.
        window_bytes: maximum number of unread bytes in transit (plus the bytes of one `data` call).
    """

    def __init__(self, limit: int, window_bytes: int = WINDOW_BYTES) -> None:
        self._limit = limit
        self._window_bytes = window_bytes
        self._filling: bytearray | None = None
        self._number = 0
        self._expected = 0
        self._sent = 0
        self._sent_read = 0
        self._read = 0
        self._read_said = 0

    @property
    def room(self) -> bool:
        """Return True if the window has space for more bytes."""
        return self._sent - self._sent_read < self._window_bytes

    def data(self, buffers: Sequence[bytes | bytearray | memoryview]) -> Iterator[bytearray]:
        """Yield the full pieces of the remainder and these buffers; `rest` holds the new remainder."""
        for buffer in buffers:
            self._sent += len(buffer)
            view = memoryview(buffer)
            while view:
                if self._filling is None:
                    self._filling = bytearray(_HEAD.pack(self._next(), PieceKind.DATA))
                part = view[: self._limit - len(self._filling)]
                self._filling += part
                view = view[len(part) :]
                if len(self._filling) == self._limit:
                    piece, self._filling = self._filling, None
                    yield piece

    def rest(self) -> bytearray | None:
        """Return the piece that is not full yet, which must be sent before any other; None: there is none."""
        piece, self._filling = self._filling, None
        return piece

    def open(self) -> bytes:
        """Return the piece that reports that the link is established."""
        return _HEAD.pack(self._next(), PieceKind.OPEN)

    def end(self) -> bytes:
        """Return the piece that ends the link's bytes."""
        return _HEAD.pack(self._next(), PieceKind.END)

    @property
    def report_due(self) -> bool:
        """Return True if enough was read to report it to the other side."""
        return self._read - self._read_said >= self._window_bytes // 4

    def read_report(self) -> bytes:
        """Return the piece that reports the read bytes, which opens the other side's window."""
        self._read_said = self._read
        return _HEAD.pack(self._next(), PieceKind.READ) + _COUNT.pack(self._read)

    def received(self, message: bytes | memoryview) -> tuple[PieceKind, memoryview] | None:
        """Return a message's kind and content; None: the message is a repeat.

        Raises:
            RemoteProtocolError: there is a gap in the numbers, or the data is not a piece of a link.
        """
        if len(message) < _HEAD.size:
            raise RemoteProtocolError(f"a message of {len(message)} bytes is not a piece of a link")
        number, kind = _HEAD.unpack_from(message)
        if kind not in _KINDS:
            raise RemoteProtocolError(f"unknown kind of piece: {kind}")
        if number < self._expected:
            return None
        if number > self._expected:
            raise RemoteProtocolError(f"{number - self._expected} messages of the link were lost on the way")
        self._expected += 1
        content = memoryview(message)[_HEAD.size :]
        if kind == PieceKind.DATA:
            self._read += len(content)
        elif kind == PieceKind.READ:
            self._was_read(content)
        return PieceKind(kind), content

    def _was_read(self, content: memoryview) -> None:
        if len(content) != _COUNT.size:
            raise RemoteProtocolError(f"a count of bytes that takes {len(content)} bytes instead of {_COUNT.size}")
        (count,) = _COUNT.unpack(content)
        if not self._sent_read <= count <= self._sent:
            raise RemoteProtocolError(f"the other side has read {count} bytes of {self._sent} that were sent")
        self._sent_read = count

    def _next(self) -> int:
        number = self._number
        self._number += 1
        return number
