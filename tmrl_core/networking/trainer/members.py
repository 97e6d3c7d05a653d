"""Linked workers as a trainer sees them. Sans-I/O."""

from __future__ import annotations

from collections import UserDict

import msgspec


class Member(msgspec.Struct, frozen=True):
    """A worker's stream as the trainer sees it."""

    stream: bytes
    name: str
    signature: bytes
    since_s: float
    live: bool = True
    """False: its worker has ended, and its messages come from the Server's spool."""


class Members(UserDict[bytes, Member]):
    """Members by stream, the earliest first, and their changes.

    One consumer takes the changes, so that its work does not grow with the number of members, of which one certificate
    may open thousands.
    """

    def __init__(self) -> None:
        super().__init__()
        self._joined: dict[bytes, Member] = {}
        self._left: set[bytes] = set()

    def __setitem__(self, stream: bytes, member: Member) -> None:
        if stream in self.data:
            del self[stream]
        self.data[stream] = self._joined[stream] = member

    def __delitem__(self, stream: bytes) -> None:
        del self.data[stream]
        if self._joined.pop(stream, None) is None:  # otherwise the consumer does not know it
            self._left.add(stream)

    def clear(self) -> None:
        """Remove all members."""
        for stream in list(self.data):
            del self[stream]

    def take_changes(self) -> tuple[dict[bytes, Member], set[bytes]]:
        """Return the members that have joined, and the streams that have left, since the last call.

        A stream in both has left first, and joined again.
        """
        changes = self._joined, self._left
        self._joined, self._left = {}, set()
        return changes
