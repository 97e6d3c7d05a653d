"""One checkpoint: its files on the disk, written completely or not at all."""

# Theory of operation
#
#     checkpoint/
#       12/ 13/                  one folder per checkpoint
#         manifest.json          its files with sizes and checksums; and a checksum of itself
#         state.json             the tree of `tmrl_core.training.checkpoints.capture`
#         arrays.safetensors     its arrays
#       replay/
#         rows-....seg           replay rows (row_files.py), shared by the checkpoints that need them
#
# A checkpoint is written to a folder with another name, flushed to the disk and renamed. A folder whose name is a
# number is therefore complete, unless it was damaged later, which checksums show. The files are flushed before the
# rename and the folder after it, or a power cut could leave a name without its content.
#
# A memory on disk writes its rows itself: a checkpoint holds only their number. When it is loaded, rows, committed
# offsets and sample counts come from the memory's folder, which is never older; networks, optimizers and the rest come
# from the checkpoint. If the log ends exactly where the checkpoint was written, training resumes bit for bit.

from __future__ import annotations

import json
import logging
import shutil
import time
import uuid
from pathlib import Path

from tmrl_core.errors import CheckpointError, StorageError
from tmrl_core.samples import encode_value
from tmrl_core.storage.own_files import flush_folder
from tmrl_core.training.checkpointable import attributes_of
from tmrl_core.training.checkpoints.capture import Captured, capture
from tmrl_core.training.checkpoints.checked_files import (
    parse_safetensors,
    parse_state,
    read_file,
    safetensors_bytes,
    write_file,
)
from tmrl_core.training.checkpoints.manifest import Manifest, RowsFile, read_manifest, write_manifest
from tmrl_core.training.checkpoints.replay_rows import read_rows
from tmrl_core.training.checkpoints.restore import restore
from tmrl_core.training.contracts import TrainingLoop, TrainingMemory
from tmrl_core.training.memories.layout import Array
from tmrl_core.training.value_types import State

logger = logging.getLogger(__name__)


def delivery_note(training: object) -> bytes:
    """Return the streams' committed offsets; row files hold them too, so that each file can be read by itself."""
    offsets = attributes_of(training).get("delivery", {}).get("marks", {})
    return encode_value({"marks": {stream: list(offset) for stream, offset in offsets.items()}})


def flush_memory(training: object) -> None:
    """Flush a memory on disk, so that its rows survive a power cut like the checkpoint that refers to them."""
    memory = attributes_of(training).get("memory")
    if isinstance(memory, TrainingMemory):
        try:
            memory.flush()
        except StorageError as exc:
            logger.warning("%s", exc)


def manifest_of(training: object, counter: int = 0, score: float | None = None) -> Manifest:
    """Return the manifest of a new checkpoint."""
    attributes = attributes_of(training)
    return Manifest(
        counter=counter,
        score=None if score is None else float(score),
        written_at_s=time.time(),
        epoch=attributes.get("epoch"),
        updates=attributes.get("total_updates"),
        samples=attributes.get("total_samples"),
    )


def write_checkpoint(folder: Path, captured: Captured, manifest: Manifest) -> None:
    """Write a whole checkpoint's folder under another name, then rename it."""
    temporary = folder.with_name(f".{folder.name}-{uuid.uuid4().hex[:8]}.tmp")
    try:
        temporary.mkdir(parents=True)
        manifest.files = {
            "state.json": write_file(temporary / "state.json", json.dumps(captured.tree).encode()),
            "arrays.safetensors": write_file(temporary / "arrays.safetensors", safetensors_bytes(captured.arrays)),
        }
        write_manifest(temporary, manifest)
        flush_folder(temporary)
        if folder.exists():
            old = folder.with_name(f".{folder.name}-{uuid.uuid4().hex[:8]}.old")
            folder.rename(old)
            temporary.rename(folder)
            shutil.rmtree(old, ignore_errors=True)
        else:
            temporary.rename(folder)
        flush_folder(folder.parent)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def restore_checkpoint(training: object, folder: Path, rows_folder: Path, *, drop_damaged: bool = False) -> Manifest:
    """Fill `training` from a folder; return its manifest.

    Args:
        training: made with the settings of the saved one.
        folder: of the checkpoint.
        rows_folder: of the replay rows.
        drop_damaged: continue without the replay rows up to the last damaged one.

    Raises:
        CheckpointError: a file is truncated, damaged or missing, or the state does not fit `training`.
    """
    manifest = read_manifest(folder)
    tree, arrays = _read_state(folder, manifest)
    rows = {path: read_rows(entry, folder, rows_folder, drop_damaged) for path, entry in manifest.rows.items()}
    _fill(training, folder, tree, arrays, rows)
    return manifest


def _read_state(folder: Path, manifest: Manifest) -> tuple[State, dict[str, Array]]:
    files = {name: read_file(folder / name, entry) for name, entry in manifest.files.items()}
    return (
        parse_state(files["state.json"], folder / "state.json"),
        parse_safetensors(files["arrays.safetensors"], folder / "arrays.safetensors"),
    )


def _fill(training: object, folder: Path, tree: State, arrays: dict[str, Array], rows: dict[str, list[Array]]) -> None:
    try:
        restore(training, tree, arrays, rows)
    except CheckpointError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, RuntimeError, OverflowError) as exc:
        raise CheckpointError(f"{folder} does not fit this training object: {exc}") from exc
    if isinstance(training, TrainingLoop):
        training.follow_memory()


def begin_from(training: object, folder: Path) -> None:
    """Fill a new training object from the checkpoint of another process of its run, without that one's samples.

    Memory, offsets and counts of samples stay those of `training`.

    Raises:
        CheckpointError: see `restore_checkpoint`.
    """
    manifest = read_manifest(folder)
    tree, arrays = _read_state(folder, manifest)
    for name in ("memory", "delivery", "total_samples", "samples_stale"):
        tree["training"]["v"].pop(name, None)
    _fill(training, folder, tree, arrays, {})


def release_memory(training: object) -> None:
    """Release the memory folder of an unused training object, because only one object can lock the folder."""
    memory = attributes_of(training).get("memory")
    if isinstance(memory, TrainingMemory):
        memory.close()


def save_training(training: object, folder: Path) -> None:
    """Write a self-contained checkpoint: one folder with all files, replay rows included.

    Raises:
        CheckpointError: the folder cannot be written.
    """
    captured = capture(training)
    captured.warn(set())
    flush_memory(training)
    note, manifest = delivery_note(training), manifest_of(training)
    written: list[tuple[Path, str]] = []
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        try:
            for path, rows in captured.rows.items():
                name = f"rows-{uuid.uuid4().hex[:8]}.seg"
                written.append((folder.with_name(f".{folder.name}-{name}"), name))
                manifest.rows[path] = rows.entry([RowsFile(name, rows.write(written[-1][0], note), rows.stop)])
            if folder.exists() and not folder.is_dir():
                raise CheckpointError(f"{folder} is a file; a checkpoint is a folder")
            write_checkpoint(folder, captured, manifest)
            for side, name in written:
                side.rename(folder / name)
                flush_folder(folder)
        finally:
            for side, _ in written:
                side.unlink(missing_ok=True)
    except (OSError, StorageError) as exc:
        raise CheckpointError(f"the checkpoint {folder} cannot be written: {exc}") from exc


def load_training(training: object, folder: Path) -> None:
    """Fill `training` from a folder of `save_training`, or from one numbered folder of a `CheckpointStore`.

    Raises:
        CheckpointError: the checkpoint is missing, damaged or does not fit. Nothing was changed then.
    """
    names = [segment.file for entry in read_manifest(folder).rows.values() for segment in entry.segments]
    shared = bool(names) and not (folder / names[0]).exists()
    restore_checkpoint(training, folder, folder.parent / "replay" if shared else folder)
