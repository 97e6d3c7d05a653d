"""Frames, the units of transfer on a link. Sans-I/O.

A frame is 12 bytes of header and at most `MAX_PAYLOAD_BYTES` of payload; a full one fills four TLS records exactly. The
reader hands out the buffer that the transport fills (`get_buffer`), so that bytes are copied once at most: small frames
are copied out of a scratch buffer, the rest of a large one is received into its final place.
"""

# Theory of operation
#
# This file turns bytes into frames and back. It knows no messages: what a payload means, who may send it and in which
# order is decided in `messages.py`, `connection.py` and `delivery.py`. It opens nothing and has no clock.
#
#     payload length u32 | kind u8 | flags u8 | epoch u16 | channel u32 | payload                        (little-endian)
#
# CONTROL carries one MessagePack message, DATA a part of a message of samples, WEIGHTS a part of a policy. PING is a
# heartbeat without content and without an answer. `FIRST` and `LAST` mark the ends of a message. Epoch and channel say
# which sending of which stream a part belongs to. They are in the header, and not in the message's head, so that a
# relay rewrites them in each frame in place and never looks at a payload.
#
# A full frame has 65,536 bytes, four TLS records without a remainder. A message of 150,000 bytes, its head included,
# becomes frames with 65,524 (FIRST), 65,524 and 18,952 (LAST) bytes of payload: 150,036 bytes on the link.
#
# Receiving. Copies are what a fast relay spends its time on, so the reader owns the memory into which the transport
# writes, and decides before each read where the next bytes should lie:
#
# - scratch: they may be anything. They go into 16 kB, out of which complete frames are copied. Small frames are copied
#   once, and a read that holds forty of them costs one call.
# - direct: a header has announced a frame of which at least 4 kB are missing. What has arrived is copied into a buffer
#   of the frame's own, and the rest is received there.
# - ahead: the last frame was full and not its message's last, so another full one is likely, and even its header is
#   received into its final place. If the guess was wrong, the bytes are split as those of the scratch buffer are.
#
# In the example, with reads of 16 kB: the first read fills the scratch buffer, and its 16,384 bytes are copied into the
# first frame's buffer. 49,152 bytes follow without a copy, and so does all of the second frame. The third begins ahead,
# is not full, and costs one copy of what had arrived of it.
#
# Limits. A length is compared with `max_payload_bytes` before memory is allocated. The relay sets it to 8 kB until a
# peer has proved its identity. An unauthenticated peer therefore costs the scratch buffer and one small frame, and a
# member the scratch buffer and one full frame. A header that is wrong is a RemoteProtocolError, and the link ends.
# There is no search for the next valid header: TCP loses no bytes, so the peer speaks another protocol or has a bug.
#
# Memory. Fresh memory costs the system nearly as much as encrypting it, page by page. Whoever has used a frame's buffer
# up passes it to `spare`. The lists of spares belong to a thread, so they need no lock; a link lives in one thread.
#
# Sending. `cut` makes one frame at a time, when the transport asks for it, and refers to the message's buffers. A
# message of 1 GB therefore needs no second gigabyte, and control frames can go between two frames of it.

from __future__ import annotations

import struct
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum

from tmrl_core.errors import RemoteProtocolError

HEADER = struct.Struct("<IBBHI")
"""Header of a frame: payload length, kind, flags, epoch, channel."""
HEADER_BYTES = HEADER.size
# Four TLS records of 16,384 bytes. The header is inside, or each frame would need a fifth record of 12 bytes.
MAX_FRAME_BYTES = 65_536
MAX_PAYLOAD_BYTES = MAX_FRAME_BYTES - HEADER_BYTES

FIRST = 1
LAST = 2

_SCRATCH_BYTES = 16_384
"""Size of the scratch buffer, one TLS record. This part of a large frame is copied once more than the rest."""
_DIRECT_BYTES = 4_096
"""Minimum number of missing bytes for which the rest of a frame is received into its own buffer."""


class Kind(IntEnum):
    """Kind of a frame's content."""

    CONTROL = 0
    DATA = 1
    WEIGHTS = 2
    PING = 3


_KINDS = frozenset(int(kind) for kind in Kind)


@dataclass(slots=True, eq=False)
class Frame:
    """One frame: the fields of its header, and `buffer` with header and payload, owned by the frame's holder."""

    kind: int
    flags: int
    epoch: int
    channel: int
    buffer: bytearray

    @property
    def payload(self) -> memoryview:
        """Return the bytes after the header."""
        return memoryview(self.buffer)[HEADER_BYTES:]

    def readdress(self, epoch: int, channel: int) -> None:
        """Write another epoch and channel into the header, in place."""
        self.epoch = epoch
        self.channel = channel
        HEADER.pack_into(self.buffer, 0, len(self.buffer) - HEADER_BYTES, self.kind, self.flags, epoch, channel)


class _Spares(threading.local):
    def __init__(self) -> None:
        self.full: list[bytearray] = []
        self.by_size: dict[int, list[bytearray]] = {}


_FULL_SPARES = 64
_SPARES_OF_A_SIZE = 16
_SPARE_SIZES = 4
_spares = _Spares()


def new_buffer(size: int) -> bytearray:
    """Return a buffer of `size` bytes with arbitrary content: a reused one if there is one, else a new one."""
    spares = _spares.full if size == MAX_FRAME_BYTES else _spares.by_size.get(size)
    return spares.pop() if spares else bytearray(size)


def spare(buffer: bytes | bytearray | memoryview) -> None:
    """Release `buffer` for reuse: the next large frame of that size in this thread may be received into it.

    A busy link needs thousands of buffers per second, most of them full, and fresh memory costs the system nearly as
    much as encrypting it. A thread keeps at most 8 MiB. Shared buffers (`bytes`, views) are not reused.
    """
    size = len(buffer)
    # Smaller ones were never received into their own buffer, so no reader would ask for this size.
    if size < _DIRECT_BYTES or not isinstance(buffer, bytearray):
        return
    if size == MAX_FRAME_BYTES:
        if len(_spares.full) < _FULL_SPARES:
            _spares.full.append(buffer)
        return
    by_size = _spares.by_size
    spares = by_size.get(size)
    if spares is None:
        # A stream's messages usually have one size, and so have their last frames. Forgetting all sizes at the fifth
        # one is simpler than an order of use, and costs a few allocations when streams of many sizes share a thread.
        if len(by_size) >= _SPARE_SIZES:
            by_size.clear()
        spares = by_size[size] = []
    if len(spares) < _SPARES_OF_A_SIZE:
        spares.append(buffer)


class FrameReader:
    """Parser from received bytes to frames.

    To use it, fill (part of) `get_buffer()`, then call `received` with the number of bytes. The parser never allocates
    more than one frame.

    Bytes are received into a scratch buffer; the rest of a large frame is received into its own. After a full frame
    that is not its message's last, another full one is likely, which is received into its own buffer from its first
    byte.
    """

    def __init__(self) -> None:
        self._scratch = bytearray(_SCRATCH_BYTES)
        self._scratch_view = memoryview(self._scratch)
        self._end = 0
        self._direct: Frame | None = None
        self._direct_view: memoryview | None = None
        self._ahead: bytearray | None = None
        """Buffer for a full frame whose header has not arrived yet."""
        self._likely = False
        """True: the next frame is probably a full one."""
        self._filled = 0
        self._frames: list[Frame] = []
        self.max_payload_bytes = MAX_PAYLOAD_BYTES
        """Maximum announced payload; larger ones are an error."""

    def get_buffer(self) -> memoryview:
        """Return the buffer for the next bytes; never empty."""
        if self._direct_view is not None:
            return self._direct_view[self._filled :] if self._filled else self._direct_view
        # With bytes in the scratch buffer the next header has begun there, and must end there.
        if self._likely and not self._end:
            self._ahead = new_buffer(MAX_FRAME_BYTES)
            self._direct_view = memoryview(self._ahead)
            self._filled = 0
            return self._direct_view
        return self._scratch_view[self._end :]

    def received(self, n: int) -> list[Frame]:
        """Handle `n` bytes at the start of the last `get_buffer()`. Return the frames that they complete, in order.

        Raises:
            RemoteProtocolError: a header announces an unknown kind or a payload that is too long.
        """
        if self._ahead is not None:
            self._filled += n
            # A read may end inside the header: then the next one goes on where this one has stopped.
            if self._filled >= HEADER_BYTES:
                self._look_ahead(self._ahead)
        elif self._direct is not None:
            self._filled += n
            if self._filled == len(self._direct.buffer):
                self._finish(self._direct)
        else:
            self._split(self._scratch, self._end + n)
        frames, self._frames = self._frames, []
        return frames

    def _finish(self, frame: Frame) -> None:
        self._frames.append(frame)
        self._likely = len(frame.buffer) == MAX_FRAME_BYTES and not frame.flags & LAST
        self._direct = None
        self._direct_view = None

    def _look_ahead(self, buffer: bytearray) -> None:
        """Handle the header of an expected full frame."""
        self._ahead = None
        self._likely = False
        length, kind, flags, epoch, channel = HEADER.unpack_from(buffer)
        if length != MAX_PAYLOAD_BYTES or kind not in _KINDS or length > self.max_payload_bytes:
            self._direct_view = None
            self._split(buffer, self._filled)  # which copies the frames
            spare(buffer)
            return
        self._direct = Frame(kind, flags, epoch, channel, buffer)
        if self._filled == MAX_FRAME_BYTES:
            self._finish(self._direct)

    def _split(self, source: bytearray, end: int) -> None:
        """Parse the frames in the first `end` bytes of `source`. The rest stays in the scratch buffer."""
        start = 0
        while end - start >= HEADER_BYTES:
            length, kind, flags, epoch, channel = HEADER.unpack_from(source, start)
            if length > self.max_payload_bytes:
                raise RemoteProtocolError(
                    f"a frame of {length} bytes was announced; at most {self.max_payload_bytes} are allowed "
                    "(is this peer speaking another protocol?)"
                )
            if kind not in _KINDS:
                raise RemoteProtocolError(f"unknown kind of frame: {kind}")
            total = HEADER_BYTES + length
            if end - start >= total:
                self._frames.append(Frame(kind, flags, epoch, channel, source[start : start + total]))
                start += total
            # The rest is not worth a buffer of its own unless it is large, or unless the scratch buffer cannot hold all
            # of it: a frame of 20 kB of which 1 kB is missing would never become complete there.
            elif total - (end - start) >= _DIRECT_BYTES or total > _SCRATCH_BYTES:
                buffer = new_buffer(total)
                self._filled = end - start
                view = memoryview(buffer)
                view[: self._filled] = memoryview(source)[start:end]
                self._direct = Frame(kind, flags, epoch, channel, buffer)
                self._direct_view = view
                start = end
            else:
                break
        self._end = end - start
        # Bytes that already lie at the beginning of the scratch buffer stay, which is the usual end of a short read.
        if self._end and (start or source is not self._scratch):
            self._scratch[: self._end] = source[start:end]

    @property
    def empty(self) -> bool:
        """Return True if the byte stream is between two frames."""
        inside = self._direct is not None or (self._ahead is not None and self._filled > 0)
        return not inside and self._end == 0


PING_FRAME = HEADER.pack(0, Kind.PING, 0, 0, 0)


def message_bytes(head: struct.Struct, body_bytes: int) -> int:
    """Return the bytes of a message on the link: header, body, and the headers of its frames."""
    content = head.size + body_bytes
    frames = -(-content // MAX_PAYLOAD_BYTES)
    return content + frames * HEADER_BYTES


_JOIN_BYTES = 4_096
"""Limit below which pieces of a frame are joined with their neighbours. A copy is cheaper than one more TLS record."""


@dataclass(slots=True, eq=False, repr=False)
class Wire:
    """A frame to send, as consecutive buffers, so that large parts of a message are sent without a copy."""

    buffers: list[bytes | memoryview]
    size: int
    """Total size in bytes."""
    last: bool
    """True: this is the last frame of its message."""

    def __bytes__(self) -> bytes:
        """Return the frame in one piece."""
        return b"".join(self.buffers)


def cut(
    kind: Kind, head: bytes, body: Sequence[bytes | memoryview], *, epoch: int, channel: int, flags: int = 0
) -> Iterator[Wire]:
    """Yield the frames that carry `head` and the buffers of `body` in order, each created on request.

    They refer to the memory of `body`, which must not change while they are in use.

    Args:
        flags: further flags of the first frame.
    """
    left = len(head) + sum(map(len, body))
    pieces = iter((head, *body))
    piece = memoryview(b"")
    flags |= FIRST
    while True:
        length = min(left, MAX_PAYLOAD_BYTES)
        left -= length
        if not left:
            flags |= LAST
        buffers: list[bytes | memoryview] = []
        small: list[bytes | memoryview] = [HEADER.pack(length, kind, flags, epoch, channel)]
        # An empty message still has one frame, so the loop over the content comes inside the loop over frames.
        lacking = length
        while lacking:
            if not piece:
                # A column may be a view of floats, whose length counts items and not bytes.
                piece = memoryview(next(pieces)).cast("B")
                continue
            part = piece[:lacking]
            lacking -= len(part)
            piece = piece[len(part) :]
            if len(part) < _JOIN_BYTES:
                small.append(part)
                continue
            if small:
                buffers.append(b"".join(small))
                small = []
            buffers.append(part)
        if small:
            buffers.append(b"".join(small))
        yield Wire(buffers, HEADER_BYTES + length, not left)
        if not left:
            return
        flags = 0
