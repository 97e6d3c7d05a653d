"""Checks of the way to the Server, one socket at a time: name, port, TLS.

Plain blocking sockets with deadlines are used, not the package's own links. So each step fails separately and names the
address. The conversation that follows uses a link (`conversation.py`).
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import time
from typing import Any, NamedTuple

from tmrl_core.doctor.steps import FailedStepError
from tmrl_core.errors import CredentialsError
from tmrl_core.networking.security.certificates import CertificateFacts, read_facts
from tmrl_core.networking.security.handshakes import explain


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
        "it runs on another machine, server.bind must let it listen there (null with a public server.host; IPv6: `::`)."
        if refused
        else "The machine is off, the address is wrong, or a firewall drops the packets: let TCP to that port of the "
        "Server's machine pass, in its own firewall and its provider's.",
    )


def secure(
    sock: socket.socket, context: ssl.SSLContext, hostname: str, host: str, timeout_s: float
) -> tuple[ssl.SSLSocket, str]:
    """Establish TLS over a connection and check the Server's certificate. Return the socket and a description.

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
    return tls, f"{tls.version()}, {cipher[0] if cipher else 'no cipher'}"


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
