"""One checkpoint: complete and atomic; what it is on the disk, how it is written and read.

    checkpoint/
      12/ 13/                  one folder per checkpoint
        manifest.json          what belongs to it, with sizes and checksums; and a checksum of itself
        state.json             the tree of `tmrl_core.training.state`
        arrays.safetensors     its arrays
      replay/
        rows-....seg           replay rows (`segments.py`), shared by the checkpoints that need them

A checkpoint is written to a folder with another name, flushed to the disk and renamed, so that a folder with a number
as its name is whole, or was damaged later; checksums tell. A memory on disk has written its rows itself: a checkpoint
says how many there were, and when it is loaded, what the memory's folder says of rows, marks and samples counts;
networks, optimizers and the rest come from the checkpoint. The checkpoints of a run are kept by checkpoint_store.py.
"""

from __future__ import annotations

import contextlib
import json
import logging
import shutil
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tmrl_core.errors import CheckpointError, StorageError
from tmrl_core.samples import encode_value
from tmrl_core.storage import SegmentFile
from tmrl_core.training.checkpoint_files import (
    FORMAT,
    flush_folder,
    parse_safetensors,
    parse_state,
    read_file,
    read_manifest,
    safetensors_parts,
    write_file,
    write_manifest,
)
from tmrl_core.training.layout import Array
from tmrl_core.training.segments import FORMAT_NAME, RowFormat, append_rows, behind_damage, gather_rows, read_segment
from tmrl_core.training.state import Captured, capture, restore

logger = logging.getLogger(__name__)


@dataclass
class MemoryRows:
    """The rows that a checkpoint needs: [start, stop) of the memory's rings."""

    rings: list[Array]
    start: int
    stop: int


def rows_of(training: Any) -> MemoryRows | None:
    """The rows of its memory; None where there are none yet, or they are on disk."""
    memory = getattr(training, "memory", None)
    rings = getattr(memory, "row_arrays", None)
    if not rings or memory is None or not hasattr(memory, "lease_rows"):
        return None
    return MemoryRows(list(rings), memory.written - len(memory), memory.written)


def delivery_note(training: Any) -> bytes:
    """Where the streams of samples stood: goes into the files of rows too, so that these speak for themselves."""
    marks = getattr(training, "delivery", {}).get("marks", {})
    return encode_value({"marks": {stream: list(mark) for stream, mark in marks.items()}})


def flush_memory(training: Any) -> None:
    """Have a memory on disk be as safe from its machine's end as the checkpoint that refers to it."""
    flush = getattr(getattr(training, "memory", None), "flush", None)
    if flush is not None:
        try:
            flush()
        except StorageError as exc:
            logger.warning("%s", exc)


def facts_of(training: Any) -> dict[str, Any]:
    """How far it is, for whoever looks into a manifest."""
    names = {
        "epoch": "epoch",
        "updates": "total_updates",
        "samples": "total_samples",
    }
    return {name: getattr(training, attribute, None) for name, attribute in names.items()}


def write_checkpoint(folder: Path, captured: Captured, body: dict[str, Any]) -> None:
    """Write a whole checkpoint's folder under another name, then rename it."""
    temporary = folder.with_name(f".{folder.name}-{uuid.uuid4().hex[:8]}.tmp")
    try:
        temporary.mkdir(parents=True)
        files = {
            "state.json": write_file(temporary / "state.json", [json.dumps(captured.tree).encode()]),
            "arrays.safetensors": write_file(temporary / "arrays.safetensors", safetensors_parts(captured.arrays)),
        }
        write_manifest(temporary, {"format": FORMAT, "files": files, **body})
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


def restore_checkpoint(training: Any, folder: Path, rows_folder: Path, *, drop_damaged: bool = False) -> dict[str, Any]:
    """Fill `training` from a folder; returns its manifest.

    Args:
        training: as it was made for the one that was saved.
        folder: of the checkpoint.
        rows_folder: of the replay rows.
        drop_damaged: go on without the replay rows up to the last one that is damaged.

    Raises:
        CheckpointError: something is cut short, damaged, missing, or does not fit `training`.
    """
    body = read_manifest(folder)
    tree = parse_state(read_file(folder / "state.json", body["files"]["state.json"]), folder / "state.json")
    arrays = parse_safetensors(
        read_file(folder / "arrays.safetensors", body["files"]["arrays.safetensors"]), folder / "arrays.safetensors"
    )
    try:
        rows = [] if body["rows"] is None else _read_rows(body["rows"], folder, rows_folder, drop_damaged)
    except CheckpointError as exc:
        raise RowsError(str(exc)) from exc
    try:
        restore(training, tree, arrays, rows)
    except CheckpointError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, RuntimeError, OverflowError) as exc:
        raise CheckpointError(f"{folder} does not fit this training object: {exc}") from exc
    follow_memory = getattr(training, "follow_memory", None)
    if follow_memory is not None:
        follow_memory()
    return body


class RowsError(CheckpointError):
    """A checkpoint's replay rows are damaged, missing, or not what it says."""


def _read_rows(described: dict[str, Any], folder: Path, rows_folder: Path, drop_damaged: bool) -> list[Array]:
    row_format = RowFormat.from_description(described, str(folder / "manifest.json"))
    start, stop = described["start"], described["stop"]
    segments = []
    for entry in described["segments"]:
        path = rows_folder / entry["file"]
        try:
            segment = read_segment(path, entry["bytes"], over_damage=drop_damaged)
        except CheckpointError as exc:
            if not drop_damaged:
                raise
            logger.warning("%s", exc)
            continue
        if segment.good_bytes < entry["bytes"]:
            logger.warning("%s is cut short or damaged after byte %d of %d", path, segment.good_bytes, entry["bytes"])
        segments.append(segment)
    if drop_damaged:
        first = behind_damage(segments, start, stop)
        if first == stop > start:
            raise CheckpointError("the newest replay rows are damaged too, so that none can be kept")
        if first > start:
            logger.warning(
                "checkpoint %s: %d of %d transitions are let go, as some of them are damaged; training goes on with "
                "the newest %d",
                folder,
                first - start,
                stop - start,
                stop - first,
            )
            start = first
    return gather_rows(segments, row_format, start, stop)


def let_go(training: Any) -> None:
    """Have a training object that is not used give back what only one can hold: its memory's folder."""
    close = getattr(getattr(training, "memory", None), "close", None)
    if close is not None:
        close()


def save_training(training: Any, folder: Path) -> None:
    """Write a checkpoint that stands alone: a folder with all of it, replay rows included.

    Raises:
        CheckpointError: the folder cannot be written.
    """
    captured = capture(training)
    captured.warn(set())
    flush_memory(training)
    rows = rows_of(training)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        described = None
        name = f"rows-{uuid.uuid4().hex[:8]}.seg"
        side = folder.with_name(f".{folder.name}-{name}")
        if rows is not None:
            file = SegmentFile.create(side, FORMAT_NAME, RowFormat.of(rows.rings).describe())
            with contextlib.closing(file):
                append_rows(file, rows.rings, rows.start, rows.stop, delivery_note(training))
                file.flush()
            described = described_rows(rows, [{"file": name, "bytes": file.bytes}])
        try:
            if folder.exists() and not folder.is_dir():
                raise CheckpointError(f"{folder} is a file; a checkpoint is a folder")
            write_checkpoint(folder, captured, {"counter": 0, "score": None, "rows": described, **facts_of(training)})
            if rows is not None:
                side.rename(folder / name)
                flush_folder(folder)
        finally:
            side.unlink(missing_ok=True)
    except (OSError, StorageError) as exc:
        raise CheckpointError(f"the checkpoint {folder} cannot be written: {exc}") from exc


def load_training(training: Any, folder: Path) -> None:
    """Fill `training` from what `save_training` wrote, or from one numbered folder of a `CheckpointStore`.

    Raises:
        CheckpointError: it is missing, damaged or does not fit. Nothing was changed then.
    """
    body = read_manifest(folder)
    segments = body["rows"]["segments"] if body["rows"] is not None else []
    shared = bool(segments) and not (folder / segments[0]["file"]).exists()
    restore_checkpoint(training, folder, folder.parent / "replay" if shared else folder)


def described_rows(rows: MemoryRows, segments: list[dict[str, Any]]) -> dict[str, Any]:
    """What a manifest says of rows that are in these files."""
    return {"start": rows.start, "stop": rows.stop, **RowFormat.of(rows.rings).describe(), "segments": segments}
