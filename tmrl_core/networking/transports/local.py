"""Transport `local`: in process, no sockets; for tests, debugging and `--local --single-process`.

One table of this process maps ports to listeners. The two ends may be in the event loops of two threads. Bytes are
passed with `call_soon_threadsafe`, at most `_WINDOW_BYTES` unread at a time.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from tmrl_core.errors import NetworkError, PortInUseError
from tmrl_core.networking.protocol.connection import Authenticate, Connection, Identity
from tmrl_core.networking.protocol.messages import Role
from tmrl_core.networking.transports.base import Driver, Guard, Listener, Transport, TransportKind

if TYPE_CHECKING:
    from tmrl_core.networking.transports.settings import LinkSettings

_WINDOW_BYTES = 262_144

_listeners: dict[int, LocalListener] = {}
_listeners_lock = threading.Lock()
_ports = itertools.count(1)


class LocalTransport(Transport):
    """Links within a process. Hosts are ignored, and port 0 takes a free port."""

    async def serve(self, host: str, port: int, accept: Callable[[], Connection]) -> Listener:
        """Listen under `port` in this process."""
        listener = LocalListener(asyncio.get_running_loop(), accept)
        with _listeners_lock:
            if port == 0:
                port = next(number for number in _ports if number not in _listeners)
            elif port in _listeners:
                raise PortInUseError(f"port {port} of the transport 'local' is in use in this process; choose another")
            listener.number = port
            _listeners[port] = listener
        return listener

    async def dial(self, host: str, port: int, connection: Connection, timeout_s: float) -> Driver:
        """Connect to the listener with that port in this process."""
        with _listeners_lock:
            listener = _listeners.get(port)
        if listener is None:
            raise NetworkError(f"nothing in this process listens on port {port} of the transport 'local'")
        end = _End(connection, asyncio.get_running_loop())
        accepted: asyncio.Future[None] = end.loop.create_future()
        listener.loop.call_soon_threadsafe(listener.accepted, end, accepted)
        try:
            await asyncio.wait_for(accepted, timeout_s)
        except asyncio.TimeoutError as exc:
            raise NetworkError(f"port {port} of the transport 'local' did not answer in {timeout_s:g} s") from exc
        connection.connected(Identity("local"), end.loop.time())
        end.wake()
        return end


class LocalKind(TransportKind):
    """Links within a process."""

    in_process = True

    def client(self, settings: LinkSettings, role: Role, *, tls: bool) -> tuple[Transport, str]:
        """Return the transport of a client, which sends no token."""
        return LocalTransport(), ""

    def server(self, settings: LinkSettings, guard: Guard, *, tls: bool) -> tuple[Transport, Authenticate]:
        """Return the transport of a Server, which accepts all peers."""
        return LocalTransport(), lambda hello, connection: None


class LocalListener(Listener):
    """Listener on one port of this process."""

    def __init__(self, loop: asyncio.AbstractEventLoop, accept: Callable[[], Connection]) -> None:
        self.loop = loop
        self.number = 0
        self._accept = accept
        self._ends: set[_End] = set()

    @property
    def port(self) -> int:
        """Return the listening port."""
        return self.number

    def accepted(self, client: _End, answer: asyncio.Future[None]) -> None:
        """Accept a client's connection. Runs in the listener's loop."""
        end = _End(self._accept(), self.loop)
        end.other = client
        client.other = end
        self._ends.add(end)
        end.ended.add_done_callback(lambda _: self._ends.discard(end))
        end.connection.connected(Identity("local"), self.loop.time())
        end.wake()
        client.loop.call_soon_threadsafe(_answer, answer)

    async def close(self) -> None:
        """Stop listening and close every link."""
        with _listeners_lock:
            _listeners.pop(self.number, None)
        ends = list(self._ends)
        for end in ends:
            end.connection.close()
        if ends:
            await asyncio.wait([end.ended for end in ends], timeout=2.0)


def _answer(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


class _End(Driver):
    """One end of a link in this process."""

    def __init__(self, connection: Connection, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(connection, loop)
        self.other: _End | None = None
        self._unread = 0

    def _writable(self) -> bool:
        return self.other is not None and self._unread < _WINDOW_BYTES

    def _write(self, buffers: list[bytes | bytearray | memoryview]) -> None:
        if self.other is None:
            return
        size = sum(map(len, buffers))
        self._unread += size
        self._call_other(self.other._arrived, buffers, size)

    def _call_other(self, function: Callable[..., None], *args: object) -> None:
        assert self.other is not None
        try:
            self.other.loop.call_soon_threadsafe(function, *args)
        except RuntimeError:  # its loop is closed: its thread has ended
            self._lost(NetworkError("the other side is gone"))

    def _arrived(self, buffers: list[bytes | bytearray | memoryview], size: int) -> None:
        now = self.loop.time()
        for buffer in buffers:
            offset = 0
            while offset < len(buffer) and not self.connection.closing:
                view = self.connection.get_buffer()
                n = min(len(view), len(buffer) - offset)
                view[:n] = buffer[offset : offset + n]
                offset += n
                self.connection.received(n, now)
        if self.other is not None:
            self._call_other(self.other._read, size)
        self.wake()

    def _read(self, size: int) -> None:
        self._unread -= size
        self.wake()

    def _finish(self) -> None:
        if self.other is not None:
            self._call_other(self.other._other_closed)
        self._lost(None)

    def _other_closed(self) -> None:
        if not self.ended.done():
            self.connection.received(0, self.loop.time())
            self._lost(None)

    def abort(self) -> None:
        """Close immediately."""
        if not self.ended.done():
            self._finish()
