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
from typing import Any, TypeVar

import msgspec

from tmrl_core.errors import CredentialsError
from tmrl_core.networking.security.handshakes import BUNDLE, CREATE
from tmrl_core.storage import write_whole
from tmrl_core.storage.lock import lock_file
from tmrl_core.storage.own_files import open_now, open_own

logger = logging.getLogger(__name__)

Record = TypeVar("Record", bound=msgspec.Struct)

LINK_WAIT_S = 2.0
"""Maximum time that a link waits for another writer, while it sends no heartbeats."""
_MAX_FILE_BYTES = 16 << 20
"""Maximum size of a file, enough for a list of 70,000 certificates."""


def folder_of(directory: str | os.PathLike[str]) -> Path:
    """Return a credentials folder, or the folder of a bundle file, which holds the lists for it."""
    place = Path(directory).expanduser()
    return place.parent if place.is_file() else place


def need(file: Path, *, private: bool = False) -> str:
    """Return the text of a required file.

    Raises:
        CredentialsError: the file is missing (the message names the command to run), or cannot be read.
    """
    if not file.exists():
        raise CredentialsError(
            f"{file} not found. Create credentials with `{CREATE}`, or, on another machine than the Server's, install "
            f"a bundle that was made with `{BUNDLE} worker --name NAME` (or trainer); or set network.credentials_dir."
        )
    return read_file(file, private=private)


def read_file(file: Path, *, private: bool = False) -> str:
    """Return the text of a file. Log a warning if other users can read a private file.

    Raises:
        CredentialsError: the file cannot be read, is not a regular file, is not text, or is too large for credentials.
    """
    try:
        with open(file, encoding="utf-8", opener=open_now) as opened:
            if os.fstat(opened.fileno()).st_size > _MAX_FILE_BYTES:
                raise CredentialsError(f"{file} is too large for a file of credentials")
            if private:
                warn_if_readable(file)
            return opened.read()
    except OSError as exc:
        raise CredentialsError(f"{file} cannot be read: {exc.strerror}") from exc
    except UnicodeDecodeError:
        raise CredentialsError(f"{file} is not text, so it is not a key, certificate or token of tmrl_core") from None


def read_record(file: Path, kind: type[Record], advice: str, *, private: bool = False) -> Record | None:
    """Read a file of records that are checked by their type; None: there is no file.

    Args:
        file: JSON.
        kind: structure of its content.
        advice: next step for a damaged file.
        private: True: warn if other users can read it.

    Raises:
        CredentialsError: the file cannot be read, or is damaged.
    """
    if not file.exists():
        return None
    text = read_file(file, private=private)
    try:
        return msgspec.json.decode(text, type=kind)
    except msgspec.DecodeError as exc:
        raise CredentialsError(f"{file} is damaged ({exc}). {advice}") from exc


def read_secret(file: Path) -> str:
    """Return the token or password in a private file; empty: there is no file.

    Raises:
        CredentialsError: the file cannot be read.
    """
    return read_file(file, private=True).strip() if file.exists() else ""


def warn_if_readable(file: Path) -> None:
    """Log a warning if other users can read this private file. The file is used nevertheless."""
    if sys.platform != "win32" and stat.S_IMODE(file.stat().st_mode) & 0o077:
        logger.warning("%s can be read by other users of this machine. Run `chmod 600 %s`.", file, file)


def warn_if_writable(folder: Path) -> None:
    """Log a warning if other users can write into this folder. The folder is used nevertheless."""
    if sys.platform == "win32":
        return
    try:
        info = folder.stat()
    except OSError:
        return  # code that reads the folder's files reports the error
    if info.st_mode & (stat.S_IWGRP | stat.S_IWOTH) or info.st_uid not in (0, os.getuid()):
        logger.warning(
            "%s can be written by other users of this machine, who could replace the trusted CA. Restrict it to "
            "yourself (`chmod 700 %s`), or set network.credentials_dir.",
            folder,
            folder,
        )


def write_file(file: Path, text: str, *, private: bool = False, sync: bool = True) -> None:
    """Replace a file in one step. A private file is never readable by others, not even for a moment.

    `sync`: wait for the disk, so that the file survives a crash of the machine.
    """
    try:
        write_whole(file, text.encode(), 0o600 if private else 0o644, sync=sync)
    except OSError as exc:
        raise CredentialsError(f"{file} cannot be written: {exc.strerror}") from exc


def write_record(
    file: Path, record: msgspec.Struct | dict[str, Any], *, private: bool = False, sync: bool = True
) -> None:
    """Replace a file of records, in a form that both `read_record` and people can read."""
    text = msgspec.json.format(msgspec.json.encode(record), indent=1).decode() + "\n"
    write_file(file, text, private=private, sync=sync)


@contextlib.contextmanager
def writing(
    folder: Path, *, mode: int = 0o700, wait_s: float = 10.0, setting: str = "network.credentials_dir or TMRL_CORE_HOME"
) -> Iterator[None]:
    """Create the folder with this mode if it is missing, and lock it against other writers.

    The lock ends with the process. `setting` names another folder, for the messages.

    Raises:
        CredentialsError: the folder cannot be written, or another process has held the lock for `wait_s` seconds.
    """
    try:
        folder.mkdir(mode=mode, parents=True, exist_ok=True)
    except OSError as exc:
        raise CredentialsError(
            f"{folder} cannot be written: {exc.strerror}. Set {setting} to a folder that can be written."
        ) from exc
    path = folder / ".lock"
    try:
        lock = open_own(path, os.O_WRONLY | os.O_CREAT)
    except OSError as exc:
        raise CredentialsError(
            f"{path} cannot be locked: {exc.strerror}. Set {setting} to a folder that can be written."
        ) from exc
    try:
        try:
            lock_file(lock, wait_s=wait_s)
        except BlockingIOError as exc:
            raise CredentialsError(f"{folder} is being written by another process. Try again in a moment.") from exc
        except OSError as exc:
            raise CredentialsError(
                f"{path} cannot be locked: {exc.strerror}. This file system has no locks (some network file systems): "
                f"set {setting} to a folder on another one, such as a local disk."
            ) from exc
        yield
    finally:
        os.close(lock)  # which releases the lock
