"""A memory of several: live samples, recorded sessions, interventions. Each batch has a fixed number of rows of each.

Source: Ball et al., RLPD, arXiv:2302.02948, section 4.1 (symmetric sampling); Luo et al., HIL-SERL, arXiv:2410.21845,
section IV, for interventions.
"""

# Theory of operation
#
# Memories, whose batches are concatenated in fixed proportions (`memory.shares`). Live samples go to the live memory,
# and those that a person chose to the memory of interventions besides. Neither displaces demonstrations or
# interventions, however long a run is; with one memory for all it would. All but the live one are in RAM and in
# checkpoints; with a live memory on disk, interventions since the last checkpoint are in that one alone after a crash.
#
# A part without rows is either awaited (`len` is 0, so training waits) or left out. Interventions are left out: a
# policy may need none, so a batch of 256 rows with shares of 1/2, 1/4 and 1/4 has 192 until the first takeover, and 256
# from the next batch on, also within a round. If nothing else has a share, they are awaited too.
#
# The live memory receives samples also if it has no share (HG-DAgger), since the loop's counters and acknowledgements
# are its own.

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import ClassVar

import torch

from tmrl_core.actor.interventions import IS_INTERVENTION
from tmrl_core.errors import ConfigError
from tmrl_core.samples import Buffer
from tmrl_core.samples.columns import map_leaves
from tmrl_core.training.batches import SHOWN
from tmrl_core.training.contracts import AgentLike, Offsets, Refusals, TrainingMemory
from tmrl_core.training.memories.memory import whole_number
from tmrl_core.training.memories.replay import ReplayMemory
from tmrl_core.training.memories.sample_schema import DeclaredSamples
from tmrl_core.training.value_types import Batch, Device, Indices, State, Tree

ONLINE, DEMONSTRATIONS, INTERVENTIONS = "online", "demonstrations", "interventions"
HALF_AND_HALF: Mapping[str, float] = {ONLINE: 0.5, DEMONSTRATIONS: 0.5}


class MixedMemory(TrainingMemory):
    """Batches of live transitions, recorded ones and interventions, in this order.

    Received samples go to the live memory and never replace others. The recorded memory is in RAM and part of
    checkpoints, so that a run resumes without the recording.

    Args:
        make_live: `(nb_steps=, device=, batch_size=)` makes the memory of live samples.
        make_recorded: likewise, of recorded sessions; None: there are none.
        make_interventions: likewise, of interventions; None: they have no memory of their own.
        batch_size: rows in a batch.
        shares: parts of the rows by origin: `online`, `demonstrations` and `interventions`, with a sum of 1; rounded to
            whole rows.
        marked: True: batches have the extra `shown`; False: no extras but those of the memories.
        nb_steps: batches per iteration.
        device: where batches go; None: the CPU.

    Raises:
        ConfigError: a share leaves no row for its part, or has no memory.

    Attributes:
        live, recorded_sessions, interventions: the memories.
    """

    type_id = "mixed"
    type_version = 1
    transient: ClassVar[frozenset[str]] = frozenset(
        {"batch_size", "memory_size", "_rows", "_nb_steps", "_marked", "_drawn", "_device"}
    )

    def __init__(
        self,
        make_live: Callable[..., ReplayMemory],
        make_recorded: Callable[..., ReplayMemory] | None = None,
        *,
        make_interventions: Callable[..., ReplayMemory] | None = None,
        batch_size: int = 256,
        shares: Mapping[str, float] = HALF_AND_HALF,
        marked: bool = False,
        nb_steps: float = 1,
        device: Device = None,
    ) -> None:
        super().__init__()
        self.batch_size = batch_size
        self._rows = rows_of_shares(shares, batch_size)
        self._nb_steps, self._marked, self._device = whole_number(nb_steps, "nb_steps"), marked, device
        self._drawn: list[str] = []
        """Origins of the rows of the present batches."""
        makers = {ONLINE: make_live, DEMONSTRATIONS: make_recorded, INTERVENTIONS: make_interventions}
        made: dict[str, ReplayMemory] = {}
        for name in (DEMONSTRATIONS, INTERVENTIONS):
            if (makers[name] is None) == (name in self._rows):
                raise ConfigError(
                    f"memory.shares.{name}: {shares.get(name, 0):g} of a batch, "
                    + ("and there is no memory for them" if makers[name] is None else "but there is a memory for them")
                )
        try:
            for name, make in makers.items():
                if make is not None:
                    # The live memory receives samples also if none of them is sampled.
                    rows = max(1, self._rows.get(name, 0)) if name == ONLINE else self._rows[name]
                    made[name] = make(nb_steps=nb_steps, device=device, batch_size=rows)
        except BaseException:
            for memory in made.values():
                memory.close()
            raise
        self.live = made[ONLINE]
        self.recorded_sessions = made.get(DEMONSTRATIONS)
        self.interventions = made.get(INTERVENTIONS)
        self.memory_size = sum(memory.memory_size for memory in made.values())

    @property
    def _parts(self) -> dict[str, ReplayMemory]:
        """The memories that rows are drawn from, by origin."""
        found = {ONLINE: self.live, DEMONSTRATIONS: self.recorded_sessions, INTERVENTIONS: self.interventions}
        return {name: memory for name, memory in found.items() if memory is not None and self._rows.get(name)}

    @property
    def _others(self) -> list[ReplayMemory]:
        """The memories besides that of live samples."""
        return [memory for memory in (self.recorded_sessions, self.interventions) if memory is not None]

    @property
    def for_sessions(self) -> TrainingMemory:
        """The memory that recorded sessions are appended to."""
        return self.live if self.recorded_sessions is None else self.recorded_sessions

    def expect(self, schema: DeclaredSamples) -> None:
        """Refuse samples of all kinds that differ from the declaration of environment and policy."""
        for memory in (self.live, *self._others):
            memory.expect(schema)

    def expect_agent(self, agent: AgentLike) -> None:
        """Prepare the memories for the agent.

        Raises:
            ConfigError: one of them cannot serve it.
        """
        self.live.expect_agent(agent)
        for memory in self._others:
            memory.expect_agent(agent)
            memory.share_returns(self.live, counts=memory is not self.interventions)

    def append(self, buffer: Buffer) -> Refusals:
        """Append live samples, and interventions to their memory too; return the refused chunks with the reasons."""
        self.note_statistics(buffer)
        refused = self.live.append(buffer)
        if self.interventions is not None:
            bad = {id(chunk) for chunk, _ in refused}
            taken_over = Buffer(maxlen=None)
            taken_over.extend(
                chunk for chunk in buffer.chunks if IS_INTERVENTION in chunk.extras and id(chunk) not in bad
            )
            self.interventions.append_buffer(taken_over)
        return refused

    def __iter__(self) -> Iterator[Batch]:
        """Yield the batches of a round.

        Raises:
            ValueError: one of the memories is empty.
        """
        marks: torch.Tensor | None = None
        for _ in range(self._nb_steps):
            parts = {name: memory for name, memory in self._parts.items() if name != INTERVENTIONS or len(memory)}
            if marks is None or [*parts] != self._drawn:
                self._drawn = [*parts]
                marks = self._marks()
            yield _joined(tuple(memory.sample() for memory in parts.values()), marks if self._marked else None)

    def _marks(self) -> torch.Tensor:
        """Return [batch] 1 for rows of demonstrations and interventions, 0 for others."""
        marks = [torch.full((self._rows[name],), float(name != ONLINE)) for name in self._drawn]
        return torch.cat(marks).to(self._device or "cpu")

    def __len__(self) -> int:
        """Return the number of transitions of all parts; 0 as long as an awaited part is empty."""
        return self._sum({name: len(memory) for name, memory in self._parts.items()})

    @property
    def sampleable(self) -> int:
        """Number of transitions that may be sampled; 0 if an awaited part has none."""
        return self._sum({name: memory.sampleable for name, memory in self._parts.items()})

    def _sum(self, counts: Mapping[str, int]) -> int:
        awaited = [count for name, count in counts.items() if name != INTERVENTIONS]
        return sum(counts.values()) if all(awaited) else 0

    def update_priorities(self, indices: Indices, td_errors: Indices) -> None:
        """Set priorities of the transitions of a batch, in its order."""
        start = 0
        for name in self._drawn:
            stop = start + self._rows[name]
            self._parts[name].update_priorities(indices[start:stop], td_errors[start:stop])
            start = stop

    def note_version(self, counter: int) -> None:
        """Take the number of the latest published policy; recorded transitions have no policy lag."""
        self.live.note_version(counter)

    def pop_sampled_lag(self) -> tuple[float, int] | None:
        """Return mean and maximum policy lag of sampled live transitions."""
        return self.live.pop_sampled_lag()

    @property
    def prefetched(self) -> int:
        """Number of batches whose rows are sampled already."""
        return min(memory.prefetched for memory in self._parts.values())

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
        for memory in (self.live, *self._others):
            memory.close()


def rows_of_shares(shares: Mapping[str, float], batch_size: int) -> dict[str, int]:
    """Return the rows of a batch by origin, whose sum is the size of the batch.

    Raises:
        ConfigError: a share leaves no row for its part.
    """
    wanted = {name: share * batch_size for name, share in shares.items() if share > 0}
    rows = {name: math.floor(count) for name, count in wanted.items()}
    # The largest remainders get the rows that rounding down has left.
    missing = batch_size - sum(rows.values())
    for name in sorted(wanted, key=lambda name: rows[name] - wanted[name])[:missing]:
        rows[name] += 1
    if sum(rows.values()) != batch_size or not all(rows.values()):
        raise ConfigError(
            f"memory.shares: {dict(shares)} of memory.batch_size = {batch_size} rows are {rows}; each part of a batch "
            "needs at least 1, and the sum of the shares must be 1"
        )
    return rows


def _joined(batches: tuple[Batch, ...], marks: torch.Tensor | None) -> Batch:
    """Return one batch with the rows of all."""
    joined = tuple(map(_cat, *(batch[:6] for batch in batches)))
    if marks is None and all(len(batch) == 6 for batch in batches):
        return joined
    extras: list[State] = [batch[6] if len(batch) > 6 else {} for batch in batches]
    rows = [len(batch[2]) for batch in batches]
    templates = {name: tree for own in reversed(extras) for name, tree in own.items()}
    # Sessions of an expert lack what only the trained policy stores: zeros, as in a memory of both kinds.
    names = dict.fromkeys(name for own in extras for name in own)
    parts: State = {
        name: _cat(
            *(
                own[name] if name in own else _zeros(templates[name], count)
                for own, count in zip(extras, rows, strict=True)
            )
        )
        for name in names
    }
    if marks is not None:
        parts[SHOWN] = marks
    return (*joined, parts)


def _cat(*trees: Tree) -> Tree:
    first = trees[0]
    if isinstance(first, tuple):
        return tuple(map(_cat, *trees))
    if isinstance(first, dict):
        return {key: _cat(*(tree[key] for tree in trees)) for key in first}
    return torch.cat(trees)


def _zeros(tree: Tree, rows: int) -> Tree:
    return map_leaves(lambda leaf: leaf.new_zeros((rows, *leaf.shape[1:])), tree)
