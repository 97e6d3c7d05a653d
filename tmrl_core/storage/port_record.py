"""A file that tells the port of a process on this machine, as long as that process holds the file's lock.

A process id would not be enough: the file remains after a crash, and another process may have the same id then.
"""

from __future__ import annotations

import os
import platform
import stat
import sys
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from tmrl_core.decodable import decodable
from tmrl_core.storage.lock import is_locked, lock_file
from tmrl_core.storage.own_files import open_own

_MAX_BYTES = 4_096
_READERS_S = 1.0
"""Maximum wait for processes that test the lock."""


@decodable
class _Said(msgspec.Struct):
    port: Annotated[int, Meta(ge=1, le=65_535)]
    host: str
    pid: int = 0
    """For people who read the file."""


class PortRecord:
    """Record of a port, from construction until `close` or the end of this process.

    Args:
        path: the file.
        port: the port.
        mode: access rights of a new file.

    Raises:
        OSError: the file cannot be written or locked (BlockingIOError: another process holds it).
    """

    def __init__(self, path: Path, port: int, mode: int = 0o644) -> None:
        self.path = path
        self._descriptor = open_own(path, os.O_RDWR | os.O_CREAT, mode)
        try:
            lock_file(self._descriptor, wait_s=_READERS_S)
            os.ftruncate(self._descriptor, 0)
            os.write(self._descriptor, msgspec.json.encode(_Said(port, platform.node(), os.getpid())))
        except BaseException:
            os.close(self._descriptor)
            raise

    def close(self) -> None:
        """Withdraw the record; further calls do nothing."""
        if self._descriptor >= 0:
            # The file is never removed: two processes could otherwise lock two files of one name.
            os.close(self._descriptor)  # which releases the lock
            self._descriptor = -1


def recorded_port(path: Path, *, private: bool = False, ended: bool = False) -> int | None:
    """Return the port that a process on this machine records there; None: there is none.

    Args:
        path: the file.
        private: True: a file that other users may read or write does not count.
        ended: True: return the port of the last process that recorded one, if that process has ended.
    """
    try:
        # Opened first, so that the checked file is the one that is read.
        descriptor = open_own(path, os.O_RDONLY)
    except OSError:
        return None
    try:
        about = os.fstat(descriptor)
        # On Windows the folder's access rights protect the file; mode bits have no meaning there.
        if private and sys.platform != "win32" and (about.st_uid != os.getuid() or about.st_mode & 0o077):
            return None
        if not stat.S_ISREG(about.st_mode) or is_locked(descriptor) == ended:
            return None
        os.lseek(descriptor, 0, os.SEEK_SET)
        said = msgspec.json.decode(os.read(descriptor, _MAX_BYTES), type=_Said)
        # Folders may be shared by machines.
        return said.port if said.host == platform.node() else None
    except (OSError, msgspec.DecodeError, RecursionError):
        return None
    finally:
        os.close(descriptor)
