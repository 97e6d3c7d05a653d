"""The training interface over a Server: a `TrainerLink`, evaluations, and the records of a run."""

# Theory of operation
#
# The link's thread moves bytes and never decodes; this object lives in the training thread, decodes messages, decides
# which are usable, and acknowledges them when the memory has them. It knows the workers as streams with names and
# origins, and nothing of agents beyond the policy that it publishes.
#
# A message goes through three states. *Received*: the link has assembled it, and `_portion` takes it. *Outstanding*: it
# is decoded into a `Delivery`, and the loop decides. *Done*: accepted or refused as a whole; `commit` acknowledges it.
# Streams are acknowledged in order, so an undecided delivery holds back the later ones. With a memory on disk, `keep`
# writes samples and offsets before any acknowledgement leaves; if it raises, nothing was acknowledged, nothing is
# received, and the next call repeats exactly this.
#
# Decoding is bounded, because some kB may decompress to GB and a megabyte of tiny values takes a second instead of a
# millisecond: messages are taken a megabyte (decompressed) at a time, until 0.1 s have passed. What remains waits in
# the inbox, and `has_more` says so. A message with a number that is not finite is refused here, for every kind of
# memory, since it would spoil each update that samples it.
#
# Workers are compared when they join, not when they send: environment and policy are in the signature of a stream. A
# worker with another environment or policy stays linked and runs on, because a policy that does not match must not stop
# a fleet; its samples are refused with a reason that both sides log once. An expert's samples may come from another
# policy, never from another environment. Rejected: running the policy on the first observation (user code on arrays
# from an unknown client, and a multi-layer perceptron accepts any structure of the right size).
#
# Starvation: in synchronous collection the ratios of both sides can make them wait for each other for ever. The trainer
# decides it, because it knows all workers: it lacks samples, and every linked worker reports that it waits, without a
# break for `STARVED_S`, which is longer than a silent link lasts. Workers whose links were lost are waited for (30 s),
# since they may return with the missing samples. The last report has `gave_up`, or the workers would wait for another
# trainer. Rejected: inferring it from silence, which cannot be told from a long episode.
#
# Turns: with one synchronous worker and a seed, worker and trainer alternate, so that no result depends on arrival
# times. `give_turn` requests a due evaluation first and then publishes the turn with the version; `has_turn` is true
# when the worker reports that it waits with exactly this version. A worker that takes no turns (its machine has other
# settings) is recognized after `TURN_S` and never waited for again. With several workers nothing is repeatable, and one
# of them could block the others, so there are no turns.
#
# Reaching the target is confirmed by a second evaluation, since one lucky evaluation is not a result.
#
# Nothing that is done often looks at all workers: one certificate may open thousands of streams, and a Server's members
# change in `take_member_changes` alone. What a member chooses (names, metrics, records, the rate of joining) is bounded
# where it would grow for the life of the process, because sinks keep a series for each name for ever.
#
# While one update takes long, the link's thread writes the record of the network instead (`_record_while_busy`): it
# reads counters only, and a display then shows within 2 s what arrives.

from __future__ import annotations

import contextlib
import itertools
import logging
import statistics
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from types import MappingProxyType

import msgspec

from tmrl_core.actor.interventions import IS_INTERVENTION, taken_over
from tmrl_core.actor.module import ActorModule
from tmrl_core.actor.policies.bundle import PolicyBundle
from tmrl_core.actor.policies.weights import SAFETENSORS_FORMAT, difference, with_bfloat16_matrices
from tmrl_core.bounded_texts import BoundedTexts
from tmrl_core.envs.identity import differences
from tmrl_core.errors import CodecError, SampleRefusedError, StarvedError
from tmrl_core.metrics import names
from tmrl_core.metrics.recorder import Recorder
from tmrl_core.metrics.records import Kind, Value, episode_values
from tmrl_core.metrics.text import return_text
from tmrl_core.networking.links import TrainerLink
from tmrl_core.networking.links.remark_log import RemarkLog
from tmrl_core.networking.protocol.delivery import Received
from tmrl_core.networking.protocol.messages import (
    EXPERT,
    MAX_REASON_CHARACTERS,
    TURN,
    Blob,
    Collect,
    Directive,
    Evaluation,
    Lateness,
    Progress,
    Version,
    encode_body,
    plain,
    starves,
    turn_text,
    waits_for_round,
)
from tmrl_core.networking.trainer import Member
from tmrl_core.networking.trainer.inbox import TAKEN_BYTES, TAKEN_MESSAGES
from tmrl_core.samples import EpisodeRecord, decode_message, decode_value
from tmrl_core.samples.codec import most_records
from tmrl_core.samples.columns import by_lane
from tmrl_core.samples.images import ImageDecoder
from tmrl_core.samples.segments import INTERVENTION_RATE
from tmrl_core.token_bucket import TokenBucket
from tmrl_core.training.interface import Delivery, TrainingInterface, settled
from tmrl_core.training.loops.episode_metrics import MetricNames, info_means, plain_names
from tmrl_core.training.loops.evaluation import EvaluationResult, Evaluator, mean_of
from tmrl_core.training.memories.memory import MAX_STREAMS
from tmrl_core.training.memories.sample_check import check_samples
from tmrl_core.training.remote.equal_ends import EqualEnds
from tmrl_core.training.remote.operations import Operations
from tmrl_core.training.remote.telemetry import Progressing
from tmrl_core.training.value_types import Metrics, Policy, State

logger = logging.getLogger(__name__)

MAX_SESSION_CHARACTERS = 33
"""Maximum length of a slash and the id of a client session."""

MAX_RECORDS = 500
"""Maximum number of episode records of a message that are used: each takes up to 60 us. Workers send 250 at most."""
DECODED_BYTES, DECODE_S = 1 << 20, 0.1
"""Bytes (decompressed) of the messages that are decoded between two looks at the clock, and seconds after which the
rest waits for the next call: a megabyte takes a millisecond in arrays, and a second as a million of tiny values."""
HOLD_S = 0.1
"""Seconds between two looks at what arrives while an operator has paused training."""
SLICE_S = 0.2
"""Maximum wait in seconds between two checks for a stop."""
NETWORK_RECORD_S = 1.25
"""Seconds between two records of the network."""
BUSY_S = 1.5
"""Seconds after a record of the network in which the link's thread writes the next one, because the training thread is
busy. Displays show within 2 s what arrives."""
STARVED_S = 12.0
"""Seconds for which the trainer and every worker must report waiting before this counts as starvation. It is longer
than the timeout of a silent link, so that an outdated report of an unreachable worker does not count.
"""
_SILENT_S = 10.0
"""Longest timeout of a silent link for which that time is sufficient."""
PLAYS_S = 60.0
"""Seconds after its latest message for which a worker counts as one that plays; episodes may be long."""
AWAY_S = 30.0
"""Seconds to wait for a disconnected worker, which may return with the missing samples."""
TURN_S = 60.0
"""Seconds after which synchronous training continues although the worker has not reported that it waits."""
JOINS_AT_ONCE = 1_000
JOINS_PER_S = 1.0
"""Maximum rate of records of joining workers, after a burst, so that workers that join and leave endlessly cannot fill
a disk. Records of the network count all workers."""
WORKERS_CHARTED = 32
"""Maximum number of workers whose rates are recorded separately."""
MAX_CHARTED_NAMES, MAX_CHARTED_NAMES_EACH = 256, 128
"""Maximum number of names among them in the life of a process, and of those of one certificate: metric sinks keep a
series for each name for ever, so no name is freed."""
POLICY = "policy"
"""Name of the published policy, if it is the only one."""


class _Evaluators(Collection[bytes]):
    """Streams of the workers that can evaluate, in the order in which they are asked; a view.

    Args:
        live: all workers that are linked.
        unfit: those with another environment or policy.
        paused: those that an operator has paused.
        strange: those whose latest samples were refused, which come last.
    """

    def __init__(
        self,
        live: Collection[bytes],
        unfit: Collection[bytes],
        paused: Collection[bytes],
        strange: Collection[bytes],
    ) -> None:
        self._live, self._unfit, self._paused, self._strange = live, unfit, paused, strange

    def __contains__(self, stream: object) -> bool:
        return stream in self._live and stream not in self._unfit and stream not in self._paused

    def __iter__(self) -> Iterator[bytes]:
        fit = [stream for stream in self._live if stream in self]
        return iter(sorted(fit, key=self._strange.__contains__))

    def __len__(self) -> int:
        return sum(1 for _ in self)


class RemoteInterface(TrainingInterface):
    """Interface of a Trainer's loop to the Server and the workers.

    Args:
        link: link to the Server.
        evaluator: None: no evaluations.
        recorder: receives the run's records; None: no records.
        target_return: training ends when the mean return of an evaluation reaches it.
        time_limit_s: training ends after this time.
        identity: identity of the trainer's environment (`envs.identity`); workers with another one are logged.
        check_environment: their samples are refused too.
        on_publish: called with each published policy.
        progress: progress of the run before this process.
        clock: seconds.
    """

    def __init__(
        self,
        link: TrainerLink,
        *,
        evaluator: Evaluator | None = None,
        recorder: Recorder | None = None,
        target_return: float | None = None,
        time_limit_s: float | None = None,
        identity: Mapping[str, str] = MappingProxyType({}),
        check_environment: bool = False,
        on_publish: Callable[[Policy], object] | None = None,
        progress: Progress | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.link = link
        self.evaluator = evaluator
        self.recorder = recorder
        self.progress = Progress() if progress is None else progress
        self._samples_before = self.progress.samples
        self.reached_target = False
        self._to_confirm: EvaluationResult | None = None
        """Evaluation that reached the target during training."""
        self.keep: Callable[[list[Received]], None] | None = None
        """Called with messages before they are acknowledged; raises StorageError if they cannot be stored."""
        self.images: ImageDecoder | None = None
        """Decodes the images of samples; None: workers send pixels."""
        self.on_episode: Callable[[EpisodeRecord], None] | None = None
        """Called with the record of each episode."""
        self.on_rest: Callable[[], None] | None = None
        """Called at points where a checkpoint may be written."""
        self.on_admitted: Callable[[], None] | None = None
        """Called once, when the Server has admitted this trainer."""
        self.ending = False
        """True: the final evaluation or the end of the workers is in progress, and nothing interrupts it."""
        self._target_return = target_return
        self._time_limit_s = time_limit_s
        self._identity = identity
        self._check_environment = check_environment
        self._on_publish = on_publish
        self._clock = clock
        self._started = clock()
        self._stop = False
        self._outstanding: list[tuple[Received, Delivery]] = []
        """Received messages that are not acknowledged yet."""
        self._remarks = RemarkLog(logger)
        self._metric_names = MetricNames()
        self._strange: set[bytes] = set()
        """Streams whose latest samples were refused."""
        self._policy: State = {}
        """Architecture of the published policy; empty before the first one, or if unknown."""
        self._unfit: dict[bytes, str] = {}
        """Linked streams whose samples are refused, with the reasons: their workers cannot use the published policy, or
        have another environment."""
        self._foreign: set[bytes] = set()
        """Those with another environment. Experts may have another policy only."""
        self._turn: Version = (0, 0)
        self._turn_since = self._started
        self._turner: bytes | None = None
        """Stream of the only worker in synchronous collection."""
        self._takes_turns = True
        self._revision = 0
        self._evaluations: dict[bytes, Evaluation] = {}
        self._next_numbers: dict[bytes, int] = {}
        """Number of the next message of each stream, if none is lost."""
        self._heard: dict[bytes, float] = {}
        """Time of the latest message of each stream."""
        self._shares: dict[bytes, bytes] = {}
        self._in_round = False
        self._members: dict[bytes, Member] = {}
        """Linked workers. Nothing that is done often looks at all of them, since one certificate may open thousands."""
        self._live: dict[bytes, None] = {}
        """Those whose worker has not ended, the earliest first."""
        self._paused: set[bytes] = set()
        """Linked streams of workers that an operator has paused."""
        self._evaluators = _Evaluators(self._live, self._unfit, self._paused, self._strange)
        self._counters: dict[bytes, int] = {}
        """Number of the policy version of each stream's latest samples."""
        self.operations = Operations(
            link.trainer.orders,
            self._labels,
            self._follow_orders,
            partial(self.event, names.EVENT_ORDER),
            clock=self._clock,
        )
        self._waiting_orders = link.trainer.orders.waiting
        self.on_hold: Callable[[], None] | None = None
        """Called again and again while training is paused; takes the samples that arrive."""
        self._joins = TokenBucket(JOINS_PER_S, JOINS_AT_ONCE)
        self._announced: set[bytes] = set()
        """Streams whose joining was recorded."""
        self._phase = ""
        self._next_record = self._recorded = self._started
        if recorder is not None:
            link.on_time = self._record_while_busy
        self._starved_since: float | None = None
        # Time at which each stream was disconnected, the earliest first. Those of a checkpoint may be older than this
        # process.
        self._missing_since = OrderedDict.fromkeys(link.trainer.offsets, self._started)
        self._stale_samples = 0
        self._equal_ends = EqualEnds()
        """Training episodes, of all workers."""
        self._charted_names = BoundedTexts(MAX_CHARTED_NAMES, MAX_CHARTED_NAMES_EACH)
        self._collected: dict[bytes, int] = {}
        """Number of steps received from each stream since the latest record of the network."""
        self._taken_over: dict[bytes, int] = {}
        """Of these, the number that a person acted, of streams with a person."""
        self._collected_since = self._started

    # --- samples ------------------------------------------------------------------------------------------------------

    def receive(self) -> list[Delivery]:
        """Commit, then return the usable messages that have arrived; refuse the others.

        Raises:
            StorageError: see `commit`; no message was taken.
        """
        self.commit()
        deliveries = []
        earlier = 0  # samples that came with them: after an outage, hundreds of messages
        for one in self._portion():
            delivery = self._decoded(one)
            self._outstanding.append((one, delivery))
            missing = self._next_numbers.get(one.stream, one.number) != one.number
            if one.stream in self._members:  # a stream that has left is not removed again
                self._next_numbers[one.stream] = one.number + 1
                self._heard[one.stream] = self._clock()
            if self.evaluator is not None and (missing or delivery.refusal):
                self.evaluator.lost(one.stream)
            if not delivery.refusal:
                deliveries.append(delivery)
                self._note_episodes(delivery.records, one.stream, earlier)
                earlier += delivery.rows
        self._tick()
        return deliveries

    def _portion(self) -> Iterator[Received]:
        """Take messages, a few at a time until `DECODE_S` have passed: some take a thousand times as long as others."""
        link = self.link
        until, until_bytes = self._clock() + DECODE_S, link.trainer.inbox.taken_cost + TAKEN_BYTES
        taken = 0
        while True:
            received = link.receive(DECODED_BYTES)
            self._note_members()
            yield from received
            taken += len(received)
            if not link.has_more or taken >= TAKEN_MESSAGES:
                return
            if link.trainer.inbox.taken_cost >= until_bytes or self._clock() >= until:
                return

    @property
    def has_more(self) -> bool:
        """True: the latest `receive` has left messages that had arrived."""
        return self.link.has_more

    def _decoded(self, one: Received) -> Delivery:
        """Decode a message, and refuse it if training on it is impossible."""
        delivery = Delivery()
        try:
            message = decode_message(one.payload, max_bytes=self.link.settings.max_message_bytes)
            chunk = message.chunk
            if chunk is not None and chunk.rows:
                self._collected[one.stream] = self._collected.get(one.stream, 0) + chunk.rows
                if one.stream in self._members:  # a stream that has left is not removed again
                    self._counters[one.stream] = chunk.segments[-1].counter
                if IS_INTERVENTION in chunk.extras:
                    acted = int(taken_over(chunk).sum())
                    self._taken_over[one.stream] = self._taken_over.get(one.stream, 0) + acted
            delivery.expert = message.signature == EXPERT
            if one.stream in self._unfit and (not delivery.expert or one.stream in self._foreign):
                raise SampleRefusedError(self._unfit[one.stream])
            if chunk is not None and chunk.rows:
                if self.images is not None:
                    self.images.decode(chunk)
                check_samples(chunk)
                delivery.chunks = by_lane(chunk, one.stream)
                for part in delivery.chunks:
                    part.finite = True
        except (CodecError, SampleRefusedError) as exc:
            delivery.refuse(str(exc))
        else:
            name = self.link.trainer.worker_name(one.stream)
            most = min(MAX_RECORDS, most_records(len(one.payload)))
            if len(message.records) > most:
                self._remarks.remark(
                    f"worker {name} sends more episode records in a message than are allowed; others are not used",
                    self.link.trainer.origin(one.stream),
                )
            delivery.records = [
                msgspec.structs.replace(
                    record,
                    agent=plain(record.agent),  # kept for a while, and of any length
                    worker=plain(episode_label(name, record.worker)),
                    metrics=self._metric_names.recorded(record.metrics, self.link.trainer.origin(one.stream)),
                )
                for record in message.records[:most]
            ]
        return delivery

    def _log_refused(self, stream: bytes, worker: str, reason: str) -> None:
        reason = plain(reason[:MAX_REASON_CHARACTERS])
        self._remarks.remark(
            f"samples of worker {worker} are refused: {reason} (the record `refused` counts all)",
            self.link.trainer.origin(stream),
        )

    def commit(self) -> None:
        """Acknowledge the deliveries that were accepted or refused.

        Raises:
            StorageError: the memory's disk cannot store the samples. Nothing is acknowledged or received until a later
                call.
        """
        # A prefix only: streams are acknowledged in order, and a refused message is settled too.
        done = self._outstanding[: len(settled(delivery for _, delivery in self._outstanding))]
        if done and self.keep is not None:
            self.keep([received for received, _ in done])
        for received, delivery in done:
            if delivery.refusal:
                self._log_refused(received.stream, self.link.trainer.worker_name(received.stream), delivery.refusal)
                self.link.refuse(received, delivery.refusal)
                if received.stream in self._members:  # a stream that has left is not removed again
                    self._strange.add(received.stream)
            else:
                self._strange.discard(received.stream)
                self.link.acknowledge([received])
        del self._outstanding[: len(done)]

    def wait(self, timeout_s: float) -> bool:
        """Wait for samples, `stop` or the time limit.

        Raises:
            StarvedError: workers and trainer wait for each other.
            NetworkError: the Server refuses this trainer permanently.
        """
        return self._wait(timeout_s, lambda: False)

    def wait_for_turn(self, timeout_s: float) -> None:
        """Wait until the worker reports that it waits with the latest version, or as `wait`."""
        stream, text = self._turner, turn_text(self._turn)
        self._wait(timeout_s, lambda: stream is not None and self.link.trainer.waits_of(stream).startswith(text))

    def _wait(self, timeout_s: float, condition: Callable[[], bool]) -> bool:
        deadline = self._clock() + timeout_s
        while not self.stopping:
            self.link.check()
            self._tick()
            self._check_starvation()
            left = deadline - self._clock()
            if left <= 0:
                return False
            if self.link.wait(min(left, SLICE_S), condition):
                return True
        return False

    def _is_worker_missing(self, now: float) -> bool:
        missing = self._missing_since
        while missing and now - next(iter(missing.values())) >= AWAY_S:
            missing.popitem(last=False)
        return bool(missing)

    def _check_starvation(self) -> None:
        now = self._clock()
        self._note_members()
        waits = self._starving_workers()
        if not waits:
            self._starved_since = None
            return
        # A policy in transit may still release a worker, so the state must last for some time.
        self._starved_since = now if self._starved_since is None else self._starved_since
        if now - self._starved_since < STARVED_S + max(0.0, self.link.settings.silent_s - _SILENT_S):
            return
        # Without this message, workers assume that the trainer was killed, and wait for the next one.
        self.report(msgspec.structs.replace(self.progress, gave_up=True))
        workers = "; ".join(f"{name}: {text}" for name, text in waits[:3])
        raise StarvedError(
            f"trainer and workers wait for each other. The trainer: {self.progress.lack} ({self.progress.samples} "
            f"samples received, {self.progress.updates} updates, {self.link.counts.policies_published} policies "
            f"published). All {len(waits)} workers: {workers}. "
            "Raise trainer.max_training_steps_per_env_step, or worker.max_steps_per_update (in asynchronous collection "
            "worker.max_env_steps_per_update), or lower trainer.update_model_interval or trainer.start_training."
        )

    def _starving_workers(self) -> list[tuple[str, str]]:
        """Return the workers and what they wait for, if the trainer and all of them wait for each other."""
        # Who waits for an operator does not starve.
        if self.operations.pauses or self._is_worker_missing(self._clock()) or not self.progress.lack:
            return []
        return self.link.waits if self.link.trainer.all_wait(starves) else []

    # --- policies and directives --------------------------------------------------------------------------------------

    def broadcast_model(self, actor: Policy) -> Version:
        """Publish a policy, or several as a `PolicyBundle`, as the latest."""
        if not self._policy and isinstance(actor, ActorModule | PolicyBundle):
            self._policy = actor.architecture()
            for member in self._members.values():
                self._hold_policy(member)
        bundle = actor if isinstance(actor, PolicyBundle) else _bundle_of(actor)
        policies = bundle.policies
        if self.link.settings.weights == "bfloat16":
            # At the trainer, whose own weights stay as they are: the Server and a packed policy know bytes alone.
            policies = {name: Blob(one.format, _rounded(one)) for name, one in policies.items()}
        version = self.link.publish(policies, bundle.exploration)
        if self._on_publish is not None:
            self._on_publish(actor)
        return version

    @property
    def version(self) -> Version:
        """Version of the latest published policy."""
        return self.link.trainer.version

    def give_turn(self) -> None:
        """Request a due evaluation, which runs before further collection; then give the turn."""
        self._tick()
        self._turn = self.version
        self._turn_since = self._clock()
        self.report(self.progress)

    def has_turn(self) -> bool:
        """Return True when the synchronous worker reports that it waits, with the latest version.

        Turns make runs with one worker repeatable. With several workers, which may be misconfigured, training does not
        wait.
        """
        self._note_members()
        if self._turn != self.version:
            self.give_turn()  # a Server that admits this trainer gives what was published before another number
        if not self._takes_turns or len(self._live) != 1:
            return True
        (stream,) = self._live
        text = self.link.trainer.waits_of(stream)
        if text.startswith(TURN):
            self._turner = stream
        if self._turner != stream:
            return True
        if text.startswith(turn_text(self._turn)):
            return True
        if self._clock() - self._turn_since < TURN_S:
            return False
        self._takes_turns = False
        logger.warning(
            "a worker has not waited for %g s, so training waits for no turns from now on: another run of this seed "
            "may differ",
            TURN_S,
        )
        return True

    def report(self, progress: Progress) -> None:
        """Send the trainer's progress to the workers."""
        progress = self.progress = msgspec.structs.replace(progress, turn=self._turn)
        self.link.report(self._told(progress))
        if self.ending:
            return
        if progress.updates and not progress.lack:
            self._enter("learning")
        elif progress.samples and not progress.updates:
            self._enter("collecting")

    def _told(self, progress: Progress) -> Progress:
        """Return the progress that the workers are told."""
        # They would otherwise count what they wait for during an operator's pause as starvation.
        return msgspec.structs.replace(progress, lack="") if self.operations.pauses else progress

    def ask(self, evaluation: Evaluation, stream: bytes) -> None:
        """Send a worker the request for an evaluation."""
        self._evaluations[stream] = evaluation
        self._direct(stream)

    def collect(self, what: Collect | None, stream: bytes) -> None:
        """Send a worker a collection request."""
        if what is None:
            self._shares.pop(stream, None)
        else:
            self._shares[stream] = encode_body(what)
        self._direct(stream)

    def _direct(self, stream: bytes) -> None:
        """Send the directive of a worker, which is a last value and thus holds all requests."""
        self._revision += 1
        directive = Directive(
            self._revision,
            None if stream in self._paused else self._evaluations.get(stream),
            pause=stream in self._paused,
            collect=self._shares.get(stream),
            refusal=self._unfit.get(stream, ""),
            wanted=self.operations.wanted(self._members[stream].name) if stream in self._members else None,
        )
        self.link.direct(directive, stream)

    def workers(self) -> list[tuple[bytes, str]]:
        """Return the linked workers."""
        self._note_members()
        fit = (stream for stream in self._live if stream not in self._unfit and stream not in self._paused)
        return [(stream, self._members[stream].name) for stream in fit]

    def origin(self, stream: bytes) -> str:
        """Return the name in the worker's certificate; without end-to-end authentication, its label."""
        return self.link.trainer.origin(stream)

    def plays(self, stream: bytes) -> bool:
        """Return True if the worker has sent something lately, or reports that it waits. One that is only made does
        neither.
        """
        heard = self._heard.get(stream)
        return (heard is not None and self._clock() - heard < PLAYS_S) or bool(self.link.trainer.waits_of(stream))

    def note_silence(self, evaluation: Evaluation, stream: bytes, silent_s: float) -> None:
        """Name a worker that was asked for an evaluation and runs no episode."""
        plays, name = self.plays(stream), self.link.trainer.worker_name(stream)
        message = (
            f"evaluation {evaluation.id} waits for worker {name}, which has ended none of its episodes for "
            f"{silent_s:.0f} s{'' if plays else ' and sends nothing: is it running?'}"
        )
        logger.log(logging.INFO if plays else logging.WARNING, "%s", message)
        self.event(names.EVENT_EVALUATION_WAITS, message)

    def says_done(self, stream: bytes, what: Collect) -> bool:
        """Return True if the worker reports that it has finished; it does so once all its samples are acknowledged."""
        return self.link.trainer.waits_of(stream) == what.done

    def says_idle(self, stream: bytes) -> bool:
        """Return True if the worker reports that it waits for the next round, not for a policy."""
        return waits_for_round(self.link.trainer.waits_of(stream))

    @contextlib.contextmanager
    def whole_round(self) -> Iterator[None]:
        """Within this block, reaching the target does not stop training."""
        self._in_round = True
        try:
            yield
        finally:
            self._in_round = False

    def finish(self) -> None:
        """Tell all workers that the run has ended."""
        self._revision += 1
        self.link.direct(Directive(revision=self._revision, finish=True))

    def evaluate_now(self) -> None:
        """Begin an evaluation of the latest policy."""
        if self.evaluator is not None:
            self._enter("evaluating")
            self._note_members()
            self.evaluator.start(self.progress.updates, self.version, self._evaluators)

    def confirm_target(self) -> bool:
        """Return True if a second evaluation has reached the target; otherwise, training may continue."""
        latest = self.evaluator.latest if self.evaluator is not None else None
        second = None if latest is self._to_confirm else latest
        target = self._target_return
        self.reached_target = second is not None and target is not None and second.mean >= target
        if second is None:
            self.event(names.EVENT_TARGET, "not confirmed, training continues: no second evaluation was finished")
        elif self.reached_target:
            self.event(names.EVENT_LEARNED, f"a second evaluation confirms it: {self._compare_with_target(second)}")
        else:
            self.event(names.EVENT_TARGET, f"not confirmed, training continues: {self._compare_with_target(second)}")
        return self.reached_target

    def stop(self) -> None:
        """End training in order; safe in signal handlers and from other threads."""
        self._stop = True

    @property
    def stopping(self) -> bool:
        """True: a stop was requested, the target is reached, or the time limit has passed."""
        if self.ending:
            return False
        return self._stop or self.time_limit_reached or (self.reached_target and not self._in_round)

    @property
    def stop_requested(self) -> bool:
        """True after `stop`."""
        return self._stop

    @property
    def time_limit_reached(self) -> bool:
        """Return True if the time limit has passed."""
        return self._time_limit_s is not None and self._clock() - self._started >= self._time_limit_s

    # --- records ------------------------------------------------------------------------------------------------------

    def rest(self) -> None:
        """Carry out orders, write a checkpoint if one is due, and stay here while an operator has paused training."""
        self.operations.may_pause = True
        if self._waiting_orders:
            self._obey()
        if self.on_rest is not None:
            self.on_rest()
        if self.operations.paused_by:
            self._hold()

    def _hold(self) -> None:
        while self.operations.paused_by and not self.stopping:
            self.link.check()
            if self.on_hold is not None:
                self.on_hold()
            self._tick()
            if self.on_rest is not None:
                self.on_rest()
            time.sleep(HOLD_S)
        self.report(self.progress)

    def _obey(self) -> None:
        if self.operations.obey():
            self.report(self.progress)
            self.link.show()

    def _labels(self) -> set[str]:
        return {member.name for member in self._members.values()}

    def _follow_orders(self, label: str) -> None:
        """Direct the workers of a label, which an operator has paused or resumed, or wants to see."""
        for stream, member in self._members.items():
            if member.name == label:
                self._hold_worker(stream)
                self._direct(stream)

    def _hold_worker(self, stream: bytes) -> None:
        if self._members[stream].name in self.operations.paused_workers:
            self._paused.add(stream)
        else:
            self._paused.discard(stream)

    def progressing(self) -> Progressing:
        """Return what viewers see of the training thread. Safe in the link's thread."""
        operations = self.operations
        return Progressing(
            self.progress,
            operations.paused_by,
            # Copies of a dictionary and a set of texts or bytes are one operation of the interpreter.
            frozenset(operations.paused_workers),
            self._counters.copy(),
            self._unfit.copy(),
        )

    def record_round(self, row: Metrics, latest: Collection[EpisodeRecord] = ()) -> None:
        """Write a round's row to the records, with the means over the latest training episodes."""
        self._stale_samples = int(row.get("samples_stale", 0))
        if self.recorder is not None:
            values = {**_means(latest), **row} if latest else row
            # The last report may be older by some updates.
            self.recorder.record("round", values, step=int(row.get("updates", self.progress.updates)))

    def event(self, event: str, message: str = "", *, step: int | None = None, **values: Value) -> None:
        """Write an event to the records, at `step` updates; None: at the last reported number of updates."""
        if self.recorder is not None:
            self.recorder.event(event, message, step=self.progress.updates if step is None else step, **values)

    def _record(self, kind: Kind, values: Metrics) -> None:
        if self.recorder is not None:
            self.recorder.record(kind, values, step=self.progress.updates)

    def _enter(self, phase: str) -> None:
        if phase != self._phase:
            self._phase = phase
            self.event(names.EVENT_PHASE, phase=phase)

    def _note_episodes(self, episodes: Sequence[EpisodeRecord], stream: bytes, earlier: int = 0) -> None:
        for record in episodes:
            self._equal_ends.take(record)
            if self.on_episode is not None:
                self.on_episode(record)
            self._record(
                "episode",
                episode_values(
                    worker=record.worker,
                    mode=record.mode,
                    episode_return=record.episode_return,
                    length=record.length,
                    samples_received=self.progress.samples + earlier,
                    agent=record.agent,
                    end=record.end,
                    version=record.version,
                    seed=record.seed,
                    evaluation=record.evaluation,
                    metrics=plain_names(record.metrics),
                ),
            )
        if self.evaluator is not None and episodes:
            result = self.evaluator.take(episodes, stream)
            if result is not None:
                self._note_evaluation(result)

    def _note_evaluation(self, result: EvaluationResult) -> None:
        self._record(
            "evaluation",
            {
                names.EVALUATION: result.id,
                names.RETURN_EVALUATION: result.mean,
                names.RETURN_EVALUATION_STD: result.spread,
                names.RETURN_EVALUATION_MIN: min(result.returns),
                names.RETURN_EVALUATION_MAX: max(result.returns),
                names.EPISODE_LENGTH_EVALUATION: sum(result.lengths) / len(result.lengths),
                names.EPISODES: len(result.returns),
                names.UPDATES: result.updates,
                names.VERSION: f"{result.version[0]}.{result.version[1]}",
                names.WORKER: result.worker,
                names.SAMPLES_RECEIVED: self.progress.samples,
                **info_means("eval", result.metrics),
                **({names.RETURN_TARGET: self._target_return} if self._target_return is not None else {}),
            },
        )
        if self._target_return is not None and result.mean >= self._target_return:
            self.reached_target = True
            if self._phase != "evaluating":
                self._to_confirm = result
                self.event(
                    names.EVENT_TARGET,
                    f"{self._compare_with_target(result)}; training ends if a second evaluation confirms it",
                )

    def _compare_with_target(self, result: EvaluationResult) -> str:
        target = self._target_return
        return f"mean return {return_text(result.mean, target)}, target {return_text(target)}"

    def _tick(self) -> None:
        """Check connected workers, evaluations and network statistics periodically."""
        if self.on_admitted is not None and self.link.was_connected:
            on_admitted, self.on_admitted = self.on_admitted, None
            on_admitted()
        self._note_members()
        if self._waiting_orders:
            self._obey()
        if self.evaluator is not None:
            self.evaluator.poll(self.progress.updates if not self.ending else 0, self.version, self._evaluators)
        now = self._clock()
        if now >= self._next_record:
            self._next_record = now + NETWORK_RECORD_S
            self._record_network()

    def _note_members(self) -> None:
        joined, left = self.link.trainer.take_member_changes()
        for stream in left:
            self._live.pop(stream, None)
            if stream not in joined:
                self._left(stream)
        for stream, member in joined.items():
            known = stream in self._members
            self._members[stream] = member
            if member.live:
                self._live[stream] = None
            if not known:
                self._joined(member)
        if (joined or left) and len(self._shares) > MAX_STREAMS:
            self._shares = {stream: share for stream, share in self._shares.items() if stream in self._members}

    def _left(self, stream: bytes) -> None:
        name = self._members.pop(stream).name
        now = self._clock()
        self._missing_since[stream] = now
        self._is_worker_missing(now)  # so that it does not grow while nothing waits
        self._evaluations.pop(stream, None)
        self._next_numbers.pop(stream, None)
        self._heard.pop(stream, None)
        self._unfit.pop(stream, None)
        self._counters.pop(stream, None)
        self._paused.discard(stream)
        self._foreign.discard(stream)
        self._strange.discard(stream)
        if stream in self._announced:
            self._announced.remove(stream)
            self.event(names.EVENT_WORKER_LEFT, f"worker {name} left", worker=name)

    def _joined(self, member: Member) -> None:
        self._missing_since.pop(member.stream, None)
        self._hold_worker(member.stream)
        if member.stream in self._paused:
            self._direct(member.stream)
        if self._joins.take(self._clock()):
            self._announced.add(member.stream)
            self.event(names.EVENT_WORKER_JOINED, f"worker {member.name} joined", worker=member.name)
        found = self._environment_difference(member)
        if found and self._check_environment:
            self._foreign.add(member.stream)
            self._refuse_worker(
                member,
                f"another environment, {found}. Give both the same section environment, or set "
                "trainer.check_environment: false",
            )
        elif found:
            self._remarks.remark(
                f"worker {member.name} has another environment, {found}: its samples will be refused unless a "
                "preprocessor or compressor makes up for it",
                self.link.trainer.origin(member.stream),
            )
        self._hold_policy(member)

    def _environment_difference(self, member: Member) -> str:
        return plain(differences(_signature_of(member), self._identity))

    def _hold_policy(self, member: Member) -> None:
        """Refuse the samples of a worker whose policy cannot load the published weights; log it once."""
        if self._environment_difference(member):
            return  # the different environment was reported already and also explains a different policy
        found = difference(_signature_of(member).get("policy"), self._policy)
        if found:
            self._refuse_worker(
                member,
                f"another policy, {plain(found)}. Give both the same settings of the policy, such as actor.cls and "
                "actor.kwargs",
            )

    def _refuse_worker(self, member: Member, reason: str) -> None:
        self._unfit[member.stream] = reason[:MAX_REASON_CHARACTERS]
        self._log_refused(member.stream, member.name, reason)
        self._direct(member.stream)

    def _record_network(self) -> None:
        self._remarks.summarize()
        self._record(
            "network",
            {
                **self._link_values(),
                **self._worker_rates(),
                **lateness_metrics(self._charted(), self.link.lateness),
            },
        )

    def _record_while_busy(self) -> float:
        """Record the network if the training thread has not done so in time. Return the seconds until the next call.

        Called in the link's thread, since one update may take any time.
        """
        if self._clock() - self._recorded >= BUSY_S:
            self._record("network", self._link_values())
        return max(0.05, self._recorded + BUSY_S - self._clock())

    def _link_values(self) -> dict[str, Value]:
        """Return what the link counts. Safe in the link's thread."""
        self._recorded = self._clock()
        progress, counts = self.progress, self.link.counts
        return {
            names.CONNECTED: self.link.connected,
            names.WORKERS: counts.workers,
            names.SAMPLES_RECEIVED: progress.samples,
            names.SAMPLES_ARRIVED: self._samples_before + counts.samples_received - counts.samples_refused,
            names.UPDATES: progress.updates,
            names.QUEUE_BYTES: counts.inbox_bytes + counts.server_queued_bytes,
            names.SAMPLES_DROPPED: counts.gap_samples,
            names.SAMPLES_STALE: self._stale_samples,
            names.GAPS: counts.gap_messages,
            names.DUPLICATES: counts.duplicate_messages,
            names.REFUSED: counts.samples_refused,
            names.FORGED: counts.forged,
            names.UNKNOWN_KEYS: counts.unknown_keys,
            names.OTHER_RUN: counts.other_run_workers,
            names.RECONNECTS: counts.reconnects,
            names.LACK: progress.lack,
            names.WAITING: self._waiting(),
        }

    def _waiting(self) -> str:
        waits = self.link.waits
        texts = [plain(text) for _, text in waits if text]
        return f"{len(texts)} of {len(waits)}: {texts[0]}" if texts else ""

    def _charted(self) -> dict[bytes, str]:
        """Return the workers that are recorded separately."""
        charted: dict[bytes, str] = {}
        for stream, member in self._members.items():
            name = member.name
            if self._charted_names.keep(name, self.link.trainer.origin(stream)) is not None:
                charted[stream] = name
                if len(charted) == WORKERS_CHARTED:
                    break
        return charted

    def _worker_rates(self) -> dict[str, float]:
        """Return the steps per second of each worker since the last record, for as many as a chart can show.

        Of workers with a person, also the share of these steps that the person acted.
        """
        now = self._clock()
        span_s = max(now - self._collected_since, 1e-9)
        rates = {
            f"{_group(name)}/steps_per_s": self._collected.get(stream, 0) / span_s
            for stream, name in self._charted().items()
        }
        rates |= {
            f"{_group(name)}/{INTERVENTION_RATE}": self._taken_over[stream] / self._collected[stream]
            for stream, name in self._charted().items()
            if stream in self._taken_over
        }
        self._collected, self._taken_over, self._collected_since = {}, {}, now
        return rates


def _rounded(blob: Blob) -> bytes:
    return with_bfloat16_matrices(blob.data) if blob.format == SAFETENSORS_FORMAT else blob.data


def _bundle_of(actor: Policy) -> PolicyBundle:
    tag, data = actor.to_blob()
    return PolicyBundle({POLICY: Blob(tag, data)}, actor.exploration() if isinstance(actor, ActorModule) else {})


def _group(name: str) -> str:
    return f"worker/{plain(name).replace('/', '_')}"


def lateness_metrics(workers: Mapping[bytes, str], lateness: Mapping[bytes, Lateness]) -> dict[str, float]:
    """Return the lateness of the workers whose environments have a rate, for as many as a chart can show.

    Args:
        workers: labels by stream.
        lateness: the workers' reports by stream.
    """
    found: dict[str, float] = {}
    for stream, name in itertools.islice(workers.items(), WORKERS_CHARTED):
        late = lateness.get(stream)
        if late is not None:
            found[f"{_group(name)}/late_steps"] = late.late_steps
            found[f"{_group(name)}/lateness_p999"] = late.p999_us / 1e6
    return found


def _means(episodes: Collection[EpisodeRecord]) -> dict[str, float]:
    return {
        names.RETURN_MEAN: mean_of([episode.episode_return for episode in episodes]),
        names.EPISODE_LENGTH_MEAN: statistics.fmean(episode.length for episode in episodes),
    }


def _signature_of(member: Member) -> State:
    """Return a worker's description of its environment and policy, which may hold any values."""
    try:
        signature = decode_value(member.signature, max_bytes=1 << 20) if member.signature else {}
    except CodecError:
        signature = {}
    return signature if isinstance(signature, dict) else {}


def episode_label(name: str, chosen: str) -> str:
    """Return the label of an episode: the Server's label, because two workers may choose the same one.

    A role with several client sessions adds a slash and the id of the session to its own label.
    """
    return chosen[: len(name) + MAX_SESSION_CHARACTERS] if chosen.startswith(f"{name}/") else name
