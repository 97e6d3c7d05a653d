"""Selection of the transport and the credentials of a client or a Server.

Transports are found by name in `tmrl_core.rooms`. The rules that hold for all of them stand here: names of hosts, and
plaintext on this machine only.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Literal

import msgspec
from msgspec import UNSET

from tmrl_core import rooms
from tmrl_core.config import CFG, Cfg, Config, find_credentials_folder, given
from tmrl_core.config.endpoints import at_endpoint, only_endpoint
from tmrl_core.config.loading import token_from_environment
from tmrl_core.config.sections import is_loopback as is_loopback
from tmrl_core.errors import ConfigError, CredentialsError
from tmrl_core.networking.protocol.connection import Authenticate
from tmrl_core.networking.protocol.messages import Role
from tmrl_core.networking.security.admission import AdmissionSettings
from tmrl_core.networking.security.certificates import clean_host
from tmrl_core.networking.transports.base import Guard, Transport, TransportKind
from tmrl_core.networking.transports.plain import plain_server
from tmrl_core.networking.transports.settings import LinkSettings as LinkSettings


def link_settings(
    config: Config,
    *,
    host: str | Cfg | None = CFG,
    port: int | Cfg = CFG,
    transport: str | Cfg = CFG,
    security: Literal["TLS"] | Cfg | None = CFG,
    hostname: str | Cfg | None = CFG,
    password: str | Cfg | None = CFG,
) -> LinkSettings:
    """Merge the public classes' arguments with the configuration; `CFG` selects the configuration's value.

    A client of several Servers has chosen its own before (`config/endpoints.py`).

    The folder of the credentials is searched here, unless the transport is `local`, because links read it again when
    an environment may have changed the working folder.

    Raises:
        ConfigError: the file of the token cannot be read or is empty; or the configuration lists several Servers, and
            nothing has chosen one of them.
    """
    network = config.network
    if isinstance(host, Cfg) and config.server.endpoints:
        config = at_endpoint(config, only_endpoint(config))
    address, kind = given(host, config.server.host), given(transport, network.transport)
    folder = network.credentials_dir if kind == "local" else str(find_credentials_folder(config))
    arguments: dict[str, Any] = {
        "host": "127.0.0.1" if address is None else address,
        "port": given(port, config.server.tcp_port),
        "transport": kind,
        "security": network.security if isinstance(security, Cfg) else security,
        "credentials_dir": folder,
        "hostname": given(hostname, network.hostname),
        "token": token_from_environment(os.environ) if isinstance(password, Cfg) else password,
        "token_is_argument": isinstance(password, str),
        "config": config,
    }
    # Keys that rooms have added stay behind, in `config`.
    values = {key: one for key, one in msgspec.structs.asdict(network).items() if key in LinkSettings.__struct_fields__}
    return LinkSettings(**(values | arguments))


def check_host(host: str, key: str) -> None:
    """Check that a host's name has a form that can be resolved and that certificates can hold.

    Raises:
        ConfigError: the name has another form.
    """
    try:
        if host:  # of a Server, an empty one means every interface
            clean_host(host)
    except CredentialsError:
        raise ConfigError(
            f"{key}: {host!r} is not a host name. Give a name or an address alone, without 'https://', and the port as "
            "server.port. The parts of a name, between dots, are 1 to 63 letters, digits, '-' or '_'."
        ) from None


def transport_kind(name: str) -> TransportKind:
    """Return the kind of transport that `network.transport` names.

    Raises:
        ConfigError: there is none of this name, or its package is broken.
    """
    if (entry := rooms.find("transports", name)) is None:
        raise ConfigError(f"network.transport is {name!r}; this version has {', '.join(rooms.entries('transports'))}")
    kind: type[TransportKind] = entry.load()
    return kind()


def client_transport(settings: LinkSettings, role: Role) -> tuple[Transport, str]:
    """Return the transport for a client's settings, and the token to send.

    Raises:
        ConfigError: plaintext beyond this machine, or an unknown transport.
        CredentialsError: there are no credentials.
    """
    kind = transport_kind(settings.transport)
    if kind.in_process:
        return kind.client(settings, role, tls=False)
    check_host(settings.host, "server.host")
    check_host(settings.hostname or "", "network.hostname")
    plain = uses_plaintext(settings)
    if plain and not is_loopback(settings.host) and not settings.allow_insecure_remote:
        raise ConfigError(
            f"network.security is null and the Server is {settings.host}: everybody on the network path could read and "
            "send data, and read the token. Use TLS, or allow this with network.allow_insecure_remote: true."
        )
    return kind.client(settings, role, tls=not plain)


def uses_plaintext(settings: LinkSettings) -> bool:
    """Return True if a client with these settings connects without TLS."""
    if settings.security is UNSET:
        return is_loopback(settings.host) and plain_server(settings.port)
    return settings.security is None


def server_transport(
    settings: LinkSettings, on_refused: Callable[[str, str], None], admission: AdmissionSettings | None = None
) -> tuple[Transport, Authenticate]:
    """Return the transport of a Server, and the function that authenticates its peers.

    `on_refused(address, reason)` is called for each peer whose TLS handshake fails, or that is rejected before it.

    Raises:
        ConfigError: plaintext beyond this machine without `network.allow_insecure_remote`, or an unknown transport.
        CredentialsError: there is no server certificate.
    """
    kind, guard = transport_kind(settings.transport), Guard(on_refused, admission)
    if kind.in_process:
        return kind.server(settings, guard, tls=False)
    host, plain = settings.host, settings.security is None
    check_host(host, "server.bind")
    if plain and not is_loopback(host) and not settings.allow_insecure_remote:
        raise ConfigError(
            f"network.security is null and the Server would listen on {host or 'every interface'}: everybody there "
            "could read and send data. Use TLS, listen on 127.0.0.1, or allow this with "
            "network.allow_insecure_remote: true."
        )
    return kind.server(settings, guard, tls=not plain)
