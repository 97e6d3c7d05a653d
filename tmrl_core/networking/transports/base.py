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
"""A timer that comes later than this was held up: the process was stopped, suspended, or got no processor."""


class Transport(ABC):
    """A way for bytes to travel. Implementations pass `tests/networking/transports/test_conformance.py`."""

    def renewed_token(self) -> str | None:
        """Look at a client's credentials again, before it dials: the token to show from now on; None: as before."""
        return None

    @abstractmethod
    async def serve(self, host: str, port: int, accept: Callable[[], Connection]) -> Listener:
        """Listen, and drive a connection from `accept` for each peer.

        Raises:
            NetworkError: the address cannot be had (a port in use); it says so.
        """

    @abstractmethod
    async def dial(self, host: str, port: int, connection: Connection, timeout_s: float) -> Driver:
        """Connect `connection` to a Server. The driver's `ended` future is done when the link has ended.

        Raises:
            NetworkError: nobody listens there, the name is unknown, or the other side is not whom it should be.
        """


class Listener(ABC):
    """Listening socket or process that `Transport.serve` returns."""

    @property
    @abstractmethod
    def port(self) -> int:
        """The port that is listened on, also when 0 was asked for."""

    @abstractmethod
    async def close(self) -> None:
        """Stop listening, close every link in order, and wait until they are closed."""


class Driver(ABC):
    """Moves bytes between one connection and one end of a transport, and tells the connection the time."""

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
        """There may be something to send. Only in the loop's thread."""
        if not self._scheduled:
            self._scheduled = True
            self.loop.call_soon(self._pump)

    def _pump(self) -> None:
        self._scheduled = False
        try:
            self._move()
        except Exception:
            # A defect of ours: a link that stood still for ever would hide it, and a new one starts clean.
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
            # A deadline that has moved later is looked at when the timer fires; one that is sooner needs a new timer.
            # One that is past already is met at once, which says nothing of how late this process is.
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
        """Close in order, and at once if that takes longer than `LEAVE_S`."""
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
        """The transport's end is gone."""
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
        """Send; never blocks."""

    @abstractmethod
    def _finish(self) -> None:
        """Send what is written already, then close; `_lost` is called in the end."""

    @abstractmethod
    def abort(self) -> None:
        """Close at once."""


def new_event_loop() -> asyncio.AbstractEventLoop:
    """A new event loop: uvloop's where it is installed, else asyncio's."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()
