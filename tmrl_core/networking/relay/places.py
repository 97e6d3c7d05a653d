"""A limited number of links, which principals share. Sans-I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tmrl_core.networking.relay.connection import RelayConnection


class Places:
    """Links in the order of their admission.

    If all places are taken, a link replaces the oldest one of the principal with the most, provided that this principal
    has at least two more than the link's own. So no principal can keep the others out.

    Args:
        most: number of places.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._links: dict[RelayConnection, None] = {}

    def __len__(self) -> int:
        """Return the number of links."""
        return len(self._links)

    def __iter__(self) -> Iterator[RelayConnection]:
        """Iterate over the links."""
        return iter(self._links)

    def admit(self, link: RelayConnection) -> bool:
        """Give the link a place. Return False if there is none for it."""
        if len(self._links) >= self._most:
            of = Counter(one.principal for one in self._links)
            principal, most = of.most_common(1)[0]
            if most < of[link.principal] + 2:
                return False
            oldest = next(one for one in self._links if one.principal == principal)
            oldest.refuse("full", f"all {self._most} places are taken and these credentials have most; try again later")
        self._links[link] = None
        return True

    def discard(self, link: RelayConnection) -> None:
        """Release the place of a link that has left."""
        self._links.pop(link, None)
