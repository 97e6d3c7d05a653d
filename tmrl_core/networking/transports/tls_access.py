"""Transport `tls`: TLS sockets with the credentials folder, or plain TCP with a token."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING

from tmrl_core.networking.protocol.connection import Authenticate
from tmrl_core.networking.protocol.messages import Role
from tmrl_core.networking.security.admission import Admission
from tmrl_core.networking.security.authentication import ClientAccess, ServerAccess, delay_rejections
from tmrl_core.networking.security.logins import check_password
from tmrl_core.networking.transports.base import Guard, Transport, TransportKind
from tmrl_core.networking.transports.tls import TlsTransport

if TYPE_CHECKING:
    from tmrl_core.networking.transports.settings import LinkSettings


class TlsKind(TransportKind):
    """TLS sockets, or plain TCP."""

    transport: type[TlsTransport] = TlsTransport

    def client(self, settings: LinkSettings, role: Role, *, tls: bool) -> tuple[Transport, str]:
        """Return the transport of a client, and the token to send."""
        if not tls:
            return self.transport(None), settings.token or ""
        from tmrl_core.networking.security import credentials, handshakes

        access = ClientAccess(credentials.find(settings.credentials_dir), role, settings.token)
        hostname = settings.hostname or settings.host
        transport = self.transport(
            access.context,
            server_hostname=hostname,
            explain=partial(handshakes.explain, host=settings.host, hostname=hostname),
            access=access,
        )
        return transport, access.token

    def server(self, settings: LinkSettings, guard: Guard, *, tls: bool) -> tuple[Transport, Authenticate]:
        """Return the transport of a Server, and the function that authenticates its peers."""
        strangers = Admission(guard.admission)
        if not tls:
            return (
                self.transport(None, on_refused=guard.on_refused, admission=strangers),
                delay_rejections(
                    lambda hello, connection: check_password(hello, settings.token), strangers, time.monotonic
                ),
            )
        from tmrl_core.networking.security import credentials, handshakes

        access = ServerAccess(credentials.find(settings.credentials_dir))
        return (
            self.transport(
                access.context,
                identity_of=handshakes.identity_of,
                explain=partial(handshakes.explain, host="this Server", side="server"),
                on_refused=guard.on_refused,
                access=access,
                admission=strangers,
            ),
            delay_rejections(access.authenticate, strangers, time.monotonic),
        )
