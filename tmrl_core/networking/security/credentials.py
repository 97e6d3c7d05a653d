"""Credentials: the files that prove identities.

A credentials folder holds

    ca.pem                      the CA's certificate: on every machine
    ca.key                      the CA's key: only where credentials were created; its holder can issue more
    server.pem, server.key      the Server's certificate and key
    server.tokens.json          SHA-256 of each role's token, for the Server's checks
    worker.token, trainer.token the token of the role, for clients
    worker-NAME.pem, .key       a client certificate (also trainer-NAME, operator-NAME), from a bundle
    issued.json                 list of issued certificates: beside the CA's key only
    revoked.json                list of revoked certificates, for the Server and the trainer
    revoked.crl                 the same with the CA's signature, which the Server sends to the other machines
    run_keys/                   keys of a trainer's runs: see `run_keys.py`

and files that rooms add, see `added_files.py`.

The folder where `create` ran thus has the files of every role on one machine. Other machines get bundles: one file with
exactly what that machine needs. A bundle file is accepted wherever a folder is expected.

Files with secrets are readable by their user only, from their creation, and replace an older file in one step. On
Windows the folder's access rights protect them; mode bits have no meaning there.
"""

# Theory of operation
#
# This file makes, packs, unpacks and lists the files of a credentials folder. It knows nothing of running roles;
# `tls_contexts.py` reads what is made here, and `authentication.py` follows changes. All writers hold the folder's
# lock, and each file is replaced in one step, so readers need none.
#
# Three actions change a folder.
#
# - `create` makes a CA, a token for each role and the Server's certificate. Run again, it renews the Server's
#   certificate only: the CA, the tokens and therefore all bundles stay valid. The CA's certificate is written last,
#   because readers take its existence to mean that the rest is there.
# - `bundle` makes one file with exactly what another machine needs, and notes the certificate in `issued.json` before
#   the bundle is written, so that no certificate exists that cannot be revoked by name. A bundle file is accepted
#   wherever a folder is expected.
# - `install` unpacks a bundle. It never destroys the only copy of anything, see below.
#
# An example. On the Server's machine, `create --host relay.example.org` writes seven files, and those of rooms. `bundle
# worker --name robot7` writes robot7.worker.bundle: the CA's certificate, a certificate and a key for robot7, and what
# rooms add; no token, because a token cannot be revoked for one machine alone, and no list of revoked certificates,
# because that names other machines. On robot7, `install` writes worker-robot7.pem, worker-robot7.key and ca.pem.
#
# Another CA's credentials in the target folder are moved into a folder beside it, and the move is logged. Always, if
# that CA has issued nothing: each role makes such a CA at its first start on this machine, and it is worth nothing.
# With `--overwrite`, if they came from a bundle, which can be made again. Never, if that CA has issued bundles: without
# its key they could be neither revoked nor renewed. With the same CA, a bundle that would replace tokens or the texts
# of rooms by other ones is refused, since other machines hold the present ones.
#
# What fails. A bundle is not signed as a whole, so `install` checks that its parts belong together: the CA has signed
# the certificate, the key is the certificate's, and role and name are those in the certificate. Errors name the file
# and the command to run, and never quote a secret. A crash between two files leaves a folder in which the next `create`
# or `install` completes the set.
#
# Files with secrets are readable by their user only, from their creation. On Windows the folder's access rights protect
# them; mode bits have no meaning there.

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path

import msgspec

from tmrl_core.errors import CredentialsError
from tmrl_core.networking.security.added_files import added_files, room_of_certificate
from tmrl_core.networking.security.certificates import (
    LOOPBACK_HOSTS,
    MAX_WEIGHT,
    Signed,
    check_issued,
    check_name,
    clean_host,
    make_authority,
    make_client_certificate,
    make_server_certificate,
    read_facts,
)
from tmrl_core.networking.security.handshakes import BUNDLE, CREATE, INSTALL, identity_of
from tmrl_core.networking.security.revocations import (
    ISSUED_FILE,
    REVOKED_FILE,
    SIGNED_FILE,
    Listed,
    add_revoked,
    forget_lists,
    note_issued,
    read_list,
    read_lists,
    write_list,
)
from tmrl_core.networking.security.secret_files import need, read_file, write_file, write_record, writing
from tmrl_core.networking.security.tls_contexts import (
    BUNDLE_FORMAT,
    CERTIFIED_ROLES,
    CLIENT_ROLES,
    TOKENS_FILE,
    Bundle,
    BundleRole,
    folder_hashes,
    read_bundle,
    token_hash,
    with_article,
)

logger = logging.getLogger(__name__)

DAYS = 825
"""Validity of a server's or client's certificate, in days."""
CA_DAYS = 3650
"""Validity of a CA's certificate, in days."""

_TOKEN_BYTES = 32


class Created(msgspec.Struct, frozen=True):
    """Result of `create`: True for a new CA (and new tokens), and the hosts of the server's certificate."""

    directory: str
    new_authority: bool
    hosts: tuple[str, ...]


class CredentialInfo(msgspec.Struct, frozen=True):
    """One line of `show`.

    `what` is one of `CA certificate`, `CA key`, `server certificate`, `client certificate`, a room's name and
    `certificate`, `token`, `issued`, `revoked`, `API key` (its id and agent). Certificates have a subject, names and an
    expiry; the fingerprint of a token is the SHA-256 of its text, which does not reveal the text.
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
    serial: str = ""


def find(credentials_dir: str | os.PathLike[str] | None = None) -> Path:
    """Return the folder (or bundle file) of credentials.

    It is the given one, else `credentials/` in the current folder, else the data folder's. It need not exist.
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
    default_host: str = "",
) -> Created:
    """Create a CA, a token per role, and a server certificate for these hosts and this machine's loopback.

    If there is a CA already, only the server's certificate is renewed: the CA, the tokens and thus all bundles stay
    valid. Concurrent calls leave one consistent set.

    Args:
        directory: created if it is missing, for this user only.
        hosts: DNS names and IP addresses, besides those of the existing server certificate, if there is one.
        days: validity of the server certificate, limited by the CA's.
        ca_days: validity of a new CA.
        overwrite: replace an existing CA and its tokens; all bundles of the old CA become invalid.
        default_host: for a certificate that would otherwise be for this machine's loopback alone.

    Raises:
        CredentialsError: a host is not a host name, the folder holds an installed bundle, or the folder cannot be
            written.
    """
    folder = Path(directory).expanduser()
    if folder.is_file():
        raise CredentialsError(f"{folder} is a file. Credentials are created in a folder.")
    wanted = tuple(clean_host(host) for host in hosts)
    with writing(folder):
        return _create(folder, wanted, days, ca_days, overwrite, default_host)


def ensure(directory: str | os.PathLike[str]) -> bool:
    """Create credentials for this machine's loopback if there are none, and log it. Return True if it has made them."""
    folder = Path(directory).expanduser()
    needed = folder / "ca.pem"
    if folder.is_file() or needed.exists():
        return False
    with writing(folder):
        if needed.exists():  # another process was faster
            return False
        _create(folder, (), DAYS, CA_DAYS, overwrite=False)
    logger.info(
        "no credentials found, so a CA for this machine alone was made in %s. For a Server on another machine, behind "
        "an ssh tunnel too, install its bundle with `%s`: it takes this CA's place.",
        folder,
        INSTALL,
    )
    return True


def _create(
    folder: Path, wanted: tuple[str, ...], days: float, ca_days: float, overwrite: bool, default_host: str = ""
) -> Created:
    ca_file, key_file = folder / "ca.pem", folder / "ca.key"
    now = datetime.now(timezone.utc)
    new = overwrite or not (ca_file.exists() or key_file.exists())
    if new:
        authority = make_authority(now + timedelta(days=ca_days))
        tokens: dict[str, str] = {role: new_token() for role in CLIENT_ROLES}
    else:
        if not key_file.exists():
            raise CredentialsError(
                f"{folder} holds the certificate of a CA whose key is elsewhere (an installed bundle). Run `{CREATE}` "
                "on the machine that holds ca.key, or choose another folder."
            )
        authority = Signed(read_file(ca_file), read_file(key_file, private=True))
        if read_facts(authority.certificate).not_after <= now:
            raise CredentialsError(f"the CA in {folder} has expired. Make a new one: `{CREATE} --overwrite`.")
        tokens = {}
        if (folder / "server.pem").exists():
            try:  # a name left out would lock out the peers that dial it
                wanted = (*wanted, *read_facts(read_file(folder / "server.pem")).names)
            except CredentialsError:
                if not wanted:
                    raise
    if default_host and not set(wanted).difference(LOOPBACK_HOSTS):
        wanted = (clean_host(default_host),)
    hosts = tuple(dict.fromkeys((*wanted, *LOOPBACK_HOSTS)))
    server = make_server_certificate(authority, hosts, now + timedelta(days=days))
    for files in added_files().values():
        files.make(folder, hosts, now + timedelta(days=ca_days), overwrite=overwrite)
    # The CA's certificate is written last: if it exists, so do the other files.
    write_file(folder / "server.key", server.key, private=True)
    write_file(folder / "server.pem", server.certificate)
    if new:
        forget_lists(folder)  # files of the earlier CA
        # Otherwise roles would send certificates of the old CA, which are rejected although the new tokens are valid.
        for pattern in (f"{role}-*.{kind}" for role in CERTIFIED_ROLES for kind in ("pem", "key")):
            for old in list(folder.glob(pattern)):
                old.unlink()
        for role, token in tokens.items():
            write_file(folder / f"{role}.token", token + "\n", private=True)
        hashes = {role: token_hash(token) for role, token in tokens.items()}
        write_file(folder / TOKENS_FILE, msgspec.json.encode(hashes).decode() + "\n", private=True)
        write_file(key_file, authority.key, private=True)
        write_file(ca_file, authority.certificate)
    return Created(str(folder), new, hosts)


def new_token() -> str:
    """Return a new random token."""
    return secrets.token_urlsafe(_TOKEN_BYTES)


def bundle(
    directory: str | os.PathLike[str],
    role: BundleRole,
    name: str = "",
    out: str | os.PathLike[str] | None = None,
    *,
    days: float = DAYS,
    weight: int = 1,
) -> Path:
    """Write one file with exactly the credentials that another machine needs. Return its path.

    The bundle of a worker, trainer or operator has its own client certificate and no token, because a token cannot be
    revoked for one machine alone. The bundle of a server has the server certificate and the hashes of both tokens. The
    bundles of a server, a trainer and an operator have the revoked certificates. Each but an operator's has the files
    that rooms add, such as the one password of another transport, which is valid on that transport only. None has the
    CA's key.

    Args:
        directory: the folder where `create` ran.
        role: role of that machine.
        name: name in the certificate; required except for a server.
        out: the file, or the folder for `<name>.<role>.bundle`. None: that file in the current folder.
        days: validity of the client certificate, limited by the CA's.
        weight: of a worker in the Server's fair division, signed in its certificate; it may serve many clients.

    Raises:
        CredentialsError: a required file is missing, or the name or the weight does not fit a certificate.
    """
    folder = Path(directory).expanduser()
    if role not in (*CERTIFIED_ROLES, "server"):
        raise CredentialsError(f"{role!r} is not a role. Choose worker, trainer, operator or server.")
    if role != "server" and not name:
        raise CredentialsError(f"{with_article(role)}'s bundle needs a name: `{BUNDLE} {role} --name NAME`.")
    if not 1 <= weight <= MAX_WEIGHT or (weight != 1 and role != "worker"):
        raise CredentialsError(
            f"the weight of {with_article(role)} is {weight}; allowed: 1, and for a worker 1 to {MAX_WEIGHT}."
        )
    name = check_name(name or "server")
    ca = need(folder / "ca.pem")
    texts = {name: files.bundled(folder, server=role == "server") for name, files in added_files().items()}
    # An operator's certificate must not carry what would let its holder send samples or policies elsewhere.
    added = {name: found for name, found in texts.items() if found and role != "operator"}
    if role == "server":
        made = Signed(need(folder / "server.pem"), need(folder / "server.key", private=True))
        revoked = read_lists(folder, ca)
        hashes = folder_hashes(folder)
        if (folder / "ca.key").exists():
            with writing(folder):  # from now on, this CA counts as one that has issued certificates
                write_list(folder / ISSUED_FILE, read_list(folder / ISSUED_FILE))
        content = Bundle(BUNDLE_FORMAT, role, name, ca, *made, token_hashes=hashes, revoked=revoked)
    else:
        if not (folder / "ca.key").exists():
            raise CredentialsError(
                f"{folder / 'ca.key'} not found. Bundles are made on the machine where `{CREATE}` ran."
            )
        authority = Signed(ca, need(folder / "ca.key", private=True))
        until = datetime.now(timezone.utc) + timedelta(days=days)
        made = make_client_certificate(authority, role, name, until, weight=weight)
        facts = read_facts(made.certificate)
        with writing(folder):  # recorded before the bundle is written, so that every certificate can be revoked
            note_issued(folder, facts.serial, role, name, facts.not_after, weight)
        # A worker's bundle has none, since the list contains names of other machines.
        revoked = read_lists(folder, ca) if role != "worker" else ()
        content = Bundle(BUNDLE_FORMAT, role, name, ca, *made, revoked=revoked)
    target = Path(out).expanduser() if out is not None else Path()
    if target.is_dir():
        target = target / f"{name}.{role}.bundle"
    write_record(target, {**msgspec.to_builtins(content), **added}, private=True)
    return target


def install(
    bundle_file: str | os.PathLike[str], directory: str | os.PathLike[str], *, overwrite: bool = False
) -> list[Path]:
    """Unpack a bundle into a credentials folder and return the files written.

    Conflicting credentials of another CA are moved into a folder next to this one, and the move is logged: always if
    that CA has issued nothing, with `overwrite` if they come from a bundle, and never if that CA has issued bundles.

    Raises:
        CredentialsError: the file is not a bundle, its certificate does not fit its CA, or the folder holds other
            credentials that `overwrite` does not cover.
    """
    file = Path(bundle_file).expanduser()
    if not file.exists():
        raise CredentialsError(
            f"{file} not found. Make a bundle on the machine that holds the CA (`{BUNDLE} ROLE --name NAME`), copy it "
            "here, and name its file."
        )
    content = read_bundle(file)
    _check_bundle(content, file)
    folder = Path(directory).expanduser()
    with writing(folder):
        ca_file = folder / "ca.pem"
        if ca_file.exists() and read_file(ca_file).strip() != content.ca.strip():
            _check_replaceable(folder, overwrite)
            _move_aside(folder)
        elif not overwrite or (folder / ISSUED_FILE).exists():
            _check_same_secrets(content, folder)
        stem = "server" if content.role == "server" else f"{content.role}-{content.name}"
        files = [folder / f"{stem}.key", folder / f"{stem}.pem"]
        write_file(files[0], content.key, private=True)
        write_file(files[1], content.certificate)
        if content.token_hashes:
            files.append(folder / TOKENS_FILE)
            write_file(files[-1], msgspec.json.encode(content.token_hashes).decode() + "\n", private=True)
        if content.revoked:
            files.append(folder / REVOKED_FILE)
            add_revoked(folder, content.revoked, content.ca)
        for room, added in added_files().items():
            if room in content.added:
                files += added.install(content.added[room], folder)
        files.append(ca_file)
        write_file(ca_file, content.ca)
    return files


def _check_bundle(content: Bundle, file: Path) -> None:
    """Reject a bundle whose parts do not match: a bundle file is not signed."""
    made = f"Make a new one on the machine that holds the CA: `{BUNDLE} {content.role} --name {content.name}`."
    try:
        check_issued(Signed(content.certificate, content.key), content.ca)
        facts = read_facts(content.certificate)
    except CredentialsError as exc:
        raise CredentialsError(
            f"{file} was not made by the CA that it names: {exc}. Nothing was installed. {made}"
        ) from exc
    identity = identity_of({"subjectAltName": [("URI", name) for name in facts.names]})
    if identity != (None if content.role == "server" else (content.role, content.name)):
        found = f"the {identity[0]} {identity[1]}" if identity else "a server"
        raise CredentialsError(
            f"{file} says that it is for the {content.role} {content.name}, and its certificate is for {found}. "
            f"Nothing was installed. {made}"
        )
    if (content.role != "server" and content.token_hashes) or (content.role == "worker" and content.revoked):
        raise CredentialsError(
            f"{file} is {with_article(content.role)}'s bundle and holds token hashes or revocations, which it must not "
            f"have. Nothing was installed. {made}"
        )
    if facts.not_after < datetime.now(timezone.utc):
        logger.warning("the certificate in %s expired on %s. %s", file, f"{facts.not_after:%Y-%m-%d %H:%M UTC}", made)


def _check_replaceable(folder: Path, overwrite: bool) -> None:
    elsewhere = "Install the bundle into another folder (network.credentials_dir)"
    if not (folder / "ca.key").exists():
        if not overwrite:
            raise CredentialsError(
                f"{folder} holds credentials of another CA. {elsewhere}, or pass `--overwrite`, which moves them aside."
            )
    elif (folder / ISSUED_FILE).exists():
        count = len(read_list(folder / ISSUED_FILE))
        raise CredentialsError(
            f"{folder} holds a CA that has issued bundles ({count} client certificates are listed), and the bundle is "
            f"of another CA. Without its key, they cannot be revoked or renewed. {elsewhere}. If this CA is not needed "
            "any more, move its folder away first."
        )


def _check_same_secrets(content: Bundle, folder: Path) -> None:
    """Refuse a bundle of the same CA whose secrets differ from this folder's."""
    rooms = {name: files for name, files in added_files().items() if name in content.added}
    differing = [files.about for name, files in rooms.items() if files.conflict(content.added[name], folder)]
    if (folder / "ca.key").exists():  # in other folders, a newer bundle replaces the credentials
        hashes = folder_hashes(folder)
        if any(hashes.get(role) != digest for role, digest in content.token_hashes.items()):
            differing.append("tokens")
    if differing:
        raise CredentialsError(
            f"the bundle would replace {', '.join(differing)} in {folder} with others, though its CA is the same. "
            "Nothing was installed. Install it into another folder (network.credentials_dir); "
            "tokens are changed with `--credentials rotate-token ROLE`."
        )


def _move_aside(folder: Path) -> None:
    """Move the credentials of another CA into a folder next to this one. The caller holds the folder's lock."""
    aside = folder.with_name(f"{folder.name}.old-{datetime.now(timezone.utc):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}")
    found = [file for pattern in ("*.pem", "*.key", "*.token") for file in folder.glob(pattern)]
    others = (
        TOKENS_FILE,
        ISSUED_FILE,
        SIGNED_FILE,
        *(name for files in added_files().values() for name in files.secrets),
    )
    found += [file for name in others if (file := folder / name).exists() and file not in found]
    try:
        aside.mkdir(mode=0o700)
        if (folder / REVOKED_FILE).exists():  # copied, not moved: a running Server treats a missing list as an error
            write_file(aside / REVOKED_FILE, read_file(folder / REVOKED_FILE))
        for file in found:
            file.rename(aside / file.name)
    except OSError as exc:
        raise CredentialsError(f"the credentials in {folder} cannot be moved to {aside}: {exc.strerror}") from exc
    forget_lists(folder)
    logger.warning("the credentials of another CA that were in %s are in %s now", folder, aside)


def show(directory: str | os.PathLike[str]) -> list[CredentialInfo]:
    """List the content of a credentials folder (or bundle file): fingerprints and expiry, no secret.

    Raises:
        CredentialsError: there are no credentials, or a file does not have the content that its name implies.
    """
    folder = Path(directory).expanduser()
    if folder.is_file():
        content = read_bundle(folder)
        records = [_certificate_info(content.ca, str(folder)), _certificate_info(content.certificate, str(folder))]
        records += [_token_info(role, digest, str(folder)) for role, digest in content.token_hashes.items()]
        return records
    authority = need(folder / "ca.pem")
    secret = {name for added in added_files().values() for name in added.secrets}
    files = [file for file in folder.glob("*.pem") if file.name not in secret]
    files.sort(key=lambda file: (file.name != "ca.pem", file.name != "server.pem", file.name))
    records = [_certificate_info(read_file(file), str(file)) for file in files]
    if (folder / "ca.key").exists():
        records.append(CredentialInfo("CA key", str(folder / "ca.key")))
    for role, digest in folder_hashes(folder).items():
        token_file = folder / f"{role}.token"
        records.append(_token_info(role, digest, str(token_file if token_file.exists() else folder / TOKENS_FILE)))
    taken_back = read_lists(folder, authority)
    gone = {one.serial for one in taken_back}
    for one in read_list(folder / ISSUED_FILE):
        if one.serial not in gone:
            records.append(_listed_info("issued", one, folder / ISSUED_FILE))
    records += [_listed_info("revoked", one, folder / REVOKED_FILE) for one in taken_back]
    return records


def _listed_info(what: str, one: Listed, file: Path) -> CredentialInfo:
    left = (one.not_after - datetime.now(timezone.utc)) // timedelta(days=1)
    return CredentialInfo(
        what,
        str(file),
        one.name,
        (f"weight {one.weight}",) if one.weight != 1 else (),
        role=one.role,
        not_before=one.at,
        expires=one.not_after,
        days_left=left,
        serial=one.serial,
    )


def _certificate_info(text: str, file: str) -> CredentialInfo:
    try:
        facts = read_facts(text)
    except CredentialsError as exc:
        raise CredentialsError(f"{file}: {exc}") from exc
    identity = identity_of({"subjectAltName": [("URI", name) for name in facts.names]})
    if identity is not None:
        what, role = "client certificate", identity[0]
    elif facts.names:
        what, role = f"{room_of_certificate(facts.names) or 'server'} certificate", "server"
    else:
        what, role = "CA certificate", ""
    left = (facts.not_after - datetime.now(timezone.utc)) // timedelta(days=1)
    return CredentialInfo(
        what,
        file,
        facts.subject,
        facts.names,
        role,
        facts.fingerprint,
        facts.not_before,
        facts.not_after,
        left,
        facts.serial,
    )


def _token_info(role: str, digest: str, file: str) -> CredentialInfo:
    pairs = [digest[i : i + 2].upper() for i in range(0, len(digest), 2)]
    return CredentialInfo("token", file, role=role, fingerprint=":".join(pairs))
