"""A worker's link: samples out, policies and directives in."""

# Theory of operation
#
# `WorkerLink` is what a worker's program holds of the network. It joins five parts, of which each has its rules, and
# adds the thread (`base.py`), the calls and the log:
#
#     application -> Outbox -> StreamSender -> WorkerConnection -> Server          samples, encoded in the I/O thread
#                               Overflow -> files                                  samples that wait long
#     application <- take_policy, directive, progress, waits <- WorkerState        last values
#
# Full queues. With `drop_oldest` the application never waits: an environment's control loop goes on whatever the
# network does, and what finds no place in memory or on the disk is dropped, the oldest first, and counted. With
# `block`, `send` waits until acknowledgements or a close end the wait. It waits for an eighth of the queue and not for
# its own size, so that a queue that stays full costs eight wake-ups for its content and not one for each sample.
#
# Values for the application are copied from the state in `_notify`, in the I/O thread, and each is replaced by one
# assignment: readers need no lock, and see one that was whole. Only the policy is taken under the lock, because it must
# be taken once.
#
# Samples of earlier processes (`_continue_stream`) get a sender and an overflow of their own on this link, since they
# have numbers of their own. They belong to the run, the CA and the certificate that they were collected with; others
# stay where they are.
#
# The end. `close` marks the state as ending, asks the Server to store what no trainer takes, and waits until every
# message is acknowledged or stored, up to `drain_timeout_s`. Then the stream is closed, so that the Server forgets it,
# or what is left goes to the disk for the next process. The report says what became of each sample. `close_soon` does
# the same without waiting and without a lock: a finalizer may run in any thread at any point, also in one that holds
# the lock.
#
# The log. A robot may stand for a weekend without a Server: whatever can repeat is logged once for each reason, or once
# an outage, and the sets of reasons are bounded, because a Server can invent them.

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec

from tmrl_core.errors import LinkClosedError, TmrlError
from tmrl_core.networking.links.base import Link
from tmrl_core.networking.links.overflow import CHECK_S, Overflow
from tmrl_core.networking.links.remark_log import RemarkLog
from tmrl_core.networking.links.sealing import seal_worker
from tmrl_core.networking.protocol.delivery import CloseReport, StreamSecret, StreamSender, WrittenMessage
from tmrl_core.networking.protocol.messages import (
    EXPERT,
    Directive,
    PolicyUpdate,
    Progress,
    Version,
    decode_body,
    plain,
)
from tmrl_core.networking.protocol.pictures import Picture
from tmrl_core.networking.spools.stream_files import SpooledStreamInfo, StreamFiles, default_limit, left_streams
from tmrl_core.networking.transports.base import Transport
from tmrl_core.networking.transports.selection import LinkSettings, is_loopback
from tmrl_core.networking.worker import WorkerConnection, WorkerState
from tmrl_core.networking.worker.outbox import Outbox
from tmrl_core.rate_limited_log import RateLimitedLog
from tmrl_core.samples import Chunk, EpisodeRecord, encode_value

logger = logging.getLogger(__name__)

_MOST_LEFT = 256
"""Maximum number of earlier processes whose samples are delivered at a time; a link carries 1,024 streams."""
_REFUSALS_SAID = 20
"""Number of different reasons of refused samples that are logged."""


class WorkerCounts(NamedTuple):
    """Counters of a worker's link, in samples unless the name says otherwise."""

    samples_sent: int
    samples_acked: int
    samples_refused: int
    samples_dropped: int
    queued_bytes: int
    queued_samples: int
    reconnects: int
    forged: int = 0
    """Messages to this worker without a valid proof of their origin."""
    outdated: int = 0
    """Messages of a trainer to this worker that were older than accepted ones."""


class WorkerLink(Link[WorkerConnection]):
    """A worker's link to the Server.

    Args:
        settings: address and credentials of the Server.
        name: label for display.
        run: name of the run; samples and weights of other runs are separate.
        signature: description of the environment, for the trainer's check.
        queue_bytes: maximum bytes of unacknowledged samples in memory.
        when_full: `block`: `send` waits for space; `drop_oldest`: samples that wait long go to `spool_dir`, and what
            finds no space there is dropped and counted, the oldest message first.
        spool_dir: folder for samples that wait, shared by any number of workers; None: they wait in memory only.
        spool_bytes: maximum bytes of samples in `spool_dir`; 0: none; None: see `default_limit`.
        drain_timeout_s: time limit for acknowledgements in `close`.
        model_path: file of the worker's copy of the policy, beside which it keeps the highest version that it has
            accepted; None: a worker that starts again accepts any version.
        lateness: returns steps, late steps and the 99.9th percentile of lateness in microseconds, in any thread; None:
            the environment has no rate.

    Raises:
        ConfigError, CredentialsError: the settings demand authentication that is not possible here.
    """

    _end = WorkerConnection
    _hurries = True

    def __init__(
        self,
        settings: LinkSettings,
        *,
        name: str,
        run: str,
        signature: Mapping[str, Any] | None = None,
        queue_bytes: int = 64 << 20,
        when_full: Literal["block", "drop_oldest"] = "drop_oldest",
        spool_dir: Path | None = None,
        spool_bytes: int | None = None,
        drain_timeout_s: float = 10.0,
        model_path: str | os.PathLike[str] | None = None,
        lateness: Callable[[], tuple[int, int, int]] | None = None,
    ) -> None:
        log = RemarkLog(logger)
        identity, seal = seal_worker(settings, run, model_path, log)
        self._worker = WorkerState(run=run, name=name, peer=os.urandom(16), seal=seal)
        self.lateness = self._worker.lateness = lateness
        super().__init__(settings, self._worker, identity, log)
        self.drain_timeout_s = drain_timeout_s
        self._queue_bytes = queue_bytes
        drop_oldest = when_full == "drop_oldest"
        stream = self._worker.new_stream()
        announced = encode_value(dict(signature or {}))
        authority = identity.authority if identity is not None else ""
        files: StreamFiles | None = None
        if spool_dir is not None and spool_bytes is None:
            # Once, at the start: a limit that followed the free space would shrink with what this worker writes.
            spool_bytes = default_limit(spool_dir)
        if spool_dir is not None and spool_bytes and drop_oldest:
            info = SpooledStreamInfo(stream=stream.hex(), run=run, name=name, signature=announced)
            if seal is not None:
                info = msgspec.structs.replace(info, authority=authority, **seal.stream_secret(stream)._asdict())
            files = StreamFiles(spool_dir / stream.hex(), info, spool_bytes)
        self._sender = StreamSender(
            stream,
            # In `block` mode, `send` waits for room before, and samples that were handed over are never refused.
            queue_bytes=queue_bytes if drop_oldest else 1 << 62,
            drop_oldest=drop_oldest,
            sealer=seal,
            store=files,
            store_bytes=spool_bytes or 0,
        )
        compression: Literal["auto", "zstd", "none"] = settings.compression
        if compression == "auto" and (settings.transport == "local" or is_loopback(settings.host)):
            compression = "none"  # on a loopback link, copying is faster than compressing
        self._outbox = Outbox(
            self._sender,
            queue_bytes=queue_bytes,
            drop_oldest=drop_oldest,
            max_message_bytes=settings.max_message_bytes,
            compression=compression,
        )
        self._has_work = self._outbox.ready
        self._overflow = Overflow(self._sender, files, self._call, self._check_overflow) if files is not None else None
        self._left: list[Overflow] = []
        """Streams of earlier processes with samples on the disk."""
        self._closes_itself = self._abandoned = False
        """True: nobody is left to call `close`; and such a link has ended."""
        self._interrupted = False
        """True: `wake` was called, and no call of `send` has waited since."""
        self._overflow_timer = False
        """True: `_check_overflow` will be called by a timer."""
        self._worker.add_stream(self._sender, announced)
        if files is not None:
            # After this process has its own stream, which holds channel 0: `Lateness` and wait reasons are about that.
            for left, messages in itertools.islice(left_streams(files.folder.parent), _MOST_LEFT):
                self._continue_stream(left, messages, authority)
        self._policy: tuple[Version, bytes | memoryview] | None = None
        self.versions_published = 0
        """Number of versions published up to the newest policy that arrived, skipped versions included."""
        self.directive = Directive()
        """The trainer's current directive for this worker."""
        self.finished = False
        """True: the trainer has announced the end of the run."""
        self.progress = Progress()
        """The trainer's counters."""
        self.place = 0
        """Number of this worker among those of the same label, which stays the same; 0: it is the first, so far."""
        self._has_dropped = 0
        """Number of dropped messages that `_warn_of_drops` has seen."""
        self._warned_of_drops = False
        self._logged_refusals: set[str] = set()
        self._taken: bool | None = None
        """Last logged state. True: a trainer takes samples. None: nothing was logged yet."""
        self._logged_halts: set[str] = set()
        self._receiver_line = RateLimitedLog(logger.info, "changes of the receiver of samples")
        self._halt_line = RateLimitedLog(logger.warning, "reasons to keep samples")

    @property
    def expert(self) -> bool:
        """True: this worker is an expert, whose policy is not the trainer's."""
        return self._outbox.signature == EXPERT

    @expert.setter
    def expert(self, expert: bool) -> None:
        self._outbox.signature = EXPERT if expert else b""

    @property
    def stream(self) -> bytes:
        """Return the id of this worker's stream."""
        return self._sender.stream

    def _continue_stream(self, files: StreamFiles, messages: Sequence[WrittenMessage], authority: str) -> None:
        """Deliver what an earlier process has left on the disk, or log why not."""
        info, worker = files.info, self._worker
        if not messages:  # the process was killed while it wrote the first one
            files.remove()
            return
        stream = bytes.fromhex(info.stream)
        samples = sum(message.samples for message in messages)
        problem = ""
        if info.run != worker.run:
            problem = f"they are of run {info.run!r}"
        else:
            secret = StreamSecret(info.identity, info.started_s, info.key) if info.key else None
            if not worker.can_continue(stream, secret) or info.authority != authority:
                problem = "they were collected with other credentials, or another network.end_to_end"
        if problem:
            files.close()
            logger.warning("%d samples wait in %s and are not delivered: %s", samples, files.folder, problem)
            return
        sender = StreamSender(
            stream,
            queue_bytes=self._queue_bytes,
            drop_oldest=True,
            sealer=worker.seal,
            store=files,
            store_bytes=1 << 62,
        )
        sender.restore(messages)
        worker.add_stored_stream(sender, info.signature, info.name)
        # What an earlier process has left uses up the same limit of the disk.
        self._sender.store_bytes = max(0, self._sender.store_bytes - sender.held_bytes)
        self._left.append(Overflow(sender, files, self._call, self._check_overflow, restored=True))
        logger.info("%d samples of an earlier process wait in %s and are delivered", samples, files.folder)

    # --- samples ---

    def send(self, chunks: Sequence[Chunk], records: Sequence[EpisodeRecord], timeout_s: float | None = None) -> None:
        """Submit samples, which are encoded and sent in the background. The caller must not use them afterwards.

        If the queue is full and nothing may be dropped, wait for free space. Acknowledgements, `close` and `wake` end
        the wait.

        Raises:
            LinkClosedError: the link was closed, before or while waiting, `timeout_s` is over, or `wake` was called.
        """
        self.check()
        last = len(chunks) - 1
        for i, chunk in enumerate(chunks or ((None,) if records else ())):
            size = chunk.nbytes if chunk is not None else 0
            if not self._outbox.has_room(size):
                self._wait_for_room(size, timeout_s)
            self._outbox.add(chunk, tuple(records) if i >= last else (), size)
            self._wake_thread()  # after every call, because the next call may wait for these samples

    def _wait_for_room(self, size: int, timeout_s: float | None) -> None:
        # More space than this item needs, because a wake-up for each item is expensive.
        room = max(size, self._queue_bytes // 8)
        met = self._wait(lambda: self._interrupted or self._outbox.has_room(room), timeout_s)
        interrupted, self._interrupted = self._interrupted, False
        if interrupted or not met:
            raise LinkClosedError("samples were not queued: the link was closed, or no space became free in time")

    def _serve(self) -> bool:
        if not self._outbox.encode():
            return False
        self._warn_of_drops()
        self._check_overflow()
        self._on_change()
        return True

    def _check_overflow(self, timer: bool = False) -> None:
        """Write samples that wait long to the disk. Repeated by a timer while some wait."""
        if timer:
            self._overflow_timer = False
        overflow, loop = self._overflow, self._loop
        if overflow is None or loop is None:
            return
        again = overflow.check(loop.time(), self._sender.active)
        for left in list(self._left):
            if left.check(loop.time(), self._sender.active):
                again = True
            else:
                self._left.remove(left)
                left.close()
                logger.info("the samples that an earlier process had left in %s are delivered", left.files.folder)
        self._warn_of_drops()
        if again and not self._overflow_timer:
            self._overflow_timer = True
            loop.call_later(CHECK_S, self._check_overflow, True)

    def _warn_of_drops(self) -> None:
        """Log the first drop of an outage; `counts` has the number, and the worker's last line repeats it."""
        if self._has_dropped == self._sender.messages_dropped:
            return
        if not self._warned_of_drops:
            self._warned_of_drops = True
            setting = "worker.queue_bytes" if self._overflow is None else self._overflow.bound
            limit = self._sender.store_bytes if setting == "worker.spool_bytes" else self._queue_bytes
            slow = self._overflow is not None and setting == "worker.queue_bytes" and not self._overflow.failed
            logger.warning(
                "samples wait for the Server or the trainer and fill %s (%d)%s: the oldest are dropped from now on. "
                "Raise %s to bridge a longer outage, or set worker.when_full: block to wait instead (logged once "
                "until all samples are acknowledged)",
                setting,
                limit,
                ", because the disk of worker.spool_dir is too slow" if slow else "",
                setting,
            )
        self._has_dropped = self._sender.messages_dropped

    # --- policies, directives, progress ---

    def _is_new(self, reason: str) -> bool:
        """Return True if a reason of the trainer should be logged, which is once."""
        if reason in self._logged_refusals or len(self._logged_refusals) >= _REFUSALS_SAID:
            return False
        self._logged_refusals.add(reason)
        return True

    def _notify(self) -> None:
        worker = self._worker
        self.directive, self.progress, self.place = worker.directive, worker.progress, worker.place
        self.finished = worker.directive.finish
        if worker.policy is not None:
            with self._changed:
                self._policy, worker.policy = worker.policy, None
                self.versions_published = worker.versions_published
        if worker.kept.misfits and self._is_new("misfits"):
            logger.warning(
                "a policy of the trainer could not be made of the difference that was sent, so the Server sends it "
                "completely (logged once)"
            )
        refusal = worker.directive.refusal
        if refusal and self._is_new(refusal):
            logger.warning("the trainer uses no samples of this worker: %s (logged once)", plain(refusal))
        if self._warned_of_drops and self._sender.held_messages == 0:
            self._warned_of_drops = False  # this outage is over: the next one is worth a line of its own
        while self._sender.refusals:
            number, reason = self._sender.refusals.popleft()
            if self._is_new(reason):
                logger.warning(
                    "the trainer refused message %d of this worker: %s (logged once; samples_refused counts all)",
                    number,
                    plain(reason),
                )
        if self._has_work():
            self._wake_thread()
        if self._left and not self._overflow_timer:
            self._check_overflow()
        super()._notify()
        if self.connected:
            taken = self._taken
            self._log_receiver()
            if self._taken is not taken:
                self._on_change()  # threads that wait have already checked this
        if self._closes_itself and not self._abandoned and self._drained():
            if (connection := self._connection) is not None:
                connection.end_streams()
            self._abandon()

    def _log_receiver(self) -> None:
        """Log when this worker's samples lose their receiver and when they have one again."""
        worker = self._worker
        remark, same = "", "use the same network.end_to_end on all machines"
        if worker.trainer_authenticates:
            remark = (
                f"the trainer of run {worker.run!r} authenticates its policies and this worker does not check: {same}"
            )
        elif worker.seal is not None and not worker.seal.ready and self._sender.active and not worker.ending:
            remark = f"samples wait here: no trainer of run {worker.run!r} has proved its identity; {same}"
        elif worker.halted and not self._sender.active:
            remark = worker.halt_reason
        if remark:
            if remark not in self._logged_halts and len(self._logged_halts) < _REFUSALS_SAID:
                self._halt_line(remark, time.monotonic())
                self._logged_halts.add(remark)
            self._taken = False
        elif self._sender.active:
            # while the link drains, the Server's spool may be the receiver
            if self._taken is False and not worker.ending:
                self._receiver_line(f"a trainer of run {worker.run!r} takes samples", time.monotonic())
            self._taken = True
            self._logged_halts.clear()
        elif worker.halted and self._taken is not False and not worker.ending:
            line = f"no trainer of run {worker.run!r} is connected: samples wait here until one connects"
            self._receiver_line(line, time.monotonic())
            self._taken = False

    def take_policy(self) -> PolicyUpdate | None:
        """Return the newest policy if it was not taken yet, without waiting."""
        with self._changed:
            policy, self._policy = self._policy, None
        if policy is None:
            return None
        version, body = policy
        update: PolicyUpdate = decode_body(body, PolicyUpdate)
        return msgspec.structs.replace(update, version=version)

    def wait_policy(self, timeout_s: float) -> bool:
        """Wait until a policy can be taken. A finish directive and `close` end the wait too."""
        return self._wait(lambda: self._policy is not None or self.finished, timeout_s) and self._policy is not None

    def wait_change(self, timeout_s: float) -> bool:
        """Wait until anything has changed since the last call: policy, directive, progress, counters, or `close`.

        So nothing is missed between a look at these values and the wait. One thread waits. False: nothing has changed.
        """
        changed = self._news.wait(timeout_s)
        self._news.clear()
        return changed

    def wake(self) -> None:
        """End the present or the next wait of `wait_change` and of `send`.

        It takes no lock, so a signal handler may call it.
        """
        self._call(self._interrupt)

    def _interrupt(self) -> None:
        self._interrupted = True
        self._notify()

    def say_waits(self, text: str) -> None:
        """Send the trainer this worker's wait reason; empty: it collects again."""
        if text != self._worker.waits:
            self._worker.waits = text
            self._tell(WorkerConnection.say_waits)

    def show(self, picture: Picture) -> None:
        """Send viewers a picture of this worker, if the link stands. Safe from any thread."""
        self._tell(lambda connection: connection.show(picture))

    @property
    def waits(self) -> str:
        """Return this worker's wait reason; empty while it collects."""
        return self._worker.waits

    @property
    def counts(self) -> WorkerCounts:
        """Return the counters of this worker's stream."""
        sender, seal = self._sender, self._worker.seal
        waiting = self._outbox.samples
        return WorkerCounts(
            sender.samples_offered + waiting,
            sender.samples_acked,
            sender.samples_refused,
            sender.samples_dropped,
            sender.held_bytes + self._outbox.bytes,
            sender.held_samples + waiting,
            max(0, self._worker.connections - 1),
            seal.forged if seal is not None else 0,
            seal.outdated if seal is not None else 0,
        )

    # --- the end ---

    def close(self, drain: bool = True) -> CloseReport:
        """Drain and close: wait up to `drain_timeout_s` for acknowledgements, then close the link."""
        if drain and not self.closed and self._thread is not None:
            # First, so that a `Halt` that arrives meanwhile is answered with `HandOver`.
            self._worker.ending = True
            self._tell(WorkerConnection.hand_over)
            with contextlib.suppress(TmrlError):
                self._wait(self._drained, self.drain_timeout_s)
            if self._drained():
                self._tell(WorkerConnection.end_streams)
        # The thread ends before the rest is written, so that nobody else touches the sender.
        self._stop_thread()
        kept = self._keep_rest()
        counts = self.counts
        stored = self._sender.samples_stored
        left = counts.queued_samples + self._sender.samples_unresolved - stored - kept
        report = CloseReport(counts.samples_acked, stored, left)
        if left and self._worker.hand_over_refusal:
            logger.warning("%d samples were not handed over: %s", left, self._worker.hand_over_refusal)
        logger.debug("samples acknowledged: %d, handed over: %d, lost: %d", *report)
        return report

    def close_soon(self) -> None:
        """Begin to close the link as `close` does, without waiting and without a lock, as a finalizer must."""
        self._worker.ending = True
        self._call(self._close_once_drained)

    def _close_once_drained(self) -> None:
        self._closes_itself = True
        if (connection := self._connection) is not None:
            connection.hand_over()
        if self._loop is not None:
            self._loop.call_later(self.drain_timeout_s, self._abandon)
        self._notify()  # it may be drained already; otherwise the change that drains it leads there

    def _abandon(self) -> None:
        self._abandoned = True
        self._end_soon()

    def _run(self, transport: Transport, started: threading.Event) -> None:
        super()._run(transport, started)
        if self._abandoned:
            self._keep_rest()

    def _keep_rest(self) -> int:
        """Write what was not delivered to the disk, for a later process. Return the number of samples of this one."""
        overflow, self._overflow = self._overflow, None
        if overflow is None:
            return 0
        overflow.end_thread()
        # Nobody waits for samples of a run that is over, unless an outage has put some of them on the disk before.
        if not self._sender.settled or self._outbox:
            while (not self.finished or overflow.has_files) and not overflow.failed:
                overflow.write_all()
                if not self._serve():
                    break
        kept = overflow.close()
        total = kept + sum(left.close() for left in self._left)
        if total:
            logger.info(
                "%d samples wait in %s: the next worker of run %r that starts there delivers them",
                total,
                overflow.files.folder.parent,
                self._worker.run,
            )
        return kept

    def _drained(self) -> bool:
        return not self._outbox and self._sender.settled
