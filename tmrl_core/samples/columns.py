"""Runs of samples as columns.

A *chunk* is one homogeneous run of samples: every row has the same structure, dtypes and shapes. A *tree* is the value
of one field for all rows: the tuples and dicts of a single row's value are kept, and each leaf is a column. A column is
an array whose first axis is the row. If an array cannot hold the values exactly (text, None, varying shapes), it is a
list with one value per row.
"""

# Theory of operation
#
# A row of a chunk is (action, the observation after it, reward, flags, info), column by column. Row 0 of an episode is
# its reset, without an action (`action_present` False, zeros in the column). Neighbouring rows of one episode make a
# transition: (observation of row n, action of n + 1, reward of n + 1, observation of n + 1). Each observation is thus
# stored and sent once, in place of twice.
#
# Everything is a view where it can be: `slice` of arrays, not of the chunk's infos and segments, of which only the part
# is looked at. A thousand slices of a chunk with a thousand segments would otherwise look at a million
# (`MANY_SEGMENTS`). `where` and `last_row` copy, so that few rows do not keep a large message in memory.
#
# `kinds` restore what an array forgets: rows of a float64 column may have been Python floats, NumPy scalars or arrays
# without axes, and a reader gets back what was recorded.
#
# Lanes: a worker with several environments numbers its episodes so that their upper bits name the environment.
# `by_lane` makes one chunk for each, with a stream of its own, so that everything that joins neighbouring rows
# (transitions, n-step returns, sequences, stacks of frames, rounds) works as it does for a worker with one environment.

from __future__ import annotations

import copy
import itertools
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, compress
from operator import attrgetter, itemgetter
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from tmrl_core.errors import CodecError
from tmrl_core.samples.segments import MAX_LANES, Segment

Array = NDArray[Any]
Tree = Array | list[Any] | tuple["Tree", ...] | dict[Any, "Tree"]
"""Leaves: array [rows, *shape], or a list of `rows` values."""

Sample = tuple[Any, Any, Any, bool, bool, dict[Any, Any]]
"""(act, new_obs, rew, terminated, truncated, info): `act` is the action that led to `new_obs`."""

Kind = Literal["", "0-d", "float", "int", "bool"]
"""Kind of the rows of a one-dimensional column: "" NumPy scalars, "0-d" arrays without axes, else Python scalars.

Columns with more axes always have the kind ""."""

STREAM_ID_BYTES = 16
"""Size of the id of a worker's stream; that of one of its further lanes is longer."""
MANY_SEGMENTS = 16
"""Number of segments above which a chunk remembers where each one ends. Otherwise each slice would read all of them."""

_PYTHON_TYPES: dict[str, Callable[[Any], Any]] = {"float": float, "int": int, "bool": bool}


def leaves(tree: Tree) -> Iterator[Array | list[Any]]:
    """Yield the columns of a tree, depth first, in the order of its tuples and dicts."""
    if isinstance(tree, tuple):
        for child in tree:
            yield from leaves(child)
    elif isinstance(tree, dict):
        for child in tree.values():
            yield from leaves(child)
    else:
        yield tree


def map_leaves(function: Callable[[Any], Any], tree: Tree) -> Any:
    """Return the same structure with `function` applied to each column."""
    if isinstance(tree, tuple):
        return tuple(map_leaves(function, child) for child in tree)
    if isinstance(tree, dict):
        return {key: map_leaves(function, child) for key, child in tree.items()}
    return function(tree)


def join_trees(trees: Sequence[Any]) -> Any:
    """Return copies of trees of one structure, joined row by row."""
    first = trees[0]
    if isinstance(first, np.ndarray):
        # Without the dtype, NumPy would change the byte order to its own.
        return np.concatenate(trees, dtype=first.dtype)
    if isinstance(first, dict):
        return {key: join_trees([tree[key] for tree in trees]) for key in first}
    if isinstance(first, tuple):
        return tuple([join_trees(children) for children in zip(*trees, strict=True)])
    return [value for tree in trees for value in tree]


@dataclass(slots=True, kw_only=True, eq=False)
class Chunk:
    """One homogeneous run of samples as columns. Treat the arrays as read-only, because they may be shared views.

    Arrays from a received message may be unaligned.

    Args:
        rows: number of samples.
        action: the actions that led to the observations. A row without an action (`action_present` is False) has zeros,
            or None in a list. `()` if no row has an action.
        action_present: [rows] bool.
        observation: the new observations.
        reward: [rows, *shape]; in nearly every environment [rows].
        terminated: [rows] bool.
        truncated: [rows] bool.
        info: the non-empty infos, by row.
        extras: further columns by name (`logp`, recurrent state, ...).
        segments: runs of rows of one episode and version; their rows add up to `rows`.
        kinds: kind of the rows of each leaf, in the order of `fields`; `()` if all are "".
        stream: id of the chunk's stream, or of a lane of it (see `by_lane`), set on the trainer's side.
        origin: what stands for the credentials of the stream's worker, likewise; None: unknown.

    Attributes:
        finite: True: all numbers were found to be finite; set on the trainer's side. Parts and copies begin with False.
    """

    rows: int
    action: Tree
    action_present: NDArray[np.bool_]
    observation: Tree
    reward: Array
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    info: dict[int, dict[Any, Any]] = field(default_factory=dict)
    extras: dict[str, Tree] = field(default_factory=dict)
    segments: tuple[Segment, ...] = ()
    kinds: tuple[Kind, ...] = ()
    stream: bytes = b""
    origin: Hashable = None
    finite: bool = field(default=False, init=False, repr=False)
    _ends: tuple[tuple[Segment, ...], list[int]] | None = field(default=None, init=False, repr=False)
    """Segments, and the row after each of them; see `MANY_SEGMENTS`."""

    def __len__(self) -> int:
        """Return the number of samples."""
        return self.rows

    @property
    def fields(self) -> tuple[Tree, ...]:
        """Return the trees in canonical order: action, observation, reward, then the extras."""
        return (self.action, self.observation, self.reward, *self.extras.values())

    @property
    def nbytes(self) -> int:
        """Return the size of the samples in bytes: exact for arrays, estimated for other values."""
        size = 3 * self.rows + sum(map(tree_bytes, self.fields))
        return size + sum(map(_size_of, self.info.values())) if self.info else size

    @property
    def episode(self) -> NDArray[np.int64]:
        """Return the id of each row's episode: [rows]."""
        episodes = np.array([segment.episode for segment in self.segments], np.int64)
        return np.repeat(episodes, [segment.rows for segment in self.segments])

    @property
    def step(self) -> NDArray[np.int64]:
        """Return the step index of each row in its episode: [rows]; 0 is the reset."""
        lengths = np.array([segment.rows for segment in self.segments], np.int64)
        offsets = np.array([segment.first_step for segment in self.segments], np.int64) - (np.cumsum(lengths) - lengths)
        steps: NDArray[np.int64] = np.arange(self.rows, dtype=np.int64) + np.repeat(offsets, lengths)
        return steps

    @property
    def version(self) -> NDArray[np.int64]:
        """Return the policy version of each row: [rows, 2] incarnation, counter."""
        pairs = np.array([segment.version for segment in self.segments], np.int64).reshape(-1, 2)
        return np.repeat(pairs, [segment.rows for segment in self.segments], axis=0)

    def sample(self, row: int) -> Sample:
        """Return one sample; its arrays are views of the columns.

        Raises:
            IndexError: there is no such row.
        """
        if not 0 <= row < self.rows:
            raise IndexError(f"row {row} of a chunk of {self.rows} rows")
        kinds = iter(self.kinds)
        action = _row_of(self.action, row, kinds)
        return (
            action if self.action_present[row] else None,
            _row_of(self.observation, row, kinds),
            _row_of(self.reward, row, kinds),
            bool(self.terminated[row]),
            bool(self.truncated[row]),
            self.info.get(row, {}),
        )

    def slice(self, start: int, stop: int) -> Chunk:
        """Return rows `start` to `stop` (exclusive) as a chunk of views.

        The cost depends on the returned rows, not on the rows, segments and infos of this chunk.

        Raises:
            IndexError: the condition 0 <= start <= stop <= rows is violated.
        """
        if not 0 <= start <= stop <= self.rows:
            raise IndexError(f"rows {start} to {stop} of a chunk of {self.rows} rows")
        if start == 0 and stop == self.rows:
            return self

        info = self._infos_of(start, stop) if self.info else {}
        return self._mapped(
            itemgetter(slice(start, stop)), rows=stop - start, info=info, segments=self._segments_of(start, stop)
        )

    def _mapped(
        self,
        function: Callable[[Any], Any],
        *,
        rows: int,
        info: dict[int, dict[Any, Any]],
        segments: tuple[Segment, ...],
    ) -> Chunk:
        """Return a chunk with `function` applied to each column."""
        return Chunk(
            rows=rows,
            action=map_leaves(function, self.action),
            action_present=function(self.action_present),
            observation=map_leaves(function, self.observation),
            reward=function(self.reward),
            terminated=function(self.terminated),
            truncated=function(self.truncated),
            info=info,
            extras={name: map_leaves(function, tree) for name, tree in self.extras.items()},
            segments=segments,
            kinds=self.kinds,
            stream=self.stream,
            origin=self.origin,
        )

    def where(self, mask: NDArray[np.bool_]) -> Chunk:
        """Return copies of the rows where `mask` ([rows] bool) is True as one chunk."""
        flags: list[bool] = mask.tolist()

        def chosen(column: Any) -> Any:
            return column[mask] if isinstance(column, np.ndarray) else list(compress(column, flags))

        places = np.flatnonzero(mask)
        infos = self.info
        if infos:
            infos = {new: infos[old] for new, old in enumerate(places.tolist()) if old in infos}
        return self._mapped(chosen, rows=len(places), info=infos, segments=_segments_at(self.segments, places))

    def _infos_of(self, start: int, stop: int) -> dict[int, dict[Any, Any]]:
        infos = self.info
        if stop - start < len(infos):
            return {row - start: infos[row] for row in range(start, stop) if row in infos}
        return {row - start: info for row, info in infos.items() if start <= row < stop}

    def _segments_of(self, start: int, stop: int) -> tuple[Segment, ...]:
        segments = self.segments
        if len(segments) <= MANY_SEGMENTS:
            return cut_segments(segments, start, stop)
        if self._ends is None or self._ends[0] is not segments:
            self._ends = segments, list(accumulate([segment.rows for segment in segments]))
        ends = self._ends[1]
        first = bisect_right(ends, start)
        skipped = ends[first - 1] if first else 0
        return cut_segments(segments[first : bisect_left(ends, stop) + 1], start - skipped, stop - skipped)

    def last_row(self) -> Chunk:
        """Return a copy of the last row. A view would keep the whole chunk in memory."""
        last = self.slice(self.rows - 1, self.rows)
        return last._mapped(copy.copy, rows=1, info=last.info, segments=last.segments)


def cut_segments(segments: Sequence[Segment], start: int, stop: int) -> tuple[Segment, ...]:
    """Return the segments of rows `start` to `stop` (exclusive) of the rows that `segments` describe."""
    kept = []
    first = 0
    for segment in segments:
        low, high = max(first, start), min(first + segment.rows, stop)
        if low < high:
            skipped = low - first
            kept.append(
                Segment(high - low, segment.episode, segment.first_step + skipped, segment.incarnation, segment.counter)
            )
        first += segment.rows
    return tuple(kept)


def by_lane(chunk: Chunk, stream: bytes) -> list[Chunk]:
    """Return the parts of a worker's chunk, each of one lane (`Segment.lane`) and with an id of its own as its stream.

    Lane 0 has the id of the worker's stream, so that nothing changes for workers with one environment.

    Args:
        chunk: rows of any lanes in any order.
        stream: id of the worker's stream.

    Raises:
        CodecError: there are more than `MAX_LANES` lanes.
    """
    lanes = [segment.lane for segment in chunk.segments]
    found = dict.fromkeys(lanes)
    if len(found) > MAX_LANES:
        raise CodecError(f"rows of {len(found)} environments in a message; allowed: {MAX_LANES}")
    if len(found) == 1:  # as nearly always
        parts = [chunk]
    elif len([lane for lane, _ in itertools.groupby(lanes)]) == len(found):
        runs = itertools.groupby(chunk.segments, attrgetter("lane"))
        ends = [0, *accumulate(sum(segment.rows for segment in run) for _, run in runs)]
        parts = [chunk.slice(start, stop) for start, stop in itertools.pairwise(ends)]
    else:
        # Messages of several hand-overs, each of all lanes. One part a lane, because each part costs an insertion.
        of_row = np.repeat(lanes, [segment.rows for segment in chunk.segments])
        parts = [chunk.where(of_row == lane) for lane in found]
    for lane, part in zip(found, parts, strict=True):
        part.stream = stream + lane.to_bytes(3, "big") if lane else stream
    return parts


def worker_stream(stream: bytes) -> bytes:
    """Return the id of the worker's stream, given a `Chunk.stream`."""
    return stream[:STREAM_ID_BYTES]


def _segments_at(segments: Sequence[Segment], places: NDArray[np.intp]) -> tuple[Segment, ...]:
    """Return the segments of some of the rows that `segments` describe, in ascending order."""
    ends = np.cumsum(np.array([segment.rows for segment in segments], np.int64))
    owners = np.searchsorted(ends, places, side="right")
    begins = np.ones(len(places), np.bool_)
    begins[1:] = (np.diff(places) != 1) | (np.diff(owners) != 0)
    starts = np.flatnonzero(begins)
    kept = []
    for first, owner, rows in zip(
        places[starts].tolist(),
        owners[starts].tolist(),
        np.diff(starts, append=len(places)).tolist(),
        strict=True,
    ):
        segment = segments[owner]
        step = segment.first_step + first - int(ends[owner]) + segment.rows
        kept.append(Segment(rows, segment.episode, step, segment.incarnation, segment.counter))
    return tuple(kept)


def _row_of(tree: Any, row: int, kinds: Iterator[Kind]) -> Any:
    if isinstance(tree, tuple):
        return tuple([_row_of(child, row, kinds) for child in tree])
    if isinstance(tree, dict):
        return {key: _row_of(child, row, kinds) for key, child in tree.items()}
    kind = next(kinds, "")
    if not kind:
        return tree[row]
    if kind == "0-d":
        return tree[row, ...]
    return _PYTHON_TYPES[kind](tree[row])


def tree_bytes(tree: Tree) -> int:
    """Return the size of a tree's leaves, as `Chunk.nbytes` counts it."""
    if isinstance(tree, np.ndarray):
        return tree.nbytes
    if isinstance(tree, tuple):
        return sum(map(tree_bytes, tree))
    if isinstance(tree, dict):
        return sum(map(tree_bytes, tree.values()))
    return 8 * len(tree) + sum(map(_size_of, tree))


def _size_of(value: Any) -> int:
    if isinstance(value, np.ndarray):
        return 64 + value.nbytes
    if isinstance(value, (str, bytes)):
        return 48 + len(value)
    if isinstance(value, dict):
        return 64 + sum(map(_size_of, value)) + sum(map(_size_of, value.values()))
    if isinstance(value, (list, tuple)):
        return 56 + sum(map(_size_of, value))
    return 24
