"""Interface between a training loop and the source of its samples, which also receives its policies.

A loop calls `TrainingInterface`. `LocalInterface` works in memory, for training in one process and for tests.
`tmrl_core.training.remote` contains the interface to a Server.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from itertools import takewhile
from typing import NamedTuple

from tmrl_core.networking.protocol.messages import Collect, Progress
from tmrl_core.samples import Buffer, Chunk, EpisodeRecord, Version
from tmrl_core.training.value_types import Metrics, Policy

logger = logging.getLogger(__name__)

TURN_POLL_S = 0.01
"""Seconds between two checks for the trainer's turn, where nothing tells of it."""


class Delivery:
    """One received message, until its samples are accepted or refused as a whole.

    Args:
        chunks: samples of the message.
        records: its episode records.
        expert: True: the samples are of an expert, whose policy is not the trainer's and so has no policy lag.

    Attributes:
        refusal: reason of a refusal; empty: accepted; None: undecided.
    """

    def __init__(
        self, chunks: Sequence[Chunk] = (), records: Sequence[EpisodeRecord] = (), expert: bool = False
    ) -> None:
        self.chunks = chunks
        self.records = records
        self.expert = expert
        self.refusal: str | None = None

    @property
    def rows(self) -> int:
        """Return the number of samples."""
        return sum([chunk.rows for chunk in self.chunks])

    @property
    def buffer(self) -> Buffer:
        """Return a new Buffer of the samples and records."""
        buffer = Buffer(maxlen=None)
        buffer.extend(self.chunks, self.records)
        return buffer

    def accept(self) -> None:
        """Record that the samples are stored, unless they were refused."""
        self.refusal = self.refusal or ""

    def refuse(self, reason: str) -> None:
        """Record that the samples cannot be stored. The first reason counts."""
        self.refusal = self.refusal or reason


def settled(deliveries: Iterable[Delivery]) -> list[Delivery]:
    """Return the deliveries before the first undecided one, because streams are acknowledged in order."""
    return list(takewhile(lambda delivery: delivery.refusal is not None, deliveries))


class Standing(NamedTuple):
    """State of one trainer, or of all ranks of a learner together."""

    samples: int = 0
    """Environment steps received."""
    lack: str = ""
    """Reason to wait, as far as it does not follow from the number of samples; empty: there is none."""


class TrainingInterface(ABC):
    """Source of samples for a training loop, and receiver of its policies. Only the training thread calls it."""

    @abstractmethod
    def receive(self) -> list[Delivery]:
        """Commit, then return the messages that have arrived, without waiting: many in portions, see `has_more`.

        Each delivery has to be accepted or refused. An undecided delivery delays the acknowledgement of later ones.
        """

    @abstractmethod
    def commit(self) -> None:
        """Acknowledge the deliveries that were accepted or refused."""

    @property
    def has_more(self) -> bool:
        """True: the latest `receive` has left messages that had arrived.

        Later ones do not count, or a worker that sends all the time would hold a loop that waits for the last.
        """
        return False

    def retrieve_buffer(self) -> Buffer:
        """Return samples that have arrived, without waiting; `commit` or the next call acknowledges them.

        It returns a portion of them, like `receive`. A loop that wants all repeats it while `has_more`.
        """
        buffer = Buffer(maxlen=None)
        for delivery in self.receive():
            delivery.accept()
            buffer.extend(delivery.chunks, delivery.records)
        return buffer

    @abstractmethod
    def broadcast_model(self, actor: Policy) -> Version | None:
        """Publish a policy as the latest."""

    @property
    def version(self) -> Version:
        """Version of the latest published policy; (0, 0) before the first."""
        return (0, 0)

    @abstractmethod
    def wait(self, timeout_s: float) -> bool:
        """Wait until samples arrive, `stopping` becomes true, or the time is over. True: samples have arrived.

        Raises:
            StarvedError: the other side waits too, so that both would wait forever.
        """

    def report(self, progress: Progress) -> None:
        """Report the progress of training, with the wait reason while it waits."""
        return None

    def give_turn(self) -> None:
        """Give synchronous workers the turn to collect with the latest policy."""
        return None

    def has_turn(self) -> bool:
        """Return True if the synchronous workers have finished their turn."""
        return True

    def wait_for_turn(self, timeout_s: float) -> None:
        """Wait until `has_turn` may return True, or as `wait`."""
        self.wait(min(timeout_s, TURN_POLL_S))

    def rest(self) -> None:
        """Handle a point between two updates, from which a checkpoint resumes bit for bit."""
        return None

    def meet(self, own: Standing) -> Standing:
        """Return the standing that decides the next updates. Default: this trainer's own.

        With several ranks, this is where they agree: `stopping` and `has_turn` change here only, and a checkpoint is
        written here.
        """
        return own

    def agreed(self, own: Standing) -> Standing:
        """Return the standing of the latest meeting, without a meeting. Default: this trainer's own."""
        return own

    def record_round(self, row: Metrics, latest: Collection[EpisodeRecord] = ()) -> None:
        """Record the row of statistics of a finished round; `latest` are the training episodes before its end."""
        return None

    def event(self, event: str, message: str = "") -> None:
        """Record an event of training. Default: nothing."""
        return None

    def workers(self) -> list[tuple[bytes, str]]:
        """Return stream and name of each worker that can collect in lockstep, in any order."""
        return []

    def origin(self, stream: bytes) -> Hashable:
        """Return what stands for the worker's credentials, which several streams may share; by default, the stream."""
        return stream

    def collect(self, what: Collect | None, stream: bytes) -> None:
        """Request a collection from a worker, in lockstep; None: cancel."""
        raise NotImplementedError(f"{type(self).__name__} asks no workers to collect, so it cannot serve lockstep")

    def says_done(self, stream: bytes, what: Collect) -> bool:
        """Return True if this worker waits and its whole assignment is collected and committed."""
        return False

    def says_idle(self, stream: bytes) -> bool:
        """Return True if this worker waits and could begin an assignment at once."""
        return False

    @contextlib.contextmanager
    def whole_round(self) -> Iterator[None]:
        """Enclose a round that must be finished even if the target is reached meanwhile."""
        yield

    @property
    def stopping(self) -> bool:
        """True: training should end in order, now."""
        return False


class LocalInterface(TrainingInterface):
    """Interface in memory. `put` adds samples from any thread, and `actor` is the latest policy.

    Args:
        on_publish: called with each published policy, in the training thread.
        counter: number of the version before the next; after a resume, the training object's `versions_before`.
    """

    def __init__(self, on_publish: Callable[[Policy, Version], None] | None = None, counter: int = 0) -> None:
        self._on_publish = on_publish
        self._changed = threading.Condition()
        # `_changed` guards the samples not retrieved yet and the stop flag.
        self._waiting: list[Delivery] = []
        self._stopping = False
        self._version: Version = (1, counter) if counter else (0, 0)
        self.actor: Policy = None
        self.progress = Progress()
        self.rows: list[Metrics] = []
        self.refused: list[tuple[Chunk, str]] = []
        self.samples_committed = 0
        self._outstanding: list[Delivery] = []

    def put(self, buffer: Buffer) -> None:
        """Add a copy of the samples in `buffer`, and its episode records."""
        with self._changed:
            self._waiting += [Delivery([chunk]) for chunk in buffer.chunks]
            if buffer.episodes:
                self._waiting.append(Delivery(records=list(buffer.episodes)))
            self._changed.notify_all()

    def stop(self) -> None:
        """End training in order; may be called from any thread."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()

    def receive(self) -> list[Delivery]:
        """Return the added samples, each chunk as a delivery."""
        self.commit()
        with self._changed:
            deliveries, self._waiting = self._waiting, []
        self._outstanding += deliveries
        return deliveries

    def commit(self) -> None:
        """Count accepted samples; keep refused ones in `refused` and log the reasons."""
        done = settled(self._outstanding)
        del self._outstanding[: len(done)]
        for delivery in done:
            if delivery.refusal:
                logger.error("samples refused: %s", delivery.refusal)
                self.refused += [(chunk, delivery.refusal) for chunk in delivery.chunks]
            else:
                self.samples_committed += delivery.rows

    def broadcast_model(self, actor: Policy) -> Version:
        """Make this policy `actor`. It is the training agent's own object, not a copy."""
        self._version = (1, self._version[1] + 1)
        self.actor = actor
        if self._on_publish is not None:
            self._on_publish(actor, self._version)
        return self._version

    @property
    def version(self) -> Version:
        """(1, number of published policies); (0, 0) before the first."""
        return self._version

    def wait(self, timeout_s: float) -> bool:
        """Wait for `put`, `stop` or the time limit."""
        deadline = time.monotonic() + timeout_s
        with self._changed:
            self._changed.wait_for(lambda: self._has_samples or self._stopping, deadline - time.monotonic())
            return self._has_samples

    @property
    def _has_samples(self) -> bool:
        return any(delivery.chunks for delivery in self._waiting)

    def report(self, progress: Progress) -> None:
        """Store the latest progress in `progress`."""
        self.progress = progress

    def record_round(self, row: Metrics, latest: Collection[EpisodeRecord] = ()) -> None:
        """Store each row in `rows`."""
        self.rows.append(row)

    @property
    def stopping(self) -> bool:
        """True after `stop`."""
        return self._stopping
