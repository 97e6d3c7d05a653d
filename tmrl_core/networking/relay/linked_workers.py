"""Labels, numbers and counts of the linked workers, so that one joins without a look at all others. Sans-I/O."""

from __future__ import annotations

from collections import Counter, defaultdict
from heapq import heappop, heappush
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tmrl_core.networking.relay.connection import RelayConnection


class _Numbers:
    """Numbers from 1 on, of which the lowest free one is found without a search. False: none is taken."""

    def __init__(self) -> None:
        self._taken: set[int] = set()
        self._next = 1
        """Lowest number that was never found free."""
        self._returned: list[int] = []
        """Heap of lower numbers that were given back; some of them are taken again."""
        self._listed: set[int] = set()
        """The same as a set."""

    def __bool__(self) -> bool:
        return bool(self._taken)

    def take_lowest(self) -> int:
        """Take the lowest free number."""
        while self._returned:
            number = heappop(self._returned)
            self._listed.remove(number)
            if self.take(number):
                return number
        while not self.take(self._next):
            self._next += 1
        self._next += 1
        return self._next - 1

    def take(self, number: int) -> bool:
        """Take a number. Return False if it is taken already."""
        free = number not in self._taken
        self._taken.add(number)
        return free

    def give_back(self, number: int) -> None:
        """Make a number free again."""
        self._taken.discard(number)
        if number < self._next and number not in self._listed:
            self._listed.add(number)
            heappush(self._returned, number)


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
        self._suffixes = defaultdict[tuple[str, str], _Numbers](_Numbers)
        """Numbers at the end of the labels of a principal and a name; 1: the name itself."""
        self._places = defaultdict[tuple[str, str], _Numbers](_Numbers)
        """Numbers of the workers of a run and a name, of all credentials."""

    def enter(self, link: RelayConnection) -> None:
        """Add a worker. Set its label and its number."""
        principal, called = link.principal, link.called
        link.name = self._new_label(principal, called) if called else ""
        link.place = self._places[called, link.run].take_lowest()
        self.of_principal[principal] += 1
        self.of_run[link.run] += 1

    def _new_label(self, principal: str, called: str) -> str:
        # Labels differ among the same credentials: a peer that takes another machine's label must not rename it.
        suffixes, others = self._suffixes[principal, called], list[int]()
        label = _labelled(called, suffixes.take_lowest())
        while (principal, label) in self._labels:  # another worker calls itself so
            others.append(_suffix(called, label))
            label = _labelled(called, suffixes.take_lowest())
        for number in others:
            suffixes.give_back(number)
        self._labels.add((principal, label))
        return label

    def keep_place(self, link: RelayConnection, number: int) -> None:
        """Give a worker the number that it had before, unless another one has got it while this one was away."""
        places = self._places[link.called, link.run]
        if places.take(number):
            places.give_back(link.place)
            link.place = number

    def leave(self, link: RelayConnection) -> None:
        """Remove a worker that was added."""
        principal, called = link.principal, link.called
        self._labels.discard((principal, link.name))
        given_back = [(self._places, (called, link.run), link.place)]
        if called:
            given_back.append((self._suffixes, (principal, called), _suffix(called, link.name)))
        for numbers, owner, number in given_back:
            numbers[owner].give_back(number)
            if not numbers[owner]:
                del numbers[owner]
        for counter, key in ((self.of_principal, link.principal), (self.of_run, link.run)):
            counter[key] -= 1
            if not counter[key]:
                del counter[key]


def _labelled(called: str, number: int) -> str:
    return called if number == 1 else f"{called}-{number}"


def _suffix(called: str, label: str) -> int:
    return int(label[len(called) + 1 :] or 1)
