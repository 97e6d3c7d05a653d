"""HTTP connections and WebSockets with limits that uvicorn does not have."""

# Theory of operation
#
# uvicorn limits neither the number of connections of one address, nor the time until a request is complete, nor TLS
# handshakes in progress, nor frames besides messages of a WebSocket. Each would let one stranger without an account
# take all connections, memory or processor time of a server. This file adds these limits and nothing else: it knows
# no session and no route.
#
# Limits.
#
# - Number: at most the given maximum, and half of it for one address, except for this machine, where a reverse proxy
#   may run. Further connections are aborted when they are made.
# - Time: a connection is aborted if its first request does not begin, or a request is not complete, within `REQUEST_S`.
#   `expire` looks once a second; a timer for each connection would cost more than the check of all.
# - Heads: the bytes of a request besides its body (request line, headers, sizes of chunks, trailers) are at most
#   `MAX_HEAD_BYTES`. The parser does not count them, so they are counted here: the bytes received minus the bytes of
#   the body that the parser handed out. Example: a part of 1,000 bytes with 900 bytes of body adds 100.
# - TLS: uvicorn's listeners hand over a connection after its handshake and limit none before it. With HTTPS a server
#   therefore accepts by itself (`TlsListener`): at most `MAX_HANDSHAKES` at once, `HANDSHAKE_S` each. Then the oldest
#   of the address with the most is ended: honest handshakes take milliseconds, so the oldest of a flood is one of the
#   flood.
# - Upgrades: Java's HttpClient and `curl --http2` ask for HTTP/2 (h2c) in their first request. A server may answer it
#   as HTTP/1.1, but httptools skips the body of such a request. Its head is therefore parsed again without the wish,
#   and the body after it (https://github.com/Kludex/uvicorn/issues/2722).
# - WebSockets: bytes are parsed in parts of `_PART_BYTES`, and between two parts the event loop serves others.
#   Fragments, pings and pongs have a rate, since they pass no limit of messages.
#
# Order. `LimitedProtocol` and `LimitedWebSocket` override methods that uvicorn calls in the order of its parser:
# connection_made, data_received with on_message_begin, on_header, on_headers_complete, on_body and on_message_complete
# within it, connection_lost. `waits_since` is set when a request begins and None once it is complete: a slow answer is
# not the client's fault.
#
# uvicorn's classes are internals, so its minor version is pinned. Weighed and kept: a proxy before the server would
# set the same limits, but the server must hold them without one, since a laptop runs it. A server of our own over the
# parser alone would be longer than these subclasses.

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections import Counter
from collections.abc import Sequence
from typing import ClassVar

import httptools
import uvicorn
from uvicorn._types import ASGI3Application, ASGIReceiveEvent
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import Frame

from tmrl_core.config.sections import is_loopback
from tmrl_core.networking.security.admission import network_of
from tmrl_core.networking.security.refusal_log import Refusals
from tmrl_core.token_bucket import TokenBucket

REQUEST_S = 60.0
"""Time in seconds within which a request must be complete."""
MAX_HEAD_BYTES = 65_536
MAX_HEADERS = 200
MAX_PIPELINED = 16
"""Maximum number of requests that a connection sends before the answer to an earlier one."""
HANDSHAKE_S = 10.0
"""Time in seconds within which a TLS handshake must be complete."""
MAX_HANDSHAKES = 256
"""Maximum number of TLS handshakes that are not complete; each takes about 50 kB."""
_UPGRADE_HEADERS = (b"upgrade", b"http2-settings")
_PART_BYTES = 2048
"""Bytes of a WebSocket that are parsed at once: a frame may have only 6, and takes longer than other bytes."""
FRAMES_AT_ONCE = 2000
FRAMES_PER_S = 10.0
"""Rate of a WebSocket's frames that are no message after a burst. Beyond it, the connection is closed."""


class Connections:
    """The HTTP connections of one server. WebSockets are not among them.

    Args:
        maximum: number of connections.
    """

    def __init__(self, maximum: int) -> None:
        self._maximum = maximum
        self.refusals = Refusals()
        self._open: set[LimitedProtocol] = set()
        self._of_network: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._open)

    def protocol(self) -> type[LimitedProtocol]:
        """Return the class that uvicorn makes the protocol of each connection of."""

        class Protocol(LimitedProtocol):
            registry = self

        return Protocol

    def add(self, protocol: LimitedProtocol) -> bool:
        """Add a connection; return False if it is one too many."""
        of_network = self._of_network[protocol.network]
        if len(self._open) >= self._maximum or (of_network >= self._maximum // 2 and not protocol.is_local):
            return False
        self._open.add(protocol)
        self._of_network[protocol.network] += 1
        return True

    def remove(self, protocol: LimitedProtocol) -> None:
        """Remove a connection, if it is there."""
        if protocol in self._open:
            self._open.remove(protocol)
            self._of_network[protocol.network] -= 1
            if not self._of_network[protocol.network]:
                del self._of_network[protocol.network]

    def expire(self, now: float) -> None:
        """Close connections that have waited for a request for too long.

        Args:
            now: time of the event loop.
        """
        for protocol in list(self._open):
            if protocol.waits_since is not None and now - protocol.waits_since > REQUEST_S:
                protocol.transport.abort()


class TlsListener:
    """Accepts TLS connections for uvicorn, whose own listeners limit no handshakes.

    Beyond `MAX_HANDSHAKES`, the oldest of the address with the most is closed: honest ones take milliseconds.

    Args:
        server: serves the connections; started without sockets.
        sockets: that listen.
        context: of TLS.
    """

    def __init__(self, server: uvicorn.Server, sockets: Sequence[socket.socket], context: ssl.SSLContext) -> None:
        self._server = server
        self._sockets = sockets
        self._context = context
        self._handshakes: dict[asyncio.Task[None], str] = {}  # with the network of each, the oldest first

    async def serve(self) -> None:
        """Accept connections until the task is cancelled; close the sockets then."""
        try:
            await asyncio.gather(*map(self._accept, self._sockets))
        finally:
            for task in self._handshakes:
                task.cancel()
            for listening in self._sockets:
                listening.close()

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, address = await loop.sock_accept(listening)
            except OSError:  # too many open files, or the client has gone
                await asyncio.sleep(0.1)
                continue
            if self._server.should_exit:
                connection.close()
                continue
            if len(self._handshakes) >= MAX_HANDSHAKES:
                ((most, _),) = Counter(self._handshakes.values()).most_common(1)
                oldest = next(task for task, network in self._handshakes.items() if network == most)
                del self._handshakes[oldest]
                oldest.cancel()
            task = asyncio.create_task(self._shake_hands(connection))
            self._handshakes[task] = network_of(f"{address[0]}:{address[1]}")
            task.add_done_callback(lambda task: self._handshakes.pop(task, None))
            await asyncio.sleep(0)  # it begins, so that its end closes the connection

    async def _shake_hands(self, connection: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        with contextlib.suppress(OSError, asyncio.TimeoutError):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await loop.connect_accepted_socket(
                self._protocol, connection, ssl=self._context, ssl_handshake_timeout=HANDSHAKE_S
            )

    def _protocol(self) -> asyncio.Protocol:
        server = self._server
        kind = server.config.http_protocol_class
        return kind(  # type: ignore[call-arg]
            config=server.config, server_state=server.server_state, app_state=server.lifespan.state
        )


class LimitedProtocol(HttpToolsProtocol):
    """One connection.

    Attributes:
        network: address of the client, as `admission.network_of` returns it.
        is_local: the client is this machine.
        waits_since: beginning of the request that is not complete, or of the connection; None: no request is awaited.
    """

    registry: ClassVar[Connections]

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Refuse the connection if there are too many."""
        super().connection_made(transport)
        host, port = self.client or ("", 0)
        self.network, self.is_local = network_of(f"{host}:{port}"), is_loopback(host)
        self.waits_since: float | None = self.loop.time()
        self._overhead = self._body = 0
        self._answering: RequestResponseCycle | None = None
        self._declines = False
        if not self.registry.add(self):
            transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self.registry.remove(self)
        self._abandon()
        super().connection_lost(exc)

    def _abandon(self) -> None:
        """Tell the app that nobody reads its answer. uvicorn tells only the last of several requests."""
        if self._answering is not None and not self._answering.response_complete:
            self._answering.disconnected = True
            self._answering.message_event.set()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._answering = cycle
        super()._start_asgi_task(cycle, app)

    def data_received(self, data: bytes) -> None:
        """Count the bytes that are not the body of a request."""
        self._body = 0
        self._unset_keepalive_if_required()
        self._parse(data)
        self._overhead += len(data) - self._body
        if self._overhead > MAX_HEAD_BYTES and self.waits_since is not None and not self.transport.is_closing():
            self.send_400_response("The head of the request is too large.")

    def _parse(self, data: bytes) -> None:
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserError:
            self.send_400_response("Invalid HTTP, or too many headers or requests at once.")
        except httptools.HttpParserUpgrade as exc:
            if self._should_upgrade():
                self.handle_websocket_upgrade()
            elif self._declines:
                self._parse(self._head_without_upgrade() + data[exc.args[0] :])

    def _head_without_upgrade(self) -> bytes:
        """Return the head of the request that was just read, as that of an ordinary one."""
        lines = [b"%s %s HTTP/%s" % (self.parser.get_method(), self.url, self.parser.get_http_version().encode())]
        for name, value in self.headers:
            if name == b"connection":
                value = b",".join(word for word in value.split(b",") if word.strip().lower() not in _UPGRADE_HEADERS)
            if name not in _UPGRADE_HEADERS:
                lines.append(b"%s: %s" % (name, value))
        return b"\r\n".join([*lines, b"", b""])

    def handle_websocket_upgrade(self) -> None:
        """Hand the connection over to the protocol of WebSockets."""
        self.registry.remove(self)
        self.waits_since = None
        super().handle_websocket_upgrade()

    def send_400_response(self, msg: str) -> None:
        """Answer with a JSON object, as all refusals are, and close the connection."""
        self.registry.refusals("%s:%s" % (self.client or ("", 0)), msg)
        self._abandon()
        body = b'{"error":"%s"}' % msg.encode()
        head = b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\nconnection: close\r\n"
        self.transport.write(head + b"content-length: %d\r\n\r\n" % len(body) + body)
        self.transport.close()

    def on_message_begin(self) -> None:
        """Begin a request."""
        self.waits_since, self._overhead = self.loop.time(), 0
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header. An error ends the parsing."""
        if len(self.headers) >= MAX_HEADERS:
            raise ValueError("too many headers")
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Begin to answer, or wait for earlier answers. An error ends the parsing."""
        if len(self.pipeline) >= MAX_PIPELINED:
            raise ValueError("too many requests at once")
        # Of a request for another protocol, the parser skips the body. `_parse` then lets it begin again.
        self._declines = self.parser.should_upgrade() and self._get_upgrade() is not None and not self._should_upgrade()
        if not self._declines:
            super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Take a part of the body."""
        self._body += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        """End a request."""
        if not self._declines:
            self.waits_since = None
            super().on_message_complete()


class LimitedWebSocket(WebSocketsSansIOProtocol):
    """One WebSocket. Parsing its bytes in small parts, it never delays other connections for long."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin without frames."""
        super().connection_made(transport)
        self._rest = bytearray()
        self._frames = TokenBucket(FRAMES_PER_S, FRAMES_AT_ONCE)

    def data_received(self, data: bytes) -> None:
        """Parse a small part at once, and more of them in turn with other connections."""
        if len(data) <= _PART_BYTES and not self._rest:
            super().data_received(data)
            return
        waits = bool(self._rest)
        self._rest += data
        self.transport.pause_reading()
        if not waits:
            self._parse()

    def _parse(self) -> None:
        if self.transport.is_closing():
            return
        part = bytes(self._rest[:_PART_BYTES])
        del self._rest[:_PART_BYTES]
        super().data_received(part)
        if not self.read_paused:  # otherwise a message waits for the app
            self._go_on()

    def _go_on(self) -> None:
        if self._rest:
            self.loop.call_soon(self._parse)
        else:
            self.transport.resume_reading()

    async def receive(self) -> ASGIReceiveEvent:
        """Return the next message, and parse on after the last one."""
        event = await self.queue.get()
        if self.read_paused and self.queue.empty():
            self.read_paused = False
            self._go_on()
        return event

    def handle_cont(self, event: Frame) -> None:
        """Take a fragment."""
        if self._admits_frame():
            super().handle_cont(event)

    def handle_ping(self) -> None:
        """Answer a ping."""
        if self._admits_frame():
            super().handle_ping()

    def handle_pong(self, event: Frame) -> None:
        """Take the answer to a ping."""
        if self._admits_frame():
            super().handle_pong(event)

    def _admits_frame(self) -> bool:
        if self.transport.is_closing():
            return False
        if self._frames.take(self.loop.time()):
            return True
        self.conn.fail(1008, "too many fragments, pings or pongs")
        self.handle_parser_exception()
        return False

    def send_receive_event_to_app(self) -> None:
        """Hand a message over. One that is not UTF-8 closes the connection, without a traceback in the log."""
        if self.curr_msg_data_type == "text":
            try:
                b"".join(self.frames).decode()
            except UnicodeDecodeError:
                self.conn.fail(1007, "invalid UTF-8")
                self.handle_parser_exception()
                return
        super().send_receive_event_to_app()
