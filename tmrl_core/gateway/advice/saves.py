"""Saves of learners: zip files in the folder that all sessions of an agent share."""

# Theory of operation
#
#     000000012000_5f3a.zip      steps of the learner, and its session
#       save.json                format, algorithm, steps, session; the tree of `training.checkpoints.capture`
#       arrays.safetensors       its arrays
#
# A save is written under another name and renamed, so a file of this name is complete, and other sessions may read the
# folder at any time. The name begins with the steps in twelve digits, so the order of names is the order of steps, and
# the newest save is found without opening any.
#
# Reading trusts nothing, because a save may come from another machine. The two entries are not compressed, so reading
# takes no more memory than the file, at most `MAX_BYTES`; the end record is read before `zipfile` sees the file, since
# a directory of millions of entries would fill the memory (`_check_end`). Rejected: the files of stable-baselines3,
# which contain pickles.
#
# A damaged save is skipped with a warning and the one before it counts. One that is deleted by another session between
# listing and reading is no error: the list is read again.

from __future__ import annotations

import io
import json
import logging
import os
import re
import struct
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tmrl_core.errors import CheckpointError
from tmrl_core.storage import open_now, write_whole
from tmrl_core.training.checkpoints.checked_files import parse_safetensors, parse_state, safetensors_bytes

logger = logging.getLogger(__name__)

FORMAT = "tmrl_core.save"
VERSION = 1
MAX_BYTES = 1 << 30
"""Limit of a file that is read."""

_STATE, _ARRAYS = "save.json", "arrays.safetensors"
_NAME = re.compile(r"(\d{1,15})_([A-Za-z0-9-]{1,64})\.zip")
_END = struct.Struct("<4s4H2LH")
"""The end record of a zip file without a comment."""


@dataclass(frozen=True, slots=True)
class Save:
    """The state of a learner.

    Attributes:
        algorithm: that wrote it, and alone can read it.
        steps: environment steps that the learner has learned from, over all of its sessions.
        session_id: session that saved it.
        tree: JSON values, see `tmrl_core.training.checkpoints.capture`.
        arrays: by the names that the tree uses.
    """

    algorithm: str
    steps: int
    session_id: str
    tree: dict[str, Any]
    arrays: dict[str, np.ndarray]


class Saves:
    """The saves of an agent. Any thread may call its methods.

    Args:
        folder: of the files; it is made with the first save.
        keep: number of saves that remain after a new one.
    """

    def __init__(self, folder: Path, keep: int) -> None:
        self.folder = folder
        self.keep = keep

    def paths(self) -> list[Path]:
        """Return the files of the saves, those with the most steps first."""
        try:
            found = [path for path in self.folder.iterdir() if _NAME.fullmatch(path.name)]
        except OSError:
            return []
        return sorted(found, key=lambda path: (int(path.name.partition("_")[0]), path.name), reverse=True)

    def write(self, save: Save) -> Path:
        """Write a save, and delete the oldest ones beyond `keep`.

        Raises:
            OSError: it cannot be written. The other saves are unchanged.
        """
        head = {"format": FORMAT, "version": VERSION, "algorithm": save.algorithm}
        state = {**head, "steps": save.steps, "session": save.session_id, "tree": save.tree}
        content = io.BytesIO()
        with zipfile.ZipFile(content, "w", zipfile.ZIP_STORED, allowZip64=False) as file:
            file.writestr(_STATE, json.dumps(state, allow_nan=True))
            file.writestr(_ARRAYS, safetensors_bytes(save.arrays))
        name = re.sub(r"[^A-Za-z0-9-]", "-", save.session_id)[:64] or "session"
        path = self.folder / f"{save.steps:012d}_{name}.zip"
        write_whole(path, content.getvalue())
        for old in self.paths()[self.keep :]:
            old.unlink(missing_ok=True)
        return path

    def newest(self) -> Save | None:
        """Return the save with the most steps; a damaged one is skipped with a warning. None: there is no save."""
        damaged: set[Path] = set()
        while left := [path for path in self.paths() if path not in damaged]:
            try:
                return read_save(left[0])
            except FileNotFoundError:  # another session has deleted it meanwhile: look for a newer one
                continue
            except CheckpointError as exc:
                logger.warning("a save is skipped: %s", exc)
                damaged.add(left[0])
        return None

    def remove_unfinished(self) -> None:
        """Delete files that a killed process has left half-written. Call this before any session writes."""
        for path in self.folder.glob(".*.zip.*"):
            path.unlink(missing_ok=True)


def read_save(path: Path) -> Save:
    """Read a save.

    Raises:
        FileNotFoundError: there is no such file.
        CheckpointError: the file is damaged, too large or something else. Nothing in it was executed.
    """
    try:
        with open(path, "rb", opener=open_now) as file:
            size = os.fstat(file.fileno()).st_size
            if size > MAX_BYTES:
                raise CheckpointError(f"{path} has {size} bytes; a save has at most {MAX_BYTES}")
            _check_end(file, size, path)
            with zipfile.ZipFile(file) as entries:
                state, arrays = (_entry(entries, name, path) for name in (_STATE, _ARRAYS))
    except FileNotFoundError:
        raise
    except (OSError, zipfile.BadZipFile, EOFError, NotImplementedError, RuntimeError, ValueError) as exc:
        if isinstance(exc, CheckpointError):
            raise
        raise CheckpointError(f"{path} is damaged or not a save: {exc}") from exc
    found = parse_state(state, path)
    if (found.get("format"), found.get("version")) != (FORMAT, VERSION):
        raise CheckpointError(
            f"{path} has the format {found.get('format')!r}, version {found.get('version')!r}; this release reads "
            f"{FORMAT!r}, version {VERSION}"
        )
    algorithm, steps, session, tree = (found.get(key) for key in ("algorithm", "steps", "session", "tree"))
    if not (isinstance(algorithm, str) and type(steps) is int and isinstance(session, str) and isinstance(tree, dict)):
        raise CheckpointError(f"{path} is damaged: its head lacks the algorithm, steps, session or tree")
    return Save(algorithm, steps, session, tree, parse_safetensors(arrays, path))


def _check_end(file: io.BufferedReader, size: int, path: Path) -> None:
    """Refuse a directory of other than two entries before it is read: a large one would take much memory."""
    file.seek(max(0, size - _END.size - 20))
    tail = file.read()
    if len(tail) >= _END.size:
        signature, _, _, _, entries, _, _, comment = _END.unpack(tail[-_END.size :])
        if signature == b"PK\5\6" and entries == 2 and comment == 0 and not tail.startswith(b"PK\6\7"):
            return
    raise CheckpointError(f"{path} is damaged or not a save: a save is a zip file of two entries")


def _entry(entries: zipfile.ZipFile, name: str, path: Path) -> bytes:
    try:
        entry = entries.getinfo(name)
    except KeyError as exc:
        raise CheckpointError(f"{path} is not a save: it has no {name}") from exc
    if entry.compress_type != zipfile.ZIP_STORED or entry.file_size != entry.compress_size:
        raise CheckpointError(f"{path} is not a save: {name} is compressed, which could hide any size")
    return entries.read(entry)
