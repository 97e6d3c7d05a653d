"""Handoff: the relay acts as trainer for workers that end while no trainer takes their samples. Sans-I/O."""

# Theory of operation
#
# A worker that ends while no trainer takes its samples would lose them. This file lets the Server take them in the
# trainer's place, with the trainer's own messages, so that the worker's end needs no second protocol. It knows streams
# and the `Spool` (in memory or in files), and decides what is said to whom; the spool decides what is stored and when
# that is durable.
#
# Handing over. A worker that ends while it is halted sends `HandOver`. The relay answers like a trainer: with a
# `Resume` from the first message that is not spooled yet, in a separate epoch, and with credit from the usual pool.
# `handing` is True from then on, and complete messages go to the spool and not into the queue. The credit returns to
# the pool when the spool has stored a message, so a slow disk slows the worker down and fills no memory. `Stored` is
# the acknowledgement. The worker keeps all messages until it ends, so that the Server can request them again after any
# failure.
#
# Example: a worker holds messages 5 to 9, and the spool has 5 and 6 from its last attempt, whose link broke. `HandOver`
# is answered with `Resume(7)`; 7 to 9 come, `Stored(10)` follows once they are written, the worker says `CloseStream`
# and ends.
#
# Giving back. When a trainer of the run connects, the relay announces every spooled stream to it, and the trainer
# resumes each as any other stream. Spooled messages are sent first (*replayed*, with one message in memory at a time),
# in turn with other streams. Messages of a worker that is still connected follow: the relay forwards the resume to it
# from the end of the spool. Only the trainer's acknowledgements delete the spool's copies, so a trainer that dies with
# what it has received gets it again.
#
# A trainer may come while a stream is handed over. Its `Resume` ends the handing over: the accepted messages are
# replayed, and the worker goes on with the rest, to the trainer.
#
# What fails. A full spool, or a full disk: the worker hears the reason (`Stored` with a refusal), keeps the rest, and
# may try again after its next halt; nothing that is stored is dropped for it, because the worker of that has ended and
# has reported it as handed over. A message that cannot be read is discarded and counted by the trainer as a gap, unless
# the reason may pass (too many open files). A refusal goes in order behind earlier messages and not into a slot, since
# a trainer may have come meanwhile whose `Resume` must not be overtaken by it.
#
# Lines of the log are limited in rate: a worker causes one with each message that it hands over.

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import TYPE_CHECKING

from tmrl_core.errors import RemoteProtocolError
from tmrl_core.networking.protocol.framing import HEADER_BYTES, Kind, cut
from tmrl_core.networking.protocol.messages import SAMPLES_HEAD, Ack, Resume, Stored
from tmrl_core.networking.relay.streams import RelayStream
from tmrl_core.networking.spools.spool import Spool, SpooledMessage, SpooledStream, StreamInfo
from tmrl_core.rate_limited_log import RateLimitedLog

if TYPE_CHECKING:
    from tmrl_core.networking.relay.connection import RelayConnection
    from tmrl_core.networking.relay.core import Relay

_MAX_UNREAD_BYTES = 1 << 20
"""Maximum unread control bytes of a worker that hands over; beyond it, the worker loses its link."""
_TEMPORARY = {errno.EMFILE, errno.ENFILE, errno.ENOMEM}
"""Errors that say nothing about a stored message."""


class SpoolHandoff:
    """Handoff of samples from the relay to its spool, and from the spool to a trainer.

    Args:
        relay: owner of the streams.
        spool: one with a limit of 0 stores nothing, and no worker is offered a handoff.
        say: writes a line to the log.
    """

    def __init__(self, relay: Relay, spool: Spool, say: Callable[[str], None]) -> None:
        self.relay = relay
        self.spool = spool
        self._line = RateLimitedLog(say, "that were about the spool too")
        spool.on_stored = self._stored
        spool.on_failed = self._failed

    def say(self, line: str) -> None:
        """Write a line to the Server's log, rate-limited so that workers cannot fill a disk with it."""
        self._line(line, self.relay.wall_clock())

    def kept(self, stream: RelayStream) -> SpooledStream | None:
        """Return the spooled messages of a stream, or None.

        Raises:
            RemoteProtocolError: the spool has this stream under another run.
        """
        kept = self.spool.streams.get(stream.id)
        if kept is not None and kept.info.run != stream.run:
            raise RemoteProtocolError(f"this stream is of run {kept.info.run!r}, not {stream.run!r}")
        return kept

    # --- from a worker ---

    def begin(self, connection: RelayConnection, channel: int) -> None:
        """Handle a worker's request to hand a stream over."""
        stream = connection.stream(channel)
        if not self.spool.limit_bytes:
            raise RemoteProtocolError("it hands samples over; this Server has no spool")
        if connection.unread_bytes > _MAX_UNREAD_BYTES:
            raise RemoteProtocolError("it hands samples over and reads no answers")
        if stream.trainer_channel or stream.handing:
            return  # a trainer has connected and will resume the stream, or the request was repeated
        kept = self.kept(stream)
        connection.hands_over = True
        self.relay.flow.void(stream)
        stream.handing = True
        self.relay.flow.activate(stream)
        connection.send(Resume(channel, kept.next_number if kept is not None else 0, stream.epoch, stream.limit))
        connection.put(("stored", channel), Stored(channel, kept.stored if kept is not None else 0))

    def take(self, stream: RelayStream, frames: list[bytearray], size: int) -> None:
        """Store a complete message of a stream that is handed over."""
        number, floor, position, samples, _ = SAMPLES_HEAD.unpack_from(frames[0], HEADER_BYTES)
        kept = self.kept(stream)
        expected = kept.next_number if kept is not None else 0
        # The worker was told where to begin. A hole would be delivered as samples that the worker has dropped, which it
        # has not.
        if number < expected or floor > expected:
            raise RemoteProtocolError(f"message {number} (floor {floor}) was handed over instead of message {expected}")
        # Without copies: the spool owns the frames from here on.
        body = [memoryview(frame)[HEADER_BYTES:] for frame in frames]
        body[0] = body[0][SAMPLES_HEAD.size :]
        info = StreamInfo(stream.id, stream.run, stream.name, stream.signature, stream.share.principal)
        stream.handed.append((number, size))
        self.relay.flow.hold(stream, size)
        refusal = self.spool.append(info, number=number, floor=floor, position=position, samples=samples, body=body)
        if refusal:
            self.relay.flow.charge_in_vain(stream, size)
            self._refuse(stream, refusal)

    def is_behind(self, principal: str) -> bool:
        """Return True if so much of a principal waits to be stored that no more should be read."""
        # Credit counts bytes on the link, which are few of those that tiny messages take in memory.
        most = self.relay.settings.budget_bytes // 4
        return self.spool.unwritten_bytes(principal) > most

    def _refuse(self, stream: RelayStream, reason: str) -> None:
        """Refuse further messages of a stream and notify its worker, which may try again after its next halt."""
        self.relay.flow.void(stream)
        stream.handing = False
        kept = self.kept(stream)
        self.say(f"samples of worker {stream.name}, run {stream.run!r}, are not taken: {reason}")
        if stream.worker is not None:
            # Queued in order with earlier messages and those of a later trainer, hence not in a last-value slot.
            stream.worker.withdraw(("stored", stream.channel))
            stream.worker.send(Stored(stream.channel, kept.stored if kept is not None else 0, reason[:1000]))

    def _stored(self, stream_id: bytes) -> None:
        stream = self.relay.streams.get(stream_id)
        if stream is None:
            return
        stored = self.spool.streams[stream_id].stored
        if stream.worker is not None:
            stream.worker.put(("stored", stream.channel), Stored(stream.channel, stored))
        # Only now do the bytes return to the pool: until it is written, a message is in memory.
        while stream.handed and stream.handed[0][0] < stored:
            _, size = stream.handed.popleft()
            self.relay.flow.hold(stream, -size)
            self.relay.flow.forwarded(stream, size)

    def _failed(self, stream_id: bytes, reason: str) -> None:
        stream = self.relay.streams.get(stream_id)
        if stream is not None and stream.handing:
            self._refuse(stream, reason)
        else:
            self.say(f"samples that a worker had handed over could not be stored; it still holds them: {reason}")

    def ended(self, stream: RelayStream) -> None:
        """Record that the worker of a stream has ended in order."""
        kept = self.kept(stream)
        if kept is not None:
            self.spool.end(stream.id)
            self.say(
                f"worker {stream.name} has handed over {kept.samples:,} samples of run {stream.run!r}: they are kept "
                "until a trainer of that run has acknowledged them"
            )

    # --- to a trainer ---

    def introduce(self, run: str) -> None:
        """Announce the spooled streams of `run` that have no connected worker to its trainer."""
        for kept in self.spool.of_run(run):
            stream = self.relay.streams.get(kept.info.stream)
            if stream is None:
                stream = RelayStream(kept.info.stream, kept.info.name, run, kept.info.signature)
                stream.ended = kept.ended
                self.relay.flow.join(stream, kept.info.principal)
                self.relay.streams[stream.id] = stream
            if stream.worker is None:
                self.relay.introduce(stream)
        for line in self.spool.summary():
            self.say(f"spool: {line}")

    def replay(self, stream: RelayStream, next_number: int) -> int:
        """Send spooled messages from `next_number` on. Return the first number that is not spooled."""
        kept = self.kept(stream)
        if kept is None or kept.next_number <= next_number:
            return next_number
        stream.replay = next_number
        return kept.next_number

    def upcoming(self, stream: RelayStream) -> SpooledMessage | None:
        """Return the next message of a replayed stream; None: there is none any more."""
        assert stream.replay is not None
        message = self.spool.peek(stream.id, stream.replay)
        if message is None:
            stream.replay = None
        return message

    def frames(self, stream: RelayStream, message: SpooledMessage) -> list[bytearray] | None:
        """Return the upcoming message as frames for the trainer; None: it could not be read."""
        try:
            head, body = self.spool.read(stream.id, message)
        except OSError as exc:
            if exc.errno in _TEMPORARY:
                stream.replay = None
                self.say(f"spooled samples of worker {stream.name} wait for the next trainer's link: {exc}")
                return None
            self.say(f"{message.samples} spooled samples of worker {stream.name} cannot be read and are lost: {exc}")
            self.spool.discard(stream.id, message)
            return None
        stream.replay = message.number + 1
        frames = cut(Kind.DATA, head, body, epoch=stream.epoch, channel=stream.trainer_channel)
        return [bytearray(bytes(frame)) for frame in frames]

    def acknowledged(self, stream: RelayStream, ack: Ack) -> None:
        """Handle a trainer's acknowledgement of a stream."""
        kept = self.spool.streams.get(stream.id)
        # The seals of later messages cover their floors, which cannot explain a gap before them to a trainer that
        # continues from an earlier checkpoint.
        if kept is None or (ack.tag and ack.next < kept.next_number):
            return
        kept.released += self.spool.drop(stream.id, ack.next)
        if stream.id not in self.spool.streams:
            released = f"{kept.released:,} samples of worker {stream.name}, run {stream.run!r}"
            self.say(f"spool: {released}, have been acknowledged")
