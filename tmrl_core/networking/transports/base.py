"""Interface of all transports, and the part of driving a connection that they share.

Everything here runs in the thread of one asyncio event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable

from tmrl_core.errors import NetworkError
from tmrl_core.networking.protocol.connection import Connection

logger = logging.getLogger(__name__)

LEAVE_S = 2.0
"""Time that a client that leaves in order waits for the other side."""
LINGER_S = 1.0
"""Time that a closed link waits for the other side to read the closing message."""
_LATE_S = 0.25
"""Delay of a timer that shows that the process was stopped, suspended, or got no processor."""


class Transport(ABC):
    """Transport of bytes. Implementations pass `tmrl_core.testing.transports.TransportSuite`."""

    def renewed_token(self) -> str | None:
        """Check a client's credentials for changes before it dials. Return the new token; None: unchanged."""
        return None

    @abstractmethod
    async def serve(self, host: str, port: int, accept: Callable[[], Connection]) -> Listener:
        """Listen, and drive a connection from `accept` for each peer.

        Raises:
            NetworkError: the address cannot be used, such as a port in use.
        """

    @abstractmethod
    async def dial(self, host: str, port: int, connection: Connection, timeout_s: float) -> Driver:
        """Connect `connection` to a Server. The driver's `ended` future is done when the link has ended.

        Raises:
            NetworkError: no process listens there, the name is unknown, or the other side fails authentication.
        """


class Listener(ABC):
    """Listening socket or process that `Transport.serve` returns."""

    @property
    @abstractmethod
    def port(self) -> int:
        """Port of the listening socket, also if 0 was requested."""

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

    def _pump(self) -> None:
        self._scheduled = False
        try:
            self._move()
        except Exception:
            # A defect of this package: a stalled link would hide it, and a new link starts clean.
            logger.exception("a link failed and is closed; its client connects again")
            self.abort()

    def _move(self) -> None:
        connection = self.connection
        while self._writable() or (connection.closing and not self._finishing):
            buffers = connection.to_send(self.loop.time())
            if not buffers:
                break
            self._write(buffers)
        if connection.closing:
            self._finish_once()
        elif connection.started:
            # A deadline that has moved later is checked when the timer fires; an earlier one needs a new timer.
            # A past deadline is handled immediately, which does not show how late this process is.
            deadline = max(connection.deadline(), self.loop.time())
            if self._timer is None or deadline < self._timer_at:
                self._cancel_timer()
                # Not asked of the handle: uvloop's for a time that is past has no `when`.
                self._timer_at = deadline
                self._timer = self.loop.call_at(deadline, self._tick)

    def _tick(self) -> None:
        self._timer = None
        now = self.loop.time()
        if now - self._timer_at > _LATE_S:
            self.connection.compensate_pause(now - self._timer_at, now)
        self.connection.tick(now)
        self._pump()

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
        """Return whether the transport takes more now. It calls `wake` when that becomes true again."""

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
