"""Transport `tlspyo`, for users who run tlspyo already: its protocol and credentials with this project's relay."""

# Theory of operation
#
# This file carries links over tlspyo's messages. It imports neither tlspyo nor Twisted: the reactor runs once in a
# process, so each Relay and each client's endpoint is a process of its own (`io_process.py`), started and watched by
# `process.py`. This file knows the commands that travel between both, and drives a sans-I/O `Connection` with them.
#
#     worker -- local TCP -- its I/O process == tlspyo over TLS == the Relay's I/O process -- local TCP -- Server
#
# A peer joins its own group, `p.` and 128 random bits that are new for each link, and broadcasts to the group `hub`,
# which is the Server; the Server broadcasts to the peer's group. The broadcasts carry numbered pieces of at most 64 kB
# (`link.py`). The hub lives in the Relay's process and is no endpoint: no other peer can join it and listen, the sender
# of a message is known by its connection, and two hops of TLS are saved.
#
# Commands, each with a number (the peer's, 0 for none) and content. To the process: OBJ (a piece), CLOSE (when all is
# sent), ABORT, DEAF (accept nobody). From it: LISTENING or FAILED once, then JOIN, OBJ, GONE and REFUSED at the Relay;
# OBJ and LOST at a client.
#
# The order at a client: the port is tried with a plain connection, because an unnecessary start of a process would cost
# a small machine seconds; the process starts, connects back to the local port, then to the Relay; the Server's piece
# OPEN ends `dial`; END from both sides ends the link.
#
# Flow control. tlspyo has none, so `LinkPieces` grants a window of 2 MiB for each link and direction. A slow reader
# then costs at most that in the I/O processes. A holder of the password that ignores the window can overfill the
# Relay's process; this transport does not protect against its own members.
#
# What fails. A Relay process that dies ends all links and is started again on the same port, after 0.2 s, then at
# growing intervals up to 15 s: clients connect again as after a broken network. A client's process that dies ends its
# link, and the client's own reconnection starts the next one. A wrong password or certificate is a HandshakeError, with
# the same words as in the transport `tls`. A gap in the numbers of pieces ends the link; delivery resumes on a new one.
#
# Limits: every holder of the password can act in any role, and names are not proved. Untried on Windows.

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from abc import abstractmethod
from collections.abc import Callable
from typing import Any, Literal

import msgspec

from tmrl_core.errors import (
    ConfigError,
    CredentialsError,
    HandshakeError,
    NetworkError,
    PortInUseError,
    RemoteProtocolError,
)
from tmrl_core.networking.protocol.connection import Connection, Identity
from tmrl_core.networking.protocol.framing import spare
from tmrl_core.networking.protocol.messages import plain
from tmrl_core.networking.security.admission import AdmissionSettings
from tmrl_core.networking.transports.base import LINGER_S, Driver, Listener, Transport
from tmrl_core.networking.transports.port_holder import port_in_use_text
from tmrl_core.networking.transports.tlspyo.link import MAX_MESSAGE_BYTES, LinkPieces, PieceKind, piece_bytes
from tmrl_core.networking.transports.tlspyo.process import START_S, IoProcess, check_installed

logger = logging.getLogger(__name__)

_RESTART_MIN_S = 0.2
_RESTART_MAX_S = 15.0
_HEADER_SIZES = range(6, 257)
_PASSWORD_BYTES = 1_024


class TlspyoTransport(Transport):
    """Links over tlspyo.

    Args:
        password: tlspyo's password, the same for the Server and all clients.
        certificate: `certificate.pem`, as PEM: the Server's certificate, and the only one that clients trust. None:
            plain TCP.
        key: `key.pem`, as PEM, to `serve`.
        hostname: name in that certificate that clients expect.
        local_port: port on which an I/O process connects to its parent; 0: a free one.
        header_size: bytes of the header of tlspyo's messages; the same for the Server and all clients.
        max_buf_len: maximum number of bytes read at a time from the I/O process.
        key_of_local_port: name of `local_port` in the configuration.
        start_s: time limit for starting an I/O process.
        admission: a Server's limits for unauthenticated connections; None: the defaults.
        on_refused: called with the address and the reason for each client with a wrong password or beyond the limits.

    Raises:
        MissingExtraError: tlspyo is not installed.
        ConfigError: the length of the header or of the password is out of range.
    """

    def __init__(
        self,
        *,
        password: str,
        certificate: str | None = None,
        key: str | None = None,
        hostname: str = "default",
        local_port: int = 0,
        header_size: int = 12,
        max_buf_len: int = 512 << 20,
        key_of_local_port: str = "local_port",
        start_s: float = START_S,
        admission: AdmissionSettings | None = None,
        on_refused: Callable[[str, str], None] = lambda address, reason: None,
    ) -> None:
        check_installed()
        if header_size not in _HEADER_SIZES:
            raise ConfigError(
                f"network.header_size: {header_size} bytes do not hold the length of a message in tlspyo; "
                f"use {_HEADER_SIZES[0]} to {_HEADER_SIZES[-1]} (the same on all machines)"
            )
        if len(password.encode()) > _PASSWORD_BYTES:
            raise ConfigError(f"the password of tlspyo has more than {_PASSWORD_BYTES} bytes; use a shorter one")
        self._password = password
        self._certificate = certificate
        self._key = key
        self.hostname = hostname
        self.local_port = local_port
        self.header_size = header_size
        # The receive buffer has room for one message and one such read (`process.py`).
        self.read_bytes = min(max_buf_len, MAX_MESSAGE_BYTES)
        self.key_of_local_port = key_of_local_port
        self.start_s = start_s
        self._admission = admission or AdmissionSettings()
        self.on_refused = on_refused
        self.piece_bytes = piece_bytes(header_size, password)

    def __repr__(self) -> str:
        return f"TlspyoTransport(tls={self._certificate is not None})"  # leave out the password

    async def serve(self, host: str, port: int, accept: Callable[[], Connection]) -> Listener:
        """Start tlspyo's Relay on `host` (empty: all interfaces) and `port`.

        Raises:
            NetworkError: a port is in use.
            CredentialsError: the certificate or the key is missing or invalid.
        """
        listener = TlspyoListener(self, host, accept)
        await listener.start(port)
        return listener

    async def dial(self, host: str, port: int, connection: Connection, timeout_s: float) -> Driver:
        """Start an endpoint, and wait until the Server has established its link.

        Raises:
            NetworkError: no answer, a port is in use, or the other side is not a Server of this project.
            HandshakeError: the password is wrong, or the certificate differs.
        """
        await _reach(host, port, timeout_s)  # an unnecessary start of a process would cost a small machine seconds
        loop = asyncio.get_running_loop()
        driver = _PeerDriver(connection, loop, self, f"{host} port {port}")
        settings = self.settings(role="peer", host=host, port=port, timeout_s=timeout_s)
        settings |= {"group": f"p.{secrets.token_hex(16)}", "hostname": self.hostname, "certificate": self._certificate}
        await driver.start(settings)
        try:
            await asyncio.wait_for(asyncio.shield(driver.opened), timeout_s)
        except asyncio.TimeoutError as exc:
            driver.abort()
            raise NetworkError(
                f"{host} port {port} did not make a link within {timeout_s:g} s; is it a Server of tmrl_core with "
                "network.transport: tlspyo and the same network.header_size?"
            ) from exc
        except BaseException:
            driver.abort()
            raise
        return driver

    def settings(self, **more: Any) -> dict[str, Any]:
        """Return the settings of every I/O process of this transport."""
        return {
            "password": self._password,
            "header_size": self.header_size,
            "security": "TCP" if self._certificate is None else "TLS",
            **more,
        }

    def relay_settings(self, host: str, port: int) -> dict[str, Any]:
        """Return the settings of the Relay's I/O process."""
        settings = self.settings(role="relay", host=host, port=port, certificate=self._certificate, key=self._key)
        return settings | {"admission": msgspec.structs.asdict(self._admission)}

    def process(
        self, settings: dict[str, Any], on_message: Any, on_lost: Callable[[], None], on_writable: Callable[[], None]
    ) -> IoProcess:
        """Return an I/O process that is not started yet."""
        return IoProcess(
            settings, on_message=on_message, on_lost=on_lost, on_writable=on_writable, read_bytes=self.read_bytes
        )


async def _reach(host: str, port: int, timeout_s: float) -> None:
    """Check that a process listens on the address."""
    try:
        _, writer = await asyncio.wait_for(asyncio.open_connection(host, port), timeout_s)
    except asyncio.TimeoutError as exc:
        raise NetworkError(f"{host} port {port} did not answer within {timeout_s:g} s") from exc
    except OSError as exc:
        raise NetworkError(
            f"cannot reach {host} port {port}: {exc.strerror or exc}. Is the Server running, and does its firewall let "
            "this port through?"
        ) from exc
    writer.transport.abort()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


class _LinkDriver(Driver):
    """One link, at either end; subclasses pass its pieces to the I/O process."""

    def __init__(self, connection: Connection, loop: asyncio.AbstractEventLoop, owner: TlspyoTransport) -> None:
        super().__init__(connection, loop)
        self._pieces = LinkPieces(owner.piece_bytes)
        self._other_ended = False
        self._linger: asyncio.TimerHandle | None = None
        self._broken: NetworkError | None = None

    def arrived(self, message: bytes) -> None:
        """Handle a message of tlspyo for this link."""
        try:
            piece = self._pieces.received(message)
        except RemoteProtocolError as exc:
            self._break(exc)
            return
        if piece is None:
            return  # a repeated message
        kind, content = piece
        if kind == PieceKind.DATA:
            self._feed(content)
            # A report after END would answer a side that no longer reads.
            if self._pieces.report_due and not self._other_ended:
                # Pieces are numbered in the order in which they are made, and the unfinished one was
                # begun earlier.
                self._post_rest()
                self._post(self._pieces.read_report())
        elif kind == PieceKind.END:
            self._other_ended = True
            if self._finishing:
                self._hang_up()
            else:
                self.connection.received(0, self.loop.time())
        elif kind == PieceKind.OPEN:
            self._opened()
        elif kind == PieceKind.REFUSED:
            self._refused(bytes(content[:1_000]).decode(errors="replace"))
        self.wake()

    def _feed(self, content: memoryview) -> None:
        connection = self.connection
        now = self.loop.time()
        while content and not connection.closing:
            view = connection.get_buffer()
            n = min(len(view), len(content))
            view[:n] = content[:n]
            content = content[n:]
            connection.received(n, now)

    def _break(self, reason: NetworkError) -> None:
        """End the link, which can no longer send data."""
        self._broken = reason
        self.connection.closing = True
        self.connection.reason = reason
        self.abort()

    def _writable(self) -> bool:
        return not self._finishing and self._pieces.room and not self._full()

    def _write(self, buffers: list[bytes | bytearray | memoryview]) -> None:
        for piece in self._pieces.data(buffers):
            self._post(piece)
        for buffer in buffers:
            spare(buffer)

    def _pump(self, tick: bool = False) -> None:
        super()._pump(tick)
        self._post_rest()  # data of one loop iteration is sent in as few pieces as possible

    def _post_rest(self) -> None:
        rest = self._pieces.rest()
        if rest is not None:
            self._post(rest)

    def _finish(self) -> None:
        # `_break` has aborted already, and a broken numbering can send no END.
        if self._broken is not None:
            return
        self._post_rest()
        self._post(self._pieces.end())
        if self._other_ended:
            self._hang_up()
        else:
            # The other side reads the last messages, then sends END itself.
            self._linger = self.loop.call_later(LINGER_S, self._hang_up)

    def gone(self, reason: NetworkError | None) -> None:
        """Handle the end of the connection under the link."""
        if self._linger is not None:
            self._linger.cancel()
        if not self.ended.done():
            self._lost(self._broken or reason)

    def _opened(self) -> None:
        raise TypeError("a subclass implements this")

    def _refused(self, text: str) -> None:
        raise TypeError("a subclass implements this")

    @abstractmethod
    def _full(self) -> bool:
        """Return True if the I/O process accepts no more data now."""

    @abstractmethod
    def _post(self, piece: bytes | bytearray) -> None:
        """Pass a piece to the I/O process."""

    @abstractmethod
    def _hang_up(self) -> None:
        """Close the connection under the link once everything is sent."""


class _PeerDriver(_LinkDriver):
    """A client's end, with its own I/O process."""

    def __init__(
        self, connection: Connection, loop: asyncio.AbstractEventLoop, owner: TlspyoTransport, where: str
    ) -> None:
        super().__init__(connection, loop, owner)
        self.opened: asyncio.Future[None] = loop.create_future()
        # Looks at the exception, so that asyncio does not report one that nobody awaits after a timeout.
        self.opened.add_done_callback(lambda future: future.cancelled() or future.exception())
        self._owner = owner
        self._where = where
        self._process: IoProcess | None = None
        self._reason: NetworkError | None = None
        self._flush: asyncio.TimerHandle | None = None

    async def start(self, settings: dict[str, Any]) -> None:
        """Start the I/O process, which then connects."""
        owner = self._owner
        self._process = owner.process(settings, self._on_message, self._process_gone, self.wake)
        await self._process.start(owner.local_port, owner.key_of_local_port, owner.start_s)

    def _on_message(self, number: int, command: str, content: Any) -> None:
        if command == "OBJ":
            self.arrived(content)
        elif command == "LOST":
            self._give_up(self._explain(*content))

    def _opened(self) -> None:
        if not self.opened.done():
            self.opened.set_result(None)
            self.connection.connected(Identity(self._where), self.loop.time())

    def _refused(self, text: str) -> None:
        code, _, reason = text.partition("\n")
        advice = " Set TMRL_CORE_TOKEN, or copy the Server's credentials again." if code == "password" else ""
        about: Literal["password"] | None = "password" if code == "password" else None
        self._give_up(HandshakeError(f"{self._where} refuses this connection: {plain(reason)}.{advice}", about))

    def _give_up(self, reason: NetworkError) -> None:
        if self._reason is None:  # later reasons are consequences of the first
            self._reason = reason
        self.abort()

    def _explain(self, kind: str, text: str) -> NetworkError:
        where = self._where
        if kind == "certificate":
            return HandshakeError(
                f"{where} has another certificate than certificate.pem here ({text}). Copy the Server's credentials "
                "again: python -m tmrl_core --credentials bundle.",
                "certificate",
            )
        if kind == "name":
            return HandshakeError(
                f"the certificate of {where} is for another name than {self._owner.hostname!r}. Set network.hostname "
                "to a name in it; tlspyo's own is 'default'.",
                "certificate",
            )
        if kind == "credentials":
            return HandshakeError(f"certificate.pem does not serve: {text}")
        if kind == "tls":
            return NetworkError(f"{where} does not speak TLS as tlspyo does: {text}")
        if kind == "unreachable":
            return NetworkError(f"cannot reach {where}: {text}")
        return NetworkError(f"the connection to {where} broke: {text}")

    def _full(self) -> bool:
        return not self.connection.started or (self._process is not None and self._process.full)

    def _post(self, piece: bytes | bytearray) -> None:
        if self._process is not None:
            self._process.send("OBJ", 0, piece)

    def _hang_up(self) -> None:
        if self._process is not None and self._flush is None:
            self._process.send("CLOSE", 0)
            self._flush = self.loop.call_later(LINGER_S, self.abort)

    def _process_gone(self) -> None:
        self._process = None
        if self._flush is not None:
            self._flush.cancel()
        # The link ends first: `dial` runs on when `opened` has its result, and must find a connection that is
        # over.
        self.gone(self._reason or NetworkError("tlspyo's I/O process has ended"))
        if not self.opened.done():
            self.opened.set_exception(self._reason or NetworkError("tlspyo's I/O process has ended"))

    def abort(self) -> None:
        """Close immediately."""
        if self._process is not None:
            self._process.kill()


class _HubDriver(_LinkDriver):
    """The Server's end of one peer's link."""

    def __init__(
        self, connection: Connection, loop: asyncio.AbstractEventLoop, listener: TlspyoListener, number: int
    ) -> None:
        super().__init__(connection, loop, listener.owner)
        self._listener = listener
        self._number = number

    def open(self, address: str) -> None:
        """Handle a peer that has joined."""
        self._post(self._pieces.open())
        self.connection.connected(Identity(address), self.loop.time())
        self.wake()

    def _opened(self) -> None:
        self._break(RemoteProtocolError("a peer cannot open a link"))

    def _refused(self, text: str) -> None:
        self._break(RemoteProtocolError("a peer cannot refuse a link"))

    def _full(self) -> bool:
        return self._listener.full

    def _post(self, piece: bytes | bytearray) -> None:
        self._listener.tell("OBJ", self._number, piece)

    def _hang_up(self) -> None:
        self._listener.tell("CLOSE", self._number)

    def abort(self) -> None:
        """Close immediately."""
        self._listener.tell("ABORT", self._number)


class TlspyoListener(Listener):
    """tlspyo's Relay in its I/O process, and the links of all peers."""

    def __init__(self, owner: TlspyoTransport, host: str, accept: Callable[[], Connection]) -> None:
        self.owner = owner
        self._loop = asyncio.get_running_loop()
        self._host = host
        self._accept = accept
        self._asked = self._port = 0
        self._drivers: dict[int, _HubDriver] = {}
        self._process: IoProcess | None = None
        self._listening: asyncio.Future[int] | None = None
        self._closing = False
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._restarting: asyncio.Task[None] | None = None

    @property
    def port(self) -> int:
        """Return the port that tlspyo's Relay listens on."""
        return self._port

    async def start(self, port: int) -> None:
        """Start the Relay and wait until it listens."""
        owner = self.owner
        self._asked = port
        self._listening = self._loop.create_future()
        process = owner.process(
            owner.relay_settings(self._host, port), self._on_message, self._process_gone, self._room
        )
        await process.start(owner.local_port, owner.key_of_local_port, owner.start_s)
        self._process = process
        try:
            self._port = await asyncio.wait_for(self._listening, owner.start_s)
        except asyncio.TimeoutError as exc:
            process.kill()
            raise NetworkError(f"tlspyo's Relay did not listen within {owner.start_s:g} s") from exc
        except BaseException:
            process.kill()
            raise

    def _on_message(self, number: int, command: str, content: Any) -> None:
        if command == "OBJ":
            driver = self._drivers.get(number)
            if driver is not None:
                driver.arrived(content)
        elif command == "JOIN":
            driver = _HubDriver(self._accept(), self._loop, self, number)
            self._drivers[number] = driver
            driver.open(content)
        elif command == "GONE":
            driver = self._drivers.pop(number, None)
            if driver is not None:
                driver.gone(NetworkError("the other side has closed the connection"))
        elif command == "REFUSED":
            self.owner.on_refused(*content)
        elif self._listening is not None and not self._listening.done():
            if command == "LISTENING":
                self._listening.set_result(number)
            elif command == "FAILED":
                self._listening.set_exception(self._explain(*content))

    def _explain(self, kind: str, text: str) -> NetworkError | CredentialsError:
        if kind in ("port", "port in use"):
            error = PortInUseError if kind == "port in use" else NetworkError
            todo = port_in_use_text(self._asked)
            return error(f"cannot listen on {self._host or '*'} port {self._asked}: {text}. {todo}")
        return CredentialsError(f"tlspyo's Relay cannot use certificate.pem and key.pem: {text}")

    @property
    def full(self) -> bool:
        """Return True if the I/O process accepts no more data now."""
        return self._process is None or self._process.full

    def tell(self, command: str, number: int, content: Any = None) -> None:
        """Send the I/O process a message about a peer."""
        if self._process is not None:
            self._process.send(command, number, content)

    def _room(self) -> None:
        for driver in self._drivers.values():
            driver.wake()

    def _process_gone(self) -> None:
        self._process = None
        # Exchanged first, because `gone` may lead to calls that look at the table.
        drivers, self._drivers = self._drivers, {}
        for driver in drivers.values():
            driver.gone(NetworkError("tlspyo's Relay has ended"))
        if self._listening is not None and not self._listening.done():
            self._listening.set_exception(NetworkError("tlspyo's Relay has ended while it started"))
        if self._closing:
            if not self._ended.done():
                self._ended.set_result(None)
        elif self._port and self._restarting is None:
            logger.error("tlspyo's Relay has ended; starting it again")
            self._restarting = self._loop.create_task(self._restart())

    async def _restart(self) -> None:
        delay = _RESTART_MIN_S
        try:
            while True:
                try:
                    await self.start(self._port)
                    return
                except (NetworkError, CredentialsError) as exc:
                    logger.error("tlspyo's Relay cannot be started again: %s Trying again in %g s.", exc, delay)
                await asyncio.sleep(delay)
                delay = min(2 * delay, _RESTART_MAX_S)
        finally:
            self._restarting = None

    async def close(self) -> None:
        """Stop listening, close every link, and end the I/O process."""
        self._closing = True
        if self._restarting is not None:
            self._restarting.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._restarting
        # Before the links are closed, or their clients would connect again to a Relay that is about to end.
        self.tell("DEAF", 0)
        drivers = list(self._drivers.values())
        for driver in drivers:
            driver.connection.close()
            driver.wake()
        if drivers:
            await asyncio.wait([driver.ended for driver in drivers], timeout=2.0)
        if self._process is not None:
            self._process.kill()
            await self._ended
