"""Log of peers that join, leave and are slowed down, in a bounded number of lines. Sans-I/O."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable

from tmrl_core.networking.relay.connection import RelayConnection
from tmrl_core.token_bucket import TokenBucket

SINGLE_LINES = 20
SINGLE_LINES_PER_S = 0.2
"""Lines about single peers at once, and their rate after that, for each holder of credentials."""
SUMMARY_S = 2.0
"""Time between two lines that count the other peers, so that one that keeps joining and leaving cannot fill a disk."""


class MembershipLog:
    """Membership log: a line for each worker or trainer that joins, leaves or is slowed down, with the reason.

    If many with the same credentials join or leave, a line counts them, as when a Server starts again below a fleet.

    Args:
        say: writes a line to the log.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        # For each holder of credentials, so that none hides the lines about others; as many as certificates and roles.
        self._single = defaultdict[str, TokenBucket](lambda: TokenBucket(SINGLE_LINES_PER_S, SINGLE_LINES))
        self._counted: dict[str, Counter[str]] = {}
        self._due = math.inf
        """Time at which the counted ones are logged."""
        self._now = -math.inf

    def _line(self, connection: RelayConnection, verb: str, details: str, now: float) -> None:
        # A link that another one replaces knows an earlier time, and its lines would make room for others.
        self._now = max(self._now, now)
        whose = _whose(connection)
        if whose not in self._counted and self._single[whose].take(self._now):
            self._say(f"{_who(connection)} {verb}{details}")
        else:
            self._counted.setdefault(whose, Counter())[verb] += 1
            self._due = min(self._due, self._now + SUMMARY_S)
        self.passed(self._now)

    def passed(self, now: float) -> None:
        """Log the number of those that had no line of their own, if it is time."""
        if now >= self._due:
            self.summarize()

    def summarize(self) -> None:
        """Log the number of those that had no line of their own."""
        for whose, counts in self._counted.items():
            self._say(f"{whose}: {', '.join(f'{number} more {verb}' for verb, number in counts.items())}")
        self._counted.clear()
        self._due = math.inf

    def joined(self, connection: RelayConnection, now: float) -> None:
        """Log that a peer was admitted."""
        number = f", as number {connection.place} of that name" if connection.place > 1 else ""
        self._line(connection, "joined", f", run {connection.run!r}{number}", now)

    def left(self, connection: RelayConnection, why: object, now: float) -> None:
        """Log that a peer's link has ended; `why` is the connection's reason, None if it was closed in order."""
        reason = str(why).rstrip(".") if why is not None else "in order"
        self._line(connection, "left", f" after {connection.linked_s(now):.0f} s: {reason}", now)

    def slowed(self, connection: RelayConnection) -> None:
        """Log that the links of a peer's credentials are read slowly. The caller limits the rate."""
        self._say(
            f"{_who(connection)} is read slowly: connections, streams and requests with these credentials have used up "
            "their share of the processor"
        )


def _whose(connection: RelayConnection) -> str:
    """Describe all peers with the credentials of this one."""
    name = connection.identity.name
    credentials = f"{name}'s certificate" if name else "their role's token"
    return f"{connection.state}s with {credentials}"


def _who(connection: RelayConnection) -> str:
    """Describe a peer by role, label, credentials and address, which `--credentials revoke` needs."""
    name = connection.name or "unnamed"
    identity = connection.identity
    of = f"{identity.name}'s certificate, " if identity.name else ""
    # A peer's label may contain any characters, also line breaks.
    return f"{connection.state} {name if name.isprintable() else repr(name)} ({of}{identity.address})"
