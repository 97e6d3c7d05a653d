"""Samples that have arrived and wait for the training thread, in turns by origin. Sans-I/O.

A compressed message of 600 bytes may stand for 16 MB, and reading it takes half a second. What waits here is limited by
its bytes, and what is taken by its *cost*, the bytes that it stands for. The origins (the holders of certificates) take
turns by cost, as the relay's principals do by bytes, so that nobody waits for many cheap giants of another one. But
such giants would occupy the inbox for minutes, so an origin whose messages cost more than `PENDING_BYTES` is postponed:
the Server sends them again later.
"""

# Theory of operation
#
# Bytes bound what waits here, as credit does, but some kB may decompress to GB, and the training thread has to do that.
# Each message therefore has a cost, the size without compression that its header states. `take` hands out messages of a
# limited cost, and the origins (holders of certificates) take turns by it, so that nobody waits for another one's
# giants.
#
# Example: A has ten messages that stand for 64 MB each, B sends 100 kB. A's first message is taken. B's turn is 0 and
# A's is 64 MB now, so B's messages come next, until they too have cost 64 MB.
#
# A minimum of 64 kB for a turn, and 128 messages at a time, because tiny messages cost time that their size does not
# show.
#
# More than 1 GB of one origin is not admitted: the message counts as not arrived, and is requested again once half of
# that was taken (`postponed.py`). Without other origins 16 GB may wait, because what is postponed travels several
# times, a waste where nobody needs the room.
#
# Rejected: a limit of the compression ratio (a robot that stands still sends rows that shrink a thousandfold), credit
# by cost (granted credit is of bytes, and cannot be taken back), and refusals (the samples are lost).

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterator
from heapq import heappop, heappush, nlargest
from itertools import count
from operator import itemgetter

from tmrl_core.networking.protocol.delivery import Received

TAKEN_BYTES = 64 << 20
"""Cost of the messages that are taken at a time; at least one message is."""
TAKEN_MESSAGES = 128
"""Maximum number of messages that are taken at a time: tiny ones cost more time than their bytes show, and the training
thread looks at its clock between two calls."""
TURN_BYTES = 64 << 10
"""Minimum cost of a message in its origin's turns: its episode records take time that its bytes do not show."""
PENDING_BYTES = 1 << 30
"""Maximum cost of the messages of one origin that wait, besides one message. Messages that shrink to a sixteenth do not
reach it in an inbox of 64 MB."""
ALONE = 16
"""Multiple of it that an origin without others may have. What is postponed travels several times, which is a waste
where nobody needs the room."""
_MAX_TURNS = 4_096
"""Maximum number of origins without messages whose turns are remembered."""


class Inbox:
    """Received messages, in order for each stream.

    Attributes:
        cost_of: returns the cost that a message's payload states.
        max_message_bytes: maximum of it. A message that states more is refused unread, so it costs its bytes.
        held_bytes: bytes that the messages took on the link.
        appended: number of messages that were ever appended.
        taken, taken_cost: number and cost of all messages that were ever taken.
        shared: True while several origins have streams.
    """

    def __init__(self) -> None:
        self.cost_of: Callable[[memoryview], int] = len
        self.max_message_bytes = sys.maxsize
        self.held_bytes = 0
        self.appended = self.taken = self.taken_cost = 0
        self.shared = True
        self._waiting: dict[str, deque[tuple[Received, int, int]]] = {}
        """Messages of each origin, with their costs and their places among all that were appended."""
        self._pending: dict[str, int] = {}
        self._heap: list[tuple[int, int, str]] = []
        """Origins with messages: (turn, order among equals, origin)."""
        self._order = count()
        self._turn = 0
        self._turns: dict[str, int] = {}
        """Turn of the next message of each origin that has had more than the others."""

    def __len__(self) -> int:
        """Return the number of messages."""
        return self.appended - self.taken

    def __iter__(self) -> Iterator[Received]:
        """Iterate over the messages, in order for each stream."""
        return (one for waiting in self._waiting.values() for one, _, _ in waiting)

    def has_of_first(self, number: int) -> bool:
        """Return True while one of the first `number` messages that were appended waits."""
        return any(waiting[0][2] < number for waiting in self._waiting.values())

    def admits(self, origin: str, payload: memoryview) -> bool:
        """Return True if a message may be appended now."""
        pending, most = self._pending.get(origin, 0), PENDING_BYTES if self.shared else ALONE * PENDING_BYTES
        return pending <= most // 2 or pending + self._cost(payload) <= most

    def is_busy(self, origin: str) -> bool:
        """Return True while messages of an origin that was not admitted would be postponed again.

        Otherwise the next message is admitted, however much it costs.
        """
        return self._pending.get(origin, 0) > (PENDING_BYTES if self.shared else ALONE * PENDING_BYTES) // 2

    def _cost(self, payload: memoryview) -> int:
        stated = self.cost_of(payload)
        return stated if stated <= self.max_message_bytes else len(payload)

    def append(self, received: Received, origin: str = "") -> None:
        """Append a message."""
        cost = self._cost(received.payload)
        self.held_bytes += received.size
        self._pending[origin] = self._pending.get(origin, 0) + cost
        waiting = self._waiting.get(origin)
        if waiting is None:
            waiting = self._waiting[origin] = deque()
            turn = max(self._turn, self._turns.pop(origin, 0))
            heappush(self._heap, (turn, next(self._order), origin))
        waiting.append((received, cost, self.appended))
        self.appended += 1

    def take(self, most: int = TAKEN_BYTES) -> list[Received]:
        """Remove messages that cost `most`, at least one if there is one, and return them: `TAKEN_MESSAGES` at most."""
        taken: list[Received] = []
        while self._heap and most > 0 and len(taken) < TAKEN_MESSAGES:
            turn, order, origin = heappop(self._heap)
            self._turn = turn
            waiting, pending = self._waiting[origin], self._pending[origin]
            while waiting and most > 0 and len(taken) < TAKEN_MESSAGES and (not self._heap or turn <= self._heap[0][0]):
                received, cost, _ = waiting.popleft()
                taken.append(received)
                most -= cost
                self.taken_cost += cost
                turn += max(cost, TURN_BYTES)
                pending -= cost
                self.held_bytes -= received.size
            if waiting:
                self._pending[origin] = pending
                heappush(self._heap, (turn, order, origin))
                continue
            del self._waiting[origin], self._pending[origin]
            self._turns[origin] = turn
            if len(self._turns) > _MAX_TURNS:
                self._turns = dict(nlargest(_MAX_TURNS // 2, self._turns.items(), key=itemgetter(1)))
        self.taken += len(taken)
        return taken
