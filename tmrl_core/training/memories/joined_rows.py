"""The rows of a stream's tail and of the chunk that follows it, as one run of columns."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tmrl_core.samples import Chunk
from tmrl_core.training.memories.layout import Array, TreeSpec
from tmrl_core.training.memories.memory import last_row_of, rows_that_follow
from tmrl_core.training.memories.transitions import NO_EXTRAS, ChunkExtras, Tail, joined_leaves
from tmrl_core.training.memories.trees import leaves_of


@dataclass(frozen=True)
class JoinedRows:
    """Rows of one stream: those that its tail holds, then those of a chunk.

    Args:
        chunk: the new rows.
        held: number of rows from the tail.
        observation_spec, observation: of all rows, leaves [rows, *shape].
        action_spec, action: likewise; None and empty: no row has an action.
        reward: [rows] float64.
        version: [rows, 2].
        terminated, truncated: [rows].
        extras: extras of the samples; leaves [rows, *shape].
        starts, ends: [runs] first and last row of each run: rows of one episode without a gap.
        is_open: the last run may be continued.
    """

    chunk: Chunk
    held: int
    observation_spec: TreeSpec
    observation: list[Array]
    action_spec: TreeSpec | None
    action: list[Array]
    reward: Array
    version: Array
    terminated: Array
    truncated: Array
    extras: dict[str, list[Array]]
    starts: Array
    ends: Array
    is_open: bool

    @classmethod
    def of(
        cls,
        chunk: Chunk,
        tail: Tail | None,
        specs: tuple[TreeSpec, TreeSpec | None],
        extras: ChunkExtras = NO_EXTRAS,
    ) -> JoinedRows:
        """Join a chunk to the tail of its stream.

        Args:
            chunk: new rows of the stream.
            tail: tail of the stream, with the same observations (and actions); the first row need not follow it.
            specs: specifications of the chunk's observation and action; None for the action if no row has one.
            extras: extras of the chunk's samples.
        """
        observation = leaves_of(chunk.observation)
        action_spec = specs[1]
        action = leaves_of(chunk.action) if action_spec is not None else []
        reward, version = np.asarray(chunk.reward, np.float64), chunk.version
        held = 0
        if tail is not None:
            assert tail.reward is not None
            assert tail.version is not None
            held = len(tail.reward)
            observation = joined_leaves(tail.observation, observation)
            reward, version = np.concatenate([tail.reward, reward]), np.concatenate([tail.version, version])
            if action_spec is None and tail.action_spec is not None:
                action_spec = tail.action_spec
                action = [_zeros(chunk.rows, leaf) for leaf in tail.action]
            before = tail.action or [_zeros(held, leaf) for leaf in action]
            action = joined_leaves(before, action)
            extras = {
                name: joined_leaves(tail.extras.get(name) or [_zeros(held, leaf) for leaf in leaves], leaves)
                for name, leaves in extras.items()
            }
        total = held + chunk.rows
        joined = np.ones(total, bool)
        joined[held:] = rows_that_follow(chunk, tail)
        joined[0] = False
        terminated, truncated = np.zeros(total, bool), np.zeros(total, bool)
        terminated[held:], truncated[held:] = chunk.terminated, chunk.truncated
        starts = np.flatnonzero(~joined)
        return cls(
            chunk,
            held,
            specs[0],
            observation,
            action_spec,
            action,
            reward,
            version,
            terminated,
            truncated,
            dict(extras),
            starts,
            np.append(starts[1:], total) - 1,
            not (terminated[-1] or truncated[-1]),
        )

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.reward)

    def tail(self, first: int) -> Tail:
        """Return the rows from `first` on as the stream's new tail."""
        kept, last = slice(first, None), last_row_of(self.chunk)
        return Tail(
            last.episode,
            last.step,
            self.observation_spec,
            [np.array(leaf[kept]) for leaf in self.observation],
            self.action_spec,
            [np.array(leaf[kept]) for leaf in self.action],
            np.array(self.reward[kept]),
            np.array(self.version[kept]),
            {name: [np.array(leaf[kept]) for leaf in leaves] for name, leaves in self.extras.items()},
        )


def _zeros(rows: int, like: Array) -> Array:
    return np.zeros((rows, *like.shape[1:]), like.dtype)
