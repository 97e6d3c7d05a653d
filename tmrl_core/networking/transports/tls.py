"""Transport `tls`: asyncio sockets, encrypted by an `SSLObject` over memory BIOs, or plaintext where it is allowed."""

# Theory of operation
#
# This file moves the bytes of connections over TCP sockets. It knows nothing of messages: it asks a sans-I/O
# `Connection` for bytes to send, hands it what has arrived, and tells it the time. It decides nothing about identities
# either; it passes on what the handshake has shown.
#
# Why not asyncio's own TLS: it drops a connection without an alert when a certificate is refused, so that neither side
# learns the reason, and retries look the same for a wrong clock and a pulled cable. Here an `SSLObject` works on two
# memory BIOs. That costs nothing: OpenSSL processes the same bytes, with fewer system calls than when it reads records
# from a socket.
#
# The life of a Server's connection, each step in the event loop's thread:
#
#     _Gate            asks `Admission`; a refused socket is closed before anything is spent on it
#     _TlsDriver       handshake, at most 64 kB and `server.greeting_s` until the peer is admitted
#     _connected       role, name, serial number, issuer and weight of the certificate become the connection's Identity
#     Hello            the relay authenticates it; `_on_admitted` gives the place in `Admission` back
#     _decrypt/_write  whole buffers, until one side closes
#     _finish          close_notify, end of writing, up to `LINGER_S` in which the other side reads the last message
#
# A client has no gate, and `dial` waits for `ready`. With TLS 1.3 the handshake ends for a client before the Server has
# looked at its certificate, so a refusal arrives as an error of the first read; `_decrypt` therefore explains it as
# `_handshake` does.
#
# Memory. Bytes from all sockets of a thread go through one buffer of 256 kB, which is emptied before the next read; a
# thousand idle workers cost no buffers. Outgoing data waits in the `Connection`: the transport takes it only while
# about 64 kB wait in asyncio and 128 kB in the kernel, so that a heartbeat or an acknowledgement overtakes samples. An
# example: at 1 MB/s, a heartbeat behind 192 kB arrives after 0.2 s; behind the 4 MB that a kernel may take, it would
# come after 4 s, near the limit of silence.
#
# Closing. A socket closed with unread bytes in it is reset by the kernel, and the reset overtakes and discards the last
# message, which says why. So a finished link keeps reading and discarding for a moment, but a Server reads at most 8
# MiB, about what a worker may have in flight, and charges the peer for it.
#
# What fails. Only `_give_up` and `connection_lost` set the reason of an end. The first reason stays, later ones are its
# consequences. Reasons that another attempt cannot cure are HandshakeErrors, so that a client stops trying and shows
# the next step; all others are NetworkErrors, which it retries.
#
# One side with TLS and one without is common enough to be told in words. No frame begins like a TLS record (its header
# would announce too long a frame), so three bytes tell a plain side that the other speaks TLS; to a plain client, a TLS
# Server sends an alert by hand, because OpenSSL closes without one and the client would retry for ever.

from __future__ import annotations

import asyncio
import contextlib
import errno
import ipaddress
import logging
import socket
import ssl
import struct
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from functools import partial
from typing import Any, cast

from tmrl_core.errors import HandshakeError, NetworkError, PortInUseError
from tmrl_core.networking.protocol.connection import Connection, Identity
from tmrl_core.networking.protocol.framing import spare
from tmrl_core.networking.security.admission import Admission, PendingConnection
from tmrl_core.networking.security.authentication import ClientAccess, ServerAccess
from tmrl_core.networking.security.certificates import clean_serial
from tmrl_core.networking.security.handshakes import is_too_early, reason_of, weight_of
from tmrl_core.networking.transports.base import LINGER_S, Driver, Listener, Transport
from tmrl_core.networking.transports.port_holder import port_in_use_text
from tmrl_core.networking.transports.read_turns import ReadTurns

logger = logging.getLogger(__name__)

_READ_BYTES = 262_144
_HIGH_WATER_BYTES = 65_536
_UNSENT_BYTES = 131_072
_TCP_INFO_RTT = struct.Struct("=68xI")
"""Linux' `struct tcp_info` up to `tcpi_rtt`, in microseconds."""
_POLL_S = 1.0
"""Interval at which a Server checks its credentials for changes."""
_LOOK_UP_S = 30.0
"""Maximum time of a look-up. Systems ask the next name server when one has been silent for 5 s, so the time for a
connection would end before an answer."""
_GREETING_BYTES = 65_536
"""Maximum bytes from a peer before its admission; a handshake with a certificate and a `Hello` take a tenth."""
_LINGER_BYTES = 8 << 20
"""Maximum bytes that a Server reads from a link that it has ended; a window of a worker may be in flight."""
_DISCARDED_BYTE_S, _DISCARDED_READ_S = 2e-9, 5e-6
"""Processor time that the system takes for each of them, and for each read."""
_ALERT, _HANDSHAKE_RECORD = 0x15, 0x16
_PROTOCOL_VERSION_ALERT = bytes([_ALERT, 3, 1, 0, 2, 2, 70])
"""Alert for clients that do not speak TLS. OpenSSL closes without an alert, so that the client would retry forever."""

IdentityOf = Callable[[Mapping[str, Any] | None], "tuple[str, str] | None"]
"""Role and name in a peer's certificate, as `ssl` returns it."""
Explain = Callable[[Exception], str]
"""Explanation of an exception from `ssl` or a socket, with the next step."""


_WHICH_SECURITY = (
    "network.security is null here: if the Server speaks TLS, leave network.security out (or set it to TLS), with "
    "credentials of that Server on this machine."
)


def _what_to_do(exc: OSError, port: int) -> str:
    """Return the next step for a port that cannot be listened on."""
    if exc.errno == errno.EADDRNOTAVAIL or isinstance(exc, socket.gaierror):
        return "That is not an address of this machine: set server.bind to one of its addresses, or to null."
    # Linux reserves the ports below 1024 for root.
    if exc.errno == errno.EACCES:
        return "This user may not use that port: set a server.port of 1024 or more."
    return port_in_use_text(port)


def bound_sockets(hosts: Iterable[str], port: int) -> list[socket.socket]:
    """Return a socket for each address of hosts (empty: all interfaces), bound to the port, or all to one free port.

    uvloop would look the host up in threads of libuv. They do not run in a forked child, which would crash when it ends
    and waits for them.

    Raises:
        OSError: an address cannot be bound.
    """
    made: list[socket.socket] = []
    try:
        infos = [
            info
            for host in hosts
            for info in socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        ]
        for family, kind, protocol, _, address in dict.fromkeys(infos):
            sock = socket.socket(family, kind, protocol)
            made.append(sock)
            if sys.platform != "win32":  # there, two servers would share a port
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                # `::` means IPv4 too, as in other servers; an empty host has a socket of IPv4.
                both = all(hosts) and address[0] == "::" and socket.has_dualstack_ipv6()
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, not both)
            # Port 0: the first address takes a free port, and the others must have the same, because
            # clients know one number.
            chosen = port or (made[0].getsockname()[1] if len(made) > 1 else 0)
            sock.bind((address[0], chosen, *address[2:]))
            sock.setblocking(False)
    except BaseException:
        for sock in made:
            sock.close()
        raise
    return made


class TlsTransport(Transport):
    """TCP with TLS, or without if `context` is None.

    Args:
        context: a server's context for `serve`, a client's for `dial`.
        server_hostname: expected name in the Server's certificate.
        identity_of: reads role and name from a client's certificate.
        explain: turns low-level errors into sentences.
        on_refused: called with (address, reason) when a peer's handshake fails, or it is rejected before.
        access: source of the context, if changed credentials should be reloaded.
        admission: a Server's limits for unauthenticated connections; None: the defaults.
    """

    def __init__(
        self,
        context: ssl.SSLContext | None,
        *,
        server_hostname: str | None = None,
        identity_of: IdentityOf = lambda certificate: None,
        explain: Explain = str,
        on_refused: Callable[[str, str], None] = lambda address, reason: None,
        access: ServerAccess | ClientAccess | None = None,
        admission: Admission | None = None,
    ) -> None:
        self.context = context
        self.access = access
        self.admission = admission or Admission()
        self.server_hostname = server_hostname
        self.identity_of = identity_of
        self.explain = explain
        self.on_refused = on_refused

    async def serve(self, host: str, port: int, accept: Callable[[], Connection]) -> Listener:
        """Listen on `host` (empty: all interfaces) and `port`."""
        loop = asyncio.get_running_loop()
        listener = _TlsListener()
        turns = ReadTurns(loop.call_soon)

        def make(pending: PendingConnection) -> _TlsDriver:
            driver = _TlsDriver(self, accept(), loop, pending, turns)
            listener.drivers.add(driver)
            driver.ended.add_done_callback(lambda _: listener.drivers.discard(driver))
            return driver

        def poll_credentials() -> None:
            self._poll_credentials(listener.drivers)
            listener.timer = loop.call_later(_POLL_S, poll_credentials)

        try:
            async for server, listener.port in self.listen(partial(_Gate, self, make, loop), host, port):
                listener.servers.append(server)
        except OSError as exc:
            for server in listener.servers:
                server.close()
            kind = PortInUseError if exc.errno == errno.EADDRINUSE else NetworkError
            raise kind(
                f"cannot listen on {host or '*'} port {port}: {exc.strerror or exc}. {_what_to_do(exc, port)}"
            ) from exc
        listener.timer = loop.call_later(_POLL_S, poll_credentials)
        return listener

    # Another kind of socket overrides `listen` and `connect` and keeps the rest: TLS, limits of strangers, credentials.

    async def listen(
        self, protocol: Callable[[], asyncio.BaseProtocol], host: str, port: int
    ) -> AsyncIterator[tuple[asyncio.AbstractServer, int]]:
        """Yield servers that listen on `host` (empty: all interfaces), and the port, which is free if `port` is 0.

        Raises:
            OSError: an address cannot be used.
        """
        loop = asyncio.get_running_loop()
        for sock in bound_sockets((host,), port):
            found: int = sock.getsockname()[1]  # before the socket is the loop's
            yield await loop.create_server(protocol, sock=sock, backlog=256), found

    async def connect(self, make: Callable[[], asyncio.BaseProtocol], host: str, port: int) -> None:
        """Connect to an address.

        Raises:
            OSError: it does not answer.
        """
        await asyncio.get_running_loop().create_connection(make, host, port)

    async def _connect_to_one(
        self, make: Callable[[], asyncio.BaseProtocol], host: str, port: int, timeout_s: float
    ) -> None:
        """Connect to the first address of `host` that answers.

        Raises:
            OSError: the host is unknown, or no address answers. A TimeoutError: within timeout_s.
            NetworkError: no name server answers.
        """
        addresses = await self._look_up(host, port)
        loop = asyncio.get_running_loop()
        failure: Exception = OSError(f"{host} has no address")
        deadline = loop.time() + timeout_s
        for tried, address in enumerate(addresses):
            # An equal share of the time, since a firewall may drop what is sent to the first address alone. A name
            # often has one of IPv6, which is tried first.
            share_s = (deadline - loop.time()) / (len(addresses) - tried)
            try:
                await asyncio.wait_for(self.connect(make, address, port), share_s)
                return
            except (OSError, asyncio.TimeoutError) as exc:
                failure = exc
        raise failure

    async def _look_up(self, host: str, port: int) -> list[str]:
        """Return the addresses of `host`, looked up in a thread of Python (see `bound_sockets`)."""
        try:
            ipaddress.ip_address(host)
        except ValueError:
            look_up = partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
        else:
            return [host]
        try:
            infos = await asyncio.wait_for(asyncio.get_running_loop().run_in_executor(None, look_up), _LOOK_UP_S)
        except asyncio.TimeoutError as exc:
            raise NetworkError(
                f"cannot reach {host} port {port}: no name server of this machine answered within {_LOOK_UP_S:g} s. "
                "Check its network, or set server.host to an address"
            ) from exc
        scopes = (f"%{address[3]}" if len(address) > 3 and address[3] else "" for *_, address in infos)
        return list(dict.fromkeys(f"{info[4][0]}{scope}" for info, scope in zip(infos, scopes, strict=True)))

    def _poll_credentials(self, drivers: Iterable[_TlsDriver]) -> None:
        """Reload changed credentials, and close links that would no longer be admitted."""
        access = self.access
        if not isinstance(access, ServerAccess) or not access.refresh():
            return
        # New connections are made with the new context; links keep theirs, whose keys stay good.
        self.context = access.context
        for driver in list(drivers):
            connection = driver.connection
            if connection.state == "greeting" or connection.closing:
                continue  # the check of its Hello uses the new credentials
            rejection = access.rejection_of(connection)
            if rejection is not None:
                identity = connection.identity
                self.on_refused(identity.address, identity.named(rejection[1]))
                connection.refuse(*rejection, now=driver.loop.time())

    def signed_revocations(self) -> bytes:
        """Return the list of revoked certificates with the CA's signature; empty: there is none."""
        return self.access.signed_revocations if isinstance(self.access, ServerAccess) else b""

    def renewed_token(self) -> str | None:
        """Reload a client's changed credentials before it connects. Return its new token; None: unchanged."""
        access = self.access
        if not isinstance(access, ClientAccess) or not access.refresh():
            return None
        self.context = access.context
        return access.token

    def warn_of_expiry(self) -> None:
        """See the base class. Most links last longer than a look at the files before each connection."""
        if isinstance(self.access, ClientAccess):
            self.access.warn_of_expiry()

    async def dial(self, host: str, port: int, connection: Connection, timeout_s: float) -> Driver:
        """Connect to `host` and `port`, and prove both sides' identity."""
        loop = asyncio.get_running_loop()
        driver = _TlsDriver(self, connection, loop, None)
        try:
            await self._connect_to_one(lambda: driver, host, port, timeout_s)
        except asyncio.TimeoutError as exc:
            raise NetworkError(f"{host} port {port} did not answer within {timeout_s:g} s") from exc
        except OSError as exc:
            raise NetworkError(f"cannot reach {host} port {port}: {self.explain(exc)}") from exc
        try:
            await asyncio.wait_for(asyncio.shield(driver.ready), timeout_s)
        except asyncio.TimeoutError as exc:
            driver.abort()
            raise NetworkError(f"{host} port {port} did not finish the TLS handshake within {timeout_s:g} s") from exc
        return driver


class _TlsListener(Listener):
    port = 0

    def __init__(self) -> None:
        self.servers: list[asyncio.AbstractServer] = []
        """One for each address."""
        self.drivers: set[_TlsDriver] = set()
        self.timer: asyncio.TimerHandle | None = None

    async def close(self) -> None:
        for server in self.servers:
            server.close()
        if self.timer is not None:
            self.timer.cancel()
        drivers = list(self.drivers)
        for driver in drivers:
            driver.connection.close()
            driver.wake()
        if drivers:
            await asyncio.wait([driver.ended for driver in drivers], timeout=2.0)
        # Those that have not read the closing message within 2 s.
        for driver in list(self.drivers):
            driver.abort()
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(asyncio.gather(*(server.wait_closed() for server in self.servers)), 1.0)


class _Gate(asyncio.Protocol):
    """Gate for new connections: checks each before resources are spent on it, and passes its socket to a driver."""

    def __init__(
        self, owner: TlsTransport, make: Callable[[PendingConnection], _TlsDriver], loop: asyncio.AbstractEventLoop
    ) -> None:
        self._owner = owner
        self._make = make
        self._loop = loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        address = _address_of(transport)
        pending = self._owner.admission.arrive(address, self._loop.time())
        if isinstance(pending, str):
            self._owner.on_refused(address, pending)
            cast(asyncio.Transport, transport).abort()
            return
        driver = self._make(pending)
        # The protocol is exchanged instead of made at once, because asyncio creates it before the peer's
        # address is known.
        transport.set_protocol(driver)
        driver.connection_made(transport)


class _TlsDriver(Driver, asyncio.BufferedProtocol):
    """One socket, its TLS state and its connection. `pending` and `turns` belong to a Server; None: a client."""

    def __init__(
        self,
        transport: TlsTransport,
        connection: Connection,
        loop: asyncio.AbstractEventLoop,
        pending: PendingConnection | None,
        turns: ReadTurns | None = None,
    ) -> None:
        super().__init__(connection, loop)
        self.ready: asyncio.Future[None] = loop.create_future()
        self._owner = transport
        self._server_side = pending is not None
        connection.pause = self._pause
        self._turns = turns
        self._waits_turn = False
        """True: nothing is read until its turn."""
        self._pending = pending
        """Admission entry of the connection, until its peer is admitted."""
        self._pending_bytes = 0
        self._discarded_bytes = 0
        self._network = ""
        if pending is not None:
            self._network = pending.network
            pending.close = self._on_evicted
            connection.on_admitted = self._on_admitted
        self._socket: asyncio.Transport | None = None
        self._address = "?"
        self._paused = False
        self._raw: memoryview | None = None
        self._in = ssl.MemoryBIO()
        self._out = ssl.MemoryBIO()
        self._tls: ssl.SSLObject | None = None
        self._handshaken = False
        self._reason: NetworkError | None = None
        self._linger: asyncio.TimerHandle | None = None
        self._resume: asyncio.TimerHandle | None = None
        """End of a pause in which nothing is read."""
        self._late_timer: asyncio.TimerHandle | None = None
        """Deadline for the admission of a Server's peer."""
        self._first = b""
        self._view: memoryview | None = None

    # --- called by asyncio ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._socket = cast(asyncio.Transport, transport)  # uvloop's transport does not inherit from asyncio's class
        self._socket.set_write_buffer_limits(high=_HIGH_WATER_BYTES)
        sock = transport.get_extra_info("socket")
        if sock is not None:
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                if hasattr(socket, "TCP_NOTSENT_LOWAT"):
                    # Acknowledgements and heartbeats cannot overtake unsent data in the kernel.
                    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _UNSENT_BYTES)
            if sys.platform == "linux":
                self.connection.rtt_s = partial(_rtt_s, sock)
        self._address = _address_of(transport)
        self._raw = _shared_buffer()
        context = self._owner.context
        if self._server_side:  # a client has its own deadline
            self._late_timer = self.loop.call_later(self._owner.admission.settings.greeting_s, self._late)
        if context is None:
            self._connected(None)
            return
        self._tls = context.wrap_bio(
            self._in,
            self._out,
            server_side=self._server_side,
            server_hostname=None if self._server_side else self._owner.server_hostname,
        )
        self._handshake()

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._tls is None and not self._finishing:
            # Plaintext needs no copy: the socket writes into the connection's own buffer.
            self._view = self.connection.get_buffer()[: self.connection.read_bytes]
            return self._view
        assert self._raw is not None
        return self._raw[: self.connection.read_bytes]

    def buffer_updated(self, nbytes: int) -> None:
        if self._finishing or self.connection.closing:
            # Lingering, or about to: further data is discarded, as much as may have been in flight.
            self._discarded_bytes += nbytes
            if self._server_side:
                self.connection.charge(_DISCARDED_READ_S + nbytes * _DISCARDED_BYTE_S, nbytes, self.loop.time())
                # A peer with no share of the processor left may miss the reason for the end of its link.
                if self._discarded_bytes > _LINGER_BYTES or (self._finishing and self.connection.overspent):
                    self.abort()
            return
        # Processor time, not wall time: a thread that had to wait for a core must not charge the wait to a
        # member.
        begun = time.thread_time() if self._server_side else 0.0
        self._take(nbytes)
        if self._server_side:
            used = time.thread_time() - begun
            self.connection.charge(used, nbytes, self.loop.time())
            if self._turns is not None and not self._finishing and not self.connection.closing:
                self._turns.took(self, nbytes, used, first=self.connection.is_first)

    def _take(self, nbytes: int) -> None:
        if self._pending is not None:
            self._pending_bytes += nbytes
            if self._pending_bytes > _GREETING_BYTES:
                self._give_up(NetworkError(f"it sent more than {_GREETING_BYTES} bytes before it identified itself"))
                return
        if self._tls is None:
            if len(self._first) < 3 and self._is_tls(nbytes):
                self._on_tls_ready()
            else:
                self.connection.received(nbytes, self.loop.time())
        else:
            assert self._raw is not None
            self._in.write(self._raw[:nbytes])
            if not self._handshaken:
                self._handshake()
            if self._handshaken and not self._finishing:
                self._decrypt()
        self.wake()

    def eof_received(self) -> bool:
        if not self._finishing:
            if self._tls is not None and not self._handshaken:
                self._in.write_eof()
                self._handshake()
            elif self._tls is None and not self._server_side and not self._first:
                self._give_up(
                    NetworkError(
                        f"the Server at {self._address} closed the connection without a message. {_WHICH_SECURITY}"
                    )
                )
            else:
                self.connection.received(0, self.loop.time())
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        for timer in (self._linger, self._late_timer, self._resume):
            if timer is not None:
                timer.cancel()
        if self._pending is not None:
            self._owner.admission.leave(self._pending)
            self._pending = None
        # Remembered when it leaves, too: a worker that was linked for days is known when its network comes
        # back.
        elif self._server_side:
            self._owner.admission.remember(self._network, self.loop.time())
        reason = self._reason
        if reason is None and exc is not None:
            # The event loop also passes on exceptions of this package, for which there is no explanation.
            text = self._owner.explain(exc) if isinstance(exc, OSError) else repr(exc)
            reason = NetworkError(f"the connection to {self._address} broke: {text}")
        self._lost(reason)
        if not self.ready.done():
            self.ready.set_result(None)

    def wait_turn(self) -> None:
        """Read nothing until the turn. Otherwise libuv would read the same socket up to 32 times before others."""
        self._waits_turn = True
        if self._socket is not None:
            self._socket.pause_reading()

    def end_wait(self) -> None:
        """Read again, unless a pause goes on."""
        self._waits_turn = False
        if self._resume is None:
            self._read_again()

    def _pause(self, seconds: float) -> None:
        """Read nothing for some seconds."""
        if self._socket is not None and not self._finishing:
            # A longer pause replaces a running one.
            if self._resume is not None:
                self._resume.cancel()
            # Now and not at its end: a silence that began before would close the link in the pause.
            self.connection.resumed(self.loop.time() + seconds)
            self._socket.pause_reading()
            self._resume = self.loop.call_later(seconds, self._end_pause)

    def _end_pause(self) -> None:
        self._resume = None
        if not self._waits_turn:
            self._read_again()

    def _read_again(self) -> None:
        if self._socket is not None and not self._finishing:
            self.connection.resumed(self.loop.time())
            self._socket.resume_reading()

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self.wake()

    # --- plaintext, but the other side speaks TLS ---

    def _is_tls(self, nbytes: int) -> bool:
        """Return True if the first bytes begin a TLS record.

        As a frame's header, they would announce too long a frame.
        """
        assert self._view is not None
        self._first += bytes(self._view[: min(nbytes, 3)])
        first = self._first
        return len(first) >= 3 and first[0] in (_ALERT, _HANDSHAKE_RECORD) and first[1] == 3 and 1 <= first[2] <= 4

    def _on_tls_ready(self) -> None:
        if self._server_side:
            self.connection.refuse(
                "misuse",
                "the peer speaks TLS, and this Server does not (network.security is null here). Set network.security "
                "to the same on both sides.",
            )
        else:
            text = f"the Server at {self._address} speaks TLS, and this side does not. {_WHICH_SECURITY}"
            self._give_up(HandshakeError(text))

    # --- TLS ---

    def _handshake(self) -> None:
        assert self._tls is not None
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            self._flush()
            return
        except (ssl.SSLError, ValueError) as exc:
            self._handshake_failed(exc)
            return
        self._flush()
        self._handshaken = True
        if self._server_side and self._tls.session_reused:
            # A resumed session skips the check of the certificate. `server_context` grants no tickets, but OpenSSL
            # stores sessions of TLS 1.2, and `ssl` cannot disable that.
            self._give_up(NetworkError("it resumed an earlier TLS session, which does not prove its identity"))
            return
        self._connected(self._tls.getpeercert() if self._server_side else None)

    def _handshake_failed(self, exc: Exception) -> None:
        text = self._owner.explain(exc)
        # OpenSSL's name for first bytes that are no TLS record.
        if self._server_side and reason_of(exc) == "WRONG_VERSION_NUMBER" and self._socket is not None:
            self._socket.write(_PROTOCOL_VERSION_ALERT)
        self._give_up(HandshakeError(text) if _is_about_credentials(exc) else NetworkError(text))

    def _late(self) -> None:
        self._late_timer = None
        if self._finishing:
            return
        what = (
            "it did not identify itself"
            if self._handshaken or self._tls is None
            else "the TLS handshake was not finished"
        )
        self._give_up(NetworkError(f"{what} within {self._owner.admission.settings.greeting_s:g} s"))

    def _on_admitted(self) -> None:
        if self._late_timer is not None:
            self._late_timer.cancel()
        if self._pending is not None:
            self._owner.admission.admit(self._pending, self.loop.time(), overspent=self.connection.overspent)
            self._pending = None

    def _on_evicted(self, reason: str) -> None:
        self._reason = NetworkError(reason)
        self._owner.on_refused(self._address, reason)
        self.abort()

    def _give_up(self, reason: NetworkError) -> None:
        self._reason = reason
        if self._server_side:
            self._owner.on_refused(self._address, str(reason))
        self._flush()  # the alert tells the other side the reason
        # Set here and not by `connection.close`, which would first send a message that this peer may not
        # receive.
        self.connection.closing = True
        self.connection.reason = reason
        self._finish_once()

    def _connected(self, certificate: Mapping[str, Any] | None) -> None:
        role, name = (self._owner.identity_of(certificate) if certificate else None) or (None, None)
        serial = clean_serial(certificate["serialNumber"]) if certificate else None
        issuer = str(certificate.get("issuer")) if certificate else None
        weight = weight_of(certificate) if certificate else 1
        identity = Identity(self._address, role, name, serial, issuer, weight)
        if self._pending is not None and role is not None:
            access = self._owner.access
            self._pending.certified = not isinstance(access, ServerAccess) or access.check_certificate(identity) is None
        self.connection.connected(identity, self.loop.time())
        if not self.ready.done():
            self.ready.set_result(None)
        self.wake()

    def _decrypt(self) -> None:
        assert self._tls is not None
        read = self._tls.read
        connection = self.connection
        now = self.loop.time()
        filled = 0
        try:
            while not connection.closing:
                # A call returns at most one record, and the connection receives several records together.
                view = connection.get_buffer()
                size = len(view)
                while filled < size:
                    n: int = read(size - filled, view[filled:])  # type: ignore[assignment]  # it returns a count
                    if n == 0:
                        raise ssl.SSLZeroReturnError("the other side has closed the TLS session")
                    filled += n
                connection.received(filled, now)
                filled = 0
        except ssl.SSLWantReadError:
            if filled:
                connection.received(filled, now)
        except ssl.SSLZeroReturnError:
            if filled:
                connection.received(filled, now)
            connection.received(0, now)
        except ssl.SSLError as exc:
            # With TLS 1.3 a client learns only here that its certificate was refused.
            self._handshake_failed(exc)

    def _flush(self) -> None:
        if self._socket is not None and self._out.pending:
            self._socket.write(self._out.read())

    # --- Driver ---

    def _writable(self) -> bool:
        return (
            not self._paused
            and not self._finishing
            and self._socket is not None
            and (self._tls is None or self._handshaken)
        )

    def _write(self, buffers: list[bytes | bytearray | memoryview]) -> None:
        assert self._socket is not None
        if self._tls is None:
            self._socket.writelines(buffers)
            return
        if not self._handshaken:
            return
        write = self._tls.write
        try:
            for buffer in buffers:
                # The memory BIO has copied the bytes, so the buffer can be received into again.
                write(buffer)
                spare(buffer)
        except ssl.SSLError as exc:
            self._handshake_failed(exc)
            return
        self._socket.write(self._out.read())

    def _finish(self) -> None:
        if self._socket is None:
            self._lost(self._reason)
            return
        # A paused socket would never show the end of the other side.
        if self._resume is not None:
            self._resume.cancel()
        if self._resume is not None or self._waits_turn:
            self._socket.resume_reading()
        if self._tls is not None and self._handshaken:
            # Sends close_notify. Its answer is not waited for; the exception says that it has not come.
            with contextlib.suppress(ssl.SSLError):
                self._tls.unwrap()
            self._flush()
        self._tls, self._in, self._out = None, ssl.MemoryBIO(), ssl.MemoryBIO()  # a lingering link needs no memory
        # Closing with unread bytes in the socket would reset the connection and lose the last message.
        with contextlib.suppress(OSError, RuntimeError, NotImplementedError):
            self._socket.write_eof()
        self._linger = self.loop.call_later(LINGER_S, self.abort)

    def abort(self) -> None:
        """Close immediately."""
        if self._socket is not None:
            self._socket.abort()


def _address_of(transport: asyncio.BaseTransport) -> str:
    peer = transport.get_extra_info("peername")
    # A socket for both versions shows addresses of IPv4 as a part of IPv6, where all of them would be one network.
    # A Unix socket's is no tuple.
    return f"{peer[0].removeprefix('::ffff:')}:{peer[1]}" if peer and isinstance(peer, tuple) else "?"


def _rtt_s(sock: socket.socket) -> float | None:
    """Return the round-trip time that Linux has measured for a connection; None: the socket is closed."""
    try:
        (microseconds,) = _TCP_INFO_RTT.unpack(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_RTT.size))
    except (OSError, struct.error):
        return None
    return float(microseconds) / 1e6


def _is_about_credentials(exc: Exception) -> bool:
    """Return True if a failed handshake would fail again with the same credentials."""
    if is_too_early(exc):
        return False  # a small computer without a clock of its own gets the time minutes after its start
    if isinstance(exc, ssl.SSLCertVerificationError):
        return True
    reason = reason_of(exc)
    return "ALERT" in reason or reason in ("WRONG_VERSION_NUMBER", "HTTP_REQUEST")


class _ThreadBuffers(threading.local):
    raw: memoryview | None = None


_thread_buffers = _ThreadBuffers()


def _shared_buffer() -> memoryview:
    """Return this thread's buffer for bytes from a socket before decryption; it is emptied before the next read."""
    if _thread_buffers.raw is None:
        _thread_buffers.raw = memoryview(bytearray(_READ_BYTES))
    return _thread_buffers.raw
