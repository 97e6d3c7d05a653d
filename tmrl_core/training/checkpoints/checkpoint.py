"""One checkpoint: complete and atomic; what it is on the disk, how it is written and read.

    checkpoint/
      12/ 13/                  one folder per checkpoint
        manifest.json          what belongs to it, with sizes and checksums; and a checksum of itself
        state.json             the tree of `tmrl_core.training.checkpoints.capture`
        arrays.safetensors     its arrays
      replay/
        rows-....seg           replay rows (`row_files.py`), shared by the checkpoints that need them

A checkpoint is written to a folder with another name, flushed to the disk and renamed, so that a folder with a number
as its name is whole, or was damaged later; checksums tell. A memory on disk has written its rows itself: a checkpoint
says how many there were, and when it is loaded, what the memory's folder says of rows, marks and samples counts;
networks, optimizers and the rest come from the checkpoint. The checkpoints of a run are kept by store.py.
"""

from __future__ import annotations

import json
import logging
import shutil
import time
import uuid
from pathlib import Path

from tmrl_core.errors import CheckpointError, StorageError
from tmrl_core.samples import encode_value
from tmrl_core.training.checkpointable import attributes_of
from tmrl_core.training.checkpoints.capture import Captured, capture
from tmrl_core.training.checkpoints.files import (
    flush_folder,
    parse_safetensors,
    parse_state,
    read_file,
    safetensors_parts,
    write_file,
)
from tmrl_core.training.checkpoints.manifest import Manifest, RowsFile, read_manifest, write_manifest
from tmrl_core.training.checkpoints.restore import restore
from tmrl_core.training.checkpoints.rows import read_rows
from tmrl_core.training.contracts import TrainingLoop, TrainingMemory

logger = logging.getLogger(__name__)


def delivery_note(training: object) -> bytes:
    """Return the streams' committed offsets; row files hold them too, so that each file can be read by itself."""
    marks = attributes_of(training).get("delivery", {}).get("marks", {})
    return encode_value({"marks": {stream: list(mark) for stream, mark in marks.items()}})


def flush_memory(training: object) -> None:
    """Have a memory on disk be as safe from its machine's end as the checkpoint that refers to it."""
    memory = attributes_of(training).get("memory")
    if isinstance(memory, TrainingMemory):
        try:
            memory.flush()
        except StorageError as exc:
            logger.warning("%s", exc)


def manifest_of(training: object, counter: int = 0, score: float | None = None) -> Manifest:
    """Return the manifest of a checkpoint that is to be written."""
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
            "state.json": write_file(temporary / "state.json", [json.dumps(captured.tree).encode()]),
            "arrays.safetensors": write_file(temporary / "arrays.safetensors", safetensors_parts(captured.arrays)),
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
        training: as it was made for the one that was saved.
        folder: of the checkpoint.
        rows_folder: of the replay rows.
        drop_damaged: go on without the replay rows up to the last one that is damaged.

    Raises:
        CheckpointError: something is cut short, damaged, missing, or does not fit `training`.
    """
    manifest = read_manifest(folder)
    tree = parse_state(read_file(folder / "state.json", manifest.files["state.json"]), folder / "state.json")
    arrays = parse_safetensors(
        read_file(folder / "arrays.safetensors", manifest.files["arrays.safetensors"]), folder / "arrays.safetensors"
    )
    rows = {path: read_rows(entry, folder, rows_folder, drop_damaged) for path, entry in manifest.rows.items()}
    try:
        restore(training, tree, arrays, rows)
    except CheckpointError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, RuntimeError, OverflowError) as exc:
        raise CheckpointError(f"{folder} does not fit this training object: {exc}") from exc
    if isinstance(training, TrainingLoop):
        training.follow_memory()
    return manifest


def let_go(training: object) -> None:
    """Have a training object that is not used give back what only one can hold: its memory's folder."""
    memory = attributes_of(training).get("memory")
    if isinstance(memory, TrainingMemory):
        memory.close()


def save_training(training: object, folder: Path) -> None:
    """Write a checkpoint that stands alone: a folder with all of it, replay rows included.

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
    """Fill `training` from what `save_training` wrote, or from one numbered folder of a `CheckpointStore`.

    Raises:
        CheckpointError: it is missing, damaged or does not fit. Nothing was changed then.
    """
    names = [segment.file for entry in read_manifest(folder).rows.values() for segment in entry.segments]
    shared = bool(names) and not (folder / names[0]).exists()
    restore_checkpoint(training, folder, folder.parent / "replay" if shared else folder)
