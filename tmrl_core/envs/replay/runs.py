"""Runs of rows of different lengths, in arrays in RAM or mapped from files.

The rows of a run follow each other in each column, without padding. New runs go behind the newest one; where enough
rows before the oldest run are free, they go there, so that a pool of constant size copies nothing and its memory stays
the same. Arrays that are too small are replaced by larger ones; pages that were never written occupy neither RAM nor
disk.
"""

# Theory of operation
#
# For: rows of sessions of different lengths, in a few large arrays, such that a random batch is one gather, a full pool
# is continued without copying, and a change that fails changes nothing. The file knows rows and runs, nothing of
# sessions.
#
# A `Runs` object is immutable: `extended` returns another one, which may share the columns. New rows go only where no
# run of the old object lies, so that it stays valid if the change fails, and until the new one is extended in turn.
# Hence the rule: only the newest object may be extended.
#
# Where new runs go, in numbers, for columns of 100 rows and runs of 10:
#
# 1. Runs at 0, 10, ..., 70; three more of 10 would end at 110. Nothing is free before the oldest one.
#
# 2. The pool keeps eight runs, so three are dropped with this change. Their rows are still those of the old object,
#    which must survive a failure: they are not used yet. The columns are replaced by larger ones (130 rows: half as
#    much again as is used, and a longest run), and everything moves, once.
#
# 3. From then on the rows of dropped runs are free when the next change comes. New runs go to the beginning as soon as
#    enough rows are free there (`_SPARE`), then behind those, as in a ring. Nothing is copied any more.
#
# `gather` lays a window of the longest run's length on each start. The columns therefore have room for such a window
# behind the last start (`_rows_needed`); what it shows beyond a shorter run is somebody else's, and is zeroed.
#
# Files: rows are written by `write`, not through the mapping, where a full disk would end the process with SIGBUS. The
# files have no name where the system can do that, so a process that is killed leaves none.

from __future__ import annotations

import math
import mmap
import os
import tempfile
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from tmrl_core.samples.columns import Array
from tmrl_core.storage.segment_file import storage_error

Format: TypeAlias = "tuple[tuple[int, ...], np.dtype[Any]]"
"""Shape of a row, and its dtype."""

_SPARE = 64
"""Free rows are used again if there are 1/64 more than needed: lengths vary, and what does not fit moves everything."""


class Column:
    """Rows of one shape and dtype.

    Args:
        count: number of rows.
        format_: of a row.
        folder: of the temporary file that holds them; None: they are in RAM.

    Attributes:
        rows: the array, [count, ...]; read-only with a folder.

    Raises:
        StorageError: the file cannot be created.
    """

    def __init__(self, count: int, format_: Format, folder: Path | None) -> None:
        shape, dtype = format_
        self.folder = folder
        self._descriptor = -1
        if folder is None:
            self.rows: Array = np.empty((count, *shape), dtype)
            return
        self._row_bytes = math.prod(shape) * dtype.itemsize
        size = max(count * self._row_bytes, 1)  # an empty file cannot be mapped
        try:
            # Without a name where the system has such files: a process that dies leaves nothing behind.
            with tempfile.TemporaryFile(dir=folder, prefix="sessions") as file:
                file.truncate(size)
                mapped = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)
                self._descriptor = os.dup(file.fileno())
        except OSError as exc:
            raise storage_error(f"{folder}: {size:,} bytes for sessions", exc) from exc
        weakref.finalize(self, os.close, self._descriptor)
        self.rows = np.frombuffer(mapped, dtype, count * math.prod(shape)).reshape(count, *shape)

    def write(self, at: int, values: Array) -> None:
        """Store rows from index `at` on.

        Raises:
            StorageError: the file cannot be written. Other rows are unchanged.
        """
        if self.folder is None:
            self.rows[at : at + len(values)] = values
        elif values.size:
            # Not through the mapping: there, a full disk kills the process.
            rest = memoryview(np.ascontiguousarray(values, self.rows.dtype).data).cast("B")
            try:
                os.lseek(self._descriptor, at * self._row_bytes, os.SEEK_SET)
                while rest:
                    rest = rest[os.write(self._descriptor, rest[: 1 << 30]) :]
            except OSError as exc:
                raise storage_error(f"{self.folder}: sessions", exc) from exc


@dataclass(frozen=True, slots=True, eq=False)
class Runs:
    """Runs in columns. Changes return another object; this one stays as it is if they fail.

    Both may share columns, so only the newest object may be extended.
    """

    columns: tuple[Column, ...]
    starts: Array
    """[runs] int64, index of the first row of each run."""
    lengths: Array
    """[runs] int64, at least 1."""
    length: int | None
    """Length of every run; None: the lengths differ."""

    @classmethod
    def of(cls, lengths: Array, values: Sequence[Array], folder: Path | None = None) -> Runs:
        """Return runs in new columns.

        Args:
            lengths: [runs] of the runs.
            values: each column, [sum of lengths, ...].
            folder: of temporary files; None: in RAM.

        Raises:
            StorageError: see `Column`.
        """
        starts = _starts(lengths)
        columns = _new_columns(_rows_needed(starts, lengths), [_format(column) for column in values], folder)
        for column, rows in zip(columns, values, strict=True):
            column.write(0, rows)
        return cls(columns, starts, lengths.astype(np.int64), _common(lengths))

    def extended(self, lengths: Array, values: Sequence[Array], keep: int | None = None) -> Runs:
        """Return these runs and new ones.

        Args:
            lengths: [new runs] of the new runs.
            values: each column, [sum of lengths, ...].
            keep: number of the newest runs to keep, at least that of the new ones; None: all.

        Raises:
            StorageError: see `Column`.
        """
        count = int(lengths.sum())
        dropped = 0 if keep is None else max(len(self.starts) + len(lengths) - keep, 0)
        if dropped == len(self.starts):
            return Runs.of(lengths, values, self.columns[0].folder)
        # The dropped runs are still those of this object, so their rows cannot be used yet.
        at = self._place(count)
        columns, starts = self.columns, self.starts[dropped:]
        all_lengths = np.concatenate([self.lengths[dropped:], lengths])
        if at is not None:
            all_starts = np.concatenate([starts, at + _starts(lengths)])
            if _rows_needed(all_starts, all_lengths) > len(columns[0].rows):
                at = None
        if at is None:
            columns, at = self._moved(dropped, count, int(all_lengths.max()))
            all_starts = _starts(all_lengths)
        for column, rows in zip(columns, values, strict=True):
            column.write(at, rows)
        return Runs(columns, all_starts, all_lengths, _common(all_lengths))

    def gather(self, selector: Array, length: int, which: slice = slice(None)) -> list[Array]:
        """Return the columns of some runs, each [runs, length, ...], with zeros behind the end of shorter runs.

        Args:
            selector: [runs] indices.
            length: number of rows for each; at least that of the longest.
            which: of the columns.
        """
        starts = self.starts[selector]
        count, longest, padded = len(starts), self.length, None
        if longest is None:
            lengths = self.lengths[selector]
            longest = int(lengths.max(initial=0))
            padded = np.arange(longest) >= lengths[:, None]
        found = []
        for column in self.columns[which]:
            rows = column.rows
            shape = rows.shape[1:]
            if not rows.size or not count:
                found.append(np.zeros((count, length, *shape), rows.dtype))
                continue
            width = math.prod(shape)
            # A row of this view begins at each row of the column and has `longest` of them: one gather, no loop.
            windows: Array = np.ndarray(
                (len(rows) - longest + 1, longest * width),
                rows.dtype,
                rows,
                strides=(width * rows.itemsize, rows.itemsize),
            )
            gathered = windows[starts].reshape(count, longest, *shape)
            if padded is not None:
                gathered[padded] = 0
            if longest < length:
                wide = np.zeros((count, length, *shape), rows.dtype)
                wide[:, :longest] = gathered
                gathered = wide
            found.append(gathered)
        return found

    def _place(self, count: int) -> int | None:
        """Return the index of the first of `count` free rows; None: there are not so many in a row."""
        head, tail = int(self.starts[0]), int(self.starts[-1] + self.lengths[-1])
        if tail <= head:
            return tail if tail + count <= head else None
        if head >= count + int(self.lengths.sum()) // _SPARE:
            return 0
        return tail if tail + count <= len(self.columns[0].rows) else None

    def _moved(self, dropped: int, count: int, longest: int) -> tuple[tuple[Column, ...], int]:
        """Return larger columns with the runs that are not dropped at their beginning, and the number of their rows."""
        starts, lengths = self.starts[dropped:], self.lengths[dropped:]
        used = int(lengths.sum())
        # At most two blocks: the runs behind the oldest one, and newer ones before it.
        turns = np.flatnonzero(np.diff(starts) < 0) + 1
        columns = _new_columns(
            (used + count) * 3 // 2 + longest, [_format(column.rows) for column in self.columns], self.columns[0].folder
        )
        for block in np.split(np.arange(len(starts)), turns):
            first, last = block[0], block[-1]
            at = int(lengths[:first].sum())
            for new, old in zip(columns, self.columns, strict=True):
                new.write(at, old.rows[starts[first] : starts[last] + lengths[last]])
        return columns, used


def _format(rows: Array) -> Format:
    return rows.shape[1:], rows.dtype


def _new_columns(count: int, formats: Sequence[Format], folder: Path | None) -> tuple[Column, ...]:
    return tuple(Column(count, format_, folder) for format_ in formats)


def _common(lengths: Array) -> int | None:
    return int(lengths[0]) if len(lengths) and (lengths == lengths[0]).all() else None


def _starts(lengths: Array) -> Array:
    return np.cumsum(lengths, dtype=np.int64) - lengths


def _rows_needed(starts: Array, lengths: Array) -> int:
    """Return the number of rows that a window as long as the longest run can be laid on, from each start on."""
    return int(starts.max() + lengths.max()) if len(starts) else 0
