"""The private file by which a user's clients know that the user's own Server on this machine speaks plaintext."""

from __future__ import annotations

import contextlib
import json
import os
import stat
from pathlib import Path


def _plain_file(port: int) -> Path:
    from tmrl_core.config import data_folder

    return data_folder() / "plain_servers" / f"{port}.json"


def announce_plain_server(port: int) -> Path:
    """Leave the private file by which this user's clients know that the Server on `port` speaks plaintext."""
    path = _plain_file(port)
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with contextlib.suppress(FileNotFoundError):
        path.unlink()
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        json.dump({"port": port, "pid": os.getpid()}, file)
    return path


def plain_server(port: int) -> bool:
    """Whether this user's own live Server on this machine's `port` speaks plaintext."""
    try:
        # Opened first: what is looked at is then what is read, and a link is not followed.
        descriptor = os.open(_plain_file(port), os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0))
        with os.fdopen(descriptor, "rb") as file:
            if not _is_private(os.fstat(descriptor)):
                return False
            said = json.loads(file.read(4_096))
        pid = said["pid"]
        # A process id of 0 or less would mean a whole group of processes.
        return said["port"] == port and type(pid) is int and pid > 0 and _alive(pid)
    except (OSError, ValueError, KeyError, TypeError, OverflowError):
        return False


def _is_private(info: os.stat_result) -> bool:
    if not stat.S_ISREG(info.st_mode):
        return False
    # On Windows the folder's own access rights are what protects it: the mode bits say nothing there.
    return not hasattr(os, "getuid") or (info.st_uid == os.getuid() and not info.st_mode & 0o077)


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
