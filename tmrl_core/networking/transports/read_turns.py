"""Turns in which a Server reads from its links, so that one that sends little waits for few others."""

# Theory of operation
#
# An event loop reads from every socket with input before it does anything else. Two hundred links with 50 kB each take
# 60 ms, in which nothing is sent, and a small message passes four such rounds until its worker has the acknowledgement:
# it is read, forwarded, acknowledged by the trainer, and its acknowledgement is forwarded. So rounds must be short.
#
# A round has `ROUND_S` of processor time for reading. Once it is used up, each link that has had a read worth
# mentioning waits: nothing is read from it until its turn, and those that wait have their turns in order, each round as
# many as fit into its time by what their last reads took. While some wait, everybody joins them after such a read, or
# those that came first would be read in each round. Light reads never wait, and neither does a link that is idle: it is
# a *next* read that waits.
#
# Example: 200 links always have input, 0.3 ms each. The first round takes 60 ms, since all were ready when it began.
# From then on 4 links are read in each round, each link in every 50th, and a small message waits for rounds of 1.2 ms
# and what is sent in between. A link that is the only one with much to send does not wait: nobody would have its time.
#
# The trainer comes first among those that wait, because its acknowledgements and policies are for all others.
#
# Rejected: shorter reads in long rounds (each link would be read in pieces of 4 kB, which cost three times as much a
# byte), and reading a fixed number of links in each round (idle ones would occupy the places).

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol

ROUND_S = 0.001
"""Processor time of a round for reading. A shorter one would be spent on asking the system for what has arrived."""
LIGHT_BYTES, LIGHT_S = 4_096, 0.0002
"""Maximum size and processor time of a read after which a link never waits."""


class Turned(Protocol):
    """A link that can wait for its turn."""

    def wait_turn(self) -> None:
        """Read nothing from now on."""

    def end_wait(self) -> None:
        """Read again."""


class ReadTurns:
    """Turns of all links of a listener.

    Args:
        soon: calls a function once what has arrived was handled, as `loop.call_soon` does.
    """

    def __init__(self, soon: Callable[[Callable[[], None]], object]) -> None:
        self._soon = soon
        self._left_s = ROUND_S
        self._waiting: deque[tuple[Turned, float]] = deque()
        """Links that wait, with the processor time of their last reads."""
        self._ends = False
        """True: the end of this round is scheduled."""
        self._latest: Turned | None = None
        """The link with the latest read of this round that was worth mentioning."""
        self._several = False
        """True: others had such a read in this round too."""

    def took(self, link: Turned, n: int, seconds: float, *, first: bool) -> None:
        """Take a read of `n` bytes into account, after which the link may have to wait.

        Args:
            first: put the link before all others that wait.
        """
        if not self._ends:
            self._ends = True
            self._soon(self._next_round)
        self._left_s -= seconds
        if n <= LIGHT_BYTES and seconds <= LIGHT_S:
            return
        self._several = self._several or self._latest not in (None, link)
        self._latest = link
        if self._waiting or (self._left_s < 0 and self._several):
            link.wait_turn()
            (self._waiting.appendleft if first else self._waiting.append)((link, seconds))

    def _next_round(self) -> None:
        self._left_s = left_s = ROUND_S
        self._latest, self._several = None, False
        while self._waiting and left_s > 0:
            link, seconds = self._waiting.popleft()
            left_s -= seconds
            link.end_wait()
        self._ends = bool(self._waiting)
        if self._ends:
            self._soon(self._next_round)
