"""TLS contexts, token and token verifier of a running role, read from its credentials.

Nothing here needs `cryptography`; `credentials.py` makes the files that are read here.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import os
import ssl
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from tmrl_core.decodable import decodable
from tmrl_core.errors import CredentialsError
from tmrl_core.networking.security.certificates import Signed, check_name
from tmrl_core.networking.security.handshakes import BUNDLE, CREATE
from tmrl_core.networking.security.revocations import Listed, read_list, revoked_file
from tmrl_core.networking.security.secret_files import need, read_file, read_secret, warn_if_writable

logger = logging.getLogger(__name__)

ClientRole = Literal["worker", "trainer"]
CertifiedRole = Literal["worker", "trainer", "operator"]
"""Role in a client certificate. An operator watches a run and gives it orders; there is no token of that role."""
BundleRole = Literal["worker", "trainer", "operator", "server"]
CLIENT_ROLES: tuple[ClientRole, ...] = ("worker", "trainer")
CERTIFIED_ROLES: tuple[CertifiedRole, ...] = ("worker", "trainer", "operator")
OPERATOR_ROLES: tuple[CertifiedRole, ...] = ("operator", "trainer")
"""Roles whose certificates admit an observer and sign orders, the preferred one first."""
ContextRole = Literal["worker", "trainer", "observer"]
"""Role of a client. An observer uses an operator's credentials, the trainer's, or those of the Server's own machine."""

BUNDLE_FORMAT = "tmrl_core bundle"
TOKENS_FILE = "server.tokens.json"

_NO_COMPRESSED_CERTIFICATES = 1 << 33
"""OpenSSL's SSL_OP_NO_RX_CERTIFICATE_COMPRESSION, which `ssl` does not name. With it, an unauthenticated client cannot
make the Server decompress data."""


class TokenVerifier:
    """Verifier of roles' tokens in constant time. It holds only their hashes."""

    def __init__(self, hashes: Mapping[str, str]) -> None:
        self._hashes = dict(hashes)

    def __repr__(self) -> str:
        return f"TokenVerifier(roles={sorted(self._hashes)})"

    def check(self, role: str, token: str) -> bool:
        """Return True if this is the token of that role, in constant time."""
        return self.holds(role, token_hash(token))

    def holds(self, role: str, digest: str) -> bool:
        """Return True if `digest` is the hash of the token of that role."""
        expected = self._hashes.get(role, "")
        # For a role without a token, compare with a value that is no SHA-256.
        return hmac.compare_digest(digest, expected.ljust(64, "-"))


@decodable
class Bundle(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Content of a bundle file. A server's bundle has the hashes of both tokens; a worker's has no `revoked`.

    A client's bundle has its own certificate and no token, because a thief of the bundle could use the token instead.
    """

    format: str
    role: BundleRole
    name: str
    ca: str
    certificate: str
    key: str
    token_hashes: dict[str, str] = {}
    revoked: tuple[Listed, ...] = ()
    added: dict[str, dict[str, str]] = {}
    """Texts of rooms by the room's name. In the file, they stand beside the other keys."""

    def __repr__(self) -> str:
        return f"Bundle(role={self.role!r}, name={self.name!r}, ...)"


def server_context(directory: str | os.PathLike[str]) -> tuple[ssl.SSLContext, TokenVerifier]:
    """Return a Server's TLS context, which accepts client certificates of our CA, and the tokens' verifier.

    Raises:
        CredentialsError: a file is missing or does not fit; the message names the command to run.
    """
    folder = Path(directory).expanduser()
    if folder.is_file():
        content = read_bundle(folder)
        if content.role != "server":
            what = f"{folder} is {with_article(content.role)}'s bundle"
            raise _other_role(what, content.role, "server")
        ca, hashes = content.ca, content.token_hashes
    else:
        warn_if_writable(folder)
        ca, hashes = need(folder / "ca.pem"), folder_hashes(folder)
        if not (folder / "server.pem").exists():
            _check_role(folder, "server")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    # A resumed session would stay valid for as long as its ticket, even after its certificate has expired.
    context.num_tickets = 0
    context.options |= ssl.OP_NO_TICKET | ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    if ssl.OPENSSL_VERSION_INFO >= (3, 2):
        context.options |= _NO_COMPRESSED_CERTIFICATES
    _load_authority(context, ca, folder)
    # Optional: a peer without a certificate may show its role's token.
    context.verify_mode = ssl.CERT_OPTIONAL
    if folder.is_file():
        _load_text_chain(context, Signed(content.certificate, content.key), folder)
        key = content.key
    else:
        _load_file_chain(context, folder / "server.pem", folder / "server.key")
        key = read_file(folder / "server.key")
    return context, TokenVerifier({**hashes, "observer": token_hash(observer_token(key))})


def observer_token(server_key: str) -> str:
    """Derive the token of observers from the Server's private key (PEM).

    A holder of the key can read all data anyway.

    The token is derived and not stored, so that every Server's machine has it and no other machine receives it by
    accident. The token does not reveal the key.
    """
    return hmac.new(server_key.strip().encode(), b"tmrl_core observer", hashlib.sha256).hexdigest()


def client_context(
    directory: str | os.PathLike[str], role: ContextRole, name: str | None = None, *, has_token: bool = False
) -> ssl.SSLContext:
    """Return a client's TLS context.

    It trusts only our CA, checks the host name, and sends a certificate if there is one.

    An observer sends an operator's certificate, else the trainer's, if there is one.

    Args:
        directory: the credentials folder or bundle file.
        role: role of the certificate.
        name: name of the certificate, if there are several of the role.
        has_token: True: there is a token from another source than these files.

    Raises:
        CredentialsError: a file is missing or does not fit; the message names the command to run.
    """
    folder = Path(directory).expanduser()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if folder.is_file():
        content = read_bundle(folder)
        _load_authority(context, content.ca, folder)
        if role == "observer":
            if content.role == "worker":
                raise CredentialsError(_NOT_FOR_WORKERS.format(folder=folder))
            if content.role == "server":  # its certificate is a server's, so it authenticates by token
                return context
        elif content.role != role:
            what = f"{folder} is {with_article(content.role)}'s bundle"
            raise _other_role(what, content.role, role)
        _load_text_chain(context, Signed(content.certificate, content.key), folder)
        return context
    warn_if_writable(folder)
    _load_authority(context, need(folder / "ca.pem"), folder)
    own = observer_files(folder) if role == "observer" else _certificate_files(folder, role, name)
    if not own and not has_token and token_for(folder, role) is None:
        if role == "observer":
            raise CredentialsError(_NOT_FOR_WORKERS.format(folder=folder))
        _check_role(folder, role)
    if len(own) == 1:
        _load_file_chain(context, own[0], own[0].with_suffix(".key"))
    elif own and not has_token and token_for(folder, role) is None:
        # Otherwise a fake Server could admit this client without a certificate, and thus without proofs of origin.
        raise CredentialsError(
            f"{folder} has the certificates of several {role}s ({', '.join(file.stem for file in own)}), and one is "
            "needed. Move the .pem and .key files of the others away, or give each a folder of its own "
            "(network.credentials_dir)."
        )
    elif own:
        logger.warning(
            "%s has the certificates of several %ss and none of %r: only the token is shown", folder, role, name
        )
    return context


def observer_files(folder: Path) -> list[Path]:
    """Return the certificates that an observer may use: those of operators, else those of trainers."""
    return next((files for role in OPERATOR_ROLES if (files := _certificate_files(folder, role))), [])


def _certificate_files(folder: Path, role: CertifiedRole, name: str | None = None) -> list[Path]:
    """Return the certificate of that name, else all certificates of the role."""
    certificates = sorted(folder.glob(f"{role}-*.pem"))
    return [file for file in certificates if file.stem == f"{role}-{name}"] or certificates


def client_certificate(directory: str | os.PathLike[str], role: CertifiedRole) -> Signed | None:
    """Return the client certificate of that role with its key; None: there is none, or there are several.

    Raises:
        CredentialsError: a file cannot be read.
    """
    folder = Path(directory).expanduser()
    if folder.is_file():
        content = read_bundle(folder)
        return Signed(content.certificate, content.key) if content.role == role else None
    files = _certificate_files(folder, role)
    if len(files) != 1:
        return None
    return Signed(need(files[0]), need(files[0].with_suffix(".key"), private=True))


def client_name(directory: str | os.PathLike[str], role: ContextRole) -> str | None:
    """Return the name in the client certificate of that role; None: there is none, or several.

    Raises:
        CredentialsError: the bundle cannot be read.
    """
    folder = Path(directory).expanduser()
    if folder.is_file():
        content = read_bundle(folder)
        return content.name if content.role == role else None
    names = [file.stem.removeprefix(f"{role}-") for file in folder.glob(f"{role}-*.pem")]
    return names[0] if len(names) == 1 else None


def _check_role(folder: Path, role: BundleRole) -> None:
    """Reject credentials of another role, and name that role.

    Raises:
        CredentialsError: the folder has credentials of another role.
    """
    others = (other for other in ("worker", "trainer", "operator", "server") if other != role)
    if found := next((other for other in others if [*folder.glob(f"{other}*.pem")]), None):
        raise _other_role(folder, found, role)


def with_article(role: str) -> str:
    """Return the name of a role after its article."""
    return f"{'an' if role == 'operator' else 'a'} {role}"


def _other_role(what: object, found: str, role: str) -> CredentialsError:
    wanted = with_article(role)
    return CredentialsError(
        f"these are {with_article(found)}'s credentials ({what}), and this is {wanted}. Make {wanted}'s bundle where "
        f"the CA is (`{BUNDLE} {role} --name NAME`) and install it here, or let network.credentials_dir name the "
        f"{role}'s folder."
    )


_NOT_FOR_WORKERS = (
    "{folder} has a worker's credentials only. Only the Server's own machine, the trainer's and an operator's may ask "
    "for its status: a stolen worker must not learn of the other machines. Run this there, or point "
    "network.credentials_dir at theirs."
)


def token_for(directory: str | os.PathLike[str], role: ContextRole) -> str | None:
    """Return the token of that role; None: there is none.

    An observer's token is derived from the Server's key if it is available; otherwise it is the trainer's token.

    Raises:
        CredentialsError: the file cannot be read.
    """
    folder = Path(directory).expanduser()
    if folder.is_file():
        content = read_bundle(folder)
        return observer_token(content.key) if role == "observer" and content.role == "server" else None
    if role == "observer":
        key = folder / "server.key"
        if key.exists():
            return observer_token(read_file(key, private=True))
        role = "trainer"
    return read_secret(folder / f"{role}.token") or None


def read_bundle(file: Path) -> Bundle:
    """Return the content of a bundle file.

    Raises:
        CredentialsError: the file cannot be read, or is not a bundle.
    """
    text = read_file(file, private=True)
    try:
        values = msgspec.json.decode(text, type=dict[str, Any])
        # A room that is missing here may have added a key on the machine that made the bundle.
        added = {name: values.pop(name) for name in values.keys() - set(Bundle.__struct_fields__)}
        content = msgspec.convert({**values, "added": added}, Bundle)
    except msgspec.DecodeError:
        # The cause is left out, because it could quote the file.
        raise CredentialsError(
            f"{file} is not a bundle of tmrl_core. Make one with `{BUNDLE} ROLE --name NAME`."
        ) from None
    if content.format != BUNDLE_FORMAT:
        raise CredentialsError(f"{file} is not a bundle of tmrl_core.")
    check_name(content.name)  # it becomes part of a file name
    return content


def read_revoked(directory: str | os.PathLike[str]) -> frozenset[str]:
    """Return the serial numbers of the certificates that a Server with these credentials refuses.

    Raises:
        CredentialsError: the list is damaged.
    """
    place = Path(directory).expanduser()
    bundled = read_bundle(place).revoked if place.is_file() else ()
    return frozenset(one.serial for one in (*bundled, *read_list(revoked_file(place))))


def folder_hashes(folder: Path) -> dict[str, str]:
    """Return the hashes of the tokens that this folder holds, in full or as hashes."""
    hashes: dict[str, str] = {}
    file = folder / TOKENS_FILE
    if file.exists():
        try:
            hashes = msgspec.json.decode(read_file(file, private=True), type=dict[str, str])
        except msgspec.DecodeError as exc:
            raise CredentialsError(f"{file} is damaged. Create it again with `{CREATE} --overwrite`.") from exc
    else:
        hashes = {role: token_hash(token) for role in CLIENT_ROLES if (token := token_for(folder, role))}
    return hashes


def token_hash(token: str) -> str:
    """Return the SHA-256 of a token, 64 hexadecimal digits, which is stored instead of it."""
    # A plain hash is enough, because a token of 256 random bits cannot be guessed.
    return hashlib.sha256(token.encode()).hexdigest()


def _load_authority(context: ssl.SSLContext, ca: str, folder: Path) -> None:
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_verify_locations(cadata=ca)
    except ssl.SSLError as exc:
        raise CredentialsError(f"the CA certificate in {folder} is not a certificate in PEM form") from exc


def _load_file_chain(context: ssl.SSLContext, certificate: Path, key: Path) -> None:
    # For a pipe, OpenSSL would wait for the other side.
    need(certificate)
    need(key, private=True)
    _load_chain(context, certificate, key, certificate)


def _load_text_chain(context: ssl.SSLContext, chain: Signed, source: Path) -> None:
    """Load a certificate chain from text. OpenSSL reads keys only from files, so a temporary private file is used."""
    handle, name = tempfile.mkstemp(prefix="tmrl_core-", suffix=".pem")
    try:
        with os.fdopen(handle, "w", encoding="ascii") as file:
            file.write(chain.key + "\n" + chain.certificate)
        _load_chain(context, Path(name), None, source)
    finally:
        os.unlink(name)


def _load_chain(context: ssl.SSLContext, certificate: Path, key: Path | None, source: Path) -> None:
    def refuse_password() -> str:
        # Otherwise OpenSSL asks on the terminal, and an unattended role waits forever.
        raise CredentialsError(f"the key of {source} is encrypted; tmrl_core's own keys are not. Store it without.")

    try:
        context.load_cert_chain(certificate, key, password=refuse_password)
    except ssl.SSLError as exc:
        raise CredentialsError(
            f"{source} and its key do not match, or are not PEM ({exc.reason or 'unreadable'}). "
            f"Create them again with `{CREATE}` or `{BUNDLE}`."
        ) from exc
    except OSError as exc:
        raise CredentialsError(f"{source} or its key cannot be read: {exc.strerror}") from exc
