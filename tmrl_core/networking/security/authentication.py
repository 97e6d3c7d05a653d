"""Credentials in use, reloaded without a restart when their files change, and the authentication based on them."""

# Theory of operation
#
# This file holds the credentials that a running role uses, follows their files, and judges logins by them. It opens no
# socket. The transport `tls` calls `ServerAccess.refresh` once per second and `ClientAccess.refresh` before each
# connection; the relay calls `authenticate` for each Hello.
#
# State and who changes it: a TLS context, the hashes of the tokens, the subjects of the trusted CAs, and two sets of
# revoked serial numbers (those of `revoked.json` and those of the CA's signed list). Only `refresh` changes them, in
# the event loop's thread. A file counts as changed when its inode, size or time of change differs; that is enough,
# because all files of this package are replaced in one step.
#
# A login has three questions, in this order: is the certificate revoked, or of a replaced CA (`check_certificate`)? Is
# it one of the claimed role, or does a token show that role (`logins.py`)? Has the peer's address failed often
# (`delay_rejections`)? All of it happens after the handshake and not in it, because OpenSSL could only answer with an
# alert of one byte, and the peer's user needs a sentence.
#
# A change of the files takes effect on open links too: after a refresh that has changed something, the transport asks
# `rejection_of` for each link. Links by certificate are judged again by serial number and issuer. Links by token were
# remembered at their login with the hash of the token, so a rotated token ends them. An example: `--credentials revoke
# robot7` replaces `revoked.json`; within a second the Server sees another inode, reads the list, and closes the link of
# robot7 with the reason; the relay sends the signed list to the other machines.
#
# What fails. Each file takes effect as soon as it can be read: a damaged certificate must not delay a revocation. What
# cannot be read leaves the previous value in use. A certificate and its key are two files, which a renewal replaces one
# after the other, so a failed read is repeated once, a second later, before it is logged; after that the files are
# tried at every tenth check only, because the cause may be an unavailable folder or a lack of file descriptors. At the
# start there is no previous value, so each failure is an error: a Server with a damaged list of revoked certificates
# does not run.

from __future__ import annotations

import logging
import os
import ssl
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TypeAlias
from weakref import WeakKeyDictionary

from tmrl_core.errors import CredentialsError
from tmrl_core.networking.protocol.connection import Authenticate, Connection, Identity
from tmrl_core.networking.protocol.messages import MAX_BODY_BYTES, Hello
from tmrl_core.networking.security.admission import Admission
from tmrl_core.networking.security.certificates import read_end, read_signed_list
from tmrl_core.networking.security.handshakes import BUNDLE, RENEW
from tmrl_core.networking.security.logins import check_login
from tmrl_core.networking.security.revocations import SIGNED_FILE, revoked_file
from tmrl_core.networking.security.secret_files import folder_of, read_file
from tmrl_core.networking.security.tls_contexts import (
    CERTIFIED_ROLES,
    OPERATOR_ROLES,
    ContextRole,
    client_context,
    observer_files,
    read_bundle,
    read_revoked,
    server_context,
    token_for,
    token_hash,
)

logger = logging.getLogger(__name__)

WARN_DAYS = 30
"""Number of days before a certificate's expiry at which warnings begin."""
_WARN_EVERY = timedelta(days=1)
_RETRY_CHECKS = 10
"""Number of checks between two attempts to read a file that could not be read."""

Stamp: TypeAlias = tuple[tuple[str, int, int, int], ...]


def _authorities(context: ssl.SSLContext) -> frozenset[str]:
    return frozenset(str(one.get("subject")) for one in context.get_ca_certs())


def utc_now() -> datetime:
    """Return the current time in UTC."""
    return datetime.now(timezone.utc)


class WatchedFiles:
    """File stamps of a credentials folder, or of a bundle file, at its last read."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        # Taken before the files are read: a file that is replaced in between has another stamp at the next
        # check.
        self._read = self._tried = self._stamp()
        self._failures = 0
        self._checks = 0

    def _stamp(self) -> Stamp:
        place = self.directory
        try:
            beside = [place, revoked_file(place), place.parent / SIGNED_FILE]
            files = beside if place.is_file() else sorted(place.glob("*.*"))
        except OSError:
            return ()  # reading the folder will raise the error
        stamps: list[tuple[str, int, int, int]] = []
        for file in files:
            try:
                info = os.stat(file)
            except OSError:
                continue  # a file deleted in between counts as a change
            stamps.append((file.name, info.st_ino, info.st_size, info.st_mtime_ns))
        return tuple(stamps)

    def changed(self) -> bool:
        """Return True if the files have changed and should be read.

        Files that could not be read twice are tried again only occasionally.
        """
        stamp = self._stamp()
        # New files deserve two fresh attempts, however often the ones before have failed.
        if stamp != self._tried:
            self._tried = stamp
            self._failures = self._checks = 0
        self._checks += 1
        return stamp != self._read and (self._failures < 2 or self._checks % _RETRY_CHECKS == 0)

    def accept(self) -> None:
        """Record that the files, as of the last check, were read."""
        self._read = self._tried

    def failed(self) -> bool:
        """Record a failed read. Return True if it should be logged: a second read has failed too."""
        # The first failure is not logged: it is the ordinary moment between the replacement of a certificate
        # and of its key.
        self._failures += 1
        return self._failures == 2


class _Expiry:
    """Daily log warnings about certificates that expire soon."""

    def __init__(self, now: Callable[[], datetime]) -> None:
        self._now = now
        self._warned_at: datetime | None = None

    def check(self, certificates: Callable[[], list[tuple[str, datetime, str]]]) -> None:
        """Log a warning for each certificate, given as (name, end, remedy), that expires soon."""
        now = self._now()
        if self._warned_at is not None and now - self._warned_at < _WARN_EVERY:
            return
        # Set before the files are read, so that a folder that cannot be read is not searched again at every
        # check.
        self._warned_at = now
        try:
            found = certificates()
        except (CredentialsError, OSError):
            return  # code that reads the files for use reports the error
        for what, end, remedy in found:
            left = end - now
            if left < timedelta(0):
                logger.error("%s expired on %s UTC. %s", what, f"{end:%Y-%m-%d %H:%M}", remedy)
            elif left < timedelta(days=WARN_DAYS):
                logger.warning("%s expires on %s UTC, in %d days. %s", what, f"{end:%Y-%m-%d %H:%M}", left.days, remedy)

    def repeat(self) -> None:
        """Repeat the warning at the next check, because a file has changed."""
        self._warned_at = None


class ServerAccess:
    """Credentials of a Server, and the validity of logins based on them. Only one event loop's thread may use it.

    Args:
        directory: the credentials folder or bundle file.
        now: the time of day.

    Raises:
        CredentialsError: a file is missing or damaged, for example the list of revoked certificates.
    """

    def __init__(self, directory: str | os.PathLike[str], *, now: Callable[[], datetime] = utc_now) -> None:
        self._directory = Path(directory).expanduser()
        self._files = WatchedFiles(self._directory)
        self.context, self.verifier = server_context(self._directory)
        self._authorities = _authorities(self.context)
        self.signed_revocations, self._signed = self._read_signed()  # first, because `revoke` writes it last
        """List of revoked certificates with the CA's signature, to be sent to the peers; empty: there is none."""
        self._had_list = revoked_file(self._directory).exists()
        self._revoked = read_revoked(self._directory)
        self._tokens: WeakKeyDictionary[Connection, tuple[tuple[str, ...], str]] = WeakKeyDictionary()
        self._expiry = _Expiry(now)
        self._expiry.check(self._certificates)

    def refresh(self) -> bool:
        """Reload changed files. Return True if the valid credentials have changed. Called about once per second."""
        self._expiry.check(self._certificates)
        if not self._files.changed():
            return False
        # Each file takes effect as soon as it can be read: a damaged certificate must not delay a revocation.
        changed = False
        unread: list[str] = []
        try:
            context, verifier = server_context(self._directory)
        except (CredentialsError, OSError) as exc:
            unread.append(f"the previous certificate and tokens stay in use: {exc}")
        else:
            self.context, self.verifier = context, verifier
            self._authorities = _authorities(context)
            changed = True
        before = self._signed | self._revoked
        try:
            body, self._signed = self._read_signed()  # first, because `revoke` writes it last
        except CredentialsError as exc:
            unread.append(f"the previous signed list of revoked certificates stays in use: {exc}")
        else:
            if body != self.signed_revocations:  # peers compare by object, so an equal list must not replace it
                self.signed_revocations = body
        try:
            has_list = revoked_file(self._directory).exists()
            # A list that is gone would make every revoked certificate valid. It is tolerated only if the
            # signed list has all of them.
            if self._had_list and not has_list and not before <= self._signed:
                raise CredentialsError(f"{revoked_file(self._directory)} is gone")
            revoked = read_revoked(self._directory)
        except (CredentialsError, OSError) as exc:
            unread.append(f"the previous list of revoked certificates stays in use: {exc}")
        else:
            self._had_list, self._revoked = has_list, revoked
        # The union is compared, so that a serial number that moves from one list to the other disturbs no link.
        changed |= before != self._signed | self._revoked
        if not unread:
            self._files.accept()
            self._expiry.repeat()
            logger.info("credentials were reloaded; revoked certificates: %d", len(self._signed | self._revoked))
        elif self._files.failed():
            for line in unread:
                logger.error("%s", line)
        return changed

    def _authority(self) -> str:
        place = self._directory
        return read_bundle(place).ca if place.is_file() else read_file(place / "ca.pem")

    def _read_signed(self) -> tuple[bytes, frozenset[str]]:
        """Return the signed list in the form for the peers, empty if it is not sent, and its serial numbers."""
        file = folder_of(self._directory) / SIGNED_FILE
        if not file.exists():
            return b"", frozenset()
        text = read_file(file)
        try:
            listed = read_signed_list(text, self._authority())
        except CredentialsError as exc:
            raise CredentialsError(f"{file}: {exc}. Copy it from the machine of the CA, or delete it.") from exc
        if listed is None:  # tolerated, because the folder of several bundle files may have the list of another CA
            logger.warning("%s is of another CA and is not used. Copy it from the machine of this Server's CA.", file)
            return b"", frozenset()
        body = text.encode()
        if len(body) > MAX_BODY_BYTES:
            logger.warning(
                "%s has %d bytes, and peers are sent at most %d. Copy it to the trainer's machine.",
                file,
                len(body),
                MAX_BODY_BYTES,
            )
            body = b""
        return body, listed.serials

    def rejection_of(self, connection: Connection) -> tuple[str, str] | None:
        """Return (refusal code, reason) if an admitted peer would be rejected now, else None."""
        if (rejection := self.check_certificate(connection.identity)) is not None:
            return rejection
        login = self._tokens.get(connection)
        if login is not None and not any(self.verifier.holds(role, login[1]) for role in login[0]):
            return "token", f"its token is no longer valid. {_NEW_TOKEN}"
        return None

    def check_certificate(self, identity: Identity) -> tuple[str, str] | None:
        """Return code and reason of the rejection of a revoked certificate or a replaced CA; None: no rejection."""
        if identity.serial is None:
            return None
        role = identity.role if identity.role in CERTIFIED_ROLES else "ROLE"
        # OpenSSL checked the chain when the link was made; the CA may have been replaced since.
        if identity.issuer is not None and identity.issuer not in self._authorities:
            return (
                "certificate",
                f"the CA of this Server was replaced, and this machine's certificate ({identity.name}) is of the old "
                f"one. Make a bundle on the machine that holds the CA (`{BUNDLE} {role} --name {identity.name}`) and "
                "install it here.",
            )
        if identity.serial not in self._revoked and identity.serial not in self._signed:
            return None
        return (
            "certificate",
            f"this machine's client certificate ({identity.name}) was revoked. If that is a mistake, make a new bundle "
            f"on the machine that holds the CA (`{BUNDLE} {role} --name {identity.name}`) and install it here.",
        )

    def authenticate(self, hello: Hello, connection: Connection) -> tuple[str, str] | None:
        """Return code and reason of a rejected login, or None. Logins by token are remembered for `rejection_of`."""
        identity = connection.identity
        # Revocation comes before the role: the holder of a revoked certificate learns nothing about what it
        # could be used for.
        verdict = self.check_certificate(identity) or check_login(hello, identity, self.verifier)
        if verdict is None and (
            identity.role is None or (hello.role == "observer" and identity.role not in OPERATOR_ROLES)
        ):
            # An observer may have shown either token, and both checks always run, so which one fitted is
            # not known here.
            roles = ("observer", "trainer") if hello.role == "observer" else (hello.role,)
            self._tokens[connection] = (roles, token_hash(hello.token))
        return verdict

    def _certificates(self) -> list[tuple[str, datetime, str]]:
        place = self._directory
        if place.is_file():
            content = read_bundle(place)
            own, ca = content.certificate, content.ca
        else:
            own, ca = read_file(place / "server.pem"), read_file(place / "ca.pem")
        return [
            ("this Server's certificate", read_end(own), f"Renew it: `{RENEW}`."),
            ("the CA's certificate", read_end(ca), _NEW_CA),
        ]


class ClientAccess:
    """Credentials of a worker or trainer, reloaded before each connection if they have changed.

    Args:
        directory: the credentials folder or bundle file.
        role: the client's role.
        token: takes precedence over the token in the files; None: use the files' token.
        now: the time of day.

    Raises:
        CredentialsError: a file is missing or does not fit the others.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        role: ContextRole,
        token: str | None = None,
        *,
        now: Callable[[], datetime] = utc_now,
    ) -> None:
        self._directory = Path(directory).expanduser()
        self._role = role
        self._given = token
        self._files = WatchedFiles(self._directory)
        self._expiry = _Expiry(now)
        self._load()

    def _load(self) -> None:
        context = client_context(self._directory, self._role, has_token=bool(self._given))
        # Both are read before either is used: if one cannot be read, the previous pair stays together.
        token = self._given or token_for(self._directory, self._role) or ""
        self.context: ssl.SSLContext = context
        self.token = token

    def refresh(self) -> bool:
        """Reload changed files. Return True if a file has changed. Called before each connection."""
        changed = False
        if self._files.changed():
            try:
                self._load()
            except (CredentialsError, OSError) as exc:
                if self._files.failed():
                    logger.error("the previous credentials stay in use: %s", exc)
            else:
                self._files.accept()
                self._expiry.repeat()
                changed = True
                logger.info("credentials were reloaded")
        self.warn_of_expiry()
        return changed

    def warn_of_expiry(self) -> None:
        """Log a warning, once a day, about a certificate that expires soon."""
        self._expiry.check(self._certificates)

    def _certificates(self) -> list[tuple[str, datetime, str]]:
        place = self._directory
        if place.is_file():
            content = read_bundle(place)
            if content.role == "server":
                return []
            found = [(content.name, content.certificate)]
        else:
            files = observer_files(place) if self._role == "observer" else sorted(place.glob(f"{self._role}-*.pem"))
            found = [(file.stem.partition("-")[2], read_file(file)) for file in files]
        return [
            (
                f"this machine's client certificate ({name})",
                read_end(text),
                f"Renew it where the CA is (`{RENEW} {name}`) and install the bundle here.",
            )
            for name, text in found
        ]


_NEW_TOKEN = (
    "Copy the new one from the machine that holds the credentials, or give this machine a bundle: "
    f"`{BUNDLE} ROLE --name NAME`."
)
_NEW_CA = "Make a new CA and new bundles: `python -m tmrl_core --credentials create --overwrite`."


def delay_rejections(authenticate: Authenticate, admission: Admission, clock: Callable[[], float]) -> Authenticate:
    """Wrap `authenticate` to delay rejections of failed logins, longer with each one from the same address.

    Peers with a valid certificate are exempt, even if the certificate is for another role.
    """

    def authenticate_peer(hello: Hello, connection: Connection) -> tuple[str, str] | tuple[str, str, float] | None:
        verdict = authenticate(hello, connection)
        # Other rejections are no guesses at a secret: a wrong role or a full Server costs the peer no delay.
        if verdict is None or verdict[0] not in ("token", "certificate"):
            return verdict
        return verdict[0], verdict[1], admission.failed(connection.identity.address, clock())

    return authenticate_peer
