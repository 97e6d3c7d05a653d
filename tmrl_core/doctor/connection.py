"""Checks of the connection to the Server, one socket at a time: name, port, TLS, and a probe that occupies no place.

Plain blocking sockets with deadlines are used, not the package's own links (tlspyo excepted: `tlspyo_connection.py`).
So each step fails separately and names the address.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import statistics
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple

from tmrl_core.doctor.steps import FailedStepError, from_text
from tmrl_core.errors import CredentialsError, RemoteProtocolError
from tmrl_core.networking.protocol.framing import FrameReader, Kind, control_frame
from tmrl_core.networking.protocol.messages import (
    MAX_BODY_BYTES,
    Bye,
    Control,
    Diagnosis,
    Echo,
    Refused,
    decode_control,
    plain,
)
from tmrl_core.networking.security.certificates import CertificateFacts, read_facts
from tmrl_core.networking.security.handshakes import explain

ECHO_BYTES = 64
"""Minimum cost of an echo besides its filler, counted against the allowance."""
_MOST_OUTSTANDING = 32

REFUSED_TODO = {
    "protocol": "Install the same version of tmrl_core on both sides: `pip install -U tmrl_core`.",
    "misuse": "The Server does not know this check: it is older than this version, or no Server of tmrl_core. Install "
    "the same version on both sides.",
    "full": "Try again in a minute.",
}


class Address(NamedTuple):
    """One of the addresses of a host name."""

    family: socket.AddressFamily
    sockaddr: tuple[Any, ...]

    def __str__(self) -> str:
        return str(self.sockaddr[0])


def resolve(host: str, port: int) -> list[Address]:
    """Return the addresses of a name.

    Raises:
        FailedStepError: the name has no address.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as exc:
        reason = exc.strerror if isinstance(exc, OSError) else str(exc)
        raise FailedStepError(
            f"the name {host!r} cannot be resolved ({reason})",
            "Check server.host for a mistake, this machine's network, and whether the name is known here (a VPN?).",
        ) from exc
    return list(dict.fromkeys(Address(family, sockaddr) for family, _, _, _, sockaddr in found))


def connect(addresses: list[Address], timeout_s: float) -> tuple[socket.socket, Address, float]:
    """Return a TCP connection to the first address that answers, that address, and the duration in seconds.

    Raises:
        FailedStepError: no address answers.
    """
    failures: dict[str, str] = {}
    refused = False
    for address in addresses:
        sock = socket.socket(address.family, socket.SOCK_STREAM)
        sock.settimeout(timeout_s)
        begun = time.perf_counter()
        try:
            sock.connect(address.sockaddr)
        except OSError as exc:
            sock.close()
            refused = refused or isinstance(exc, ConnectionRefusedError)
            silent = isinstance(exc, TimeoutError)
            failures[str(address)] = (
                f"no answer within {timeout_s:g} s" if silent else (exc.strerror or str(exc)).lower()
            )
            continue
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return sock, address, time.perf_counter() - begun
    port = addresses[0].sockaddr[1]
    tried = ", ".join(f"{address}: {reason}" for address, reason in failures.items())
    raise FailedStepError(
        f"port {port} cannot be reached ({tried})",
        "Nothing listens there: start the Server (`python -m tmrl_core --server -c FILE`), or correct server.port; if "
        "it runs on another machine, server.bind must let it listen there (null with a public server.host)."
        if refused
        else "The machine is off, the address is wrong, or a firewall drops the packets: let TCP to that port of the "
        "Server's machine pass, in its own firewall and its provider's.",
    )


class Secured(NamedTuple):
    """A finished TLS handshake."""

    sock: ssl.SSLSocket
    words: str


def secure(sock: socket.socket, context: ssl.SSLContext, hostname: str, host: str, timeout_s: float) -> Secured:
    """Establish TLS over a connection and check the Server's certificate.

    Raises:
        FailedStepError: TLS cannot be established.
        ssl.SSLCertVerificationError: the certificate is not accepted.
    """
    sock.settimeout(timeout_s)
    try:
        tls = context.wrap_socket(sock, server_hostname=hostname)
    except ssl.SSLCertVerificationError:
        raise
    except TimeoutError as exc:
        raise FailedStepError(
            f"{host} took the connection and did not answer the TLS handshake within {timeout_s:g} s",
            "Another program listens there, the Server hangs, or a device on the network path drops packets (MTU?).",
        ) from exc
    except OSError as exc:
        text = explain(exc, host=host, hostname=hostname)
        raise FailedStepError(
            text,
            "Check server.port, and that network.security is the same on both sides. A Server that has refused this "
            "address lately may not answer it: wait a minute.",
        ) from exc
    cipher = tls.cipher()
    return Secured(tls, f"{tls.version()}, {cipher[0] if cipher else 'no cipher'}")


def certificate_of(addresses: list[Address], timeout_s: float) -> CertificateFacts | None:
    """Read the Server's certificate without trusting it; None: it could not be read.

    No credentials are sent on that connection.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    with contextlib.suppress(FailedStepError, OSError, CredentialsError):
        sock, _, _ = connect(addresses, timeout_s)
        with context.wrap_socket(sock) as tls:
            shown = tls.getpeercert(binary_form=True)
        return None if shown is None else read_facts(ssl.DER_cert_to_PEM_cert(shown))
    return None


class Conversation(ABC):
    """Control messages to and from the Server.

    Args:
        host: host name for failure messages.
    """

    def __init__(self, host: str) -> None:
        self._host = host

    @abstractmethod
    def say(self, message: Control) -> None:
        """Send.

        Raises:
            FailedStepError: the connection broke.
        """

    @abstractmethod
    def hear(self) -> Control:
        """Return the next message.

        Raises:
            FailedStepError: no message arrived in time, the connection broke, or the data is not a message.
        """

    @abstractmethod
    def end(self) -> None:
        """Close in order."""

    def _silent(self, timeout_s: float) -> FailedStepError:
        return FailedStepError(
            f"{self._host} did not answer within {timeout_s:g} s",
            "The Server hangs, or the link is too slow: look at its log and at this machine's network.",
        )

    def ask(self, message: Control) -> Diagnosis:
        """Send the first message and return the Server's answer.

        Raises:
            FailedStepError: the Server refuses this machine.
        """
        self.say(message)
        answer = self.hear()
        if isinstance(answer, Refused):
            found, _, todo = plain(answer.reason).partition(". ")
            todo = todo or REFUSED_TODO.get(answer.code, "See docs/security.md.")
            raise FailedStepError(f"refused ({plain(answer.code, 50)}): {found}", todo)
        if not isinstance(answer, Diagnosis):
            raise FailedStepError(f"{self._host} answered with {type(answer).__name__}", REFUSED_TODO["misuse"])
        return answer

    def echo(self, echo: Echo) -> None:
        """Wait for the answer to an echo.

        Raises:
            FailedStepError: another message arrives, or none.
        """
        answer = self.hear()
        if isinstance(answer, Refused):
            raise FailedStepError(f"refused ({plain(answer.code, 50)}): {plain(answer.reason)}", REFUSED_TODO["full"])
        if not isinstance(answer, Echo) or answer.number != echo.number or len(answer.filler) != echo.size:
            raise FailedStepError(f"{self._host} answered with {type(answer).__name__}", REFUSED_TODO["misuse"])


class SocketConversation(Conversation):
    """Control channel over a blocking socket.

    Args:
        sock: connected socket, with TLS established if it is used.
        host, hostname: names for failure messages.
        timeout_s: maximum wait for an answer.
    """

    def __init__(self, sock: socket.socket, host: str, hostname: str, timeout_s: float) -> None:
        super().__init__(host)
        self._sock = sock
        self._hostname = hostname
        self._timeout_s = timeout_s
        self._reader = FrameReader()
        self._heard: list[Control] = []

    def say(self, message: Control) -> None:
        """Send."""
        try:
            self._sock.settimeout(self._timeout_s)
            self._sock.sendall(control_frame(message))
        except OSError as exc:
            raise self._broken(exc) from exc

    def hear(self) -> Control:
        """Return the next message."""
        deadline = time.monotonic() + self._timeout_s
        while not self._heard:
            left = deadline - time.monotonic()
            if left <= 0:
                raise self._silent(self._timeout_s)
            self._sock.settimeout(left)
            try:
                n = self._sock.recv_into(self._reader.get_buffer())
                if n == 0:
                    raise FailedStepError(
                        f"{self._host} closed the connection without a message",
                        "Look at the Server's log; with network.security null here, the Server may expect TLS.",
                    )
                self._reader.received(n)
                frames = [frame for frame in self._reader.take() if frame.kind == Kind.CONTROL]
                self._heard += [decode_control(frame.payload) for frame in frames]
            except TimeoutError:
                continue
            except RemoteProtocolError as exc:
                raise FailedStepError(
                    f"{self._host} does not speak our protocol ({exc})",
                    "Another program listens there, or only one side has network.security null.",
                ) from exc
            except OSError as exc:
                raise self._broken(exc) from exc
        return self._heard.pop(0)

    def _broken(self, exc: OSError) -> FailedStepError:
        # The Server's last message may be unread. With TLS 1.3, the rejection of a certificate is visible only now.
        return from_text(
            explain(exc, host=self._host, hostname=self._hostname), "Look at the Server's log: it says why."
        )

    def end(self) -> None:
        """Close in order."""
        with contextlib.suppress(FailedStepError):
            self.say(Bye())
        with contextlib.suppress(OSError):
            self._sock.close()


class RoundTrips(NamedTuple):
    """Round-trip times of small messages to the Server, in seconds."""

    median_s: float
    worst_s: float


def round_trips(conversation: Conversation, count: int = 10) -> RoundTrips:
    """Measure the round-trip times one after the other."""
    seconds = []
    for number in range(count):
        begun = time.perf_counter()
        conversation.say(Echo(number))
        conversation.echo(Echo(number))
        seconds.append(time.perf_counter() - begun)
    return RoundTrips(statistics.median(seconds), max(seconds))


def rate(
    conversation: Conversation,
    *,
    up: bool,
    most_bytes: int,
    most_s: float,
    clock: Callable[[], float] = time.perf_counter,
) -> tuple[float, int]:
    """Return the bytes per second in one direction, and the number of bytes measured, in about `most_s` seconds.

    The number of bytes in transit doubles with each round trip, so that a slow link is not filled for long.
    """
    filler = bytes(MAX_BODY_BYTES)
    begun = clock()
    spent = number = answered = 0
    waiting: list[Echo] = []
    while True:
        more = spent + MAX_BODY_BYTES + ECHO_BYTES <= most_bytes and clock() - begun < most_s
        if more and len(waiting) < min(_MOST_OUTSTANDING, answered + 2):
            conversation.say(Echo(number, 0, filler) if up else Echo(number, MAX_BODY_BYTES))
            waiting.append(Echo(number, 0 if up else MAX_BODY_BYTES))
            spent += MAX_BODY_BYTES + ECHO_BYTES
            number += 1
        elif waiting:
            conversation.echo(waiting.pop(0))
            answered += 1
        else:
            return answered * MAX_BODY_BYTES / max(clock() - begun, 1e-9), answered * MAX_BODY_BYTES
