"""A memory of two: one of live samples, one of recorded sessions. Each batch has a fixed number of rows of both.

Source: Ball et al., RLPD, arXiv:2302.02948, section 4.1 (symmetric sampling).
"""

# Theory of operation
#
# Two memories, whose batches are concatenated in a fixed proportion (`memory.recorded_share`). The recorded part never
# loses rows to live samples, however long a run is; with one memory for both it would. It is in RAM and in checkpoints.

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import ClassVar

import torch

from tmrl_core.errors import ConfigError
from tmrl_core.samples import Buffer
from tmrl_core.samples.columns import map_leaves
from tmrl_core.training.contracts import AgentLike, Offsets, Refusals, TrainingMemory
from tmrl_core.training.memories.replay import ReplayMemory
from tmrl_core.training.memories.sample_schema import DeclaredSamples
from tmrl_core.training.value_types import Batch, Device, Indices, State, Tree


class MixedMemory(TrainingMemory):
    """Batches of live and of recorded transitions, the live ones first.

    Received samples go to the live memory and never replace recorded ones. The recorded memory is in RAM and part of
    checkpoints, so that a run resumes without the recording.

    Args:
        make_live: `(nb_steps=, device=, batch_size=)` makes the memory of live samples.
        make_recorded: likewise, of recorded sessions.
        batch_size: rows in a batch.
        share: part of the rows that are recorded, between 0 and 1; rounded to whole rows.
        nb_steps: batches per iteration.
        device: where batches go; None: the CPU.

    Raises:
        ConfigError: the share leaves no row for one of the two.

    Attributes:
        live, recorded_sessions: the two memories.
    """

    type_id = "mixed"
    type_version = 1
    transient: ClassVar[frozenset[str]] = frozenset({"batch_size", "memory_size", "_live_rows"})

    def __init__(
        self,
        make_live: Callable[..., ReplayMemory],
        make_recorded: Callable[..., ReplayMemory],
        *,
        batch_size: int = 256,
        share: float = 0.5,
        nb_steps: float = 1,
        device: Device = None,
    ) -> None:
        super().__init__()
        self.batch_size = batch_size
        recorded = round(batch_size * share)
        if not 1 <= recorded < batch_size:
            raise ConfigError(
                f"memory.recorded_share: {share:g} of memory.batch_size = {batch_size} rows is {recorded}; both parts "
                "of a batch need at least 1"
            )
        self._live_rows = batch_size - recorded
        self.live = make_live(nb_steps=nb_steps, device=device, batch_size=self._live_rows)
        try:
            self.recorded_sessions = make_recorded(nb_steps=nb_steps, device=device, batch_size=recorded)
        except BaseException:
            self.live.close()
            raise
        self.memory_size = self.live.memory_size + self.recorded_sessions.memory_size

    @property
    def for_sessions(self) -> TrainingMemory:
        """The memory that recorded sessions are appended to."""
        return self.recorded_sessions

    def expect(self, schema: DeclaredSamples) -> None:
        """Refuse samples of both kinds that differ from the declaration of environment and policy."""
        self.live.expect(schema)
        self.recorded_sessions.expect(schema)

    def expect_agent(self, agent: AgentLike) -> None:
        """Prepare both memories for the agent.

        Raises:
            ConfigError: one of them cannot serve it.
        """
        self.live.expect_agent(agent)
        self.recorded_sessions.expect_agent(agent)
        self.recorded_sessions.share_returns(self.live)

    def append(self, buffer: Buffer) -> Refusals:
        """Append live samples; return the refused chunks with the reasons."""
        self.note_statistics(buffer)
        return self.live.append(buffer)

    def __iter__(self) -> Iterator[Batch]:
        """Yield the batches of a round.

        Raises:
            ValueError: one of the memories is empty.
        """
        return map(_joined, self.live, self.recorded_sessions)

    def __len__(self) -> int:
        """Return the number of transitions of both kinds; 0 as long as one of the memories is empty."""
        live, recorded = len(self.live), len(self.recorded_sessions)
        return live + recorded if live and recorded else 0

    @property
    def sampleable(self) -> int:
        """Number of transitions that may be sampled; 0 if one of the memories has none."""
        live, recorded = self.live.sampleable, self.recorded_sessions.sampleable
        return live + recorded if live and recorded else 0

    def update_priorities(self, indices: Indices, td_errors: Indices) -> None:
        """Set priorities of the transitions of a batch, in its order."""
        rows = self._live_rows
        self.live.update_priorities(indices[:rows], td_errors[:rows])
        self.recorded_sessions.update_priorities(indices[rows:], td_errors[rows:])

    def note_version(self, counter: int) -> None:
        """Take the number of the latest published policy; recorded transitions have no policy lag."""
        self.live.note_version(counter)

    def pop_sampled_lag(self) -> tuple[float, int] | None:
        """Return mean and maximum policy lag of sampled live transitions."""
        return self.live.pop_sampled_lag()

    @property
    def prefetched(self) -> int:
        """Number of batches whose rows are sampled already."""
        return min(self.live.prefetched, self.recorded_sessions.prefetched)

    @property
    def deferred(self) -> bool:
        """True: live samples are written to the disk with `commit` only."""
        return self.live.deferred

    @deferred.setter
    def deferred(self, value: bool) -> None:
        self.live.deferred = value

    @property
    def disk(self) -> object | None:
        """The live rows on disk; None: they are in RAM."""
        return self.live.disk

    @property
    def recorded(self) -> tuple[dict[bytes, tuple[int, int]], State] | None:
        """Offsets and counters of the live memory's last `commit`."""
        return self.live.recorded

    def commit(self, offsets: Offsets | None = None, **values: Tree) -> None:
        """Write new live samples with the offsets of their streams and the run's counters."""
        self.live.commit(offsets, **values)

    def flush(self) -> None:
        """Flush the live rows on disk."""
        self.live.flush()

    def close(self) -> None:
        """Release the folder of the live memory, and threads."""
        self.live.close()
        self.recorded_sessions.close()


def _joined(live: Batch, recorded: Batch) -> Batch:
    """Return one batch with the rows of both."""
    joined = tuple(map(_cat, live[:6], recorded[:6]))
    if len(live) == 6 and len(recorded) == 6:
        return joined
    extras: list[State] = [batch[6] if len(batch) > 6 else {} for batch in (live, recorded)]
    rows = (len(live[2]), len(recorded[2]))
    names = [*extras[0], *(name for name in extras[1] if name not in extras[0])]
    # Sessions of an expert lack what only the trained policy stores: zeros, as in a memory of both kinds.
    parts = {
        name: [
            own[name] if name in own else _zeros(other[name], count)
            for own, other, count in zip(extras, reversed(extras), rows, strict=True)
        ]
        for name in names
    }
    return (*joined, {name: _cat(*both) for name, both in parts.items()})


def _cat(live: Tree, recorded: Tree) -> Tree:
    if isinstance(live, tuple):
        return tuple(map(_cat, live, recorded))
    if isinstance(live, dict):
        return {key: _cat(value, recorded[key]) for key, value in live.items()}
    return torch.cat([live, recorded])


def _zeros(tree: Tree, rows: int) -> Tree:
    return map_leaves(lambda leaf: leaf.new_zeros((rows, *leaf.shape[1:])), tree)
