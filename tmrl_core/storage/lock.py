"""A lock on a folder for one process at a time, released when the process ends for any reason."""

# Theory of operation
#
# For: one owner of a folder at a time, such as a replay memory, a spool, or a worker's name. The lock must end with its
# process, also with one that is killed, and must not be something that another user can prepare.
#
# The lock is the system's: `flock` on POSIX, a locked byte on Windows. Both end when the last descriptor closes, so a
# crash leaves nothing to clean up. The text in the file (process id and host) is only for the message. It is written
# after the lock is held, may be missing on a full disk, and never decides anything: after a crash, the id may belong to
# another process.
#
# The order: open without following links (`open_own`), lock, then write. The content of a file that somebody else holds
# is not touched before its lock is ours.
#
# The file stays after `close`. If it were removed, a second process could open the old file just before, lock it, and
# hold a file without a name, while a third one makes and locks a new file of that name.
#
# Why `flock` and not `fcntl` locks: those belong to the process, so that a second part of the same process would get
# the lock too, and closing any other descriptor of the file would release it. A `flock` belongs to the open file, hence
# a second `FolderLock` in the same process is refused like another process. The price is that a forked child shares it;
# the package spawns its processes.
#
# Why the locked byte of Windows is at 1 MiB: a byte that is locked there cannot be read by others either, and whoever
# is refused reads the text to name the holder.
#
# Rejected: a file with a process id (after a crash it blocks, or names a stranger); filelock, which opens the lock's
# file itself and takes a second name (hard link) or another user's file as its own, cannot test a lock without taking
# it, and would replace 35 of these lines.

from __future__ import annotations

import json
import os
import platform
import time
from pathlib import Path

from tmrl_core.errors import FolderLockedError, StorageError
from tmrl_core.storage.own_files import open_own

LOCK_FILE = "lock"
LOCKED_BYTE = 1 << 20
"""Position of the locked byte: after the file's content, because Windows locks bytes against reading too."""
# Windows' own wait, LK_LOCK, tries once a second, ten times: too slow for files that are held for a millisecond.
_RETRY_S = 0.005


class FolderLock:
    """Lock on `folder`, from construction until `close` or the end of this process, even a sudden one.

    The file stays in the folder: if it were removed, two processes could lock two files of one name. On POSIX, other
    processes that open the file do not share the lock, but a process forked from this one keeps it (the package spawns
    its processes).

    Args:
        folder: created if it is missing.
        purpose: content of the folder, for the message: "the replay memory", "the spool".

    Raises:
        FolderLockedError: another process, or another part of this one, holds the lock; the message names its process
            id.
        StorageError: the folder cannot be created or written, its file system has no locks, or the lock is a link or
            another user's file.
    """

    def __init__(self, folder: Path, purpose: str) -> None:
        self.folder = folder
        self._descriptor = -1
        path = folder / LOCK_FILE
        try:
            folder.mkdir(parents=True, exist_ok=True)
            descriptor = open_own(path, os.O_RDWR | os.O_CREAT)
        except OSError as exc:
            raise StorageError(
                f"{folder} ({purpose}) cannot be used: {exc}. Choose a folder that can be written."
            ) from exc
        try:
            lock_file(descriptor)
        except BlockingIOError as exc:
            # Read before the file is closed: by its name, it could be another file meanwhile.
            holder = _holder(descriptor)
            os.close(descriptor)
            raise FolderLockedError(
                f"{folder} ({purpose}) is in use by {holder}. Stop that process, or choose another folder or another "
                "run.name for this one.",
                holder,
            ) from exc
        except OSError as exc:
            os.close(descriptor)
            raise StorageError(
                f"{path} cannot be locked: {exc}. Choose a folder on a file system with locks (a local disk)."
            ) from exc
        self._descriptor = descriptor
        self._say(json.dumps({"pid": os.getpid(), "host": platform.node()}).encode())

    def _say(self, text: bytes) -> None:
        try:
            os.ftruncate(self._descriptor, 0)
            os.lseek(self._descriptor, 0, os.SEEK_SET)
            os.write(self._descriptor, text)
        except OSError:
            pass  # a full disk: the lock still works, but its message cannot name the process

    def close(self) -> None:
        """Release the lock; a second call does nothing."""
        if self._descriptor >= 0:
            self._say(b"")  # while the lock is held: afterwards, the file may be the next holder's
            os.close(self._descriptor)  # closing the file releases the lock
            self._descriptor = -1

    def __enter__(self) -> FolderLock:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


def lock_file(descriptor: int, *, wait_s: float = 0.0) -> None:
    """Lock an open file until it is closed.

    Args:
        descriptor: descriptor of the file; on Windows, its position is at the beginning afterwards.
        wait_s: maximum time to wait for another holder.

    Raises:
        BlockingIOError: another open file holds the lock.
        OSError: the file system has no locks.
    """
    end = time.monotonic() + wait_s
    while True:
        try:
            _try_lock(descriptor)
            return
        except BlockingIOError:
            if time.monotonic() >= end:
                raise
        time.sleep(_RETRY_S)


def _try_lock(descriptor: int, *, shared: bool = False) -> None:
    if os.name == "posix":
        import fcntl

        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    else:
        import msvcrt

        os.lseek(descriptor, LOCKED_BYTE, os.SEEK_SET)
        try:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined,unused-ignore]
        except OSError as exc:  # EACCES, which is no BlockingIOError there
            raise BlockingIOError(exc.errno, exc.strerror) from exc
        finally:
            os.lseek(descriptor, 0, os.SEEK_SET)


def is_locked(descriptor: int) -> bool:
    """Return True if another open file holds the lock.

    The test takes the lock, which closing this file releases. On POSIX, tests at the same time do not see each other.

    Raises:
        OSError: the lock cannot be tested.
    """
    try:
        # Shared: two tests at once do not take each other for the holder.
        _try_lock(descriptor, shared=True)
    except BlockingIOError:
        return True
    return False


def _holder(descriptor: int) -> str:
    try:
        os.lseek(descriptor, 0, os.SEEK_SET)
        said = json.loads(os.read(descriptor, 4096))
        return f"process {int(said['pid'])} on {said['host']}"
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return "another process"
