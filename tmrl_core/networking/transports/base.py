"""Interface of all transports, and their common code to drive a connection.

Everything here runs in the thread of one asyncio event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from tmrl_core.errors import NetworkError
from tmrl_core.networking.protocol.connection import Authenticate, Connection
from tmrl_core.networking.protocol.messages import Role

if TYPE_CHECKING:
    from pathlib import Path

    from tmrl_core.networking.security.admission import AdmissionSettings
    from tmrl_core.networking.transports.settings import LinkSettings

logger = logging.getLogger(__name__)

LEAVE_S = 2.0
"""Maximum time in seconds that a client waits for the other side when it closes in order."""
LINGER_S = 1.0
"""Time that a closed link waits for the other side to read the closing message."""
_SEND_S = 0.01
"""Processor time for sending after which other links have their turn. A shorter time would divide large writes."""
_LATE_S = 0.25
"""Delay of a timer beyond which the process must have been stopped, suspended, or without processor time."""


class Transport(ABC):
    """Transport of bytes. Implementations must pass the conformance suite `TransportSuite`."""

    def renewed_token(self) -> str | None:
        """Check a client's credentials for changes before it dials. Return the new token; None: unchanged."""
        return None

    def warn_of_expiry(self) -> None:
        """Log a warning if a client's certificate expires soon. Called every few seconds while a link lasts."""
        return

    def signed_revocations(self) -> bytes:
        """Return the list of revoked certificates that a Server sends, with the CA's signature; empty: none."""
        return b""

    @abstractmethod
    async def serve(self, host: str, port: int, accept: Callable[[], Connection]) -> Listener:
        """Listen, and drive a connection from `accept` for each peer.

        Raises:
            NetworkError: the address cannot be used.
            PortInUseError: the port is in use.
        """

    @abstractmethod
    async def dial(self, host: str, port: int, connection: Connection, timeout_s: float) -> Driver:
        """Connect `connection` to a Server. The driver's `ended` future is done when the link has ended.

        Raises:
            NetworkError: no process listens there, the name is unknown, or the other side fails authentication.
        """


class Guard(NamedTuple):
    """Treatment of peers that have not proved their identity, by a Server.

    Attributes:
        on_refused: to be called with the address and the reason for each peer that is rejected before its greeting.
        admission: limits for their connections; None: the defaults.
    """

    on_refused: Callable[[str, str], None]
    admission: AdmissionSettings | None


class TransportKind(ABC):
    """A name of `network.transport`: makes the transports of clients and Servers.

    Rooms and other packages register the class as an entry of `transports`, see `tmrl_core.rooms`.
    """

    in_process = False
    """True: it connects threads of one process, without hosts and credentials."""

    def ensure_credentials(self, folder: Path) -> bool:
        """Create missing credentials for a Server on this machine. Return True if they were created."""
        from tmrl_core.networking.security import credentials

        return credentials.ensure(folder)

    advice = ""
    """Next step, for `--doctor`, if what a Server answers is not of this transport. Empty: `--doctor` examines the TLS
    of the transport `tls`; otherwise the transport itself connects, with the credentials that `examined` describes."""

    def examined(self, settings: LinkSettings, role: Role, *, tls: bool) -> tuple[Transport, str]:
        """Return a client's transport for `--doctor`, and a description of its credentials. For kinds with `advice`.

        Raises:
            TmrlError: a required part is missing or has expired.
        """
        raise NotImplementedError

    @abstractmethod
    def client(self, settings: LinkSettings, role: Role, *, tls: bool) -> tuple[Transport, str]:
        """Return the transport of a client, and the token that it sends.

        Raises:
            CredentialsError: there are no credentials.
        """

    @abstractmethod
    def server(self, settings: LinkSettings, guard: Guard, *, tls: bool) -> tuple[Transport, Authenticate]:
        """Return the transport of a Server, and the function that authenticates its peers.

        Args:
            settings: section `network`, with the address.
            guard: limits for peers that have not proved their identity, and a function for those that are rejected.
            tls: False: links are not encrypted.

        Raises:
            CredentialsError: there are no credentials.
        """


class Listener(ABC):
    """A listening socket or process, returned by `Transport.serve`."""

    @property
    @abstractmethod
    def port(self) -> int:
        """Return the port of the listening socket, also if 0 was requested."""

    @abstractmethod
    async def close(self) -> None:
        """Stop listening, close every link in order, and wait until they are closed."""


class Driver(ABC):
    """Driver of one connection: it moves bytes to and from the transport, and passes the time."""

    def __init__(self, connection: Connection, loop: asyncio.AbstractEventLoop) -> None:
        self.connection = connection
        self.loop = loop
        self.ended: asyncio.Future[None] = loop.create_future()
        self._scheduled = False
        self._finishing = False
        self._timer: asyncio.Handle | None = None
        self._timer_at = 0.0
        connection.wake = self.wake

    def wake(self) -> None:
        """Send pending data. Only in the loop's thread."""
        if not self._scheduled:
            self._scheduled = True
            self.loop.call_soon(self._pump)

    def _pump(self, tick: bool = False) -> None:
        connection = self.connection
        try:
            if tick:
                self._timer = None
                now = self.loop.time()
                if now - self._timer_at > _LATE_S:
                    connection.compensate_pause(now - self._timer_at, now)
                connection.tick(now)
            self._scheduled = False
            begun = time.thread_time()
            while self._writable() or (connection.closing and not self._finishing):
                buffers = connection.to_send(self.loop.time())
                if not buffers:
                    break
                self._write(buffers)
                # A trainer's credit may suffice for a hundred thousand tiny messages.
                if not connection.closing and time.thread_time() - begun > _SEND_S:
                    self.wake()
                    break
            if connection.closing:
                self._finish_once()
            elif connection.started:
                # A deadline that was postponed is checked when the timer fires; an earlier one needs a new timer. A
                # past deadline is handled immediately, but says nothing about the delay of this process.
                deadline = max(connection.deadline(), self.loop.time())
                if self._timer is None or deadline < self._timer_at:
                    self._cancel_timer()
                    # Stored separately, because uvloop's handle of a past time has no `when`.
                    self._timer_at = deadline
                    self._timer = self.loop.call_at(deadline, self._pump, True)
        except Exception:
            # An exception here is a defect of this package. A stalled link would hide it, and a new link starts
            # cleanly.
            logger.exception("a link failed and is closed; its client connects again")
            self.abort()

    async def leave(self) -> None:
        """Close in order, or abort if that takes longer than `LEAVE_S`."""
        self.connection.close()
        self.wake()
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(asyncio.shield(self.ended), LEAVE_S)
        self.abort()

    def _finish_once(self) -> None:
        if not self._finishing:
            self._finishing = True
            self._cancel_timer()
            self._finish()

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _lost(self, reason: NetworkError | None) -> None:
        """Handle the loss of the transport."""
        self._finishing = True
        self._cancel_timer()
        self.connection.lost(reason, self.loop.time())
        if not self.ended.done():
            self.ended.set_result(None)

    @abstractmethod
    def _writable(self) -> bool:
        """Return True if the transport accepts more data now. It calls `wake` when that becomes true again."""

    @abstractmethod
    def _write(self, buffers: list[bytes | bytearray | memoryview]) -> None:
        """Send the buffers; never blocks."""

    @abstractmethod
    def _finish(self) -> None:
        """Send the written data, then close; `_lost` is called at the end."""

    @abstractmethod
    def abort(self) -> None:
        """Close immediately."""


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Return a new event loop: uvloop's if it is installed, else asyncio's."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()
