"""Samples of arrays in columns, behind the lists of values of a row-by-row memory."""

# Theory of operation
#
# A `GenericTorchMemory` shows its samples as six lists of values, one value per sample, because scripts read and change
# `memory.data[1][k]`. Lists of a million small arrays take some hundred bytes a sample, are collated value by value,
# and would be written whole with each checkpoint. Where samples are arrays and numbers, this file holds them in columns
# instead and makes the values when they are asked for. It knows nothing of streams or episodes: the memory says for
# each sample which one came before it, and whether the two are a transition.
#
# Each array of an action, an observation or a reward has a ring [length, *shape], and so have the flags and the number
# of the sample before. Samples are numbered from the first ever appended; number i is at i modulo the length of the
# rings. The rings grow with the samples, up to a sixteenth more than the memory's size: dropping the oldest samples one
# by one would go through all transitions each time, so they leave a sixteenth at a time. Example with memory_size
# 1,600: the rings hold at most 1,700 rows, and when number 1,700 arrives, numbers 0 to 99 leave together.
#
# Values come back with the types that they had (a Python float, a NumPy scalar, an array without axes), so that a batch
# is bit for bit the one that is collated row by row: Python's floats become float32 in it, NumPy's float64 arrays stay.
# A chunk with another structure changes nothing here; `append` returns False and the memory falls back to lists.
#
# Checkpoints write the rings as those of other memories: rows since the last checkpoint, to shared files, while
# training goes on. A lease keeps rows from being overwritten until they are written. Rings that grow are new arrays;
# the writer keeps the old ones, so growing does not wait.

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from tmrl_core.samples import Chunk
from tmrl_core.samples.columns import leaves, map_leaves
from tmrl_core.samples.supported_values import DTYPES
from tmrl_core.training.memories.layout import Array
from tmrl_core.training.memories.row_memory import RowLease
from tmrl_core.training.memories.rows import put_rows
from tmrl_core.training.value_types import Batch, Device, State, Tree

_SCALARS: dict[str, Callable[[Array], Tree]] = {
    "": operator.itemgetter(()),
    "0-d": np.copy,
    "float": float,
    "int": int,
    "bool": bool,
}
"""Makes the value of a kind (`tmrl_core.samples.columns.Kind`) of an array without axes."""
_FIRST_ROWS = 1024
"""Initial length of the rings."""
_FIELDS = 6
"""Action, observation, reward, terminated, truncated, info."""


@dataclass(frozen=True)
class _Column:
    """One array of an action, an observation or a reward: of a chunk, or a ring.

    Args:
        values: [rows, *shape].
        kind: as in `tmrl_core.samples.columns.Kind`.
    """

    values: Tree
    kind: str

    @property
    def layout(self) -> tuple[np.dtype, tuple[int, ...], str]:
        """Layout that all chunks of a ring share."""
        return self.values.dtype, self.values.shape[1:], self.kind

    @property
    def is_numeric(self) -> bool:
        """True: a ring can hold the values."""
        column = self.values
        return isinstance(column, np.ndarray) and column.dtype.kind in "biuf" and column.dtype.str in DTYPES

    @property
    def batch_dtype(self) -> np.dtype:
        """Dtype in batches: Python's floats, and NumPy's scalars that are such, become float32."""
        dtype, shape, kind = self.layout
        is_float = kind == "float" or (not kind and not shape and dtype == np.float64)
        return np.dtype(np.float32) if is_float else dtype

    def ring(self, length: int) -> _Column:
        """Return a ring of zeros for such values."""
        return _Column(np.zeros((length, *self.values.shape[1:]), self.values.dtype), self.kind)

    def value(self, place: int) -> Tree:
        """Return one value, as it was appended."""
        row = self.values[place, ...]
        return _SCALARS[self.kind](row) if not row.shape else row.copy()


class _Values:
    """One field of all samples, oldest first, as a sequence of values."""

    def __init__(self, columns: SampleColumns, field: int) -> None:
        self._columns, self._field = columns, field

    def __len__(self) -> int:
        return len(self._columns)

    def __getitem__(self, item: int | slice) -> Tree:
        found = range(self._columns.first, self._columns.written)[item]
        if isinstance(found, range):
            return [self._columns.value(self._field, number) for number in found]
        return self._columns.value(self._field, found)

    def __iter__(self) -> Iterator[Tree]:
        return map(self.__getitem__, range(len(self)))


class SampleColumns:
    """The newest samples, and the transitions that they end.

    It stands for a list of six lists: `columns[1][k]` is the observation of the sample `first + k`.

    Args:
        memory_size: maximum number of samples, of which a sixteenth more may be held.

    Attributes:
        first: number of the oldest sample.
        written: number of samples ever appended.
        infos: infos that are not empty, by number.
    """

    type_id = "sample_columns"
    type_version = 2

    def __init__(self, memory_size: int) -> None:
        self.memory_size = memory_size
        self.first = 0
        self.written = 0
        self.infos: dict[int, Tree] = {}
        self._capacity = memory_size + memory_size // 16
        self._flags: list[Array] = [np.empty(0, dtype) for dtype in (bool, bool, bool, np.int64)]
        """Rings of terminated, truncated, with an action, and the number of the sample before (-1: no transition)."""
        self._fields: list[Tree] = [None, None, None]
        """Trees of the rings of actions, observations and rewards; None: no value was seen yet."""
        self._items = np.empty(0, np.int64)
        self._count = 0
        self._lease: RowLease | None = None

    def __len__(self) -> int:
        """Return the number of samples."""
        return self.written - self.first

    @property
    def transitions(self) -> Array:
        """Numbers of the samples that end a transition, ascending."""
        return self._items[: self._count]

    @property
    def previous(self) -> Array:
        """For each of `transitions`, the number of the sample before it."""
        return self._before(self.transitions)

    def _before(self, numbers: Array) -> Array:
        before: Array = self._flags[3][self._places(numbers)]
        return before

    def __getitem__(self, field: int) -> _Values:
        """Return a field of all samples: 0 action, 1 observation, 2 reward, 3 terminated, 4 truncated, 5 info."""
        return _Values(self, range(_FIELDS)[field])

    def __iter__(self) -> Iterator[_Values]:
        """Yield the six fields."""
        return map(self.__getitem__, range(_FIELDS))

    def value(self, field: int, number: int) -> Tree:
        """Return one value of a sample, as it was appended."""
        place = number % len(self._flags[0])
        if field == 5:
            return self.infos.get(number, {})
        if field in (3, 4):
            return bool(self._flags[field - 3][place])
        if field == 0 and not self._flags[2][place]:
            return None
        return map_leaves(lambda column: column.value(place), self._fields[field])

    def to_lists(self) -> list[list[Tree]]:
        """Return the six fields as lists."""
        return [list(values) for values in self]

    # --- samples ------------------------------------------------------------------------------------------------------

    def append(self, chunk: Chunk, before: Array, follows: Array) -> bool:
        """Append the samples of a chunk; return False if they have another structure. Then nothing has changed.

        Args:
            chunk: the samples.
            before: [rows] int64, number of the sample before each.
            follows: [rows] bool: samples that end a transition.
        """
        kinds = iter(chunk.kinds)
        fields = [
            map_leaves(lambda values: _Column(values, next(kinds, "")), tree)
            for tree in (chunk.action, chunk.observation, chunk.reward)
        ]
        if not chunk.action_present.any():
            fields[0] = None
        held = self._fields
        for ring, field in zip(held, fields, strict=True):
            if not all(column.is_numeric for column in _columns(field)):
                return False
            if field is not None and ring is not None and _layouts(field) != _layouts(ring):
                return False
        # Rows before the first action have zeros for it, and no flag of one.
        self._fields = [
            map_leaves(lambda column: column.ring(len(self._flags[0])), field) if ring is None and field is not None
            else ring
            for ring, field in zip(held, fields, strict=True)
        ]  # fmt: skip
        skipped = max(0, chunk.rows - self._capacity)
        self._reserve(chunk.rows - skipped)
        new = [chunk.terminated, chunk.truncated, chunk.action_present, np.where(follows, before, -1)]
        pairs = list(zip(self._flags, new, strict=True))
        for ring, field in zip(self._fields, fields, strict=True):
            pairs += _pairs(ring, field) if field is not None else []
        for ring, values in pairs:
            put_rows(_rows_of(ring), self.written + skipped, _rows_of(values)[skipped:])
        self.infos.update({self.written + row: info for row, info in chunk.info.items() if info})
        self._add_items(self.written + np.flatnonzero(follows))
        self.written += chunk.rows
        if len(self) > self._capacity:
            self.drop(self.written - self._capacity)
        return True

    def _add_items(self, numbers: Array) -> None:
        count = self._count + len(numbers)
        if count > len(self._items):
            self._items = np.resize(self._items, max(_FIRST_ROWS, 2 * count))
        self._items[self._count : count] = numbers
        self._count = count

    def _reserve(self, count: int) -> None:
        """Make room for rows, or wait for the reader of those that will be overwritten."""
        length, needed = len(self._flags[0]), min(len(self) + count, self._capacity)
        if needed <= length:
            if self._lease is not None:
                self._lease.wait_until_free(self.written + count - length)
            return
        held = self.rows(self.first, self.written)
        self._lease = None  # its reader has the rings of now
        self._allocate(min(self._capacity, max(_FIRST_ROWS, 2 * length, needed)), held)

    def _allocate(self, length: int, held: Sequence[Array]) -> None:
        """Make longer rings with the newest rows."""
        self._flags = [np.zeros(length, flag.dtype) for flag in self._flags]
        self._fields = [_mapped(lambda column: column.ring(length), field) for field in self._fields]
        for ring, values in zip(self._rings, held, strict=True):
            put_rows(ring, self.written - len(values), values)

    @property
    def _rings(self) -> list[Array]:
        """All rings as views [length, width]."""
        columns = [column.values for field in self._fields for column in _columns(field)]
        return list(map(_rows_of, [*self._flags, *columns]))

    def rows(self, start: int, stop: int) -> list[Array]:
        """Return copies of the rows [start, stop) of each ring."""
        places = self._places(np.arange(start, stop))
        return [ring[places] for ring in self._rings]

    def _places(self, numbers: Array) -> Array:
        places: Array = numbers % max(1, len(self._flags[0]))
        return places

    def drop(self, first: int) -> None:
        """Drop the samples before `first`, and the transitions that they begin or end."""
        items = self.transitions[np.searchsorted(self.transitions, first) :]
        kept = items[self._before(items) >= first]
        self._count = len(kept)
        self._items[: self._count] = kept
        for number in [number for number in self.infos if number < first]:
            del self.infos[number]
        self.first = first

    def batch(self, items: Array, device: Device) -> Batch:
        """Return the transitions of some items, as they are collated row by row."""
        now = self._items[items]
        places, before = self._places(now), self._places(self._before(now))
        action, observation, reward = self._fields

        def gather(field: Tree, at: Array, dtype: np.dtype | None = None) -> Tree:
            return map_leaves(
                lambda column: _tensor(column.values.take(at, axis=0), dtype or column.batch_dtype, device), field
            )

        float32 = np.dtype(np.float32)
        return (
            gather(observation, before),
            gather(action, places),
            gather(reward, places, float32),
            gather(observation, places),
            _tensor(self._flags[0].take(places), float32, device),
            _tensor(self._flags[1].take(places), float32, device),
        )

    # --- checkpoints --------------------------------------------------------------------------------------------------

    @property
    def row_arrays(self) -> list[Array]:
        """The rings; empty before the first action, since they have no column of actions yet."""
        return self._rings if self._fields[0] is not None else []

    def lease_rows(self, start: int) -> RowLease:
        """Retain the rows from number `start` (or the oldest) until the lease is released."""
        self._lease = RowLease(max(start, self.first), self.written)
        return self._lease

    def state_dict(self) -> State:
        """Return the state without the rows."""
        return {
            "first": self.first,
            "written": self.written,
            "fields": [_mapped(lambda column: [column.values[:0], column.kind], field) for field in self._fields],
            "infos": dict(self.infos),
            "early": [] if self.row_arrays else self.rows(self.first, self.written),
        }

    def load_state_dict(self, state: State, rows: Sequence[Array] = ()) -> None:
        """Load `state_dict()` and its rows, oldest first; fewer if older ones were lost.

        Raises:
            KeyError, TypeError, ValueError: the state is invalid, or the rows do not fit it.
        """
        loaded = SampleColumns(self.memory_size)
        loaded._fields = [_mapped(lambda empty: _column(*empty), field) for field in state["fields"]]
        rows = rows or state["early"]
        count = len(rows[0]) if rows else 0
        found = [(values.dtype, values.shape) for values in rows]
        if len(loaded._fields) != 3 or found != [(ring.dtype, (count, ring.shape[1])) for ring in loaded._rings]:
            raise ValueError(f"the rows of samples have the arrays {found}, which do not fit the saved columns")
        count = min(count, self._capacity)
        loaded.written = int(state["written"])
        loaded.first = loaded.written - count
        newest = [values[len(values) - count :] for values in rows]
        loaded._allocate(max(count, min(_FIRST_ROWS, self._capacity)), newest)
        loaded.infos = {number: info for number, info in state["infos"].items() if number >= loaded.first}
        held = np.arange(loaded.first, loaded.written)
        loaded._add_items(held[loaded._before(held) >= loaded.first])
        vars(self).update(vars(loaded))


def _mapped(function: Callable[[Tree], Tree], field: Tree) -> Tree:
    return None if field is None else map_leaves(function, field)


def _columns(field: Tree) -> list[_Column]:
    found: list[Tree] = [] if field is None else list(leaves(field))
    return found


def _layouts(field: Tree) -> Tree:
    return map_leaves(operator.attrgetter("layout"), field)


def _pairs(ring: Tree, field: Tree) -> Iterator[tuple[Array, Array]]:
    """Yield the arrays of two trees of one structure together. Their dicts may have another order."""
    if isinstance(field, dict):
        for key, part in field.items():
            yield from _pairs(ring[key], part)
    elif isinstance(field, tuple):
        for one, part in zip(ring, field, strict=True):
            yield from _pairs(one, part)
    else:
        yield ring.values, field.values


def _rows_of(values: Array) -> Array:
    """Return a view [rows, width]."""
    return values.reshape(len(values), math.prod(values.shape[1:]))


def _column(values: Array, kind: str) -> _Column:
    if kind not in _SCALARS:
        raise ValueError(f"a column of the kind {kind!r:.50}")
    return _Column(values, kind)


def _tensor(values: Array, dtype: np.dtype, device: Device) -> torch.Tensor:
    tensor = torch.from_numpy(values if values.dtype == dtype else values.astype(dtype))
    return tensor if device is None or str(device) == "cpu" else tensor.to(device)
