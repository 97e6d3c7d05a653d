"""Saves of learners: files in the folder that all sessions of an agent share."""

# Theory of operation
#
#     000000012000_5f3a.save     steps of the learner, and its session: a file of one record (`storage/format.py`)
#       head                     format, version, algorithm, steps, session
#       note                     the tree of `training.checkpoints.capture`, as JSON
#       payload                  its arrays, as safetensors
#
# A save is written under another name and renamed, so a file of this name is complete, and other sessions may read the
# folder at any time. The name begins with the steps in twelve digits, so the order of names is the order of steps, and
# the newest save is found without opening any.
#
# Reading trusts nothing, because a save may come from another machine: a file of at most `MAX_BYTES` is read, whose
# lengths and checksums must be right. Rejected: the files of stable-baselines3, which contain pickles.
#
# A damaged save is skipped with a warning and the one before it counts. One that is deleted by another session between
# listing and reading is no error: the list is read again.

from __future__ import annotations

import json
import logging
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tmrl_core.errors import CheckpointError, StorageError
from tmrl_core.storage import read_whole, write_whole
from tmrl_core.storage.format import head_bytes, parse_head, record_buffers, scan
from tmrl_core.training.checkpoints.checked_files import parse_safetensors, parse_state, safetensors_bytes

logger = logging.getLogger(__name__)

FORMAT = "tmrl_core.save"
VERSION = 1
MAX_BYTES = 1 << 30
"""Limit of a file that is read."""

SUFFIX = ".save"
_NAME = re.compile(r"(\d{1,15})_([A-Za-z0-9-]{1,64})\.save")


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
        about = {"version": VERSION, "algorithm": save.algorithm, "steps": save.steps, "session": save.session_id}
        tree = json.dumps(save.tree, allow_nan=True).encode()
        record, _ = record_buffers(tree, [safetensors_bytes(save.arrays)])
        name = re.sub(r"[^A-Za-z0-9-]", "-", save.session_id)[:64] or "session"
        path = self.folder / f"{save.steps:012d}_{name}{SUFFIX}"
        content = b"".join([head_bytes(FORMAT, about), *record])
        write_whole(path, content)
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
        for path in self.folder.glob(f".*{SUFFIX}.*"):
            path.unlink(missing_ok=True)


def read_save(path: Path) -> Save:
    """Read a save.

    Raises:
        FileNotFoundError: there is no such file.
        CheckpointError: the file is damaged, too large or something else. Nothing in it was executed.
    """
    try:
        if (size := path.stat().st_size) > MAX_BYTES:
            raise CheckpointError(f"{path} has {size} bytes; a save has at most {MAX_BYTES}")
        data = memoryview(read_whole(path))
        form, about, start = parse_head(data, str(path))
    except FileNotFoundError:
        raise
    except (OSError, StorageError) as exc:
        raise CheckpointError(f"{path} is damaged or not a save: {exc}") from exc
    match about:
        case {"version": version} if (form, version) != (FORMAT, VERSION):
            raise CheckpointError(
                f"{path} has the format {form!r}, version {version!r}; this release reads {FORMAT!r}, version {VERSION}"
            )
        case {"algorithm": str(algorithm), "steps": int(steps), "session": str(session)}:
            record = next(scan(data, start, check_payloads=True), None)
        case _:
            raise CheckpointError(f"{path} is damaged: its head lacks the algorithm, steps or session")
    if record is None:
        raise CheckpointError(f"{path} is cut short or damaged")
    return Save(
        algorithm, steps, session, parse_state(record.note, path), parse_safetensors(bytes(record.payload), path)
    )
