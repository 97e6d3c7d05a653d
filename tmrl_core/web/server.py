"""An HTTP server: uvicorn on own sockets, with the limits of `connections.py`."""

# Theory of operation
#
# The sockets are bound in the constructor, in the caller's thread, so that a port in use is reported before the caller
# has made anything else. Everything later belongs to one event loop: `start` returns when requests are answered, `wait`
# returns when the server has ended or one of its endless tasks has failed, and raises that failure.
#
# Once a second, slow connections are closed, and a renewed certificate is loaded.
#
# uvicorn accepts plain connections by itself. With TLS, `TlsListener` accepts them, because uvicorn limits no
# handshakes.

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path

import uvicorn
from starlette.types import ASGIApp

from tmrl_core.config.sections import is_loopback
from tmrl_core.web.connections import Connections, LimitedWebSocket, TlsListener
from tmrl_core.web.listening import Certificate, https_context, listening_sockets, url_of

TICK_S = 1.0
"""Seconds between two checks for slow connections and a new certificate."""
END_S = 5.0
"""Longest wait in seconds for requests in progress when the server ends."""
KEEP_ALIVE_S = 75
"""Seconds without a request after which a connection is closed: more than between steps that a person watches."""


class WebServer:
    """A server of one application. It listens when the constructor returns, and answers after `start`.

    Args:
        section: section of the configuration that has `host` and `port`, for errors.
        host: address; loopback: plain HTTP, another one: HTTPS with the Server's certificate.
        port: TCP port; 0: a free one.
        credentials: folder with the certificate.

    Raises:
        CredentialsError: the certificate is missing or damaged.
        NetworkError: the address or port cannot be had.

    Attributes:
        port: that it listens on.
        url: its address, for display.
    """

    def __init__(self, section: str, host: str, port: int, credentials: Path) -> None:
        self._context = None if is_loopback(host) else https_context(credentials, section)
        self._certificate = Certificate(credentials, self._context)
        self._sockets = listening_sockets(host, port, section)
        self.port = int(self._sockets[0].getsockname()[1])
        self.url = url_of(host, self.port)
        if self._context is not None:
            self._certificate.warn_of_names(self.url)
        self._uvicorn: uvicorn.Server | None = None
        self._connections = Connections(0)
        self._stopping = False
        self._tasks: list[asyncio.Task[None]] = []

    def load(self, app: ASGIApp, *, max_connections: int, ws_max_bytes: int = 0) -> None:
        """Take the application to serve.

        Args:
            app: answers requests.
            max_connections: maximum number of HTTP connections.
            ws_max_bytes: maximum size of a message of a WebSocket; 0: no WebSockets.
        """
        self._connections = Connections(max_connections)
        settings = uvicorn.Config(
            app,
            http=self._connections.protocol(),
            ws=LimitedWebSocket if ws_max_bytes else "none",
            ws_max_size=ws_max_bytes,
            ws_per_message_deflate=False,  # costs more time and memory than the bytes of small messages
            timeout_keep_alive=KEEP_ALIVE_S,
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=int(END_S),
        )
        settings.load()
        settings.ssl = self._context
        self._uvicorn = uvicorn.Server(settings)

    def close_sockets(self) -> None:
        """Close the sockets of a server that was never started."""
        for one in self._sockets:
            one.close()

    async def start(self, each_second: Callable[[], None] = lambda: None) -> None:
        """Begin to answer.

        Args:
            each_second: called in the event loop; its error ends the server.
        """
        server = self._uvicorn
        assert server is not None, "load an application first"
        server.should_exit = server.should_exit or self._stopping
        self._tasks = [asyncio.create_task(server.serve(sockets=[] if self._context else self._sockets))]
        while not server.started and not self._tasks[0].done():
            await asyncio.sleep(0.01)
        self._tasks.append(asyncio.create_task(self._tick(each_second)))
        if self._context is not None:
            self._tasks.append(asyncio.create_task(TlsListener(server, self._sockets, self._context).serve()))

    async def wait(self) -> None:
        """Return when the server has ended; end it if one of its tasks has failed, and raise that failure."""
        # None ends by itself, except for uvicorn after `stop`.
        await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
        self.stop()
        await self._tasks[0]
        for task in self._tasks[1:]:
            if task.done():
                await task

    async def _tick(self, each_second: Callable[[], None]) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            self._connections.expire(asyncio.get_running_loop().time())
            each_second()
            self._certificate.renew()

    def stop(self) -> None:
        """Request the end; safe from another thread."""
        self._stopping = True
        if self._uvicorn is not None:
            self._uvicorn.should_exit = True

    async def close(self) -> None:
        """Cancel the tasks beside uvicorn."""
        for task in self._tasks[1:]:
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(*self._tasks[1:], return_exceptions=True)
