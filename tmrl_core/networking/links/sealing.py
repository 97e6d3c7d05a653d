"""End-to-end authentication of a link: its mode, its certificate, and the two ends' seals made from them.

The seals import `cryptography`, so they are imported only where the mode is not `off`.
"""

# Theory of operation
#
# This file makes the seals of a link from the configuration and the credentials on this machine, and keeps them up to
# date. The seals themselves read no files.
#
# Whether to authenticate is decided here by what this machine has, never by what the Server says: on where there is a
# certificate, off over links without one, an error where the configuration demands what is not possible.
#
# Renewal and revocation. `refresh` is called every two seconds by the link, and before each connection. If files have
# changed or the Server has sent a newer list, everything is read again, and used only if all of it is valid; otherwise
# the previous certificates stay in use, and one error is logged. A change that concerns the other ends (another
# certificate of this machine, another CA, a revocation of a certificate that may have been met) makes the link connect
# again, which shows and checks all certificates anew. A revocation of an unknown machine does not disturb the others.
#
# A list of revoked certificates from the Server is believed by the CA's signature and its number alone, so a Server can
# withhold one, and neither invent nor take back any. It is used at once and stored in the folder, so that it outlives
# this process and serves other roles of the machine.

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from tmrl_core.errors import ConfigError, CredentialsError
from tmrl_core.networking.links.remark_log import RemarkLog
from tmrl_core.networking.security.accepted_versions import AcceptedVersions
from tmrl_core.networking.security.authentication import WatchedFiles
from tmrl_core.networking.security.certificates import Signed, make_client_certificate, read_signed_list
from tmrl_core.networking.security.credentials import DAYS, find
from tmrl_core.networking.security.handshakes import BUNDLE
from tmrl_core.networking.security.revocations import ISSUED_FILE, NO_LIST, SIGNED_FILE, read_list, read_signed
from tmrl_core.networking.security.run_keys import RunKeyFiles
from tmrl_core.networking.security.secret_files import LINK_WAIT_S, folder_of, need, write_file, writing
from tmrl_core.networking.security.tls_contexts import (
    OPERATOR_ROLES,
    CertifiedRole,
    client_certificate,
    read_bundle,
    read_revoked,
)
from tmrl_core.networking.transports.selection import LinkSettings, uses_plaintext

if TYPE_CHECKING:
    from tmrl_core.networking.observer.seal import ViewerSeal
    from tmrl_core.networking.trainer.seal import TrainerSeal
    from tmrl_core.networking.worker.seal import WorkerSeal

logger = logging.getLogger(__name__)

Mode = Literal["off", "authenticate", "encrypt"]

DEFAULT: Mode = "authenticate"
"""Mode on a machine with a certificate, for `network.end_to_end: null`."""

_LOCAL_NAME = "local"
"""Name in the certificate that a role issues to itself where the CA's key is."""


def mode_of(settings: LinkSettings, role: CertifiedRole) -> Mode:
    """Return the mode of end-to-end authentication of a client with these settings on this machine.

    Raises:
        ConfigError: the transport has no certificates, and the configuration demands them.
        CredentialsError: there is no certificate, and the configuration demands one; or a file cannot be read.
    """
    wanted = settings.end_to_end
    if wanted == "off":
        return "off"
    if settings.transport != "tls" or uses_plaintext(settings):
        if wanted is None:
            return "off"
        raise ConfigError(
            f"network.end_to_end: {wanted} signs with client certificates, and this link to the Server uses none "
            f"(network.transport: {settings.transport}, without TLS or with a password). Use TLS, or set "
            "network.end_to_end: off."
        )
    folder = find(settings.credentials_dir)
    certified = client_certificate(folder, role) is not None
    if wanted is None:
        # Where the CA's key is, other machines may have certificates, which they will use.
        issues = (folder / "ca.key").exists() and bool(read_list(folder / ISSUED_FILE))
        return DEFAULT if certified or issues else "off"
    if certified or (folder / "ca.key").exists():
        return wanted
    raise CredentialsError(
        f"network.end_to_end: {wanted} needs one client certificate of a {role}, and {folder} has none, or several: a "
        f"token proves an origin to the Server only. Make a bundle for this machine (`{BUNDLE} {role} --name NAME`) "
        "and install it here, or set network.end_to_end: off on all machines of the run."
    )


class Identity:
    """Certificate of this role, and the CA and revocations that it checks others against; reloaded when files change.

    A newer list of revoked certificates from the Server is stored in the folder. Where the CA's key is, a role without
    a certificate issues one to itself, in memory only.

    Args:
        directory: the credentials folder or bundle file.
        role: role of the certificate.

    Raises:
        CredentialsError: a file is missing or damaged.

    Attributes:
        signer: the certificate and its key.
        verifier: check of other members' certificates.
        seal: the seal that uses this certificate.
        recheck: called after certificates or revocations have changed.
        reconnecting: called before the link connects again because of such a change.
    """

    def __init__(self, directory: Path, role: CertifiedRole) -> None:
        from tmrl_core.networking.end_to_end.identity import Signer, Verifier

        self._directory = directory
        self._role = role
        self._files = WatchedFiles(directory)
        self._issued: tuple[str, Signed] | None = None
        self._listed = NO_LIST
        self._has_news = False
        """True: a list that the Server has sent is not used yet."""
        self._known = self._read()
        authority, own, revoked = self._known
        self.signer = Signer(*own)
        self.verifier = Verifier(authority, revoked=revoked)
        self.seal: WorkerSeal | TrainerSeal | ViewerSeal | None = None
        self.recheck: Callable[[], None] = lambda: None
        self.reconnecting: Callable[[], None] = lambda: None

    def _read(self) -> tuple[str, Signed, frozenset[str]]:
        place = self._directory
        authority = read_bundle(place).ca if place.is_file() else need(place / "ca.pem")
        own = client_certificate(place, self._role) or self._issue(authority)
        self._listed = max(self._listed, read_signed(folder_of(place), authority), key=lambda listed: listed.number)
        return authority, own, read_revoked(place) | self._listed.serials

    @property
    def authority(self) -> str:
        """Return a digest that identifies the CA."""
        return hashlib.sha256(self._known[0].encode()).hexdigest()

    def take_revocations(self, body: bytes) -> None:
        """Handle the list of revoked certificates that the Server has sent. `refresh` says what follows from it."""
        try:
            text = body.decode("ascii")
            listed = read_signed_list(text, self._known[0])
            if listed is None:
                raise CredentialsError("it is of another CA")
        except (CredentialsError, UnicodeDecodeError) as exc:
            if self.seal is not None:
                self.seal.count(f"a list of revoked certificates was refused: {exc}")
            return
        if listed.number <= self._listed.number:
            return
        self._listed, self._has_news = listed, True
        self.verifier.revoked = self._known[2] | listed.serials  # at once: spooled streams are announced next
        self.recheck()
        folder = folder_of(self._directory)
        try:
            with writing(folder, wait_s=LINK_WAIT_S):
                if read_signed(folder, self._known[0]).number < listed.number:  # several roles may share the folder
                    write_file(folder / SIGNED_FILE, text)
        except CredentialsError as exc:
            logger.warning("the list of revoked certificates is kept until this process ends: %s", exc)

    def _issue(self, authority: str) -> Signed:
        if self._issued is None or self._issued[0] != authority:
            key = need(self._directory / "ca.key", private=True)
            until = datetime.now(timezone.utc) + timedelta(days=DAYS)
            made = make_client_certificate(Signed(authority, key), self._role, _LOCAL_NAME, until)
            self._issued = authority, made
        return self._issued[1]

    def refresh(self) -> bool:
        """Reload changed files. Return True if the other end must see or check a certificate again."""
        from tmrl_core.networking.end_to_end.identity import Signer

        if not self._files.changed() and not self._has_news:
            return False
        self._has_news = False
        try:
            read = authority, own, revoked = self._read()
            signer = Signer(*own)
            if signer.identity != self.signer.identity:
                raise CredentialsError(
                    f"the new certificate is of {signer.identity}, and this process is {self.signer.identity}. Start "
                    "it again to use the new one."
                )
            news = revoked ^ self._known[2]
            changed = (authority, own) != self._known[:2] or self.verifier.may_have_checked(news)
            if authority != self._known[0]:  # otherwise it would forget which certificates it has checked
                self.verifier.trust(authority)
        except (CredentialsError, OSError) as exc:
            if self._files.failed():
                logger.error("the previous certificates and revocations stay in use: %s", exc)
            return False
        self._files.accept()
        self.verifier.revoked = revoked
        self.signer = signer
        if self.seal is not None:
            self.seal.signer = signer
        self.recheck()
        if changed:
            self.reconnecting()
        self._known = read
        return changed


def seal_worker(
    settings: LinkSettings, run: str, model_path: str | os.PathLike[str] | None, log: RemarkLog
) -> tuple[Identity, WorkerSeal] | tuple[None, None]:
    """Return the certificate and the seal of a worker's link; None: end-to-end authentication is off.

    Raises:
        ConfigError, CredentialsError: the configuration demands it, and it is not possible; or a file is damaged.
    """
    mode = mode_of(settings, "worker")
    if mode == "off":
        return None, None
    from tmrl_core.networking.worker.seal import WorkerSeal

    identity = Identity(find(settings.credentials_dir), "worker")
    accepted = AcceptedVersions(model_path, run)
    identity.seal = seal = WorkerSeal(
        run,
        identity.signer,
        identity.verifier,
        mode=mode,
        accepted=accepted.version,
        on_accepted=accepted.accept,
        on_forged=log.forged,
    )
    identity.recheck = seal.recheck
    return identity, seal


def card_problem(settings: LinkSettings, run: str, card: bytes, role: CertifiedRole = "worker") -> str:
    """Return the reason why a worker or a viewer would not accept a trainer's card; empty: it would.

    Raises:
        CredentialsError: a file of this machine is missing or damaged.
    """
    from tmrl_core.networking.observer.seal import ViewerSeal
    from tmrl_core.networking.worker.seal import WorkerSeal

    identity = Identity(find(settings.credentials_dir), role)
    said: list[str] = []
    if role == "operator":
        ViewerSeal(identity.signer, identity.verifier, on_forged=said.append).announced(card)
    else:
        seal = WorkerSeal(run, identity.signer, identity.verifier, mode="authenticate", on_forged=said.append)
        seal.announced(card)
    return "".join(said[:1])


def seal_viewer(settings: LinkSettings, log: RemarkLog) -> tuple[Identity, ViewerSeal] | tuple[None, None]:
    """Return the certificate and the seal of a viewer's link; None: it checks and signs nothing.

    An operator's certificate is used, else the trainer's. Where the CA's key is, the viewer issues one to itself.

    Raises:
        CredentialsError: a file is missing or damaged.
    """
    if settings.transport != "tls" or uses_plaintext(settings):
        return None, None
    folder = find(settings.credentials_dir)
    role = next((role for role in OPERATOR_ROLES if client_certificate(folder, role) is not None), None)
    if role is None:
        if not (folder / "ca.key").exists():
            return None, None
        role = "operator"
    if mode_of(settings, role) == "off":
        return None, None
    from tmrl_core.networking.observer.seal import ViewerSeal

    identity = Identity(folder, role)
    identity.seal = seal = ViewerSeal(identity.signer, identity.verifier, on_forged=log.forged)
    identity.recheck = seal.recheck
    return identity, seal


def seal_trainer(
    settings: LinkSettings, run: str, log: RemarkLog
) -> tuple[Identity, TrainerSeal, RunKeyFiles] | tuple[None, None, None]:
    """Return the certificate, the seal and the files of the run key of a trainer's link; None: it is off.

    Raises:
        ConfigError, CredentialsError: the configuration demands it, and it is not possible; or a file is damaged.
    """
    mode = mode_of(settings, "trainer")
    if mode == "off":
        return None, None, None
    from tmrl_core.networking.end_to_end.run_key import RunKey
    from tmrl_core.networking.trainer.seal import TrainerSeal

    folder = find(settings.credentials_dir)
    identity, files = Identity(folder, "trainer"), RunKeyFiles(folder, run, settings.part)
    key, older = RunKey(files.private), map(RunKey, files.older)
    identity.seal = seal = TrainerSeal(
        run, identity.signer, identity.verifier, key, older=older, mode=mode, on_forged=log.forged
    )
    identity.reconnecting = seal.renew_group_key
    return identity, seal, files
