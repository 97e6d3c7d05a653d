"""Writes samples into growing columns, one row after another.

Each field of a sample has a tree of nodes with a column at each leaf. A leaf's dtype, shape and kind come from the
first value; a row that does not fit makes `ChunkWriter.append` return False, and its owner goes on with a new chunk. A
row that fails half-way leaves nothing behind: what was written past `rows` is written over by the next row, and
conversions of a column (a Python 0.0 that becomes a float32) keep every value.

Python's own numbers are weak: they take a NumPy dtype where no value changes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from numpy import ndarray
from numpy.typing import NDArray

from tmrl_core.errors import CodecError
from tmrl_core.samples.columns import Array, Chunk, Kind, Tree
from tmrl_core.samples.records import Segment, Version
from tmrl_core.samples.values import DTYPES, MAX_DEPTH, UncarriableError, own, own_key

MAX_CHUNK_BYTES = 1024 * 1024
"""Columns stop growing here, so that no append has to copy more than this while the environment waits."""
MAX_CHUNK_ROWS = 65_536
FIRST_ROWS = 256
"""Rows that a first chunk has room for; later ones go by what the chunk before them held."""

_MIN_ROWS = 16
# A chunk that is cut after so few rows by an array's shape: the shape varies from step to step.
_RAGGED_ROWS = 16

_WEAK: dict[str, np.dtype[Any]] = {
    "bool": np.dtype(np.bool_),
    "int": np.dtype(np.int64),
    "float": np.dtype(np.float64),
}
_WEAK_RANK = {"bool": 0, "int": 1, "float": 2}


class _ArrayLeaf:
    """A column for values that one array can hold."""

    __slots__ = ("column", "dtype", "kind", "path", "ragged", "shape")

    def __init__(self, dtype: np.dtype[Any], shape: tuple[int, ...], kind: Kind, path: str, ragged: set[str]) -> None:
        self.dtype = dtype
        self.shape = shape
        self.kind = kind
        self.path = path
        self.ragged = ragged
        self.column: Array = np.empty((0, *shape), dtype)

    def row_bytes(self) -> int:
        return self.dtype.itemsize * math.prod(self.shape)

    def resize(self, rows: int, capacity: int) -> None:
        grown = np.empty((capacity, *self.shape), self.dtype)
        grown[:rows] = self.column[:rows]
        self.column = grown

    def fill_missing(self, start: int, stop: int) -> None:
        self.column[start:stop] = 0

    def write(self, value: Any, row: int) -> bool:
        kind = type(value)
        if kind is ndarray or kind is np.memmap:
            if value.shape:
                if value.shape == self.shape and value.dtype == self.dtype:
                    self.column[row] = value
                    return True
                if value.dtype == self.dtype and value.ndim == len(self.shape) and row < _RAGGED_ROWS:
                    self.ragged.add(self.path)
                return False
            return not self.shape and self._write_strong(value, row, "0-d")
        if self.shape:
            return False
        if isinstance(value, np.generic):
            return self._write_strong(value, row, "")
        weak = weak_kind(value)
        return weak is not None and self._write_weak(value, row, weak)

    def _write_strong(self, value: Any, row: int, kind: Kind) -> bool:
        """Write a value whose dtype counts; the rows so far may be weak and take its dtype."""
        if self.kind in _WEAK:
            if value.dtype.str not in DTYPES or not self._convert(value.dtype, row):
                return False
            self.kind = ""
        elif value.dtype != self.dtype:
            return False
        elif kind != self.kind:
            self.kind = ""
        self.column[row] = value
        return True

    def _write_weak(self, value: Any, row: int, kind: Kind) -> bool:
        if self.kind in _WEAK:
            if kind != self.kind:
                if _WEAK_RANK[kind] > _WEAK_RANK[self.kind]:
                    if not self._convert(_WEAK[kind], row):
                        return False
                    self.kind = kind
                elif not _same(value, _WEAK[self.kind].type(value)):
                    return False
            self.column[row] = value
            return True
        with np.errstate(all="ignore"):
            try:
                cast = np.array(value, _WEAK[kind]).astype(self.dtype)
            except (OverflowError, ValueError):
                return False
        if not _same(value, cast[()]):
            return False
        self.kind = ""
        self.column[row] = cast
        return True

    def _convert(self, dtype: np.dtype[Any], rows: int) -> bool:
        with np.errstate(all="ignore"):
            cast = self.column[:rows].astype(dtype)
        # Python compares its numbers exactly, NumPy converts them first.
        if not all(map(_same, self.column[:rows].tolist(), cast.tolist())):
            return False
        column: Array = np.empty(len(self.column), dtype)
        column[:rows] = cast
        self.column, self.dtype = column, dtype
        return True

    def finish(self, rows: int, kinds: list[Kind]) -> Tree:
        kinds.append(self.kind)
        return self.column[:rows]


class _ListLeaf:
    """A column for any other values."""

    __slots__ = ("path", "values")

    def __init__(self, path: str) -> None:
        self.path = path
        self.values: list[Any] = []

    def row_bytes(self) -> int:
        return 8

    def resize(self, rows: int, capacity: int) -> None:
        pass

    def fill_missing(self, start: int, stop: int) -> None:
        self.values[start:] = [None] * (stop - start)

    def write(self, value: Any, row: int) -> bool:
        self.values[row:] = [own(value, self.path)]
        return True

    def finish(self, rows: int, kinds: list[Kind]) -> Tree:
        kinds.append("")
        return self.values[:rows]


class _TupleNode:
    __slots__ = ("children",)

    def __init__(self, children: list[_Node]) -> None:
        self.children = children

    def write(self, value: Any, row: int) -> bool:
        if not isinstance(value, tuple) or len(value) != len(self.children):
            return False
        return _write_all(self.children, value, row)

    def finish(self, rows: int, kinds: list[Kind]) -> Tree:
        return tuple([child.finish(rows, kinds) for child in self.children])


class _DictNode:
    __slots__ = ("children", "keys")

    def __init__(self, keys: list[Any], children: list[_Node]) -> None:
        self.keys = keys
        self.children = children

    def write(self, value: Any, row: int) -> bool:
        if not isinstance(value, dict) or list(value) != self.keys:
            return False
        return _write_all(self.children, value.values(), row)

    def finish(self, rows: int, kinds: list[Kind]) -> Tree:
        return {key: child.finish(rows, kinds) for key, child in zip(self.keys, self.children, strict=True)}


_Leaf = _ArrayLeaf | _ListLeaf
_Node = _ArrayLeaf | _ListLeaf | _TupleNode | _DictNode


class _Other:
    """The type of nothing."""


class ChunkWriter:
    """Columns for the samples from `first` on.

    Args:
        observation, reward, extras: fields of the first sample, which has to be appended too.
        ragged: paths of leaves whose shapes vary; they become lists. The writer adds what it finds.
        rows_hint: how many rows to expect.

    Raises:
        CodecError: a field holds something that cannot be carried.
    """

    __slots__ = (
        "_action",
        "_action_column",
        "_action_dtype",
        "_action_shape",
        "_extras",
        "_flat",
        "_info",
        "_missing",
        "_observation",
        "_observation_column",
        "_observation_dtype",
        "_observation_shape",
        "_ragged",
        "_reward",
        "_reward_column",
        "_reward_type",
        "_runs",
        "_terminated",
        "_truncated",
        "capacity",
        "rows",
    )

    def __init__(
        self, observation: Any, reward: Any, extras: dict[str, Any] | None, ragged: set[str], rows_hint: int
    ) -> None:
        self.rows = 0
        self._ragged = ragged
        self._action: _Node | None = None
        self._observation = _plan(observation, "observation", ragged)
        self._reward = _plan_reward(reward)
        self._extras = {name: _plan(value, f"extras[{name!r}]", ragged) for name, value in (extras or {}).items()}
        self._info: dict[int, dict[Any, Any]] = {}
        # Rows, since these are rare: flags become columns when the chunk is finished.
        self._missing: list[int] = []
        self._terminated: list[int] = []
        self._truncated: list[int] = []
        self._runs: list[tuple[int, int, int, Version]] = []
        self.capacity = min(max(rows_hint, _MIN_ROWS), self._most_rows())
        self._resize()

    def begin_run(self, episode: int, first_step: int, version: Version) -> None:
        """Say whose rows follow."""
        self._runs.append((self.rows, episode, first_step, version))

    def append(
        self,
        action: Any,
        observation: Any,
        reward: Any,
        terminated: Any,
        truncated: Any,
        info: Any,
        extras: dict[str, Any] | None,
    ) -> bool:
        """Write one row; return False, with nothing changed, if it does not fit this chunk.

        Raises:
            CodecError: a field holds something that cannot be carried.
        """
        row = self.rows
        if row == self.capacity and not self._grow():
            return False
        if (
            # The common case, in which one row's writes are all that happens. Everything else is below.
            self._flat
            and type(observation) is ndarray
            and observation.dtype is self._observation_dtype
            and observation.shape == self._observation_shape
            and type(action) is ndarray
            and action.dtype is self._action_dtype
            and action.shape == self._action_shape
            and type(reward) is self._reward_type
            and not extras
        ):
            self._observation_column[row] = observation
            self._action_column[row] = action
            self._reward_column[row] = reward
        elif not self._append_any(action, observation, reward, extras):
            return False
        # What can raise comes before anything that is kept by row.
        owned = _own_info(info) if info else None
        if terminated or truncated:
            terminated, truncated = bool(terminated), bool(truncated)
            if terminated:
                self._terminated.append(row)
            if truncated:
                self._truncated.append(row)
        if owned:
            self._info[row] = owned
        if action is None:
            self._missing.append(row)
        self.rows = row + 1
        return True

    def _append_any(self, action: Any, observation: Any, reward: Any, extras: dict[str, Any] | None) -> bool:
        row = self.rows
        if self._extras or extras:
            extras = extras or {}
            if list(extras) != list(self._extras):
                return False
            if not _write_all(self._extras.values(), extras.values(), row):
                return False
        if not _write_all((self._observation, self._reward), (observation, reward), row):
            return False
        if action is None:
            for leaf in _leaves(self._action):
                leaf.fill_missing(row, row + 1)
        else:
            if self._action is None:
                self._action = _plan(action, "action", self._ragged)
                for leaf in _leaves(self._action):
                    leaf.resize(0, self.capacity)
                    leaf.fill_missing(0, row)
            if not self._action.write(action, row):
                return False
        self._find_flat()
        return True

    def _grow(self) -> bool:
        most = self._most_rows()
        if self.capacity >= most:
            return False
        self.capacity = min(2 * self.capacity, most)
        self._resize()
        return True

    def _most_rows(self) -> int:
        row_bytes = sum(leaf.row_bytes() for leaf in self._all_leaves())
        return max(1, min(MAX_CHUNK_ROWS, MAX_CHUNK_BYTES // max(1, row_bytes)))

    def _resize(self) -> None:
        for leaf in self._all_leaves():
            leaf.resize(self.rows, self.capacity)
        self._find_flat()

    def _all_leaves(self) -> Iterator[_Leaf]:
        for node in (self._action, self._observation, self._reward, *self._extras.values()):
            yield from _leaves(node)

    def _find_flat(self) -> None:
        """Look whether the columns allow the short way through `append`."""
        action, observation, reward = self._action, self._observation, self._reward
        self._flat = False
        if isinstance(action, _ArrayLeaf) and isinstance(observation, _ArrayLeaf) and not self._extras:
            self._flat = bool(action.shape and observation.shape and not reward.shape)
            self._action_column, self._action_dtype, self._action_shape = action.column, action.dtype, action.shape
            self._observation_column = observation.column
            self._observation_dtype, self._observation_shape = observation.dtype, observation.shape
            self._reward_column = reward.column
            # A NumPy scalar's type says its dtype, a weak column takes its own Python type as it is.
            # The others go the long way: an integer may be too large.
            self._reward_type: type = {"": reward.dtype.type, "float": float}.get(reward.kind, _Other)

    def view(self) -> Chunk:
        """Return what is here so far; later rows do not touch it."""
        rows = self.rows
        present = np.ones(rows, np.bool_)
        present[self._missing] = False
        kinds: list[Kind] = []
        action: Tree = () if self._action is None else self._action.finish(rows, kinds)
        observation = self._observation.finish(rows, kinds)
        reward = self._reward.finish(rows, kinds)
        assert isinstance(reward, ndarray)
        extras = {name: node.finish(rows, kinds) for name, node in self._extras.items()}
        return Chunk(
            rows=rows,
            action=action,
            action_present=present,
            observation=observation,
            reward=reward,
            terminated=_flags(self._terminated, rows),
            truncated=_flags(self._truncated, rows),
            info=dict(self._info),
            extras=extras,
            segments=tuple(self._segments()),
            kinds=tuple(kinds) if any(kinds) else (),
        )

    def _segments(self) -> Iterator[Segment]:
        ends = [run[0] for run in self._runs[1:]] + [self.rows]
        for (start, episode, first_step, version), end in zip(self._runs, ends, strict=True):
            if end > start:
                yield Segment(end - start, episode, first_step, *version)


def _write_all(nodes: Iterable[_Node], values: Iterable[Any], row: int) -> bool:
    # Each is asked, also after one that refuses, so that every shape that varies is found at once.
    written = [node.write(value, row) for node, value in zip(nodes, values, strict=True)]
    return all(written)


def weak_kind(value: Any) -> Kind | None:
    """Return the kind of a Python number that a column can hold, else None."""
    kind = type(value)
    if kind is float:
        return "float"
    if kind is bool:
        return "bool"
    if isinstance(value, int):
        return "int" if -(2**63) <= value < 2**63 else None
    return "float" if isinstance(value, float) else None


def _plan(value: Any, name: str, ragged: set[str]) -> _Node:
    """Return nodes for values like this one."""
    try:
        return _plan_node(value, name, ragged, 0)
    except UncarriableError as error:
        raise error.named(name) from None


def _plan_node(value: Any, path: str, ragged: set[str], depth: int) -> _Node:
    if isinstance(value, (tuple, dict)):
        if depth >= MAX_DEPTH:
            raise CodecError(f"{path} is nested deeper than {MAX_DEPTH} levels, which the codec cannot carry.")
        keys = [own_key(key) for key in value] if isinstance(value, dict) else list(range(len(value)))
        items = value.values() if isinstance(value, dict) else value
        children = [
            _plan_node(item, f"{path}[{key!r}]", ragged, depth + 1) for key, item in zip(keys, items, strict=True)
        ]
        return _DictNode(keys, children) if isinstance(value, dict) else _TupleNode(children)
    if path in ragged:
        return _ListLeaf(path)
    if type(value) in (ndarray, np.memmap) and value.dtype.str in DTYPES:
        return _ArrayLeaf(value.dtype, value.shape, "" if value.shape else "0-d", path, ragged)
    if isinstance(value, np.generic) and value.dtype.str in DTYPES:
        return _ArrayLeaf(value.dtype, (), "", path, ragged)
    # Whether this is something that a list holds, or nothing that can be carried, shows when it is written.
    kind = weak_kind(value)
    return _ListLeaf(path) if kind is None else _ArrayLeaf(_WEAK[kind], (), kind, path, ragged)


def _plan_reward(reward: Any) -> _ArrayLeaf:
    node = _plan(reward, "reward", set())
    if not isinstance(node, _ArrayLeaf):
        raise CodecError(
            f"reward is a {type(reward).__name__} that no column can hold. A reward is a number (an integer of at most "
            "64 bits) or an array."
        )
    return node


def _leaves(node: _Node | None) -> Iterator[_Leaf]:
    if isinstance(node, (_TupleNode, _DictNode)):
        for child in node.children:
            yield from _leaves(child)
    elif node is not None:
        yield node


def _own_info(info: Any) -> dict[Any, Any]:
    if not isinstance(info, dict):
        raise CodecError(f"info is a {type(info).__name__}, and has to be a dict.")
    owned: dict[Any, Any] = own(info, "info")
    return owned


def _flags(rows_set: list[int], rows: int) -> NDArray[np.bool_]:
    flags = np.zeros(rows, np.bool_)
    flags[rows_set] = True
    return flags


def _same(value: Any, cast: Any) -> bool:
    """Whether a Python number and what a cast made of it are the same, the sign of a zero included."""
    if value != value:
        return bool(cast != cast)
    if isinstance(cast, np.generic):
        cast = cast.item()
    if value == 0 and isinstance(value, float) and math.copysign(1.0, value) < 0:
        return isinstance(cast, float) and cast == 0 and math.copysign(1.0, cast) < 0
    return bool(value == cast)
