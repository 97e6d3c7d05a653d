"""Training loop: sample, update, publish, insert arrived samples, limit the rates."""

# Theory of operation
#
# One thread does everything here, in turns: it makes updates, inserts what the interface has received, publishes
# policies, and lets a checkpoint be taken. The interface moves bytes and messages in its own thread; an agent or a
# memory never runs in two threads. The loop knows neither the network nor the format of a checkpoint.
#
# Three counts drive it: `total_samples` (environment steps received, resets included), `total_updates`, and `step` (the
# updates of this round). A round has `steps` updates, an epoch `rounds` rounds. A stopped epoch continues where it was,
# in this process or after a resume, because all three are in the checkpoint.
#
# Only arriving samples, published policies and changed limits change what the limits allow. After each of them, the
# loop computes how many updates may follow (`_until_due`), and makes that many without asking again. Example: steps
# 2,000, update_model_interval 100, update_buffer_interval 50, 1 update per sample, 1,030 samples, 1,000 updates. The
# next insertion is due after 50 updates, but the ratio allows 31 (one update more than samples passes), so 31 follow.
# Between them the loop looks for a checkpoint or a stop every 50 ms of updates (`NOTED_S`), and the agent may make
# several in one call (update_batching.py). Where an update takes longer than that, each is followed by a look.
#
# The order between two updates is fixed, and resuming bit for bit depends on it:
#
# - `interface.rest` comes first, where nothing is half done: a checkpoint holds the generator of the memory as it is
#   before the next batch.
# - The batch is taken before samples are inserted, so that it depends on nothing that arrives after the checkpoint's
#   place.
# - Metrics are recorded unread: reading a tensor waits for its device.
# - A policy is published after the updates that it contains, and the turn of synchronous workers is given last,
#   because they act at once.
#
# A sample is acknowledged when the memory has it. `_insert_portion` receives, appends in one call, then commits; a
# delivery that the memory refuses is acknowledged as refused, with the reason. If the disk of the memory does not
# accept the samples, nothing is acknowledged and no more are inserted, so their workers keep them; training continues
# on what it has, as far as its ratio allows, and the write is tried again with each retrieval. Insertions take at most
# about `INSERT_S` at a time, since messages of one hostile worker may take any time to decode.
#
# Waiting (`_hold_ratio`) always takes arriving samples while training lacks something, so no two limits can stop both
# sides. It tells the workers why it waits: the interface recognizes from both sides' reasons that neither can go on.
#
# With several ranks (rank_group.py), the counts that decide are those of all ranks, at the latest meeting
# (`interface.meet`), which follows each run of updates and each retrieval while training waits. Alone, a meeting
# returns what it is given. In numbers: two ranks have received 600 and 430 samples; both know 1,030 and make the same
# 31 updates.
#
# An update that produced NaN or Inf has been rolled back by the agent; the loop counts it, logs which columns of its
# batch hold such numbers, and ends the run after `max_bad_updates` in a row. `updates_skipped` counts them, and so does
# `total_updates`, or the ratio would allow a broken run to repeat the same update for ever.

from __future__ import annotations

import cProfile
import io
import logging
import math
import pstats
import sys
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

from tmrl_core.actor.module import ActorModule
from tmrl_core.config.descriptions import described_by
from tmrl_core.config.sections import LimiterSection, TrainerSection
from tmrl_core.envs.identity import identity_of
from tmrl_core.errors import ConfigError, StorageError
from tmrl_core.long_calls import watched
from tmrl_core.metrics import names
from tmrl_core.networking.protocol.messages import Progress, plain
from tmrl_core.samples import Buffer, Chunk, EpisodeRecord
from tmrl_core.samples.columns import worker_stream
from tmrl_core.signal_handlers import take_back
from tmrl_core.training.checkpointable import parameters_of
from tmrl_core.training.constructor_settings import constructed_settings
from tmrl_core.training.contracts import AgentLike, MemoryLike, Row, TrainingLoop, TrainingMemory, as_agent, as_memory
from tmrl_core.training.interface import Delivery, Standing, TrainingInterface
from tmrl_core.training.loops.episode_metrics import info_means
from tmrl_core.training.loops.limiter import RateLimiter
from tmrl_core.training.loops.recorded_sessions import OutsideActions, SessionLoader
from tmrl_core.training.loops.round_statistics import RoundStatistics
from tmrl_core.training.loops.stale_samples import without_stale
from tmrl_core.training.loops.storage_failures import Unwritten
from tmrl_core.training.loops.threads import Threads
from tmrl_core.training.loops.update_batching import UpdatesAtOnce
from tmrl_core.training.memories.sample_schema import WHAT, DeclaredSamples
from tmrl_core.training.rank_group import RANK_GROUP
from tmrl_core.training.updates.skipped_updates import SKIPPED, BadUpdates
from tmrl_core.training.value_types import Batch, Device, Metrics, Space, State

logger = logging.getLogger(__name__)

REASON_LENGTH = 300
"""Maximum number of characters of a refusal's reason."""

INSERT_S = 0.5
"""Seconds after which further portions of arrived samples wait until training has continued. An honest fleet's samples
take less; a hostile worker's tiny messages, which stand for GB, do not stop training for longer."""

NOTED_S = 0.05
"""Seconds of updates after which their metrics and duration are recorded, and a checkpoint or a stop is looked for, if
no other work is due before."""

TURN_WAIT_S = 0.1
"""Maximum wait in seconds for the trainer's turn between two looks at anything else."""


@watched("the environment's close")
def _close(close: Callable[[], object]) -> None:
    close()


@described_by(TrainerSection, LimiterSection)
class TrainingOffline(TrainingLoop):
    """Off-policy training from a memory that fills during training.

    Args:
        env_cls: creates the environment that defines the spaces; or a pair (observation space, action space).
        memory_cls: `(nb_steps=, device=)` creates the memory.
        training_agent_cls: `(observation_space=, action_space=, device=)` creates the TrainingAgent.
        device: passed to memory and agent; None: the memory gets the agent's.
        declared: parts of the samples ("observation", "action", "extras") that reach the memory as the environment and
            the policy declare them, unchanged by a preprocessor or compressor. A columnar memory rejects samples that
            differ. "extras" are the policy's, in lockstep. With "dtypes", the dtypes of actions and extras are checked
            too.

    Raises:
        ConfigError: `samples_per_insert` and `error_buffer` contradict each other.
    """

    type_id = "offline"
    type_version = 1
    clock: Callable[[], float] = staticmethod(time.monotonic)
    """Seconds."""

    def __init__(
        self,
        env_cls: Any,
        memory_cls: Callable[..., MemoryLike],
        training_agent_cls: Callable[..., AgentLike],
        epochs: int = 10,
        rounds: int = 50,
        steps: int = 2000,
        update_model_interval: int = 100,
        update_buffer_interval: int = 100,
        max_training_steps_per_env_step: float = 1.0,
        sleep_between_buffer_retrieval_attempts: float = 1.0,
        profiling: bool = False,
        agent_scheduler: Callable[[AgentLike, int], None] | None = None,
        start_training: int = 0,
        device: Device = None,
        *,
        max_policy_lag: int | None = None,
        max_bad_updates: int = 10,
        samples_per_insert: float | None = None,
        error_buffer: float | None = None,
        declared: Collection[str] = (),
        threads: int | None = None,
        offline: str | Path | None = None,
        recorded: str | Path | None = None,
        recorded_actions: OutsideActions = "refuse",
    ) -> None:
        self.env_cls = env_cls
        self.memory_cls = memory_cls
        self.training_agent_cls = training_agent_cls
        self.epochs = epochs
        self.rounds = rounds
        self.steps = steps
        self.update_model_interval = update_model_interval
        self.update_buffer_interval = update_buffer_interval
        self.max_training_steps_per_env_step = max_training_steps_per_env_step
        self.sleep_between_buffer_retrieval_attempts = sleep_between_buffer_retrieval_attempts
        self.profiling = profiling
        self.agent_scheduler = agent_scheduler
        self.start_training = start_training
        self.device = device
        self.max_policy_lag = max_policy_lag
        self.max_bad_updates = max_bad_updates
        self.offline = offline
        self.recorded = recorded
        self.recorded_actions = recorded_actions

        self.epoch = 0
        self.round = 0
        """Rounds done in this epoch. Above 0 at the start if the epoch was interrupted."""
        self.step = 0
        """Updates done in this round."""
        self.total_updates = 0
        self.total_samples = 0
        """Environment steps received, resets included. Never lowered."""
        self.samples_stale = 0
        self.sessions_loaded = 0
        """Recorded sessions in the memory; negative: these are all."""
        self.updates_skipped = 0
        """Updates that were skipped because of NaN or Inf. `total_updates` counts them too."""
        self.elapsed_s = 0.0
        """Duration of the run in seconds when it was saved."""
        self.delivery: State = {"incarnation": 0, "counter": 0, "marks": {}}
        """Committed offset of each worker's stream of samples."""
        self.published = False
        self._standing = Standing()
        """Samples of all ranks, and what a memory lacks, at the latest meeting."""
        self._waits_for = ""
        self._yields = False
        """True: workers of the synchronous mode may be collecting."""
        self._unwritten = Unwritten()
        self._refused: tuple[int, str] = (0, "")
        """Number of samples that the memory has refused in this process, and the reason of the last refusal."""
        self.statistics = RoundStatistics()
        self._latest: deque[EpisodeRecord] = deque(maxlen=names.MEAN_OF)
        """The latest training episodes."""
        self._bad = BadUpdates(max_bad_updates)

        if isinstance(env_cls, tuple):
            observation_space, action_space = env_cls
        else:
            try:
                env = env_cls()
                try:
                    observation_space, action_space = env.observation_space, env.action_space
                    self.environment_identity = identity_of(env)
                finally:
                    _close(env.close)
            finally:
                take_back()

        def make_agent() -> AgentLike:
            return training_agent_cls(observation_space=observation_space, action_space=action_space, device=device)

        if device is None:
            # The agent chooses the device, and batches go there.
            self.agent = make_agent()
            chosen = as_agent(self.agent).device
            self.memory: Any = memory_cls(nb_steps=steps, device=None if chosen is None else str(chosen))
        else:
            self.memory = memory_cls(nb_steps=steps, device=device)
            self.agent = make_agent()
        self._agent, self._memory = as_agent(self.agent), as_memory(self.memory)
        ranks = RANK_GROUP.get()
        self.limiter = RateLimiter(
            samples_per_insert,
            max(1, start_training),
            error_buffer,
            self._memory.batch_size * (1 if ranks is None else ranks.size),
            max_updates_per_sample=max_training_steps_per_env_step,
        )
        self._declare((observation_space, action_space), declared)
        self._memory.expect_agent(self._agent)
        key, path = ("memory.recorded", recorded) if offline is None else ("trainer.offline", offline)
        self._sessions = None if path is None else SessionLoader(path, key, action_space, recorded_actions)
        self._at_once = UpdatesAtOnce(self._agent)
        self._made: list[Metrics] = []
        """Metrics of the updates that are not recorded yet."""
        self._made_s = 0.0
        self._threads = Threads(threads, self._agent.device or device)
        self.constructed = constructed_settings(self.agent, "agent") | constructed_settings(self.memory, "memory")
        """Settings after construction. On resume, changed settings take effect."""
        self.follow_memory()

    transient: ClassVar[frozenset[str]] = parameters_of(__init__) | {
        "constructed",
        "environment_identity",
        "published",
        "statistics",
        "_standing",
        "_waits_for",
        "_yields",
        "_unwritten",
        "_refused",
        "_latest",
        "_bad",
        "_at_once",
        "_made",
        "_made_s",
        "_threads",
        "_sessions",
        "_agent",
        "_memory",
    }
    """Attributes that are not in checkpoints. Settings come from the configuration, so that a run can be extended."""

    def follow_memory(self) -> None:
        """Load the counters that a memory on disk has stored with its samples.

        They are never older than a checkpoint's.
        """
        recorded = self._memory.recorded
        if recorded is None:
            return
        offsets, values = recorded
        self.delivery = {
            **self.delivery,
            "incarnation": max(self.delivery["incarnation"], values.get("incarnation", 0)),
            "counter": max(self.delivery["counter"], values.get("counter", 0)),
            "marks": {**self.delivery["marks"], **offsets},
            **{name: values[name] for name in ("gap_messages", "gap_samples") if name in values},
        }
        self.total_samples = values.get("samples", self.total_samples)
        self.samples_stale = values.get("stale", self.samples_stale)
        self.sessions_loaded = values.get("sessions", self.sessions_loaded)

    @property
    def versions_before(self) -> int:
        """Number of the version before the next published one.

        After a resume, the trainer publishes the latest policy once more, in a new incarnation and with the same
        number, so that policy lags equal those of an uninterrupted run.
        """
        return max(0, int(self.delivery["counter"]) - 1)

    @property
    def sampled(self) -> int:
        """Number of sampled transitions, repetitions included."""
        return self.total_updates * self.limiter.batch_size

    def limit_updates(self, updates_per_sample: float) -> None:
        """Replace the maximum of updates for each sample. The present counts are taken as balanced.

        Raises:
            ConfigError: the number is not above 0, or training is from recorded sessions alone.
        """
        if self.offline is not None:
            raise ConfigError("training from recorded sessions alone has no ratio of updates to samples")
        self.limiter.change_most(updates_per_sample, self.total_samples, self.total_updates)

    def _declare(self, declared_spaces: tuple[Space, Space], what: Collection[str]) -> None:
        """Make the memory refuse samples that differ from the declaration, if it supports that."""
        odd = set(what) - WHAT
        if odd:
            raise ConfigError(f"declared: found {', '.join(sorted(odd))}, allowed: {', '.join(sorted(WHAT))}")
        if what:
            actor = self._agent.get_actor() if "extras" in what else None
            # A policy without a declaration of extras may still produce some.
            extras = actor.reset_extras() if isinstance(actor, ActorModule) else None
            self._memory.expect(DeclaredSamples(*declared_spaces, what, extras or None))

    # --- the loop -----------------------------------------------------------------------------------------------------

    @property
    def finished(self) -> bool:
        """Return True if all epochs are done."""
        return self.epoch >= self.epochs

    def run_epoch(self, interface: TrainingInterface) -> list[Row]:
        """Train for one epoch, or until `interface.stopping`; the next call continues an interrupted epoch.

        Returns:
            One row of statistics per finished round.

        Raises:
            StarvedError: both sides wait for each other forever.
            BadUpdatesError: too many consecutive updates were not finite.
        """
        profiler = cProfile.Profile() if self.profiling else None
        if profiler is not None:
            profiler.enable()
        rows = []
        self._begin(interface)
        while self.round < self.rounds and not interface.stopping:
            row = self._round_row(interface)
            if row is None:
                break
            rows.append(row)
        self._end()
        if profiler is not None:
            profiler.disable()
            text = io.StringIO()
            pstats.Stats(profiler, stream=text).sort_stats("cumulative").print_stats(30)
            logger.info("where the epoch's time went:\n%s", text.getvalue())
        return rows

    def run_iteration(self, interface: TrainingInterface) -> Row | None:
        """Train for one round; the last one of an epoch ends it.

        Returns:
            Its row of statistics; None: `interface.stopping` came first, and the next call continues the round.

        Raises:
            StarvedError: both sides wait for each other forever.
        """
        self._begin(interface)
        row = self._round_row(interface) if not interface.stopping else None
        self._end()
        return row

    def _follow_parts(self) -> None:
        """Use the current agent and memory, which an `updater_fn` may have replaced."""
        if self._agent.own is not self.agent:
            self._agent = as_agent(self.agent)
        if self._memory.own is not self.memory:
            self._memory = as_memory(self.memory)

    @property
    def own_format(self) -> bool:
        """True: a subclass has its own `save`."""
        return type(self).save is not TrainingOffline.save

    @property
    def iterations(self) -> int:
        """Rounds done."""
        return self.epoch * self.rounds + self.round

    @property
    def training_memory(self) -> TrainingMemory:
        """The memory with all capabilities."""
        self._follow_parts()
        return self._memory

    def _publish(self, interface: TrainingInterface) -> None:
        interface.broadcast_model(self.agent.get_actor())
        self._yields = True
        self.delivery["counter"] = interface.version[1]
        self._memory.note_version(interface.version[1])

    def _begin(self, interface: TrainingInterface) -> None:
        self._follow_parts()
        if self._sessions is not None:
            self.sessions_loaded = self._sessions.load(self._memory.for_sessions, self.sessions_loaded)
        self._standing = interface.meet(self._own_standing())
        if not self.published:
            self._publish(interface)
            interface.give_turn()
            self.published = True
        if self.agent_scheduler is not None and self.round == 0 and self.step == 0:
            self.agent_scheduler(self.agent, self.epoch)

    def _end(self) -> None:
        if self.round >= self.rounds:
            self.round = 0
            self.epoch += 1

    def _round_row(self, interface: TrainingInterface) -> Row | None:
        """Train for one round. Return its row of statistics; None: the round was stopped early."""
        self._agent.on_notice = interface.event
        with self._threads:
            if not self._run_round(interface):
                return None
        row = self._row()
        interface.record_round(row, self._latest)
        self.round += 1
        self.step = 0
        return row

    def _run_round(self, interface: TrainingInterface) -> bool:
        """Make the updates of a round. False: the round was stopped early."""
        statistics = self.statistics = RoundStatistics()
        self._made, self._made_s = [], 0.0
        if not self._hold_ratio(interface):
            return False
        limiter, batches = self.limiter, iter(self.memory)
        due = change = 0  # updates until other work is due; changes of the limits when that was computed
        while self.step < self.steps:
            if not self._made:  # other work was done, or `NOTED_S` have passed
                limiter.seen = self._standing.samples, self.total_updates
                interface.rest()
                if interface.stopping:
                    break
            before = time.perf_counter()
            batch = next(batches, None)
            if batch is None:
                # The memory yields at least as many batches as a resumed epoch still needs.
                batches = iter(self.memory)
                continue
            sampled = time.perf_counter()
            statistics.sampling_s += sampled - before
            if due == 0:
                if self.total_updates % self.update_buffer_interval == 0:
                    self._poll_samples(interface)
                change, due = limiter.changes, self._until_due()
            due -= self._update(batch, batches, due)
            if due and limiter.changes == change:
                continue
            due = 0
            self._note_updates()
            if self.total_updates % self.update_model_interval == 0:
                # Workers act at once when they have the turn, so the policy and the counts go first.
                self._publish(interface)
                interface.report(self._progress())
                interface.give_turn()
            if not self._hold_ratio(interface):
                break
        self._note_updates()
        self.updates_skipped += self._bad.read_deferred()
        return self.step >= self.steps

    def _until_due(self) -> int:
        """Return the number of updates, at least 1, until other work is due or a limit may hold training.

        Only arriving samples, published policies and changed limits change what the limits allow.
        """
        done = self.total_updates
        due = min(
            self.steps - self.step,
            self.update_model_interval - done % self.update_model_interval,
            self.update_buffer_interval - done % self.update_buffer_interval,
        )
        if self.offline is not None:
            return due
        return max(1, int(min(due, self.limiter.updates_left(self._standing.samples, done))))

    def _update(self, batch: Batch, batches: Iterator[Batch], due: int) -> int:
        """Make an update, or several in one call of the agent, but at most `due`. Return their number.

        Args:
            batch: of the first update.
            batches: yields those of further ones.
            due: see `_until_due`.
        """
        statistics, before = self.statistics, time.perf_counter()
        count = min(due, self._at_once.most(self._memory)) if self._at_once.gains else 1
        if count == 1:
            made = [self._agent.train(batch)]
            if self._agent.td_error_B is not None and len(batch) > 6 and "indices" in batch[6]:
                self._memory.update_priorities(batch[6]["indices"], self._agent.td_error_B)
            used = [batch]
        else:
            used = [batch, *islice(batches, count - 1)]
            sampled = time.perf_counter()
            statistics.sampling_s += sampled - before
            before = sampled
            made = self._agent.train_steps(used)
            count = len(used)
        training_s = time.perf_counter() - before
        statistics.training_s += training_s
        if self._at_once.gains:
            self._at_once.note(count, training_s)
        self.step += count
        for metrics, one in zip(made, used, strict=True):
            self.total_updates += 1
            if SKIPPED in metrics:
                self.updates_skipped += self._bad.note(self.total_updates, metrics, one)
            else:
                self._bad.in_row = 0
        self._made += made
        self._made_s += training_s
        if self._made_s >= NOTED_S:
            self._note_updates()
        return count

    def _note_updates(self) -> None:
        """Record the metrics and the duration of the latest updates."""
        made, self._made = self._made, []
        made_s, self._made_s = self._made_s, 0.0
        if made:
            self.statistics.add(*made)
            self._threads.note(len(made), made_s)

    def _poll_samples(self, interface: TrainingInterface) -> None:
        """Insert arrived samples, unless training is so far behind that they have to wait."""
        if self.limiter.can_insert(self._standing.samples, self.total_updates):
            self.update_buffer(interface)
        else:
            interface.wait(0.0)  # the wait handles other due work

    def update_buffer(self, interface: TrainingInterface) -> None:
        """Insert arrived samples into the memory and commit them, portion by portion, for at most about `INSERT_S`.

        Samples that a memory on disk cannot write are not acknowledged, and no more are inserted until it can: their
        workers keep them.
        """
        until = self.clock() + INSERT_S
        while self._insert_portion(interface) and interface.has_more and self.clock() < until:
            if not self.limiter.can_insert(self._standing.samples, self.total_updates):
                break

    def _insert_portion(self, interface: TrainingInterface) -> bool:
        """Insert and commit what one call of `receive` returns. False: the disk does not accept samples."""
        try:
            deliveries = interface.receive()
        except StorageError as exc:
            self._unwritten.note(exc)
            return False
        for delivery in deliveries:
            for chunk in delivery.chunks:
                chunk.origin = interface.origin(worker_stream(chunk.stream))
        self._take(deliveries, interface.version[1])
        committed = self.commit(interface)
        self._standing = interface.agreed(self._own_standing())
        if self._waits_for:
            self._waits_for = self._shortfall()
        interface.report(self._progress())
        return committed

    def _take(self, deliveries: Sequence[Delivery], counter: int) -> None:
        """Append the samples of all deliveries to the memory in one call.

        `counter` is the number of the latest version.
        """
        arrived = Buffer(maxlen=None)
        kept_in: dict[int, tuple[Chunk, Delivery]] = {}  # by the id of the chunk, which stays valid with the chunk
        received = 0
        for delivery in deliveries:
            kept = delivery.chunks
            if not delivery.expert:
                kept = without_stale(kept, counter, self.max_policy_lag, self.statistics.note_lag)
            received += delivery.rows
            for chunk in kept:
                kept_in[id(chunk)] = chunk, delivery
            arrived.extend(kept, delivery.records)
        self.samples_stale += received - len(arrived)
        if len(arrived) or arrived.episodes:
            for refused, reason in self._memory.append(arrived) or ():
                received -= refused.rows
                self._refused = (self._refused[0] + refused.rows, str(reason))
                if id(refused) in kept_in:
                    kept_in[id(refused)][1].refuse(str(reason))
            self._latest += [
                record for record in arrived.episodes if record.mode == "train" and record.end != "aborted"
            ]
        self.total_samples += received
        self.statistics.samples += received
        for delivery in deliveries:
            delivery.accept()

    def commit(self, interface: TrainingInterface) -> bool:
        """Acknowledge inserted samples.

        False: the disk does not accept them. The failure is logged and the write repeated.
        """
        try:
            interface.commit()
        except StorageError as exc:
            self._unwritten.note(exc)
            return False
        self._unwritten.over()
        return True

    def _shortfall(self) -> str:
        """Describe the limit that holds training; empty: training may continue."""
        lack = self._describe_shortfall()
        why = self._unwritten.why
        return f"{lack}, and the replay memory cannot be written: {why}" if lack and why else lack

    def _describe_shortfall(self) -> str:
        if self.offline is not None:
            return ""
        samples, lack = self._standing
        # The start goes before what a memory lacks, which the samples until then may bring.
        if 0 < samples < self.start_training:
            return f"{samples} of trainer.start_training = {self.start_training} samples have arrived"
        return lack or self.limiter.shortfall(samples, self.total_updates)

    def _own_standing(self) -> Standing:
        return Standing(self.total_samples, self._own_shortfall())

    def _own_shortfall(self) -> str:
        """Describe what this trainer's memory lacks for a batch; empty: nothing."""
        if self.offline is not None:
            return ""
        if self.total_samples == 0:
            refused, reason = self._refused
            if refused:
                return f"all {refused} samples that have arrived were refused: {plain(reason, REASON_LENGTH)}"
            return "no sample has arrived yet"
        if len(self.memory) == 0:
            return f"{self.total_samples} samples have arrived, but no complete transition"
        if self._memory.sampleable == 0:
            return (
                f"none of {len(self.memory)} transitions is as recent as memory.max_drawn_lag asks (where workers wait "
                "for updates meanwhile, raise that or trainer.update_model_interval)"
            )
        return ""

    def _hold_ratio(self, interface: TrainingInterface) -> bool:
        """Wait until training may continue. False: `interface.stopping`."""
        self._standing = interface.meet(self._own_standing())
        if not self._shortfall() and (not self._yields or interface.has_turn()):
            self._yields = False
            return not interface.stopping
        started = time.perf_counter()
        try:
            held = self._wait_for_samples(interface)
        finally:
            self.statistics.idle_s += time.perf_counter() - started
        # The reason stays after an error, because waiting workers still need it.
        if self._waits_for:
            self._waits_for = ""
            interface.report(self._progress())
        return held

    def _wait_for_samples(self, interface: TrainingInterface) -> bool:
        while not interface.stopping:
            # Checked before the insertion, when all samples sent before this status have arrived.
            has_turn = interface.has_turn()
            self.update_buffer(interface)
            self._standing = interface.meet(self._own_standing())
            lack = self._shortfall()
            if not lack and has_turn:
                self._yields = False
                return True
            interface.rest()
            if lack != self._waits_for:
                logger.debug("waiting: %s", lack)
                self._waits_for = lack
                interface.report(self._progress())
            if lack:
                interface.wait(self.sleep_between_buffer_retrieval_attempts)
            else:
                interface.wait_for_turn(TURN_WAIT_S)
        return False

    def _progress(self) -> Progress:
        # Report the recorded reason, so that observers of both sides see one reason for as long as this side waits.
        return Progress(
            samples=self._standing.samples,
            updates=self.total_updates,
            start_training=self.start_training,
            lack=self._waits_for,
        )

    def _row(self) -> Row:
        infos = info_means("rollout", [record.metrics for record in self._latest])
        row: Row = {
            "epoch": self.epoch,
            "round": self.round,
            "updates": self.total_updates,
            "samples_received": self._standing.samples,
            "memory_len": len(self.memory),
            **self._fill(),
            "return_test": self._memory.stat_test_return,
            "return_train": self._memory.stat_train_return,
            "episode_length_test": self._memory.stat_test_steps or math.nan,
            "episode_length_train": self._memory.stat_train_steps or math.nan,
            "samples_stale": self.samples_stale,
            "updates_skipped": self.updates_skipped,
            **self._optimizer_metrics(),
            **{names.short(name): value for name, value in infos.items()},
            **self.statistics.row(),
        }
        sampled_lag = self._memory.pop_sampled_lag()
        if sampled_lag is not None and self.offline is None:
            row["drawn_lag_mean"], row["drawn_lag_max"] = sampled_lag
        return row

    def _fill(self) -> dict[str, float]:
        capacity = self._memory.memory_size
        return {"memory_fill": len(self.memory) / capacity} if capacity else {}

    def _optimizer_metrics(self) -> dict[str, float]:
        if "torch" not in sys.modules:  # without torch, no agent has torch optimizers
            return {}
        from tmrl_core.training.agents.optimizers import optimizer_metrics

        return optimizer_metrics(self.agent)

    # --- checkpoints --------------------------------------------------------------------------------------------------

    def save(self, path: str | Path) -> None:
        """Write the complete state, from which training continues identically, to the folder `path`.

        Raises:
            CheckpointError: it cannot be written.
        """
        from tmrl_core.training.checkpoints.checkpoint_folder import save_training

        save_training(self, Path(path))

    def load(self, path: str | Path) -> None:
        """Load the state that `save` wrote. This object must have been created with the same arguments.

        Raises:
            CheckpointError: the checkpoint is damaged or belongs to another configuration. Nothing was changed then.
        """
        from tmrl_core.training.checkpoints.checkpoint_folder import load_training

        load_training(self, Path(path))
        self.published = False


class TorchTrainingOffline(TrainingOffline):
    """`TrainingOffline` that selects a device if none is given: cuda if available, otherwise cpu."""

    type_id = "torch_offline"
    type_version = 1

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        import torch

        if len(args) < 14 and kwargs.get("device") is None:
            kwargs["device"] = "cuda" if torch.cuda.is_available() else "cpu"
        super().__init__(*args, **kwargs)
        logger.debug("training on %s", self.device)
