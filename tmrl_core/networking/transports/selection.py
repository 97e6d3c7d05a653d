"""Which transport a client or a Server uses, with which credentials. The one place that knows all of them."""

from __future__ import annotations

import ipaddress
import re
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Literal

import msgspec

from tmrl_core.config import CFG, Cfg, Config, given
from tmrl_core.config.sections import is_loopback as is_loopback
from tmrl_core.errors import ConfigError
from tmrl_core.networking.protocol.connection import Authenticate
from tmrl_core.networking.protocol.messages import Role
from tmrl_core.networking.security.admission import Admission, AdmissionSettings
from tmrl_core.networking.security.authentication import ClientAccess, ServerAccess, delay_rejections
from tmrl_core.networking.security.logins import check_password
from tmrl_core.networking.transports.base import Transport
from tmrl_core.networking.transports.plain import plain_server


class LinkSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Address of the Server, and settings of the connection to it.

    `security` "auto" is TLS, except towards a Server on this machine that the same user runs without it.
    """

    host: str = "127.0.0.1"
    port: int = 55555
    transport: Literal["tls", "local", "tlspyo"] = "tls"
    security: Literal["TLS", "auto"] | None = "TLS"
    hostname: str | None = None
    credentials_dir: str | None = None
    token: str | None = None
    allow_insecure_remote: bool = False
    connect_timeout_s: float = 5.0
    """Time limit of each step of connecting: TCP, TLS, the greeting. In a black hole the kernel's waits between
    repetitions double, so a longer limit would find a recovered network later than a new attempt."""
    silent_s: float = 10.0
    heartbeat_s: float = 3.0
    backoff_min_s: float = 0.2
    backoff_max_s: float = 15.0
    max_message_bytes: int = 16 << 20
    compression: Literal["auto", "zstd", "none"] = "auto"
    local_port: int = 0
    """For the transport tlspyo, as the next two; 0: a free one."""
    header_size: int = 12
    max_buf_len: int = 512 << 20

    def __repr__(self) -> str:
        return f"LinkSettings(host={self.host!r}, port={self.port}, transport={self.transport!r})"  # never the token


def link_settings(
    config: Config,
    *,
    host: str,
    port: int,
    transport: Literal["tls", "local", "tlspyo"],
    security: Literal["TLS"] | Cfg | None,
    keys_dir: str | Path | Cfg | None,
    hostname: str | Cfg | None,
    password: str | Cfg | None,
    local_port: int = 0,
    header_size: int | Cfg = CFG,
    max_buf_len: int | Cfg = CFG,
) -> LinkSettings:
    """Merge the public classes' arguments with the configuration; `CFG` selects the configuration's value."""
    network = config.network
    from_config: Literal["TLS", "auto"] | None = "auto" if network.security_left_out else network.security
    folder = given(keys_dir, network.credentials_dir)
    return LinkSettings(
        host=host,
        port=port,
        transport=transport,
        security=from_config if isinstance(security, Cfg) else security,
        hostname=given(hostname, network.hostname),
        credentials_dir=str(folder) if folder is not None else None,
        token=network.token if isinstance(password, Cfg) else password,
        silent_s=network.silent_s,
        heartbeat_s=network.heartbeat_s,
        backoff_min_s=network.backoff_min_s,
        backoff_max_s=network.backoff_max_s,
        max_message_bytes=network.max_message_bytes,
        compression=network.compression,
        allow_insecure_remote=network.allow_insecure_remote,
        local_port=local_port,
        header_size=given(header_size, network.header_size),
        max_buf_len=given(max_buf_len, network.max_buf_len),
    )


def check_host(host: str, key: str) -> None:
    """Check that a host's name can be resolved, and can be in a certificate, at all.

    Raises:
        ConfigError: it cannot.
    """
    if re.search(r"[\s/@]", host) or (":" in host and not _is_address(host)):
        raise ConfigError(
            f"{key}: {host!r} is not a host name. Give a name or an address alone, without 'https://', and the port as "
            "server.port."
        )
    try:
        host.encode("idna")
    except UnicodeError:
        raise ConfigError(
            f"{key}: {host!r} is not a host name: its parts, between dots, have 1 to 63 characters. Give a name or an "
            "address."
        ) from None


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def client_transport(settings: LinkSettings, role: Role) -> tuple[Transport, str]:
    """The transport for a client's settings, and the token to show.

    Raises:
        ConfigError: plaintext beyond this machine, or an unknown transport.
        CredentialsError: there are no credentials.
    """
    if settings.transport == "local":
        from tmrl_core.networking.transports.local import LocalTransport

        return LocalTransport(), ""
    _check_known(settings.transport)
    check_host(settings.host, "server.host")
    check_host(settings.hostname or "", "network.hostname")
    security = settings.security
    if security == "auto":
        security = None if is_loopback(settings.host) and plain_server(settings.port) else "TLS"
    if security is None and not is_loopback(settings.host) and not settings.allow_insecure_remote:
        raise ConfigError(
            f"network.security is null and the Server is {settings.host}: everybody on the network path could read and "
            "send data, and read the token. Use TLS, or allow this with network.allow_insecure_remote: true."
        )
    if settings.transport == "tlspyo":
        from tmrl_core.networking.transports.tlspyo.selection import tlspyo_transport

        made = tlspyo_transport(
            server=False,
            tls=security is not None,
            credentials_dir=settings.credentials_dir,
            password=settings.token,
            local_port=settings.local_port,
            header_size=settings.header_size,
            max_buf_len=settings.max_buf_len,
            role=role,
            hostname=settings.hostname,
        )
        return made, ""
    from tmrl_core.networking.transports.tls import TlsTransport

    if security is None:
        return TlsTransport(None), settings.token or ""
    from tmrl_core.networking.security import credentials, handshakes

    access = ClientAccess(credentials.find(settings.credentials_dir), role, settings.token)
    hostname = settings.hostname or settings.host
    transport = TlsTransport(
        access.context,
        server_hostname=hostname,
        explain=partial(handshakes.explain, host=settings.host, hostname=hostname),
        access=access,
    )
    return transport, access.token


def server_transport(
    *,
    transport: str,
    security: str | None,
    host: str,
    credentials_dir: str | None,
    token: str | None,
    insecure: bool,
    on_refused: Callable[[str, str], None],
    admission: AdmissionSettings | None = None,
    local_port: int = 0,
    header_size: int = 12,
    max_buf_len: int = 512 << 20,
) -> tuple[Transport, Authenticate]:
    """Return the transport of a Server, and the function that authenticates its peers.

    `on_refused(address, reason)` is called for each peer whose TLS handshake fails, or that is rejected before it.

    Raises:
        ConfigError: plaintext beyond this machine without `network.allow_insecure_remote`, or an unknown transport.
        CredentialsError: there is no server certificate.
    """
    if transport == "local":
        from tmrl_core.networking.transports.local import LocalTransport

        return LocalTransport(), lambda hello, connection: None
    _check_known(transport)
    check_host(host, "server.bind")
    if security is None and not is_loopback(host) and not insecure:
        raise ConfigError(
            f"network.security is null and the Server would listen on {host or 'every interface'}: everybody there "
            "could read and send data. Use TLS, listen on 127.0.0.1, or allow this with "
            "network.allow_insecure_remote: true."
        )
    if transport == "tlspyo":
        from tmrl_core.networking.transports.tlspyo.selection import tlspyo_transport

        made = tlspyo_transport(
            server=True,
            tls=security is not None,
            credentials_dir=credentials_dir,
            password=token,
            local_port=local_port,
            header_size=header_size,
            max_buf_len=max_buf_len,
            role="server",
            admission=admission,
            on_refused=on_refused,
        )
        # tlspyo has checked its password already, and has no roles.
        return made, lambda hello, connection: None
    from tmrl_core.networking.transports.tls import TlsTransport

    strangers = Admission(admission)
    if security is None:
        return (
            TlsTransport(None, on_refused=on_refused, admission=strangers),
            delay_rejections(lambda hello, connection: check_password(hello, token), strangers, time.monotonic),
        )
    from tmrl_core.networking.security import credentials, handshakes

    access = ServerAccess(credentials.find(credentials_dir))

    return (
        TlsTransport(
            access.context,
            identity_of=handshakes.identity_of,
            explain=partial(handshakes.explain, host="this Server", side="server"),
            on_refused=on_refused,
            access=access,
            admission=strangers,
        ),
        delay_rejections(access.authenticate, strangers, time.monotonic),
    )


def _check_known(transport: str) -> None:
    if transport not in ("tls", "tlspyo"):
        raise ConfigError(f"network.transport is {transport!r}; this version has 'tls', 'local' and 'tlspyo'")
