"""Revocation and renewal of credentials: revoked certificates, rotated tokens, renewed bundles.

All functions work in the folder where `create` ran. A running Server that reads that folder reloads it within two
seconds.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path

import msgspec

from tmrl_core.errors import CredentialsError
from tmrl_core.networking.security.certificates import Signed, read_facts
from tmrl_core.networking.security.credentials import DAYS, bundle, create, new_token
from tmrl_core.networking.security.handshakes import BUNDLE, CREATE, identity_of
from tmrl_core.networking.security.revocations import (
    ISSUED_FILE,
    Listed,
    add_revoked,
    issued,
    read_list,
    read_lists,
    sign_revoked,
)
from tmrl_core.networking.security.secret_files import need, read_file, write_file, writing
from tmrl_core.networking.security.tls_contexts import (
    CERTIFIED_ROLES,
    TOKENS_FILE,
    CertifiedRole,
    ClientRole,
    folder_hashes,
    read_bundle,
    token_hash,
)


def revoke(directory: str | os.PathLike[str], name: str, role: CertifiedRole | None = None) -> list[Listed]:
    """Revoke the certificates issued to `name` so far. A new bundle for that name is valid again.

    A running Server that reads this folder disconnects their holders within two seconds, and sends the signed list to
    workers and the trainer. If the Server reads another folder, copy `revoked.json` and `revoked.crl` there.

    Args:
        directory: the folder where `create` ran.
        name: holder of the certificates; or the path of the bundle or certificate itself.
        role: role of the certificates; None: any.

    Returns:
        The certificates that were not revoked before.

    Raises:
        CredentialsError: no certificate was issued to that name, or a file is damaged.
    """
    folder = Path(directory).expanduser()
    authority = need(folder / "ca.pem")
    file = Path(name).expanduser()
    with writing(folder):
        found = issued(folder, name, role)
        if not found and file.is_file():
            found = [_listed(file)]
        if not found:
            names = sorted({one.name for one in read_list(folder / ISSUED_FILE)})
            raise CredentialsError(
                f"no certificate was issued to {name!r} from {folder}"
                + (f", but to {', '.join(names)}" if names else "")
                + ". Run this where the bundle was made, or name the bundle or certificate file itself."
            )
        new = add_revoked(folder, found, authority)
        if (folder / "ca.key").exists():
            sign_revoked(folder, Signed(authority, need(folder / "ca.key", private=True)))
        return new


def _listed(file: Path) -> Listed:
    """Read the holder of a bundle or a certificate."""
    text = read_file(file)
    facts = read_facts(text if "-----BEGIN CERTIFICATE" in text[:100] else read_bundle(file).certificate)
    identity = identity_of({"subjectAltName": [("URI", name) for name in facts.names]})
    if identity is None:
        raise CredentialsError(
            f"{file} is not a client's certificate. A Server's is not revoked but renewed: make a new CA "
            f"(`{CREATE} --overwrite`) if its key was stolen."
        )
    role, name = identity
    return Listed(facts.serial, role, name, facts.not_after, datetime.now(timezone.utc))


def renew(
    directory: str | os.PathLike[str],
    names: Sequence[str] = (),
    out: str | os.PathLike[str] | None = None,
    *,
    days: float = DAYS,
) -> list[Path]:
    """Renew expiring credentials with the same CA: the server certificate, or these names' bundles.

    A running Server uses its new certificate for new connections, and clients use theirs at their next connection. The
    replaced certificates stay valid until they expire.

    Args:
        directory: the folder where `create` ran.
        names: holders of the bundles; empty: renew the server certificate.
        out: folder for the bundles; None: the current folder.
        days: validity in days, never beyond the CA's.

    Returns:
        The files that were written.

    Raises:
        CredentialsError: one of the names has no valid certificate, or the CA's key is not here.
    """
    folder = Path(directory).expanduser()
    if not names:
        need(folder / "ca.pem")
        need(folder / "server.pem")
        create(folder, days=days)
        return [folder / "server.pem", folder / "server.key"]
    latest: list[tuple[CertifiedRole, Listed]] = []
    for name in names:
        found = {one.role: one for one in _not_revoked(folder, issued(folder, name))}
        if not found:
            raise CredentialsError(
                f"{name!r} has no certificate to renew: none was issued from {folder}, or all were revoked. Make a "
                f"bundle: `{BUNDLE} ROLE --name {name}`."
            )
        latest += [(role, found[role]) for role in CERTIFIED_ROLES if role in found]
    return [bundle(folder, role, one.name, out, days=days, weight=one.weight) for role, one in latest]


def holders(directory: str | os.PathLike[str]) -> tuple[list[str], list[str]]:
    """Return the names with a certificate that is neither expired nor revoked, and those whose have all expired."""
    folder = Path(directory).expanduser()
    now = datetime.now(timezone.utc)
    found = _not_revoked(folder, read_list(folder / ISSUED_FILE))
    valid = {one.name for one in found if one.not_after > now}
    return sorted(valid), sorted({one.name for one in found} - valid)


def _not_revoked(folder: Path, listed: Sequence[Listed]) -> list[Listed]:
    if not listed:
        return []
    taken_back = {one.serial for one in read_lists(folder, need(folder / "ca.pem"))}
    return [one for one in listed if one.serial not in taken_back]


def rotate_token(directory: str | os.PathLike[str], role: ClientRole) -> Path:
    """Replace the token of a role and return its file. The old token becomes invalid, also at a running Server.

    Raises:
        CredentialsError: this is not the folder where `create` ran.
    """
    folder = Path(directory).expanduser()
    need(folder / "ca.pem")
    if not (folder / "ca.key").exists():
        raise CredentialsError(f"{folder / 'ca.key'} not found. Tokens are rotated where `{CREATE}` ran.")
    with writing(folder):
        token = new_token()
        hashes = folder_hashes(folder) | {role: token_hash(token)}
        # The client's copy is written first. A role that starts in between fails once and retries.
        write_file(folder / f"{role}.token", token + "\n", private=True)
        write_file(folder / TOKENS_FILE, msgspec.json.encode(hashes).decode() + "\n", private=True)
    return folder / f"{role}.token"
