"""The table of records that hold rows."""

from __future__ import annotations

import numpy as np

from tmrl_core.training.memories.layout import Array


class RowTable:
    """Table of the first row of each record: 16 bytes a record."""

    def __init__(self) -> None:
        self._arrays = np.zeros((2, 64), np.int64)
        self._start = self._stop = 0

    def add(self, first_row: int, base: int) -> None:
        """Append a record. Its row `i` is at address `base + i * row_units`."""
        if self._stop == self._arrays.shape[1]:
            kept = self._stop - self._start
            arrays = np.zeros((2, max(64, 2 * kept)), np.int64)
            arrays[:, :kept] = self._arrays[:, self._start : self._stop]
            self._arrays, self._start, self._stop = arrays, 0, kept
        self._arrays[:, self._stop] = first_row, base
        self._stop += 1

    def clear(self) -> None:
        """Forget all records."""
        self._start = self._stop = 0

    def drop_before(self, first_row: int) -> None:
        """Forget records that begin before a row."""
        self._start += int(np.searchsorted(self.first_rows, first_row))

    def __len__(self) -> int:
        return self._stop - self._start

    @property
    def first_rows(self) -> Array:
        """Return the first row of each record, ascending."""
        return self._arrays[0, self._start : self._stop]

    def addresses(self, index: Array, row_units: int) -> Array:
        """Return the addresses of the rows at these absolute indices, all of which must be stored."""
        record = np.searchsorted(self.first_rows, index, "right") - 1
        address: Array = self._arrays[1, self._start + record] + index * row_units
        return address
