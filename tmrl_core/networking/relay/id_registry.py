"""Whose a random id is: what was used by one identity may not be used by another. Sans-I/O.

A peer's and a stream's id are random and told to nobody but the Server and the trainer; whoever learns one all the same
must also be the one who used it first: the holder of the certificate of that name, or of that role's token. It is
remembered after its links have gone, as long as the Server runs and there is room: each identity has its own, so that
none can make another's be forgotten by using many; only when all have used most of it, whoever has the most loses its
oldest.
"""

from __future__ import annotations

from collections import OrderedDict

OF_ONE_IDENTITY = 2_048
"""Ids remembered of one identity: more than one link carries streams."""
IN_ALL = 32_768
"""Ids remembered in all: some 8 MB."""


class IdRegistry:
    """Remembers which identity used an id first."""

    def __init__(self, of_one: int = OF_ONE_IDENTITY, in_all: int = IN_ALL) -> None:
        self._of_one = of_one
        self._in_all = in_all
        self._owner: dict[bytes, str] = {}
        self._ids: dict[str, OrderedDict[bytes, None]] = {}  # the longest unused first

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
        if len(ids) > self._of_one:
            self._forget_oldest(identity)
        elif len(self._owner) > self._in_all:
            self._forget_oldest(max(self._ids, key=lambda one: len(self._ids[one])))
        return True

    def _forget_oldest(self, identity: str) -> None:
        ids = self._ids[identity]
        del self._owner[ids.popitem(last=False)[0]]
        if not ids:
            del self._ids[identity]
