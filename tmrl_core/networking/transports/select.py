"""Which transport a client or a Server uses, with which credentials. The one place that knows all of them."""

from __future__ import annotations

import contextlib
import hmac
import ipaddress
import json
import logging
import os
import stat
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from tmrl_core.errors import ConfigError
from tmrl_core.networking.connection import Connection
from tmrl_core.networking.messages import Hello, Role
from tmrl_core.networking.transports.base import Transport

if TYPE_CHECKING:
    from tmrl_core.networking.links import LinkSettings

logger = logging.getLogger(__name__)

Authenticate = Callable[[Hello, Connection], "tuple[str, str] | None"]


def client_transport(settings: LinkSettings, role: Role) -> tuple[Transport, str]:
    """The transport for a client's settings, and the token to show.

    Raises:
        ConfigError: plaintext beyond this machine.
        CredentialsError: there are no credentials.
    """
    if settings.transport == "local":
        from tmrl_core.networking.transports.local import LocalTransport

        return LocalTransport(), ""
    if settings.transport != "tls":
        raise ConfigError(f"network.transport is {settings.transport!r}; this version has 'tls' and 'local'")
    from tmrl_core.networking.transports.tls import TlsTransport

    security = settings.security
    if security == "auto":
        security = None if is_loopback(settings.host) and plain_server(settings.port) else "TLS"
    if security is None:
        return TlsTransport(None), settings.token or ""
    from tmrl_core.networking import credentials, handshakes

    folder = credentials.find(settings.credentials_dir)
    hostname = settings.hostname or settings.host
    transport = TlsTransport(
        credentials.client_context(folder, role),
        server_hostname=hostname,
        explain=partial(handshakes.explain, host=settings.host, hostname=hostname),
    )
    return transport, settings.token or credentials.token_for(folder, role) or ""


def server_transport(
    *, transport: str, security: str | None, host: str, credentials_dir: str | None, token: str | None, insecure: bool
) -> tuple[Transport, Authenticate]:
    """The transport for a Server, and what decides about the peers that come.

    Raises:
        ConfigError: plaintext beyond this machine without `network.allow_insecure_remote`.
        CredentialsError: there is no server certificate.
    """
    if transport == "local":
        from tmrl_core.networking.transports.local import LocalTransport

        return LocalTransport(), lambda hello, connection: None
    if transport != "tls":
        raise ConfigError(f"network.transport is {transport!r}; this version has 'tls' and 'local'")
    from tmrl_core.networking.transports.tls import TlsTransport

    if security is None:
        if not is_loopback(host) and not insecure:
            raise ConfigError(
                f"network.security is null and the Server would listen on {host or 'every interface'}: everybody there "
                "could read and send. Use TLS, listen on 127.0.0.1, or insist with network.allow_insecure_remote: true."
            )
        return TlsTransport(None), _plain_authenticate(token)
    from tmrl_core.networking import credentials, handshakes

    folder = credentials.find(credentials_dir)
    context, verifier = credentials.server_context(folder)

    def authenticate(hello: Hello, connection: Connection) -> tuple[str, str] | None:
        identity = connection.identity
        if identity.role is not None:
            if identity.role != hello.role:
                return (
                    "role",
                    f"this certificate is a {identity.role}'s; it cannot act as {hello.role}. Make a bundle for that "
                    f"role: python -m tmrl_core --credentials bundle {hello.role} --name NAME",
                )
            return None
        if not hello.token:
            return (
                "certificate",
                "neither a client certificate nor a token was shown. Copy a bundle to this machine "
                f"(python -m tmrl_core --credentials bundle {hello.role} --name NAME) or set TMRL_CORE_TOKEN.",
            )
        if not verifier.check(hello.role, hello.token):
            return (
                "token",
                f"the token is not this Server's token of the role {hello.role}. Copy a new bundle from the machine "
                f"that holds the credentials (python -m tmrl_core --credentials bundle {hello.role} --name NAME), or "
                "correct TMRL_CORE_TOKEN.",
            )
        return None

    def refused(address: str, reason: str) -> None:
        logger.warning("refused a connection from %s: %s", address, reason)

    return (
        TlsTransport(
            context,
            identity_of=handshakes.identity_of,
            explain=partial(handshakes.explain, host="this Server", side="server"),
            on_refused=refused,
        ),
        authenticate,
    )


def _plain_authenticate(token: str | None) -> Authenticate:
    def authenticate(hello: Hello, connection: Connection) -> tuple[str, str] | None:
        if token and not hmac.compare_digest(token.encode(), hello.token.encode()):
            return "token", f"the token is not the one that this Server was given for the role {hello.role}"
        return None

    return authenticate


def is_loopback(host: str) -> bool:
    """Whether a host name can only mean this machine."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


# --- the file by which a plaintext Server of this user is known ---


def _plain_file(port: int) -> Path:
    from tmrl_core.config import data_folder

    return data_folder() / "plain_servers" / f"{port}.json"


def announce_plain_server(port: int) -> Path:
    """Leave the private file by which this user's clients know that the Server on `port` speaks plaintext."""
    path = _plain_file(port)
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with contextlib.suppress(FileNotFoundError):
        path.unlink()
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        json.dump({"port": port, "pid": os.getpid()}, file)
    return path


def plain_server(port: int) -> bool:
    """Whether this user's own live Server on this machine's `port` speaks plaintext."""
    path = _plain_file(port)
    try:
        info = os.lstat(path)
        if not stat.S_ISREG(info.st_mode) or (hasattr(os, "getuid") and info.st_uid != os.getuid()):
            return False
        pid = json.loads(path.read_text())["pid"]
    except (OSError, ValueError, KeyError, TypeError):
        return False
    return isinstance(pid, int) and _alive(pid)


def _alive(pid: int) -> bool:
    if os.name == "nt":
        # os.kill(pid, 0) would end the process on Windows; a stale file is caught by the failing connection.
        return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return False
    return True
