"""Lists of revoked certificates, and record of issued ones."""

# Theory of operation
#
# This file holds which certificates count no more. It knows nothing of links: the Server's `ServerAccess` and the ends
# of end-to-end authentication read the lists and act on them.
#
# Certificates are identified by their serial numbers, which a CA never repeats. So a name can be used again: after
# `revoke robot7`, a new bundle for robot7 has another serial number and is valid. Three files hold the state, all
# replaced in one step, under the folder's lock, by the commands `create`, `bundle`, `install` and `revoke`:
#
#     issued.json    beside the CA's key: every certificate it has signed, so that a stolen machine is found by its name
#     revoked.json   the revoked ones: in the Server's credentials folder, or beside its bundle file
#     revoked.crl    the serial numbers of revoked.json with the CA's signature, an X.509 list
#
# Why two lists of the same thing: `revoked.json` is what people read and copy, with names; `revoked.crl` is what the
# Server passes on to workers and the trainer. They check the CA's signature, so that a revocation reaches them also
# through a Server that they do not trust.
#
# Order. `revoke` writes revoked.json first and revoked.crl last; a reader reads revoked.crl first. A reader in between
# therefore sees at most a certificate in revoked.json that is not signed yet, never the reverse. So a serial number
# that revoked.crl alone has was *lost* from revoked.json: the file was deleted, or replaced by an older copy. It stays
# revoked, as a Server refuses what either list has, and the next command that writes revoked.json writes it again. An
# example: revoked.json lists a and b, revoked.crl a, b and c. `read_lists` returns a, b and c, and the next writer
# stores all three, with the name that issued.json has for c, where that file is.
#
# What fails. A missing revoked.json counts as "none revoked" only if there never was one: a running Server treats its
# disappearance as an error and keeps its last list, which is why a new CA empties the file instead of deleting it. A
# damaged file is an error, never an empty list. A signed list of another CA is ignored, because a folder of several
# bundle files may hold one.
#
# Expired certificates stay on the lists. A trainer takes stored streams of the time in which their certificates were
# valid, so a thief could use a revoked certificate again once it was left out.
#
# Numbers: an X.509 list carries a number, and of two lists the higher one is newer. It is the time in seconds, at least
# one more than before: if the file is lost, the next list is newer than every copy of it that machines still hold.

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterable
from datetime import datetime, timezone
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from tmrl_core.decodable import decodable
from tmrl_core.errors import CredentialsError
from tmrl_core.networking.security.certificates import (
    MAX_WEIGHT,
    Signed,
    SignedList,
    read_end,
    read_signed_list,
    sign_list,
)
from tmrl_core.networking.security.secret_files import folder_of, read_file, read_record, write_file, write_record

logger = logging.getLogger(__name__)

REVOKED_FILE = "revoked.json"
ISSUED_FILE = "issued.json"
SIGNED_FILE = "revoked.crl"

NO_LIST = SignedList(-1, frozenset())


class Listed(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One certificate of a client; `at` is the time of its issue or revocation."""

    serial: Annotated[str, Meta(pattern=r"\A(0|[1-9a-f][0-9a-f]{0,63})\Z")]
    """Serial number, as `certificates.clean_serial` returns it."""
    role: str
    name: str
    not_after: Annotated[datetime, Meta(tz=True)]
    at: datetime
    weight: Annotated[int, Meta(ge=1, le=MAX_WEIGHT)] = 1


@decodable
class _List(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    format: Literal["tmrl_core certificates"]
    certificates: tuple[Listed, ...]


def read_list(file: Path) -> tuple[Listed, ...]:
    """Return the certificates listed in such a file; none without a file.

    Raises:
        CredentialsError: the file cannot be read, or is damaged.
    """
    lack = "revoked certificates would be valid again"
    if file.name == ISSUED_FILE:
        lack = "certificates could be revoked only by their files, not by names"
    content = read_record(file, _List, f"Restore it from a copy; without it, {lack}.")
    return () if content is None else content.certificates


def write_list(file: Path, listed: Iterable[Listed]) -> None:
    """Replace such a file in one step."""
    write_record(file, _List("tmrl_core certificates", tuple(listed)))


def revoked_file(directory: str | os.PathLike[str]) -> Path:
    """Return the file of revoked certificates for this credentials folder, or bundle file."""
    return folder_of(directory) / REVOKED_FILE


def note_issued(folder: Path, serial: str, role: str, name: str, not_after: datetime, weight: int = 1) -> None:
    """Record an issued certificate. The caller holds the folder's lock."""
    # Appended, never replaced by name: an earlier certificate of the same name must stay revocable.
    now = datetime.now(timezone.utc)
    file = folder / ISSUED_FILE
    write_list(file, [*read_list(file), Listed(serial, role, name, not_after, now, weight)])


def issued(folder: Path, name: str, role: str | None = None) -> list[Listed]:
    """Return the certificates issued to that name, in that role or in any."""
    return [one for one in read_list(folder / ISSUED_FILE) if one.name == name and role in (None, one.role)]


def forget_lists(folder: Path) -> None:
    """Clear both lists for a new CA. The caller holds the folder's lock.

    The list of revoked certificates is emptied, not deleted: a running Server treats a missing list as an error.
    """
    # The old CA's certificates are of no use to anyone: the new CA is another issuer, which alone is trusted.
    (folder / ISSUED_FILE).unlink(missing_ok=True)
    (folder / SIGNED_FILE).unlink(missing_ok=True)
    if (folder / REVOKED_FILE).exists():
        write_list(folder / REVOKED_FILE, ())


def read_lists(folder: Path, authority: str) -> tuple[Listed, ...]:
    """Return the certificates that `revoked.json` or the list signed by the CA with this certificate revokes.

    Those of the signed list alone have the role and name of `issued.json`; elsewhere, both are unknown and empty.

    Raises:
        CredentialsError: a file cannot be read, is damaged, or has a wrong signature.
    """
    signed = read_signed(folder, authority)  # first, because `revoke` writes it last
    listed = read_list(folder / REVOKED_FILE)
    lost = signed.serials.difference(one.serial for one in listed)
    if not lost:
        return listed
    known = {one.serial: one for one in read_list(folder / ISSUED_FILE)}
    # The expiry of a lost certificate is unknown. No certificate outlives its CA, so the CA's is a safe bound.
    end, now = read_end(authority), datetime.now(timezone.utc)
    found = (known.get(serial) or Listed(serial, "", "", end, now) for serial in sorted(lost))
    return (*listed, *(msgspec.structs.replace(one, at=now) for one in found))


def add_revoked(folder: Path, certificates: Iterable[Listed], authority: str) -> list[Listed]:
    """Add certificates to the list of revoked ones. Return the new entries. The caller holds the folder's lock.

    Certificates that only the signed list of the CA with this certificate has are added too, with a warning.
    """
    now = datetime.now(timezone.utc)
    file = folder / REVOKED_FILE
    before = read_lists(folder, authority)
    lost = len(before) - len(read_list(file))
    known = {one.serial for one in before}
    new = [msgspec.structs.replace(one, at=now) for one in certificates if one.serial not in known]
    # Written also if nothing is new and the file is missing: from now on its disappearance is noticed.
    if new or lost or not file.exists():
        write_list(file, [*before, *new])
    if lost:
        logger.warning(
            "%s lacked %d certificates that %s revokes: it was deleted, or replaced by an old copy. They stay revoked, "
            "and it has been written again.",
            file,
            lost,
            SIGNED_FILE,
        )
    return new


def sign_revoked(folder: Path, authority: Signed) -> None:
    """Sign the list of revoked certificates. The caller holds the folder's lock."""
    # An unchanged list is not signed again: each signature has other bytes, and new bytes are sent to every peer.
    before = read_signed(folder, authority.certificate)
    serials = frozenset(one.serial for one in read_lists(folder, authority.certificate))
    if serials != before.serials or before == NO_LIST:
        # The time keeps the number above those of a file that was lost.
        listed = SignedList(max(before.number + 1, int(time.time())), serials)
        write_file(folder / SIGNED_FILE, sign_list(authority, listed))


def read_signed(folder: Path, authority: str) -> SignedList:
    """Return the signed list in a credentials folder; `NO_LIST` without one of the CA with this certificate.

    The folder of several bundle files may have the list of another CA.

    Raises:
        CredentialsError: the file cannot be read, or is damaged.
    """
    file = folder / SIGNED_FILE
    if not file.exists():
        return NO_LIST
    try:
        return read_signed_list(read_file(file), authority) or NO_LIST
    except CredentialsError as exc:
        raise CredentialsError(
            f"{file}: {exc}. Copy it from the machine of the CA, or delete it: the Server sends the current one."
        ) from exc
