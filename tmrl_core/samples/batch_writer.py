"""Writer of samples of several environments that are stepped together: one write for each step of all of them."""

# Theory of operation
#
# The writer knows neither environments nor policies: it is given batches, arrays [lanes, ...]. Its columns are arrays
# [lanes, slots, ...], and each step fills one slot. With two lanes (a, b), where b's episode ends at its second step:
#
#     slot          0       1       2           3            4
#     a             reset   step    step        step         step
#     b             reset   step    step, end   reset        step
#
# Environments that begin the next episode with the next step fill every slot. Of those that begin it at once, b's reset
# is a slot of its own between 2 and 3, in which a has no row; `_there` then says which lanes have a row in a slot.
#
# Rows of one lane have to follow each other, because neighbouring rows become transitions. `finish` therefore makes one
# chunk of all of a's rows, then all of b's. Lanes come first in the columns, so a full one is that already, without a
# copy. Ids of episodes say of which lane they are (`Segment.lane`), so that the trainer treats each lane as a stream of
# its own, and an episode goes on in the next chunk although rows of other lanes are between its parts.
#
# Unlike `ChunkWriter`, it takes arrays of one dtype and shape only, since batches are nothing else.
#
# Rejected: a Buffer for each lane (eight calls in place of one, which together cost more than a simple environment); a
# stream of the link for each (offsets, credit and messages of each); the lane as a column of the samples (other bytes
# on the wire for all workers, and each memory would have to sort the rows).

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from tmrl_core.errors import CodecError
from tmrl_core.samples.columns import Array, Chunk, Kind, Tree, leaves, map_leaves
from tmrl_core.samples.segments import Segment, Version
from tmrl_core.samples.supported_values import DTYPES
from tmrl_core.samples.writer import MAX_CHUNK_BYTES, MAX_CHUNK_ROWS, own_info

_EXTRA = "extras."
"""Prefix of the names of extras among those of columns."""


class Slot(NamedTuple):
    """Values that are written at once.

    Attributes:
        observation, action, reward: of all lanes, [lanes, ...]; an action that is None: there are resets only.
        terminated, truncated: likewise.
        ended: True: one of these flags is set.
        extras: likewise, by name.
        infos: those that are not empty, by lane.
        resets: [lanes] bool, the rows without an action, whose reward is 0; None: none.
        only: [lanes] bool, the rows that there are, which are resets; None: all.
    """

    observation: Tree
    action: Tree | None
    reward: Array
    terminated: Array
    truncated: Array
    ended: bool
    extras: Mapping[str, Array]
    infos: Mapping[int, dict[str, Any]]
    resets: Array | None = None
    only: Array | None = None


class BatchWriter:
    """Columns of one chunk of several lanes.

    Args:
        lanes: number of environments.
        left_out: see `ChunkWriter`.

    Attributes:
        rows: number of rows written.
        steps: number of them that are no resets.
    """

    def __init__(self, lanes: int, left_out: set[str] | None = None) -> None:
        self.rows = self.steps = 0
        self._left_out = set() if left_out is None else left_out
        self._lanes = lanes
        self._slots = self._capacity = 0
        self._trees: dict[str, Tree] = {}
        self._leaves: dict[str, list[Array]] = {}
        self._there: Array | None = None
        """[lanes, capacity] bool: True where a row is; None: everywhere."""
        self._infos: list[tuple[int, dict[Any, Any]]] = []
        """Slots and the infos of their rows, by lane."""
        self._runs: list[list[tuple[int, int, int, Version]]] = [[] for _ in range(lanes)]
        """Of each lane: first slot, episode, first step and version of rows that follow each other."""

    def begin_run(self, lane: int, episode: int, first_step: int, version: Version) -> None:
        """Set episode, first step and policy version of a lane's rows from the next slot on."""
        self._runs[lane].append((self._slots, episode, first_step, version))

    def append(self, slot: Slot) -> bool:
        """Write one slot; return False, with nothing written, if it does not fit this chunk.

        Raises:
            CodecError: a value is no array of a supported dtype, or an info is not a dict.
        """
        at = self._slots
        if not at:
            self._begin(slot)
        elif at == self._capacity or slot.extras.keys() != self._extras:
            return False
        if not self._write("observation", slot.observation, at):
            return False
        if slot.action is not None and not self._write("action", slot.action, at):
            return False
        for name, value in slot.extras.items():
            if not self._write(_EXTRA + name, value, at):
                return False
        if slot.infos:
            owned = {lane: own_info(info, self._left_out) for lane, info in slot.infos.items()}
            self._infos.append((at, {lane: info for lane, info in owned.items() if info}))
        self._reward[:, at] = slot.reward
        if slot.ended:
            self._terminated[:, at], self._truncated[:, at] = slot.terminated, slot.truncated
        steps = self._lanes
        if slot.resets is not None:
            self._present[slot.resets, at] = False
            steps -= int(slot.resets.sum())
            if slot.action is not None:
                for column in self._leaves["action"]:
                    column[slot.resets, at] = 0
        if slot.only is not None:
            if self._there is None:
                self._there = np.ones((self._lanes, self._capacity), np.bool_)
            self._there[:, at] = slot.only
        self.rows += self._lanes if slot.only is None else int(slot.only.sum())
        self.steps += steps if slot.only is None else 0
        self._slots = at + 1
        return True

    def _begin(self, first: Slot) -> None:
        row_bytes = sum(leaf.nbytes for leaf in leaves(first.observation) if isinstance(leaf, np.ndarray))
        self._capacity = max(1, min(MAX_CHUNK_ROWS // self._lanes, MAX_CHUNK_BYTES // max(1, row_bytes)))
        shape = self._lanes, self._capacity
        self._reward = np.zeros(shape)
        self._terminated, self._truncated = np.zeros(shape, np.bool_), np.zeros(shape, np.bool_)
        self._present = np.ones(shape, np.bool_)
        self._extras = first.extras.keys()

    def _write(self, name: str, value: Tree, slot: int) -> bool:
        columns = self._leaves.get(name)
        if columns is None:
            # Rows without an action or extras have zeros there.
            tree = self._trees[name] = map_leaves(lambda leaf: self._column(name, leaf), value)
            columns = self._leaves[name] = _arrays(tree)
        arrays = [value] if type(value) is np.ndarray else _arrays(value)
        if len(arrays) != len(columns):
            return False
        for column, array in zip(columns, arrays, strict=True):
            if (
                array.dtype != column.dtype
                or array.shape[:1] != column.shape[:1]
                or array.shape[1:] != column.shape[2:]
            ):
                return False
            column[:, slot] = array
        return True

    def _column(self, name: str, leaf: Any) -> Array:
        if not isinstance(leaf, np.ndarray) or leaf.dtype.str not in DTYPES or leaf.shape[:1] != (self._lanes,):
            raise CodecError(
                f"{name.removeprefix(_EXTRA)} of several environments is a {type(leaf).__name__} that no columns can "
                "hold: arrays of numbers of one shape are wanted. Set worker.envs: 1."
            )
        column: Array = np.zeros((self._lanes, self._capacity, *leaf.shape[1:]), leaf.dtype)
        return column

    def finish(self) -> Chunk | None:
        """Return the rows, lane by lane; None: there are none. Nothing may be appended any more."""
        slots = self._slots
        if not slots:
            return None
        there = None if self._there is None else self._there[:, :slots]
        order = None if there is None else np.flatnonzero(there)

        def by_lane(column: Array) -> Array:
            rows: Array = column[:, :slots].reshape(-1, *column.shape[2:])
            return rows if order is None else rows[order]

        def tree(name: str) -> Any:
            return map_leaves(by_lane, self._trees[name]) if name in self._trees else ()

        extras = {name.removeprefix(_EXTRA): tree(name) for name in self._trees if name.startswith(_EXTRA)}
        fields = tree("action"), tree("observation")
        none: Kind = ""
        before, after = (len(_arrays(trees)) for trees in (fields, tuple(extras.values())))
        return Chunk(
            rows=self.rows,
            action=fields[0],
            action_present=by_lane(self._present),
            observation=fields[1],
            reward=by_lane(self._reward),
            terminated=by_lane(self._terminated),
            truncated=by_lane(self._truncated),
            info=self._info_rows(slots, order),
            extras=extras,
            segments=self._segments(slots, there),
            kinds=(*[none] * before, "float", *[none] * after),
        )

    def _info_rows(self, slots: int, order: Array | None) -> dict[int, dict[Any, Any]]:
        places = {lane * slots + slot: info for slot, infos in self._infos for lane, info in infos.items()}
        if order is None:
            return dict(sorted(places.items()))
        return {int(np.searchsorted(order, place)): info for place, info in sorted(places.items())}

    def _segments(self, slots: int, there: Array | None) -> tuple[Segment, ...]:
        segments = []
        for lane, runs in enumerate(self._runs):
            ends = [*[run[0] for run in runs[1:]], slots][: len(runs)]
            for (start, episode, step, version), end in zip(runs, ends, strict=True):
                rows = end - start if there is None else int(there[lane, start:end].sum())
                if rows:
                    segments.append(Segment(rows, episode, step, *version))
        return tuple(segments)


def _arrays(tree: Tree) -> list[Any]:
    return list(leaves(tree))
