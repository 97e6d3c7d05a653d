"""A transport over Unix sockets, as an example: one file in a folder for each port."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import cast

from tmrl_core.errors import NetworkError, PortInUseError
from tmrl_core.networking.protocol.connection import Connection, Identity
from tmrl_core.networking.transports.base import LINGER_S, Driver, Listener, Transport


class UnixTransport(Transport):
    """Links between processes of one machine that may open the folder. Hosts are ignored.

    Args:
        folder: of the sockets; for each port a file.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    async def serve(self, host: str, port: int, accept: Callable[[], Connection]) -> Listener:
        """Listen on a socket of that number."""
        loop = asyncio.get_running_loop()
        port = port or next(number for number in range(1, 65_536) if not self._path(number).exists())
        path = self._path(port)
        if path.exists():
            raise PortInUseError(f"port {port} is in use: {path} exists. Choose another port, or remove the file.")
        listener = UnixListener(port, path)

        def make() -> UnixDriver:
            driver = UnixDriver(accept(), loop)
            listener.drivers.add(driver)
            driver.ended.add_done_callback(lambda _: listener.drivers.discard(driver))
            return driver

        listener.server = await loop.create_unix_server(make, path)
        return listener

    async def dial(self, host: str, port: int, connection: Connection, timeout_s: float) -> Driver:
        """Connect to the socket of that number."""
        loop = asyncio.get_running_loop()
        driver = UnixDriver(connection, loop)
        try:
            await asyncio.wait_for(loop.create_unix_connection(lambda: driver, str(self._path(port))), timeout_s)
        except asyncio.TimeoutError as exc:
            raise NetworkError(f"port {port} did not answer within {timeout_s:g} s") from exc
        except OSError as exc:
            raise NetworkError(f"cannot reach port {port} in {self.folder}: {exc}. Start the Server first.") from exc
        return driver

    def _path(self, port: int) -> Path:
        return self.folder / f"{port}.sock"


class UnixListener(Listener):
    """One socket that is listened on."""

    def __init__(self, port: int, path: Path) -> None:
        self.server: asyncio.AbstractServer | None = None
        self.drivers: set[UnixDriver] = set()
        self._port = port
        self._path = path

    @property
    def port(self) -> int:
        """Number of the socket."""
        return self._port

    async def close(self) -> None:
        """Stop listening, and close the links in order."""
        assert self.server is not None
        self.server.close()
        self._path.unlink(missing_ok=True)
        await asyncio.gather(*(driver.leave() for driver in list(self.drivers)))


class UnixDriver(Driver, asyncio.BufferedProtocol):
    """One end of a link: it moves bytes between a socket and a connection."""

    def __init__(self, connection: Connection, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(connection, loop)
        self._socket: asyncio.Transport | None = None
        self._paused = False
        self._unread = memoryview(bytearray(4096))

    # --- called by asyncio ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._socket = cast(asyncio.Transport, transport)
        self.connection.connected(Identity("unix"), self.loop.time())
        self.wake()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._unread if self._finishing else self.connection.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        if not self._finishing:
            self.connection.received(nbytes, self.loop.time())
            self.wake()

    def eof_received(self) -> bool:
        if not self._finishing:
            self.connection.received(0, self.loop.time())
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost(NetworkError(f"the link broke: {exc}") if exc is not None else None)

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self.wake()

    # --- Driver ---

    def _writable(self) -> bool:
        return self._socket is not None and not self._paused and not self._finishing

    def _write(self, buffers: list[bytes | bytearray | memoryview]) -> None:
        assert self._socket is not None
        self._socket.writelines(buffers)

    def _finish(self) -> None:
        # The other side reads what was written, then closes its end.
        if self._socket is not None:
            self._socket.write_eof()
            self.loop.call_later(LINGER_S, self.abort)

    def abort(self) -> None:
        """Close at once."""
        if self._socket is not None:
            self._socket.abort()
