"""Labels, numbers and counts of the linked workers, so that one joins without a look at all others. Sans-I/O."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tmrl_core.networking.relay.connection import RelayConnection


class LinkedWorkers:
    """The workers that are linked to a Server.

    Attributes:
        of_principal: number of workers by principal.
        of_run: number of workers by run.
    """

    def __init__(self) -> None:
        self.of_principal = Counter[str]()
        self.of_run = Counter[str]()
        self._labels: set[tuple[str, str]] = set()
        """Principals and labels."""
        self._places = defaultdict[tuple[str, str], set[int]](set)
        """Numbers of the workers of a run and a name, of all credentials."""

    def enter(self, link: RelayConnection) -> None:
        """Add a worker. Set its label and its number."""
        # Labels differ among the same credentials: a peer that takes another machine's label must not rename it.
        principal, called = link.principal, link.called
        link.name = called
        if called:
            labels = itertools.chain((called,), (f"{called}-{number}" for number in itertools.count(2)))
            link.name = next(label for label in labels if (principal, label) not in self._labels)
            self._labels.add((principal, link.name))
        places = self._places[called, link.run]
        link.place = next(place for place in itertools.count(1) if place not in places)
        places.add(link.place)
        self.of_principal[principal] += 1
        self.of_run[link.run] += 1

    def keep_place(self, link: RelayConnection, number: int) -> None:
        """Give a worker the number that it had before, unless another one has got it while this one was away."""
        places = self._places[link.called, link.run]
        if number not in places:
            places.remove(link.place)
            places.add(number)
            link.place = number

    def leave(self, link: RelayConnection) -> None:
        """Remove a worker that was added."""
        self._labels.discard((link.principal, link.name))
        places = self._places[link.called, link.run]
        places.discard(link.place)
        if not places:
            del self._places[link.called, link.run]
        for counter, key in ((self.of_principal, link.principal), (self.of_run, link.run)):
            counter[key] -= 1
            if not counter[key]:
                del counter[key]
