"""Sockets and certificates of HTTP servers."""

from __future__ import annotations

import contextlib
import errno
import logging
import socket
import ssl
from pathlib import Path
from urllib.parse import urlsplit

from tmrl_core.config.sections import is_loopback
from tmrl_core.errors import CredentialsError, NetworkError, PortInUseError
from tmrl_core.networking.security.certificates import read_facts
from tmrl_core.networking.security.handshakes import CREATE
from tmrl_core.networking.security.secret_files import read_file
from tmrl_core.networking.security.tls_contexts import server_context
from tmrl_core.networking.transports.port_holder import port_holder
from tmrl_core.networking.transports.tls import bound_sockets

logger = logging.getLogger(__name__)

_BACKLOG = 1024


def https_context(folder: Path, section: str) -> ssl.SSLContext:
    """Return the TLS context with the Server's certificate.

    Args:
        folder: credentials folder, or bundle file.
        section: section of the configuration whose part listens, for the error.

    Raises:
        CredentialsError: the certificate is not here; with what to run.
    """
    if not folder.is_file() and not (folder / "server.pem").exists():
        step = "Run `python -m tmrl_core --credentials create --host NAME`"
        if (folder / "ca.pem").exists() and not (folder / "ca.key").exists():
            step = (
                "On the machine that holds ca.key, run `python -m tmrl_core --credentials create --host NAME` with the "
                "name of this one, and `--credentials bundle server`; install the bundle here (its holder can act as "
                "the Server)"
            )
        raise CredentialsError(
            f"{folder / 'server.pem'} not found. Other machines reach the {section} over HTTPS, with a certificate "
            f"that names its host. {step}; or set {section}.host to 127.0.0.1, and come through an ssh tunnel."
        )
    context, _ = server_context(folder)
    context.verify_mode = ssl.CERT_NONE  # clients log in; a browser would ask its user for a certificate
    context.set_alpn_protocols(["http/1.1"])
    return context


class Certificate:
    """The certificate of a TLS context in use, loaded again when `--credentials renew` has made a new one.

    Open connections stay. Key and certificate are two files: if only one is new, loading fails and is tried again.

    Args:
        folder: credentials folder.
        context: uses the certificate; None: plain HTTP.
    """

    def __init__(self, folder: Path, context: ssl.SSLContext | None) -> None:
        self._file = folder / "server.pem"
        self._context = context
        self._read = self._stamp()

    def renew(self) -> None:
        """Use a new certificate for new connections, if there is one."""
        stamp = self._stamp()
        if self._context is None or stamp in (None, self._read):
            return
        with contextlib.suppress(ssl.SSLError, OSError):
            self._context.load_cert_chain(self._file, self._file.with_suffix(".key"))
            self._read = stamp

    def warn_of_names(self, url: str) -> None:
        """Log a warning if a browser would not believe that this is the host of the URL."""
        name = urlsplit(url).hostname or ""
        with contextlib.suppress(CredentialsError):  # a bundle file
            names = read_facts(read_file(self._file)).names
            if not {name, f"*.{name.partition('.')[2]}"}.intersection(names):
                text = "the certificate is not for %s but for %s: use one of these names, or add one (`%s --host NAME`)"
                logger.warning(text, name, ", ".join(names), CREATE)

    def _stamp(self) -> int | None:
        try:
            return self._file.stat().st_mtime_ns
        except OSError:
            return None


def listening_sockets(host: str, port: int, section: str) -> list[socket.socket]:
    """Return listening sockets; for loopback at 127.0.0.1 and ::1, since `localhost` may be either.

    Args:
        host: address.
        port: TCP port; 0: a free one.
        section: section of the configuration whose part listens, for the errors.

    Raises:
        NetworkError: the address or port cannot be had.
    """
    hosts = ["127.0.0.1", *(["::1"] if _has_ipv6() else [])] if is_loopback(host) else [host]
    try:
        made = bound_sockets(hosts, port)
        for one in made:
            one.listen(_BACKLOG)
        return made
    except OSError as exc:
        if exc.errno == errno.EADDRINUSE:
            holder = port_holder(port) or "the program that listens there"
            raise PortInUseError(f"port {port} of {host} is in use: end {holder}, or set {section}.port") from exc
        raise NetworkError(f"the {section} cannot listen on {host} port {port}: {exc.strerror or exc}") from exc


def url_of(host: str, port: int) -> str:
    """Return the address of an HTTP server that listens on this port, for display."""
    if is_loopback(host):
        return f"http://localhost:{port}/"
    anywhere = host in ("0.0.0.0", "::")
    name = socket.gethostname() if anywhere else f"[{host}]" if ":" in host else host
    return f"https://{name}:{port}/"


def _has_ipv6() -> bool:
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET6) as probe:
        probe.bind(("::1", 0))
        return True
    return False
