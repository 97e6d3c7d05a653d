"""Numbered rows in RAM that checkpoints write once: the contract of their owners, and a lease on rows that are read."""

# Theory of operation
#
# A checkpoint's thread reads rows from the rings while training goes on. Its `RowLease` names the rows that it has yet
# to read; an append that would overwrite one of them waits. The thread advances the lease after each record, so a wait
# is short.
#
# A memory's transitions are such rows, and so are its frames, whose store is a part of the memory's state. On resume
# there is no object yet to take the frames, since the state says of what shape they are: they come as `SavedRows`.

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np

from tmrl_core.training.memories.layout import Array
from tmrl_core.training.value_types import State


class RowLease:
    """Lease of rows `[start, stop)` that are being read. An append that would overwrite them waits for the reader.

    The reader calls `advance` during reading and `release` at the end, from any thread.
    """

    def __init__(self, start: int, stop: int) -> None:
        self.start = start
        self.stop = stop
        self._changed = threading.Condition()

    def advance(self, index: int) -> None:
        """Release the rows before absolute `index`."""
        with self._changed:
            self.start = max(self.start, index)
            self._changed.notify_all()

    def release(self) -> None:
        """Release all rows."""
        self.advance(self.stop)

    def wait_until_free(self, index: int) -> None:
        """Wait until rows before absolute `index` may be overwritten; `advance` and `release` wake the caller."""
        with self._changed:
            self._changed.wait_for(lambda: self.start >= min(index, self.stop))


@runtime_checkable
class RowMemory(Protocol):
    """A memory whose rows checkpoints store separately from its state, in shared files.

    Attributes:
        memory_size: maximum number of rows.
    """

    memory_size: int

    @property
    def written(self) -> int:
        """Rows ever stored; the newest has the absolute index `written - 1`."""

    @property
    def row_arrays(self) -> Sequence[Array]:
        """The rings that hold the rows, [memory_size, width] each; empty if the rows need no saving."""

    def __len__(self) -> int:
        """Return the number of rows."""

    def lease_rows(self, start: int) -> RowLease:
        """Retain the rows from absolute index `start` on until the lease is released."""

    def state_dict(self) -> State:
        """Return the state without the rows."""

    def load_state_dict(self, state: State, rows: Sequence[Array] = ()) -> None:
        """Load a state and its rows."""


@dataclass(frozen=True)
class SavedRows:
    """Rows of an owner that is a part of another one's state, as they were saved.

    Args:
        state: of the owner, without the rows.
        rows: the newest rows of each of its `row_arrays`, oldest first; fewer than were saved if older ones were lost.
    """

    state: State
    rows: Sequence[Array]

    @classmethod
    def of(cls, owner: RowMemory) -> SavedRows:
        """Return a copy of the present state and rows."""
        places = np.arange(owner.written - len(owner), owner.written) % owner.memory_size
        return cls(owner.state_dict(), [ring[places] for ring in owner.row_arrays])
