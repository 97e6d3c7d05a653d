"""Construction of the transport `tlspyo` from the credentials folder and the settings."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from tmrl_core.errors import CredentialsError
from tmrl_core.networking.protocol.connection import Authenticate
from tmrl_core.networking.protocol.messages import Role
from tmrl_core.networking.security import credentials
from tmrl_core.networking.security.admission import AdmissionSettings
from tmrl_core.networking.security.certificates import read_facts
from tmrl_core.networking.security.secret_files import writing
from tmrl_core.networking.transports.base import Guard, Transport, TransportKind
from tmrl_core.networking.transports.tlspyo import files
from tmrl_core.networking.transports.tlspyo.process import check_installed
from tmrl_core.networking.transports.tlspyo.settings import TlspyoKeys
from tmrl_core.networking.transports.tlspyo.transport import TlspyoTransport

if TYPE_CHECKING:
    from tmrl_core.networking.transports.settings import LinkSettings


class TlspyoKind(TransportKind):
    """Links of tlspyo's Relay and Endpoints. tlspyo has no roles, and checks its password itself."""

    advice = "Look at the Server's log, and whether it has network.transport: tlspyo and this network.header_size too."

    def ensure_credentials(self, folder: Path) -> bool:
        """Create tlspyo's missing certificate and password. Return True if they were created."""
        if folder.is_file() or (folder / files.CERTIFICATE).exists():
            return False
        if not (folder / "ca.pem").exists():
            return credentials.ensure(folder)
        with writing(folder):
            until = datetime.now(timezone.utc) + timedelta(days=credentials.CA_DAYS)
            return files.TlspyoFiles().make(folder, (), until)

    def client(self, settings: LinkSettings, role: Role, *, tls: bool) -> tuple[Transport, str]:
        """Return the transport of a client."""
        return tlspyo_transport(settings, role, tls=tls), ""

    def server(self, settings: LinkSettings, guard: Guard, *, tls: bool) -> tuple[Transport, Authenticate]:
        """Return the transport of a Server."""
        made = tlspyo_transport(settings, "server", tls=tls, **guard._asdict())
        return made, lambda hello, connection: None

    def examined(self, settings: LinkSettings, role: Role, *, tls: bool) -> tuple[Transport, str]:
        """Return a client's transport for `--doctor`, and a description of its credentials."""
        # The configured local port may be in use by a running role.
        network = msgspec.structs.replace(settings.config.network, local_port_trainer=0, local_port_worker=0)
        config = msgspec.structs.replace(settings.config, network=network)
        made = tlspyo_transport(msgspec.structs.replace(settings, config=config), role, tls=tls)
        folder = credentials.find(settings.credentials_dir)
        where = "TMRL_CORE_TOKEN" if settings.token else str(folder)
        if not tls:
            return made, f"the password from {where}; network.security is null: no certificate"
        facts = read_facts(files.load(folder, server=False).certificate)
        if facts.not_after <= datetime.now(timezone.utc):
            raise CredentialsError(
                f"the Server's certificate.pem in {folder} expired on {facts.not_after:%Y-%m-%d}. Make new credentials "
                "on the Server's machine (`python -m tmrl_core --credentials create --overwrite`) and copy them here."
            )
        names = ", ".join(facts.names) or facts.subject
        until = f"{facts.not_after:%Y-%m-%d}"
        return made, f"the password from {where}; the Server's certificate for {names}, valid to {until}"


def tlspyo_transport(
    settings: LinkSettings,
    role: str,
    *,
    tls: bool,
    admission: AdmissionSettings | None = None,
    on_refused: Callable[[str, str], None] = lambda address, reason: None,
) -> TlspyoTransport:
    """Return the transport for a Server or a client.

    Args:
        settings: settings with a folder that holds `certificate.pem`, and `key.pem` for a Server. The token is tlspyo's
            password; None: the password in the folder.
        role: role of this process; a `server` listens.
        tls: True: the link is encrypted.
        admission: limits for unauthenticated connections; None: the defaults.
        on_refused: called with the address and the reason for each client with a wrong password or beyond the limits.

    Raises:
        MissingExtraError: tlspyo is not installed.
        CredentialsError: files are missing, or there is no password.
        ConfigError: the length of the header or of the password is out of range.
    """
    check_installed()
    folder = credentials.find(settings.credentials_dir)
    part = files.load(folder, server=role == "server") if tls else None
    password = settings.token
    if not password:
        password = part.password if part is not None else files.password_in(folder)
    if not password:
        raise CredentialsError(
            f"there is no password for tlspyo: neither TMRL_CORE_TOKEN is set nor does {folder} hold "
            f"{files.PASSWORD}. Set the one of your Relay, or run `python -m tmrl_core --credentials create`."
        )
    keys = TlspyoKeys.of(settings.config) or TlspyoKeys()
    return TlspyoTransport(
        password=password,
        certificate=part.certificate if part is not None else None,
        key=part.key if part is not None else None,
        hostname=settings.hostname or files.HOSTNAME,
        local_port=keys.local_port(role),
        header_size=keys.header_size,
        max_buf_len=keys.max_buf_len,
        key_of_local_port=f"network.local_port_{role}",
        admission=admission,
        on_refused=on_refused,
    )
