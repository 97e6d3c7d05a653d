"""Files with secrets: readable by their user only, written in one step, by one process at a time.

On Windows the folder's access rights protect them; mode bits have no meaning there.
"""

from __future__ import annotations

import contextlib
import logging
import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

from tmrl_core.errors import CredentialsError
from tmrl_core.networking.security.handshakes import BUNDLE, CREATE
from tmrl_core.storage import write_whole
from tmrl_core.storage.lock import lock_file

logger = logging.getLogger(__name__)

_MAX_FILE_BYTES = 16 << 20
"""Room for a list of 70,000 certificates."""


def need(file: Path, *, private: bool = False) -> str:
    """Return the text of a required file.

    Raises:
        CredentialsError: it is missing (the message names the command to run), or cannot be read.
    """
    if not file.exists():
        raise CredentialsError(missing(file))
    return read_file(file, private=private)


def missing(file: Path) -> str:
    """Return the error message for a missing file of credentials."""
    return (
        f"{file} not found. Create credentials with `{CREATE}`, or, on another machine than the Server's, install a "
        f"bundle that was made with `{BUNDLE} worker --name NAME`; or set network.credentials_dir."
    )


def read_file(file: Path, *, private: bool = False) -> str:
    """The text of a file; a private one that others can read too is warned of.

    Raises:
        CredentialsError: it cannot be read, is no text, or is too long to be credentials.
    """
    try:
        if file.stat().st_size > _MAX_FILE_BYTES:
            raise CredentialsError(f"{file} is too large for a file of credentials")
        if private:
            warn_if_readable(file)
        return file.read_text(encoding="utf-8")
    except OSError as exc:
        raise CredentialsError(f"{file} cannot be read: {exc.strerror}") from exc
    except UnicodeDecodeError:
        raise CredentialsError(f"{file} is not text, so it is no key, certificate or token of ours") from None


def warn_if_readable(file: Path) -> None:
    """Log a warning if other users can read this private file, which is used nevertheless."""
    if sys.platform != "win32" and stat.S_IMODE(file.stat().st_mode) & 0o077:
        logger.warning("%s can be read by other users of this machine. Run `chmod 600 %s`.", file, file)


def warn_if_writable(folder: Path) -> None:
    """Log a warning if other users can put their own credentials into this folder, which is used nevertheless."""
    if sys.platform == "win32":
        return
    try:
        info = folder.stat()
    except OSError:
        return  # reported where its files are read
    if info.st_mode & (stat.S_IWGRP | stat.S_IWOTH) or info.st_uid not in (0, os.getuid()):
        logger.warning(
            "%s can be written by other users of this machine, who could change whom it trusts. Restrict it to "
            "yourself (`chmod 700 %s`), or set network.credentials_dir.",
            folder,
            folder,
        )


def write_file(file: Path, text: str, *, private: bool = False) -> None:
    """Replace a file in one step; a private one is never readable by others, not even for a moment."""
    try:
        write_whole(file, text.encode(), 0o600 if private else 0o644, sync=True)
    except OSError as exc:
        raise CredentialsError(f"{file} cannot be written: {exc.strerror}") from exc


@contextlib.contextmanager
def writing(folder: Path) -> Iterator[None]:
    """The folder, made if it is missing, for one writing process at a time; a killed one leaves no lock behind."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if (folder / ".lock").is_symlink():
            raise CredentialsError(f"{folder / '.lock'} is a symbolic link. Remove it, or choose another folder.")
        lock = open(folder / ".lock", "a", encoding="utf-8")  # noqa: SIM115
    except OSError as exc:
        raise CredentialsError(f"{folder} cannot be written: {exc.strerror}") from exc
    with lock:
        try:
            lock_file(lock.fileno(), wait=True)
        except OSError as exc:
            raise CredentialsError(f"{folder} is being written by another process: {exc.strerror}") from exc
        # Closing the file gives the lock back.
        yield
