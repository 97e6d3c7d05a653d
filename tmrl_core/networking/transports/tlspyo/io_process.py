"""I/O process of the transport `tlspyo`: its `Server` or its `Client`, and Twisted's reactor.

Only this module imports tlspyo, and no other module may import this one. `process.py` starts it as a separate process,
because Twisted's reactor can run only once in a process. They communicate over a local connection.

tlspyo's `Relay` and `Endpoint` start such a process too. But they block forever when it fails, do not end it when they
are killed, reconnect without reporting why a connection ended, and keep every unacknowledged object. So this module
uses their two inner classes, and overrides the parts that have to differ:

- *Relay*: no endpoint joins the group `hub`. Broadcasts to it go to this process, which forwards them to the Server. So
  no other client can join it and listen, the connection identifies the sender of each message, and two TLS hops are
  saved. A peer may join one new group `p.` + 128 random bits and send to `hub`, and nothing else.
- *Endpoint*: one connection, whose end is reported with its reason. A new connection is a new link, with a new group.
- Both: no Nagle's algorithm (with TCP's delayed acknowledgements it can delay a single message by 40 ms), messages of
  64 kB at most, MessagePack instead of pickle, and no acknowledgements of tlspyo, because nothing waits for them.

The process ends with its parent: at the end of its standard input (which the parent holds open), of the local
connection, or when its parent process changes.
"""

from __future__ import annotations

import errno
import hmac
import logging
import os
import re
import sys
import threading
from typing import Any

import msgspec
from tlspyo.client import Client, ClientProtocol, TLSClientFactory
from tlspyo.server import Server, ServerProtocol, ServerProtocolFactory
from twisted.internet import error, reactor, ssl
from twisted.internet.protocol import ClientFactory, Protocol
from twisted.python.failure import Failure

from tmrl_core.networking.security.admission import Admission, AdmissionSettings, PendingConnection
from tmrl_core.networking.transports.tlspyo.link import MAX_MESSAGE_BYTES, refusal

HUB = "hub"
_TO_HUB = {HUB: -1}
_GROUP = re.compile(r"p\.[0-9a-f]{32}")
_PARENT_POLL_S = 1.0
_FLUSH_S = 1.0

serialize = msgspec.msgpack.encode
deserialize = msgspec.msgpack.decode


def main(settings: dict[str, Any]) -> None:
    """Run one I/O process with the settings that its parent wrote. Never return."""
    logging.getLogger("tlspyo").setLevel(logging.ERROR)  # important events are reported to the parent
    threading.Thread(target=_end_with_stdin, daemon=True).start()
    _check_parent(os.getppid())
    (TlspyoRelay(settings) if settings["role"] == "relay" else Peer(settings)).run()


def _end_with_stdin() -> None:
    sys.stdin.buffer.read()
    os._exit(0)


def _check_parent(parent: int) -> None:
    # A forked child of the parent may hold the other end of standard input open, so the parent is checked too.
    if os.getppid() != parent:
        os._exit(0)
    reactor.callLater(_PARENT_POLL_S, _check_parent, parent)


class Unacknowledged(dict):  # type: ignore[type-arg]
    """Empty replacement of tlspyo's store of unacknowledged messages.

    tlspyo uses the store only for a delay at the end, and would never delete the messages of a broken connection.
    """

    def __setitem__(self, stamp: object, entry: object) -> None:
        pass

    def __delitem__(self, stamp: object) -> None:
        pass

    def __getitem__(self, stamp: object) -> tuple[float, bytes]:
        return 0.0, b""


# --- the local connection ---------------------------------------------------------------------------------------------


class LocalEnd(Protocol):  # type: ignore[misc]
    """This process's end of the local connection, in tlspyo's format: an ASCII length, then MessagePack.

    Towards the parent `(number, command, object)`, from it `(command, number, object)`.
    """

    def __init__(self, owner: TlspyoRelay | Peer) -> None:
        self._owner = owner
        self._header_size: int = owner.header_size
        self._buffer = b""

    def connectionMade(self) -> None:
        """Prove to the parent that this process is its child."""
        self.transport.setTcpNoDelay(True)
        self._owner.endpoint = self
        self.tell(0, "NONCE", self._owner.settings["nonce"])
        self._owner.connected_to_parent()

    def connectionLost(self, reason: Failure) -> None:
        """End this process, because the parent has ended or closed the connection."""
        os._exit(0)

    def dataReceived(self, data: bytes) -> None:
        """Handle the complete messages."""
        buffer = self._buffer + data if self._buffer else data
        size = self._header_size
        start = 0
        while len(buffer) - start >= size:
            end = start + size + int(buffer[start : start + size])
            if end > len(buffer):
                break
            command, number, content = deserialize(memoryview(buffer)[start + size : end])
            self._owner.told(command, number, content)
            start = end
        self._buffer = buffer[start:]

    def tell(self, number: int, command: str, content: object) -> None:
        """Send one message to the parent."""
        body = serialize((number, command, content))
        self.transport.write(b"%-*d%b" % (self._header_size, len(body), body))


class _LocalFactory(ClientFactory):  # type: ignore[misc]
    noisy = False

    def __init__(self, owner: TlspyoRelay | Peer) -> None:
        self._owner = owner

    def buildProtocol(self, addr: object) -> LocalEnd:
        return LocalEnd(self._owner)

    def clientConnectionFailed(self, connector: object, reason: Failure) -> None:
        os._exit(1)  # the parent has ended or stopped waiting


def _reason(failure: Failure) -> list[str]:
    """Return a failure as `[kind, text]`, for the parent."""
    value = failure.value
    text = str(value) or type(value).__name__
    if isinstance(value, error.ConnectionDone):
        return ["closed", "the other side has closed the connection"]
    if isinstance(value, (error.ConnectionLost, error.ConnectionAborted)):
        return ["broken", text]
    module = type(value).__module__
    if module.startswith("OpenSSL"):
        details = value.args[0] if value.args and isinstance(value.args[0], list) else []
        text = "; ".join(str(entry[-1]) for entry in details) or text
        return ["certificate" if "certificate" in text else "tls", text]
    if module.startswith("service_identity") or "Certificate" in type(value).__name__:
        return ["name", text]
    return ["unreachable", text]


# --- the Server's side ------------------------------------------------------------------------------------------------


class TlspyoRelay(Server):  # type: ignore[misc]
    """tlspyo's relay, whose group `hub` is the parent."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.settings = settings
        self.endpoint: LocalEnd | None = None
        self.admission = Admission(AdmissionSettings(**settings["admission"]))
        super().__init__(
            port=settings["port"],
            password=settings["password"],
            serializer=serialize,
            deserializer=deserialize,
            accepted_groups=None,
            header_size=settings["header_size"],
            local_com_port=settings["local_port"],
            security=settings["security"],
        )
        self.secret = self.password.encode()
        self.pending_acks = Unacknowledged()

    def run(self) -> None:
        """Connect to the parent, listen, and run the reactor."""
        reactor.connectTCP("127.0.0.1", self.settings["local_port"], _LocalFactory(self))
        reactor.run(installSignalHandlers=False)

    def connected_to_parent(self) -> None:
        """Listen, and report the port to the parent, which is connected now."""
        assert self.endpoint is not None
        factory = _RelayFactory(self)
        host, port = self.settings["host"], self.settings["port"]
        try:
            if self.settings["security"] == "TLS":
                pair = ssl.PrivateCertificate.loadPEM(self.settings["certificate"] + "\n" + self.settings["key"])
                self._listener = reactor.listenSSL(port, factory, pair.options(), backlog=256, interface=host)
            else:
                self._listener = reactor.listenTCP(port, factory, backlog=256, interface=host)
        except error.CannotListenError as exc:
            kind = "port in use" if exc.socketError.errno == errno.EADDRINUSE else "port"
            self.endpoint.tell(0, "FAILED", [kind, exc.socketError.strerror or str(exc)])
        except Exception as exc:
            self.endpoint.tell(0, "FAILED", ["credentials", f"{type(exc).__name__}: {exc}"])
        else:
            self.endpoint.tell(self._listener.getHost().port, "LISTENING", None)

    def told(self, command: str, number: int, content: Any) -> None:
        """Handle a message of the parent about the peer with that number."""
        peer = self.to_clients.get(number)
        if command == "DEAF":
            self._listener.stopListening()
        elif peer is None:
            pass  # the peer has disconnected; the parent will be notified
        elif command == "OBJ":
            peer.send_obj(cmd="OBJ", obj=content)
        elif command == "CLOSE":
            peer.close_soon()
        elif command == "ABORT":
            peer.transport.abortConnection()

    def check_new_client(self, groups: Any) -> bool:
        """Accept one new, unguessable group for each peer."""
        return (
            isinstance(groups, (list, tuple))
            and len(groups) == 1
            and isinstance(groups[0], str)
            and _GROUP.fullmatch(groups[0]) is not None
            and groups[0] not in self.group_info
        )

    def refused(self, address: str, reason: str) -> None:
        """Report a rejected client to the parent."""
        assert self.endpoint is not None
        self.endpoint.tell(0, "REFUSED", [address, reason])

    def add_client(self, groups: Any, client: RelayProtocol) -> int:
        """Report a joined peer to the parent."""
        if self.has_client(client._identifier):
            # Otherwise the end of its connection would close only the second link, and the first would remain.
            raise ValueError("a peer joins once")
        identifier: int = super().add_client(groups, client)
        assert self.endpoint is not None
        self.endpoint.tell(identifier, "JOIN", client.address)
        return identifier

    def delete_client(self, identifier: int) -> None:
        """Report a lost peer to the parent, and delete its group, which tlspyo keeps."""
        super().delete_client(identifier)
        for group in [group for group, info in self.group_info.items() if not info["ids"]]:
            del self.group_info[group]
        assert self.endpoint is not None
        self.endpoint.tell(identifier, "GONE", None)


class _RelayFactory(ServerProtocolFactory):  # type: ignore[misc]
    noisy = False

    def buildProtocol(self, addr: Any) -> Protocol:
        server, address = self.server, f"{addr.host}:{addr.port}"
        pending = server.admission.arrive(address, reactor.seconds())
        if isinstance(pending, str):
            server.refused(address, pending)
            return _TurnedAway()
        return RelayProtocol(server, address, pending)


class _TurnedAway(Protocol):  # type: ignore[misc]
    # Twisted's TLS fails on None in its place, although plain TCP accepts None.
    def connectionMade(self) -> None:
        self.transport.abortConnection()


class RelayProtocol(ServerProtocol):  # type: ignore[misc]
    """The Server's end of one peer's connection."""

    def __init__(self, server: TlspyoRelay, address: str, pending: PendingConnection) -> None:
        super().__init__(server)
        self.address = address
        self._prefix = self._header_size + self._len_password
        self._timer: Any = None
        """Timer until the peer has sent the password, and later until the connection must be closed."""
        self._network = pending.network
        self._pending: PendingConnection | None = pending
        self._closing = False
        pending.close = self._on_evicted

    def connectionMade(self) -> None:
        """Handle a new peer, and limit the time until it sends the password."""
        self.transport.setTcpNoDelay(True)
        greeting_s = self._server.admission.settings.greeting_s
        self._after(greeting_s, self._late)
        super().connectionMade()

    def connectionLost(self, reason: Failure) -> None:
        """Handle the end of the peer's connection."""
        self._after(None)
        admission = self._server.admission
        if self._pending is not None:
            admission.leave(self._pending)
            self._pending = None
        else:
            admission.remember(self._network, reactor.seconds())
        super().connectionLost(reason)

    def _after(self, seconds: float | None, do: Any = None) -> None:
        """Call `do` after this many seconds and cancel the earlier call; None: only cancel."""
        if self._timer is not None and self._timer.active():
            self._timer.cancel()
        self._timer = None if seconds is None else reactor.callLater(seconds, do)

    def _late(self) -> None:
        greeting_s = self._server.admission.settings.greeting_s
        self._on_evicted(f"it did not show the password within {greeting_s:g} s")

    def _on_evicted(self, reason: str) -> None:
        self._server.refused(self.address, reason)
        self._kill()

    def _on_admitted(self) -> None:
        if self._pending is not None:
            self._after(None)
            self._server.admission.admit(self._pending, reactor.seconds())
            self._pending = None

    def process_header(self) -> tuple[int, int, str | None]:
        """Replace tlspyo's method: limit the length, compare the password in constant time and never log it."""
        start = self._prefix
        nothing = (0, len(self._buffer) + 1, None)
        if len(self._buffer) < start:
            return nothing
        head = self._buffer[: self._header_size]
        length = int(head) if re.fullmatch(rb"\d{1,9} *", head) else -1
        if not 0 <= length <= MAX_MESSAGE_BYTES - start:
            self._kill()
        elif not hmac.compare_digest(self._buffer[self._header_size : start], self._server.secret):
            self._state = "KILLED"
            self._server.refused(self.address, "it showed another password than this Server's")
            self._after(self._server.admission.failed(self.address, reactor.seconds()), self._refuse)
        else:
            return start, start + length, self._password
        return nothing

    def dataReceived(self, data: bytes) -> None:
        """Extend tlspyo's method: disconnect a peer that sends invalid data."""
        if self._state in ("KILLED", "CLOSED"):
            return
        try:
            super().dataReceived(data)
        except Exception:
            self._kill()  # the data is not a message of tlspyo; no traceback is needed
        if self._state == "ALIVE":
            self._on_admitted()

    def _refuse(self) -> None:
        # Sent as an object, because tlspyo's endpoint forwards objects. Then the connection ends.
        self.send_obj(obj=refusal("password", "the password is not this Server's"))
        self.close_soon()

    def _kill(self) -> None:
        self._state = "KILLED"
        self.transport.abortConnection()

    def close_soon(self) -> None:
        """Close when everything is sent, or after a short time limit."""
        if not self._closing:
            self._closing = True
            self.transport.loseConnection()
            self._after(_FLUSH_S, self.transport.abortConnection)

    def forward_obj_to_dest(self, obj: Any, dest: Any) -> None:
        """Forward a broadcast to the hub to the parent. Reject every other message."""
        if dest != _TO_HUB or not isinstance(obj, bytes):
            raise ValueError("a peer may send bytes to the hub only")
        self._server.endpoint.tell(self._identifier, "OBJ", obj)

    def retrieve_consumables(self, groups: Any) -> None:
        """Reject a request for consumables, which this project's peers never send."""
        raise ValueError("there are no consumables here")

    def send_ack(self, stamp: Any) -> None:
        """Do nothing: peers store nothing that this could confirm."""


# --- a client's side --------------------------------------------------------------------------------------------------


class Peer(Client):  # type: ignore[misc]
    """tlspyo's client with one connection."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.settings = settings
        super().__init__(
            ip_server=settings["host"],
            port_server=settings["port"],
            password=settings["password"],
            serializer=serialize,
            deserializer=deserialize,
            header_size=settings["header_size"],
            groups=(settings["group"],),
            local_com_port=settings["local_port"],
            security=settings["security"],
        )
        self.pending_acks = Unacknowledged()
        self.ended: list[str] | None = None
        """Return the TLS reason for the connection's end. The reactor knows only the reason of TCP."""

    def run(self) -> None:
        """Connect to the parent, then to the Relay, and run the reactor."""
        reactor.connectTCP("127.0.0.1", self.settings["local_port"], _LocalFactory(self))
        reactor.run(installSignalHandlers=False)

    def connected_to_parent(self) -> None:
        """Connect to the Relay, because the parent is connected now."""
        assert self.endpoint is not None
        settings = self.settings
        factory = _PeerFactory(self)
        timeout = settings["timeout_s"]
        try:
            if settings["security"] == "TLS":
                options = ssl.optionsForClientTLS(
                    settings["hostname"], trustRoot=ssl.Certificate.loadPEM(settings["certificate"])
                )
                reactor.connectSSL(settings["host"], settings["port"], factory, options, timeout=timeout)
            else:
                reactor.connectTCP(settings["host"], settings["port"], factory, timeout=timeout)
        except Exception as exc:
            self.endpoint.tell(0, "LOST", ["credentials", f"{type(exc).__name__}: {exc}"])

    def told(self, command: str, number: int, content: Any) -> None:
        """Handle a message of the parent."""
        if self.to_server is None:
            return  # the connection is lost; the parent will be notified
        if command == "OBJ":
            self.to_server.send_obj(cmd="OBJ", dest=_TO_HUB, obj=content)
        elif command == "CLOSE":
            self.to_server.transport.loseConnection()


class _PeerFactory(TLSClientFactory):  # type: ignore[misc]
    noisy = False

    def buildProtocol(self, addr: object) -> _PeerProtocol:
        return _PeerProtocol(
            client=self._client, password=self.password, groups=self._groups, header_size=self._header_size
        )

    # No reconnection here: the parent decides about it, and its next link has another group.
    def clientConnectionLost(self, connector: object, reason: Failure) -> None:
        self._client.endpoint.tell(0, "LOST", self._client.ended or _reason(reason))

    def clientConnectionFailed(self, connector: object, reason: Failure) -> None:
        self._client.endpoint.tell(0, "LOST", _reason(reason))


class _PeerProtocol(ClientProtocol):  # type: ignore[misc]
    def connectionMade(self) -> None:
        self.transport.setTcpNoDelay(True)
        super().connectionMade()

    def connectionLost(self, reason: Failure) -> None:
        self._client.ended = _reason(reason)
        super().connectionLost(reason)

    def send_ack(self, stamp: Any) -> None:
        """Do nothing: the Server stores nothing that this could confirm."""

    def process_header(self) -> tuple[int, int]:
        start, end = super().process_header()
        if end - start > MAX_MESSAGE_BYTES + self._header_size:
            raise ValueError("a message is longer than the Server's messages")
        return start, end

    def dataReceived(self, data: bytes) -> None:
        try:
            super().dataReceived(data)
        except Exception:
            self.transport.abortConnection()
