"""A Server that ignores the order of messages and the trainer's credit does not fill the trainer's memory."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from tests.networking.test_unread_answers import give
from tmrl_core.networking.protocol.connection import Connection, Identity
from tmrl_core.networking.protocol.framing import FIRST, HEADER, LAST, Kind
from tmrl_core.networking.protocol.messages import SAMPLES_HEAD, StreamClosed, StreamOpened, Welcome
from tmrl_core.networking.trainer import TrainerConnection, TrainerState

INBOX_BYTES = 1 << 20
MESSAGE_BYTES = 1 << 18


def give_frame(connection: Connection, channel: int, flags: int, payload: bytes) -> None:
    data = HEADER.pack(len(payload), Kind.DATA, flags, 0, channel) + payload
    while data and not connection.closing:
        view = connection.get_buffer()
        n = min(len(view), len(data))
        view[:n] = data[:n]
        connection.received(n, 0.0)
        data = data[n:]


def make_state() -> TrainerState:
    return TrainerState(run="run", name="node", peer=b"t" * 16, inbox_bytes=INBOX_BYTES)


def make_link(state: TrainerState, channels: Iterable[int]) -> TrainerConnection:
    made = TrainerConnection(state, silent_s=10, heartbeat_s=3)
    made.connected(Identity("Server"), 0.0)
    give(made, Welcome(1, 1, 1 << 20, MESSAGE_BYTES, 1 << 20, 3.0))
    for channel in channels:
        give(made, StreamOpened(channel, b"%16d" % channel, "robot"))
    made.to_send(0.0)
    return made


@pytest.fixture
def link() -> TrainerConnection:
    return make_link(make_state(), range(100))


def begin(link: TrainerConnection, channel: int) -> None:
    give_frame(link, channel, FIRST, SAMPLES_HEAD.pack(0, 0, 0, 1, MESSAGE_BYTES) + b"x")


def test_of_messages_that_begin_on_many_channels_one_is_held(link: TrainerConnection) -> None:
    for channel in range(100):
        begin(link, channel)
    assert not link.closing
    held = [receiver for receiver in link.trainer.receivers.values() if receiver._body is not None]
    assert [receiver.stream for receiver in held] == [b"%16d" % 99]
    give_frame(link, 0, 0, b"x")
    assert "continued without a beginning" in str(link.reason)


def held(state: TrainerState) -> int:
    return sum(receiver._body is not None for receiver in state.receivers.values())


@pytest.mark.parametrize("channel", [99, 1_000])
def test_a_message_is_not_held_while_another_channel_continues(link: TrainerConnection, channel: int) -> None:
    give(link, StreamClosed(99, False))
    for first in range(50):
        begin(link, first)
        assert held(link.trainer) == 1
        give_frame(link, channel, 0, b"x")
        assert held(link.trainer) == 0
    assert not link.closing


def test_the_message_of_a_stream_that_ends_is_not_held(link: TrainerConnection) -> None:
    for channel in range(50):
        begin(link, channel)
        assert held(link.trainer) == 1
        give(link, StreamClosed(channel, False))
        assert held(link.trainer) == 0
    assert not link.closing


def test_the_message_of_a_link_that_ends_is_not_held() -> None:
    state = make_state()
    for channel in range(50):
        link = make_link(state, [channel])
        begin(link, channel)
        assert held(state) == 1
        link.lost(None, 0.0)
        assert held(state) == 0


@pytest.mark.parametrize("again", [(100, b"%16d" % 5), (5, b"n" * 16)], ids=["stream", "channel"])
def test_a_stream_has_one_channel_and_a_channel_one_stream(link: TrainerConnection, again: tuple[int, bytes]) -> None:
    give(link, StreamClosed(5, False))
    give(link, StreamOpened(5, b"%16d" % 5, "robot"))
    assert not link.closing
    give(link, StreamOpened(*again, "robot"))
    assert "announced" in str(link.reason)


def test_samples_beyond_the_credit_end_the_link(link: TrainerConnection) -> None:
    body = bytes(50_000)
    for number in range(1_000):
        give_frame(link, 0, FIRST | LAST, SAMPLES_HEAD.pack(number, 0, number, 1, len(body)) + body)
        if link.closing:
            break
    assert "granted credit" in str(link.reason)
    assert link.trainer.inbox.held_bytes <= 2 * INBOX_BYTES
    assert link.trainer.inbox.held_bytes > INBOX_BYTES - len(body)
