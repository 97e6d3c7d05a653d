"""Files of tlspyo's `keys_dir`, and its password: for the transport `tlspyo` and tlspyo itself.

certificate.pem    the Relay's self-signed certificate, which clients trust
key.pem            its key: on the Server's machine only
tlspyo.password    the password of all roles (this project's file: tlspyo gets its password in other ways)
"""

# tlspyo's own command for the first two files fails with current pyOpenSSL. The certificate is for tlspyo's default
# host name `default`, for this machine's loopback, and for the hosts named at its creation. Hosts named later do not
# renew it, because every client would need the new one.

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable, Mapping
from datetime import datetime
from pathlib import Path

import msgspec

from tmrl_core.decodable import decodable
from tmrl_core.errors import CredentialsError
from tmrl_core.networking.security.added_files import AddedFiles
from tmrl_core.networking.security.certificates import LOOPBACK_HOSTS, make_self_signed_certificate
from tmrl_core.networking.security.handshakes import CREATE
from tmrl_core.networking.security.secret_files import read_file, read_secret, write_file
from tmrl_core.networking.security.tls_contexts import read_bundle

ROOM = "tlspyo"
CERTIFICATE, KEY, PASSWORD = "certificate.pem", "key.pem", "tlspyo.password"
HOSTNAME = "default"
"""Default name that tlspyo's clients expect in the certificate."""

_PASSWORD_BYTES = 32


@decodable
class TlspyoPart(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Credentials of the transport `tlspyo`: the Server's certificate, the password, and for a Server the key."""

    certificate: str
    password: str = ""
    key: str = ""

    def __repr__(self) -> str:
        return "TlspyoPart(...)"


class TlspyoFiles(AddedFiles):
    """The files of tlspyo in the credentials folder."""

    about = "tlspyo's certificate or password"
    certificate = CERTIFICATE
    hostname = HOSTNAME
    secrets = (KEY, PASSWORD)

    def make(self, folder: Path, hosts: Iterable[str], not_after: datetime, *, overwrite: bool = False) -> bool:
        """Create missing files. Return True if any were missing. The caller must hold the folder's lock."""
        made = False
        if overwrite or not ((folder / CERTIFICATE).exists() or (folder / KEY).exists()):
            names = dict.fromkeys((HOSTNAME, *hosts, *LOOPBACK_HOSTS))
            pair = make_self_signed_certificate("tmrl_core tlspyo server", names, not_after)
            write_file(folder / KEY, pair.key, private=True)
            write_file(folder / CERTIFICATE, pair.certificate)
            made = True
        # A certificate without its key came from another machine, so the password must come from there too.
        if overwrite or ((folder / KEY).exists() and not (folder / PASSWORD).exists()):
            write_file(folder / PASSWORD, secrets.token_urlsafe(_PASSWORD_BYTES) + "\n", private=True)
            made = True
        return made

    def bundled(self, folder: Path, *, server: bool) -> dict[str, str]:
        """Return the texts of this folder for a bundle; none: the folder has nothing for tlspyo."""
        found: dict[str, str] = {}
        if (folder / CERTIFICATE).exists() and (not server or (folder / KEY).exists()):
            found = msgspec.to_builtins(_in_folder(folder, server=server))
        return found

    def install(self, texts: Mapping[str, str], folder: Path) -> list[Path]:
        """Write a bundle's files for tlspyo and return them."""
        part, files = _part(texts), []
        for name, text in ((KEY, part.key), (PASSWORD, part.password)):
            if text:
                files.append(folder / name)
                write_file(files[-1], text.strip() + "\n", private=True)
        files.append(folder / CERTIFICATE)
        write_file(files[-1], part.certificate)
        return files

    def conflict(self, texts: Mapping[str, str], folder: Path) -> bool:
        """Return True if a bundle's certificate or password would replace a different one in this folder."""
        here, brings = self.bundled(folder, server=False), _part(texts)
        other = here.get("password", brings.password)
        return bool(here) and (brings.certificate != here["certificate"] or other != brings.password.strip())


def _part(texts: Mapping[str, str]) -> TlspyoPart:
    try:
        return msgspec.convert(texts, TlspyoPart)
    except msgspec.ValidationError as exc:
        raise CredentialsError(f"the bundle's part for tlspyo is damaged: {exc}. Make a new bundle.") from None


def _in_folder(folder: Path, *, server: bool) -> TlspyoPart:
    key = read_file(folder / KEY, private=True) if server else ""
    return TlspyoPart(read_file(folder / CERTIFICATE), password_in(folder), key)


def _in_bundle(file: Path) -> TlspyoPart | None:
    texts = read_bundle(file).added.get(ROOM)
    return None if texts is None else _part(texts)


def password_in(directory: str | os.PathLike[str]) -> str:
    """Return the password in a credentials folder or bundle file; empty: there is none."""
    folder = Path(directory).expanduser()
    if folder.is_file():
        part = _in_bundle(folder)
        return part.password if part is not None else ""
    return read_secret(folder / PASSWORD)


def load(directory: str | os.PathLike[str], *, server: bool) -> TlspyoPart:
    """Load tlspyo's part of a Server or a client from a credentials folder, a folder of tlspyo's, or a bundle file.

    Raises:
        CredentialsError: a part is missing; the message names the command to run.
    """
    folder = Path(directory).expanduser()
    if folder.is_file():
        part = _in_bundle(folder)
        if part is None or (server and not part.key):
            raise CredentialsError(f"{folder} holds nothing for tlspyo. {_ADVICE}")
        return part
    for place in (folder, folder / CERTIFICATE, *([folder / KEY] if server else [])):
        if not place.exists():
            raise CredentialsError(f"{place} not found. {_ADVICE}")
    return _in_folder(folder, server=server)


_ADVICE = (
    f"Run `{CREATE}` on the machine of the Server and copy bundles from there, or let network.credentials_dir name the "
    "folder of tlspyo's own certificate.pem (with key.pem beside it for the Server)."
)
