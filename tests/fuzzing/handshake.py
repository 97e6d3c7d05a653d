"""What strangers send before they are anybody: bytes in TLS's place, and credentials that are none."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
import ssl
from collections.abc import Callable, Iterator
from typing import Any, cast

import msgspec

from tests.fuzzing.files import scratch
from tests.fuzzing.mutation import Mutator
from tests.fuzzing.target import Target
from tmrl_core.errors import CredentialsError
from tmrl_core.networking.protocol.connection import Connection
from tmrl_core.networking.relay import Relay, RelaySettings
from tmrl_core.networking.security import credentials, tls_contexts
from tmrl_core.networking.security.handshakes import explain, identity_of
from tmrl_core.networking.security.tls_contexts import read_bundle, server_context
from tmrl_core.networking.transports.tls import TlsTransport


class _Loop:
    """Keeps what is to be called until it is told to; time stands still."""

    def __init__(self) -> None:
        self.ready: list[tuple[Callable[..., object], tuple[Any, ...]]] = []
        self.accept: Callable[[], Any] = object
        self.now = 0.0

    def time(self) -> float:
        return self.now

    async def create_server(self, protocol_factory: Any, *args: Any, **kwargs: Any) -> Any:
        self.accept = protocol_factory
        kwargs["sock"].close()

    def call_soon(self, callback: Any, *args: Any, context: Any = None) -> Any:
        self.ready.append((callback, args))

    def call_later(self, delay: float, callback: Any, *args: Any, context: Any = None) -> Any:
        return asyncio.TimerHandle(delay, callback, args, cast(asyncio.AbstractEventLoop, self))

    call_at = call_later

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=cast(asyncio.AbstractEventLoop, self))

    def get_debug(self) -> bool:
        return False

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        pass

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        raise AssertionError(str(context))

    def run_all(self) -> None:
        while self.ready:
            callback, args = self.ready.pop(0)
            callback(*args)


class _Socket(asyncio.Transport):
    """Keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written = bytearray()
        self.gone = False
        self.protocol: Any = None

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self.protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        return cast(asyncio.BaseProtocol, self.protocol)

    def is_closing(self) -> bool:
        return self.gone

    def close(self) -> None:
        self.gone = True

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("192.0.2.7", 5) if name == "peername" else default

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def write(self, data: Any) -> None:
        self.written += data

    def writelines(self, list_of_data: Any) -> None:
        for data in list_of_data:
            self.written += data

    def pause_reading(self) -> None:
        """Go on: when a Server pauses is a matter of processor time, on which no case may depend."""

    def resume_reading(self) -> None:
        pass

    def write_eof(self) -> None:
        pass

    def abort(self) -> None:
        self.gone = True


class Handshakes(Target):
    """A Server's end of a socket that has just been accepted."""

    name = "handshake"
    allowed = (CredentialsError,)

    def __init__(self) -> None:
        logging.getLogger("tmrl_core.networking").setLevel(logging.ERROR)
        self._folder = scratch()
        keys = self._folder / "keys"
        credentials.create(keys, ["localhost"])
        self._bundle = credentials.bundle(keys, "worker", "robot7", self._folder).read_bytes()
        self._context = server_context(keys)[0]
        self._client = tls_contexts.client_context(keys, "worker")
        self._hello = self._client_hello()
        self._loop = _Loop()
        self._transport = TlsTransport(
            self._context,
            identity_of=identity_of,
            explain=lambda exc: explain(cast(OSError, exc), host="here", side="server"),
        )
        self._connection: Connection = Relay().connection()
        with self._running():
            serving = self._transport.serve("127.0.0.1", 0, lambda: self._connection)
            with contextlib.suppress(StopIteration):
                serving.send(None)

    def _client_hello(self) -> bytes:
        out = ssl.MemoryBIO()
        client = self._client.wrap_bio(ssl.MemoryBIO(), out, server_hostname="localhost")
        with contextlib.suppress(ssl.SSLWantReadError):
            client.do_handshake()
        return out.read()

    def close(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)

    def make(self, mutator: Mutator) -> bytes:
        kind = mutator.random()
        if kind < 0.2:
            return b"b" + mutator.mutate(self._bundle)
        if kind < 0.3:
            given = msgspec.json.decode(self._bundle)
            given[mutator.pick([*given, "token_hashes"])] = mutator.value()
            try:
                return b"b" + msgspec.json.encode(given)
            except (msgspec.MsgspecError, OverflowError, TypeError):
                return b"b"
        if kind < 0.4:
            return b"u" + mutator.mutate(b"urn:tmrl-core:worker:robot7%20x")
        seed = mutator.bytes(1)
        if kind < 0.5:
            return b"t" + seed + mutator.bytes(mutator.below(600))
        if kind < 0.55:
            other: bytes = mutator.pick(
                (b"GET / HTTP/1.1\r\n\r\n", b"SSH-2.0-x\r\n", bytes(2000), b"\x16\x03\x01\xff\xff")
            )
            return b"t" + seed + other
        if kind < 0.65:
            # The handshake goes on as it should, and what follows it does not.
            return b"f" + seed + mutator.bytes(mutator.below(200))
        return b"t" + seed + mutator.mutate(self._hello)

    def run(self, case: bytes) -> None:
        kind, data = case[:1], case[1:]
        if kind == b"b":
            file = self._folder / "stranger.bundle"
            file.write_bytes(data)
            file.chmod(0o600)
            content = read_bundle(file)
            assert len(content.key) < 20 or content.key not in repr(content)
        elif kind == b"u":
            identity = identity_of({"subjectAltName": (("URI", data.decode("latin-1")),)})
            assert identity is None or len(identity) == 2
        else:
            self._talk(kind == b"f", data[:1], data[1:])

    def _talk(self, finish: bool, seed: bytes, data: bytes) -> None:
        loop = self._loop
        loop.now += 60.0  # who came before is forgotten
        relay = Relay(RelaySettings())
        connection = self._connection = relay.connection()
        sock = _Socket()
        sock.protocol = loop.accept()
        sock.protocol.connection_made(sock)
        loop.run_all()
        driver = sock.protocol  # who lets a peer in may hand the socket on
        if finish:
            data = self._finish(driver, sock) + data
        at = 0
        step = (seed[0] if seed else 255) * 8 + 1
        # asyncio does not say more once the socket was aborted; the driver reads on until then.
        while at < len(data) and not sock.gone:
            view = driver.get_buffer(-1)
            n = min(step, len(view), len(data) - at)
            view[:n] = data[at : at + n]
            at += n
            driver.buffer_updated(n)
            loop.run_all()
        driver.eof_received()
        loop.run_all()
        driver.connection_lost(None)
        loop.run_all()
        assert connection.state == "greeting"
        assert connection.closing
        assert not relay.workers
        assert relay.trainer is None
        assert len(sock.written) < 16_384
        if driver.ready.done() and not driver.ready.cancelled():
            driver.ready.exception()

    @contextlib.contextmanager
    def _running(self) -> Iterator[None]:
        """The loop that `asyncio.get_running_loop` finds."""
        before = asyncio._get_running_loop()
        asyncio._set_running_loop(cast(asyncio.AbstractEventLoop, self._loop))
        try:
            yield
        finally:
            asyncio._set_running_loop(before)

    def _finish(self, driver: Any, sock: _Socket) -> bytes:
        """Go through a handshake as a client; returns what it has not sent yet."""
        into, out = ssl.MemoryBIO(), ssl.MemoryBIO()
        client = self._client.wrap_bio(into, out, server_hostname="localhost")
        for _ in range(4):
            try:
                client.do_handshake()
            except ssl.SSLWantReadError:
                data = out.read()
                view = driver.get_buffer(-1)
                view[: len(data)] = data
                driver.buffer_updated(len(data))
                self._loop.run_all()
                into.write(bytes(sock.written))
                sock.written.clear()
            else:
                break
        return out.read()

    def limit_bytes(self, case: bytes) -> int:
        # The buffer of a thread (256 kB) is made once, in one case or another.
        return 200 * len(case) + (1 << 20)
