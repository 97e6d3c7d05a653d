"""A replay memory of sequences, for recurrent policies: its rows are padded runs of ticks of one episode."""

# Theory of operation
#
# Tick t of an episode is the action on observation t, its reward, and observation t + 1. A sequence begins at a
# multiple of `stride` in its episode and holds `length` ticks, or fewer where the episode ends or a message is missing:
# the rest is padding. A sequence whose ticks are all in the one before it is left out. So each tick of an episode is in
# at least one sequence; after a missing message, the ticks up to the next multiple of `stride` are in none, because no
# recurrent state is known for them: workers store a state only at such ticks.
#
# Example with length 4, stride 2 and an episode of 7 ticks: the sequences hold ticks 0-3, 2-5 and 4-6 with one tick of
# padding. One that begins at 6 would hold tick 6 alone, which the one before has. With 6 ticks, the sequences are 0-3
# and 2-5.
#
# The ticks of an open episode that still wait for a full sequence are the tail of their stream. Each row of a tail
# notes whether a sequence holds it already (`_STORED`), since only then can the end of the episode be told to need no
# shorter sequence.
#
# Overlap stores ticks more than once; in return a batch is one gather, and storage, sampling, checkpoints and
# prefetching are those of `ReplayMemory`. Rejected: a store of single ticks with windows on it (half the RAM, but a
# second store, sampler and checkpoint format beside the first); a state stored with every tick (512 bytes a tick for
# 128 units, which no compression removes); states that the trainer recomputes from the beginning of the episode (it
# would hold whole episodes, and the weights have changed).

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tmrl_core.actor.module import STATE_COLUMN, RecurrentActor
from tmrl_core.config.algorithms import SEQUENCE_LENGTH
from tmrl_core.errors import ConfigError
from tmrl_core.samples import Chunk
from tmrl_core.training.batches import FIRST_TICK, TICKS
from tmrl_core.training.contracts import AgentLike
from tmrl_core.training.memories.joined_rows import JoinedRows
from tmrl_core.training.memories.layout import Array, TreeSpec, tree_spec
from tmrl_core.training.memories.memory import takes_keywords_of_base, whole_number
from tmrl_core.training.memories.replay import ReplayMemory
from tmrl_core.training.memories.rows import Rows
from tmrl_core.training.memories.transition_builder import TransitionBuilder
from tmrl_core.training.memories.transitions import ChunkExtras, Tail, TransitionColumns
from tmrl_core.training.value_types import State

_STORED = "stored"
"""Extra of the rows of a tail: True where a sequence holds the tick already."""


def padded_runs(first: Array, ticks: Array, length: int) -> Callable[[Array], Array]:
    """Return a function from a column to its runs [n, length, ...], padded with zeros.

    Args:
        first: [n] first row of each run.
        ticks: [n] number of its rows, at most `length`.
        length: of all runs.
    """
    tick = np.arange(length)
    is_padded = tick >= ticks[:, None]
    index = np.where(is_padded, 0, first[:, None] + tick)

    def taken(column: Array) -> Array:
        values: Array = column.take(index, axis=0)
        values[is_padded] = 0
        return values

    return taken


class SequenceBuilder(TransitionBuilder):
    """Builds padded sequences.

    Args:
        rows, downcast_float64: see `TransitionBuilder`.
        length: ticks in a sequence.
        stride: ticks from the beginning of a sequence to that of the next one.
    """

    def __init__(self, rows: Rows, downcast_float64: bool, length: int, stride: int) -> None:
        super().__init__(rows, 1, 1.0, downcast_float64, keep_extras=True, sequence=(length, stride))
        self.length = length
        self.stride = stride

    def _join(
        self,
        chunk: Chunk,
        tail: Tail | None,
        observation: TreeSpec,
        action: TreeSpec | None,
        extras: ChunkExtras,
    ) -> tuple[TransitionColumns | None, Tail | None]:
        marked = {**extras, _STORED: [np.zeros(chunk.rows, bool)]}
        rows = JoinedRows.of(chunk, tail, (observation, action), marked)
        stored = rows.extras[_STORED][0]
        step = chunk.step
        if tail is not None:
            step = np.concatenate([np.arange(tail.step - rows.held, tail.step) + 1, step])
        # All runs at once, since a worker may send a million runs of one row.
        starts, ends = rows.starts, rows.ends
        begins = starts + -step[starts] % self.stride  # first multiple of the stride in each run
        most = np.maximum(-((begins - ends) // self.stride), 0)
        complete = np.maximum((ends - self.length - begins) // self.stride + 1, 0)
        changes = np.zeros(len(rows) + 1, np.int64)
        changes[starts[complete > 0]] = 1
        changes[(begins + (complete - 1) * self.stride + self.length + 1)[complete > 0]] -= 1
        stored |= changes[:-1].cumsum() > 0
        shorter = (complete < most) & ~stored[ends]
        kept = None
        if rows.is_open:
            kept = min(int(begins[-1] + complete[-1] * self.stride), int(ends[-1]))
            shorter[-1] = False
        complete += shorter
        # Row of the first observation and number of ticks of each sequence.
        run = np.repeat(np.arange(len(starts)), complete)
        first = begins[run] + (np.arange(len(run)) - np.repeat(complete.cumsum() - complete, complete)) * self.stride
        ticks = np.minimum(ends[run] - first, self.length)
        skipped = max(0, len(first) - self.most) if self.most is not None else 0
        made = self._sequences(rows, first[skipped:], ticks[skipped:], step, skipped) if len(first) else None
        return made, None if kept is None else rows.tail(kept)

    def _sequences(self, rows: JoinedRows, first: Array, ticks: Array, step: Array, skipped: int) -> TransitionColumns:
        taken = padded_runs(first + 1, ticks, self.length)
        return TransitionColumns(
            len(first),
            [[leaf.take(first, axis=0)] for leaf in rows.observation],
            [taken(leaf) for leaf in rows.action],
            taken(rows.reward),
            [taken(leaf) for leaf in rows.observation],
            taken(rows.terminated),
            taken(rows.truncated),
            rows.version.take(first + 1, axis=0),
            np.maximum(first + ticks - rows.held, -1),
            skipped,
            {TICKS: ticks, FIRST_TICK: step[first]},
            {
                name: [leaf.take(first + 1, axis=0) for leaf in leaves]
                for name, leaves in rows.extras.items()
                if name != _STORED
            },
        )

    def state_dict(self) -> State:
        """Return the length and the stride, too."""
        return {**super().state_dict(), "sequence": [self.length, self.stride]}


@takes_keywords_of_base
class SequenceMemory(ReplayMemory):
    """`ReplayMemory` whose rows are sequences of up to `length` ticks of one episode.

    A batch is `(first_obs, act, rew, next_obs, terminated, truncated, extras)`. `first_obs` is [batch_size, *shape],
    the others [batch_size, length, *shape]: `next_obs[:, t]` is the observation after tick t. Extras are `ticks`, the
    number of ticks before the padding (zeros), and `first_tick`, the number of the first tick in its episode, both
    float32 [batch_size]; the recurrent state before that tick (`state.h`, ...), if the policy has one; and those of
    prioritized sampling. Sizes count sequences.

    Args:
        *args: positional arguments of `ReplayMemory`; `memory_size` and `batch_size` are numbers of sequences.
        length: ticks in a sequence.
        stride: ticks from the beginning of a sequence to that of the next one in its episode, a multiple of the
            policy's `state_interval`; None: half the length.
        **kwargs: keyword arguments of `ReplayMemory`.

    Raises:
        ConfigError, FolderLockedError, StorageError: as `ReplayMemory`; or the stride is larger than the length, or a
            setting of single transitions is set.
    """

    type_id = "sequence_replay"
    type_version = 1
    _builder: SequenceBuilder

    def __init__(self, *args: Any, length: float = SEQUENCE_LENGTH, stride: float | None = None, **kwargs: Any) -> None:
        self.length = whole_number(length, "memory.kwargs.length")
        self.stride = max(1, self.length // 2) if stride is None else whole_number(stride, "memory.kwargs.stride")
        if self.stride > self.length:
            raise ConfigError(
                f"memory.kwargs.stride: found {self.stride}, allowed: 1 to memory.kwargs.length = {self.length}. A "
                "larger one leaves out the ticks between two sequences. Lower the stride or raise the length."
            )
        if kwargs.get("n_step", 1) != 1:
            raise ConfigError(
                f"memory.n_step: found {kwargs['n_step']!r}, allowed for sequences: 1. For targets over several ticks "
                "use RecurrentDQNAgent with agent.kwargs.n_step."
            )
        if kwargs.get("crc_debug"):
            raise ConfigError("worker.crc_debug compares single transitions; set it to false for a SequenceMemory.")
        super().__init__(*args, **{**kwargs, "keep_extras": True})

    def expect_agent(self, agent: AgentLike) -> None:
        """Expect the states of a recurrent policy, which must be stored where sequences begin.

        Otherwise the first samples would define the states of all workers.

        Raises:
            ConfigError: the stride is not a multiple of its `state_interval`.
        """
        super().expect_agent(agent)
        actor = agent.get_actor()
        if not isinstance(actor, RecurrentActor):
            return
        if self.stride % actor.state_interval:
            raise ConfigError(
                f"memory.kwargs.stride: found {self.stride}, allowed: multiples of actor.kwargs.state_interval = "
                f"{actor.state_interval}, at most memory.kwargs.length = {self.length}. Sequences begin where the "
                "policy's state is stored. Change the stride, or actor.kwargs.state_interval of trainer and workers."
            )
        self._builder.schema.expected_extras = {
            STATE_COLUMN + name: tree_spec(state_B, f"the state {name}", self.downcast_float64)
            for name, state_B in actor.initial_state(1).items()
        }

    def _make_builder(self, rows: Rows) -> SequenceBuilder:
        return SequenceBuilder(rows, self.downcast_float64, self.length, self.stride)
