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
    path = _plain_file(port)
    try:
        info = os.lstat(path)
        if not stat.S_ISREG(info.st_mode) or (hasattr(os, "getuid") and info.st_uid != os.getuid()):
            return False
        pid = json.loads(path.read_text())["pid"]
    except (OSError, ValueError, KeyError, TypeError):
        return False
    return isinstance(pid, int) and _alive(pid)


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
