"""Rows of a replay memory in append-only files: of a memory on disk, and of checkpoints of a memory in RAM."""

# Theory of operation
#
# The files are those of `tmrl_core.storage`. A record's payload is consecutive rows: all columns of a transition
# together, with its policy version, so that sampling one row is one copy. A record's metadata begins with the number of
# its first row (counted from the first ever written) and the number of rows; the rest belongs to the writer.
#
#     row:   policy version (two int64)  the memory's arrays, those of the widest elements first  zeros up to 8
#
# The widest elements come first so that every array is aligned for its dtype without gaps between arrays, and rows are
# multiples of 8 bytes so that this holds in each row of a mapped file. Example: 7 float32, 1 int64 and 2 bool take 16 +
# 8 + 28 + 2 = 54 bytes, so a row takes 56.
#
# Whoever wrote a file, its numbers are checked before memory is allocated for them: a damaged count must not ask for a
# terabyte.

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np

from tmrl_core.decodable import decodable
from tmrl_core.errors import CheckpointError, StorageError
from tmrl_core.samples.supported_values import DTYPES
from tmrl_core.storage import SegmentFile, SegmentReader
from tmrl_core.storage.format import Record as StoredRecord
from tmrl_core.storage.format import scan
from tmrl_core.training.memories.layout import Array
from tmrl_core.training.value_types import State, Tree

FORMAT_NAME = "replay rows 1"
RECORD_BYTES = 1 << 20
"""Approximate size of a checkpoint's records, so that neither a write nor an incomplete record is large."""

MAX_FIRST_ROW = 1 << 62
"""Limit of row numbers, so that sums with counts stay within int64."""

_NOTE = struct.Struct("<QI")


def rows_note(first_row: int, rows: int, rest: bytes = b"") -> bytes:
    """Return the metadata of a record of rows."""
    return _NOTE.pack(first_row, rows) + rest


def parse_rows_note(note: bytes) -> tuple[int, int, bytes]:
    """Return first row, number of rows, and the rest of the metadata.

    Raises:
        StorageError: the metadata is invalid.
    """
    if len(note) < _NOTE.size:
        raise StorageError(f"a note of {len(note)} bytes does not describe replay rows")
    first_row, rows = _NOTE.unpack_from(note)
    if first_row > MAX_FIRST_ROW:
        raise StorageError(f"a record names replay row {first_row}, which is too large for a memory")
    return first_row, rows, note[_NOTE.size :]


@decodable
class _Described(msgspec.Struct):
    dtypes: tuple[str, ...]
    widths: tuple[Annotated[int, msgspec.Meta(ge=0, le=1 << 31)], ...]


@dataclass(frozen=True)
class RowFormat:
    """Format of one row: the dtype and width of each array."""

    dtypes: tuple[str, ...]
    widths: tuple[int, ...]

    @classmethod
    def of(cls, arrays: Sequence[Array]) -> RowFormat:
        """Return the format of two-dimensional arrays."""
        return cls.from_columns([a.dtype for a in arrays], [a.shape[1] for a in arrays])

    @classmethod
    def from_columns(cls, dtypes: Iterable[np.dtype], widths: Iterable[int]) -> RowFormat:
        """Return the format of arrays of these dtypes and widths."""
        return cls(tuple(d.newbyteorder("<").str for d in dtypes), tuple(widths))

    @classmethod
    def from_description(cls, description: Tree, where: str) -> RowFormat:
        """Undo `describe`.

        Raises:
            CheckpointError: `where` describes no rows.
        """
        try:
            described = msgspec.convert(description, _Described)
        except msgspec.ValidationError as exc:
            raise CheckpointError(f"{where} describes no replay rows: {exc}") from exc
        unknown = [name for name in described.dtypes if name not in DTYPES]
        if unknown or len(described.dtypes) != len(described.widths):
            raise CheckpointError(
                f"{where} describes no replay rows: {len(described.dtypes)} dtypes (unknown: {unknown[:3]}) and "
                f"{len(described.widths)} widths"
            )
        return cls(described.dtypes, described.widths)

    def describe(self) -> State:
        """Return the format as JSON-able values."""
        return {"dtypes": list(self.dtypes), "widths": list(self.widths)}

    @cached_property
    def offsets(self) -> tuple[int, ...]:
        """Return the offset of each array's elements in a row, in bytes: aligned for their dtype."""
        sizes = [np.dtype(d).itemsize for d in self.dtypes]
        offsets = [0] * len(sizes)
        at = 0
        for i in sorted(range(len(sizes)), key=lambda i: -sizes[i]):
            offsets[i] = at
            at += sizes[i] * self.widths[i]
        return tuple(offsets)

    @cached_property
    def row_bytes(self) -> int:
        """Size of one row in bytes, a multiple of 8."""
        return self._used_bytes + -self._used_bytes % 8

    @cached_property
    def _used_bytes(self) -> int:
        return sum(np.dtype(d).itemsize * w for d, w in zip(self.dtypes, self.widths, strict=True))

    @cached_property
    def _places(self) -> list[tuple[np.dtype, int, int]]:
        """Return the dtype of each array, and the begin and end of its elements in a row."""
        dtypes = map(np.dtype, self.dtypes)
        return [
            (dtype, at, at + dtype.itemsize * width)
            for dtype, width, at in zip(dtypes, self.widths, self.offsets, strict=True)
        ]

    def empty(self, rows: int) -> Array:
        """Return [rows, row_bytes] uint8, to fill through `columns`. Bytes between columns are zero."""
        made = np.empty((rows, self.row_bytes), np.uint8)
        if self._used_bytes < self.row_bytes:
            made[:, self._used_bytes :] = 0
        return made

    def columns(self, rows: Array) -> list[Array]:
        """Return the arrays [n, width] of rows [n, row_bytes] uint8, as views."""
        return [rows[:, start:stop].view(dtype) for dtype, start, stop in self._places]


def append_rows(
    file: SegmentFile,
    rings: Sequence[Array],
    start: int,
    stop: int,
    note: bytes = b"",
    advanced: Callable[[int], None] | None = None,
) -> None:
    """Write rows with the absolute indices [start, stop) of rings (index modulo length) to the end of a file.

    Args:
        file: of rows of this format.
        rings: arrays [capacity, width].
        start: first row.
        stop: the row after the last.
        note: metadata of the last record.
        advanced: called with the index after the rows written so far.

    Raises:
        StorageError: the file cannot be written. Earlier records are written.
    """
    capacity = rings[0].shape[0]
    row_format = RowFormat.of(rings)
    at_once = max(1, RECORD_BYTES // max(1, row_format.row_bytes))
    while start < stop:
        position = start % capacity
        count = min(stop - start, at_once, capacity - position)
        rows = row_format.empty(count)
        for column, ring in zip(row_format.columns(rows), rings, strict=True):
            column[:] = ring[position : position + count]
        file.append(rows_note(start, count, note if start + count == stop else b""), [rows.data])
        start += count
        if advanced is not None:
            advanced(start)


@dataclass(frozen=True)
class Record:
    """Rows `first_row` to `first_row + rows` of each array, and their metadata."""

    first_row: int
    rows: int
    arrays: list[Array]
    note: bytes


@dataclass
class Segment:
    """Content of a row file.

    Args:
        row_format: format of one row.
        records: the complete records, in order; views of the file.
        good_bytes: length of the file up to the end of the last complete record.
        torn_bytes: bytes after that: a truncated record, or damage.
    """

    row_format: RowFormat
    records: list[Record]
    good_bytes: int
    torn_bytes: int


def read_segment(path: Path, limit_bytes: int | None = None, *, over_damage: bool = False) -> Segment:
    """Read a file up to `limit_bytes`, or up to its first incomplete or damaged record.

    Args:
        path: the file.
        limit_bytes: maximum number of bytes to read.
        over_damage: True: continue after a record of which only the rows are damaged.

    Raises:
        CheckpointError: the file is missing, has no complete head, or holds no rows.
    """
    try:
        reader = SegmentReader(path, limit_bytes)
    except StorageError as exc:
        raise CheckpointError(str(exc)) from exc
    if reader.format_name != FORMAT_NAME:
        raise CheckpointError(f"{path} holds records of the kind {reader.format_name!r}, not {FORMAT_NAME!r}")
    row_format = RowFormat.from_description(reader.description, str(path))
    records: list[Record] = []
    good_bytes = reader.head_bytes
    for record in _whole_records(reader) if over_damage else reader.records():
        try:
            first_row, rows, rest = parse_rows_note(record.note)
        except StorageError:
            break
        if len(record.payload) != rows * row_format.row_bytes:
            break
        values = np.frombuffer(record.payload, np.uint8).reshape(rows, row_format.row_bytes)
        records.append(Record(first_row, rows, row_format.columns(values), rest))
        good_bytes = record.end
    return Segment(row_format, records, good_bytes, reader.size - good_bytes)


def _whole_records(reader: SegmentReader) -> Iterator[StoredRecord]:
    start = reader.head_bytes
    while start < reader.size:
        for record in scan(reader.view, start, True):
            start = record.end
            yield record
        damaged = next(scan(reader.view, start, False), None)
        if damaged is None:
            return
        start = damaged.end


def behind_damage(segments: Sequence[Segment], start: int, stop: int) -> int:
    """Return the first of the rows [start, stop) from which on no row is missing; `stop`: the last row is missing."""
    records = sorted((record.first_row, record.rows) for segment in segments for record in segment.records)
    first = stop
    for first_row, rows in reversed(records):
        if first_row < first <= first_row + rows:
            first = first_row
    return max(first, start)


def gather_rows(segments: Sequence[Segment], row_format: RowFormat, start: int, stop: int) -> list[Array]:
    """Return rows [start, stop) of each array, from segments in the order of writing.

    Raises:
        CheckpointError: rows are missing or have another format.
    """
    there = sum(record.rows for segment in segments for record in segment.records)
    if stop - start > there:  # Checked before memory is allocated.
        raise CheckpointError(f"of the replay rows {start} to {stop} at least {stop - start - there} are missing")
    gathered = [
        np.empty((stop - start, width), dtype)
        for dtype, width in zip(row_format.dtypes, row_format.widths, strict=True)
    ]
    reached = start
    for segment in segments:
        if segment.row_format != row_format:
            raise CheckpointError(f"replay rows are {segment.row_format}, not {row_format}")
        for record in segment.records:
            low, high = max(record.first_row, reached), min(record.first_row + record.rows, stop)
            if low != reached or high <= low:
                continue
            for array, values in zip(gathered, record.arrays, strict=True):
                array[low - start : high - start] = values[low - record.first_row : high - record.first_row]
            reached = high
    if reached < stop:
        raise CheckpointError(f"replay rows {reached} to {stop} are missing")
    return gathered
