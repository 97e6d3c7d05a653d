"""Checkpoints of a run that several processes write, each into a folder of its own."""

# Theory of operation
#
#     checkpoint/
#       parts.json     the number of processes, and the Server of each
#       rank-0/        checkpoints of the first one: numbered folders, as checkpoint_store.py writes them
#       rank-1/
#
# Each part is a `CheckpointStore` and knows nothing of the others. The file says that the folder belongs to so many
# processes: one that looks for numbered folders there would find none, and would begin a new run in silence.

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Sequence
from pathlib import Path

from tmrl_core.errors import CheckpointError
from tmrl_core.storage.own_files import write_whole
from tmrl_core.training.checkpoints.checkpoint_store import CheckpointStore
from tmrl_core.training.checkpoints.manifest import read_manifest

NAME = "parts.json"
VERSION = 1


def parts_of(folder: Path) -> int | None:
    """Return the number of processes that write into a folder of checkpoints; None: it is not shared.

    Raises:
        CheckpointError: the file cannot be read, or is of another version.
    """
    return _read(folder)[0]


def servers_of(folder: Path) -> list[str]:
    """Return the Servers of these processes, in their order.

    Raises:
        CheckpointError: see `parts_of`.
    """
    return _read(folder)[1]


def _read(folder: Path) -> tuple[int | None, list[str]]:
    file = folder / NAME
    if not os.path.lexists(file):
        return None, []
    try:
        found = json.loads(file.read_bytes())
        version, parts = int(found["version"]), int(found["parts"])
        servers = list(map(str, found["servers"])) if version == VERSION else []
    except (OSError, ValueError, KeyError, TypeError) as exc:
        raise CheckpointError(f"{file} cannot be read: {exc}") from exc
    if version != VERSION:
        raise CheckpointError(f"{file} has version {version}, and this version of tmrl_core reads {VERSION}")
    return parts, servers


def keep_parts(folder: Path, servers: Sequence[str]) -> None:
    """Write the number of processes into a folder of checkpoints, with the Server of each.

    Raises:
        CheckpointError: it cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(
            folder / NAME, json.dumps({"version": VERSION, "parts": len(servers), "servers": [*servers]}).encode()
        )
    except OSError as exc:
        raise CheckpointError(f"{folder / NAME} cannot be written: {exc.strerror or exc}") from exc


def counters_in(folder: Path) -> list[int]:
    """Return the numbers of the checkpoints in a folder, ascending."""
    return sorted(CheckpointStore(folder).counters())


def updates_in(folder: Path) -> list[int]:
    """Return the numbers of updates of the checkpoints in a folder that have a manifest, ascending, each once."""
    found = set()
    for counter in counters_in(folder):
        with contextlib.suppress(CheckpointError):
            updates = read_manifest(folder / str(counter)).updates
            found |= {updates} if updates is not None else set()
    return sorted(found)
