"""Log of peers that join, leave and are slowed down, in a bounded number of lines. Sans-I/O."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

from tmrl_core.networking.relay.connection import RelayConnection
from tmrl_core.rate_limited_log import RateLimitedLog


class MembershipLog:
    """Membership log: a line for each worker or trainer that joins, leaves or is slowed down, with the reason.

    Args:
        say: writes a line to the log.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._logs = defaultdict[str, RateLimitedLog](
            lambda: RateLimitedLog(say, "of these credentials that joined or left")
        )
        """Log of each principal, so that none hides the lines about others; as many as certificates and roles."""
        self._now = float("-inf")

    def _line(self, connection: RelayConnection, line: str, now: float) -> None:
        # A link that another one replaces knows an earlier time, and its lines would make room for others.
        self._now = max(self._now, now)
        self._logs[connection.principal](f"{_who(connection)} {line}", self._now)

    def joined(self, connection: RelayConnection, now: float) -> None:
        """Log that a peer was admitted."""
        number = f", as number {connection.place} of that name" if connection.place > 1 else ""
        self._line(connection, f"joined, run {connection.run!r}{number}", now)

    def left(self, connection: RelayConnection, why: object, now: float) -> None:
        """Log that a peer's link has ended; `why` is the connection's reason, None if it was closed in order."""
        reason = str(why).rstrip(".") if why is not None else "in order"
        self._line(connection, f"left after {connection.linked_s(now):.0f} s: {reason}", now)

    def slowed(self, connection: RelayConnection) -> None:
        """Log that the links of a peer's credentials are read slowly. The caller limits the rate."""
        self._say(
            f"{_who(connection)} is read slowly: connections, streams and requests with these credentials have used up "
            "their share of the processor"
        )


def _who(connection: RelayConnection) -> str:
    """Describe a peer by role, label, credentials and address, which `--credentials revoke` needs."""
    name = connection.name or "unnamed"
    identity = connection.identity
    of = f"{identity.name}'s certificate, " if identity.name else ""
    # A peer's label may contain any characters, also line breaks.
    return f"{connection.state} {name if name.isprintable() else repr(name)} ({of}{identity.address})"
