"""A trainer's link: samples in, policies and directives out."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from tmrl_core.networking.links.base import Link
from tmrl_core.networking.links.remark_log import RemarkLog
from tmrl_core.networking.links.sealing import seal_trainer
from tmrl_core.networking.protocol.delivery import CommittedOffset, Received
from tmrl_core.networking.protocol.messages import MAX_COUNT, Blob, Directive, Lateness, PolicyUpdate, Progress, Version
from tmrl_core.networking.trainer import Member, TrainerConnection, TrainerState
from tmrl_core.networking.trainer.inbox import TAKEN_BYTES
from tmrl_core.networking.transports.base import Transport
from tmrl_core.networking.transports.selection import LinkSettings

logger = logging.getLogger(__name__)


class TrainerCounts(NamedTuple):
    """Counters of a trainer's link, in samples unless the name says otherwise."""

    samples_received: int
    messages_received: int
    gap_samples: int
    gap_messages: int
    duplicate_messages: int
    samples_refused: int
    inbox_bytes: int
    server_queued_bytes: int
    workers: int
    other_run_workers: int
    policies_published: int
    reconnects: int
    forged: int = 0
    """Records and messages of samples without a valid proof of their origin."""
    unknown_keys: int = 0
    """Messages for a run key that this trainer does not have. The Server may have changed the name of the key."""


class TrainerLink(Link[TrainerConnection]):
    """A trainer's link to the Server.

    Args:
        settings: address and credentials of the Server.
        name: label for people.
        run: name of the run.
        inbox_bytes: maximum bytes of samples that wait for the training thread (at least one message).
        incarnation, counter, offsets, refusals: from the checkpoint that training resumes from.
        gaps: messages and samples that workers have dropped, as counted in the checkpoint.
        cost_of: returns the bytes that a message's payload takes in memory, see `trainer.inbox`.

    Attributes:
        trainer: state of the trainer's side. What needs neither the thread nor the connection is read and called there.
        has_more: True: the latest `receive` has left messages that had arrived.
        on_time: called in the I/O thread from the start on; returns the seconds until the next call. None: not called.

    Raises:
        ConfigError, CredentialsError: the settings demand authentication that is not possible here.
    """

    _end = TrainerConnection

    def __init__(
        self,
        settings: LinkSettings,
        *,
        name: str,
        run: str,
        inbox_bytes: int = 64 << 20,
        incarnation: int = 0,
        counter: int = 0,
        offsets: Mapping[bytes, tuple[int, int]] | None = None,
        refusals: Mapping[bytes, Iterable[tuple[int, str]]] | None = None,
        gaps: tuple[int, int] = (0, 0),
        cost_of: Callable[[memoryview], int] = len,
    ) -> None:
        log = RemarkLog(logger)
        identity, seal, files = seal_trainer(settings, run, log)
        self.trainer = TrainerState(
            run=run,
            name=name,
            peer=os.urandom(16),
            inbox_bytes=inbox_bytes,
            incarnation=incarnation if files is None else max(incarnation, files.highest),
            counter=counter,
            offsets={stream: CommittedOffset(*offset) for stream, offset in (offsets or {}).items()},
            refusals=refusals,
            seal=seal,
            hold=(lambda number: None) if files is None else files.hold,
            packs=settings.weights != "whole",
        )
        self.trainer.inbox.cost_of = cost_of
        self.trainer.inbox.max_message_bytes = settings.max_message_bytes
        self.trainer.on_remark = log.remark
        self.has_more = False
        self.on_time: Callable[[], float] | None = None
        self.trainer.gap_messages, self.trainer.gap_samples = gaps
        super().__init__(settings, self.trainer, identity, log)
        # The connection collects acknowledgements and credit when it is asked for output. A pause in between sends them
        # in batches.
        self._has_work = lambda: bool(self.trainer.to_acknowledge) and self.connected

    # --- samples ---

    def receive(self, most_bytes: int = TAKEN_BYTES) -> list[Received]:
        """Return arrived messages without waiting, in order for each stream. Their bytes count as consumed.

        Many or large messages are returned in several calls; `has_more` says whether this one has left some.

        Args:
            most_bytes: return messages that take about so many bytes in memory, and at least one if there is one.

        Raises:
            NetworkError: the Server refuses this trainer permanently. A trainer with a full memory waits for nothing,
                and would train without a link unnoticed.
        """
        state = self.trainer
        with state.lock:
            received = state.inbox.take(most_bytes)
            self.has_more = bool(state.inbox)
        if not received and self._failure is not None:
            raise self._failure
        return received

    def wait(self, timeout_s: float, condition: Callable[[], bool] = lambda: False) -> bool:
        """Wait until `receive` would return something, or a condition on what workers report is met.

        Raises:
            NetworkError: the Server refuses this trainer permanently.
        """
        return self._wait(lambda: bool(self.trainer.inbox) or condition(), timeout_s)

    def acknowledge(self, received: Iterable[Received]) -> None:
        """Acknowledge messages that the memory has committed."""
        for one in received:
            self.trainer.acknowledge(one)
        self._wake_thread()

    def refuse(self, received: Received, reason: str) -> None:
        """Acknowledge a message that the memory cannot store as refused; the worker receives the reason."""
        self.trainer.refuse(received, reason)
        self._wake_thread()

    # --- messages to workers ---

    def publish(self, policies: Mapping[str, Blob], exploration: Mapping[str, float] | None = None) -> Version:
        """Publish these weights as the latest. Return their version.

        Raises:
            LocalProtocolError: workers could not decode the weights.
        """
        version = self.trainer.publish(PolicyUpdate((0, 0), dict(policies), dict(exploration or {})))
        self._tell(lambda connection: connection.wake())
        return version

    def direct(self, directive: Directive, stream: bytes | None = None) -> None:
        """Send a directive to one worker's stream, or to all workers.

        Raises:
            ValueError: the directive is larger than `MAX_BODY_BYTES`.
        """
        self.trainer.direct(directive, stream)
        self._tell(lambda connection: connection.direct(stream))

    def report(self, progress: Progress) -> None:
        """Send the trainer's progress to all workers."""
        if progress != self.trainer.progress:
            self.trainer.progress = progress
            self._tell(TrainerConnection.report)

    def show(self) -> None:
        """Send viewers a scene soon, because something has changed that somebody waits for."""
        self._tell(TrainerConnection.show_now)

    def announce(self) -> None:
        """Send the run card again, because the certificate was renewed."""
        self._tell(TrainerConnection.announce)

    def suggest(self, incarnation: int) -> bool:
        """Take a higher incarnation that another trainer of the run has, with end-to-end authentication.

        Without it, the Server assigns incarnations. Return False if nothing is connected, so nothing was done.
        """
        if self.trainer.seal is not None:
            self._tell(lambda connection: connection.suggest(incarnation))
        return self._connection is not None

    # --- state ---

    @property
    def members(self) -> list[Member]:
        """Return the streams of linked workers."""
        with self.trainer.lock:
            return list(self.trainer.members.values())

    @property
    def waits(self) -> list[tuple[str, str]]:
        """Return the label of each linked worker and its wait reason; empty: it collects."""
        state = self.trainer
        with state.lock:
            return [(member.name, state.waits.get(stream, "")) for stream, member in state.members.items()]

    @property
    def lateness(self) -> dict[bytes, Lateness]:
        """Return the lateness of the steps of linked workers whose environments have a rate, by stream."""
        with self.trainer.lock:
            return dict(self.trainer.lateness)

    @property
    def counts(self) -> TrainerCounts:
        """Return the counters of this link."""
        state = self.trainer
        return TrainerCounts(
            min(state.samples_received, MAX_COUNT),
            state.messages_received,
            min(state.gap_samples, MAX_COUNT),
            min(state.gap_messages, MAX_COUNT),
            state.duplicates,
            min(state.samples_refused, MAX_COUNT),
            state.inbox.held_bytes,
            state.notice.queued_bytes,
            len(state.members),
            state.notice.other_run_workers,
            state.published,
            max(0, state.connections - 1),
            state.seal.forged if state.seal is not None else 0,
            state.seal.unknown_keys if state.seal is not None else 0,
        )

    async def _keep_connected(self, transport: Transport, started: threading.Event) -> None:
        self._call_on_time()
        await super()._keep_connected(transport, started)

    def _call_on_time(self) -> None:
        if self.on_time is not None and self._loop is not None:
            self._loop.call_later(self.on_time(), self._call_on_time)

    def close(self, timeout_s: float = 5.0) -> None:
        """Send pending acknowledgements, weights and directives, then close the link."""
        deadline = time.monotonic() + timeout_s
        self.show()  # the end
        while not self.closed and self.connected and not self._all_sent() and time.monotonic() < deadline:
            self._tell(lambda connection: connection.wake())
            self._wait(self._all_sent, 0.02)
        self._stop_thread()

    def _all_sent(self) -> bool:
        connection = self._connection
        return connection is None or connection.all_sent
