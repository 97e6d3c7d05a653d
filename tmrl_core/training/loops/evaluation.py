"""Evaluations: deterministic episodes with fixed seeds. One worker runs them with a policy of a minimum version.

An `Evaluator` is sans-I/O: it receives episode records and the connected workers, and sends requests through `ask`.
"""

# Theory of operation
#
# A worker that plays is asked: one that has sent something in the last 60 s, or waits, before one that was only made.
# The log and the records name a worker that was asked and ends no episode for 10 s; if it does not play, one that does
# is asked too.
#
# The target is confirmed before the end: an evaluation that reaches `trainer.evaluation.target_return` stops training.
# The policy of that time is evaluated again, and only a second success ends the run. One lucky evaluation is not a
# result.

from __future__ import annotations

import logging
import math
import statistics
import time
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from tmrl_core.networking.protocol.messages import Evaluation, Version
from tmrl_core.samples import EpisodeRecord

logger = logging.getLogger(__name__)

Ask = Callable[[Evaluation, bytes], None]
"""Sends the worker of a stream the request for an evaluation."""

SILENT_S = 10.0
"""Seconds without an episode after which a worker is named. If it does not play and another one does, that one is asked
too."""
GROWTH = 10
"""Maximum factor by which the patience grows with each worker that is asked in vain."""
LONGEST = 60
"""Maximum factor of the patience that long episodes have earned."""


@dataclass(frozen=True)
class EvaluationResult:
    """A finished evaluation.

    Args:
        id: number of the evaluation.
        version: minimum version of the policy.
        updates: gradient steps at the time of the request.
        returns: undiscounted return of each episode, in the order of the seeds.
        lengths: steps of each episode.
        worker: name of the worker.
        metrics: metrics of each episode.
    """

    id: int
    version: Version
    updates: int
    returns: tuple[float, ...]
    lengths: tuple[int, ...]
    worker: str
    metrics: tuple[Mapping[str, float], ...] = ()

    @property
    def mean(self) -> float:
        """The evaluation's return: the mean over its episodes."""
        return mean_of(self.returns)

    @property
    def spread(self) -> float:
        """Standard deviation of the returns; NaN where one is not finite."""
        if not all(map(math.isfinite, self.returns)):
            return math.nan
        largest = max(map(abs, self.returns))
        if largest < 1e150:
            return statistics.pstdev(self.returns)
        return largest * statistics.pstdev([value / largest for value in self.returns])  # Python 3.10 cannot square it


def mean_of(returns: Sequence[float]) -> float:
    """Return the mean of numbers that workers sent, at least one.

    It is infinite or NaN if a number is, or on overflow.
    """
    try:
        return statistics.fmean(returns)
    except (OverflowError, ValueError):  # the sum is too large, or adds infinities of both signs
        with np.errstate(all="ignore"):
            return float(np.mean(returns))


@dataclass
class _Attempt:
    """One worker's records of an evaluation.

    Attributes:
        heard_s: time of the latest record, or of the request.
        longest_s: longest time without a record so far.
        lost: some records may never arrive.
        named: its silence was reported.
    """

    evaluation: Evaluation
    origin: Hashable
    heard_s: float
    longest_s: float = 0.0
    lost: bool = False
    named: bool = False
    records: dict[int, EpisodeRecord] = field(default_factory=dict)


@dataclass
class _Open:
    """The open evaluation.

    Attributes:
        stream: stream that was asked last.
        silent: number of times that nothing was heard for too long.
        attempts: by the stream that was asked.
    """

    version: Version
    updates: int
    stream: bytes = b""
    silent: int = 0
    attempts: dict[bytes, _Attempt] = field(default_factory=dict)


class Evaluator:
    """Request evaluations from workers, one at a time, and collect the results.

    One worker is chosen and kept, one that plays if possible. If it disconnects, or runs no episode for a long time (an
    expert never does), another one is asked too, and the first that has run all episodes gives the result. Each is
    asked once, since its episodes may be long, or again after a loss. The next one is a worker whose origin (its
    certificate) has failed least, so that one origin with many streams cannot hold up evaluations.

    Args:
        episodes: episodes in one evaluation.
        first_seed: seeds are first_seed, first_seed + 1, ...
        every_updates: interval in updates; 0: only `start` begins evaluations.
        ask: sends a worker a request.
        patience_s: seconds without a further episode after which another worker gets the request. The period grows by
            this time with each silent worker of an evaluation, to `GROWTH` times at most, because episodes may be long.
            It is also longer than the time between two episodes of this evaluation and the one before, up to `LONGEST`
            times. Of several workers, the fastest decides, so that a slow one cannot prolong it.
        clock: seconds.
        origin: returns the origin of a stream. By default, each stream is its own origin.
        plays: returns True if the worker of a stream collects, as far as is known.
        on_silent: called with the evaluation, the stream that was asked, and the seconds since its latest episode, once
            for each worker that is asked: after `SILENT_S`, or twice what the latest evaluation has needed.
    """

    def __init__(
        self,
        episodes: int,
        first_seed: int,
        every_updates: int,
        ask: Ask,
        patience_s: float = 60.0,
        clock: Callable[[], float] = time.monotonic,
        origin: Callable[[bytes], Hashable] = bytes,
        plays: Callable[[bytes], bool] = lambda stream: True,
        on_silent: Callable[[Evaluation, bytes, float], object] = lambda evaluation, stream, silent_s: None,
    ) -> None:
        self.seeds = tuple(range(first_seed, first_seed + episodes))
        self.every_updates = every_updates
        self.next_id = 1
        self.due_updates = every_updates
        self.results: list[EvaluationResult] = []
        self._ask = ask
        self._patience_s = patience_s
        self._earned = 1
        """Factor of `patience_s` that this evaluation and the one before have shown to be necessary."""
        self._clock = clock
        self._origin = origin
        self._plays = plays
        self._on_silent = on_silent
        self._usual_s = 0.0
        """Longest time between two episodes of the latest evaluation."""
        self._look_s = 0.0
        """Time of the next look for a worker that plays, because a look is at all of them."""
        self._failures: Counter[Hashable] = Counter()
        """Number of failures of each connected origin and stream since the latest evaluation that it has finished."""
        self._heard_s = clock()
        self._worker: bytes | None = None
        self._open: _Open | None = None

    @property
    def is_open(self) -> bool:
        """Return True if an evaluation is running or waits for a worker that can run it."""
        return self._open is not None

    @property
    def latest(self) -> EvaluationResult | None:
        """The newest finished evaluation."""
        return self.results[-1] if self.results else None

    def start(self, updates: int, version: Version, members: Collection[bytes]) -> None:
        """Begin an evaluation now. An open evaluation is cancelled.

        Args:
            updates: gradient steps so far.
            version: minimum version of the policy.
            members: streams of the connected workers, in a stable order.
        """
        self._open = _Open(version, updates)
        self._assign(members, members)

    def poll(self, updates: int, version: Version, members: Collection[bytes]) -> None:
        """Begin a due evaluation, or find another worker for an open evaluation whose worker has left or is silent."""
        current = self._open
        if current is None:
            if self.every_updates and updates >= self.due_updates and version != (0, 0):
                self.due_updates = updates - updates % self.every_updates + self.every_updates
                self.start(updates, version, members)
            return
        for stream in [asked for asked in current.attempts if asked not in members]:
            self._failures.update({stream, current.attempts.pop(stream).origin})
        last = current.attempts.get(current.stream)
        if last is not None:
            silent_s = self._clock() - self._heard_s
            if silent_s >= max(SILENT_S, 2 * self._usual_s) and not last.named:
                last.named = True
                self._on_silent(last.evaluation, current.stream, silent_s)
            patience = max(self._earned, min(1 + current.silent, GROWTH))
            if silent_s < self._patience_s * patience and not self._is_idle(last, silent_s, members):
                return
            self._heard_s = self._clock()
        asked = {stream for stream, attempt in current.attempts.items() if not attempt.lost}
        able = [stream for stream in members if stream not in asked]
        if not able:
            return
        if last is not None:
            current.silent += 1
            self._failures.update({current.stream, last.origin})
        self._worker = None
        self._assign(members, able)

    def _is_idle(self, attempt: _Attempt, silent_s: float, members: Collection[bytes]) -> bool:
        """Return True if the worker that was asked last does not play, and one that was not asked does."""
        current, now = self._open, self._clock()
        if current is None or attempt.records or silent_s < SILENT_S or now < self._look_s:
            return False
        self._look_s = now + SILENT_S
        return not self._plays(current.stream) and any(
            stream not in current.attempts and self._plays(stream) for stream in members
        )

    def _assign(self, members: Collection[bytes], able: Collection[bytes]) -> None:
        """Request the open evaluation from one of the able members."""
        current = self._open
        assert current is not None
        kept = self._worker if self._worker in able else None
        if kept is None or not self._plays(kept):
            origins = {stream: self._origin(stream) for stream in members}
            failures = self._failures
            ranks = {one: (failures[origins[one]], not self._plays(one), failures[one], one != kept) for one in able}
            self._worker = min(ranks, key=ranks.__getitem__, default=None)
            self._failures = Counter({one: failures[one] for one in {*origins, *origins.values()}})
        if self._worker is None:
            return
        # The number is new, so that episodes of a cancelled attempt do not count. No earlier process of this run has
        # used it, because workers remember the evaluations that they have run.
        self.next_id = max(self.next_id, 1000 * current.version[0] + 1)
        evaluation = Evaluation(self.next_id, self.seeds, current.version)
        self.next_id += 1
        self._heard_s = self._clock()
        current.stream = self._worker
        current.attempts[self._worker] = _Attempt(evaluation, self._origin(self._worker), self._heard_s)
        self._ask(evaluation, self._worker)

    def lost(self, stream: bytes) -> None:
        """Handle the loss or the refusal of a stream's message, which may have held records of the open evaluation."""
        if self._open is not None and stream in self._open.attempts:
            self._open.attempts[stream].lost = True

    def take(self, records: Iterable[EpisodeRecord], stream: bytes) -> EvaluationResult | None:
        """Process episode records of a stream. Return the evaluation that they complete, if any.

        An interrupted episode does not count; the worker runs it again. Neither do episodes of workers that were not
        asked: any worker could end the training with invented returns.
        """
        current = self._open
        attempt = current.attempts.get(stream) if current is not None else None
        if current is None or attempt is None:
            return None
        now = self._clock()
        for record in records:
            if record.evaluation != attempt.evaluation.id or record.end == "aborted" or record.seed not in self.seeds:
                continue
            if record.seed not in attempt.records:
                attempt.longest_s = max(attempt.longest_s, now - attempt.heard_s)
                attempt.heard_s = now
                # Many workers that were asked before cannot delay the next one in turn.
                ahead = all(len(attempt.records) >= len(other.records) for other in current.attempts.values())
                if ahead or stream == current.stream:
                    self._heard_s = now
            attempt.records[record.seed] = record
        longest_s = min((one.longest_s for one in current.attempts.values() if one.records), default=0.0)
        shown = min(int(longest_s / self._patience_s) + 1, LONGEST)
        if any(seed not in attempt.records for seed in self.seeds):
            self._earned = max(self._earned, shown)
            return None
        self._earned = shown
        self._usual_s = attempt.longest_s
        played = [attempt.records[seed] for seed in self.seeds]
        result = EvaluationResult(
            id=attempt.evaluation.id,
            version=attempt.evaluation.version,
            updates=current.updates,
            returns=tuple(record.episode_return for record in played),
            lengths=tuple(record.length for record in played),
            worker=played[0].worker,
            metrics=tuple(record.metrics for record in played),
        )
        self.results.append(result)
        self._failures[stream] = self._failures[attempt.origin] = 0
        self._worker = stream
        self._open = None
        return result
