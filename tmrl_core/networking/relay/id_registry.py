"""Ownership of random ids: an id used by one identity cannot be used by another. Sans-I/O.

Ids of peers and streams are random and known to the Server and the trainer only. A client that learns an id still
cannot use it, because an id belongs to the first identity that used it: the holder of a certificate of that name, or of
a role's token. Ids stay registered after their links are lost, within limits. Each identity has a limit of its own, so
that it cannot evict ids of others. At the total limit, the identity with the most ids loses its oldest.
"""

from __future__ import annotations

from collections import OrderedDict

MAX_PER_IDENTITY = 2_048
"""Maximum number of ids of one identity, which is more than the streams of one link."""
MAX_TOTAL = 32_768
"""Maximum number of ids in total: about 8 MB."""


class IdRegistry:
    """The identity that first used each id."""

    def __init__(self, per_identity: int = MAX_PER_IDENTITY, total: int = MAX_TOTAL) -> None:
        self._per_identity = per_identity
        self._total = total
        self._owner: dict[bytes, str] = {}
        self._ids: dict[str, OrderedDict[bytes, None]] = {}  # the id that has been unused for longest comes first

    def __len__(self) -> int:
        return len(self._owner)

    def claim(self, key: bytes, identity: str) -> bool:
        """Register `identity` as the owner of this id. Return False if another identity owns it."""
        owner = self._owner.get(key)
        if owner is not None and owner != identity:
            return False
        ids = self._ids.setdefault(identity, OrderedDict())
        ids[key] = None
        ids.move_to_end(key)
        self._owner[key] = identity
        if len(ids) > self._per_identity:
            self._forget_oldest(identity)
        elif len(self._owner) > self._total:
            self._forget_oldest(max(self._ids, key=lambda one: len(self._ids[one])))
        return True

    def _forget_oldest(self, identity: str) -> None:
        ids = self._ids[identity]
        del self._owner[ids.popitem(last=False)[0]]
        if not ids:
            del self._ids[identity]
