"""Both ends of a stream against a slow, obvious model, and every error that they document."""

from __future__ import annotations

import os
import random
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tmrl_core.errors import LocalProtocolError, RemoteProtocolError, StorageError
from tmrl_core.networking.protocol.delivery import (
    Body,
    CommittedOffset,
    HeldMessage,
    Received,
    StreamReceiver,
    StreamSender,
    WrittenMessage,
)
from tmrl_core.networking.protocol.framing import (
    FIRST,
    HEADER,
    LAST,
    MAX_PAYLOAD_BYTES,
    Frame,
    FrameReader,
    Kind,
    Wire,
    cut,
    message_bytes,
)
from tmrl_core.networking.protocol.messages import SAMPLES_HEAD, Ack, Unused, control_frame

STREAM = b"s" * 16
LIMIT = 1 << 20
FULL = os.environ.get("FULL_TESTS") == "1"


def parse(wire: bytes | bytearray | Wire) -> Frame:
    reader, frames = FrameReader(), []
    view = memoryview(bytes(wire))
    while view:
        buffer = reader.get_buffer()
        n = min(len(buffer), len(view))
        buffer[:n] = view[:n]
        view = view[n:]
        frames += reader.received(n)
    (frame,) = frames
    return frame


def frames_of(
    number: int, body: bytes = b"x", *, floor: int | None = None, position: int | None = None, samples: int = 1
) -> list[Frame]:
    """The frames of one message, one sample each unless said otherwise."""
    head = SAMPLES_HEAD.pack(
        number,
        number if floor is None else floor,
        number if position is None else position,
        samples,
        len(body),
    )
    return [parse(frame) for frame in cut(Kind.DATA, head, [body], epoch=1, channel=1)]


def give(receiver: StreamReceiver, frames: Sequence[Frame]) -> tuple[Received | None, bool]:
    outcome: tuple[Received | None, bool] = (None, False)
    for frame in frames:
        outcome = receiver.frame(frame, LIMIT)
    return outcome


def sender_of(*sizes: int, queue_bytes: int = 1 << 30, drop_oldest: bool = False) -> StreamSender:
    sender = StreamSender(STREAM, queue_bytes=queue_bytes, drop_oldest=drop_oldest)
    for i, size in enumerate(sizes):
        assert sender.offer([bytes([i % 251]) * size], 1)
    return sender


def numbers_sent(sender: StreamSender) -> list[int]:
    """Send whatever may be sent; the numbers of the messages that began."""
    numbers = []
    while (wire := sender.next_frame()) is not None:
        frame = parse(wire)
        if frame.flags & FIRST:
            numbers.append(SAMPLES_HEAD.unpack_from(frame.payload)[0])
    return numbers


# -- the sender, by hand -----------------------------------------------------------------------------------------------


def test_nothing_is_sent_before_a_resume_or_after_a_halt() -> None:
    sender = sender_of(10, 10)
    assert sender.next_frame() is None
    assert sender.want(LIMIT) is None
    sender.resume(channel=0, epoch=1, next_number=0, credit=LIMIT)
    assert numbers_sent(sender) == [0, 1]
    sender.halt()
    sender.offer([b"more"], 1)
    assert sender.next_frame() is None
    assert not sender.active


def test_a_resume_rewinds_to_the_number_that_it_names() -> None:
    sender = sender_of(10, 10, 10)
    for next_number in (0, 1, 0, 3):
        sender.resume(channel=0, epoch=1, next_number=next_number, credit=LIMIT)
        assert numbers_sent(sender) == list(range(next_number, 3))


def test_a_message_is_sent_only_if_it_fits_the_credit_completely() -> None:
    size = message_bytes(SAMPLES_HEAD, 100_000)
    sender = sender_of(100_000)
    sender.resume(channel=4, epoch=1, next_number=0, credit=size - 1)
    assert sender.next_frame() is None
    sender.credit(epoch=0, limit=10 * size)
    assert sender.next_frame() is None, "that credit was given in another epoch"
    sender.credit(epoch=1, limit=size - 2)
    assert sender.next_frame() is None, "a limit never falls, and this one is too low as well"
    sender.credit(epoch=1, limit=size)
    wires = [sender.next_frame(), sender.next_frame()]
    assert all(wire is not None and parse(wire).channel == 4 for wire in wires)
    assert sender.next_frame() is None


def test_credit_is_requested_once_for_complete_messages_within_the_window() -> None:
    sender = sender_of(10_000, 10_000, 10_000)
    size = message_bytes(SAMPLES_HEAD, 10_000)
    sender.resume(channel=2, epoch=5, next_number=0, credit=0)
    want = sender.want(2 * size + size // 2)
    assert want is not None
    assert (want.channel, want.epoch, want.total) == (2, 5, 2 * size)
    assert sender.want(2 * size + size // 2) is None, "it was said"
    sender.credit(epoch=5, limit=2 * size)
    assert numbers_sent(sender) == [0, 1]
    want = sender.want(2 * size)
    assert want is not None
    assert want.total == 3 * size


def test_a_credit_request_for_one_message_may_exceed_the_window() -> None:
    sender = sender_of(300_000, 10)
    sender.resume(channel=0, epoch=1, next_number=0, credit=0)
    want = sender.want(1_000)
    assert want is not None
    assert want.total == message_bytes(SAMPLES_HEAD, 300_000)


def test_credit_for_any_number_of_messages_takes_one_pass() -> None:
    """A hostile Server may choose a window that is larger than every queue."""

    class Queue(deque[Any]):
        deepest = 0

        def __getitem__(self, index: Any) -> Any:
            self.deepest = max(self.deepest, index)
            return super().__getitem__(index)

    sender = sender_of(*[10] * 1_000)
    sender._queue = queue = Queue(sender._queue)
    sender.resume(channel=0, epoch=1, next_number=0, credit=0)
    want = sender.want(1 << 62)
    assert want is not None
    assert want.total == 1_000 * message_bytes(SAMPLES_HEAD, 10)
    assert queue.deepest == 0, "each index would be searched for from an end"


def test_credit_for_one_more_message_does_not_look_at_all_that_wait() -> None:
    class Queue(deque[Any]):
        looks = 0

        def __iter__(self) -> Iterator[Any]:
            for message in super().__iter__():
                self.looks += 1
                yield message

    sender = sender_of(*[10] * 1_000)
    sender.resume(channel=0, epoch=1, next_number=0, credit=0)
    assert sender.want(LIMIT) is not None
    sender._queue = queue = Queue(sender._queue)
    for size in (20, 30):
        assert sender.offer([bytes(size)], 1)
    want = sender.want(LIMIT)
    assert want is not None
    assert want.total == sum(message_bytes(SAMPLES_HEAD, size) for size in [10] * 1_000 + [20, 30])
    assert queue.looks < 10


def test_the_oldest_message_not_being_sent_is_dropped() -> None:
    sender = sender_of(40, 40, queue_bytes=100, drop_oldest=True)
    sender.resume(channel=0, epoch=1, next_number=0, credit=message_bytes(SAMPLES_HEAD, 40))
    assert numbers_sent(sender) == [0]
    assert sender.offer([bytes(40)], 1)
    assert sender.samples_dropped == 1, "number 1 waited, number 0 may have arrived"
    sender.credit(epoch=1, limit=LIMIT)
    assert numbers_sent(sender) == [2]


def test_unused_credit_of_dropped_messages_is_released() -> None:
    large, small = (message_bytes(SAMPLES_HEAD, size) for size in (1_000, 40))
    sender = sender_of(1_000, queue_bytes=1_020, drop_oldest=True)
    sender.resume(channel=3, epoch=2, next_number=0, credit=0)
    want = sender.want(LIMIT)
    assert want is not None
    assert sender.offer([bytes(40)], 1)
    assert sender.samples_dropped == 1
    assert sender.unused() is None, "there is something to send"
    sender.credit(epoch=2, limit=want.total)
    assert numbers_sent(sender) == [1]
    unused = sender.unused()
    assert unused is not None
    assert (unused.channel, unused.epoch, unused.size) == (3, 2, large - small)
    assert sender.unused() is None, "it was said"
    assert sender.offer([bytes(40)], 1)
    again = sender.want(LIMIT)
    assert again is not None
    assert again.total == want.total + small, "what was given back counts as sent"


def test_credit_of_dropped_messages_that_is_too_little_is_released() -> None:
    sizes = small, large = [message_bytes(SAMPLES_HEAD, size) for size in (40, 1_000)]
    sender = sender_of(40, queue_bytes=1_020, drop_oldest=True)
    sender.resume(channel=3, epoch=2, next_number=0, credit=0)
    want = sender.want(LIMIT)
    assert want is not None
    assert sender.offer([bytes(1_000)], 1)
    assert sender.samples_dropped == 1
    assert sender.unused() is None, "it is not granted yet"
    later = sender.want(LIMIT)
    assert later is not None
    assert later.total == large
    sender.credit(epoch=2, limit=want.total)  # on its way when the larger request was made
    assert sender.unused() == Unused(3, 2, small)
    again = sender.want(LIMIT)
    assert again is not None
    assert again.total == sum(sizes), "what was given back counts as sent"
    sender.credit(epoch=2, limit=again.total)
    assert numbers_sent(sender) == [1]
    assert sender.unused() is None


def test_standing_credit_is_kept() -> None:
    sender = sender_of(40)
    sender.resume(channel=0, epoch=1, next_number=0, credit=5_000)
    assert numbers_sent(sender) == [0]
    assert sender.unused() is None, "it was not requested"


def test_a_new_message_without_space_is_dropped_itself_and_counted() -> None:
    sender = sender_of(70_000, queue_bytes=70_100, drop_oldest=True)
    sender.resume(channel=0, epoch=1, next_number=0, credit=LIMIT)
    assert sender.next_frame() is not None
    assert sender.offer([bytes(90)], 1)
    assert sender.offer([bytes(200)], 5), "taken, counted and dropped: the trainer sees a gap in the numbers"
    assert (sender.samples_offered, sender.samples_dropped, sender.messages_dropped) == (7, 5, 1)
    assert sender.held_samples == 2, "nothing else went for it"
    sender.offer([b"next"], 1)
    receiver = StreamReceiver(STREAM)
    sender.resume(channel=0, epoch=2, next_number=0, credit=LIMIT)
    while (wire := sender.next_frame()) is not None:
        receiver.frame(parse(wire), LIMIT)
    assert receiver.next_number == 4
    assert (receiver.gap_messages, receiver.gap_samples) == (1, 5)


def test_a_message_dropped_after_sending_counts_as_acknowledged_or_dropped_later() -> None:
    for arrived in (True, False):
        sender = sender_of(40, queue_bytes=50, drop_oldest=True)
        sender.resume(channel=0, epoch=1, next_number=0, credit=LIMIT)
        assert numbers_sent(sender) == [0]
        assert sender.offer([bytes(40)], 1)
        assert (sender.samples_dropped, sender.samples_unresolved) == (0, 1)
        if arrived:
            sender.on_ack(Ack(0, 1))
        else:
            sender.resume(channel=0, epoch=2, next_number=0, credit=LIMIT)
        assert (sender.samples_acked, sender.samples_dropped, sender.samples_unresolved) == (arrived, not arrived, 0)


def test_refused_messages_are_counted_separately() -> None:
    sender = sender_of(10, 10, 10)
    sender.resume(channel=0, epoch=1, next_number=0, credit=LIMIT)
    numbers_sent(sender)
    sender.on_ack(Ack(0, 3, ((1, "no room"),)))
    assert (sender.samples_acked, sender.samples_refused, sender.held_messages) == (2, 1, 0)
    assert list(sender.refusals) == [(1, "no room")]


def test_a_resume_or_acknowledgement_of_a_future_message_is_the_peers_fault() -> None:
    sender = sender_of(10, 10)
    with pytest.raises(RemoteProtocolError, match="asks for message 3 of a stream that has made 2"):
        sender.resume(channel=0, epoch=1, next_number=3, credit=LIMIT)
    with pytest.raises(RemoteProtocolError, match="message 2 was acknowledged; this stream has made 2"):
        sender.on_ack(Ack(0, 3))
    assert sender.held_messages == 2


# -- the receiver, by hand ---------------------------------------------------------------------------------------------


def test_messages_in_order_are_received_unchanged() -> None:
    receiver = StreamReceiver(STREAM)
    for number, size in enumerate((0, 1, MAX_PAYLOAD_BYTES - SAMPLES_HEAD.size, 200_000)):
        body = bytes([number + 1]) * size
        frames = frames_of(number, body)
        received, ask = give(receiver, frames)
        assert received is not None
        assert not ask
        assert (received.stream, received.number, received.samples) == (STREAM, number, 1)
        assert bytes(received.payload) == body
        assert received.size == sum(len(frame.buffer) for frame in frames)


def test_a_repeated_message_is_discarded_and_acknowledged_again() -> None:
    receiver = StreamReceiver(STREAM)
    give(receiver, frames_of(0))
    receiver.commit(0)
    assert receiver.next_ack(7) == Ack(7, 1)
    assert receiver.next_ack(7) is None
    assert give(receiver, frames_of(0)) == (None, False)
    assert receiver.duplicates == 1
    assert receiver.next_ack(7) == Ack(7, 1)


def test_a_refusal_that_came_while_its_message_was_sent_again_is_repeated_with_the_acknowledgement() -> None:
    sender, receiver = sender_of(70_000), StreamReceiver(STREAM)
    sender.resume(channel=0, epoch=1, next_number=0, credit=LIMIT)
    while (wire := sender.next_frame()) is not None:
        receiver.frame(parse(wire), LIMIT)
    sender.resume(channel=0, epoch=2, next_number=0, credit=LIMIT)
    first = sender.next_frame()
    assert first is not None
    receiver.frame(parse(first), LIMIT)
    receiver.commit(0, "no")
    heard = receiver.next_ack(0)
    assert heard is not None
    sender.on_ack(heard)
    last = sender.next_frame()
    assert last is not None
    receiver.frame(parse(last), LIMIT)
    again = receiver.next_ack(0)
    assert again is not None
    sender.on_ack(again)
    assert (sender.samples_refused, sender.samples_acked, sender.held_messages) == (1, 0, 0)


def test_a_gap_that_the_floor_explains_is_counted_in_messages_and_samples() -> None:
    receiver = StreamReceiver(STREAM, CommittedOffset(2, 10))
    received, ask = give(receiver, frames_of(5, floor=2, position=17))
    assert received is not None
    assert not ask
    assert (receiver.gap_messages, receiver.gap_samples) == (3, 7)
    assert receiver.next_number == 6


def test_a_gap_above_the_floor_requests_one_resume_and_accepts_nothing_until_then() -> None:
    receiver = StreamReceiver(STREAM)
    assert give(receiver, frames_of(1, bytes(100_000))[:1]) == (None, True)
    for frame in frames_of(1, bytes(100_000))[1:] + frames_of(2):
        assert receiver.frame(frame, LIMIT) == (None, False)
    assert receiver.next_number == 0
    assert receiver.gap_messages == 0
    again = frames_of(0)
    for frame in again:
        frame.readdress(2, 1)
    received, _ = give(receiver, again)
    assert received is not None
    assert received.number == 0


def test_only_committed_messages_are_acknowledged() -> None:
    receiver = StreamReceiver(STREAM)
    for number in range(3):
        give(receiver, frames_of(number, samples=2, position=2 * number))
    assert receiver.next_ack(1) is None
    assert receiver.offset == CommittedOffset(0, 0)
    receiver.commit(1)
    assert receiver.offset == CommittedOffset(2, 4)
    assert receiver.next_ack(1) == Ack(1, 2)


def test_an_acknowledgement_that_may_have_been_lost_with_a_link_is_repeated_on_the_next() -> None:
    receiver = StreamReceiver(STREAM)
    give(receiver, frames_of(0))
    receiver.commit(0)
    assert receiver.next_ack(1) == Ack(1, 1)
    assert receiver.attach() == 1
    assert receiver.next_ack(2) == Ack(2, 1)


def test_the_offset_after_a_commit_is_known_before_it() -> None:
    receiver = StreamReceiver(STREAM)
    for number, position in ((0, 0), (1, 1), (5, 7)):
        give(receiver, frames_of(number, floor=min(number, 2), position=position))
    expected = [receiver.offset_after(number) for number in (0, 1, 5)]
    assert receiver.offset == CommittedOffset(0, 0)
    for number, offset in zip((0, 1, 5), expected, strict=True):
        receiver.commit(number)
        assert receiver.offset == offset == receiver.offset_after(0)


def test_committing_a_message_that_has_not_arrived_is_a_local_error() -> None:
    receiver = StreamReceiver(STREAM)
    give(receiver, frames_of(0))
    with pytest.raises(LocalProtocolError, match="message 1 is committed before it arrived"):
        receiver.commit(1)


def test_an_incomplete_message_is_discarded_when_the_stream_returns() -> None:
    receiver = StreamReceiver(STREAM)
    give(receiver, frames_of(0, bytes(100_000))[:1])
    assert receiver.attach() == 0
    with pytest.raises(RemoteProtocolError, match="was continued without a beginning"):
        give(receiver, frames_of(0, bytes(100_000))[1:])
    received, _ = give(receiver, frames_of(0, b"whole"))
    assert received is not None
    assert bytes(received.payload) == b"whole"


def data_frame(flags: int, payload: bytes) -> Frame:
    return parse(HEADER.pack(len(payload), Kind.DATA, flags, 1, 1) + payload)


@pytest.mark.parametrize(
    ("frames", "words"),
    [
        ([data_frame(FIRST | LAST, b"short")], "too short for its head"),
        ([data_frame(LAST, b"x")], "was continued without a beginning"),
        ([data_frame(FIRST, SAMPLES_HEAD.pack(0, 0, 0, 1, LIMIT + 1))], "at most 1048576 are allowed"),
        ([data_frame(FIRST | LAST, SAMPLES_HEAD.pack((1 << 64) - 1, 0, 0, 1, 1) + b"x")], "is out of range"),
        ([data_frame(FIRST | LAST, SAMPLES_HEAD.pack(0, 0, 1 << 63, 1, 1) + b"x")], "is out of range"),
        ([data_frame(FIRST | LAST, SAMPLES_HEAD.pack(1, 1 << 62, 0, 1, 1) + b"x")], "is out of range"),
        ([data_frame(FIRST, SAMPLES_HEAD.pack(0, 0, 0, 1, 3) + b"four")], "announced 3 bytes and has more"),
        ([data_frame(FIRST | LAST, SAMPLES_HEAD.pack(0, 0, 0, 1, 3) + b"2.")], "announced 3 bytes and has 2"),
    ],
    ids=["head", "beginning", "limit", "number", "position", "floor", "more", "fewer"],
)
def test_frames_that_contradict_their_message_are_the_peers_fault(frames: list[Frame], words: str) -> None:
    with pytest.raises(RemoteProtocolError, match=words):
        give(StreamReceiver(STREAM), frames)


def test_all_recent_refusals_are_repeated_on_a_new_link() -> None:
    receiver = StreamReceiver(STREAM)
    for number in range(300):
        give(receiver, frames_of(number))
    receiver.commit(0, refused="told before")
    assert receiver.next_ack(1) == Ack(1, 1, ((0, "told before"),))
    for number in range(1, 300):
        receiver.commit(number, refused=f"while the link was down {number}")
    receiver.attach()
    told: dict[int, str] = {}
    while (ack := receiver.next_ack(2)) is not None:
        told.update(ack.refused)
    assert sorted(told) == list(range(300))


def test_many_long_refusals_are_split_into_acknowledgements_that_fit_a_frame() -> None:
    sender = sender_of(*[10] * 400)
    sender.resume(channel=0, epoch=1, next_number=0, credit=LIMIT)
    receiver = StreamReceiver(STREAM)
    while (wire := sender.next_frame()) is not None:
        receiver.frame(parse(wire), LIMIT)
    for number in range(400):
        receiver.commit(number, refused="\U0001f916" * 1_000 if number % 2 else None)
    before = 0
    while (ack := receiver.next_ack(0)) is not None:
        control_frame(ack)
        assert ack.next > before
        before = ack.next
        sender.on_ack(ack)
    assert (sender.samples_acked, sender.samples_refused, sender.held_messages) == (200, 200, 0)


# -- both, against a model ---------------------------------------------------------------------------------------------


class Message:
    """What the model knows of one message."""

    def __init__(self, body: bytes, samples: int) -> None:
        self.body = body
        self.samples = samples
        self.size = message_bytes(SAMPLES_HEAD, len(body))
        self.fate = "queued"  # sending, sent, unresolved, dropped, acked, refused
        self.refused = False


class Delivery(RuleBasedStateMachine):
    """A sender and a receiver with a link between them that is cut, loses messages, and carries acknowledgements late.

    The trainer's process may be replaced by one that knows an older mark.
    """

    @initialize(queue_bytes=st.sampled_from([70_100, 1 << 30, 150_000, 100]), drop_oldest=st.booleans())
    def begin(self, queue_bytes: int, drop_oldest: bool) -> None:
        self.queue_bytes = queue_bytes
        self.drop_oldest = drop_oldest
        self.sender = StreamSender(STREAM, queue_bytes=queue_bytes, drop_oldest=drop_oldest)
        self.receiver = StreamReceiver(STREAM)
        self.messages: list[Message] = []
        self.linked = False
        self.epoch = 0
        self.sent_bytes = self.limit = self.wanted = self.current_sent = 0
        self.flight: deque[bytearray] = deque()
        self.acks: deque[Ack] = deque()
        self.expected = 0
        self.offsets = [CommittedOffset(0, 0)]
        self.largest_window = 0
        self.arrived: list[int] = []  # and not committed
        self.gap_messages = self.gap_samples = 0
        self.duplicates = 0
        self.link(1 << 20, 0)

    def those(self, *fates: str) -> list[int]:
        return [number for number, message in enumerate(self.messages) if message.fate in fates]

    def samples(self, *fates: str) -> int:
        return sum(self.messages[number].samples for number in self.those(*fates))

    def held(self) -> int:
        return sum(len(self.messages[number].body) for number in self.those("queued", "sending", "sent"))

    # - the worker -

    @rule(sizes=st.lists(st.sampled_from([60, 70_000, 1_000, 0, MAX_PAYLOAD_BYTES - 32]), min_size=1, max_size=4))
    def offers(self, sizes: list[int]) -> None:
        for size in sizes:
            self.offer(size, len(self.messages) % 4)

    def offer(self, size: int, samples: int) -> None:
        number = len(self.messages)
        body = bytes([number % 251]) * size
        message = Message(body, samples)
        taken = True
        on_its_way = sum(len(self.messages[sending].body) for sending in self.those("sending"))
        while self.held() and self.held() + size > self.queue_bytes:
            if not self.drop_oldest:
                taken = False
                break
            if on_its_way and on_its_way + size > self.queue_bytes:
                message.fate = "dropped"  # whatever else went, there would be no room
                break
            victim = self.messages[(self.those("queued") or self.those("sent"))[0]]
            victim.fate = "dropped" if victim.fate == "queued" else "unresolved"
        assert self.sender.offer([body[: size // 2], memoryview(body)[size // 2 :]], samples) == taken
        if taken:
            self.messages.append(message)

    def send(self) -> None:
        current = self.those("sending")
        queued = self.those("queued")
        wire = self.sender.next_frame()
        if not current:
            may = bool(self.linked and queued and self.sent_bytes + self.messages[queued[0]].size <= self.limit)
            assert (wire is not None) == may
            if wire is None:
                return
            current = queued[:1]
            self.messages[current[0]].fate = "sending"
            self.current_sent = 0
        assert wire is not None
        frame = parse(wire)
        assert (frame.kind, frame.epoch, frame.channel) == (Kind.DATA, self.epoch, 3)
        self.sent_bytes += wire.size
        self.current_sent += wire.size
        assert self.sent_bytes <= self.limit
        if frame.flags & LAST:
            assert self.current_sent == self.messages[current[0]].size
            self.messages[current[0]].fate = "sent"
        self.flight.append(bytearray(bytes(wire)))

    @rule(window=st.sampled_from([1, 1_000, 80_000, 1 << 20]))
    def want(self, window: int) -> None:
        want = self.sender.want(window)
        if want is None:
            return
        assert self.linked
        assert (want.channel, want.epoch) == (3, self.epoch)
        assert want.total > max(self.limit, self.wanted), "it asks for something new"
        end = self.sent_bytes
        for number in self.those("sending"):
            end += self.messages[number].size - self.current_sent
        begin = end
        ends = []
        for number in self.those("queued"):
            end += self.messages[number].size
            ends.append(end)
        assert want.total in ends, "a want ends at a whole message"
        # What an earlier want with a larger window covered stays covered.
        self.largest_window = max(window, self.largest_window)
        assert want.total - begin <= self.largest_window or want.total == ends[0]
        self.wanted = want.total

    @precondition(lambda self: self.linked)
    @rule(more=st.sampled_from([1 << 20, 70_000, 10_000, 100]), of_this_epoch=st.sampled_from([True, True, False]))
    def credit(self, more: int, of_this_epoch: bool) -> None:
        self.sender.credit(epoch=self.epoch if of_this_epoch else self.epoch - 1, limit=self.limit + more)
        if of_this_epoch:
            self.limit += more
        self.sender.credit(epoch=self.epoch, limit=self.limit - 1)  # a limit never falls

    # - the link -

    def stop_sending(self) -> None:
        for number in self.those("sending"):
            self.messages[number].fate = "queued"

    @rule(moves=st.lists(st.sampled_from(["send", "deliver", "commit", "refuse", "acknowledge", "hear"]), max_size=15))
    def go_on(self, moves: list[str]) -> None:
        for move in moves:
            if move == "send":
                self.send()
            elif move == "deliver" and self.flight:
                self.deliver()
            elif move in ("commit", "refuse") and self.arrived:
                self.commit(move == "refuse")
            elif move == "acknowledge" and self.linked:
                self.acknowledge()
            elif move == "hear" and self.acks:
                self.deliver_acknowledgement()
            self.check()

    @rule(sends=st.integers(1, 4), delivers=st.integers(0, 4), commits=st.integers(0, 4))
    def flow(self, sends: int, delivers: int, commits: int) -> None:
        """What mostly happens."""
        if not self.linked:
            self.link(1 << 20, 0)
        self.credit(1 << 20, True)
        self.go_on(["send"] * sends + ["deliver"] * delivers + ["commit"] * commits + ["acknowledge", "hear"])

    def cut(self) -> None:
        self.sender.halt()
        self.stop_sending()
        self.linked = False
        self.flight.clear()
        self.acks.clear()

    @rule(credit=st.sampled_from([1 << 20, 65_536, 1_000, 0]), back=st.sampled_from([0, 0, 0, 1, 3]))
    def link(self, credit: int, back: int) -> None:
        """A new link. The resume may be one that was asked for earlier, when less had arrived."""
        self.flight.clear()
        self.acks.clear()
        assert self.receiver.attach() == self.expected
        self.resume(max(0, self.expected - back), credit)

    def resume(self, next_number: int, credit: int) -> None:
        self.epoch += 1
        self.accident = False
        self.linked = True
        self.sent_bytes = self.wanted = 0
        self.limit = credit
        self.stop_sending()
        for number, message in enumerate(self.messages):
            if number >= next_number and message.fate == "sent":
                message.fate = "queued"
            elif number >= next_number and message.fate == "unresolved":
                message.fate = "dropped"
            elif number < next_number and message.fate == "queued":
                message.fate = "sent"
        self.sender.resume(channel=3, epoch=self.epoch, next_number=next_number, credit=credit)

    @precondition(lambda self: self.flight)
    @rule()
    def lose_a_message(self) -> None:
        """By accident, in the middle of a link: what a relay must never do, and the trainer has to notice."""
        while self.flight and self.flight.popleft()[5] & LAST == 0:
            pass
        # Frames of a message whose beginning has arrived would contradict its head; a relay sends whole messages.
        while self.flight and not self.flight[0][5] & FIRST:
            self.flight.popleft()
        self.receiver.in_message = False
        self.accident = True

    def deliver(self) -> None:
        frame = parse(self.flight.popleft())
        if not frame.flags & FIRST and not self.receiver.in_message and frame.epoch != self.receiver._ignored_epoch:
            return  # its beginning was lost
        number = SAMPLES_HEAD.unpack_from(frame.payload)[0] if frame.flags & FIRST else self.receiver._head[0]
        self.duplicates += bool(frame.flags & LAST and number < self.expected)
        received, ask = self.receiver.frame(frame, LIMIT)
        if received is not None:
            message = self.messages[received.number]
            assert received.number >= self.expected, "never twice, never back"
            assert bytes(received.payload) == message.body
            assert (received.samples, received.size) == (message.samples, message.size)
            skipped = range(self.expected, received.number)
            assert all(
                self.messages[number].fate in ("dropped", "unresolved", "acked", "refused") for number in skipped
            ), "what the worker still has is not skipped"
            self.gap_messages += len(skipped)
            self.gap_samples += sum(self.messages[number].samples for number in skipped)
            self.expected = received.number + 1
            self.arrived.append(received.number)
        if ask:
            assert received is None
            assert self.accident, "a gap that the worker made on purpose needs no resume"
            self.flight.clear()
            self.resume(self.expected, 0)

    # - the trainer -

    def commit(self, refuse: bool) -> None:
        number = self.arrived.pop(0)
        self.messages[number].refused = refuse
        self.receiver.commit(number, "no" if refuse else None)
        assert self.receiver.offset == CommittedOffset(
            number + 1, sum(message.samples for message in self.messages[: number + 1])
        )
        self.offsets.append(self.receiver.offset)

    def acknowledge(self) -> None:
        ack = self.receiver.next_ack(3)
        if ack is not None:
            assert ack.next <= self.offsets[-1].next_number, "only what is committed"
            self.acks.append(ack)

    def deliver_acknowledgement(self) -> None:
        ack = self.acks.popleft()
        self.sender.on_ack(ack)
        for number in range(ack.next):
            message = self.messages[number]
            if message.fate in ("queued", "sent", "unresolved"):
                message.fate = "refused" if message.refused else "acked"

    @rule(forgets=st.sampled_from([None, None, 0, 1, 3, 100]))
    def the_link_is_cut(self, forgets: int | None) -> None:
        self.cut()
        if forgets is not None:
            self.a_new_trainer_from_a_checkpoint(forgets)

    def a_new_trainer_from_a_checkpoint(self, forgets: int) -> None:
        self.offsets = self.offsets[: max(1, len(self.offsets) - forgets)]
        self.duplicates = 0
        offset = self.offsets[-1]
        self.receiver = StreamReceiver(STREAM, offset)
        self.arrived.clear()
        self.gap_messages = self.gap_samples = 0
        self.expected = offset.next_number
        for message in self.messages:
            message.refused = False  # a checkpoint knows how far a stream was committed, not what was refused of it

    # - at all times -

    def the_senders_counts_are_the_models(self) -> None:
        sender = self.sender
        assert sender.samples_acked == self.samples("acked")
        assert sender.samples_refused == self.samples("refused")
        assert sender.samples_dropped == self.samples("dropped")
        assert sender.samples_unresolved == self.samples("unresolved")
        assert sender.held_samples == self.samples("queued", "sending", "sent")
        assert sender.held_messages == len(self.those("queued", "sending", "sent"))
        assert sender.held_bytes == self.held()
        assert sender.unsent_bytes == sum(len(self.messages[number].body) for number in self.those("queued"))
        assert sender.next_number == len(self.messages)
        assert sender.active == self.linked

    def every_sample_is_accounted_for_once(self) -> None:
        sender = self.sender
        assert sender.samples_offered == (
            sender.samples_acked
            + sender.samples_refused
            + sender.samples_dropped
            + sender.held_samples
            + sender.samples_unresolved
        )

    def the_bound_holds(self) -> None:
        bodies = [self.messages[number].body for number in self.those("queued", "sending", "sent")]
        assert self.sender.held_bytes <= self.queue_bytes or len([body for body in bodies if body]) == 1

    def gaps_are_counted_exactly(self) -> None:
        assert (self.receiver.gap_messages, self.receiver.gap_samples) == (self.gap_messages, self.gap_samples)
        assert self.receiver.next_number == self.expected
        assert self.receiver.duplicates == self.duplicates

    @invariant()
    def check(self) -> None:
        if hasattr(self, "sender"):
            self.the_senders_counts_are_the_models()
            self.every_sample_is_accounted_for_once()
            self.the_bound_holds()
            self.gaps_are_counted_exactly()

    def teardown(self) -> None:
        """Whatever happened: with a link, credit and a trainer that commits, everything comes to an end."""
        if not hasattr(self, "sender"):
            return
        self.cut()
        self.link(0, 0)
        for _ in range(10_000):
            self.credit(1 << 20, True)
            self.send()
            while self.flight:
                self.deliver()
            while self.arrived:
                self.commit(False)
            self.acknowledge()
            while self.acks:
                self.deliver_acknowledgement()
            if not self.those("queued", "sending", "sent"):
                break
        assert not self.those("queued", "sending", "sent")
        self.check()


class BodiesInADict:
    """A store in the memory, which can lose bodies."""

    def __init__(self) -> None:
        self.bodies: dict[int, bytes] = {}
        self.lost: set[int] = set()

    def load(self, place: int) -> Body:
        if place in self.lost:
            raise StorageError("lost")
        return [self.bodies[place]]

    def release(self, place: int) -> None:
        del self.bodies[place]


class OverflowingDelivery(Delivery):
    """The same with bodies that go to a store, which is slow, may be full, fails in the middle, and loses some."""

    @initialize(
        queue_bytes=st.sampled_from([70_100, 150_000, 2_000, 1 << 30]),
        store_bytes=st.sampled_from([0, 75_000, 300_000, 1 << 30]),
    )
    def begin(self, queue_bytes: int, store_bytes: int) -> None:
        super().begin(queue_bytes, True)
        self.store = BodiesInADict()
        self.store_bytes = store_bytes
        self.writing: list[HeldMessage] = []
        self.written: set[int] = set()
        self.sender = StreamSender(
            STREAM, queue_bytes=queue_bytes, drop_oldest=True, store=self.store, store_bytes=store_bytes
        )
        self.link(1 << 20, 0)

    def memory(self, *fates: str) -> int:
        numbers = self.those(*(fates or ("queued", "sending", "sent")))
        sizes = ((number, len(self.messages[number].body)) for number in numbers)
        return sum(min(size, 512) if number in self.written else size for number, size in sizes)

    def unwritten(self) -> list[int]:
        busy = {message.number for message in self.writing} | self.written
        return [number for number in self.those("queued", "sending", "sent") if number not in busy]

    def written_bytes(self) -> int:
        there = {message.number for message in self.writing} | self.written
        numbers = self.those("queued", "sending", "sent")
        return sum(len(self.messages[number].body) for number in numbers if number in there)

    def offer(self, size: int, samples: int) -> None:
        body = bytes([len(self.messages) % 251]) * size
        message = Message(body, samples)
        while self.held() and self.memory() + size > self.queue_bytes:
            sending, unwritten = self.those("sending"), self.unwritten()
            queued = [number for number in self.those("queued") if number in unwritten]
            sent = self.those("sent")[:1] if not self.those("queued") else []
            if sending and self.memory("sending") + size > self.queue_bytes:
                message.fate = "dropped"
            elif queued:
                self.messages[queued[0]].fate = "dropped"
                continue
            elif sent and sent[0] in unwritten:
                self.messages[sent[0]].fate = "unresolved"
                continue
            else:
                message.fate = "dropped"  # the memory is full of what is being written
            break
        assert self.sender.offer([body], samples)
        self.messages.append(message)

    @precondition(lambda self: not self.writing)
    @rule(limit=st.sampled_from([1, 1_000, 140_000, 1 << 30]))
    def begin_to_write(self, limit: int) -> None:
        expected: list[int] = []
        size = 0
        for number in self.unwritten():
            if size >= limit:
                break
            more = len(self.messages[number].body)
            waits = self.those("queued")
            while self.written_bytes() + size + more > self.store_bytes and waits and waits[0] in self.written:
                self.messages[waits.pop(0)].fate = "dropped"
            if self.written_bytes() + size + more > self.store_bytes:
                break
            expected.append(number)
            size += more
        self.writing = self.sender.take_unwritten(limit)
        assert [message.number for message in self.writing] == expected
        assert all(b"".join(message.body or ()) == self.messages[message.number].body for message in self.writing)

    @precondition(lambda self: self.writing)
    @rule(fails_after=st.sampled_from([100, 100, 1, 0]))
    def end_writing(self, fails_after: int) -> None:
        done = self.writing[:fails_after]
        for message in done:
            assert message.number not in self.store.bodies, "written once"
            self.store.bodies[message.number] = self.messages[message.number].body
        self.sender.written(self.writing, [message.number for message in done])
        self.written.update(message.number for message in done)
        self.writing = []

    @precondition(lambda self: self.store.bodies.keys() - self.store.lost)
    @rule(index=st.integers(0, 5))
    def lose_a_body(self, index: int) -> None:
        there = sorted(self.store.bodies.keys() - self.store.lost)
        self.store.lost.add(there[index % len(there)])

    def send(self) -> None:
        queued = self.those("queued")
        while (
            self.linked
            and not self.those("sending")
            and queued
            and self.sent_bytes + self.messages[queued[0]].size <= self.limit
            and queued[0] in self.store.lost
        ):
            self.messages[queued.pop(0)].fate = "dropped"
        super().send()

    def the_bound_holds(self) -> None:
        bodies = [self.messages[number].body for number in self.those("queued", "sending", "sent")]
        assert self.sender.memory_bytes == self.memory()
        assert self.memory() <= self.queue_bytes or len([body for body in bodies if body]) == 1
        assert self.sender.written_bytes == self.written_bytes() <= self.store_bytes

    def the_store_has_what_is_needed(self) -> None:
        assert self.store.bodies.keys() == self.written & set(self.those("queued", "sending", "sent"))

    @invariant()
    def check(self) -> None:
        super().check()
        if hasattr(self, "store"):
            self.the_store_has_what_is_needed()

    def teardown(self) -> None:
        super().teardown()
        if hasattr(self, "store"):
            if self.writing:
                self.end_writing(100)
            assert not self.store.bodies


Delivery.TestCase.settings = settings(max_examples=150 if FULL else 40, stateful_step_count=60, deadline=None)
TestDelivery = Delivery.TestCase
OverflowingDelivery.TestCase.settings = settings(
    max_examples=150 if FULL else 40, stateful_step_count=60, deadline=None
)
TestOverflowingDelivery = OverflowingDelivery.TestCase


@pytest.mark.parametrize("seed", [pytest.param(seed, marks=() if seed < 8 else pytest.mark.full) for seed in range(16)])
def test_long_walks_through_the_same_model(seed: int) -> None:
    """Hypothesis finds short ways into trouble; these go far."""
    dice = random.Random(seed)
    machine = Delivery()
    machine.begin(queue_bytes=dice.choice([100, 70_100, 150_000, 1 << 30]), drop_oldest=seed % 3 > 0)
    for _ in range(300):
        chance = dice.random()
        if chance < 0.3:
            machine.offers([dice.choice([0, 60, 1_000, 70_000]) for _ in range(dice.randint(1, 3))])
        elif chance < 0.75:
            machine.flow(dice.randint(1, 5), dice.randint(0, 4), dice.randint(0, 4))
        elif chance < 0.85:
            machine.go_on(dice.choices(["send", "deliver", "commit", "refuse", "acknowledge", "hear"], k=10))
        elif chance < 0.88:
            machine.want(dice.choice([1, 1_000, 80_000, 1 << 20]))
        elif chance < 0.92:
            machine.link(dice.choice([0, 1_000, 1 << 20]), dice.choice([0, 0, 1, 3]))
        elif chance < 0.96:
            machine.the_link_is_cut(dice.choice([None, None, 0, 1, 3, 100]))
        elif machine.flight:
            machine.lose_a_message()
        machine.check()
    machine.teardown()


@pytest.mark.parametrize("seed", [pytest.param(seed, marks=() if seed < 4 else pytest.mark.full) for seed in range(24)])
def test_long_walks_with_a_store(seed: int) -> None:
    dice = random.Random(seed)
    machine = OverflowingDelivery()
    machine.begin(dice.choice([2_000, 70_100, 150_000, 200_000]), dice.choice([0, 75_000, 300_000, 1 << 30]))
    for _ in range(500):
        chance = dice.random()
        if chance < 0.35:
            machine.offers([dice.choice([0, 60, 1_000, 30_000, 70_000]) for _ in range(dice.randint(1, 3))])
        elif chance < 0.65 and machine.writing:
            machine.end_writing(dice.choice([100, 100, 1, 0]))
        elif chance < 0.65:
            machine.begin_to_write(dice.choice([1, 1_000, 140_000, 1 << 30]))
        elif chance < 0.85:
            machine.flow(dice.randint(1, 5), dice.randint(0, 4), dice.randint(0, 4))
        elif chance < 0.90:
            machine.want(dice.choice([1, 1_000, 80_000, 1 << 20]))
        elif chance < 0.93:
            machine.link(dice.choice([0, 1_000, 1 << 20]), dice.choice([0, 0, 1, 3]))
        elif chance < 0.97:
            machine.the_link_is_cut(dice.choice([None, None, 0, 1, 3, 100]))
        elif machine.store.bodies.keys() - machine.store.lost:
            machine.lose_a_body(dice.randint(0, 5))
        machine.check()
    machine.teardown()


@pytest.mark.parametrize("seed", range(30))
def test_what_a_killed_sender_has_written_is_delivered_once_by_the_next(seed: int) -> None:
    """Trainers that restart from older checkpoints included, which may get again what an earlier one has lost."""
    dice = random.Random(seed)
    store = BodiesInADict()
    disk: dict[int, WrittenMessage] = {}
    sender = StreamSender(STREAM, queue_bytes=5_000, drop_oldest=True, store=store, store_bytes=20_000)
    receiver = StreamReceiver(STREAM)
    checkpoint = receiver.offset
    contents: dict[int, bytes] = {}
    got: dict[int, bytes] = {}
    epoch = 0

    def send(moves: int) -> None:
        nonlocal epoch
        epoch += 1
        sender.resume(channel=3, epoch=epoch, next_number=receiver.attach(), credit=1 << 30)
        for _ in range(moves):
            wire = sender.next_frame()
            if wire is None:
                break
            received, ask = receiver.frame(parse(wire), LIMIT)
            assert not ask, "a gap is explained"
            if received is not None:
                assert received.number not in got
                got[received.number] = bytes(received.payload)
        if got and dice.random() < 0.8:
            receiver.commit(receiver.next_number - 1)
        ack = receiver.next_ack(3)
        if ack is not None and dice.random() < 0.8:
            sender.on_ack(ack)

    for _ in range(60):
        chance = dice.random()
        if chance < 0.5:
            body = os.urandom(dice.choice([10, 700, 1_500]))
            contents[sender.next_number] = body
            sender.offer([body], 1)
        elif chance < 0.8:
            messages = sender.take_unwritten(dice.choice([1, 2_000]))
            for message in messages:
                store.bodies[message.number] = contents[message.number]
                head = (message.number, message.floor, message.position, message.samples, message.body_bytes)
                disk[message.number] = WrittenMessage(*head, message.number)
            sender.written(messages, [message.number for message in messages])
        elif chance < 0.95:
            send(dice.randint(0, 8))
        else:
            checkpoint = receiver.offset
    # The files of acknowledged messages go late, if at all, and the others are found by the next process.
    lost_with_it = {number for number in contents if number not in disk}
    store.bodies = {number: contents[number] for number in disk}
    sender = StreamSender(STREAM, queue_bytes=5_000, drop_oldest=True, store=store, store_bytes=0)
    sender.restore(list(disk.values()))
    restarted = dice.random() < 0.5
    if restarted:
        receiver = StreamReceiver(STREAM, checkpoint)
        got = {number: body for number, body in got.items() if number < checkpoint.next_number}
    had = set(got)
    for _ in range(200):
        if not sender.held_messages:
            break
        send(dice.randint(1, 5))
    assert (sender.held_messages, sender.memory_bytes, sender.written_bytes, store.bodies) == (0, 0, 0, {})
    assert all(got[number] == contents[number] for number in got)
    missing = set(contents) - set(got)
    assert missing & set(disk) <= {number for number in disk if number < max(had, default=-1)}, "dropped before"
    assert missing <= lost_with_it | {number for number in disk if number < max(had, default=-1)}
