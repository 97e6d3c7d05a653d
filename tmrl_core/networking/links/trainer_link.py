"""A trainer's link: samples in, policies and directives out."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from tmrl_core.networking.links.base import Link
from tmrl_core.networking.links.remark_log import RemarkLog
from tmrl_core.networking.links.sealing import Identity, seal_trainer
from tmrl_core.networking.protocol.delivery import CommittedOffset, Received
from tmrl_core.networking.protocol.messages import (
    MAX_COUNT,
    Blob,
    Directive,
    Lateness,
    PolicyUpdate,
    Progress,
    Version,
)
from tmrl_core.networking.trainer import Member, TrainerConnection, TrainerState
from tmrl_core.networking.trainer.inbox import TAKEN_BYTES
from tmrl_core.networking.transports.base import Transport
from tmrl_core.networking.transports.selection import LinkSettings

if TYPE_CHECKING:
    from tmrl_core.networking.trainer.seal import TrainerSeal

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


class TrainerLink(Link):
    """A trainer's link to the Server.

    Args:
        settings: address and credentials of the Server.
        name: label for people.
        run: name of the run.
        inbox_bytes: maximum bytes of samples that wait for the training thread (at least one message).
        incarnation, counter, offsets, refusals: from the checkpoint that training resumes from.
        gaps: messages and samples that workers have dropped, as counted in the checkpoint.
        seal: authenticates samples and what goes to the workers; None: as `settings.end_to_end` says.
        hold: stores an incarnation durably, before it is used; for `seal` only.
        cost_of: returns the bytes that a message's payload takes in memory, see `trainer.inbox`.

    Attributes:
        has_more: True: the latest `receive` has left messages that had arrived.
        on_time: called in the I/O thread from the start on; returns the seconds until the next call. None: not called.

    Raises:
        ConfigError, CredentialsError: the settings demand authentication that is not possible here.
    """

    _connection: TrainerConnection | None
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
        seal: TrainerSeal | None = None,
        hold: Callable[[int], None] = lambda incarnation: None,
        cost_of: Callable[[memoryview], int] = len,
    ) -> None:
        identity: Identity | None = None
        log = RemarkLog(logger)
        if seal is None:
            identity, seal, files = seal_trainer(settings, run, log)
            if files is not None:
                incarnation, hold = max(incarnation, files.highest), files.hold
        self._trainer = TrainerState(
            run=run,
            name=name,
            peer=os.urandom(16),
            inbox_bytes=inbox_bytes,
            incarnation=incarnation,
            counter=counter,
            offsets={stream: CommittedOffset(*offset) for stream, offset in (offsets or {}).items()},
            refusals=refusals,
            seal=seal,
            hold=hold,
        )
        self._trainer.inbox.cost_of = cost_of
        self._trainer.inbox.max_message_bytes = settings.max_message_bytes
        self._trainer.on_remark = log.remark
        self.has_more = False
        self.on_time: Callable[[], float] | None = None
        self._trainer.gap_messages, self._trainer.gap_samples = gaps
        # These methods of the room need nothing of the link's thread.
        self.worker_name, self.origin = self._trainer.worker_name, self._trainer.origin
        self.offsets_after, self.waits_of = self._trainer.offsets_after, self._trainer.waits_of
        self.has_of_first, self.take_member_changes = self._trainer.has_of_first, self._trainer.take_member_changes
        super().__init__(settings, self._trainer, identity, log)
        # The connection collects acknowledgements and credit when it is asked for output. A pause in between sends them
        # in batches.
        self._has_work = lambda: bool(self._trainer.to_acknowledge) and self.connected

    # --- samples ---

    def receive(self, most_bytes: int = TAKEN_BYTES) -> list[Received]:
        """Return arrived messages without waiting, in order for each stream. Their bytes count as consumed.

        Many or large messages are returned in several calls; `has_more` says whether this one has left some.

        Args:
            most_bytes: return messages that take about so many bytes in memory, and at least one if there is one.
        """
        state = self._trainer
        with state.lock:
            received = state.inbox.take(most_bytes)
            self.has_more = bool(state.inbox)
        return received

    @property
    def arrived(self) -> int:
        """Return the number of messages that have arrived, those that `receive` has returned included."""
        return self._trainer.inbox.appended

    @property
    def received(self) -> int:
        """Return the number of messages that calls of `receive` have returned."""
        with self._trainer.lock:
            return self._trainer.inbox.appended - len(self._trainer.inbox)

    @property
    def received_bytes(self) -> int:
        """Return the bytes that the messages take in memory which calls of `receive` have returned."""
        return self._trainer.inbox.taken_cost

    def wait(self, timeout_s: float, condition: Callable[[], bool] = lambda: False) -> bool:
        """Wait until `receive` would return something, or a condition on what workers report is met.

        Raises:
            NetworkError: the Server refuses this trainer permanently.
        """
        return self._wait(lambda: bool(self._trainer.inbox) or condition(), timeout_s)

    def acknowledge(self, received: Iterable[Received]) -> None:
        """Acknowledge messages that the memory has committed."""
        for one in received:
            self._trainer.acknowledge(one)
        self._wake_thread()

    def refuse(self, received: Received, reason: str) -> None:
        """Acknowledge a message that the memory cannot store as refused; the worker receives the reason."""
        self._trainer.refuse(received, reason)
        self._wake_thread()

    @property
    def offsets(self) -> dict[bytes, CommittedOffset]:
        """Return the committed offset of each stream, for the checkpoint."""
        return self._trainer.offsets

    @property
    def refusals(self) -> dict[bytes, tuple[tuple[int, str], ...]]:
        """Return the recent refusals of each stream, with shortened reasons, for the checkpoint."""
        return self._trainer.refusals

    # --- messages to workers ---

    def publish(self, policies: Mapping[str, Blob], exploration: Mapping[str, float] | None = None) -> Version:
        """Publish these weights as the latest. Return their version.

        Raises:
            LocalProtocolError: workers could not decode the weights.
        """
        version = self._trainer.publish(PolicyUpdate((0, 0), dict(policies), dict(exploration or {})))
        if (connection := self._connection) is not None:
            self._call(connection.wake)
        return version

    def direct(self, directive: Directive, stream: bytes | None = None) -> None:
        """Send a directive to one worker's stream, or to all workers.

        Raises:
            ValueError: the directive is larger than `MAX_BODY_BYTES`.
        """
        self._trainer.direct(directive, stream)
        if (connection := self._connection) is not None:  # otherwise the next one sends it
            self._call(connection.direct, stream)

    def report(self, progress: Progress) -> None:
        """Send the trainer's progress to all workers."""
        if progress != self._trainer.progress:
            self._trainer.progress = progress
            if (connection := self._connection) is not None:
                self._call(connection.report)

    def announce(self) -> None:
        """Send the run card again, because the certificate was renewed."""
        if (connection := self._connection) is not None:
            self._call(connection.announce)

    # --- state ---

    @property
    def incarnation(self) -> int:
        """Highest known incarnation of a trainer, for the checkpoint."""
        return self._trainer.incarnation

    @property
    def version(self) -> Version:
        """The version of the latest published policy."""
        return self._trainer.version

    @property
    def members(self) -> list[Member]:
        """Return the streams of linked workers."""
        with self._trainer.lock:
            return list(self._trainer.members.values())

    @property
    def waits(self) -> list[tuple[str, str]]:
        """Return the label of each linked worker and its wait reason; empty: it collects."""
        state = self._trainer
        with state.lock:
            return [(member.name, state.waits.get(stream, "")) for stream, member in state.members.items()]

    @property
    def lateness(self) -> dict[bytes, Lateness]:
        """Return the lateness of the steps of linked workers whose environments have a rate, by stream."""
        with self._trainer.lock:
            return dict(self._trainer.lateness)

    @property
    def counts(self) -> TrainerCounts:
        """Return the counters of this link."""
        state = self._trainer
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
        while not self.closed and self.connected and not self._all_sent() and time.monotonic() < deadline:
            if (connection := self._connection) is not None:
                self._call(connection.wake)
            self._wait(self._all_sent, 0.02)
        self._stop_thread()

    def _all_sent(self) -> bool:
        connection = self._connection
        return connection is None or connection.all_sent
