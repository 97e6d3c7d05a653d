"""Both ends of a stream: sequence numbers, credit, acknowledgements, resume, de-duplication. Sans-I/O."""

# Theory of operation
#
# Both ends of a stream, which together keep promise 1: a sample is delivered once, and acknowledged means committed.
# The relay between them keeps no state that matters here: it may lose what it has, or be replaced. This file knows
# neither links nor roles; channel, epoch and credit are numbers that its callers bring.
#
# The worker's end (`StreamSender`) numbers messages and stores each until it is acknowledged. It sends only after a
# resume, which names the first number that the trainer lacks, and only complete messages that fit its credit. The
# trainer's end (`StreamReceiver`) accepts numbers in order: a lower number is a duplicate, a higher one is a gap.
#
# A message of the sender is in one of these places, always in the order of numbers:
#
#     _gone         sent completely, then dropped for space: only its number and its samples are left
#     _sent         sent completely in this epoch or an earlier one, not acknowledged
#     _current      being sent, frame by frame
#     _queue        waiting to be sent
#
# An acknowledgement removes from the left. A resume moves messages between `_sent` and `_queue`: those from the
# requested number on go back to the queue. A drop takes the oldest message of the queue, or, if that is empty, of
# `_sent`.
#
# Example. Messages 0 to 4 were offered, 0 to 2 were sent, 3 is being sent; the trainer has committed 0, 1 has arrived,
# and the link breaks. `halt` puts 3 back in front of 4. The trainer's next link requests message 2, its first missing
# one. 2 goes back to the queue, 1 stays in `_sent` without being sent again, and the sender goes on with 2, 3, 4 under
# a new epoch. Frames of the old epoch that are still in a relay are discarded there by their number. When the trainer
# commits 1, its acknowledgement of 0 and 1 releases both.
#
# Gaps. A gap is either intended or a loss. Each message carries its *floor*: the worker no longer stores the messages
# from the floor up to this one. A floor at or below the receiver's next number therefore explains the whole gap, and
# the gap is counted, in messages and, by `position`, in samples. Either the worker dropped the messages, or an earlier
# trainer acknowledged them and its memory is lost. A higher floor means that the link lost messages that the worker
# still has, and the receiver requests a resume. The number of the oldest stored message would not do: with 5 in transit
# and 6 to 9 dropped, the oldest is 5, which explains no gap before 10. 10's floor is 6, which does.
#
# A message counts as dropped only if the other side cannot have received it. One that was sent completely and then
# dropped counts as dropped when a later resume requests it, and as acknowledged when a later message is acknowledged.
# Until then it is in `_gone`.
#
# With end-to-end authentication, the sender seals each message when it cuts it into frames, because only then is its
# floor final. The receiver opens a message before its number counts as received. A message that does not open counts as
# not received: the rest of its epoch is ignored, and the connection requests the message again. So a forger delays a
# stream and cannot make it lose or accept a sample.
#
# Credit is in bytes from the beginning of the epoch: `_limit` is what may be sent, `_sent_bytes` what was, `_wanted`
# what was requested. All three only grow within an epoch, so a message that arrives late or twice does no harm. A
# message that does not fit the rest of the credit waits as a whole: half a message would occupy the relay's memory
# until the other half gets credit, and many halves would wait for each other. So would credit that was requested for
# messages that were dropped since, below a next message that is larger: it is given back (`unused`). Example: 743 bytes
# are granted for three messages, all three are dropped, and the next one has 800 bytes. The rest of the pool may be too
# small for any request, and then nobody would send before a link is closed for holding credit.
#
# With a `BodyStore` (files on the worker's disk), the owner moves bodies out of the memory while acknowledgements are
# missing: `take_unwritten` returns the oldest ones in memory, `written` records their places, and `next_frame` loads
# each again when it is sent. They leave in the order of their numbers, so those in memory are always the newest. A
# message is then unwritten (in `_unwritten`), being written (`writing`), or in the store (`place`); it may be
# acknowledged or dropped in each of the three, which `held` tells a write that ends later.

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple, Protocol, TypeAlias

from tmrl_core.errors import ForgedError, LocalProtocolError, RemoteProtocolError, StorageError, UnknownRunKeyError
from tmrl_core.networking.protocol.buffer_pool import BodyPool
from tmrl_core.networking.protocol.framing import FIRST, HEADER_BYTES, LAST, Frame, Kind, Wire, cut, message_bytes
from tmrl_core.networking.protocol.messages import (
    MAX_NUMBER,
    MAX_REASON_CHARACTERS,
    SAMPLES_HEAD,
    Ack,
    MessageHead,
    Refusal,
    Unused,
    Want,
    samples_head,
)

_ACK_BYTES = 32_768
"""Maximum bytes of refusals in one acknowledgement, so that the whole message fits a frame."""
_REFUSAL_BYTES = 16
"""Bytes of one refusal besides its reason."""
_WRITTEN_BYTES = 512
"""Memory that a message takes while its body is in the store, at most: its numbers and its place."""
Body: TypeAlias = Sequence[bytes | memoryview]
"""Content of a message, as buffers of bytes in order."""


class Sealer(Protocol):
    """Worker's end of the authentication of its streams."""

    @property
    def seal_bytes(self) -> int:
        """Bytes that a seal adds to a message."""

    @property
    def can_seal(self) -> bool:
        """True: messages can be sealed."""

    def seal(self, stream: bytes, head: MessageHead, body: Body) -> Body | None:
        """Return the body with its seal, `seal_bytes` longer. Each call seals anew, also the same message."""

    def check_ack(self, stream: bytes, next_number: int, refused: Sequence[Refusal], tag: bytes) -> bool:
        """Return True if the trainer has made this acknowledgement; otherwise count it as forged."""


class StreamSecret(NamedTuple):
    """Secret with which a later process of a worker can continue an authenticated stream."""

    identity: str
    """URI of the worker's certificate."""
    started_s: int
    key: bytes
    """Private key of the stream."""


class Opener(Protocol):
    """Trainer's end of the authentication of one stream.

    Attributes:
        name: name in the worker's certificate.
    """

    name: str

    def open(self, head: MessageHead, body: memoryview) -> memoryview:
        """Return the body without its seal.

        Raises:
            ForgedError: the stream's worker has not sealed this message, or it was changed.
            UnknownRunKeyError: the worker has sealed it for another trainer.
        """

    def ack_tag(self, next_number: int, refused: Sequence[Refusal]) -> bytes:
        """Return the proof of an acknowledgement's origin for the worker."""


class BodyStore(Protocol):
    """Store of bodies outside the memory."""

    def load(self, place: Any) -> Body:
        """Return a body that was written.

        Raises:
            StorageError: it cannot be read, or has changed.
        """

    def release(self, place: Any) -> None:
        """Forget a body that is not needed any more."""


@dataclass(slots=True, eq=False, repr=False)
class HeldMessage:
    """A message that the worker's end stores. `body` is None while it is in the store only, at `place`."""

    number: int
    floor: int
    position: int
    samples: int
    body: Body | None
    body_bytes: int
    size: int
    """Its size on the link, with its seal."""
    memory_bytes: int = 0
    place: Any = None
    writing: bool = False
    held: bool = True


class WrittenMessage(NamedTuple):
    """A message that an earlier process has written."""

    number: int
    floor: int
    position: int
    samples: int
    body_bytes: int
    place: Any


class _Gone(NamedTuple):
    """A message that was sent completely and dropped before it was acknowledged."""

    number: int
    samples: int


class CloseReport(NamedTuple):
    """Numbers of samples of a worker that has ended."""

    acknowledged: int
    """Acknowledged by the trainer."""
    handed_over: int
    """Stored by the Server until a trainer takes them."""
    lost: int
    """Lost with this process. Refused and dropped samples are not included."""


class StreamSender:
    """Worker's end of one stream.

    Args:
        stream: 16 random bytes.
        queue_bytes: maximum bytes of message bodies in memory. Beyond the limit, the oldest message in memory is
            dropped or the offer is refused. One message is always accepted, however large.
        drop_oldest: True: drop messages at the limit; False: refuse the offer.
        sealer: authenticates the worker's streams; None: nothing does.
        store: place for bodies besides the memory; None: there is none.
        store_bytes: maximum bytes of bodies in `store`. Beyond the limit, the oldest message is dropped.

    Not thread-safe: the owner serialises calls.
    """

    def __init__(
        self,
        stream: bytes,
        *,
        queue_bytes: int,
        drop_oldest: bool,
        sealer: Sealer | None = None,
        store: BodyStore | None = None,
        store_bytes: int = 0,
    ) -> None:
        self.stream = stream
        self._sealer = sealer
        self._seal_bytes = sealer.seal_bytes if sealer is not None else 0
        self.queue_bytes = queue_bytes
        self.drop_oldest = drop_oldest
        self._store = store
        self.store_bytes = store_bytes
        self.held_bytes = 0
        self.memory_bytes = 0
        """Memory of the held messages: their bodies, or what remains of them once they are in the store."""
        self.written_bytes = 0
        """Bytes of held bodies that are in the store, or on the way there."""
        self._unwritten: deque[HeldMessage] = deque()
        """Held messages that are not in the store nor on the way there: the newest ones, in order."""
        self.releases = 0
        """Number of acknowledgements that have released messages."""
        self.held_samples = 0
        # A separate counter, because other threads read it while a message moves from one queue to another.
        self.held_messages = 0
        self._newest = -1
        self.samples_offered = 0
        self.samples_acked = 0
        self.samples_refused = 0
        self.samples_dropped = 0
        self.messages_dropped = 0
        self.refusals: deque[tuple[int, str]] = deque(maxlen=100)
        self.next_number = 0
        """Number of the next message."""
        self._sent: deque[HeldMessage] = deque()
        self._queue: deque[HeldMessage] = deque()
        self.unsent_bytes = 0
        """Bytes of the bodies in the queue: those of messages whose sending has not begun."""
        self._gone: deque[_Gone] = deque()
        self._stored = 0
        self._next_floor: int | None = None
        self._current: HeldMessage | None = None
        self._cutter: Iterator[Wire] | None = None
        self._current_sent = 0
        self.active = False
        """True: a trainer accepts this stream's messages now."""
        self._epoch = 0
        self._channel = 0
        self._sent_bytes = 0
        self._limit = 0
        self._wanted = 0
        self._covered_messages = 0
        self._covered_bytes = 0
        self._dropped_bytes = 0
        """Size of the dropped messages for which credit was requested."""
        self._dropped_total = 0
        """Total that was requested when the first of them was dropped: credit below it is not for them."""

    # --- the application's side ---

    def offer(self, body: Body, samples: int) -> bool:
        """Offer one message, as buffers in order. False: it does not fit, and no message may be dropped for it.

        If messages may be dropped, a new message that does not fit together with the one being sent is dropped itself.
        """
        body_bytes = sum(map(len, body))
        # A message larger than the whole queue must be possible, or one large observation would stop a worker for ever.
        while self.held_bytes and self.memory_bytes + body_bytes > self.queue_bytes:
            if not self.drop_oldest:
                return False
            alone = self._current is not None and self._current.memory_bytes + body_bytes > self.queue_bytes
            # Without a message to drop, the memory is used by what the store has, or is writing.
            if alone or not self._drop_oldest_in_memory():
                self._drop_new(samples)
                return True
        floor = self.next_number if self._next_floor is None else self._next_floor
        self._next_floor = None
        size = message_bytes(SAMPLES_HEAD, body_bytes + self._seal_bytes)
        message = HeldMessage(
            self.next_number, floor, self.samples_offered, samples, body, body_bytes, size, body_bytes
        )
        self.next_number += 1
        self.samples_offered += samples
        self._hold(message)
        if self._store is not None:
            self._unwritten.append(message)
        return True

    def _hold(self, message: HeldMessage) -> None:
        """Count a message, and put it at the end of the queue."""
        self.held_bytes += message.body_bytes
        self.memory_bytes += message.memory_bytes
        self.unsent_bytes += message.body_bytes
        self.held_samples += message.samples
        self.held_messages += 1
        self._newest = message.number
        self._queue.append(message)

    def _drop_new(self, samples: int) -> None:
        """Number a message and drop it immediately, so that the trainer sees the gap."""
        if self._next_floor is None:
            self._next_floor = self.next_number
        self.next_number += 1
        self.samples_offered += samples
        self.samples_dropped += samples
        self.messages_dropped += 1

    def _drop_oldest_in_memory(self) -> bool:
        """Drop the oldest message in memory that is not being sent. Return False if there is none."""
        if self._store is None:
            self._drop_one(0)
            return True
        if not self._unwritten or (not self._queue and (not self._sent or self._sent[0] is not self._unwritten[0])):
            return False
        # Both hold the newest messages, so the ones that both hold are the last ones of the queue.
        self._drop_one(max(0, len(self._queue) - len(self._unwritten)))
        return True

    def _drop_one(self, index: int) -> None:
        """Drop a message of the queue; if it is empty, the oldest message that was sent completely."""
        if self._queue:
            victim = self._queue[index]
            follower = self._queue[index + 1] if index + 1 < len(self._queue) else None
            if self._unwritten and victim.number >= self._unwritten[0].number:
                del self._unwritten[len(self._unwritten) - (len(self._queue) - index)]
            if index < self._covered_messages:
                if not self._dropped_bytes:
                    self._dropped_total = self._wanted
                self._dropped_bytes += victim.size
            self._unqueue(index)
            # The trainer has not received the messages in the queue, so this message is lost.
            self.samples_dropped += victim.samples
        else:
            victim = self._sent.popleft()
            follower = self._sent[0] if self._sent else self._current
            if self._unwritten and self._unwritten[0] is victim:
                self._unwritten.popleft()
            self._gone.append(_Gone(victim.number, victim.samples))
        if follower is not None:
            follower.floor = min(follower.floor, victim.floor)
        else:
            self._next_floor = min(self._next_floor, victim.floor) if self._next_floor is not None else victim.floor
        self.messages_dropped += 1
        self._release(victim)

    def _unqueue(self, index: int = 0) -> HeldMessage:
        message = self._queue[index]
        del self._queue[index]
        self.unsent_bytes -= message.body_bytes
        if index < self._covered_messages:
            self._covered_messages -= 1
            self._covered_bytes -= message.size
        return message

    def _requeue(self, message: HeldMessage) -> None:
        self._queue.appendleft(message)
        self.unsent_bytes += message.body_bytes

    def _release(self, message: HeldMessage) -> None:
        self.held_bytes -= message.body_bytes
        self.memory_bytes -= message.memory_bytes
        self.held_samples -= message.samples
        self.held_messages -= 1
        message.held = False
        if message.writing or message.place is not None:
            self.written_bytes -= message.body_bytes
        if message.place is not None and self._store is not None:
            self._store.release(message.place)

    # --- the store, for messages that wait long ---

    def restore(self, messages: Sequence[WrittenMessage]) -> None:
        """Hold the messages that an earlier process of this stream has written. No others are offered."""
        floor = 0
        for number, _, position, samples, body_bytes, place in messages:
            # Those in between were acknowledged or dropped: a trainer from an older checkpoint must not wait for them.
            size, kept = message_bytes(SAMPLES_HEAD, body_bytes + self._seal_bytes), min(body_bytes, _WRITTEN_BYTES)
            self._hold(HeldMessage(number, floor, position, samples, None, body_bytes, size, kept, place))
            self.written_bytes += body_bytes
            floor = number + 1
        # That process may have sent more than it had written, so the trainer may name any later number.
        self.next_number = MAX_NUMBER

    def take_unwritten(self, limit_bytes: int) -> list[HeldMessage]:
        """Return the oldest messages that are not in the store, of about so many bytes, to be passed to `written`.

        If the store is full, messages that are in it and were not sent yet are dropped, the oldest first.
        """
        taken: list[HeldMessage] = []
        size = 0
        while self._unwritten and size < limit_bytes:
            message = self._unwritten[0]
            while self.written_bytes + message.body_bytes > self.store_bytes:
                if not self._queue or self._queue[0].place is None:
                    return taken
                self._drop_one(0)
            self._unwritten.popleft()
            message.writing = True
            self.written_bytes += message.body_bytes
            size += message.body_bytes
            taken.append(message)
        return taken

    def written(self, messages: Sequence[HeldMessage], places: Sequence[Any]) -> None:
        """Record the places of messages of `take_unwritten`. Those without a place were not written."""
        assert self._store is not None
        for message, place in zip(messages, places, strict=False):
            message.writing = False
            if not message.held:
                self._store.release(place)
                continue
            message.place = place
            message.body = None
            self.memory_bytes -= message.memory_bytes
            message.memory_bytes = min(message.memory_bytes, _WRITTEN_BYTES)
            self.memory_bytes += message.memory_bytes
        for message in reversed(messages[len(places) :]):
            message.writing = False
            if message.held:
                self.written_bytes -= message.body_bytes
                self._unwritten.appendleft(message)

    @property
    def samples_written(self) -> int:
        """Number of unacknowledged samples in the store, without those that the Server stores."""
        held = (*self._sent, *self._queue)
        return sum(one.samples for one in held if one.place is not None and one.number >= self._stored)

    def _load(self, message: HeldMessage) -> Body | None:
        """Return the body of a message that is in the store; None: the store has lost it."""
        assert self._store is not None
        try:
            return self._store.load(message.place)
        except StorageError:
            return None

    @property
    def samples_unresolved(self) -> int:
        """Return the number of samples that were sent and then dropped; the next resume shows whether they arrived."""
        return sum(gone.samples for gone in self._gone)

    @property
    def samples_stored(self) -> int:
        """Number of samples that the Server stores for a trainer. It must not be read while another thread sends."""
        held: list[HeldMessage | _Gone] = [*self._sent, *self._queue, *self._gone]
        return sum(message.samples for message in held if message.number < self._stored)

    @property
    def settled(self) -> bool:
        """Return True if every message is acknowledged or stored by the Server."""
        return self.held_messages == 0 or self._newest < self._stored

    # --- messages of the trainer, or of the Server in its place ---

    def stored(self, next_number: int) -> None:
        """Record that the Server stores every message below `next_number`.

        The messages stay here too, because the Server may fail.

        Raises:
            RemoteProtocolError: the Server claims a message that was never made.
        """
        if next_number > self.next_number:
            raise RemoteProtocolError(
                f"message {next_number - 1} was stored; this stream has made {self.next_number} messages"
            )
        self._stored = max(self._stored, next_number)

    def resume(self, *, channel: int, epoch: int, next_number: int, credit: int) -> None:
        """Send from `next_number` on, as `epoch`, with `credit` bytes to begin with.

        Raises:
            RemoteProtocolError: the trainer requests a message that was never made.
        """
        if next_number > self.next_number:
            raise RemoteProtocolError(
                f"the trainer asks for message {next_number} of a stream that has made {self.next_number}"
            )
        self._stop_sending()
        self._stored = min(self._stored, next_number)  # the Server no longer stores a message that is requested
        while self._sent and self._sent[-1].number >= next_number:
            self._requeue(self._sent.pop())
        # Messages below the requested number have arrived and will be acknowledged.
        while self._queue and self._queue[0].number < next_number:
            self._sent.append(self._unqueue())
        while self._gone and self._gone[-1].number >= next_number:
            self.samples_dropped += self._gone.pop().samples
        self._channel = channel
        self._epoch = epoch
        self._sent_bytes = 0
        self._limit = credit
        self._wanted = 0
        self._dropped_bytes = 0
        self.active = True

    def halt(self) -> None:
        """Stop sending until the next resume, because there is no trainer."""
        self._stop_sending()
        self.active = False

    def _stop_sending(self) -> None:
        if self._current is not None:
            # It is sent from its beginning: the receiver has discarded what had arrived of it with the link.
            self._requeue(self._current)
            self._current = None
            self._cutter = None
        self._covered_messages = 0
        self._covered_bytes = 0

    @property
    def _may_send(self) -> bool:
        return self.active and (self._sealer is None or self._sealer.can_seal)

    def on_ack(self, ack: Ack) -> None:
        """Release every message below `ack.next`, which are all committed or refused. Ignore a forged acknowledgement.

        Raises:
            RemoteProtocolError: `ack` covers a message that was never made.
        """
        if self._sealer is not None and not self._sealer.check_ack(self.stream, ack.next, ack.refused, ack.tag):
            return
        # After the proof, so that a forged acknowledgement is counted as forged and cannot end the link.
        if ack.next > self.next_number:
            raise RemoteProtocolError(
                f"message {ack.next - 1} was acknowledged; this stream has made {self.next_number} messages"
            )
        refused = dict(ack.refused)
        held = self.held_messages
        gone: list[HeldMessage | _Gone] = []
        while self._unwritten and self._unwritten[0].number < ack.next:
            self._unwritten.popleft()
        while self._sent and self._sent[0].number < ack.next:
            self._release(self._sent[0])
            gone.append(self._sent.popleft())
        # It may cover messages in `_queue`: an earlier epoch, or the earlier process of a restored stream, has sent
        # them.
        while self._queue and self._queue[0].number < ack.next:
            self._release(self._queue[0])
            gone.append(self._unqueue())
        while self._gone and self._gone[0].number < ack.next:
            gone.append(self._gone.popleft())
        for message in gone:
            if message.number in refused:
                self.samples_refused += message.samples
            else:
                self.samples_acked += message.samples
        self.refusals.extend(ack.refused)
        self.releases += self.held_messages < held

    def credit(self, *, epoch: int, limit: int) -> None:
        """Raise the credit: the relay allows bytes up to `limit` in `epoch`."""
        # Credit of an earlier epoch counts from another beginning.
        if epoch == self._epoch and limit > self._limit:
            self._limit = limit

    # --- sending ---

    def next_frame(self) -> Wire | None:
        """Return the next frame to send; None: nothing to send, no credit, or no trainer."""
        while self._current is None:
            if not self._may_send or not self._queue:
                return None
            message = self._queue[0]
            if self._sent_bytes + message.size > self._limit:
                return None
            body = message.body if message.body is not None else self._load(message)
            if body is None:
                self._drop_one(0)
                continue
            self._unqueue()
            # Nothing sent and unacknowledged is before it: then every gap before this message is explained, however old
            # the checkpoint of the trainer is. Otherwise a trainer could lack a message of `_sent`, and must request
            # it.
            fields = MessageHead(message.number, message.floor if self._sent else 0, message.position, message.samples)
            if self._sealer is not None:
                sealed = self._sealer.seal(self.stream, fields, body)
                assert sealed is not None
                body = sealed
            head = SAMPLES_HEAD.pack(*fields, message.body_bytes + self._seal_bytes)
            self._current = message
            self._current_sent = 0
            self._cutter = cut(Kind.DATA, head, body, epoch=self._epoch, channel=self._channel)
        assert self._cutter is not None
        frame = next(self._cutter)
        self._sent_bytes += frame.size
        self._current_sent += frame.size
        if frame.last:
            self._sent.append(self._current)
            self._current = None
            self._cutter = None
        return frame

    def want(self, window_bytes: int) -> Want | None:
        """Return a request for credit for complete messages, at most `window_bytes` beyond sent bytes (or one message).

        Credit is requested only when less than a quarter of the window is granted or requested and not sent.
        """
        if not self._may_send or not self._queue:
            return None
        begun = self._current.size - self._current_sent if self._current is not None else 0
        ahead = max(self._limit, self._wanted) - self._sent_bytes - begun
        # A request takes a round trip, so the next one leaves before the credit is used up. A large message may need
        # more than a quarter of the window, and then its own size decides.
        if ahead >= window_bytes // 4 and ahead >= self._queue[0].size:
            return None
        # From the nearer end of the queue: an index for each would look at all messages before it, and a hostile Server
        # chooses the window.
        new = len(self._queue) - self._covered_messages
        uncovered: Iterator[HeldMessage] = islice(self._queue, self._covered_messages, None)
        if new < self._covered_messages:
            uncovered = reversed(list(islice(reversed(self._queue), new)))
        for message in uncovered:
            if self._covered_messages and self._covered_bytes + message.size > window_bytes:
                break
            self._covered_messages += 1
            self._covered_bytes += message.size
        total = self._sent_bytes + begun + self._covered_bytes
        if total <= max(self._limit, self._wanted):
            return None
        self._wanted = total
        return Want(self._channel, self._epoch, total)

    def unused(self) -> Unused | None:
        """Return a message that releases the credit of dropped messages, if it is too little for the next one.

        The credit counts as sent, so that no counter decreases and messages in flight stay valid.
        """
        if not self.active or not self._dropped_bytes or self._current is not None or self._limit < self._dropped_total:
            return None
        left = self._limit - self._sent_bytes
        if self._queue and self._queue[0].size <= left:
            return None
        size = min(left, self._dropped_bytes)
        self._dropped_bytes = 0
        if size <= 0:
            return None
        # As the relay will count them, so that both ends agree on what is left.
        self._sent_bytes += size
        return Unused(self._channel, self._epoch, size)


class Received(NamedTuple):
    """One complete message of samples."""

    stream: bytes
    number: int
    samples: int
    payload: memoryview
    """Encoded samples, for the codec."""
    size: int
    """Bytes that the message took on the link, which return as credit."""


class CommittedOffset(NamedTuple):
    """Committed offset of a stream, as a checkpoint stores it."""

    next_number: int
    """First message that is not committed."""
    position: int
    """Number of samples in the stream before that message, dropped ones included."""


_START = CommittedOffset(0, 0)


_REMEMBERED_REFUSALS = 20
"""Maximum number of refusals of a stream in a checkpoint, more than one lost acknowledgement usually holds."""


class PostponedError(Exception):
    """A complete message is not taken now. It has to be requested again later."""


class StreamReceiver:
    """Trainer's end of one stream.

    Args:
        stream: 16 bytes, as the worker announced it.
        mark: the committed offset (from a checkpoint; the default for a new stream).
        bodies: pool of buffers for received messages; one pool serves all streams of a process.
    """

    def __init__(self, stream: bytes, offset: CommittedOffset = _START, bodies: BodyPool | None = None) -> None:
        self.stream = stream
        self._bodies = bodies or BodyPool()
        self.opener: Opener | None = None
        """Authenticates the stream; None: nothing does."""
        self.origin: str | None = None
        """The holder in whose turns its messages are taken, see `Inbox`; None: not known yet. It does not change, or
        they would be taken out of order."""
        self.next_number = offset.next_number
        """First message that has not arrived completely."""
        self.offset = offset
        self.gap_messages = 0
        self.gap_samples = 0
        self.duplicates = 0
        self._acked = 0
        self.position = offset.position
        """Samples of the stream up to the latest message that has arrived."""
        self._uncommitted: deque[tuple[int, int]] = deque()  # (number, position after it)
        self._refused: deque[Refusal] = deque()
        self._refused_lately: deque[Refusal] = deque(maxlen=100)
        """Refusals in the last acknowledgement, which the worker may not have received."""
        self._body: memoryview | None = None
        self._filled = 0
        self._head: tuple[int, int, int, int, int] = (0, 0, 0, 0, 0)
        self._size = 0
        self._skip_body = False
        self.in_message = False
        """True: the rest of a message is expected."""
        self._ignored_epoch: int | None = None
        self.heard_at: float | None = None
        """Time of the latest message; None: there was none."""

    @property
    def refusals(self) -> tuple[Refusal, ...]:
        """Latest refusals, which the worker may not have received; checkpoints store them with the committed offset."""
        return (*self._refused_lately, *self._refused)[-_REMEMBERED_REFUSALS:]

    def remember(self, refusals: Iterable[Refusal]) -> None:
        """Repeat these refusals with the next acknowledgement; otherwise their messages would count as committed."""
        self._refused_lately.extend((number, reason) for number, reason in refusals if number < self.offset.next_number)

    def attach(self) -> int:
        """Attach the stream to a link and discard its incomplete message. Return the number to resume from."""
        self.abandon()
        self._ignored_epoch = None
        self._tell_again()
        return self.next_number

    def abandon(self) -> None:
        """Discard the incomplete message, and release its memory."""
        self._body = None
        self.in_message = False

    def _tell_again(self) -> None:
        """Repeat the last acknowledgement: the worker may not have received it, and ignores a duplicate."""
        self._acked = 0
        self._refused.extendleft(reversed(self._refused_lately))
        self._refused_lately.clear()

    def frame(
        self, frame: Frame, max_message_bytes: int, admits: Callable[[memoryview], bool] = lambda payload: True
    ) -> tuple[Received | None, bool]:
        """Handle one DATA frame. Return the message that it completes, and whether a resume must be requested.

        Args:
            frame: the frame.
            max_message_bytes: maximum size of a message.
            admits: returns False if a complete message cannot be taken now.

        Raises:
            ForgedError, UnknownRunKeyError: the complete message does not open. The rest of its epoch is ignored.
            PostponedError: it was not admitted. The rest of its epoch is ignored.
            RemoteProtocolError: the frame contradicts its message's header, or the message is too large.
        """
        if frame.epoch == self._ignored_epoch:
            return None, False
        payload = frame.payload
        if frame.flags & FIRST:
            self._head = number, floor, position, _, length = samples_head(payload)
            if length > max_message_bytes:
                raise RemoteProtocolError(f"a message of {length} bytes; at most {max_message_bytes} are allowed")
            # The messages between are stored by the worker. The rest of this epoch is ignored, since all of it comes
            # after the gap, and one request is enough for it.
            if number > self.next_number and floor > self.next_number:
                self._ignored_epoch = frame.epoch
                self.abandon()
                return None, True
            self.in_message = True
            # A duplicate needs no memory; its frames are only counted.
            self._skip_body = number < self.next_number
            self._body = None if self._skip_body else self._bodies.take(length)
            self._filled = 0
            self._size = 0
            payload = payload[SAMPLES_HEAD.size :]
        elif not self.in_message:
            raise RemoteProtocolError("a message was continued without a beginning")
        number, floor, position, samples, length = self._head
        end = self._filled + len(payload)
        if end > length:
            raise RemoteProtocolError(f"a message announced {length} bytes and has more")
        if self._body is not None:
            self._body[self._filled : end] = payload
        self._filled = end
        self._size += HEADER_BYTES + len(frame.payload)
        if not frame.flags & LAST:
            return None, False
        if end != length:
            raise RemoteProtocolError(f"a message announced {length} bytes and has {end}")
        self.in_message = False
        body, self._body = self._body, None
        if body is None:
            self.duplicates += 1
            # With its refusals: a refusal that arrived while its message was being sent again had no effect.
            self._tell_again()
            return None, False
        if self.opener is not None:
            try:
                body = self.opener.open(MessageHead(number, floor, position, samples), body)
            except (ForgedError, UnknownRunKeyError):
                self._ignored_epoch = frame.epoch
                raise
        # Asked once the body can be read, because its cost without compression is stated inside it.
        if not admits(body):
            self._ignored_epoch = frame.epoch
            raise PostponedError
        if number > self.next_number:
            self.gap_messages += number - self.next_number
            self.gap_samples += max(0, position - self.position)
        self.next_number = number + 1
        self.position = position + samples
        # The position is kept with each number: a commit of message 7 makes the offset that of 7, although 8 and 9 have
        # arrived.
        self._uncommitted.append((number, self.position))
        return Received(self.stream, number, samples, body, self._size), False

    def commit(self, number: int, refused: str | None = None) -> None:
        """Record that message `number` is durably in the memory, or that the memory refused it for the given reason.

        Raises:
            LocalProtocolError: that message has not arrived.
        """
        if number >= self.next_number:
            raise LocalProtocolError(f"message {number} is committed before it arrived")
        if refused is not None:
            self._refused.append((number, refused[:MAX_REASON_CHARACTERS]))
        while self._uncommitted and self._uncommitted[0][0] <= number:
            last, position = self._uncommitted.popleft()
            self.offset = CommittedOffset(last + 1, position)

    def offset_after(self, number: int) -> CommittedOffset:
        """Return the committed offset once message `number`, which has arrived, is committed."""
        offset = self.offset
        for last, position in self._uncommitted:
            if last > number:
                break
            offset = CommittedOffset(last + 1, position)
        return offset

    def next_ack(self, channel: int) -> Ack | None:
        """Return the next acknowledgement, as far as one frame holds it; None: nothing new."""
        # Everything below the offset is acknowledged with one number, so acknowledgements that are lost or replaced by
        # newer ones need no repetition.
        upto = self.offset.next_number
        if upto <= self._acked:
            return None
        sent: list[Refusal] = []
        size = 0
        while self._refused:
            number, reason = self._refused[0]
            size += len(reason.encode()) + _REFUSAL_BYTES
            if sent and size > _ACK_BYTES:
                upto = number  # without its reason, the message would count as committed
                break
            sent.append(self._refused.popleft())
        self._refused_lately.extend(sent)
        self._acked = upto
        tag = self.opener.ack_tag(upto, sent) if self.opener is not None else b""
        return Ack(channel, upto, tuple(sent), tag)
