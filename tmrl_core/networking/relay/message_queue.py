"""Complete messages of one stream, as frames that wait for the trainer. Sans-I/O."""

from __future__ import annotations

from collections import deque

from tmrl_core.networking.protocol.framing import HEADER, HEADER_BYTES

SMALL_BYTES = 512
"""Maximum size of a message that shares a buffer with others: alone, it would take 240 bytes of memory in addition."""
_RUN_BYTES = 16_384
"""Size above which a shared buffer takes no more messages."""


class MessageQueue:
    """Messages in order. Small ones that follow each other share a buffer.

    Attributes:
        nbytes: bytes of their frames.
    """

    __slots__ = ("_begin", "_entries", "_messages", "nbytes")

    def __init__(self) -> None:
        self.nbytes = 0
        self._messages = 0
        self._entries: deque[bytearray | tuple[list[bytearray], int]] = deque()
        self._begin = 0
        """Begin of the first message in the first buffer, if that is shared."""

    def __len__(self) -> int:
        """Return the number of messages."""
        return self._messages

    def append(self, frames: list[bytearray], size: int) -> None:
        """Append a message of `size` bytes."""
        self._messages += 1
        self.nbytes += size
        if size > SMALL_BYTES:
            self._entries.append((frames, size))
            return
        run = self._entries[-1] if self._entries else None
        if isinstance(run, bytearray) and len(run) < _RUN_BYTES:
            run += frames[0]
        else:
            self._entries.append(bytearray(frames[0]))

    @property
    def first_bytes(self) -> int:
        """Return the size of the first message."""
        first = self._entries[0]
        if isinstance(first, tuple):
            return first[1]
        length: int = HEADER.unpack_from(first, self._begin)[0]
        return HEADER_BYTES + length

    def popleft(self) -> list[bytearray]:
        """Remove the first message and return its frames."""
        first = self._entries[0]
        self._messages -= 1
        if isinstance(first, tuple):
            self._entries.popleft()
            self.nbytes -= first[1]
            return first[0]
        size = self.first_bytes
        self.nbytes -= size
        frame = first[self._begin : self._begin + size]
        self._begin += size
        if self._begin == len(first):
            self._begin = 0
            self._entries.popleft()
        elif 2 * self._begin >= len(first):  # a stream may keep its last message for long
            del first[: self._begin]
            self._begin = 0
        return [frame]

    def clear(self) -> None:
        """Remove all messages."""
        self._entries.clear()
        self._messages = self.nbytes = self._begin = 0
