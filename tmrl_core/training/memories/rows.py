"""Storage of a replay memory's rows: the seam between the format of a transition and its storage."""

# Theory of operation
#
# `RamRows` holds rings in this process, `DiskRows` (disk_rows.py) append-only files. The same tests cover memories over
# both (tests/training/memories/test_replay.py), and the same seed samples the same batches from both.
#
# A row has an absolute index, counted from the first row ever written, and a *position* below the number of rows, which
# a sampler chooses. Without lost rows the position is the index modulo the capacity, so that a full ring is used where
# it lies; if the oldest rows were lost (damage, missing frames), it is counted from the oldest row, so that every
# number below the length still means a row. Example with capacity 4 and rows 0 to 5 written: rows 2 to 5 can be read,
# at the positions 2, 3, 0, 1. If row 2 is lost, the positions 0, 1, 2 mean the rows 3, 4, 5.

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import torch

from tmrl_core.config.algorithms import ALONE_BYTES
from tmrl_core.errors import ConfigError
from tmrl_core.training.memories.frame_store import Frames, RamFrames, StackFormat
from tmrl_core.training.memories.layout import Array, Column, RowLayout, fill
from tmrl_core.training.memories.row_memory import RowLease
from tmrl_core.training.memories.transitions import TransitionColumns


class Rows(ABC):
    """A store of the newest `capacity` rows.

    Args:
        capacity: number of rows.

    Attributes:
        durable: True: rows are in files and can be read after a commit. False: rows are in RAM and can be read
            immediately.
        layout: layout of the columns; None before the first row.
        oldest: index before which no row can be read, even if there are fewer than `capacity` rows.
        readable: index after the newest row that can be read.
    """

    durable: ClassVar[bool] = False

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.layout: RowLayout | None = None
        self.oldest = 0
        self.readable = 0

    def __len__(self) -> int:
        """Return the number of rows that can be read."""
        return min(self.readable - self.oldest, self.capacity)

    @property
    def written(self) -> int:
        """Index after the newest stored row, readable or not."""
        return self.readable

    def store(self, transitions: TransitionColumns) -> None:
        """Store transitions after the newest row."""
        layout = self.layout
        assert layout is not None
        start = self.written + transitions.skipped
        self.prepare(start, transitions.count)
        for column, values in zip(layout.new_obs, transitions.new_obs, strict=True):
            self._store_column(column, start, values)
        for column, parts in zip(layout.prev_obs, transitions.prev_obs, strict=True):
            at = start
            for part in parts:
                self._store_column(column, at, part)
                at += len(part)
        for column, values in zip(layout.act, transitions.act, strict=True):
            self._store_column(column, start, values)
        self._store_column(layout.rew, start, transitions.rew)
        self._store_column(layout.terminated, start, transitions.terminated)
        self._store_column(layout.truncated, start, transitions.truncated)
        for name, column in layout.extras.items():
            self._store_column(column, start, transitions.extras[name])
        for name, columns in layout.sample_extra_columns.items():
            for column, values in zip(columns, transitions.sample_extras[name], strict=True):
                self._store_column(column, start, values)
        self.publish(start, transitions.version)

    def _store_column(self, column: Column, start: int, values: Array) -> None:
        if len(values):
            if values.ndim != 2:
                values = values.reshape(len(values), column.stop - column.start)
            self.put(column, start, values)

    @abstractmethod
    def allocate_frames(self, stacks: StackFormat, tail_rows: int) -> Sequence[Frames]:
        """Return a store of frames for each stack of an observation; the rows refer to frames by number.

        Args:
            stacks: the parts of an observation that are stacks.
            tail_rows: see `tmrl_core.training.memories.frame_store.frames_held`.

        Raises:
            ConfigError: there is not enough RAM.
        """

    def stage_needs(self, runs: Sequence[Sequence[int]]) -> None:
        """Record the frames that stored rows need: runs of a number of rows and the lowest frame number per stack."""
        return None

    @abstractmethod
    def allocate(self, layout: RowLayout) -> None:
        """Set the layout of the rows; called once.

        Raises:
            ConfigError: there is not enough memory.
        """

    @abstractmethod
    def prepare(self, start: int, count: int) -> None:
        """Prepare for rows [start, start + count), which follow the previous rows."""

    @abstractmethod
    def put(self, column: Column, start: int, values: Array) -> None:
        """Fill a column of the rows from absolute index `start` on; `values` is [rows, width]."""

    @abstractmethod
    def publish(self, start: int, versions: Array) -> None:
        """Publish the rows from `start` on, whose other columns are filled, with their policy versions [rows, 2]."""

    @abstractmethod
    def gather(self, positions: Array, looked_at: int = 0) -> tuple[list[torch.Tensor], Array]:
        """Return the rows at some positions.

        Args:
            positions: int64, 0 <= each < len(self). The row at a position is fixed until the next `publish`; without
                lost rows, it is the same in all implementations.
            looked_at: number of rows, from the first, whose versions are returned too.

        Returns:
            The rows of each dtype group, [len(positions), width], and the counters of their versions, [looked_at]
            int64.
        """

    @abstractmethod
    def row(self, index: int) -> list[Array]:
        """Return the row of absolute `index`: [width] for each dtype group. It need not be published."""

    @property
    def _from_oldest(self) -> bool:
        """True: positions are counted from the oldest row, because rows before it were lost. False: a row's position is
        its index modulo the capacity."""
        return self.oldest > 0 and self.readable - self.oldest < self.capacity

    def index_of(self, position: int) -> int:
        """Return the absolute index of the row at a position."""
        return int(self.indices_of(np.array([position]))[0])

    def indices_of(self, positions: Array) -> Array:
        """Return the absolute indices of the rows at some positions."""
        newest = self.readable - 1
        indices: Array = self.oldest + positions if self._from_oldest else newest - (newest - positions) % self.capacity
        return indices

    def positions_of(self, indices: Array) -> Array:
        """Return the positions of the rows of these absolute indices, which can all be read."""
        positions: Array = indices - self.oldest if self._from_oldest else indices % self.capacity
        return positions

    @abstractmethod
    def versions_of(self, start: int, stop: int) -> Array:
        """Return the policy versions of the rows [start, stop), all readable: [stop - start, 2] int64."""


def put_rows(ring: Array, start: int, values: Array) -> None:
    """Write rows into a ring [capacity, width], from absolute index `start` on."""
    at = start % len(ring) if len(ring) else 0
    first = len(ring) - at
    if len(values) <= first:
        fill(ring[at : at + len(values)], values)
    else:
        fill(ring[at:], values[:first])
        fill(ring[: len(values) - first], values[first:])


class RamRows(Rows):
    """Rows in ring buffers in RAM: one array per dtype group, and one of policy versions.

    The position of row `i` is `i` modulo the capacity.
    """

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self.groups: list[Array] = []
        self._tensors: list[torch.Tensor] = []
        self._versions = np.zeros((0, 2), np.int64)
        self._counters = self._versions[:, 1]
        self._lease: RowLease | None = None

    @property
    def arrays(self) -> list[Array]:
        """The rings: one array [capacity, width] per dtype group, then the versions."""
        return [*self.groups, self._versions] if self.layout is not None else []

    def allocate(self, layout: RowLayout) -> None:
        """Make the rings."""
        try:
            groups = [
                np.empty((self.capacity, width), dtype)
                for dtype, width in zip(layout.dtypes, layout.widths, strict=True)
            ]
            versions = np.empty((self.capacity, 2), np.int64)
        except (MemoryError, ValueError) as exc:  # ValueError: the size exceeds the address space
            needed = self.capacity * (layout.row_bytes + 16) / 1e9
            sizes = [(one.stop - one.start) * layout.dtypes[one.group].itemsize for one in layout.new_obs]
            pictures = (
                " Half the bytes are enough for pictures with memory.cls: tmrl_core.training:FrameStackMemory and "
                "memory.kwargs: {frame_stack: 1}."
            )
            raise ConfigError(
                f"memory.capacity: {self.capacity} transitions of {layout.row_bytes} bytes need {needed:.1f} GB, "
                "which cannot be allocated. Choose a smaller capacity, or memory.storage: disk."
                f"{pictures if max(sizes, default=0) >= ALONE_BYTES else ''}"
            ) from exc
        self.groups, self._versions, self.layout = groups, versions, layout
        self._counters = versions[:, 1]
        self._tensors = [torch.from_numpy(group) for group in groups]

    def allocate_frames(self, stacks: StackFormat, tail_rows: int) -> Sequence[Frames]:
        """Make a ring for each stack."""
        return [
            RamFrames(self.capacity, leaf.shape[0], leaf.shape[1:], leaf.dtype, tail_rows)
            for leaf in stacks.stacks.values()
        ]

    def lease(self, start: int) -> RowLease:
        """Retain the rows from absolute index `start` (or the oldest) until the lease is released."""
        self._lease = RowLease(max(start, self.readable - len(self)), self.readable)
        return self._lease

    def prepare(self, start: int, count: int) -> None:
        """Wait for readers of the rows that will be overwritten."""
        if self._lease is not None:
            self._lease.wait_until_free(start + count - self.capacity)

    def put(self, column: Column, start: int, values: Array) -> None:
        """Write the values into the ring."""
        put_rows(self.groups[column.group][:, column.start : column.stop], start, values)

    def publish(self, start: int, versions: Array) -> None:
        """Write the versions into the ring, and make the rows readable immediately."""
        put_rows(self._versions, start, versions)
        self.readable = start + len(versions)

    def load(self, written: int, rows: list[Array]) -> None:
        """Load the newest rows of each of `arrays`, oldest first. `written` is the index after the last."""
        for ring, values in zip(self.arrays, rows, strict=True):
            put_rows(ring, written - len(values), values)
        self.readable = written

    def gather(self, positions: Array, looked_at: int = 0) -> tuple[list[torch.Tensor], Array]:
        """Return the rows with one gather per group."""
        places = (self.oldest + positions) % self.capacity if self._from_oldest else positions
        index = torch.from_numpy(places)
        counters = self._counters[places[:looked_at]]
        return [group.index_select(0, index) for group in self._tensors], counters

    def row(self, index: int) -> list[Array]:
        """Return views of the rings."""
        return [group[index % self.capacity] for group in self.groups]

    def versions_of(self, start: int, stop: int) -> Array:
        """Return a copy of the versions."""
        at = start % self.capacity
        if at + stop - start <= self.capacity:
            versions: Array = self._versions[at : at + stop - start].copy()
        else:
            versions = self._versions[np.arange(start, stop) % self.capacity]
        return versions
