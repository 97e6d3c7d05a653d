"""Files of tlspyo's `keys_dir`, and its password: for the transport `tlspyo` and tlspyo itself.

    certificate.pem    the Relay's self-signed certificate, which clients trust
    key.pem            its key: on the Server's machine only
    tlspyo.password    the password of all roles (this project's file: tlspyo gets its password in other ways)

tlspyo's own command for the first two files fails with current pyOpenSSL. The certificate is for tlspyo's default host
name `default`, for this machine's loopback, and for the hosts named at its creation. Hosts named later do not renew it,
because every client would need the new one.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path

from tmrl_core.errors import CredentialsError
from tmrl_core.networking.security.certificates import LOOPBACK_HOSTS, make_self_signed_certificate
from tmrl_core.networking.security.handshakes import CREATE
from tmrl_core.networking.security.secret_files import read_file, read_secret, write_file
from tmrl_core.networking.security.tls_contexts import TlspyoPart, read_bundle

CERTIFICATE, KEY, PASSWORD = "certificate.pem", "key.pem", "tlspyo.password"
HOSTNAME = "default"
"""Default name that tlspyo's clients expect in the certificate."""

_PASSWORD_BYTES = 32


def make(folder: Path, hosts: Iterable[str], not_after: datetime, *, overwrite: bool = False) -> bool:
    """Create missing files. Return True if any were missing. The caller must hold the folder's lock."""
    made = False
    if overwrite or not ((folder / CERTIFICATE).exists() or (folder / KEY).exists()):
        names = dict.fromkeys((HOSTNAME, *hosts, *LOOPBACK_HOSTS))
        pair = make_self_signed_certificate(names, not_after)
        write_file(folder / KEY, pair.key, private=True)
        write_file(folder / CERTIFICATE, pair.certificate)
        made = True
    # A certificate without its key came from another machine, so the password must come from there too.
    if overwrite or ((folder / KEY).exists() and not (folder / PASSWORD).exists()):
        write_file(folder / PASSWORD, secrets.token_urlsafe(_PASSWORD_BYTES) + "\n", private=True)
        made = True
    return made


def part_of(folder: Path, *, server: bool) -> TlspyoPart | None:
    """Return the tlspyo part for a bundle of this folder; None: the folder has nothing for tlspyo."""
    if not (folder / CERTIFICATE).exists() or (server and not (folder / KEY).exists()):
        return None
    key = read_file(folder / KEY, private=True) if server else ""
    return TlspyoPart(read_file(folder / CERTIFICATE), password_in(folder), key)


def install(part: TlspyoPart, folder: Path) -> list[Path]:
    """Write a bundle's files for tlspyo and return them."""
    files = []
    for name, text in ((KEY, part.key), (PASSWORD, part.password)):
        if text:
            files.append(folder / name)
            write_file(files[-1], text.strip() + "\n", private=True)
    files.append(folder / CERTIFICATE)
    write_file(files[-1], part.certificate)
    return files


def password_in(directory: str | os.PathLike[str]) -> str:
    """Return the password in a credentials folder or bundle file; empty: there is none."""
    folder = Path(directory).expanduser()
    if folder.is_file():
        part = read_bundle(folder).tlspyo
        return part.password if part is not None else ""
    return read_secret(folder / PASSWORD)


def load(directory: str | os.PathLike[str], *, server: bool) -> TlspyoPart:
    """Load tlspyo's part of a Server or a client from a credentials folder, a folder of tlspyo's, or a bundle file.

    Raises:
        CredentialsError: a part is missing; the message names the command to run.
    """
    folder = Path(directory).expanduser()
    if folder.is_file():
        part = read_bundle(folder).tlspyo
        if part is None or (server and not part.key):
            raise CredentialsError(f"{folder} holds nothing for tlspyo. {_ADVICE}")
        return part
    if not folder.exists():
        raise CredentialsError(f"{folder} not found. {_ADVICE}")
    for name in (CERTIFICATE, KEY) if server else (CERTIFICATE,):
        if not (folder / name).exists():
            raise CredentialsError(f"{folder / name} not found. {_ADVICE}")
    part = part_of(folder, server=server)
    assert part is not None
    return part


_ADVICE = (
    f"Run `{CREATE}` on the machine of the Server and copy bundles from there, or let network.credentials_dir name the "
    "folder of tlspyo's own certificate.pem (with key.pem beside it for the Server)."
)
