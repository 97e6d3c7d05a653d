"""Columns that grow row by row, in the structure of one field of a sample.

A leaf's dtype, shape and kind come from the first value. `write` returns False for a value that does not fit. The next
write overwrites the row of a failed one, and conversions of a column (a Python 0.0 that becomes a float32) keep every
value.

A column of Python numbers takes a NumPy dtype if no value changes.
"""

# Theory of operation
#
# A field of a sample is a tree: tuples and dicts as branches, one column a leaf. The first value plans the tree; each
# later one is written into it, or does not fit and ends the chunk.
#
# Why numbers are hard: Python's numbers have no dtype, and environments mix them. An episode may give the rewards 0
# (int), 0.5 (float), np.float32(1). A column has one dtype, and no value may change. So a column of Python numbers is
# *weak* (`kind` "int", "float", "bool"), and takes the dtype of the first NumPy value if all earlier numbers survive
# the cast bit by bit; the sign of zero and NaN included:
#
#     column           value              result
#     0, 1 (int)       0.5                float64: 0.0, 1.0, 0.5
#     0.0, 0.5 (float) np.float32(1)      float32, strong from now on
#     0.1 (float)      np.float32(1)      does not fit: 0.1 is no float32
#     2**53 + 1 (int)  0.5                does not fit: no float64 has that value
#     float32, strong  0.25               fits; 0.1 would not
#
# `kind` remembers what a row has to become again, since a float32 scalar and a Python float are different values for a
# reader. If kinds mix, "" (a NumPy scalar) is right for all of them.
#
# A leaf whose shape varies (a list of visible objects) would end a chunk with each row. If the second shape comes
# within 16 rows, the path counts as *ragged*, and the next chunk has a list in its place: slower, but one chunk. Later
# than that, the shape has probably changed once and for all (another camera mode), and a new chunk is right. The set of
# ragged paths belongs to the Buffer, so each is found once.
#
# `write_all` writes every leaf even after one has failed, so that all ragged ones are found at the first attempt; the
# row counts only if all have fitted.

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from numpy import ndarray

from tmrl_core.errors import CodecError
from tmrl_core.samples.columns import Array, Kind, Tree
from tmrl_core.samples.supported_values import DTYPES, MAX_DEPTH, UncarriableError, own_key
from tmrl_core.samples.values import own

# If an array's shape ends a chunk after at most this number of rows, the shape counts as varying.
_RAGGED_ROWS = 16

_WEAK: dict[str, np.dtype[Any]] = {
    "bool": np.dtype(np.bool_),
    "int": np.dtype(np.int64),
    "float": np.dtype(np.float64),
}
_WEAK_RANK = {"bool": 0, "int": 1, "float": 2}


class ArrayLeaf:
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
        """Return the bytes of one row."""
        return self.dtype.itemsize * math.prod(self.shape)

    def resize(self, rows: int, capacity: int) -> None:
        """Allocate space for `capacity` rows. The first `rows` stay."""
        grown = np.empty((capacity, *self.shape), self.dtype)
        grown[:rows] = self.column[:rows]
        self.column = grown

    def fill_missing(self, start: int, stop: int) -> None:
        """Write the placeholder of missing values into rows `start` to `stop` (exclusive)."""
        self.column[start:stop] = 0

    def write(self, value: Any, row: int) -> bool:
        """Write one row; return False if the value does not fit the column."""
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
        """Write a NumPy value, whose dtype counts. Earlier Python numbers may take its dtype."""
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
            cast = np.array(value, _WEAK[kind]).astype(self.dtype)
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
        """Return the first `rows` rows, which later writes do not change; append the kinds of the leaves to `kinds`."""
        kinds.append(self.kind)
        return self.column[:rows]


class ListLeaf:
    """A column for any other values."""

    __slots__ = ("path", "values")

    def __init__(self, path: str) -> None:
        self.path = path
        self.values: list[Any] = []

    def row_bytes(self) -> int:
        """Return the bytes of one row."""
        return 8

    def resize(self, rows: int, capacity: int) -> None:
        """Do nothing: a list grows by itself."""

    def fill_missing(self, start: int, stop: int) -> None:
        """Write the placeholder of missing values into rows `start` to `stop` (exclusive)."""
        self.values[start:] = [None] * (stop - start)

    def write(self, value: Any, row: int) -> bool:
        """Write one row; a list accepts every type that the codec supports.

        Raises:
            CodecError: the value's type is not supported.
        """
        self.values[row:] = [own(value, self.path)]
        return True

    def finish(self, rows: int, kinds: list[Kind]) -> Tree:
        """Return the first `rows` rows, which later writes do not change; append the kinds of the leaves to `kinds`."""
        kinds.append("")
        return self.values[:rows]


class Branch:
    """Node of a tuple or a dict of fields; `keys` are those of the dict, or None."""

    __slots__ = ("children", "keys")

    def __init__(self, keys: list[Any] | None, children: list[Node]) -> None:
        self.keys = keys
        self.children = children

    def write(self, value: Any, row: int) -> bool:
        """Write one row; return False if the value does not fit the structure or a column."""
        if self.keys is None:
            fits = isinstance(value, tuple) and len(value) == len(self.children)
            return fits and write_all(self.children, value, row)
        return isinstance(value, dict) and list(value) == self.keys and write_all(self.children, value.values(), row)

    def finish(self, rows: int, kinds: list[Kind]) -> Tree:
        """Return the first `rows` rows, which later writes do not change; append the kinds of the leaves to `kinds`."""
        finished = [child.finish(rows, kinds) for child in self.children]
        return tuple(finished) if self.keys is None else dict(zip(self.keys, finished, strict=True))


Leaf = ArrayLeaf | ListLeaf
Node = ArrayLeaf | ListLeaf | Branch


def write_all(nodes: Iterable[Node], values: Iterable[Any], row: int) -> bool:
    """Write one row into several nodes. Return True if all values fit.

    All nodes are written even after a failure, so that every varying shape is found at the first attempt.
    """
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


def plan(value: Any, name: str, ragged: set[str]) -> Node:
    """Return nodes for values like this one.

    Args:
        value: a field of the first sample.
        name: name of the field, for messages and paths.
        ragged: paths of leaves whose shapes vary, which become lists. Leaves add their own.

    Raises:
        CodecError: the structure is not supported.
    """
    try:
        return _plan_node(value, name, ragged, 0)
    except UncarriableError as error:
        raise error.named(name) from None


def _plan_node(value: Any, path: str, ragged: set[str], depth: int) -> Node:
    if isinstance(value, (tuple, dict)):
        if depth >= MAX_DEPTH:
            raise CodecError(f"{path} is nested deeper than {MAX_DEPTH} levels, which the codec cannot carry.")
        keys = [own_key(key) for key in value] if isinstance(value, dict) else list(range(len(value)))
        items = value.values() if isinstance(value, dict) else value
        children = [
            _plan_node(item, f"{path}[{key!r}]", ragged, depth + 1) for key, item in zip(keys, items, strict=True)
        ]
        return Branch(keys if isinstance(value, dict) else None, children)
    if path in ragged:
        return ListLeaf(path)
    if type(value) in (ndarray, np.memmap) and value.dtype.str in DTYPES:
        return ArrayLeaf(value.dtype, value.shape, "" if value.shape else "0-d", path, ragged)
    if isinstance(value, np.generic) and value.dtype.str in DTYPES:
        return ArrayLeaf(value.dtype, (), "", path, ragged)
    # The first write checks that a list can hold the value.
    kind = weak_kind(value)
    return ListLeaf(path) if kind is None else ArrayLeaf(_WEAK[kind], (), kind, path, ragged)


def leaves_of(node: Node | None) -> Iterator[Leaf]:
    """Yield the columns of a node, depth first."""
    if isinstance(node, Branch):
        for child in node.children:
            yield from leaves_of(child)
    elif node is not None:
        yield node


def _same(value: Any, cast: Any) -> bool:
    """Return True if a Python number equals the result of its cast, including the sign of a zero."""
    if value != value:
        return bool(cast != cast)
    if isinstance(cast, np.generic):
        cast = cast.item()
    if value == 0 and isinstance(value, float) and math.copysign(1.0, value) < 0:
        return isinstance(cast, float) and cast == 0 and math.copysign(1.0, cast) < 0
    return bool(value == cast)
