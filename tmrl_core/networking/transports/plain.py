"""Private file that tells a user's clients that the user's own Server on this machine uses plaintext."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import stat
import sys
from pathlib import Path

from tmrl_core.storage.lock import is_locked, lock_file
from tmrl_core.storage.own_files import BINARY, open_own


def _plain_file(port: int) -> Path:
    from tmrl_core.config import data_folder

    return data_folder() / "plain_servers" / f"{port}.json"


class PlainNotice:
    """Private file that tells this user's clients that the Server on `port` uses plaintext.

    The Server locks the file. A process id alone is not sufficient: the file remains after a crash, and another process
    may have the same id then.

    Raises:
        OSError: the file cannot be written or locked.
    """

    def __init__(self, port: int) -> None:
        self.path = _plain_file(port)
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with contextlib.suppress(FileNotFoundError):
            self.path.unlink()
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | BINARY
        self._descriptor = os.open(self.path, flags, 0o600)
        try:
            lock_file(self._descriptor, wait_s=10.0)
            said = {"port": port, "pid": os.getpid(), "host": platform.node()}
            os.write(self._descriptor, json.dumps(said).encode())
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Remove the file; further calls do nothing."""
        if self._descriptor >= 0:
            os.close(self._descriptor)  # which releases the lock
            self._descriptor = -1
            with contextlib.suppress(OSError):
                self.path.unlink()


def plain_server(port: int) -> bool:
    """Return True if a running Server of this user on this machine's `port` uses plaintext."""
    try:
        # Open first, so that the checked file is the one that is read.
        descriptor = open_own(_plain_file(port), os.O_RDONLY)
        with os.fdopen(descriptor, "rb") as file:
            if not _is_private(os.fstat(descriptor)):
                return False
            said = json.loads(file.read(4_096))
            pid = said["pid"]
            if said["port"] != port or said["host"] != platform.node():  # data folders may be shared by machines
                return False
            # A process id of 0 or less would mean a whole group of processes.
            return type(pid) is int and pid > 0 and _alive(pid) and is_locked(descriptor)
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return False


def _is_private(info: os.stat_result) -> bool:
    if not stat.S_ISREG(info.st_mode):
        return False
    # On Windows the folder's access rights protect the file; mode bits have no meaning there.
    return sys.platform == "win32" or (info.st_uid == os.getuid() and not info.st_mode & 0o077)


def _alive(pid: int) -> bool:
    if os.name == "nt":
        # os.kill(pid, 0) would end the process on Windows; a stale file is caught by the failing connection.
        return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return False
    return True
