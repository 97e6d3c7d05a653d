"""Evaluations: deterministic episodes with fixed seeds. One worker runs them with a policy of a minimum version.

An `Evaluator` is sans-I/O: it receives episode records and the connected workers, and sends requests through `ask`.
"""

from __future__ import annotations

import logging
import math
import statistics
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tmrl_core.networking.protocol.messages import Evaluation, Version
from tmrl_core.samples import EpisodeRecord

logger = logging.getLogger(__name__)

Ask = Callable[[Evaluation, bytes], None]
"""Sends the worker of a stream the request for an evaluation."""

DOUBLINGS = 10
"""Maximum number of doublings of the patience with a worker."""


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
        return statistics.pstdev(self.returns) if all(map(math.isfinite, self.returns)) else math.nan


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
class _Open:
    evaluation: Evaluation
    updates: int
    stream: bytes
    records: dict[int, EpisodeRecord]
    origin: Hashable = None


class Evaluator:
    """Request evaluations from workers, one at a time, and collect the results.

    One worker is chosen and kept. If it disconnects, or runs no episode for a long time (an expert never does), the
    complete evaluation is requested from another one, so that one worker runs all its episodes. It is one whose origin
    (its certificate) has failed least, so that one origin with many streams cannot hold up evaluations. The only worker
    is asked again after a loss alone, because its episodes may be long.

    Args:
        episodes: episodes in one evaluation.
        first_seed: seeds are first_seed, first_seed + 1, ...
        every_updates: interval in updates; 0: only `start` begins evaluations.
        ask: sends a worker a request.
        patience_s: seconds without a further episode after which another worker gets the request. The period doubles
            with each failure of an origin, because episodes may be long.
        clock: seconds.
        origin: returns the origin of a stream. By default, each stream is its own origin.
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
    ) -> None:
        self.seeds = tuple(range(first_seed, first_seed + episodes))
        self.every_updates = every_updates
        self.next_id = 1
        self.due_updates = every_updates
        self.results: list[EvaluationResult] = []
        self._ask = ask
        self._patience_s = patience_s
        self._clock = clock
        self._origin = origin
        self._failures: Counter[Hashable] = Counter()
        """Number of failures of each connected origin, and of each connected stream."""
        self._heard_s = clock()
        self._worker: bytes | None = None
        self._lost = False
        """True: some records of the open evaluation may never arrive."""
        self._open: _Open | None = None

    @property
    def is_open(self) -> bool:
        """Return True if an evaluation is running or waits for a worker that can run it."""
        return self._open is not None

    @property
    def latest(self) -> EvaluationResult | None:
        """The newest finished evaluation."""
        return self.results[-1] if self.results else None

    def start(self, updates: int, version: Version, members: Sequence[bytes]) -> None:
        """Begin an evaluation now. An open evaluation is cancelled.

        Args:
            updates: gradient steps so far.
            version: minimum version of the policy.
            members: streams of the connected workers, in a stable order.
        """
        self._open = _Open(Evaluation(self.next_id, self.seeds, version), updates, b"", {})
        self._assign(members)

    def poll(self, updates: int, version: Version, members: Sequence[bytes]) -> None:
        """Begin a due evaluation, or find another worker for an open evaluation whose worker has left."""
        if self._open is None:
            if self.every_updates and updates >= self.due_updates and version != (0, 0):
                self.due_updates = updates - updates % self.every_updates + self.every_updates
                self.start(updates, version, members)
        elif self._open.stream not in members:
            self._replace(members)
        elif self._clock() - self._heard_s >= self._patience_s * 2 ** min(self._failures[self._open.origin], DOUBLINGS):
            self._heard_s = self._clock()
            if len(members) > 1 or self._lost:
                self._replace(members)

    def _replace(self, members: Sequence[bytes]) -> None:
        """Request the open evaluation from another worker; from the same one if it is alone."""
        assert self._open is not None
        self._failures.update({self._open.stream, self._open.origin})
        self._worker = None
        self._assign(members)

    def _assign(self, members: Sequence[bytes]) -> None:
        current = self._open
        assert current is not None
        if self._worker not in members:
            origins = {stream: self._origin(stream) for stream in members}
            failures = self._failures
            self._worker = min(members, key=lambda one: (failures[origins[one]], failures[one]), default=None)
            self._failures = Counter({one: failures[one] for one in {*members, *origins.values()}})
        if self._worker is None:
            current.stream = b""
            return
        # The number is new, so that episodes of a cancelled attempt do not count. No earlier process of this run has
        # used it, because workers remember the evaluations that they have run.
        self.next_id = max(self.next_id, 1000 * current.evaluation.version[0] + 1)
        current.evaluation = Evaluation(self.next_id, self.seeds, current.evaluation.version)
        current.stream, current.records = self._worker, {}
        current.origin = self._origin(self._worker)
        self.next_id += 1
        self._lost = False
        self._heard_s = self._clock()
        self._ask(current.evaluation, self._worker)

    def lost(self, stream: bytes) -> None:
        """Handle the loss or the refusal of a stream's message, which may have held records of the open evaluation."""
        if self._open is not None and stream == self._open.stream:
            self._lost = True

    def take(self, records: Iterable[EpisodeRecord], stream: bytes) -> EvaluationResult | None:
        """Process episode records of a stream. Return the evaluation that they complete, if any.

        An interrupted episode does not count; the worker runs it again. Neither do episodes of workers that were not
        asked: any worker could end the training with invented returns.
        """
        current = self._open
        if current is None or stream != current.stream:
            return None
        for record in records:
            if record.evaluation != current.evaluation.id or record.end == "aborted" or record.seed not in self.seeds:
                continue
            if record.seed not in current.records:
                self._heard_s = self._clock()
            current.records[record.seed] = record
        if any(seed not in current.records for seed in self.seeds):
            return None
        played = [current.records[seed] for seed in self.seeds]
        result = EvaluationResult(
            id=current.evaluation.id,
            version=current.evaluation.version,
            updates=current.updates,
            returns=tuple(record.episode_return for record in played),
            lengths=tuple(record.length for record in played),
            worker=played[0].worker,
            metrics=tuple(record.metrics for record in played),
        )
        self.results.append(result)
        self._open = None
        return result
