"""Store of experiences by key: columns of one length, of which a bounded number of rows stays."""

# Theory of operation
#
# A store keeps what agents have experienced until an algorithm learns from it. It knows nothing of agents, episodes or
# algorithms: rows are columns by key, and any key may be a weight to sample by.
#
# Rejected: the project's `ReplayMemory`. It makes transitions from neighbouring samples, while experiences come as
# complete rows with next states and discounts, so nothing is joined here, and scripts use this store without torch,
# with filters and updates by key. The sum tree of replay memories (`PrioritizedSampler`) would sample faster, at the
# cost of a second structure that follows every change: here the weights are summed for each batch, so the time grows
# with the rows. A `SequenceMemory` as a pool lacks the same two things.
#
# State. `_leaves` has one array for each leaf of the nested columns, by its path: `{"state": {"a": x}}` is stored at
# `("state", "a")`. Arrays grow by doubling up to the capacity, so a large capacity costs nothing before it is used.
# Rows 0 to `_size - 1` are in use; `_next` is the index of the next row once the store is full.
#
# Example with capacity 4 and "rolling": after six rows 0 1 2 3 4 5, the places hold 4 5 2 3, `_next` is 2, and
# `indices` is 2 3 0 1, the oldest first. Of ten rows in one `put`, the first six get the place -1 and are not stored.
#
# With "random", a row that is stored has the same chance to be replaced as any other, so old rows die out
# geometrically; within one `put` no new row replaces another one (`choice` without replacement).
#
# Order. `put` allocates and checks everything before it changes anything: refused rows, or arrays that cannot be
# allocated, leave the store as it was. Rows are addressed by index, and an index is valid until its row is overwritten.

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from tmrl_core.errors import ConfigError, SampleRefusedError
from tmrl_core.multiagent.trajectory import Columns
from tmrl_core.samples.supported_values import DTYPES
from tmrl_core.training.value_types import State

Array: TypeAlias = npt.NDArray[Any]
Overwrite: TypeAlias = Literal["rolling", "random"]
"""Rows that a full store replaces: the oldest, or random ones."""
Path: TypeAlias = tuple[str, ...]
"""Keys that lead to an array within nested columns."""


class SimpleStore:
    """A store of experiences as columns with a maximum number of rows.

    The first rows fix the keys, dtypes and shapes, and rows that differ are refused. Values keep their dtypes. A row
    has an index, 0 to `len(store) - 1`, which is valid until the row is overwritten. Arrays grow with the rows, by
    doubling, up to the capacity. A checkpoint holds all rows. One thread uses a store at a time.

    Args:
        capacity: maximum number of rows.
        overwrite: rows that a full store replaces. "random": each row that was stored before has the same chance.
        seed: seed of the generator that samples and overwrites; None: another one in each process.

    Attributes:
        rng: the generator.

    Raises:
        ConfigError: the capacity is not a positive integer, or the kind of overwriting is unknown.
    """

    type_id = "simple_store"
    type_version = 1

    def __init__(self, capacity: int = 100_000, overwrite: Overwrite = "rolling", *, seed: int | None = None) -> None:
        if type(capacity) is not int or capacity < 1:
            raise ConfigError(f"the capacity of a store must be an integer of at least 1, got {capacity!r:.100}")
        if overwrite not in ("rolling", "random"):
            raise ConfigError(f"overwrite must be 'rolling' or 'random', got {overwrite!r:.100}")
        self.capacity = capacity
        self.overwrite = overwrite
        self.rng = np.random.default_rng(seed)
        self._leaves: dict[Path, Array] = {}
        """Arrays of at least `_size` rows; empty before the first rows."""
        self._size = 0
        self._next = 0
        """Index of the next row, if the oldest rows are overwritten."""

    def seed(self, seed: int | np.random.SeedSequence) -> None:
        """Restart the generator."""
        self.rng = np.random.default_rng(seed)

    def __len__(self) -> int:
        """Return the number of rows."""
        return self._size

    @property
    def keys(self) -> list[str]:
        """Keys of the columns; empty before the first rows."""
        return list(dict.fromkeys(path[0] for path in self._leaves))

    @property
    def nbytes(self) -> int:
        """Size of the arrays in bytes."""
        return sum(leaf.nbytes for leaf in self._leaves.values())

    @property
    def indices(self) -> Array:
        """Indices of all rows [n] int64, the oldest first; with random overwriting, in no particular order."""
        order = np.arange(self._size)
        return np.roll(order, -self._next) if self._is_full and self.overwrite == "rolling" else order

    @property
    def _is_full(self) -> bool:
        return self._size == self.capacity

    def put(self, columns: Columns) -> Array:
        """Add rows. If there are more than fit, rows are overwritten.

        Of more rows than the capacity, the newest stay, or a random choice with random overwriting.

        Args:
            columns: one column for each key, all of the same length. The order of keys does not matter.

        Returns:
            [n] int64, the index of each row; -1 for a row that is not stored.

        Raises:
            SampleRefusedError: keys, dtypes or shapes differ from those stored, lengths differ from each other, or a
                value is not a numeric array. Nothing was added.
        """
        leaves = _leaves_of(columns)
        count = _length_of(leaves)
        self._check_layout(leaves, set(self._leaves) if self._leaves else set(leaves))
        if not count:
            return np.arange(0)
        places = self._places(count)
        stop = min(self.capacity, self._size + count)
        grown = {path: self._grown(path, leaf, stop) for path, leaf in leaves.items()}
        # The first rows decide the order of keys.
        self._leaves = {path: grown[path] for path in self._leaves or leaves}
        stored = places >= 0
        for path, leaf in leaves.items():
            self._leaves[path][places[stored]] = leaf[stored]
        self._size, self._next = stop, (self._next + count) % self.capacity
        return places

    def _places(self, count: int) -> Array:
        """Choose the index of each of `count` new rows; -1: the row is not stored."""
        if self.overwrite == "rolling":
            places = (self._next + np.arange(count)) % self.capacity
            places[: max(0, count - self.capacity)] = -1
            return places
        if count > self.capacity:
            places = np.full(count, -1)
            places[self.rng.permutation(count)[: self.capacity]] = np.arange(self.capacity)
            return places
        free = np.arange(self._size, min(self.capacity, self._size + count))
        return np.concatenate([free, self.rng.choice(self._size, count - len(free), replace=False)])

    def _grown(self, path: Path, leaf: Array, rows: int) -> Array:
        """Return the array of a column with room for a number of rows, and its present rows."""
        before = self._leaves.get(path, leaf[:0])
        if len(before) >= rows:
            return before
        room = min(self.capacity, max(rows, 2 * len(before)))
        try:
            grown: Array = np.empty((room, *leaf.shape[1:]), leaf.dtype)
        except (MemoryError, ValueError) as exc:  # ValueError: the size exceeds the address space
            needed = room * leaf[:1].nbytes / 1e9
            raise ConfigError(
                f"{room} rows of {'.'.join(path)!r} need {needed:.1f} GB, which cannot be allocated. Choose a capacity "
                f"below {self.capacity}."
            ) from exc
        grown[: self._size] = before[: self._size]
        return grown

    def get(self, indices: Sequence[int] | Array | None = None) -> Columns:
        """Return copies of rows.

        Args:
            indices: [n] indices of the rows, repeated ones too; None: all rows, in the order of `indices`.

        Raises:
            IndexError: there is no such row.
        """
        rows = self.indices if indices is None else self._valid(indices)
        return _nested({path: leaf[rows] for path, leaf in self._leaves.items()})

    def update(self, indices: Sequence[int] | Array, columns: Columns) -> None:
        """Replace values of rows.

        Args:
            indices: [n] indices of the rows; for repeated indices, the last value counts.
            columns: columns of length n, for some or all of the keys.

        Raises:
            IndexError: there is no such row.
            SampleRefusedError: as for `put`. Nothing was changed.
        """
        rows = self._valid(indices)
        leaves = _leaves_of(columns)
        if (count := _length_of(leaves)) != len(rows):
            raise SampleRefusedError(f"{count} values were given for {len(rows)} rows; give one value for each index.")
        self._check_layout(leaves, {path for path in self._leaves if path[0] in columns})
        for path, leaf in leaves.items():
            self._leaves[path][rows] = leaf

    def filter(self, *predicates: Callable[[Columns], Array]) -> Array:
        """Return the indices [n] int64 of the rows that pass all predicates.

        Args:
            predicates: called in turn with the columns of the rows that are left; each returns [rows] bool.

        Raises:
            ValueError: a predicate returned something else.
        """
        rows = self.indices
        for predicate in predicates:
            passed = np.asarray(predicate(self.get(rows)))
            if passed.dtype != bool or passed.shape != rows.shape:
                raise ValueError(
                    f"a predicate must return [{len(rows)}] bool, one value for each row; got "
                    f"{passed.dtype}{list(passed.shape)}."
                )
            rows = rows[passed]
        return rows

    def sample(
        self,
        size: int,
        weight: str | None = None,
        *,
        replace: bool = True,
        among: Sequence[int] | Array | None = None,
    ) -> tuple[Array, Columns]:
        """Sample rows.

        Args:
            size: number of rows.
            weight: key of the weights, a column [n] of numbers >= 0. The probability of a row is proportional to its
                weight; without replacement, that of each further row among those left. None: all are equal.
            replace: True: a row can be sampled repeatedly.
            among: indices of the rows to sample from, such as a result of `filter`; None: all rows.

        Returns:
            The indices [size] int64 of the rows, and their columns.

        Raises:
            IndexError: there is no such row.
            ValueError: there are no weights by this key, they are not finite, negative, or all 0; or there are too few
                rows (with a weight above 0) to sample from.

        The time grows with the number of weights. Source of sampling without replacement: Efraimidis & Spirakis,
        Weighted random sampling with a reservoir, Information Processing Letters 97 (2006).
        """
        if among is not None:
            among = self._valid(among)
        candidates = self._size if among is None else len(among)
        weights = None if weight is None else self._weights(weight, among)
        possible = candidates if weights is None or replace else int(np.count_nonzero(weights))
        if possible < (min(size, 1) if replace else size):
            kind = "" if weights is None else f" with a {weight!r} above 0"
            raise ValueError(
                f"{size} rows cannot be sampled {'' if replace else 'without replacement '}from {possible} rows{kind}. "
                "Store more experiences first, or sample fewer rows."
            )
        if weights is None:
            chosen = self.rng.integers(candidates, size=size) if replace else self.rng.choice(candidates, size, False)
        elif replace:
            sums = _running_sums(weights)
            chosen = np.searchsorted(sums, self.rng.random(size) * sums[-1], "right")
            if (beyond := chosen == len(sums)).any():  # by rounding
                chosen[beyond] = np.flatnonzero(weights)[-1]
        else:
            # The row of the least arrival time is a draw by weight, the next one a draw among the others, and so on.
            positive = np.flatnonzero(weights)
            with np.errstate(over="ignore"):  # a time that is infinite comes last
                arrival = self.rng.exponential(size=len(positive)) / weights[positive]
            chosen = positive[np.argsort(arrival)[:size]]
        rows = chosen if among is None else among[chosen]
        return rows, self.get(rows)

    def _weights(self, key: str, among: Array | None) -> Array:
        """Return the weights of some rows as float64."""
        column = self._leaves.get((key,))
        if column is None or column.ndim != 1:
            kind = "no such key" if key not in self.keys else "it is not a column of single numbers"
            raise ValueError(f"rows cannot be sampled by {key!r}: {kind}. The store has the keys {self.keys}.")
        weights = (column[: self._size] if among is None else column[among]).astype(np.float64, copy=False)
        if not len(weights):
            return weights
        highest = weights.max()  # NaN if there is one
        if not (weights.min() >= 0 and highest < np.inf):
            bad = np.count_nonzero(~(np.isfinite(weights) & (weights >= 0)))
            raise ValueError(
                f"rows cannot be sampled by {key!r}: {bad} of {len(weights)} weights are negative, NaN or infinite. "
                "Set them with `update`."
            )
        if highest == 0:
            raise ValueError(
                f"rows cannot be sampled by {key!r}: all {len(weights)} weights are 0. Set some with `update`."
            )
        return weights

    def highest(self, key: str) -> float:
        """Return the largest finite value of a column [n]; 0 if there is none."""
        column = self._leaves.get((key,), np.zeros(0))[: self._size]
        return float(column.max(initial=0, where=np.isfinite(column)))

    def clear(self) -> None:
        """Remove all rows. The layout stays."""
        self._leaves = {path: leaf[:0].copy() for path, leaf in self._leaves.items()}
        self._size = self._next = 0

    def _valid(self, indices: Sequence[int] | Array) -> Array:
        rows = np.asarray(indices)
        if not rows.size:
            rows = rows.astype(np.int64)
        if rows.ndim != 1 or rows.dtype.kind not in "iu":
            raise IndexError(f"indices must be a list of integers, got {rows.dtype}{list(rows.shape)}")
        if rows.size and (rows.min() < 0 or rows.max() >= self._size):
            raise IndexError(f"the store has {self._size} rows; got indices from {rows.min()} to {rows.max()}")
        return rows

    def _check_layout(self, leaves: Mapping[Path, Array], expected: set[Path]) -> None:
        """Refuse columns that differ from those stored, except for the number of rows."""
        differences = [
            *(f"the key {'.'.join(path)!r} is missing" for path in sorted(expected - set(leaves))),
            *(f"the key {'.'.join(path)!r} is unknown" for path in sorted(set(leaves) - expected)),
        ]
        for path, leaf in leaves.items():
            stored = self._leaves.get(path, leaf)
            if (leaf.dtype, leaf.shape[1:]) != (stored.dtype, stored.shape[1:]):
                differences.append(f"{'.'.join(path)!r} is {_shown(leaf)}, stored is {_shown(stored)}")
        if differences:
            raise SampleRefusedError(f"these experiences do not fit the store: {'; '.join(differences)}.")

    # --- checkpoints --------------------------------------------------------------------------------------------------

    def state_dict(self) -> State:
        """Return the state: all rows, and the generator."""
        return {
            "capacity": self.capacity,
            "overwrite": self.overwrite,
            "next": self._next,
            "columns": _nested({path: leaf[: self._size] for path, leaf in self._leaves.items()}),
            "generator": self.rng.bit_generator.state,
        }

    def load_state_dict(self, state: State) -> None:
        """Load the result of `state_dict`.

        Raises:
            ValueError: the store had another capacity or way of overwriting.
        """
        saved, present = (state["capacity"], state["overwrite"]), (self.capacity, self.overwrite)
        if saved != present:
            raise ValueError(f"the store had capacity {saved[0]} ({saved[1]}) and has {present[0]} ({present[1]}) now")
        leaves = _leaves_of(state["columns"]) if state["columns"] else {}
        self.rng.bit_generator.state = state["generator"]
        self._leaves = {path: leaf.copy() for path, leaf in leaves.items()}
        self._size = _length_of(leaves) if leaves else 0
        self._next = state["next"]


def _leaves_of(columns: Mapping[str, Any], path: Path = ()) -> dict[Path, Array]:
    """Return the arrays of nested columns by their paths.

    Raises:
        SampleRefusedError: a value is not a numeric array.
    """
    leaves: dict[Path, Array] = {}
    for key, column in columns.items():
        inner = (*path, key)
        if isinstance(column, Mapping):
            leaves.update(_leaves_of(column, inner))
        elif isinstance(column, np.ndarray) and column.ndim and column.dtype.str in DTYPES and column.dtype.kind != "c":
            leaves[inner] = column.astype(column.dtype.newbyteorder("="), copy=False)
        else:
            found = _shown(column) if isinstance(column, np.ndarray) else f"a {type(column).__name__}"
            raise SampleRefusedError(
                f"{'.'.join(inner)!r} is {found}; a store holds arrays [rows, ...] of bool, integers or floats."
            )
    return leaves


def _length_of(leaves: Mapping[Path, Array]) -> int:
    """Return the common length of columns.

    Raises:
        SampleRefusedError: there are no columns, or they differ in length.
    """
    lengths = {".".join(path): len(leaf) for path, leaf in leaves.items()}
    if len(set(lengths.values())) != 1:
        raise SampleRefusedError(f"experiences must be columns of the same length, got the lengths {lengths}.")
    return next(iter(lengths.values()))


def _running_sums(weights: Array) -> Array:
    with np.errstate(over="ignore"):
        sums = np.cumsum(weights)
    return sums if np.isfinite(sums[-1]) else np.cumsum(weights / weights.max())


def _nested(leaves: Mapping[Path, Array]) -> Columns:
    """Undo `_leaves_of`."""
    columns: dict[str, Any] = {}
    for path, leaf in leaves.items():
        inner = columns
        for key in path[:-1]:
            inner = inner.setdefault(key, {})
        inner[path[-1]] = leaf
    return columns


def _shown(array: Array) -> str:
    return f"{array.dtype}[{', '.join(['n', *map(str, array.shape[1:])])}]"
