"""Credentials: the files that prove who is who, and the TLS contexts made of them.

A credentials folder holds

    ca.pem                      the CA's certificate: everybody has it
    ca.key                      the CA's key: only where credentials were created; whoever holds it can make more
    server.pem, server.key      the Server's certificate and key
    server.tokens.json          SHA-256 of each role's token: all that a Server needs to check one
    worker.token, trainer.token the token of the role, for clients
    worker-NAME.pem, .key       a client certificate of its own (also trainer-NAME), from a bundle

so the folder where `create` ran has what every role needs on one machine, and other machines get bundles: one file with
what that machine needs and no more. Wherever a folder is expected, a bundle file will do too.

Files with secrets are made readable by their user only, from the moment that they exist, and replace an older file in
one step. On Windows the folder's own access rights are what protects them: the mode bits say nothing there.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import logging
import os
import secrets
import ssl
import stat
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import IO, Literal

import msgspec

from tmrl_core.errors import CredentialsError
from tmrl_core.networking.certificates import (
    LOOPBACK_HOSTS,
    Signed,
    check_name,
    clean_host,
    make_authority,
    make_client_certificate,
    make_server_certificate,
    read_facts,
)
from tmrl_core.networking.handshakes import BUNDLE, CREATE, explain, identity_of

__all__ = [
    "Created",
    "Record",
    "TokenVerifier",
    "bundle",
    "client_context",
    "create",
    "ensure",
    "explain",
    "find",
    "identity_of",
    "install",
    "server_context",
    "show",
    "token_for",
]

logger = logging.getLogger(__name__)

ClientRole = Literal["worker", "trainer"]
BundleRole = Literal["worker", "trainer", "server"]
CLIENT_ROLES: tuple[ClientRole, ...] = ("worker", "trainer")

DAYS = 825
"""Days that a server's or client's certificate is valid."""
CA_DAYS = 3650
"""Days that a CA's certificate is valid."""

_TOKEN_BYTES = 32
_MAX_FILE_BYTES = 1 << 20
_FORMAT = "tmrl_core bundle"


class Created(msgspec.Struct, frozen=True):
    """What `create` did: whether the CA (and with it the tokens) is new, and the hosts of the server's certificate."""

    directory: str
    new_authority: bool
    hosts: tuple[str, ...]


class Record(msgspec.Struct, frozen=True):
    """One line of `show`.

    `what` is one of `CA certificate`, `CA key`, `server certificate`, `client certificate`, `token`. Certificates have
    a subject, names and an expiry; the fingerprint of a token is the SHA-256 of its text, which reveals nothing of it.
    """

    what: str
    file: str
    subject: str = ""
    names: tuple[str, ...] = ()
    role: str = ""
    fingerprint: str = ""
    not_before: datetime | None = None
    expires: datetime | None = None
    days_left: int | None = None


class _Bundle(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What a bundle file holds. A server's has the hashes of both tokens; a client's the token of its role."""

    format: str
    role: BundleRole
    name: str
    ca: str
    certificate: str
    key: str
    token: str = ""
    token_hashes: dict[str, str] = {}

    def __repr__(self) -> str:
        return f"_Bundle(role={self.role!r}, name={self.name!r}, ...)"


class TokenVerifier:
    """Checks tokens of roles in constant time; knows their hashes only."""

    def __init__(self, hashes: Mapping[str, str]) -> None:
        self._hashes = dict(hashes)

    def __repr__(self) -> str:
        return f"TokenVerifier(roles={sorted(self._hashes)})"

    def check(self, role: str, token: str) -> bool:
        """Whether this is the token of that role. The time it takes depends on neither."""
        expected = self._hashes.get(role, "")
        # A role without a token is compared too, with what no SHA-256 equals.
        return hmac.compare_digest(_token_hash(token), expected.ljust(64, "-"))


def find(credentials_dir: str | os.PathLike[str] | None = None) -> Path:
    """The folder (or bundle file) of credentials: the one given, else `credentials/` here, else the data folder's.

    It need not exist.
    """
    from tmrl_core.config import Config, find_credentials_folder
    from tmrl_core.config.sections import NetworkSection

    chosen = None if credentials_dir is None else os.fspath(credentials_dir)
    return find_credentials_folder(Config(network=NetworkSection(credentials_dir=chosen)))


# -- making credentials ---------------------------------------------------------------------------------------------


def create(
    directory: str | os.PathLike[str],
    hosts: Sequence[str] = (),
    *,
    days: float = DAYS,
    ca_days: float = CA_DAYS,
    overwrite: bool = False,
) -> Created:
    """Make a CA, a token per role, and a server certificate for these hosts; this machine's loopback is always added.

    Where a CA is there already, only the server's certificate is made anew: the CA and the tokens stay, and with them
    every bundle that was handed out. Two calls at once leave one consistent set.

    Args:
        directory: made if it is missing, for this user only.
        hosts: DNS names and IP addresses. Empty, with a server certificate there: the names of that one.
        days: of the server certificate's validity, though never beyond the CA's.
        ca_days: of a new CA's validity.
        overwrite: make a new CA and new tokens although there are some; all bundles of the old one stop working.

    Raises:
        CredentialsError: a host is no host name, the folder holds an installed bundle, or it cannot be written.
    """
    folder = Path(directory).expanduser()
    if folder.is_file():
        raise CredentialsError(f"{folder} is a file. Credentials are created in a folder.")
    wanted = tuple(clean_host(host) for host in hosts)
    with _writing(folder):
        return _create(folder, wanted, days, ca_days, overwrite)


def ensure(directory: str | os.PathLike[str]) -> bool:
    """Make credentials for this machine's loopback unless there are some; whether they were made."""
    folder = Path(directory).expanduser()
    if folder.is_file() or (folder / "ca.pem").exists():
        return False
    with _writing(folder):
        if (folder / "ca.pem").exists():  # another process was faster
            return False
        _create(folder, (), DAYS, CA_DAYS, overwrite=False)
    return True


def _create(folder: Path, wanted: tuple[str, ...], days: float, ca_days: float, overwrite: bool) -> Created:
    ca_file, key_file = folder / "ca.pem", folder / "ca.key"
    now = datetime.now(timezone.utc)
    new = overwrite or not (ca_file.exists() or key_file.exists())
    if new:
        authority = make_authority(now + timedelta(days=ca_days))
        tokens: dict[str, str] = {role: secrets.token_urlsafe(_TOKEN_BYTES) for role in CLIENT_ROLES}
    else:
        if not key_file.exists():
            raise CredentialsError(
                f"{folder} holds the certificate of a CA whose key is elsewhere (an installed bundle). Run `{CREATE}` "
                "on the machine that holds ca.key, or choose another folder."
            )
        authority = Signed(_read(ca_file), _read(key_file, private=True))
        if read_facts(authority.certificate).not_after <= now:
            raise CredentialsError(f"the CA in {folder} has expired. Make a new one: `{CREATE} --overwrite`.")
        tokens = {}
        if not wanted and (folder / "server.pem").exists():
            wanted = read_facts(_read(folder / "server.pem")).names
    hosts = tuple(dict.fromkeys((*wanted, *LOOPBACK_HOSTS)))
    server = make_server_certificate(authority, hosts, now + timedelta(days=days))
    # The CA's certificate comes last: whoever sees it may count on the rest.
    _write(folder / "server.key", server.key, private=True)
    _write(folder / "server.pem", server.certificate)
    if new:
        for role, token in tokens.items():
            _write(folder / f"{role}.token", token + "\n", private=True)
        hashes = {role: _token_hash(token) for role, token in tokens.items()}
        _write(folder / "server.tokens.json", msgspec.json.encode(hashes).decode() + "\n", private=True)
        _write(key_file, authority.key, private=True)
        _write(ca_file, authority.certificate)
    return Created(str(folder), new, hosts)


def bundle(
    directory: str | os.PathLike[str],
    role: BundleRole,
    name: str = "",
    out: str | os.PathLike[str] | None = None,
    *,
    days: float = DAYS,
) -> Path:
    """Write one file with what another machine needs, and no more; return where it is.

    A worker's or trainer's has a client certificate of its own and the token of its role. A server's has the server
    certificate and the hashes of both tokens. None has the CA's key.

    Args:
        directory: the folder where `create` ran.
        role: what that machine is to be.
        name: whose certificate it is; needed for a worker or trainer.
        out: the file, or the folder to put `<name>.<role>.bundle` into. None: that file, here.
        days: of the client certificate's validity, though never beyond the CA's.

    Raises:
        CredentialsError: something that is needed is missing, or the name does not fit a certificate.
    """
    folder = Path(directory).expanduser()
    if role not in ("worker", "trainer", "server"):
        raise CredentialsError(f"{role!r} is no role. Choose worker, trainer or server.")
    if role != "server" and not name:
        raise CredentialsError(f"a {role}'s bundle needs a name: `{BUNDLE} {role} --name NAME`.")
    name = check_name(name or "server")
    ca = _need(folder / "ca.pem")
    if role == "server":
        made = Signed(_need(folder / "server.pem"), _need(folder / "server.key", private=True))
        content = _Bundle(_FORMAT, role, name, ca, *made, token_hashes=_folder_hashes(folder))
    else:
        if not (folder / "ca.key").exists():
            raise CredentialsError(
                f"{folder / 'ca.key'} not found. Bundles are made on the machine where `{CREATE}` ran."
            )
        authority = Signed(ca, _need(folder / "ca.key", private=True))
        until = datetime.now(timezone.utc) + timedelta(days=days)
        made = make_client_certificate(authority, role, name, until)
        token = _need(folder / f"{role}.token", private=True).strip()
        content = _Bundle(_FORMAT, role, name, ca, *made, token=token)
    target = Path(out).expanduser() if out is not None else Path()
    if target.is_dir():
        target = target / f"{name}.{role}.bundle"
    _write(target, msgspec.json.format(msgspec.json.encode(content), indent=1).decode() + "\n", private=True)
    return target


def install(
    bundle_file: str | os.PathLike[str], directory: str | os.PathLike[str], *, overwrite: bool = False
) -> list[Path]:
    """Unpack a bundle into a credentials folder; the files that were written.

    Raises:
        CredentialsError: this is no bundle, or the folder has another CA and `overwrite` is off.
    """
    content = _read_bundle(Path(bundle_file).expanduser())
    folder = Path(directory).expanduser()
    with _writing(folder):
        ca_file = folder / "ca.pem"
        if ca_file.exists() and _read(ca_file).strip() != content.ca.strip():
            if not overwrite:
                raise CredentialsError(
                    f"{folder} holds credentials of another CA. Install the bundle into another folder "
                    "(network.credentials_dir), or say `--overwrite`."
                )
            # What another CA signed is of no use beside this one.
            for old in [*folder.glob("*.pem"), *folder.glob("*.key"), *folder.glob("*.token")]:
                old.unlink()
            (folder / "server.tokens.json").unlink(missing_ok=True)
        stem = "server" if content.role == "server" else f"{content.role}-{content.name}"
        files = [folder / f"{stem}.key", folder / f"{stem}.pem"]
        _write(files[0], content.key, private=True)
        _write(files[1], content.certificate)
        if content.token:
            files.append(folder / f"{content.role}.token")
            _write(files[-1], content.token + "\n", private=True)
        if content.token_hashes:
            files.append(folder / "server.tokens.json")
            _write(files[-1], msgspec.json.encode(content.token_hashes).decode() + "\n", private=True)
        files.append(ca_file)
        _write(ca_file, content.ca)
    return files


def show(directory: str | os.PathLike[str]) -> list[Record]:
    """What a credentials folder (or bundle file) holds: fingerprints and expiry, no secret.

    Raises:
        CredentialsError: there are no credentials, or a file is not what its name says.
    """
    folder = Path(directory).expanduser()
    if folder.is_file():
        content = _read_bundle(folder)
        records = [_certificate_record(content.ca, str(folder)), _certificate_record(content.certificate, str(folder))]
        if content.token:
            records.append(_token_record(content.role, _token_hash(content.token), str(folder)))
        records += [_token_record(role, digest, str(folder)) for role, digest in content.token_hashes.items()]
        return records
    _need(folder / "ca.pem")
    files = sorted(folder.glob("*.pem"), key=lambda file: (file.name != "ca.pem", file.name != "server.pem", file.name))
    records = [_certificate_record(_read(file), str(file)) for file in files]
    if (folder / "ca.key").exists():
        records.append(Record("CA key", str(folder / "ca.key")))
    for role, digest in _folder_hashes(folder).items():
        token_file = folder / f"{role}.token"
        records.append(
            _token_record(role, digest, str(token_file if token_file.exists() else folder / "server.tokens.json"))
        )
    return records


# -- using credentials ----------------------------------------------------------------------------------------------


def server_context(directory: str | os.PathLike[str]) -> tuple[ssl.SSLContext, TokenVerifier]:
    """What a Server needs: its side of TLS, where a client may show a certificate of our CA, and the tokens' verifier.

    Raises:
        CredentialsError: something is missing or does not fit; the message says what to run.
    """
    folder = Path(directory).expanduser()
    if folder.is_file():
        content = _read_bundle(folder)
        if content.role != "server":
            raise CredentialsError(f"{folder} is a {content.role}'s bundle. A Server needs one of `{BUNDLE} server`.")
        ca, hashes = content.ca, content.token_hashes
    else:
        ca, hashes = _need(folder / "ca.pem"), _folder_hashes(folder)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _load_authority(context, ca, folder)
    # Asked for, not demanded: a peer without a certificate may still show its role's token.
    context.verify_mode = ssl.CERT_OPTIONAL
    if folder.is_file():
        _load_text_chain(context, Signed(content.certificate, content.key), folder)
    else:
        _load_file_chain(context, folder / "server.pem", folder / "server.key")
    return context, TokenVerifier(hashes)


def client_context(directory: str | os.PathLike[str], role: ClientRole, name: str | None = None) -> ssl.SSLContext:
    """A client's side of TLS: trusts our CA alone, checks the host name, shows its own certificate if there is one.

    Args:
        directory: the credentials folder or bundle file.
        role: of which role the certificate is to be.
        name: whose certificate to take if there are several; with one of that role, that one is taken.

    Raises:
        CredentialsError: something is missing or does not fit; the message says what to run.
    """
    folder = Path(directory).expanduser()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if folder.is_file():
        content = _read_bundle(folder)
        _load_authority(context, content.ca, folder)
        if content.role != role:
            raise CredentialsError(f"{folder} is a {content.role}'s bundle. This needs one of `{BUNDLE} {role}`.")
        _load_text_chain(context, Signed(content.certificate, content.key), folder)
        return context
    _load_authority(context, _need(folder / "ca.pem"), folder)
    certificates = sorted(folder.glob(f"{role}-*.pem"))
    own = [file for file in certificates if file.stem == f"{role}-{name}"] or certificates
    if len(own) == 1:
        _load_file_chain(context, own[0], own[0].with_suffix(".key"))
    elif own:
        logger.warning(
            "%s has the certificates of several %ss and none of %r: only the token is shown", folder, role, name
        )
    return context


def token_for(directory: str | os.PathLike[str], role: ClientRole) -> str | None:
    """The token of that role; None where there is none.

    Raises:
        CredentialsError: the file cannot be read.
    """
    folder = Path(directory).expanduser()
    if folder.is_file():
        content = _read_bundle(folder)
        return content.token or None if content.role == role else None
    file = folder / f"{role}.token"
    return _read(file, private=True).strip() or None if file.exists() else None


def _load_authority(context: ssl.SSLContext, ca: str, folder: Path) -> None:
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_verify_locations(cadata=ca)
    except ssl.SSLError as exc:
        raise CredentialsError(f"the CA certificate in {folder} is not a certificate in PEM form") from exc


def _load_file_chain(context: ssl.SSLContext, certificate: Path, key: Path) -> None:
    for file in (certificate, key):
        if not file.exists():
            raise CredentialsError(_missing(file))
    _warn_if_readable(key)
    _load_chain(context, certificate, key, certificate)


def _load_text_chain(context: ssl.SSLContext, chain: Signed, source: Path) -> None:
    """OpenSSL reads keys from files only: one that this user alone can read, gone when this returns."""
    handle, name = tempfile.mkstemp(prefix="tmrl_core-", suffix=".pem")
    try:
        with os.fdopen(handle, "w", encoding="ascii") as file:
            file.write(chain.key + "\n" + chain.certificate)
        _load_chain(context, Path(name), None, source)
    finally:
        os.unlink(name)


def _load_chain(context: ssl.SSLContext, certificate: Path, key: Path | None, source: Path) -> None:
    def refuse_password() -> str:
        # Without this OpenSSL asks the terminal, and a role that runs unattended waits for ever.
        raise CredentialsError(f"the key of {source} is encrypted; tmrl_core's own keys are not. Store it without.")

    try:
        context.load_cert_chain(certificate, key, password=refuse_password)
    except ssl.SSLError as exc:
        raise CredentialsError(
            f"{source} and its key do not fit together, or are not PEM ({exc.reason or 'unreadable'}). "
            f"Make them anew with `{CREATE}` or `{BUNDLE}`."
        ) from exc
    except OSError as exc:
        raise CredentialsError(f"{source} or its key cannot be read: {exc.strerror}") from exc


# -- files ----------------------------------------------------------------------------------------------------------


def _token_hash(token: str) -> str:
    # A plain hash will do: a token is 256 random bits, there is nothing to guess.
    return hashlib.sha256(token.encode()).hexdigest()


def _folder_hashes(folder: Path) -> dict[str, str]:
    """Of the tokens that this folder knows, in full or by hash."""
    hashes: dict[str, str] = {}
    file = folder / "server.tokens.json"
    if file.exists():
        try:
            hashes = msgspec.json.decode(_read(file, private=True), type=dict[str, str])
        except msgspec.DecodeError as exc:
            raise CredentialsError(f"{file} is damaged. Make it anew with `{CREATE} --overwrite`.") from exc
    else:
        hashes = {role: _token_hash(token) for role in CLIENT_ROLES if (token := token_for(folder, role))}
    return hashes


def _certificate_record(text: str, file: str) -> Record:
    try:
        facts = read_facts(text)
    except CredentialsError as exc:
        raise CredentialsError(f"{file}: {exc}") from exc
    identity = identity_of({"subjectAltName": [("URI", name) for name in facts.names]})
    if identity is not None:
        what, role = "client certificate", identity[0]
    elif facts.names:
        what, role = "server certificate", "server"
    else:
        what, role = "CA certificate", ""
    left = (facts.not_after - datetime.now(timezone.utc)) // timedelta(days=1)
    return Record(
        what, file, facts.subject, facts.names, role, facts.fingerprint, facts.not_before, facts.not_after, left
    )


def _token_record(role: str, digest: str, file: str) -> Record:
    pairs = [digest[i : i + 2].upper() for i in range(0, len(digest), 2)]
    return Record("token", file, role=role, fingerprint=":".join(pairs))


def _read_bundle(file: Path) -> _Bundle:
    text = _read(file, private=True)
    try:
        content = msgspec.json.decode(text, type=_Bundle)
    except msgspec.DecodeError:
        # Without the cause, which could quote the file.
        raise CredentialsError(
            f"{file} is not a bundle of tmrl_core. Make one with `{BUNDLE} ROLE --name NAME`."
        ) from None
    if content.format != _FORMAT:
        raise CredentialsError(f"{file} is not a bundle of tmrl_core.")
    check_name(content.name)  # it becomes part of a file name
    return content


def _missing(file: Path) -> str:
    return (
        f"{file} not found. Create credentials with `{CREATE}`, or, on another machine than the Server's, install a "
        f"bundle that was made with `{BUNDLE} worker --name NAME`; or set network.credentials_dir."
    )


def _need(file: Path, *, private: bool = False) -> str:
    if not file.exists():
        raise CredentialsError(_missing(file))
    return _read(file, private=private)


def _read(file: Path, *, private: bool = False) -> str:
    try:
        if file.stat().st_size > _MAX_FILE_BYTES:
            raise CredentialsError(f"{file} is longer than any credentials are")
        if private:
            _warn_if_readable(file)
        return file.read_text(encoding="utf-8")
    except OSError as exc:
        raise CredentialsError(f"{file} cannot be read: {exc.strerror}") from exc
    except UnicodeDecodeError:
        raise CredentialsError(f"{file} is not text, so it is no key, certificate or token of ours") from None


def _warn_if_readable(file: Path) -> None:
    if sys.platform != "win32" and stat.S_IMODE(file.stat().st_mode) & 0o077:
        logger.warning("%s can be read by other users of this machine. Run `chmod 600 %s`.", file, file)


def _write(file: Path, text: str, *, private: bool = False) -> None:
    """Replace a file in one step; a private one is never readable by others, not even for a moment."""
    temporary = file.with_name(f".{file.name}.{secrets.token_hex(8)}")
    try:
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if private else 0o644)
        try:
            with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as stream:
                stream.write(text)
                stream.flush()
                os.fsync(stream.fileno())
            os.replace(temporary, file)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
    except OSError as exc:
        raise CredentialsError(f"{file} cannot be written: {exc.strerror}") from exc


@contextlib.contextmanager
def _writing(folder: Path) -> Iterator[None]:
    """The folder, made if it is missing, for one writing process at a time; a killed one leaves no lock behind."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = open(folder / ".lock", "a", encoding="utf-8")  # noqa: SIM115
    except OSError as exc:
        raise CredentialsError(f"{folder} cannot be written: {exc.strerror}") from exc
    with lock:
        try:
            _lock(lock)
        except OSError as exc:
            raise CredentialsError(f"{folder} is being written by another process: {exc.strerror}") from exc
        # Closing the file gives the lock back.
        yield


def _lock(file: IO[str]) -> None:
    if sys.platform == "win32":
        import msvcrt

        file.seek(0)
        msvcrt.locking(file.fileno(), msvcrt.LK_LOCK, 1)  # tries for ten seconds
    else:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX)
