"""Parent's side of an I/O process of the transport `tlspyo`: start, communication and end.

The process connects back to a local port, as tlspyo's processes do. The port is open only until then, so that several
roles on one machine may be configured with the same one. A client of that port must first show a number that only the
child received, on its standard input, together with the password.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import importlib.metadata
import importlib.util
import json
import secrets
import socket
import subprocess
import sys
from collections.abc import Callable
from typing import Any, cast

import msgspec

from tmrl_core.errors import ConfigError, MissingExtraError, NetworkError
from tmrl_core.networking.transports.tlspyo.link import MAX_MESSAGE_BYTES

OnMessage = Callable[[int, str, Any], None]
"""Called with a message's number, command and content."""

_BOOT = (
    "import sys, json; settings = json.loads(sys.stdin.buffer.readline()); sys.path[:] = settings.pop('path'); "
    "from tmrl_core.networking.transports.tlspyo.io_process import main; main(settings)"
)
START_S = 20.0
"""Time limit for the start of a process; on a small machine, importing Twisted alone takes seconds."""
_PORT_POLL_S = 0.05
_HIGH_WATER_BYTES = 262_144
_NONCE_LIMIT_BYTES = 1_024
_VERSIONS = "0.3."


def check_installed() -> None:
    """Check that tlspyo is installed, without importing it.

    Raises:
        MissingExtraError: it is not installed.
        ConfigError: this transport does not support its version.
    """
    if importlib.util.find_spec("tlspyo") is None:
        raise MissingExtraError("tlspyo", "tlspyo", "network.transport: tlspyo")
    found = importlib.metadata.version("tlspyo")
    if not found.startswith(_VERSIONS):
        raise ConfigError(
            f"network.transport: tlspyo works with tlspyo {_VERSIONS}x, and {found} is installed. "
            "Install it with `pip install 'tmrl_core[tlspyo]'`, or use the transport tls."
        )


class IoProcess:
    """One I/O process and the connection to it. Not thread-safe: only the event loop's thread may use it.

    Args:
        settings: settings of the process, including `header_size`.
        on_message: called with each message from the process.
        on_lost: called once when the connection to the process is closed, by either side.
        on_writable: called when the process accepts data again after `full` was true.
        read_bytes: maximum number of bytes read from the connection at a time.
    """

    def __init__(
        self,
        settings: dict[str, Any],
        *,
        on_message: OnMessage,
        on_lost: Callable[[], None],
        on_writable: Callable[[], None],
        read_bytes: int,
    ) -> None:
        self.full = False
        self._settings = settings
        self._header_size: int = settings["header_size"]
        self._on_message = on_message
        self._on_lost = on_lost
        self._on_writable = on_writable
        self._read_bytes = read_bytes
        self._process: subprocess.Popen[bytes] | None = None
        self._transport: asyncio.Transport | None = None
        self._nonce = secrets.token_hex(16)
        self._arrived: asyncio.Future[None] | None = None
        self._lost = False

    async def start(self, local_port: int, key: str, start_s: float) -> None:
        """Start the process and wait until it has connected.

        Args:
            local_port: port that it connects to; 0: a free port.
            key: name of that port in the configuration, for the error.
            start_s: time limit, including the wait until the port is free.

        Raises:
            NetworkError: the port stays in use, or the process does not start.
        """
        loop = asyncio.get_running_loop()
        self._arrived = loop.create_future()
        deadline = loop.time() + start_s
        listening = await _listen(local_port, key, deadline)
        port = listening.getsockname()[1]
        server = await loop.create_server(lambda: _LocalEnd(self), sock=listening)
        try:
            self._launch({**self._settings, "local_port": port, "nonce": self._nonce, "path": sys.path})
            while not self._arrived.done():
                left = deadline - loop.time()
                if left <= 0 or self._ended_early():
                    what = f"did not start within {start_s:g} s" if left <= 0 else "has ended while it started"
                    raise NetworkError(f"tlspyo's I/O process {what}; its messages are on this one's standard error")
                # Polled, because not every event loop reports the end of a process.
                await asyncio.wait([self._arrived], timeout=min(left, 0.2))
        except BaseException:
            self.kill()
            raise
        finally:
            server.close()

    def _launch(self, settings: dict[str, Any]) -> None:
        try:
            # Isolated: the child finds its modules where this process does, independent of its working folder.
            self._process = subprocess.Popen([sys.executable, "-I", "-c", _BOOT], stdin=subprocess.PIPE)
        except OSError as exc:
            raise NetworkError(f"cannot start tlspyo's I/O process: {exc.strerror or exc}") from exc
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):  # the process has ended already, which the next check finds
            # The pipe stays open. The child ends when it closes with this process.
            self._process.stdin.write(json.dumps(settings).encode() + b"\n")
            self._process.stdin.flush()

    def _ended_early(self) -> bool:
        return self._process is None or self._process.poll() is not None

    def send(self, command: str, number: int, content: Any = None) -> None:
        """Send the process a message; never block."""
        if self._transport is not None:
            body = msgspec.msgpack.encode((command, number, content))
            self._transport.writelines((b"%-*d" % (self._header_size, len(body)), body))

    def kill(self) -> None:
        """Kill the process. `on_lost` is called if it had started."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            if process.stdin is not None:
                with contextlib.suppress(OSError):
                    process.stdin.close()
        if self._transport is not None:
            self._transport.abort()

    # --- called by the local connection ---

    def is_child(self, number: int, command: str, content: Any) -> bool:
        """Return True if the first message of a connection proves that it comes from the child."""
        return (
            command == "NONCE"
            and isinstance(content, str)
            and self._transport is None
            and secrets.compare_digest(content.encode(), self._nonce.encode())
        )

    def attach(self, transport: asyncio.Transport) -> None:
        """Accept the child's connection."""
        self._transport = transport
        transport.set_write_buffer_limits(high=_HIGH_WATER_BYTES)
        if self._arrived is not None and not self._arrived.done():
            self._arrived.set_result(None)

    def message(self, number: int, command: str, content: Any) -> None:
        """Handle a message of the child."""
        if not self._lost:
            self._on_message(number, command, content)

    def set_full(self, full: bool) -> None:
        """Record whether sent data waits in this process's memory."""
        self.full = full
        if not full and not self._lost:
            self._on_writable()

    def detach(self) -> None:
        """Handle the end of the connection to the child."""
        if not self._lost:
            self._lost = True
            self._transport = None
            self.kill()
            self._on_lost()


class _LocalEnd(asyncio.BufferedProtocol):
    """This process's end of the local connection: an ASCII length, then MessagePack."""

    def __init__(self, owner: IoProcess) -> None:
        self._owner = owner
        self._header_size: int = owner._header_size
        # Space for the longest message and for one read after it.
        self._buffer = bytearray(2 * MAX_MESSAGE_BYTES + self._header_size)
        self._view = memoryview(self._buffer)
        self._end = 0
        self._known = False
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transport does not inherit from asyncio's class
        sock = transport.get_extra_info("socket")
        if sock is not None:
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._view[self._end : self._end + self._owner._read_bytes]

    def buffer_updated(self, nbytes: int) -> None:
        assert self._transport is not None
        end = self._end + nbytes
        start = 0
        size = self._header_size
        try:
            while end - start >= size:
                length = int(self._buffer[start : start + size])
                if not 0 <= length <= (MAX_MESSAGE_BYTES if self._known else _NONCE_LIMIT_BYTES):
                    raise ValueError("too long")
                if end - start < size + length:
                    break
                body = self._view[start + size : start + size + length]
                number, command, content = msgspec.msgpack.decode(body)
                start += size + length
                if self._known:
                    self._owner.message(number, command, content)
                elif self._owner.is_child(number, command, content):
                    self._known = True
                    self._owner.attach(self._transport)
                else:
                    raise ValueError("another process than the one that was started")
        except (ValueError, TypeError, msgspec.MsgspecError):
            # The child never sends this, so it must come from another process, whose data is not accepted.
            self._transport.abort()
            return
        if start:
            self._buffer[: end - start] = self._buffer[start:end]
        self._end = end - start

    def pause_writing(self) -> None:
        self._owner.set_full(True)

    def resume_writing(self) -> None:
        self._owner.set_full(False)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._known:
            self._owner.detach()


async def _listen(port: int, key: str, deadline: float) -> socket.socket:
    """Return a listening socket on this machine's `port`. Wait while another role holds the port to start its child."""
    loop = asyncio.get_running_loop()
    while True:
        sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            if sys.platform != "win32":
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind(("127.0.0.1", port))
            sock.listen(1)
            sock.setblocking(False)
        except OSError as exc:
            sock.close()
            if exc.errno != errno.EADDRINUSE or loop.time() >= deadline:
                raise NetworkError(
                    f"cannot listen on local port {port}, which tlspyo's I/O process would call: "
                    f"{exc.strerror or exc}. Stop that process, or set another {key}."
                ) from exc
            await asyncio.sleep(_PORT_POLL_S)
        else:
            return sock
