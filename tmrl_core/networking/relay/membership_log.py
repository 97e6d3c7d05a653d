"""Says in the Server's log who comes and who goes, in a bounded number of lines. Sans-I/O."""

from __future__ import annotations

from collections.abc import Callable

from tmrl_core.networking.relay.connection import RelayConnection
from tmrl_core.token_bucket import TokenBucket

LINES_AT_ONCE = 500
LINES_PER_S = 1.0
"""Rate of lines after a burst, so that a peer that keeps joining and leaving cannot fill a disk."""


class Lines:
    """Passes lines on: many at once, then so slowly that they fill no disk; the rest are counted.

    Args:
        say: takes a line.
        what: what the lines are about that are not passed on.
    """

    def __init__(self, say: Callable[[str], None], what: str) -> None:
        self._say = say
        self._what = what
        self._lines = TokenBucket(LINES_PER_S, LINES_AT_ONCE)
        self._unsaid = 0

    def __call__(self, line: str, now: float) -> None:
        """Pass one on, or count it; `now` in seconds, by whatever clock."""
        if not self._lines.take(now):
            self._unsaid += 1
            return
        if self._unsaid:
            line += f" (and {self._unsaid} {self._what} and were not logged)"
            self._unsaid = 0
        self._say(line)


class Register:
    """One line for each worker or trainer that is let in, and one for each that leaves, with the reason.

    Args:
        say: takes a line.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self._line = Lines(say, "that joined or left")

    def came(self, connection: RelayConnection, now: float) -> None:
        """A peer was let in."""
        self._line(f"{_who(connection)} joined, run {connection.run!r}", now)

    def left(self, connection: RelayConnection, why: object, now: float) -> None:
        """A peer's link is gone; `why` is its connection's reason, None for one that was closed in order."""
        reason = str(why).rstrip(".") if why is not None else "in order"
        self._line(f"{_who(connection)} left after {connection.linked_s(now):.0f} s: {reason}", now)


def _who(connection: RelayConnection) -> str:
    """Role, label, whose credentials, and where from: what `--credentials revoke` and people need."""
    name = connection.name or "unnamed"
    identity = connection.identity
    of = f"{identity.name}'s certificate, " if identity.name else ""
    # What a peer calls itself may hold anything, line breaks too.
    return f"{connection.state} {name if name.isprintable() else repr(name)} ({of}{identity.address})"
