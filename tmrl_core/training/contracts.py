"""Contracts between a training loop, its agent, its memory and a Trainer.

Custom classes satisfy `AgentLike`, `MemoryLike` or `LoopLike` and need no base class. Optional capabilities are
declared, with a default, in `TrainingAgent` (agent.py), `TrainingMemory` and `TrainingLoop`: a class that supports a
capability derives from these and overrides it. `as_agent`, `as_memory` and `as_loop` give all other objects the
defaults, so that no other place has to probe an object.
"""

from __future__ import annotations

import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeAlias

from tmrl_core.errors import ConfigError, SampleRefusedError, StorageError
from tmrl_core.samples import Buffer, Chunk
from tmrl_core.training.agent import TrainingAgent
from tmrl_core.training.value_types import Batch, Indices, Metrics, Policy, State, Tree

if TYPE_CHECKING:
    from tmrl_core.training.interface import TrainingInterface
    from tmrl_core.training.memories.sample_schema import DeclaredSamples

logger = logging.getLogger(__name__)

Refusals: TypeAlias = list[tuple[Chunk, SampleRefusedError]]
"""Chunks that a memory cannot store, with the reasons."""
Row: TypeAlias = dict[str, Any]
"""Statistics of a round by name."""
Offsets: TypeAlias = Mapping[bytes, tuple[int, int]]
"""Next message and position of each stream of samples."""


class AgentLike(Protocol):
    """The methods that every agent has. `TrainingAgent` describes them."""

    def train(self, batch: Batch, /) -> Metrics:
        """Compute one update."""

    def get_actor(self) -> Policy:
        """Return the policy to publish, an `ActorModule`."""


class MemoryLike(Protocol):
    """The methods that every memory has. `TrainingMemory` describes them."""

    @property
    def batch_size(self) -> int:
        """Number of transitions in a batch."""

    def append(self, buffer: Buffer, /) -> Refusals | None:
        """Store the samples of a received message."""

    def __iter__(self) -> Iterator[Batch]:
        """Yield the batches of a round."""

    def __len__(self) -> int:
        """Return the number of transitions that can be sampled."""


class LoopLike(Protocol):
    """The attributes and methods that every training loop has. `TrainingLoop` describes them."""

    epoch: int
    epochs: int
    total_updates: int
    total_samples: int
    elapsed_s: float
    delivery: State

    @property
    def agent(self) -> AgentLike | None:
        """Agent whose policy is published."""

    def run_epoch(self, interface: TrainingInterface, /) -> Sequence[Row]:
        """Train for one epoch."""

    def save(self, path: Path, /) -> None:
        """Write a checkpoint."""

    def load(self, path: Path, /) -> None:
        """Read a checkpoint."""


class TrainingMemory(ABC):
    """Store received samples, yield batches, and keep the returns of the latest episodes.

    A memory on disk sets `disk`, and may be set to write on request only (`deferred`): `commit` then writes the new
    samples together with the offsets of their streams, before these are acknowledged.

    Attributes:
        stat_test_return, stat_train_return: return of the latest episode of each mode; NaN before the first. Episodes
            of an evaluation and aborted ones do not count.
        stat_test_steps, stat_train_steps: length of that episode.
        deferred: on disk, write with `commit` only.
        declared: format that environment and policy declare; None: unknown, the first samples define it.
    """

    transient: ClassVar[frozenset[str]] = frozenset({"declared"})

    batch_size: int = 1
    """Number of transitions in a batch."""
    memory_size: int = 0
    """Maximum number of transitions; 0: unknown."""
    deferred: bool = False
    declared: DeclaredSamples | None = None

    def __init__(self) -> None:
        self.stat_test_return = math.nan
        self.stat_train_return = math.nan
        self.stat_test_steps = 0
        self.stat_train_steps = 0

    @abstractmethod
    def append(self, buffer: Buffer) -> Refusals | None:
        """Store the samples of a received message and record its episodes.

        Returns:
            Chunks that do not fit, with the reasons; None or nothing: all are stored.
        """

    def __iter__(self) -> Iterator[Batch]:
        """Yield the batches of a round; a loop iterates again when it needs more."""
        raise NotImplementedError(f"{type(self).__name__} yields no batches")

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of transitions that can be sampled."""

    def note_statistics(self, buffer: Buffer) -> None:
        """Record the latest episodes of `buffer`."""
        for record in buffer.episodes:
            if record.evaluation is not None or record.end == "aborted":
                continue
            if record.mode == "test":
                self.stat_test_return, self.stat_test_steps = record.episode_return, record.length
            else:
                self.stat_train_return, self.stat_train_steps = record.episode_return, record.length

    def statistics_state(self) -> list[float]:
        """Return the statistics for a checkpoint."""
        return [self.stat_test_return, self.stat_train_return, self.stat_test_steps, self.stat_train_steps]

    def restore_statistics(self, state: Sequence[float]) -> None:
        """Load the result of `statistics_state`."""
        self.stat_test_return, self.stat_train_return = float(state[0]), float(state[1])
        self.stat_test_steps, self.stat_train_steps = int(state[2]), int(state[3])

    # --- capabilities, each with its default --------------------------------------------------------------------------

    @property
    def own(self) -> object:
        """The user's memory, without the wrapper of `as_memory`."""
        return self

    def expect(self, schema: DeclaredSamples) -> None:
        """Keep the declaration of environment and policy in `declared`. A memory may refuse samples that differ."""
        self.declared = schema

    def expect_agent(self, agent: AgentLike) -> None:
        """Refuse an agent whose policy does not fit this memory, with ConfigError. Default: accept all.

        A memory that scales rewards (`TrainingAgent.return_scale`) begins to here. The default one says that it does
        not.
        """
        if isinstance(agent, TrainingAgent) and agent.return_scale is not None:
            logger.warning(
                "%s expects scaled rewards, and %s does not scale them: discounted returns beyond %g count as that. "
                "Take memory.cls: tmrl_core.training:ReplayMemory, or scale rewards in the environment",
                type(agent).__name__,
                type(self.own).__name__,
                agent.return_scale[1],
            )

    def update_priorities(self, indices: Indices, td_errors: Indices) -> None:  # noqa: B027  # not abstract: few sample by them
        """Set priorities of transitions of a batch: its extra `indices`, and TD errors [n]. Default: there are none."""

    def note_version(self, counter: int) -> None:  # noqa: B027  # not abstract: policy lag may not matter
        """Record the number of the latest published policy. Default: nothing depends on it."""

    @property
    def sampleable(self) -> int:
        """Number of transitions that may be sampled at the version of `note_version`. Default: all."""
        return len(self)

    def pop_sampled_lag(self) -> tuple[float, int] | None:
        """Return mean and maximum policy lag of transitions sampled since the last call; None (default): unknown."""
        return None

    @property
    def prefetched(self) -> int:
        """Number of batches that are already sampled and come next. Default: 0."""
        return 0

    @property
    def for_sessions(self) -> TrainingMemory:
        """The memory that recorded sessions are appended to. Default: this one."""
        return self

    @property
    def disk(self) -> object | None:
        """The rows on disk; None (default): samples are in RAM."""
        return None

    @property
    def recorded(self) -> tuple[dict[bytes, tuple[int, int]], State] | None:
        """Offsets and counters of the last `commit` on disk; None (default): there are none."""
        return None

    def commit(self, offsets: Offsets | None = None, **values: Tree) -> None:  # noqa: B027  # not abstract: RAM has no log
        """Write new samples with the offsets of their streams and the run's counters. Default: nothing to write.

        Raises:
            StorageError: the samples cannot be written; the call must be repeated.
        """

    def flush(self) -> None:  # noqa: B027  # not abstract: as `commit`
        """Flush the disk, so that its data survives the end of the machine.

        Raises:
            StorageError: flushing failed.
        """

    def close(self) -> None:  # noqa: B027  # not abstract: as `commit`
        """Release exclusive resources: a folder, threads."""


class TrainingLoop(ABC):
    """Train an agent with the samples of an interface.

    Attributes:
        epoch: number of finished epochs.
        epochs: total number of epochs.
        total_updates: updates since the run began.
        total_samples: samples received since the run began.
        samples_stale: samples that were discarded on arrival, because their policy was too old.
        elapsed_s: seconds since the run began; set before a checkpoint.
        delivery: committed offsets, counters of policies and of lost samples, position of the records; set before a
            checkpoint. Streams and records resume from it, so a checkpoint has to hold it. Empty at first.
        agent: the agent; None: there is no policy to evaluate or to write to a file at the end.
        environment_identity: identity of the trainer's environment (`envs.identity`); workers are compared with it.
            Empty: unknown.
    """

    epoch: int
    epochs: int
    total_updates: int
    total_samples: int
    samples_stale: int = 0
    environment_identity: Mapping[str, str] = MappingProxyType({})
    elapsed_s: float
    delivery: State
    agent: Any

    @abstractmethod
    def run_epoch(self, interface: TrainingInterface) -> Sequence[Row]:
        """Train for one epoch, or until `interface.stopping`; return a row of statistics for each round."""

    @abstractmethod
    def save(self, path: Path) -> None:
        """Write a checkpoint.

        Raises:
            CheckpointError: the checkpoint cannot be written.
        """

    @abstractmethod
    def load(self, path: Path) -> None:
        """Read a checkpoint.

        Raises:
            CheckpointError: the checkpoint cannot be read. Nothing was changed then.
        """

    # --- capabilities, each with its default --------------------------------------------------------------------------

    @property
    def own(self) -> Any:
        """The user's loop, without the wrapper of `as_loop`."""
        return self

    @property
    def own_format(self) -> bool:
        """True (default): `save` writes its own format. False: the store of checkpoints writes the attributes."""
        return True

    @property
    def iterations(self) -> int:
        """Rounds done, for `run_iteration`."""
        return self.epoch

    def run_iteration(self, interface: TrainingInterface) -> Row | None:
        """Train for one round. None: the round was stopped early. Default: raise ConfigError.

        Raises:
            ConfigError: this loop has no rounds.
        """
        raise ConfigError(
            f"{type(self.own).__name__} trains in epochs only: call Trainer.run, or give it run_iteration(interface) "
            "and derive it from tmrl_core.training.contracts:TrainingLoop"
        )

    @property
    def training_memory(self) -> TrainingMemory | None:
        """Memory whose disk follows the acknowledged samples; None (default): there is none."""
        return None

    @property
    def versions_before(self) -> int:
        """Number of the version before the next published policy. Default: the number of the last one."""
        return int(self.delivery.get("counter", 0))

    def update_buffer(self, interface: TrainingInterface) -> None:  # noqa: B027  # not abstract: may be left to epochs
        """Insert arrived samples outside of an epoch. Default: leave them to the workers."""

    def commit(self, interface: TrainingInterface) -> bool:
        """Acknowledge accepted samples. False: the disk could not store them, which was logged."""
        try:
            interface.commit()
        except StorageError as exc:
            logger.error(
                "samples cannot be kept: %s. They are not acknowledged, so their workers keep them.",
                str(exc).rstrip("."),
            )
            return False
        return True

    def limit_updates(self, updates_per_sample: float) -> None:
        """Limit the updates for each received sample from now on. Default: raise ConfigError.

        Raises:
            ConfigError: this loop has no such limit, or the number is not above 0.
        """
        raise ConfigError(f"{type(self.own).__name__} has no ratio of updates to samples")

    def follow_memory(self) -> None:  # noqa: B027  # not abstract: only a disk is newer than a checkpoint
        """Load counters and offsets that a memory on disk has recorded after the checkpoint."""


class _Agent(TrainingAgent):
    """Wrapper that gives an agent of another class the defaults."""

    def __init__(self, own: AgentLike) -> None:
        self._own = own
        self.device = None

    @property
    def own(self) -> Any:
        return self._own

    def train(self, batch: Batch) -> Metrics:
        return self._own.train(batch)

    def get_actor(self) -> Policy:
        return self._own.get_actor()


class _Memory(TrainingMemory):
    """Wrapper that gives a memory of another class the defaults."""

    def __init__(self, own: MemoryLike) -> None:
        super().__init__()
        self._own = own
        self.batch_size = own.batch_size

    @property
    def own(self) -> object:
        return self._own

    def append(self, buffer: Buffer) -> Refusals | None:
        self.note_statistics(buffer)
        return self._own.append(buffer)

    def __iter__(self) -> Iterator[Batch]:
        return iter(self._own)

    def __len__(self) -> int:
        return len(self._own)


class _Loop(TrainingLoop):
    """Wrapper that gives a training loop of another class the defaults."""

    def __init__(self, own: LoopLike) -> None:
        self._own = own

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own, name)  # attributes of `LoopLike`, which have no default

    @property
    def own(self) -> Any:
        return self._own

    def run_epoch(self, interface: TrainingInterface) -> Sequence[Row]:
        return self._own.run_epoch(interface)

    def save(self, path: Path) -> None:
        self._own.save(path)

    def load(self, path: Path) -> None:
        self._own.load(path)


def as_agent(agent: AgentLike) -> TrainingAgent:
    """Return the agent with all capabilities: itself, or wrapped with the defaults."""
    return agent if isinstance(agent, TrainingAgent) else _Agent(agent)


def as_memory(memory: MemoryLike) -> TrainingMemory:
    """Return the memory with all capabilities: itself, or wrapped with the defaults."""
    return memory if isinstance(memory, TrainingMemory) else _Memory(memory)


def as_loop(loop: LoopLike) -> TrainingLoop:
    """Return the training loop with all capabilities: itself, or wrapped with the defaults."""
    return loop if isinstance(loop, TrainingLoop) else _Loop(loop)


def declarations_of(agent_cls: object) -> type[TrainingAgent]:
    """Return the class that declares the capabilities of this agent class or factory."""
    return agent_cls if isinstance(agent_cls, type) and issubclass(agent_cls, TrainingAgent) else TrainingAgent


def actor_of(loop: LoopLike) -> Policy | None:
    """Return the current policy; None: the training loop has no agent."""
    return None if loop.agent is None else loop.agent.get_actor()
