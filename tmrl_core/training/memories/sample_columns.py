"""Samples of arrays in columns, behind the lists of values of a row-by-row memory.

Each leaf of actions, observations and rewards has a ring [rows, width], and so has each number that belongs to a row.
The rings grow with the samples, up to the memory's size. Samples are numbered from the first ever appended; number `i`
is at `i` modulo the length of the rings. Values come back with the types that they had, so that a batch is the same as
one that is collated row by row. Checkpoints store the rows in shared files, as those of other memories.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch

from tmrl_core.samples import Chunk
from tmrl_core.samples.columns import map_leaves
from tmrl_core.samples.supported_values import DTYPES
from tmrl_core.training.memories.layout import Array
from tmrl_core.training.memories.rows import RowLease, put_rows
from tmrl_core.training.value_types import Batch, Device, State, Tree

_KINDS = frozenset({"", "0-d", "float", "int", "bool"})
_PYTHON: dict[str, Callable[[Tree], Tree]] = {"float": float, "int": int, "bool": bool}
_FIRST_ROWS = 1024
"""Initial length of the rings."""
_FIELDS = 6
"""Action, observation, reward, terminated, truncated, info."""
_FLAGS = 3
"""Number of rings of flags, before the ring of previous numbers and those of leaves."""

Path: TypeAlias = tuple[Any, ...]


class _MisfitError(Exception):
    """A chunk has leaves that columns cannot hold."""


@dataclass(frozen=True)
class _Leaf:
    """One array of an action, an observation or a reward.

    Args:
        dtype: of the values.
        shape: of one value.
        kind: as in `tmrl_core.samples.columns.Kind`.
    """

    dtype: np.dtype
    shape: tuple[int, ...]
    kind: str

    @property
    def width(self) -> int:
        """Number of elements of one value."""
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def batch_dtype(self) -> np.dtype:
        """Dtype in batches: Python's floats, and NumPy's scalars that are such, become float32."""
        is_float = self.kind == "float" or (not self.kind and not self.shape and self.dtype == np.float64)
        return np.dtype(np.float32) if is_float else self.dtype


def _columns(tree: Tree, kinds: Iterator[str], path: Path = ()) -> Iterator[tuple[Path, _Leaf, Array]]:
    """Yield path, leaf and values of each column. Indices in tuples are tuples, which no key is.

    Raises:
        _MisfitError: a column is no array of numbers, or a container is empty.
    """
    if isinstance(tree, tuple | dict):
        items = [(key, item) for key, item in tree.items()] if isinstance(tree, dict) else enumerate(tree)
        if not tree:
            raise _MisfitError
        for key, item in items:
            yield from _columns(item, kinds, (*path, key if isinstance(tree, dict) else (key,)))
    elif (
        isinstance(tree, np.ndarray) and tree.dtype.kind in "biuf" and tree.dtype.isnative and tree.dtype.str in DTYPES
    ):
        yield path, _Leaf(tree.dtype, tree.shape[1:], next(kinds, "")), tree
    else:
        raise _MisfitError


def _paths(template: Tree, path: Path = ()) -> dict[Path, int]:
    if isinstance(template, dict):
        return {p: i for key, item in template.items() for p, i in _paths(item, (*path, key)).items()}
    if isinstance(template, tuple):
        return {p: i for key, item in enumerate(template) for p, i in _paths(item, (*path, (key,))).items()}
    return {path: template}


class _Values:
    """One field of all samples, oldest first, as a sequence of values."""

    def __init__(self, columns: SampleColumns, field: int) -> None:
        self._columns, self._field = columns, field

    def __len__(self) -> int:
        return len(self._columns)

    def __getitem__(self, item: int | slice) -> Tree:
        if isinstance(item, slice):
            return [self[i] for i in range(*item.indices(len(self)))]
        at = operator.index(item)
        at += len(self) if at < 0 else 0
        if not 0 <= at < len(self):
            raise IndexError(f"sample {item} of {len(self)}")
        return self._columns.value(self._field, self._columns.first + at)

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
    type_version = 1

    def __init__(self, memory_size: int) -> None:
        self.memory_size = memory_size
        self.first = 0
        self.written = 0
        self.infos: dict[int, dict[Any, Any]] = {}
        self._capacity = memory_size + memory_size // 16
        self._templates: list[Tree] = [None, None, None]
        """Action, observation and reward with numbers of leaves; None: not known yet."""
        self._known: list[dict[Path, int]] = [{}, {}, {}]
        self._leaves: list[_Leaf] = []
        # Flags (terminated, truncated, with an action), number of the sample before, then the leaves.
        self._rings: list[Array] = [np.empty((0, 1), dtype) for dtype in (bool, bool, bool, np.int64)]
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
        found: Array = self._rings[_FLAGS][self._places(self.transitions), 0]
        return found

    def __getitem__(self, field: int) -> _Values:
        """Return a field of all samples: 0 action, 1 observation, 2 reward, 3 terminated, 4 truncated, 5 info."""
        return _Values(self, range(_FIELDS)[field])

    def __iter__(self) -> Iterator[_Values]:
        """Yield the six fields."""
        return map(self.__getitem__, range(_FIELDS))

    def value(self, field: int, number: int) -> Tree:
        """Return one value of a sample, as it was appended."""
        place = number % len(self._rings[0])
        if field == 5:
            return self.infos.get(number, {})
        if field in (3, 4):
            return bool(self._rings[field - 3][place, 0])
        if field == 0 and not self._rings[2][place, 0]:
            return None
        return map_leaves(lambda leaf: self._leaf_value(leaf, place), self._templates[field])

    def _leaf_value(self, number: int, place: int) -> Tree:
        leaf, row = self._leaves[number], self._rings[_FLAGS + 1 + number][place]
        if leaf.shape:
            return row.reshape(leaf.shape).copy()
        if leaf.kind == "0-d":
            return row.reshape(()).copy()
        return _PYTHON[leaf.kind](row[0]) if leaf.kind else row[0]

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
        try:
            has_action = bool(chunk.action_present.any())
            fields = [
                list(_columns(chunk.action, kinds)) if has_action or chunk.action != () else [],
                list(_columns(chunk.observation, kinds)),
                list(_columns(chunk.reward, kinds)),
            ]
        except _MisfitError:
            return False
        new = [columns if columns and self._templates[i] is None else [] for i, columns in enumerate(fields)]
        for known, columns, added in zip(self._known, fields, new, strict=True):
            if columns and not added:
                found = {path: leaf for path, leaf, _ in columns}
                if found != {path: self._leaves[i] for path, i in known.items()}:
                    return False
        for i, (columns, tree) in enumerate(zip(new, (chunk.action, chunk.observation, chunk.reward), strict=True)):
            if columns:
                self._learn(i, tree, [leaf for _, leaf, _ in columns])
        skipped = max(0, chunk.rows - self._capacity)
        start = self.written + skipped
        self._reserve(chunk.rows - skipped)
        previous = np.where(follows, before, -1)
        flags = (chunk.terminated, chunk.truncated, chunk.action_present, previous)
        for ring, values in zip(self._rings, flags, strict=False):
            _put(ring, start, values[skipped:])
        for known, columns in zip(self._known, fields, strict=True):
            for path, _, values in columns:
                _put(self._rings[_FLAGS + 1 + known[path]], start, values[skipped:])
        self.infos.update({self.written + row: info for row, info in chunk.info.items() if info})
        self._add_items(self.written + np.flatnonzero(follows))
        self.written += chunk.rows
        if len(self) > self._capacity:
            self.drop(self.written - self._capacity)
        return True

    def _learn(self, field: int, tree: Tree, leaves: Sequence[_Leaf]) -> None:
        numbers = iter(range(len(self._leaves), len(self._leaves) + len(leaves)))
        self._templates[field] = map_leaves(lambda _: next(numbers), tree)
        self._known[field] = _paths(self._templates[field])
        self._leaves += leaves
        length = len(self._rings[0])
        self._rings += [np.zeros((length, leaf.width), leaf.dtype) for leaf in leaves]

    def _add_items(self, numbers: Array) -> None:
        count = self._count + len(numbers)
        if count > len(self._items):
            self._items = np.resize(self._items, max(_FIRST_ROWS, 2 * count))
        self._items[self._count : count] = numbers
        self._count = count

    def _reserve(self, count: int) -> None:
        """Make room for rows, or wait for the reader of those that will be overwritten."""
        length, needed = len(self._rings[0]), min(len(self) + count, self._capacity)
        if needed <= length:
            if self._lease is not None:
                self._lease.wait_until_free(self.written + count - length)
            return
        held = self.rows(self.first, self.written)
        self._lease = None  # its reader has the rings of now
        self._allocate(min(self._capacity, max(_FIRST_ROWS, 2 * length, needed)), held)

    def _allocate(self, length: int, held: Sequence[Array]) -> None:
        self._rings = [np.zeros((length, ring.shape[1]), ring.dtype) for ring in self._rings]
        for ring, values in zip(self._rings, held, strict=True):
            _put(ring, self.written - len(values), values)

    def rows(self, start: int, stop: int) -> list[Array]:
        """Return copies of the rows [start, stop) of each ring."""
        places = self._places(np.arange(start, stop)) if stop > start else np.empty(0, np.int64)
        return [ring[places] for ring in self._rings]

    def _places(self, numbers: Array) -> Array:
        places: Array = numbers % max(1, len(self._rings[0]))
        return places

    def drop(self, first: int) -> None:
        """Drop the samples before `first`, and the transitions that they begin or end."""
        items = self.transitions[np.searchsorted(self.transitions, first) :]
        previous = self._rings[_FLAGS][self._places(items), 0]
        kept = items[previous >= first]
        self._count = len(kept)
        self._items[: self._count] = kept
        for number in [number for number in self.infos if number < first]:
            del self.infos[number]
        self.first = first

    def batch(self, items: Array, device: Device) -> Batch:
        """Return the transitions of some items, as they are collated row by row."""
        now = self._items[items]
        places = self._places(now)
        before = self._places(self._rings[_FLAGS].take(places))
        action, observation, reward = self._templates

        def gather(template: Tree, at: Array, dtype: np.dtype | None = None) -> Tree:
            def tensor(number: int) -> torch.Tensor:
                leaf = self._leaves[number]
                values = self._rings[_FLAGS + 1 + number].take(at, axis=0)
                return _tensor(values.reshape(len(at), *leaf.shape), dtype or leaf.batch_dtype, device)

            return map_leaves(tensor, template)

        float32 = np.dtype(np.float32)
        return (
            gather(observation, before),
            gather(action, places),
            gather(reward, places, float32),
            gather(observation, places),
            _tensor(self._rings[0].take(places), float32, device),
            _tensor(self._rings[1].take(places), float32, device),
        )

    # --- checkpoints --------------------------------------------------------------------------------------------------

    @property
    def row_arrays(self) -> list[Array]:
        """The rings; empty before the first action, since they have no column of actions yet."""
        return self._rings if self._templates[0] is not None else []

    def lease_rows(self, start: int) -> RowLease:
        """Retain the rows from number `start` (or the oldest) until the lease is released."""
        self._lease = RowLease(max(start, self.first), self.written)
        return self._lease

    def state_dict(self) -> State:
        """Return the state without the rows."""
        return {
            "first": self.first,
            "written": self.written,
            "templates": list(self._templates),
            "leaves": [[leaf.dtype.str, list(leaf.shape), leaf.kind] for leaf in self._leaves],
            "infos": dict(self.infos),
            "early": [] if self.row_arrays else self.rows(self.first, self.written),
        }

    def load_state_dict(self, state: State, rows: Sequence[Array] = ()) -> None:
        """Load `state_dict()` and its rows, oldest first; fewer if older ones were lost.

        Raises:
            KeyError, TypeError, ValueError: the state is invalid, or the rows do not fit it.
        """
        leaves = [_leaf_of(*described) for described in state["leaves"]]
        templates = list(state["templates"])
        known = [{} if template is None else _paths(template) for template in templates]
        rows = rows or state["early"]
        dtypes = [*(ring.dtype for ring in self._rings[: _FLAGS + 1]), *(leaf.dtype for leaf in leaves)]
        widths = [1] * (_FLAGS + 1) + [leaf.width for leaf in leaves]
        found = [(values.dtype, values.shape) for values in rows]
        count = len(rows[0]) if rows else 0
        numbers = sorted(number for paths in known for number in paths.values())
        if (
            found != [(dtype, (count, width)) for dtype, width in zip(dtypes, widths, strict=True)]
            or len(templates) != 3
            or numbers != list(range(len(leaves)))
        ):
            raise ValueError(f"the rows of samples have the arrays {found:}, which do not fit the saved columns")
        count = min(count, self._capacity)
        self.written = int(state["written"])
        self.first = self.written - count
        self._leaves, self._templates, self._known = leaves, templates, known
        self._rings = [np.empty((0, width), dtype) for dtype, width in zip(dtypes, widths, strict=True)]
        self._lease = None
        self._allocate(max(count, min(_FIRST_ROWS, self._capacity)), [values[len(values) - count :] for values in rows])
        self.infos = {number: info for number, info in state["infos"].items() if number >= self.first}
        held = np.arange(self.first, self.written)
        self._items, self._count = np.empty(0, np.int64), 0
        self._add_items(held[self._rings[_FLAGS][self._places(held), 0] >= self.first])


def _leaf_of(dtype: str, shape: Sequence[int], kind: str) -> _Leaf:
    sizes = tuple(operator.index(size) for size in shape)
    if kind not in _KINDS or any(size < 0 for size in sizes):
        raise ValueError(f"a leaf of the kind {kind!r:.50} and the shape {sizes}")
    return _Leaf(DTYPES[dtype], sizes, kind)


def _put(ring: Array, start: int, values: Array) -> None:
    """Write rows to a ring, from number `start` on."""
    put_rows(ring, start, values.reshape(len(values), ring.shape[1]))


def _tensor(values: Array, dtype: np.dtype, device: Device) -> torch.Tensor:
    tensor = torch.from_numpy(values if values.dtype == dtype else values.astype(dtype))
    return tensor if device is None or str(device) == "cpu" else tensor.to(device)
