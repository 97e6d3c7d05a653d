"""Name of the process that listens on a port of this machine, for messages."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

_LISTENS = "0A"
"""State LISTEN in the kernel's table of TCP sockets."""
_COMMAND_CHARACTERS = 160


def port_holder(port: int, proc: Path = Path("/proc")) -> str | None:
    """Return the process that listens on a port, such as "process 4711 (python -m tmrl_core --server)".

    Only Linux tells it, and only the user's own processes by name; "a process of user 1001" names another user's.

    Args:
        port: TCP port of this machine.
        proc: the file system that describes processes.

    Returns:
        The holder; None: unknown.
    """
    for user, socket in _listening(port, proc):
        for folder in proc.glob("[0-9]*"):
            if _holds(folder, socket):
                return f"process {folder.name}{_command(folder)}"
        return f"a process of user {user}"
    return None


def port_in_use_text(port: int) -> str:
    """Return the holder of a port, if it is known, and the next step."""
    holder = port_holder(port)
    if holder is None:
        return "Is another Server running there? Stop it, or set another server.port."
    return f"It is held by {holder}: stop that process, or set another server.port (0: a free one)."


def _listening(port: int, proc: Path) -> Iterator[tuple[str, str]]:
    """Yield user id and inode of each socket that listens on the port."""
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            for line in (proc / "net" / table).read_text(encoding="ascii", errors="replace").splitlines()[1:]:
                words = line.split()
                if len(words) > 9 and words[3] == _LISTENS and words[1].endswith(f":{port:04X}"):
                    yield words[7], words[9]


def _holds(folder: Path, socket: str) -> bool:
    # Processes end at any time, and those of other users do not show their files.
    with contextlib.suppress(OSError):
        for descriptor in (folder / "fd").iterdir():
            with contextlib.suppress(OSError):
                if os.readlink(descriptor) == f"socket:[{socket}]":
                    return True
    return False


def _command(folder: Path) -> str:
    """Return the command line in parentheses if it is one of tmrl_core, else the program's name.

    Command lines of other programs may hold secrets, which do not belong into a log.
    """
    with contextlib.suppress(OSError):
        words = (folder / "cmdline").read_text(encoding="utf-8", errors="replace").rstrip("\0").split("\0")
        name = os.path.basename(words[0])
        if "tmrl_core" not in words:
            return f" ({name})" if name else ""
        # Left out: the options of Python, among which a search path may be.
        text = " ".join([name, "-m", *words[words.index("tmrl_core") :]])
        return f" ({text[:_COMMAND_CHARACTERS]}{' ...' if len(text) > _COMMAND_CHARACTERS else ''})"
    return ""
