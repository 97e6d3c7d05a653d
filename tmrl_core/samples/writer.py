"""Writer of samples into the columns of one chunk, row by row."""

# Theory of operation
#
# One writer makes one chunk: columns that all rows of a run fit. It knows no episodes beyond numbers, and it never
# changes a value: a row that does not fit (another shape, dtype or key) is refused with False, and the Buffer begins
# another chunk with it. So nothing is cast on the way, and nothing is refused for good.
#
# Two ways to append:
#
# - `append_plain` takes the ordinary row: two arrays of the known dtype and shape, the known type of reward, no flag.
#   It compares and assigns, and calls nothing but `own_info`: 1 us. `_until` is the row up to which it may write, which
#   covers three conditions at once: the capacity, the Buffer's limit (`allow`), and that the columns are plain (0).
# - `append` takes any row, checks what can fail first, and changes the flags and infos last. A value that fails leaves
#   garbage in the row `rows` of some column, which the next row overwrites; `rows` grows only at the end.
#
# Memory: columns double up to 1 MiB, then the chunk is full. A step never copies more than that, which takes 50 us,
# because a robot may wait for it. The next chunk begins with the size of the last one, so that a worker with steady
# episodes copies nothing. With rows of 1 MB (images) a chunk has one row.
#
# Flags and missing actions are rare (one row in an episode), so they are lists of row numbers until `view` makes
# columns of them. That saves two writes a step.
#
# `view` returns slices of the columns, without a copy. Later rows are written behind them, and a growing column is a
# new array, so a view never changes. Infos are copied as a dict, because dicts grow in place.
#
# The action's column is made with the first action, not with the first row, which is the reset and has none; its rows
# get zeros, and `action_present` says so.
#
# `_left_out` is shared by the writers of a Buffer, so that an entry of the info that cannot be carried is logged once
# in a run and not once a chunk.

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy import ndarray
from numpy.typing import NDArray

from tmrl_core.errors import CodecError
from tmrl_core.samples.columns import Chunk, Kind, Tree
from tmrl_core.samples.growing_columns import ArrayLeaf, Leaf, Node, leaves_of, plan, write_all
from tmrl_core.samples.segments import Segment, Version
from tmrl_core.samples.values import own_entries

MAX_CHUNK_BYTES = 1024 * 1024
"""Size at which columns stop growing, so that no append copies more while the environment waits."""
MAX_CHUNK_ROWS = 65_536
FIRST_ROWS = 256
"""Capacity of the first chunk in rows. Later chunks have the size of the previous one."""

_MIN_ROWS = 16
_MOST_WARNINGS = 20

logger = logging.getLogger(__name__)


class _Other:
    """Marker of a missing value."""


class ChunkWriter:
    """Columns for one homogeneous run of samples.

    Args:
        observation, reward, extras: fields of the first sample, which define the columns. The sample is not written
            yet.
        ragged: paths of leaves whose shapes vary; they become lists. The writer adds those that it finds.
        rows_hint: expected number of rows.
        left_out: entries of infos that were already reported as left out. The writer adds those that it reports.

    Raises:
        CodecError: a field holds an unsupported value.
    """

    __slots__ = (
        "_action", "_action_column", "_action_dtype", "_action_shape", "_extras", "_flat", "_info", "_left_out",
        "_missing", "_observation", "_observation_column", "_observation_dtype", "_observation_shape", "_ragged",
        "_reward", "_reward_column", "_reward_type", "_runs", "_terminated", "_truncated", "_until", "capacity",
        "rows",
    )  # fmt: skip

    def __init__(
        self,
        observation: Any,
        reward: Any,
        extras: dict[str, Any] | None,
        ragged: set[str],
        rows_hint: int,
        left_out: set[str] | None = None,
    ) -> None:
        self.rows = 0
        self._until: float = 0
        self._ragged = ragged
        self._left_out = set() if left_out is None else left_out
        self._action: Node | None = None
        self._observation = plan(observation, "observation", ragged)
        self._reward = _plan_reward(reward)
        self._extras: dict[str, Node] = {}
        for name, value in (extras or {}).items():
            if not isinstance(name, str):
                raise CodecError(f"the name of an extra is a {type(name).__name__}, and has to be text.")
            self._extras[name] = plan(value, f"extras[{name!r}]", ragged)
        self._info: dict[int, dict[Any, Any]] = {}
        # Row numbers, because these flags are rare. They become columns when the chunk is finished.
        self._missing: list[int] = []
        self._terminated: list[int] = []
        self._truncated: list[int] = []
        self._runs: list[tuple[int, int, int, Version]] = []
        self.capacity = min(max(rows_hint, _MIN_ROWS), self._most_rows())
        self._resize()

    def begin_run(self, episode: int, first_step: int, version: Version) -> None:
        """Set episode, first step and policy version of the following rows."""
        self._runs.append((self.rows, episode, first_step, version))

    def allow(self, rows: float) -> None:
        """Allow `append_plain` to write this number of further rows at most."""
        self._until = min(self.capacity, self.rows + rows) if self._flat else 0

    def append_plain(
        self, action: Any, observation: Any, reward: Any, terminated: Any, truncated: Any, info: Any
    ) -> bool:
        """Write one row as `append` does, if it continues an episode and its values are arrays that match the columns.

        Returns:
            False: the row is of another kind, or the limit is reached. No row was added.

        Raises:
            CodecError: the info is not a dict.
        """
        row = self.rows
        if (
            row < self._until
            and type(observation) is ndarray
            and observation.dtype is self._observation_dtype
            and observation.shape == self._observation_shape
            and type(action) is ndarray
            and action.dtype is self._action_dtype
            and action.shape == self._action_shape
            and type(reward) is self._reward_type
            and not terminated
            and not truncated
        ):
            if info:
                owned = own_info(info, self._left_out)
                if owned:
                    self._info[row] = owned
            self._observation_column[row] = observation
            self._action_column[row] = action
            self._reward_column[row] = reward
            self.rows = row + 1
            return True
        return False

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
        """Write one row; return False, with no row added, if it does not fit this chunk.

        Raises:
            CodecError: a field holds an unsupported value.
        """
        row = self.rows
        if row == self.capacity and not self._grow():
            return False
        if not self._append_values(action, observation, reward, extras):
            return False
        # Operations that can raise come before any change of a column.
        owned = own_info(info, self._left_out) if info else None
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

    def _append_values(self, action: Any, observation: Any, reward: Any, extras: dict[str, Any] | None) -> bool:
        row = self.rows
        # The columns may be replaced below.
        self._until = 0
        if self._extras or extras:
            extras = extras or {}
            if extras.keys() != self._extras.keys():
                return False
            if not write_all(self._extras.values(), [extras[name] for name in self._extras], row):
                return False
        if not write_all((self._observation, self._reward), (observation, reward), row):
            return False
        if action is None:
            for leaf in leaves_of(self._action):
                leaf.fill_missing(row, row + 1)
        else:
            if self._action is None:
                self._action = plan(action, "action", self._ragged)
                for leaf in leaves_of(self._action):
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

    def _all_leaves(self) -> Iterator[Leaf]:
        for node in (self._action, self._observation, self._reward, *self._extras.values()):
            yield from leaves_of(node)

    def _find_flat(self) -> None:
        """Check if the columns allow `append_plain`, which remains disabled until `allow`."""
        action, observation, reward = self._action, self._observation, self._reward
        self._flat, self._until = False, 0
        if isinstance(action, ArrayLeaf) and isinstance(observation, ArrayLeaf) and not self._extras:
            self._flat = bool(action.shape and observation.shape and not reward.shape)
            self._action_column, self._action_dtype, self._action_shape = action.column, action.dtype, action.shape
            self._observation_column = observation.column
            self._observation_dtype, self._observation_shape = observation.dtype, observation.shape
            self._reward_column = reward.column
            # A NumPy scalar's type defines its dtype, and a column of Python numbers takes its Python type unchanged.
            # `append` writes all other values, because an integer may be too large.
            self._reward_type: type = {"": reward.dtype.type, "float": float}.get(reward.kind, _Other)

    def view(self) -> Chunk:
        """Return the rows so far; later rows do not change them."""
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


def _plan_reward(reward: Any) -> ArrayLeaf:
    node = plan(reward, "reward", set())
    if not isinstance(node, ArrayLeaf):
        raise CodecError(
            f"reward is a {type(reward).__name__} that no column can hold. A reward is a number (an integer of at most "
            "64 bits) or an array."
        )
    return node


def own_info(info: Any, left_out: set[str]) -> dict[Any, Any]:
    """Return a copy of an info without unsupported entries. Warn once about each of them."""
    if not isinstance(info, dict):
        raise CodecError(f"info is a {type(info).__name__}, and has to be a dict.")
    owned, refused = own_entries(info, "info")
    for told in refused:
        if told not in left_out and len(left_out) < _MOST_WARNINGS:
            left_out.add(told)
            logger.warning("%s; it is left out of this sample and of all that follow", told)
    return owned


def _flags(rows_set: list[int], rows: int) -> NDArray[np.bool_]:
    flags = np.zeros(rows, np.bool_)
    flags[rows_set] = True
    return flags
