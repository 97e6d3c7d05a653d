"""Rows of a replay memory on disk: append-only files, sampled in place."""

# Theory of operation
#
# The store behind `memory.storage: disk`. It knows rows as bytes of a fixed size and the state of streams as a tree;
# what a transition is, the builder knows. One process holds the folder's lock.
#
# New rows are staged in RAM. `commit` writes them as one record, with the committed offsets of the sample streams in
# its metadata. A record is on the disk completely or not at all, so rows and offsets can never disagree: what is
# acknowledged is in the file, and what is in the file is not asked for again. With `sync` "os" the operating system has
# the record (it survives the end of this process); "fsync" flushes it (it survives the end of the machine).
#
#     failure                                  acknowledged samples that survive
#     the process, at any moment               all; no duplicates
#     the machine, memory.sync: fsync          all; no duplicates
#     the machine, memory.sync: os             up to the last checkpoint or full file, and what the system had written
#
# Files are mapped into memory, and a batch is one gather from the mappings: the operating system's page cache decides
# what is in RAM. This process itself holds a table with 16 bytes for each record (row_table.py) and the state of the
# streams. A row is one run of bytes, all columns side by side, so that sampling it touches one or two pages; column
# files would touch one page for each column.
#
# Each file begins with the complete state, so that an earlier file can be deleted when all its rows have left the
# memory. A file takes an eighth of the capacity (16 to 256 MB), so the folder holds up to nine eighths of it, besides
# the state of the streams. Example: 1,000,000 rows of 400 bytes are 400 MB, in files of 50 MB; the ninth file is begun
# while the first one still has rows, and when the first one's last row is older than the newest 1,000,000, the file is
# removed as a whole. Rows without transitions add state and let no file go, so the last rows of streams are left out
# while the folder takes twice the capacity and 256 MB: a restart then loses the transitions that they begin, and the
# disk stays bounded.
#
# Frames of stacked observations may be in the same records, after the rows (disk_frames.py), so that rows and their
# frames always agree too. Files are then an eighth as large, since a file stays while one of its frames is needed, and
# more of a file is then beyond the capacity: at most one sixty-fourth more than the memory in RAM would hold.
#
# Who changes what: `allocate`, `prepare` and `put` fill staged rows; after opening, `commit` alone moves them into
# `_table` and raises `readable`; `_drop_old` alone removes files. All run in the training thread. Nothing here is
# called while another thread gathers, because the memory stops prefetching before it changes rows.
#
# Opening reads every byte of the last file, because only this file may end in an incomplete record, which is cut off.
# Of older files, which were flushed as a whole, opening reads the records' headers and metadata, which have their own
# checksums and are a small part of them. If an older file is damaged or missing, the rows up to the damage are
# discarded, with a warning: rows are one run, the newest, so positions stay arithmetic. Damage to the newest file's
# head is an error instead, since the state of the streams is in it. Rejected: checking the rows of older files while
# training goes on. A bit that the disk has turned in one of a million rows changes an update as noise does, or the
# update is rolled back.
#
# Rejected: a database (a batch is a gather of rows, not a query); one preallocated ring file (a truncated write damages
# old rows); rows and offsets in two files (two flushes, and they can disagree).

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
import torch

from tmrl_core.errors import CheckpointError, StorageError
from tmrl_core.storage import OS, FileCalls, FolderLock, RecordLog, SegmentReader
from tmrl_core.training.memories.disk_frames import DiskFrames, FramesNote
from tmrl_core.training.memories.frame_store import Frames, StackFormat
from tmrl_core.training.memories.layout import Array, Column, RowLayout, fill
from tmrl_core.training.memories.mapped_files import UNIT, MappedFiles, Segment, address
from tmrl_core.training.memories.row_files import MAX_FIRST_ROW, RowFormat, parse_rows_note, rows_note
from tmrl_core.training.memories.row_table import RowTable
from tmrl_core.training.memories.rows import Rows
from tmrl_core.training.memories.stream_states import Changes, StreamStates, decoded, encoded
from tmrl_core.training.value_types import State

logger = logging.getLogger(__name__)

FORMAT_NAME = "replay memory 1"
MIN_SEGMENT_BYTES = 16 << 20
MAX_SEGMENT_BYTES = 256 << 20
MAX_STATE_BYTES = 256 << 20
"""Size of a folder, besides twice its capacity, beyond which the last rows of streams are no longer written."""
FILES = 8
"""Number of files that hold the capacity."""
FILES_OF_FRAMES = 64
"""Number of files if rows have frames. The files are smaller, because more of a file is then beyond the capacity."""


class DiskRows(Rows):
    """Rows in the files of one folder, which this process locks.

    Args:
        capacity: number of rows.
        folder: created if it is missing; existing rows are loaded.
        sync: durability of a commit: "os": survives a crash of this process; "fsync": also a crash of the machine.
        calls: functions that write files.
        tail_rows: see `tmrl_core.training.memories.frame_store.frames_held`.

    Raises:
        FolderLockedError: another process uses the folder.
        StorageError: the folder cannot be read or written.

    Attributes:
        folder: the locked folder.
        states: state of the sample streams as of the last commit.
        lost_rows: number of rows that opening did not find because of damage.
        torn_bytes: bytes of incomplete records that opening has removed.
        stacks: parts of observations that are stacks of frames; None: there are none.
        frames: the frames of each stack.
        staged_needs: runs of staged rows: number of rows, and for each stack the number below which they need no frame.
        found_needs: runs of the rows found at opening: first row, number of rows, the numbers.
    """

    durable: ClassVar[bool] = True

    def __init__(
        self,
        capacity: int,
        folder: Path,
        sync: Literal["os", "fsync"] = "os",
        *,
        calls: FileCalls = OS,
        tail_rows: int = 1,
    ) -> None:
        super().__init__(capacity)
        self.folder = folder
        self._tail_rows = tail_rows
        self.states = StreamStates()
        self.lost_rows = 0
        self._began: int | None = None
        self._format: RowFormat | None = None
        self._table = RowTable()
        self.stacks: StackFormat | None = None
        self.frames: list[DiskFrames] = []
        self.staged_needs: list[list[int]] = []
        self.found_needs: list[tuple[int, int, Sequence[int]]] = []
        self._staged: list[tuple[int, Array, list[Array]]] = []
        self._lock = FolderLock(folder, "the replay memory")
        try:
            self._log = RecordLog(folder, FORMAT_NAME, None, sync=sync, first_note=self._snapshot, calls=calls)
            self._files = MappedFiles(self._log)
            self._read()
        except BaseException:
            self._lock.close()
            raise
        self.torn_bytes = self._log.torn_bytes

    # --- opening ------------------------------------------------------------------------------------------------------

    def _read(self) -> None:
        numbers = self._log.numbers
        damaged = 0
        for number in numbers:
            try:
                self._read_segment(number, newest=number == numbers[-1])
            except StorageError as exc:
                if number == numbers[-1]:
                    raise
                damaged += 1
                logger.warning("%s; the rows up to there are dropped", exc)
        self.lost_rows = min(self.readable - (self._began or 0), self.capacity) - len(self)
        if damaged or self.lost_rows:
            logger.warning(
                "the replay memory in %s is damaged in %d of %d files and holds %d transitions, %d fewer than before",
                self.folder,
                damaged,
                len(numbers),
                len(self),
                self.lost_rows,
            )
        self._describe()

    def _read_segment(self, number: int, newest: bool) -> None:
        reader = self._log.reader(number)
        layout = self._layout_of(reader)
        segment: Segment | None = None
        for record in reader.records(check_payloads=False):
            first_row, rows, rest = parse_rows_note(record.note)
            if (first_row + rows) * self._row_units > MAX_FIRST_ROW:
                raise StorageError(f"{reader.path} names replay row {first_row}, which is too large for a memory")
            if rows and self._format is None:
                raise StorageError(f"{reader.path} holds {rows} rows, and its head does not describe them")
            changes = decoded(rest) if newest or self.frames else {}
            frames = FramesNote.parse(changes.get("frames"), len(self.frames), rows) if self.frames else FramesNote()
            expected = rows * self._row_bytes + sum(
                count * held.frame_bytes for held, (_, count) in zip(self.frames, frames.put, strict=True)
            )
            if len(record.payload) != expected:
                raise StorageError(
                    f"{reader.path} has a record of {len(record.payload)} bytes, not the {expected} of {rows} rows"
                )
            if first_row != self.readable:
                # Earlier rows are missing here: rows are one run, the newest.
                self._table.clear()
                self.oldest = self.readable = first_row
            for held, (first, _) in zip(self.frames, frames.put, strict=True):
                if first != held.stop:
                    held.lost_before(first)
            if self._began is None:
                self._began = first_row
            if segment is None:
                segment = self._files.segments[number] = Segment(first_row)
            if newest:
                self.states.apply(changes)
            self.found_needs += frames.runs(first_row)
            segment.end = record.end
            self._add(number, segment, record.payload_offset, rows, [count for _, count in frames.put])
        if segment is not None:
            segment.reader = reader
        if layout is not None:
            self.layout = layout
        if reader.torn_bytes:
            raise StorageError(
                f"{reader.path} is damaged after byte {reader.good_bytes} of {reader.size}: {reader.torn_bytes} bytes"
            )

    def _layout_of(self, reader: SegmentReader) -> RowLayout | None:
        if reader.description is None:
            return None
        layout = None
        try:
            if "frames" in reader.description:
                self._take_stacks(StackFormat.from_description(reader.description["frames"]))
            elif self.stacks is not None:
                raise ValueError("it has no frames, others have")
            if "layout" in reader.description:
                layout = RowLayout.from_description(reader.description["layout"])
                row_format = RowFormat.from_description(reader.description, str(reader.path))
        except (CheckpointError, KeyError, TypeError, ValueError, AttributeError) as exc:
            raise StorageError(f"the head of {reader.path} describes no replay rows: {exc}") from exc
        if layout is not None:
            if row_format != _format_of(layout):
                raise StorageError(f"the head of {reader.path} contradicts itself: {row_format}")
            self._format = row_format
        return layout

    def _take_stacks(self, stacks: StackFormat) -> None:
        if self.stacks is None:
            self.stacks = stacks
            self.frames = [
                DiskFrames(self.capacity, leaf.shape[0], leaf, self._files, self._tail_rows)
                for leaf in stacks.stacks.values()
            ]
            for segment in self._files.segments.values():  # of messages before the first row
                segment.frame_stops = [0] * len(self.frames)
        elif stacks != self.stacks:
            raise ValueError("its frames are not those of the others")

    def _add(self, number: int, segment: Segment, offset: int, rows: int, frames: Sequence[int]) -> None:
        """Register a record whose rows and frames begin at an offset of a file."""
        if rows:
            self._table.add(self.readable, address(number, offset) - self.readable * self._row_units)
            self.readable += rows
        segment.stop = self.readable
        offset += rows * self._row_bytes
        for held, count in zip(self.frames, frames, strict=True):
            offset = held.register(number, offset, count)
        segment.frame_stops = [held.stop for held in self.frames]

    # --- writing ------------------------------------------------------------------------------------------------------

    @property
    def _row_bytes(self) -> int:
        return self._format.row_bytes if self._format is not None else 0

    @property
    def _row_units(self) -> int:
        return self._row_bytes // UNIT

    def allocate(self, layout: RowLayout) -> None:
        """Set the layout, which the next file's head describes."""
        self.layout = layout
        self._format = _format_of(layout)
        self._describe()
        self._log.seal()  # the next file has another head

    def allocate_frames(self, stacks: StackFormat, tail_rows: int) -> Sequence[Frames]:
        """Return `frames`. If the folder has none yet, the next file's head will describe them."""
        if self.stacks is None:
            self._take_stacks(stacks)
            self._describe()
            self._log.seal()
        return self.frames

    def stage_needs(self, runs: Sequence[Sequence[int]]) -> None:
        """Stage the needs, which the next commit writes."""
        self.staged_needs += [list(run) for run in runs]

    def _describe(self) -> None:
        """Describe the layout of rows in the heads of the next files."""
        description: State = {}
        if self.layout is not None and self._format is not None:
            description.update(layout=self.layout.describe(), **self._format.describe())
        if self.stacks is not None:
            description["frames"] = self.stacks.describe()
        if not description:
            return
        self._log.description = description
        if self.stacks is None:
            size = max(self._capacity_bytes // FILES, MIN_SEGMENT_BYTES)
        else:
            size = max(self._capacity_bytes // FILES_OF_FRAMES, MIN_SEGMENT_BYTES // (FILES_OF_FRAMES // FILES))
        self._log.segment_bytes = min(size, MAX_SEGMENT_BYTES)

    @property
    def _capacity_bytes(self) -> int:
        """Size of the rows and frames of a full memory."""
        return self.capacity * (self._row_bytes + sum(held.frame_bytes for held in self.frames))

    def _snapshot(self) -> bytes:
        changes = self.states.whole()
        if self.frames:
            changes = {**changes, "frames": FramesNote([(held.stop, 0) for held in self.frames]).plain()}
        return rows_note(self.readable, 0, encoded(changes))

    @property
    def written(self) -> int:
        """Index after the newest row, staged rows included."""
        return self.readable + self._staged_rows

    @property
    def staged(self) -> int:
        """Number of staged rows and frames."""
        return self._staged_rows + sum(held.staged for held in self.frames)

    @property
    def _staged_rows(self) -> int:
        return sum(len(rows) for _, rows, _ in self._staged)

    def prepare(self, start: int, count: int) -> None:
        """Allocate RAM for staged rows."""
        assert self._format is not None
        rows = self._format.empty(count)
        self._staged.append((start, rows, self._format.columns(rows)))

    def put(self, column: Column, start: int, values: Array) -> None:
        """Fill staged rows."""
        begin, _, columns = self._staged[-1]
        fill(columns[column.group][start - begin : start - begin + len(values), column.start : column.stop], values)

    def publish(self, start: int, versions: Array) -> None:
        """Fill the versions of staged rows, which can be read after the next `commit`."""
        begin, _, columns = self._staged[-1]
        fill(columns[-1][start - begin : start - begin + len(versions)], versions)

    def commit(self, changes: Changes) -> None:
        """Write the staged rows and the changed state as one record.

        Raises:
            StorageFullError: the disk is full. Nothing was written; the rows stay staged.
            StorageError: the record cannot be written for another reason; likewise.
        """
        rows = self._staged_rows
        put = [(held.stop, held.staged) for held in self.frames]
        folder_bytes = sum(segment.end for segment in self._files.segments.values())
        if folder_bytes > 2 * self._capacity_bytes + MAX_STATE_BYTES:
            # After a restart, streams lose the transitions between two of their messages.
            changes = {**changes, "tails": dict.fromkeys(changes.get("tails", {}))}
        if self.frames:
            changes = {**changes, "frames": FramesNote(put, self.staged_needs).plain()}
        # Rows, frames and state go into one record: a crash leaves all three or none.
        note = rows_note(self.readable, rows, encoded(changes))
        buffers = [block.data for _, block, _ in self._staged]
        place = self._log.append(note, buffers + [block for held in self.frames for block in held.payload()])
        segment = self._files.segments.setdefault(place.number, Segment(self.readable))
        segment.end = place.end
        # Up to the append nothing has changed here, so a commit that raised can be repeated.
        self.discard()
        self.states.apply(changes)
        self._add(place.number, segment, place.payload_offset, rows, [count for _, count in put])
        self._drop_old()

    def discard(self) -> None:
        """Forget the staged rows and frames."""
        self._staged = []
        self.staged_needs = []
        for held in self.frames:
            held.discard()

    def _drop_old(self) -> None:
        limit = self.readable - self.capacity
        if self.frames:
            limit = max(limit, self.oldest)  # rows may have been deleted with their frames, or frames have none yet
        elif limit <= 0:
            return
        segments = self._files.segments
        needed = next((n for n, segment in segments.items() if self._holds_needed(segment, limit)), 0)
        for number in [n for n in segments if n < needed]:
            segment = segments.pop(number)
            segment.close()
            self._table.drop_before(segment.stop)
            self.oldest = max(self.oldest, segment.stop)
            for held, stop in zip(self.frames, segment.frame_stops, strict=True):
                held.forget_before(stop)
        self._log.remove_before(needed)

    def _holds_needed(self, segment: Segment, limit: int) -> bool:
        frames = zip(self.frames, segment.frame_stops, strict=True)
        return segment.stop > limit or any(stop > held.needed for held, stop in frames)

    # --- reading ------------------------------------------------------------------------------------------------------

    def gather(self, positions: Array, looked_at: int = 0) -> tuple[list[torch.Tensor], Array]:
        """Return the rows with one gather for each file that holds some of them."""
        assert self._format is not None
        *groups, versions = self._format.columns(self._rows_at(self.indices_of(positions)))
        # A copy: the lag of a round keeps the counters, and a view would keep the rows of all its batches.
        return [torch.from_numpy(column) for column in groups], versions[:looked_at, 1].copy()

    def _rows_at(self, indices: Array) -> Array:
        """Return stored rows as [n, row_bytes] uint8."""
        return self._files.elements(self._table, self._row_bytes, indices)

    def row(self, index: int) -> list[Array]:
        """Return a copy of a row, which may be staged."""
        assert self._format is not None
        for start, rows, columns in reversed(self._staged):
            if start <= index < start + len(rows):
                return [column[index - start] for column in columns[:-1]]
        return [column[0] for column in self._format.columns(self._rows_at(np.array([index])))[:-1]]

    def versions_of(self, start: int, stop: int) -> Array:
        """Read the versions of these rows, a part at a time."""
        if self._format is None or start >= stop:
            return np.zeros((0, 2), np.int64)
        parts = []
        at_once = 65_536
        for first in range(start, stop, at_once):
            rows = self._rows_at(np.arange(first, min(first + at_once, stop)))
            parts.append(self._format.columns(rows)[-1].copy())
        return np.concatenate(parts)

    def read_back(self, start: int, stop: int) -> Sequence[Array]:
        """Return the rows [start, stop) of each dtype group and of the versions. All must be readable."""
        assert self._format is not None
        return self._format.columns(self._rows_at(np.arange(start, stop)))

    def flush(self) -> None:
        """Flush the files; afterwards all committed rows survive a crash of the machine.

        Raises:
            StorageError: flushing failed.
        """
        self._log.flush()

    def close(self) -> None:
        """Release the files and the folder's lock, and discard staged rows. Further calls do nothing."""
        self._staged = []
        self._log.close()
        self._lock.close()

    def __del__(self) -> None:
        if hasattr(self, "_log"):
            self.close()


def _format_of(layout: RowLayout) -> RowFormat:
    return RowFormat.from_columns([*layout.dtypes, np.dtype(np.int64)], [*layout.widths, 2])
