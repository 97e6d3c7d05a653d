"""Append-only files of replay rows, shared by checkpoints.

A file begins with a head that says what a row is; records follow. All numbers are little-endian.

    file:    b"TMRLROW1"  u32 length  head (JSON)  u32 CRC-32 of the head
    record:  b"REC1"  u64 first row  u32 rows  u32 note bytes  u64 payload bytes  note  payload  u32 CRC-32 of all this

A record's payload is, array after array, its rows as raw values. The note is JSON: where the streams of samples stood
once these rows were in the memory. A file that ends within a record was cut short: what is whole is read, the rest
reported.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from tmrl_core.errors import CheckpointError
from tmrl_core.training.layout import Array

MAGIC = b"TMRLROW1"
RECORD_MAGIC = b"REC1"
RECORD_BYTES = 1 << 20
"""Rows are written in records of about this size, so that neither a call nor a torn tail is large."""

_RECORD = struct.Struct("<4sQIIQ")
_U32 = struct.Struct("<I")
MAX_HEAD_BYTES = 1 << 20
MAX_NOTE_BYTES = 1 << 26


@dataclass(frozen=True)
class RowFormat:
    """What one row is: per array its dtype and width."""

    dtypes: tuple[str, ...]
    widths: tuple[int, ...]

    @classmethod
    def of(cls, arrays: Sequence[Array]) -> RowFormat:
        """The format of two-dimensional arrays."""
        return cls(tuple(a.dtype.newbyteorder("<").str for a in arrays), tuple(a.shape[1] for a in arrays))

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return sum(np.dtype(d).itemsize * w for d, w in zip(self.dtypes, self.widths, strict=True))


def head(row_format: RowFormat) -> bytes:
    """The first bytes of a file."""
    text = json.dumps({"dtypes": row_format.dtypes, "widths": row_format.widths}).encode()
    return MAGIC + _U32.pack(len(text)) + text + _U32.pack(zlib.crc32(text))


def append_rows(
    file: BinaryIO,
    rings: Sequence[Array],
    start: int,
    stop: int,
    note: Any = None,
    advanced: Callable[[int], None] | None = None,
) -> None:
    """Write rows with the absolute indices [start, stop) of rings (index modulo length) to the end of a file.

    Writing and checksums run without the interpreter's lock, a record at a time.

    Args:
        file: open for writing, unbuffered or buffered, at its end.
        rings: arrays [capacity, width].
        start: first row.
        stop: the row after the last.
        note: JSON-able, goes with the last record.
        advanced: called with the index before which rows are written.

    Raises:
        OSError: the file cannot be written.
    """
    capacity = rings[0].shape[0]
    row_format = RowFormat.of(rings)
    at_once = max(1, RECORD_BYTES // max(1, row_format.row_bytes))
    while start < stop:
        position = start % capacity
        rows = min(stop - start, at_once, capacity - position)
        text = json.dumps(note).encode() if start + rows == stop and note is not None else b""
        first = _RECORD.pack(RECORD_MAGIC, start, rows, len(text), rows * row_format.row_bytes) + text
        crc = zlib.crc32(first)
        file.write(first)
        for ring in rings:
            values = np.ascontiguousarray(ring[position : position + rows]).view(np.uint8).reshape(-1)
            crc = zlib.crc32(values.data, crc)
            file.write(values.data)
        file.write(_U32.pack(crc))
        start += rows
        if advanced is not None:
            advanced(start)


@dataclass(frozen=True)
class Record:
    """Rows `first_row` to `first_row + rows` of each array, and the note that came with them."""

    first_row: int
    rows: int
    arrays: list[Array]
    note: Any


@dataclass
class Segment:
    """What a file holds.

    Args:
        row_format: what one row is.
        records: the whole ones, in order.
        good_bytes: length of the file up to the end of the last whole record.
        torn_bytes: bytes after that: a record that was cut short, or damage.
    """

    row_format: RowFormat
    records: list[Record]
    good_bytes: int
    torn_bytes: int


def read_segment(path: Path, limit_bytes: int | None = None) -> Segment:
    """Read a file up to `limit_bytes`, or up to its first record that is cut short or damaged.

    Raises:
        CheckpointError: the file is missing, or has no whole head.
    """
    try:
        with path.open("rb") as file:
            data = memoryview(file.read() if limit_bytes is None else file.read(limit_bytes))
    except OSError as exc:
        raise CheckpointError(f"{path} cannot be read: {exc}") from exc
    row_format, position = _read_head(path, data)
    records = []
    for record, end in _records(data, position, row_format):
        records.append(record)
        position = end
    return Segment(row_format, records, position, len(data) - position)


def _read_head(path: Path, data: memoryview) -> tuple[RowFormat, int]:
    start = len(MAGIC) + _U32.size
    if len(data) < start or bytes(data[: len(MAGIC)]) != MAGIC:
        raise CheckpointError(f"{path} holds no replay rows (its head is missing or cut short)")
    (length,) = _U32.unpack_from(data, len(MAGIC))
    end = start + length
    if length > MAX_HEAD_BYTES or len(data) < end + _U32.size:
        raise CheckpointError(f"{path} is cut short within its head")
    text = bytes(data[start:end])
    if zlib.crc32(text) != _U32.unpack_from(data, end)[0]:
        raise CheckpointError(f"the head of {path} is damaged")
    described = json.loads(text)
    return RowFormat(tuple(described["dtypes"]), tuple(described["widths"])), end + _U32.size


def _records(data: memoryview, position: int, row_format: RowFormat) -> Iterator[tuple[Record, int]]:
    while position + _RECORD.size <= len(data):
        magic, first_row, rows, note_bytes, payload_bytes = _RECORD.unpack_from(data, position)
        end = position + _RECORD.size + note_bytes + payload_bytes
        if (
            magic != RECORD_MAGIC
            or note_bytes > MAX_NOTE_BYTES
            or payload_bytes != rows * row_format.row_bytes
            or end + _U32.size > len(data)
            or zlib.crc32(data[position:end]) != _U32.unpack_from(data, end)[0]
        ):
            return
        at = position + _RECORD.size
        note = json.loads(bytes(data[at : at + note_bytes])) if note_bytes else None
        at += note_bytes
        arrays = []
        for dtype, width in zip(row_format.dtypes, row_format.widths, strict=True):
            count = rows * width
            arrays.append(np.frombuffer(data, dtype, count, at).reshape(rows, width))
            at += count * np.dtype(dtype).itemsize
        position = end + _U32.size
        yield Record(first_row, rows, arrays, note), position


def gather_rows(segments: Sequence[Segment], row_format: RowFormat, start: int, stop: int) -> list[Array]:
    """Rows [start, stop) of each array, out of segments in the order in which they were written.

    Raises:
        CheckpointError: rows are missing, or are of another format.
    """
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
