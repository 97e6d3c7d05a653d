"""Construction of the transport `tlspyo` from the credentials folder and the settings."""

from __future__ import annotations

import os
from collections.abc import Callable

from tmrl_core.errors import CredentialsError
from tmrl_core.networking.security import credentials, tlspyo_files
from tmrl_core.networking.security.admission import AdmissionSettings
from tmrl_core.networking.transports.tlspyo.process import check_installed
from tmrl_core.networking.transports.tlspyo.transport import TlspyoTransport

_KEY = "network.local_port_"


def tlspyo_transport(
    *,
    server: bool,
    tls: bool,
    credentials_dir: str | os.PathLike[str] | None,
    password: str | None,
    local_port: int,
    header_size: int,
    max_buf_len: int,
    role: str,
    hostname: str | None = None,
    admission: AdmissionSettings | None = None,
    on_refused: Callable[[str, str], None] = lambda address, reason: None,
) -> TlspyoTransport:
    """Return the transport for a Server or a client.

    Args:
        server: True: it listens.
        tls: True: it is encrypted.
        credentials_dir: folder with `certificate.pem`, and `key.pem` for a Server; None: the default credentials
            folder.
        password: password of tlspyo; None: the one in the credentials folder.
        local_port, header_size, max_buf_len: as in tlspyo.
        role: for the name of the setting of `local_port`.
        hostname: name in the certificate that a client expects; None: tlspyo's default.
        admission: limits for connections that have not shown the password; None: the defaults.
        on_refused: called with the address and the reason for each client with a wrong password or beyond the limits.

    Raises:
        MissingExtraError: tlspyo is not installed.
        CredentialsError: files are missing, or there is no password.
        ConfigError: the length of the header or of the password is out of range.
    """
    check_installed()
    folder = credentials.find(credentials_dir)
    part = tlspyo_files.load(folder, server=server) if tls else None
    if not password:
        password = part.password if part is not None else tlspyo_files.password_in(folder)
    if not password:
        raise CredentialsError(
            f"there is no password for tlspyo: neither TMRL_CORE_TOKEN is set nor does {folder} hold "
            f"{tlspyo_files.PASSWORD}. Set the one of your Relay, or run `python -m tmrl_core --credentials create`."
        )
    return TlspyoTransport(
        password=password,
        certificate=part.certificate if part is not None else None,
        key=part.key if part is not None else None,
        hostname=hostname or tlspyo_files.HOSTNAME,
        local_port=local_port,
        header_size=header_size,
        max_buf_len=max_buf_len,
        key_of_local_port=_KEY + role,
        admission=admission,
        on_refused=on_refused,
    )
