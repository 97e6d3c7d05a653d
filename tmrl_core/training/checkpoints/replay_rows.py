"""The replay rows of a checkpoint: ranges of a memory's rows in files of records, which checkpoints of a run share."""

# Theory of operation
#
# A checkpoint of a memory in RAM costs only the new rows: they are appended to the newest shared file, and the manifest
# says how many bytes of which files belong to the checkpoint. A later checkpoint appends behind that length, which the
# earlier one never reads. Example: checkpoint 4 owns bytes 0 to 10 MB of rows-000.seg; checkpoint 5 appends 3 MB and
# owns 0 to 13 MB. If appending fails, the file is cut to 10 MB again, so a partly written record is never followed by
# another.
#
# Each file also holds the offsets of the streams in its last record, so that it can be read by itself.
#
# Damage in a shared file can affect all checkpoints. It is refused by default; with `drop_damaged`, the rows after the
# last damaged one are used, since rows are one run and a hole would break the indices.

from __future__ import annotations

import contextlib
import logging
import os
import uuid
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tmrl_core.errors import CheckpointError, StorageError
from tmrl_core.storage import SegmentFile
from tmrl_core.storage.own_files import flush_folder
from tmrl_core.training.checkpoints.manifest import RowsEntry, RowsFile
from tmrl_core.training.memories.layout import Array
from tmrl_core.training.memories.row_files import (
    FORMAT_NAME,
    RowFormat,
    append_rows,
    behind_damage,
    gather_rows,
    read_segment,
)
from tmrl_core.training.memories.row_memory import RowLease, RowMemory

logger = logging.getLogger(__name__)

SEGMENT_BYTES = 64 << 20
"""Size at which a shared file of rows is closed and a new one is begun, so that old rows can be removed."""


class RowsError(CheckpointError):
    """The replay rows of a checkpoint are damaged, missing, or contradict its manifest."""


@dataclass
class MemoryRows:
    """Rows [start, stop) of a memory in RAM."""

    memory: RowMemory
    rings: list[Array]
    start: int
    stop: int

    @classmethod
    def of(cls, memory: RowMemory) -> MemoryRows:
        """Return all rows that a memory holds."""
        return cls(memory, list(memory.row_arrays), memory.written - len(memory), memory.written)

    def entry(self, segments: Iterable[RowsFile]) -> RowsEntry:
        """Return the manifest's entry for these rows, stored in `files`."""
        row_format = RowFormat.of(self.rings)
        return RowsEntry(self.start, self.stop, row_format.dtypes, row_format.widths, tuple(segments))

    def create(self, path: Path) -> SegmentFile:
        """Create a file for rows of this format."""
        return SegmentFile.create(path, FORMAT_NAME, RowFormat.of(self.rings).describe())

    def write(self, path: Path, note: bytes) -> int:
        """Write the rows to a new file; return its size."""
        with contextlib.closing(self.create(path)) as file:
            append_rows(file, self.rings, self.start, self.stop, note)
            file.flush()
            return file.bytes


class SharedRows:
    """The files with one memory's rows, which the checkpoints of a run share.

    Args:
        folder: of the files.
        entry: entry in the manifest that the run resumes from; None: the first checkpoint writes all rows.

    Attributes:
        segments: the files, oldest first.
        saved_until: the row after the last one that is written.
    """

    def __init__(self, folder: Path, entry: RowsEntry | None = None) -> None:
        self.segments: tuple[RowsFile, ...] = entry.segments if entry is not None else ()
        self.saved_until = entry.stop if entry is not None else 0
        self._folder = folder
        self._open: Path | None = None

    def write(self, rows: MemoryRows, lease: RowLease, note: bytes) -> RowsEntry:
        """Append the rows that no file holds yet; return the manifest's entry.

        Raises:
            StorageError, OSError: the rows cannot be written; the files are unchanged.
        """
        if rows.start > self.saved_until:
            self.segments = ()  # the memory has dropped all rows that are in the files
        self.segments = tuple(segment for segment in self.segments if segment.stop > rows.start)
        start = max(rows.start, self.saved_until)
        if start < rows.stop:
            self._append(rows, start, lease, note)
        return rows.entry(self.segments)

    def _append(self, rows: MemoryRows, start: int, lease: RowLease, note: bytes) -> None:
        path = self._open
        new = path is None or not self.segments or self.segments[-1].bytes >= SEGMENT_BYTES
        if path is None or new:
            self._folder.mkdir(parents=True, exist_ok=True)
            path = self._folder / f"rows-{start:014d}-{uuid.uuid4().hex[:8]}.seg"
        # Bytes of an earlier failed attempt are truncated.
        file = rows.create(path) if new else SegmentFile.open(path, good_bytes=self.segments[-1].bytes)
        try:
            with contextlib.closing(file):
                append_rows(file, rows.rings, start, rows.stop, note, lease.advance)
                file.flush()
        except StorageError:
            with suppress(OSError):
                if new:
                    path.unlink(missing_ok=True)
                else:
                    os.truncate(path, self.segments[-1].bytes)
            raise
        flush_folder(self._folder)
        self.segments = (*(self.segments if new else self.segments[:-1]), RowsFile(path.name, file.bytes, rows.stop))
        self._open = path
        self.saved_until = rows.stop


def read_rows(entry: RowsEntry, checkpoint: Path, folder: Path, drop_damaged: bool) -> list[Array]:
    """Read the rows of one memory.

    Args:
        entry: the memory's entry in the manifest.
        checkpoint: folder of the checkpoint, for messages.
        folder: of the files.
        drop_damaged: continue without the rows up to the last damaged one.

    Raises:
        RowsError: rows are damaged or missing.
    """
    try:
        return _read(entry, checkpoint, folder, drop_damaged)
    except CheckpointError as exc:
        raise RowsError(str(exc)) from exc


def _read(entry: RowsEntry, checkpoint: Path, folder: Path, drop_damaged: bool) -> list[Array]:
    described = {"dtypes": entry.dtypes, "widths": entry.widths}
    row_format = RowFormat.from_description(described, str(checkpoint / "manifest.json"))
    start, stop = entry.start, entry.stop
    segments = []
    for file in entry.segments:
        path = folder / file.file
        try:
            segment = read_segment(path, file.bytes, over_damage=drop_damaged)
        except CheckpointError as exc:
            if not drop_damaged:
                raise
            logger.warning("%s", exc)
            continue
        if segment.good_bytes < file.bytes:
            logger.warning("%s is cut short or damaged after byte %d of %d", path, segment.good_bytes, file.bytes)
        segments.append(segment)
    if drop_damaged:
        first = behind_damage(segments, start, stop)
        if first == stop > start:
            raise CheckpointError("the newest replay rows are damaged too, so no rows can be kept")
        if first > start:
            logger.warning(
                "checkpoint %s: %d of %d transitions are dropped, since some of them are damaged; training continues "
                "with the newest %d",
                checkpoint,
                first - start,
                stop - start,
                stop - first,
            )
            start = first
    return gather_rows(segments, row_format, start, stop)
