"""Samples on their way into messages: joined, divided, in order, within the limits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tmrl_core.networking.protocol.delivery import Body, StreamSender
from tmrl_core.networking.worker.outbox import Outbox
from tmrl_core.samples import Buffer, Chunk, EpisodeRecord, SampleMessage, decode_message


class Sender(StreamSender):
    """A sender that shows the messages offered to it."""

    def __init__(self, queue_bytes: int, drop_oldest: bool) -> None:
        super().__init__(bytes(16), queue_bytes=queue_bytes if drop_oldest else 1 << 62, drop_oldest=drop_oldest)
        self.offered: list[tuple[int, int, SampleMessage]] = []
        """Bytes, number of samples, and content of each."""

    def offer(self, body: Body, samples: int) -> bool:
        data = b"".join(body)
        self.offered.append((len(data), samples, decode_message(data, max_bytes=1 << 24)))
        return super().offer(body, samples)


def new_outbox(*, queue_bytes: int = 64 << 20, drop_oldest: bool = True, **changes: Any) -> tuple[Outbox, Sender]:
    sender = Sender(queue_bytes, drop_oldest)
    kwargs: dict[str, Any] = {"max_message_bytes": 1 << 24, "compression": "none", **changes}
    return Outbox(sender, queue_bytes=queue_bytes, drop_oldest=drop_oldest, **kwargs), sender


def episode(first: float, rows: int, width: int = 3) -> Chunk:
    buffer = Buffer(maxlen=None)
    for i in range(rows):
        observation = np.full(width, first + i, np.float32)
        buffer.append_sample((np.zeros(1, np.float32), observation, 0.5, False, i == rows - 1, {}))
    (chunk,), _ = buffer.take()
    return chunk


def add(outbox: Outbox, *chunks: Chunk) -> None:
    for chunk in chunks:
        outbox.add(chunk, (), chunk.nbytes)


def encode_all(outbox: Outbox) -> None:
    while outbox:
        outbox.encode()


def firsts(sender: Sender) -> list[float]:
    """Return the first number of each row's observation."""
    chunks = [message.chunk for _, _, message in sender.offered if message.chunk is not None]
    return [number for chunk in chunks for number in np.asarray(chunk.observation)[:, 0].tolist()]


def records(number: int) -> list[EpisodeRecord]:
    return [EpisodeRecord("agent", float(i), i, "test", "truncated", evaluation=3, seed=i) for i in range(number)]


def test_waiting_items_are_joined_in_order() -> None:
    outbox, sender = new_outbox()
    add(outbox, *(episode(10.0 * i, 10) for i in range(20)))
    assert outbox.samples == 200
    encode_all(outbox)
    assert [samples for _, samples, _ in sender.offered] == [200]
    assert firsts(sender) == [float(i) for i in range(200)]
    assert (outbox.bytes, outbox.samples, sender.held_samples) == (0, 0, 200)


def test_joined_messages_keep_the_limits_and_have_one_layout() -> None:
    outbox, sender = new_outbox(queue_bytes=80_000)
    small = [episode(10.0 * i, 10) for i in range(40)]
    add(outbox, *small[:20], episode(0.0, 1, width=2), *small[20:])
    encode_all(outbox)
    assert all(size <= 10_200 for size, _, _ in sender.offered), "a message is dropped whole"
    assert sum(samples for _, samples, _ in sender.offered) == 401
    chunks = [message.chunk for _, _, message in sender.offered]
    assert [c.rows for c in chunks if c is not None and np.asarray(c.observation).shape[1] == 2] == [1]


def test_a_large_item_is_divided() -> None:
    outbox, sender = new_outbox(max_message_bytes=40_000)
    add(outbox, episode(0.0, 5_000))
    encode_all(outbox)
    assert len(sender.offered) > 2
    assert all(size <= 41_000 for size, _, _ in sender.offered)
    assert firsts(sender) == [float(i) for i in range(5_000)]


def test_samples_that_cannot_be_encoded_do_not_affect_others(caplog: pytest.LogCaptureFixture) -> None:
    outbox, sender = new_outbox()
    chunks = [episode(10.0 * i, 10) for i in range(20)]
    broken = episode(0.0, 10)
    broken.info[3] = {"what": object()}
    add(outbox, *chunks[:7], broken, *chunks[7:])
    encode_all(outbox)
    assert firsts(sender) == [float(i) for i in range(200)]
    assert caplog.text.count("could not be encoded") == 1
    assert (outbox.bytes, outbox.samples) == (0, 0)


def test_records_are_sent_without_samples() -> None:
    outbox, sender = new_outbox()
    outbox.add(None, records(10), 0)
    encode_all(outbox)
    ((_, samples, message),) = sender.offered
    assert (samples, message.chunk, list(message.records)) == (0, None, records(10))


def test_no_record_follows_the_last_samples_of_an_item() -> None:
    """A lockstep round is complete with its last samples, whatever the number of its episodes."""
    outbox, sender = new_outbox()
    chunk = episode(0.0, 5)
    outbox.add(chunk, records(620), chunk.nbytes)
    encode_all(outbox)
    messages = [message for _, _, message in sender.offered]
    assert [record for message in messages for record in message.records] == records(620)
    assert [message.chunk is not None for message in messages] == [False, False, True]


def test_messages_of_an_expert_say_so() -> None:
    outbox, sender = new_outbox()
    outbox.signature = b"expert"
    add(outbox, episode(0.0, 5))
    encode_all(outbox)
    assert sender.offered[0][2].signature == b"expert"


def test_without_dropping_there_is_room_up_to_the_limit_and_for_one_item_always() -> None:
    outbox, sender = new_outbox(queue_bytes=1_000, drop_oldest=False)
    assert outbox.has_room(5_000), "one is always accepted"
    add(outbox, episode(0.0, 10))
    assert outbox.has_room(1_000 - outbox.bytes)
    assert not outbox.has_room(1_001 - outbox.bytes)
    encode_all(outbox)
    assert outbox.has_room(1_000 - sender.held_bytes)
    assert not outbox.has_room(1_001 - sender.held_bytes), "what the sender holds counts too"


def test_without_dropping_nothing_is_encoded_far_ahead() -> None:
    outbox, sender = new_outbox(drop_oldest=False)
    add(outbox, *(episode(0.0, 1, width=200_000) for _ in range(20)))
    while outbox.ready():
        outbox.encode()
    assert outbox
    assert 8 << 20 <= sender.unsent_bytes < 11 << 20


def test_one_call_encodes_about_one_message() -> None:
    outbox, sender = new_outbox()
    add(outbox, *(episode(0.0, 4, width=60_000) for _ in range(3)))
    assert outbox.encode()
    assert len(sender.offered) == 2, "the first has less than the limit"
    assert outbox.encode()
    assert not outbox.encode()
