"""Elements of one size in the memory-mapped files of a log.

An element is a row or a frame: consecutive bytes at a multiple of 8 in its file. A `RowTable` holds the position of
each record's elements.
"""

from __future__ import annotations

import numpy as np

from tmrl_core.storage import RecordLog, SegmentReader
from tmrl_core.training.memories.layout import Array
from tmrl_core.training.memories.row_table import RowTable

UNIT = 8
_NUMBER_SHIFT = 32
"""Low bits of an address, which hold a place in a file in units of 8 bytes. The high bits hold the file's number."""


def address(number: int, offset: int) -> int:
    """Return the address of an offset, which is a multiple of 8, in a file."""
    return (number << _NUMBER_SHIFT) + offset // UNIT


class Segment:
    """Description of a file.

    Attributes:
        stop: index after its last row.
        frame_stops: for each kind of frames, the number after its last one.
        end: offset of the end of its last record, in bytes.
        reader: its memory mapping; None: not mapped.
    """

    def __init__(self, first_row: int) -> None:
        self.stop = first_row
        self.frame_stops: list[int] = []
        self.end = 0
        self.reader: SegmentReader | None = None
        self.views: dict[int, Array] = {}
        """Views of the file by the size of an element; element `i` of a view begins at byte `8 * i`."""

    def close(self) -> None:
        """Release the mapping."""
        self.views.clear()
        if self.reader is not None:
            self.reader.close()
            self.reader = None


class MappedFiles:
    """The files of a log by their numbers.

    Attributes:
        segments: the known files, in order.
    """

    def __init__(self, log: RecordLog) -> None:
        self._log = log
        self.segments: dict[int, Segment] = {}

    def elements(self, table: RowTable, size: int, indices: Array) -> Array:
        """Return the elements of these absolute indices, [n, size] uint8, with one gather per file.

        All must be stored.
        """
        addresses = table.addresses(indices, size // UNIT)
        number, unit = addresses >> _NUMBER_SHIFT, addresses & ((1 << _NUMBER_SHIFT) - 1)
        first, last = int(number.min()), int(number.max())
        if first == last:
            picked = self._view(first, size)[unit]
        else:
            picked = np.empty(len(indices), _void(size))
            order = np.argsort((number - first).astype(np.uint16), kind="stable")
            number, unit = number[order], unit[order]
            start = 0
            while start < len(order):
                stop = int(np.searchsorted(number, number[start], "right"))
                picked[order[start:stop]] = self._view(int(number[start]), size)[unit[start:stop]]
                start = stop
        found: Array = picked.view(np.uint8).reshape(len(indices), size)
        return found

    def _view(self, number: int, size: int) -> Array:
        segment = self.segments[number]
        if segment.reader is None or segment.reader.size < segment.end:
            segment.close()
            segment.reader = self._log.reader(number)
        if size not in segment.views:
            length = max(0, (segment.reader.size - size) // UNIT + 1)
            segment.views[size] = np.ndarray((length,), _void(size), segment.reader.view, 0, (UNIT,))
        return segment.views[size]


def _void(size: int) -> np.dtype:
    return np.dtype((np.void, size))
