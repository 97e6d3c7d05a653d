"""Probes: clients that check whether the Server would admit them, and measure the connection. Sans-I/O.

A probe is authenticated like a `Hello` and takes no place: it is neither a worker nor a trainer, and has no stream. Its
measurements are bounded, so that probes cannot overload the Server: a few at a time, for a short time each, with bytes
from one shared allowance that refills slowly. Answers are made one at a time, as the link takes them.
"""

# Theory of operation
#
# A separate message and no flag of `Hello`, because a probe has no peer id, label and incarnation, which the Server
# could take for those of a peer. A wrong token has the same cost as with `Hello`, so probes cannot be used to guess
# one.

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from tmrl_core.errors import RemoteProtocolError
from tmrl_core.networking.protocol.messages import (
    PROTOCOL_VERSION,
    SUPPORTED_VERSIONS,
    Diagnosis,
    Echo,
    Hello,
    Probe,
    control_frame,
)
from tmrl_core.networking.relay.places import Places
from tmrl_core.token_bucket import TokenBucket

if TYPE_CHECKING:
    from tmrl_core.networking.relay.connection import RelayConnection
    from tmrl_core.networking.relay.core import Relay

PROBE_S = 60.0
"""Maximum duration of a probe's link, in seconds."""
MAX_PROBES = 4
"""Maximum number of simultaneous probes."""
LINK_BYTES = 4 << 20
"""Maximum bytes of one link's measurements, in each direction."""
ALL_BYTES = 16 << 20
"""Capacity of the allowance that all probes share."""
REFILL_BYTES_S = 1 << 20
"""Refill rate of the shared allowance, in bytes per second."""
ECHO_BYTES = 64
"""Cost of an echo besides its filler."""
_MAX_WAITING = 64
"""Maximum number of answers that wait to be sent."""


class Echoes:
    """Echoes that one link has requested, and its remaining allowance."""

    def __init__(self) -> None:
        self.up_bytes = 0
        self.down_bytes = 0
        self._waiting: deque[tuple[int, int]] = deque()

    def take(self, echo: Echo) -> None:
        """Record a requested answer.

        Raises:
            RemoteProtocolError: the allowance is exceeded.
        """
        self.up_bytes -= ECHO_BYTES + len(echo.filler)
        self.down_bytes -= ECHO_BYTES + echo.size
        if self.up_bytes < 0 or self.down_bytes < 0:
            raise RemoteProtocolError("the probe exceeded its allowance")
        if len(self._waiting) >= _MAX_WAITING:
            raise RemoteProtocolError(f"at most {_MAX_WAITING} echoes may be requested at a time")
        self._waiting.append((echo.number, echo.size))

    def next_frame(self) -> bytes | None:
        """Return the next answer; None: no request waits."""
        if not self._waiting:
            return None
        number, size = self._waiting.popleft()
        return control_frame(Echo(number, 0, bytes(size)))


class Probes:
    """All probes of a relay."""

    def __init__(self, relay: Relay) -> None:
        self._relay = relay
        self.places = Places(MAX_PROBES)
        self._bytes = TokenBucket(REFILL_BYTES_S, ALL_BYTES)

    def accept(self, connection: RelayConnection, probe: Probe, now: float) -> None:
        """Report the Server's state, and whether a `Hello` of that role would be admitted."""
        relay = self._relay
        if not relay.admits(connection, Hello(probe.versions, probe.role, probe.token, probe.run, "", bytes(16))):
            return
        if not self.places.admit(connection):
            relay.refuse_peer(connection, "full", f"{MAX_PROBES} other checks are in progress; try again later")
            return
        connection.state, connection.source = "probe", connection.echoes.next_frame
        allowance = min(LINK_BYTES, int(self._bytes.available(now)))
        self._bytes.spend(allowance)
        connection.echoes.up_bytes = connection.echoes.down_bytes = allowance
        trainer = relay.trainer
        connection.send(
            Diagnosis(
                version=PROTOCOL_VERSION,
                versions=SUPPORTED_VERSIONS,
                time_s=relay.wall_clock(),
                no_place=relay.no_place_for(probe.role)[:1000],
                trainer=trainer is not None,
                trainer_run="" if trainer is None else trainer.run,
                allowance_bytes=allowance,
                card=relay.card_of(probe.run),
            )
        )
