"""Lockstep training loop: publish version v, collect an exact amount with it, train on that, publish v+1."""

# Theory of operation
#
# A round of training is a round of collection and one call of the agent's `train` with all its samples. The workers
# wait while the trainer trains, and the trainer waits while they collect. Samples of other versions are counted and
# discarded.
#
# The order of a round: a checkpoint may be taken; the policy is published; a due evaluation is requested, before the
# assignments, because workers play it first; what has arrived is taken; workers get their assignments
# (lockstep_round.py) until the round is complete; the agent trains. A stop is obeyed during collection, never between
# the collection and the training: a round that is complete is trained on, since its samples are acknowledged and would
# be lost. A stopped round is cancelled and collected again later.
#
# If a peer knows a higher incarnation than this trainer's, the published policy gets another version. The round then
# begins again with that version, since workers would collect with it.
#
# With a seed, the first episode of each stream in this process is seeded by round and position. One worker and one seed
# give the same weights bit for bit, and several workers do while none is late (`min_workers`: the first round waits for
# so many, or its assignments would depend on the order in which workers connect). Episodes do not continue across
# incarnations, since a new process does not know their beginnings; checkpoints hold no samples of a round.
#
# Rejected: log-densities that the trainer recomputes (the acting policy may differ from the trainer's: another backend,
# another precision), so workers send them with the samples.

from __future__ import annotations

import logging
import math
import statistics as stats
import time
from collections.abc import Callable, Hashable, Sequence
from typing import Any, ClassVar, Protocol

import numpy as np

from tmrl_core.config.descriptions import described_by
from tmrl_core.config.sections import LockstepSection, TrainerSection
from tmrl_core.errors import ConfigError
from tmrl_core.training.checkpointable import parameters_of
from tmrl_core.training.contracts import MemoryLike
from tmrl_core.training.interface import Standing, TrainingInterface
from tmrl_core.training.loops.evaluation import mean_of
from tmrl_core.training.loops.lockstep_round import Round
from tmrl_core.training.loops.round_memory import RoundMemory
from tmrl_core.training.loops.round_statistics import RoundStatistics
from tmrl_core.training.loops.training_loop import TrainingOffline
from tmrl_core.training.memories.memory import MAX_STREAMS
from tmrl_core.training.value_types import Device, Maker, Policy, State

logger = logging.getLogger(__name__)

POLL_S = 0.2
"""Maximum wait in seconds between two checks of the connected workers."""
NAMED = 5
"""Maximum number of workers that one message names."""
RECENT_ROUNDS = 10
"""Number of rounds for which the stalls of an origin and the patience that it needed are remembered."""


class RoundStore(MemoryLike, Protocol):
    """A memory that holds the samples of one round."""

    round: Round | None

    def begin(self, round_: Round, /) -> None:
        """Begin another round."""

    @property
    def episodes(self) -> Sequence[tuple[float, int]]:
        """Return (return, length) of the episodes that count in this round; a return is NaN if it is not known."""


@described_by(TrainerSection, LockstepSection)
class TrainingLockstep(TrainingOffline):
    """On-policy training: each round trains exactly on the samples collected with the current version.

    The parameters of `TrainingOffline` about ratios, intervals and stale samples have no effect, and there is no replay
    memory.

    Args:
        env_cls: creates the environment that defines the spaces; or a pair (observation space, action space).
        memory_cls: not used.
        training_agent_cls: `(observation_space=, action_space=, device=)` creates the agent; its `train` gets a whole
            round, as `RoundMemory.batch` returns it, and may report its number of updates in the metric `updates`.
        steps: not used.
        seed: combined with the number of the round into the seed of each worker's first episode; None: workers use
            their own seeds.
        clock: seconds.
        kwargs: as for `TrainingOffline`.

    Raises:
        ConfigError: not exactly one of `steps_per_round` and `episodes_per_round` is given.
    """

    type_id = "lockstep"
    type_version = 1

    def __init__(
        self,
        env_cls: Any,
        memory_cls: Maker | None = None,
        training_agent_cls: Maker | None = None,
        epochs: int = 10,
        rounds: int = 50,
        steps: int = 1,
        *args: Any,
        steps_per_round: int | None = None,
        episodes_per_round: int | None = None,
        grace_s: float = 30.0,
        min_workers: int = 1,
        seed: int | None = None,
        clock: Callable[[], float] = time.monotonic,
        **kwargs: Any,
    ) -> None:
        if training_agent_cls is None:
            raise ConfigError("training_agent_cls is missing; pass a callable that makes the agent.")
        if (steps_per_round is None) == (episodes_per_round is None):
            raise ConfigError(
                "trainer.lockstep: set one of steps_per_round and episodes_per_round, the other one to null; found "
                f"{steps_per_round} and {episodes_per_round}"
            )
        self.steps_per_round = steps_per_round
        self.episodes_per_round = episodes_per_round
        self.grace_s = grace_s
        self.min_workers = min_workers
        self.seed = seed
        self.clock = clock
        self.rounds_done = 0
        """Rounds trained since the run began."""
        self.redistributed = 0
        """Steps or episodes that were reassigned from stalled workers."""
        self.suspended: set[bytes] = set()
        """Streams of stalled workers that have sent nothing since, and do not wait."""
        self.stalled_origins: dict[Hashable, int] = {}
        """Latest round in which each origin has stalled, of recent rounds."""
        self.needed: dict[Hashable, tuple[int, float]] = {}
        """Round and patience, see `Round`, of recent rounds."""
        self._begun = False
        """True: a round was collected in this process."""
        self._too_long: set[bytes] = set()
        """Streams of workers that were named for an episode that is too large."""
        self._round_shortfall = ""
        self._seeded: set[bytes] = set()
        super().__init__(
            env_cls,
            self.make_round_memory,
            training_agent_cls,
            epochs,
            rounds,
            steps,
            *args,
            **kwargs,
        )
        if self._agent.times_updates:
            self._agent.after_update = lambda seconds: self._threads.note(1, seconds)

    transient: ClassVar[frozenset[str]] = parameters_of(__init__) | {
        "_begun",
        "suspended",
        "stalled_origins",
        "needed",
        "_seeded",
        "_too_long",
        "_round_shortfall",
    }

    def make_round_memory(self, *, nb_steps: int, device: Device) -> RoundStore:
        """Return the memory of the samples of a round."""
        return RoundMemory(device, self.clock)

    @property
    def versions_before(self) -> int:
        """Number of published versions: each round publishes its own."""
        return int(self.delivery["counter"])

    def limit_updates(self, updates_per_sample: float) -> None:
        """Refuse: the agent decides how often it trains on a round.

        Raises:
            ConfigError: always.
        """
        raise ConfigError("in lockstep, each round is trained on as its algorithm says: there is no ratio of updates")

    def _begin(self, interface: TrainingInterface) -> None:
        self.published = True  # each round publishes its policy itself
        super()._begin(interface)

    def _run_round(self, interface: TrainingInterface) -> bool:
        self.statistics = RoundStatistics()
        self._standing = interface.meet(self._own_standing())
        interface.rest()
        with interface.whole_round():
            if not self._collect_and_train(interface):
                return False
        interface.report(self._progress())
        return True

    def _own_standing(self) -> Standing:
        return Standing(self.total_samples)  # whether a round is complete is decided while it is collected

    def _collect_and_train(self, interface: TrainingInterface) -> bool:
        """Collect a round with the current policy, and train on it. False: collection was stopped before."""
        if not self.collect(interface, self.agent.get_actor()):
            return False
        self._train()
        return True

    # --- collection ---------------------------------------------------------------------------------------------------

    def collect(self, interface: TrainingInterface, policy: Policy) -> bool:
        """Publish a policy, and collect a round with it. False: collection was stopped before the end."""
        interface.broadcast_model(policy)
        self.delivery["counter"] = interface.version[1]
        # Request a due evaluation before the collection: workers run it first.
        interface.report(self._progress())
        self.update_buffer(interface)
        started = time.perf_counter()
        done = self._collect(interface)
        self.statistics.idle_s += time.perf_counter() - started
        return done

    def _collect(self, interface: TrainingInterface) -> bool:
        memory: RoundStore = self.memory
        round_ = self._begin_round(interface)
        try:
            while not interface.stopping:
                if interface.version != round_.version:
                    # A peer reported a higher incarnation than this trainer's, so the policy has a new version.
                    self._cancel(interface, round_)
                    round_ = self._begin_round(interface)
                self.update_buffer(interface)
                self._name_long_episodes(round_)
                workers = interface.workers()
                lack = "" if round_.complete else self._round_lack(round_, len(workers))
                self._standing = interface.meet(Standing(self.total_samples, lack))
                if not self._standing.lack:
                    return True
                self._begun = self._begun or len(workers) >= self.min_workers
                asked = round_.poll(
                    workers if self._begun else (), self.clock(), interface.says_done, interface.says_idle
                )
                for stream, what in asked:
                    interface.collect(what, stream)
                self._report_shortfall(interface)
                interface.wait(min(POLL_S, self.sleep_between_buffer_retrieval_attempts))
            self._cancel(interface, round_)
            memory.round = None
            return False
        finally:
            self._round_shortfall = self._waits_for = ""
            self._count(round_)

    def _name_long_episodes(self, round_: Round) -> None:
        """Log the workers whose episodes are too large, once each."""
        names = {stream: name for stream, name in round_.too_long.items() if stream not in self._too_long}
        if names and len(self._too_long) < MAX_STREAMS:
            self._too_long |= names.keys()
            logger.warning(
                "round %d: an episode of more than %d MB was dropped, from %s; a round of episodes needs whole ones: "
                "set worker.max_samples_per_episode, or trainer.lockstep.steps_per_round instead of episodes_per_round",
                round_.number,
                round_.max_episode_bytes >> 20,
                _named(list(names.values())),
            )

    def _begin_round(self, interface: TrainingInterface) -> Round:
        if max(len(self.suspended), len(self._seeded)) > MAX_STREAMS:
            present = {stream for stream, _ in interface.workers()}
            self.suspended &= present
            self._seeded &= present
        oldest = self.rounds_done + 1 - RECENT_ROUNDS
        recent = [(origin, number) for origin, number in self.stalled_origins.items() if number >= oldest]
        self.stalled_origins = dict(recent[-MAX_STREAMS:])
        needed = [(origin, need) for origin, need in self.needed.items() if need[0] >= oldest]
        self.needed = dict(needed[-MAX_STREAMS:])
        round_ = Round(
            self.rounds_done + 1,
            interface.version,
            amount=self.steps_per_round or self.episodes_per_round or 0,
            episodes=self.episodes_per_round is not None,
            grace_s=self.grace_s,
            suspended=self.suspended,
            seed_of=self._seed_of,
            origin_of=interface.origin,
            stalled_origins=self.stalled_origins,
            needed=self.needed,
        )
        self.memory.begin(round_)
        return round_

    def _cancel(self, interface: TrainingInterface, round_: Round) -> None:
        """Cancel the round's collection."""
        for stream in round_.assignments:
            interface.collect(None, stream)
        self._count(round_)

    def _count(self, round_: Round) -> None:
        """Add the round's counters to the totals, once."""
        self.samples_stale += round_.late + round_.surplus
        self.redistributed += round_.redistributed
        if round_.stalled:
            logger.warning(
                "round %d: %d %s were taken from %s and given to others",
                round_.number,
                round_.redistributed,
                "episodes" if round_.in_episodes else "steps",
                _named(round_.stalled),
            )
        round_.late = round_.surplus = round_.redistributed = 0
        round_.stalled = []

    def _seed_of(self, stream: bytes, index: int) -> int | None:
        """Return the seed of a stream's first episode in this process; None: its episodes continue."""
        if self.seed is None or stream in self._seeded:
            return None
        self._seeded.add(stream)
        return int(np.random.SeedSequence([self.seed, self.rounds_done, index]).generate_state(1)[0] >> 1)

    def _round_lack(self, round_: Round, workers: int) -> str:
        noun = "episodes" if round_.in_episodes else "steps"
        return (
            f"{round_.collected} of {round_.amount} {noun} of round {round_.number} have arrived, "
            f"{workers} {'worker is' if workers == 1 else 'workers are'} there"
            f"{'' if self._begun else f', trainer.lockstep.min_workers is {self.min_workers}'}"
        )

    def _report_shortfall(self, interface: TrainingInterface) -> None:
        if (lack := self._standing.lack) != self._waits_for:
            self._round_shortfall = self._waits_for = lack
            interface.report(self._progress())

    def _describe_shortfall(self) -> str:
        return self._round_shortfall

    # --- training -----------------------------------------------------------------------------------------------------

    def _train(self) -> None:
        memory: RoundMemory = self.memory
        statistics = self.statistics
        before = time.perf_counter()
        batch = memory.batch()
        assert (memory.versions() == np.array(memory.round.version if memory.round else ())).all(), (
            "a round holds samples of its version only"
        )
        sampled = time.perf_counter()
        metrics = dict(self._agent.train(batch))
        updates = int(metrics.pop("updates", 1))
        skipped = int(metrics.pop("updates_skipped", 0))
        rounds_skipped = self._bad.note(self.rounds_done + 1, metrics, batch)
        self.updates_skipped += skipped or rounds_skipped
        statistics.add(metrics)
        statistics.updates = updates
        statistics.sampling_s += sampled - before
        training_s = time.perf_counter() - sampled
        statistics.training_s += training_s
        if not self._agent.times_updates:
            self._threads.note(updates, training_s)
        self.total_updates += updates
        self.rounds_done += 1

    def _row(self) -> State:
        memory: RoundStore = self.memory
        episodes = memory.episodes
        returns = [episode_return for episode_return, _ in episodes if not math.isnan(episode_return)]
        return {
            **super()._row(),
            "rounds": self.rounds_done,
            "episodes": len(episodes),
            "return_min": min(returns, default=math.nan),
            "return_mean": mean_of(returns) if returns else math.nan,
            "return_max": max(returns, default=math.nan),
            "episode_length_mean": stats.fmean(length for _, length in episodes) if episodes else math.nan,
            "redistributed": self.redistributed,
        }


def _named(workers: Sequence[str]) -> str:
    others = len(workers) - NAMED
    return ", ".join(workers[:NAMED]) + f" and {others} more" * (others > 0)
