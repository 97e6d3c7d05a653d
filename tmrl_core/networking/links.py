"""WorkerLink and TrainerLink: a client's I/O thread and the queues between it and the application.

The I/O thread owns the event loop, the connection and everything that it touches; it never decodes samples or weights.
The application's thread hands work over and takes results through the methods here, which are the only ones that may be
called from other threads. The loop is not woken for each hand-over, only when it has gone idle: waking it costs the
environment's loop more than everything else that is done for a step.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple

import msgspec

from tmrl_core.errors import CodecError, HandshakeError, LinkClosedError, NetworkError, RefusedError, TmrlError
from tmrl_core.networking.connection import Connection
from tmrl_core.networking.delivery import Body, Mark, Received, StreamSender
from tmrl_core.networking.messages import (
    RETRYABLE,
    Blob,
    Directive,
    PolicyUpdate,
    Progress,
    Version,
    decode_body,
)
from tmrl_core.networking.peers import (
    ClientState,
    Member,
    TrainerConnection,
    TrainerState,
    WorkerConnection,
    WorkerState,
)
from tmrl_core.networking.transports.base import Driver, Transport, new_event_loop
from tmrl_core.networking.transports.select import client_transport, is_loopback
from tmrl_core.samples import Chunk, EpisodeRecord, encode_message_buffers, encode_value, split_chunk

logger = logging.getLogger(__name__)

_PIECE_BYTES = 1 << 20
"""Samples are cut into messages of about this size."""
_AHEAD_BYTES = 8 << 20
"""Encoded and unsent bytes beyond which a link that may not drop encodes no more."""
_IDLE_TICK_S = 0.002
"""How long the I/O thread stays awake after a hand-over, so that the next one need not wake it."""


class LinkSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Where the Server is and how it is spoken to.

    `security` "auto" is TLS, except towards a Server on this machine that the same user runs without it.
    """

    host: str = "127.0.0.1"
    port: int = 55555
    transport: Literal["tls", "local"] = "tls"
    security: Literal["TLS", "auto"] | None = "TLS"
    hostname: str | None = None
    credentials_dir: str | None = None
    token: str | None = None
    connect_timeout_s: float = 10.0
    silent_s: float = 10.0
    heartbeat_s: float = 3.0
    backoff_min_s: float = 0.2
    backoff_max_s: float = 15.0
    max_message_bytes: int = 16 << 20
    compression: Literal["auto", "zstd", "none"] = "auto"

    def __repr__(self) -> str:
        return f"LinkSettings(host={self.host!r}, port={self.port}, transport={self.transport!r})"  # never the token


class _Link:
    """What both links are: a thread that keeps one connection to the Server alive."""

    def __init__(self, settings: LinkSettings, state: ClientState) -> None:
        self.settings = settings
        self._state = state
        self._changed = threading.Condition()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._connection: Connection | None = None
        self._stopping: asyncio.Event | None = None
        self._closed = False
        self._failure: TmrlError | None = None
        self._welcomes = 0
        self._poked = False
        self._poke_lock = threading.Lock()
        self._notify_scheduled = False
        state.on_change = self._on_change

    # --- for the application ---

    def start(self) -> None:
        """Start connecting, in the background.

        Raises:
            CredentialsError: there are no credentials to connect with.
        """
        transport, token = client_transport(self.settings, self._state.role)
        self._state.token = token
        started = threading.Event()
        self._thread = threading.Thread(
            target=self._run, args=(transport, started), name=f"tmrl-{self._state.role}-link", daemon=True
        )
        self._thread.start()
        started.wait()

    @property
    def connected(self) -> bool:
        """Whether the Server has welcomed this link."""
        connection = self._connection
        return connection is not None and connection.state == "open" and not connection.closing

    @property
    def closed(self) -> bool:
        """Whether the link was closed or has failed for good."""
        return self._closed or self._failure is not None

    def wait_connected(self, timeout_s: float) -> bool:
        """Wait until the Server has welcomed this link; False when the time is over.

        Raises:
            NetworkError: the Server refuses this peer for good.
        """
        return self._wait(lambda: self.connected, timeout_s)

    def check(self) -> None:
        """Raise what has ended this link, if something has."""
        if self._failure is not None:
            raise self._failure
        if self._closed:
            raise LinkClosedError("the link is closed")

    def _wait(self, condition: Callable[[], bool], timeout_s: float | None) -> bool:
        with self._changed:
            met = self._changed.wait_for(lambda: condition() or self.closed, timeout_s)
        if self._failure is not None:
            raise self._failure
        return met and condition()

    def _on_change(self) -> None:
        # Once for all that one reading brought: each wake-up of a waiting thread costs more than a message does.
        if not self._notify_scheduled and self._loop is not None:
            self._notify_scheduled = True
            self._loop.call_soon(self._notify)

    def _notify(self) -> None:
        """Something has changed; called in the I/O thread, and when the link ends."""
        self._notify_scheduled = False
        if self._state.connections > self._welcomes:
            self._welcomes = self._state.connections
            again = " again" if self._welcomes > 1 else ""
            logger.info("connected to the Server at %s port %d%s", self.settings.host, self.settings.port, again)
        with self._changed:
            self._changed.notify_all()

    def _poke(self) -> None:
        """Have `_serve` run in the I/O thread soon."""
        with self._poke_lock:
            if self._poked:
                return
            self._poked = True
        self._call(self._serve_and_rest)

    def _call(self, function: Callable[..., object], *args: object) -> None:
        loop = self._loop
        if loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nothing to do any more
                loop.call_soon_threadsafe(function, *args)

    # --- in the I/O thread ---

    def _serve(self) -> bool:
        """Do some of what was handed over. True: there was something."""
        return False

    def _has_work(self) -> bool:
        """Whether `_serve` would do something now."""
        return False

    def _in_haste(self) -> bool:
        """Whether `_serve` should go on at once instead of after a rest."""
        return False

    def _serve_and_rest(self) -> None:
        assert self._loop is not None
        if self._serve():
            self._wake_driver()
            if self._in_haste():
                self._loop.call_soon(self._serve_and_rest)  # what has arrived meanwhile goes in between
            else:
                self._loop.call_later(_IDLE_TICK_S, self._serve_and_rest)
            return
        with self._poke_lock:
            self._poked = False
        if self._has_work():  # handed over between the last look and the flag
            self._poke()

    def _wake_driver(self) -> None:
        if self._connection is not None:
            self._connection.wake()

    def _make_connection(self) -> Connection:
        raise TypeError("a subclass says which connection")

    def _run(self, transport: Transport, started: threading.Event) -> None:
        loop = new_event_loop()
        self._loop = loop
        try:
            loop.run_until_complete(self._keep_connected(transport, started))
        except Exception as exc:
            logger.exception("the link's thread failed")
            self._failure = NetworkError(f"the link's thread failed: {exc!r}")
        finally:
            started.set()
            self._closed = True
            self._loop = None
            loop.close()
            self._notify()

    async def _keep_connected(self, transport: Transport, started: threading.Event) -> None:
        settings = self.settings
        self._stopping = asyncio.Event()
        started.set()
        stop = asyncio.ensure_future(self._stopping.wait())
        delay = settings.backoff_min_s
        said = ""
        while not self._stopping.is_set():
            connection = self._make_connection()
            reason: Exception | None
            welcomes = self._state.connections
            try:
                # Known before it is welcomed: what the application says from the first answer on must find it.
                self._connection = connection
                driver = await transport.dial(settings.host, settings.port, connection, settings.connect_timeout_s)
                self._poke()
                ends: set[asyncio.Future[Any]] = {driver.ended, stop}
                await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
                if self._stopping.is_set():
                    await self._close_driver(driver)
                    break
                reason = connection.reason
            except NetworkError as exc:
                reason = exc
            finally:
                self._connection = None
            self._notify()
            final = self._is_final(reason)
            if final is not None and not self._welcomes:
                self._failure = final
                return
            if self._state.connections > welcomes:
                delay = settings.backoff_min_s
                said = ""
            text = str(reason) if reason is not None else "the Server has closed the connection"
            if text != said:
                logger.warning("%s; trying again, at most every %g s", text, settings.backoff_max_s)
                said = text
            wait = settings.backoff_max_s if final is not None else delay
            delay = min(2 * delay, settings.backoff_max_s)
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(asyncio.shield(stop), wait * random.uniform(0.5, 1.0))
        stop.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await stop

    def _is_final(self, reason: Exception | None) -> TmrlError | None:
        """What makes another try pointless until a person has done something."""
        if isinstance(reason, RefusedError) and reason.code not in RETRYABLE and reason.code != "superseded":
            return reason
        return reason if isinstance(reason, HandshakeError) else None

    async def _close_driver(self, driver: Driver) -> None:
        driver.connection.close()
        driver.wake()
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(asyncio.shield(driver.ended), 2.0)
        driver.abort()

    def _stop_thread(self) -> None:
        self._closed = True
        if self._stopping is not None:
            self._call(self._stopping.set)
        self._notify()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout=10.0)


class DrainReport(NamedTuple):
    """What became of a worker's samples when it ended."""

    acknowledged: int
    handed_over: int
    """Taken over by the Server, to be acknowledged by a trainer later."""
    neither: int
    """Not acknowledged when the time was over: dropped and refused ones not included."""


class WorkerCounts(NamedTuple):
    """A worker's counters; samples unless they say otherwise."""

    samples_sent: int
    samples_acked: int
    samples_refused: int
    samples_dropped: int
    queued_bytes: int
    queued_samples: int
    reconnects: int


class WorkerLink(_Link):
    """A worker's link to the Server.

    Args:
        settings: where the Server is.
        name: label for people.
        run: name of the run; samples and weights of others are kept apart.
        signature: what the environment looks like, for the trainer to check.
        queue_bytes: most bytes of samples that wait for their acknowledgement.
        when_full: `block` makes `send` wait for room; `drop_oldest` drops the oldest message, counted.
        drain_timeout_s: how long `close` waits for acknowledgements.
    """

    def __init__(
        self,
        settings: LinkSettings,
        *,
        name: str,
        run: str,
        signature: Mapping[str, Any] | None = None,
        queue_bytes: int = 256 << 20,
        when_full: Literal["block", "drop_oldest"] = "drop_oldest",
        drain_timeout_s: float = 10.0,
    ) -> None:
        self._worker = WorkerState(run=run, name=name, peer=os.urandom(16))
        super().__init__(settings, self._worker)
        self.drain_timeout_s = drain_timeout_s
        self._queue_bytes = queue_bytes
        self._drop_oldest = when_full == "drop_oldest"
        # In `block` mode the bound is held where the samples are handed over; what is in is never refused.
        self._sender = StreamSender(
            os.urandom(16), queue_bytes=queue_bytes if self._drop_oldest else 1 << 62, drop_oldest=self._drop_oldest
        )
        self._worker.add_stream(self._sender, encode_value(dict(signature or {})))
        self._handed: deque[tuple[Chunk | None, Sequence[EpisodeRecord]]] = deque()
        self._handed_bytes = 0
        self._pieces: Iterator[tuple[Body, int]] | None = None
        self._policy: tuple[Version, bytes] | None = None
        self._compression: Literal["auto", "zstd", "none"] = settings.compression
        if settings.compression == "auto" and (settings.transport == "local" or is_loopback(settings.host)):
            self._compression = "none"  # copying is faster than compressing there

    @property
    def stream(self) -> bytes:
        """The id of this worker's stream."""
        return self._sender.stream

    # --- samples ---

    def send(self, chunks: Sequence[Chunk], records: Sequence[EpisodeRecord], timeout_s: float | None = None) -> None:
        """Hand samples over; they are encoded and sent in the background. The caller must not touch them any more.

        Waits for room when the bound is reached and nothing may be dropped: acknowledgements and `close` wake it.

        Raises:
            LinkClosedError: the link was closed, before or while waiting, or `timeout_s` is over.
        """
        self.check()
        items: list[tuple[Chunk | None, Sequence[EpisodeRecord]]] = [(chunk, ()) for chunk in chunks]
        if items:
            items[-1] = (items[-1][0], tuple(records))
        elif records:
            items = [(None, tuple(records))]
        for item in items:
            size = item[0].nbytes if item[0] is not None else 0
            # Once it is full, wait for some more room than for this one: waking for each is dear.
            if not (
                self._drop_oldest
                or self._has_room(size)
                or self._wait(partial(self._has_room, max(size, self._queue_bytes // 8)), timeout_s)
            ):
                raise LinkClosedError("the link was closed, or no room came in time, while samples waited for it")
            with self._changed:
                self._handed.append(item)
                self._handed_bytes += size
            self._poke()  # each time: the next one may have to wait for this one

    def _has_room(self, size: int) -> bool:
        waiting = self._handed_bytes + self._sender.held_bytes
        return waiting == 0 or waiting + size <= self._queue_bytes

    def _has_work(self) -> bool:
        # Without a drop policy nothing is gained by encoding far ahead, and memory is kept twice.
        return bool(self._handed) and (self._drop_oldest or self._sender.unsent_bytes < _AHEAD_BYTES)

    def _in_haste(self) -> bool:
        return self._has_work()

    def _serve(self) -> bool:
        encoded = 0
        while self._has_work() and encoded < _PIECE_BYTES:
            chunk, records = self._handed[0]
            if self._pieces is None:
                self._pieces = self._encoded(chunk, records)
            try:
                body, samples = next(self._pieces)
            except StopIteration:
                self._handed_over(chunk)
            except CodecError:
                logger.exception("samples could not be encoded and are lost")
                self._handed_over(chunk)
            else:
                self._sender.offer(body, samples)
                encoded += sum(map(len, body))
        return encoded > 0

    def _handed_over(self, chunk: Chunk | None) -> None:
        """The first item that was handed over is encoded whole."""
        self._pieces = None
        with self._changed:
            self._handed.popleft()
            self._handed_bytes -= chunk.nbytes if chunk is not None else 0
            self._changed.notify_all()

    def _encoded(self, chunk: Chunk | None, records: Sequence[EpisodeRecord]) -> Iterator[tuple[Body, int]]:
        if chunk is None:
            yield encode_message_buffers(None, records, compression=self._compression), 0
            return
        limit = min(_PIECE_BYTES, self.settings.max_message_bytes)
        pieces = list(split_chunk(chunk, limit)) if chunk.nbytes > limit else [chunk]
        for i, piece in enumerate(pieces):
            last = i == len(pieces) - 1
            yield encode_message_buffers(piece, records if last else (), compression=self._compression), piece.rows

    # --- policies, directives, progress ---

    def _notify(self) -> None:
        if self._worker.policy is not None:
            with self._changed:
                self._policy, self._worker.policy = self._worker.policy, None
        if self._has_work():
            self._poke()
        super()._notify()

    def take_policy(self) -> PolicyUpdate | None:
        """The newest policy, if it was not taken yet; never waits."""
        with self._changed:
            policy, self._policy = self._policy, None
        if policy is None:
            return None
        version, body = policy
        update: PolicyUpdate = decode_body(body, PolicyUpdate)
        return msgspec.structs.replace(update, version=version)

    @property
    def policy_waiting(self) -> bool:
        """Whether `take_policy` would return one."""
        return self._policy is not None

    def wait_policy(self, timeout_s: float) -> bool:
        """Wait until a policy can be taken. Also a finish directive and `close` wake it."""
        return self._wait(lambda: self._policy is not None or self.finished, timeout_s) and self._policy is not None

    def wait_change(self, timeout_s: float) -> bool:
        """Wait until anything has changed: policy, directive, progress, counters, or `close`. False: nothing has."""
        with self._changed:
            return self._changed.wait(timeout_s)

    @property
    def versions_published(self) -> int:
        """How many versions were published since the first connection, skipped ones included; it never falls."""
        return self._worker.versions_published

    @property
    def directive(self) -> Directive:
        """What the trainer wants of this worker."""
        return self._worker.directive

    @property
    def progress(self) -> Progress:
        """The trainer's counters."""
        return self._worker.progress

    @property
    def finished(self) -> bool:
        """Whether the trainer has said that the run is over."""
        return self._worker.directive.finish

    @property
    def counts(self) -> WorkerCounts:
        """Counters of this worker's stream."""
        sender = self._sender
        handed = sum(chunk.rows for chunk, _ in list(self._handed) if chunk is not None)
        return WorkerCounts(
            sender.samples_offered + handed,
            sender.samples_acked,
            sender.samples_refused,
            sender.samples_dropped,
            sender.held_bytes + self._handed_bytes,
            sender.held_samples + handed,
            max(0, self._worker.connections - 1),
        )

    # --- the end ---

    def close(self, drain: bool = True) -> DrainReport:
        """End in order: wait up to `drain_timeout_s` for what is not acknowledged, then close the link."""
        if drain and not self.closed and self._thread is not None:
            deadline = time.monotonic() + self.drain_timeout_s
            with contextlib.suppress(TmrlError):
                self._wait(lambda: not self._handed and not self._sender.held_messages, deadline - time.monotonic())
            if not self._sender.held_messages:
                self._call(self._end_streams)
        self._stop_thread()
        counts = self.counts
        report = DrainReport(counts.samples_acked, 0, counts.queued_samples + self._sender.samples_unresolved)
        logger.info("samples acknowledged: %d, handed over: %d, neither: %d", *report)
        return report

    def _end_streams(self) -> None:
        if isinstance(self._connection, WorkerConnection) and self.connected:
            self._connection.end_streams()

    def _make_connection(self) -> Connection:
        return WorkerConnection(self._worker, silent_s=self.settings.silent_s, heartbeat_s=self.settings.heartbeat_s)


class TrainerCounts(NamedTuple):
    """A trainer's counters; samples unless they say otherwise."""

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


class TrainerLink(_Link):
    """A trainer's link to the Server.

    Args:
        settings: where the Server is.
        name: label for people.
        run: name of the run.
        inbox_bytes: most bytes of samples that wait for the training thread (at least one message).
        incarnation, counter, marks: from the checkpoint that training goes on from.
    """

    def __init__(
        self,
        settings: LinkSettings,
        *,
        name: str,
        run: str,
        inbox_bytes: int = 64 << 20,
        incarnation: int = 0,
        counter: int = 0,
        marks: Mapping[bytes, tuple[int, int]] | None = None,
    ) -> None:
        self._trainer = TrainerState(
            run=run,
            name=name,
            peer=os.urandom(16),
            inbox_bytes=inbox_bytes,
            incarnation=incarnation,
            counter=counter,
            marks={stream: Mark(*mark) for stream, mark in (marks or {}).items()},
        )
        super().__init__(settings, self._trainer)

    # --- samples ---

    def receive(self) -> list[Received]:
        """Everything that has arrived, in order; never waits. Their bytes count as taken from now on."""
        return self._trainer.take()

    def wait(self, timeout_s: float) -> bool:
        """Wait until `receive` would return something.

        Raises:
            NetworkError: the Server refuses this trainer for good.
        """
        return self._wait(lambda: bool(self._trainer.inbox), timeout_s)

    def commit(self, received: Iterable[Received]) -> None:
        """The memory holds these for good: acknowledge them."""
        for one in received:
            self._trainer.commit(one)
        self._poke()

    def refuse(self, received: Received, reason: str) -> None:
        """The memory cannot take this one: acknowledge it as refused; the worker is told why."""
        self._trainer.commit(received, refused=reason)
        self._poke()

    @property
    def marks(self) -> dict[bytes, Mark]:
        """How far each stream is committed: part of the checkpoint."""
        return self._trainer.marks

    def worker_name(self, stream: bytes) -> str:
        """The label of the worker that a stream is or was of."""
        return self._trainer.names.get(stream, stream.hex()[:8])

    # --- what workers are told ---

    def publish(self, policies: Mapping[str, Blob], exploration: Mapping[str, float] | None = None) -> Version:
        """Make these the latest weights. Returns their version."""
        version = self._trainer.publish(PolicyUpdate((0, 0), dict(policies), dict(exploration or {})))
        self._call(self._wake_driver)
        return version

    def direct(self, directive: Directive, stream: bytes | None = None) -> None:
        """Tell one worker's stream, or all workers, what is wanted of them from now on."""
        self._trainer.directives[stream] = directive
        self._call(self._direct, stream)

    def _direct(self, stream: bytes | None) -> None:
        if isinstance(self._connection, TrainerConnection):
            self._connection.direct(stream)

    def report(self, progress: Progress) -> None:
        """Tell workers how far training is."""
        if progress != self._trainer.progress:
            self._trainer.progress = progress
            self._call(self._report)

    def _report(self) -> None:
        if isinstance(self._connection, TrainerConnection):
            self._connection.report()

    # --- state ---

    @property
    def incarnation(self) -> int:
        """The highest incarnation that this trainer knows of: part of the checkpoint."""
        return self._trainer.incarnation

    @property
    def version(self) -> Version:
        """The version of the latest published policy."""
        return self._trainer.version

    @property
    def members(self) -> list[Member]:
        """The workers' streams that are linked now."""
        with self._trainer.lock:
            return list(self._trainer.members.values())

    @property
    def counts(self) -> TrainerCounts:
        """Counters of this link."""
        state = self._trainer
        return TrainerCounts(
            state.samples_received,
            state.messages_received,
            state.gap_samples,
            state.gap_messages,
            state.duplicates,
            state.samples_refused,
            state.inbox_held,
            state.notice.queued_bytes,
            len(state.members),
            state.notice.other_run_workers,
            state.published,
            max(0, state.connections - 1),
        )

    def _serve(self) -> bool:
        # Acknowledgements and credit are collected when the connection is asked for output; a rest in between has
        # them leave in batches.
        return self._has_work()

    def _has_work(self) -> bool:
        return bool(self._trainer.to_acknowledge) and self.connected

    def close(self, timeout_s: float = 5.0) -> None:
        """Send what is still to be said (acknowledgements, the last weights, directives), then close the link."""
        deadline = time.monotonic() + timeout_s
        while not self.closed and self.connected and not self._all_said() and time.monotonic() < deadline:
            self._call(self._wake_driver)
            with self._changed:
                self._changed.wait(0.02)
        self._stop_thread()

    def _all_said(self) -> bool:
        connection = self._connection
        return not isinstance(connection, TrainerConnection) or connection.all_said

    def _make_connection(self) -> Connection:
        return TrainerConnection(self._trainer, silent_s=self.settings.silent_s, heartbeat_s=self.settings.heartbeat_s)


__all__ = [
    "DrainReport",
    "LinkSettings",
    "TrainerCounts",
    "TrainerLink",
    "WorkerCounts",
    "WorkerLink",
]
