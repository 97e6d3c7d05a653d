"""Messages that stand for more than their bytes do not keep a trainer from the others."""

from __future__ import annotations

import random

import pytest

from tests.networking.test_unread_answers import give
from tests.networking.trainer.test_greedy_server import give_frame
from tests.networking.trainer.test_own_incarnation import said
from tmrl_core.networking.protocol.connection import Identity
from tmrl_core.networking.protocol.delivery import Received
from tmrl_core.networking.protocol.framing import FIRST, HEADER, LAST
from tmrl_core.networking.protocol.messages import SAMPLES_HEAD, Credit, StreamClosed, StreamOpened, Welcome
from tmrl_core.networking.trainer import TrainerConnection, TrainerState
from tmrl_core.networking.trainer.inbox import ALONE, PENDING_BYTES, TAKEN_BYTES, TAKEN_MESSAGES, Inbox
from tmrl_core.networking.trainer.postponed import ANSWER_S, Postponed

GIANT = 16 << 20


def message(origin: str, number: int, cost: int) -> Received:
    return Received(origin.encode(), number, 1, memoryview(cost.to_bytes(8, "big")), 100)


def inbox_of_costs() -> Inbox:
    inbox = Inbox()
    inbox.cost_of = lambda payload: int.from_bytes(payload, "big")
    return inbox


def append(inbox: Inbox, origin: str, number: int, cost: int) -> None:
    inbox.append(message(origin, number, cost), origin)


def test_a_call_takes_a_bounded_cost_and_at_least_one_message() -> None:
    inbox = inbox_of_costs()
    for number in range(20):
        append(inbox, "thief", number, GIANT)
    assert [one.number for one in inbox.take()] == list(range(TAKEN_BYTES // GIANT))
    assert [one.number for one in inbox.take(1)] == [4]
    assert (len(inbox), inbox.held_bytes) == (15, 1_500)


def test_a_call_takes_a_bounded_number_of_messages() -> None:
    inbox = inbox_of_costs()
    for number in range(2 * TAKEN_MESSAGES + 1):
        append(inbox, f"robot{number % 2}", number, 1)
    taken = [len(inbox.take()) for _ in range(4)]
    assert taken == [TAKEN_MESSAGES, TAKEN_MESSAGES, 1, 0]


def test_messages_that_come_later_do_not_count_as_earlier_ones() -> None:
    inbox = inbox_of_costs()
    for number in range(4):
        append(inbox, f"robot{number % 2}", number, 1)
    first = inbox.appended
    for number in range(4, 8):
        append(inbox, f"robot{number % 2}", number, 1)
    seen = []
    while inbox.has_of_first(first):
        seen += [one.number for one in inbox.take(1)]
    assert sorted(seen)[:4] == [0, 1, 2, 3]
    assert inbox
    assert not inbox.has_of_first(0)


def test_nobody_waits_for_the_giants_of_another_origin() -> None:
    inbox = inbox_of_costs()
    for number in range(60):
        append(inbox, "thief", number, GIANT)
    for number in range(100):
        append(inbox, "honest", number, 150_000)
    taken = [one.stream for one in inbox.take()]
    assert taken.count(b"honest") == 100
    assert taken.count(b"thief") <= 5


def test_tiny_messages_have_a_minimum_cost_in_their_turns() -> None:
    inbox = inbox_of_costs()
    for number in range(2 * TAKEN_MESSAGES):
        append(inbox, "thief", number, 62)
    for number in range(TAKEN_MESSAGES):
        append(inbox, "honest", number, 50_000)
    taken = [one.stream for one in inbox.take()]
    assert taken.count(b"honest") == TAKEN_MESSAGES // 2
    assert inbox._pending["thief"] == (2 * TAKEN_MESSAGES - TAKEN_MESSAGES // 2) * 62


def test_an_origin_that_always_has_one_giant_gets_no_more_than_its_turn() -> None:
    inbox = inbox_of_costs()
    honest = 0
    for number in range(50):
        append(inbox, "thief", number, GIANT)
        for _ in range(20):
            append(inbox, "honest", honest, 1 << 20)
            honest += 1
        inbox.take(GIANT)
    waiting = sum(one.stream == b"honest" for one in inbox)
    assert honest - waiting >= 0.45 * 50 * GIANT / (1 << 20)


def test_an_origin_whose_messages_would_take_minutes_is_postponed() -> None:
    inbox = inbox_of_costs()
    number = 0
    giant = message("thief", 0, GIANT).payload
    while inbox.admits("thief", giant):
        append(inbox, "thief", number, GIANT)
        number += 1
    assert number == PENDING_BYTES // GIANT
    assert inbox.admits("honest", giant)
    assert inbox.is_busy("thief")
    assert not inbox.is_busy("honest")
    while inbox.is_busy("thief"):
        assert inbox.take()
    assert inbox.admits("thief", giant)


def test_an_origin_without_others_may_have_more_in_the_inbox() -> None:
    inbox = inbox_of_costs()
    inbox.shared = False
    giant = message("robot", 0, GIANT).payload
    for number in range(ALONE * PENDING_BYTES // GIANT):
        assert inbox.admits("robot", giant)
        append(inbox, "robot", number, GIANT)
    assert not inbox.admits("robot", giant)
    inbox.shared = True
    while inbox.is_busy("robot"):
        inbox.take()
    assert inbox.admits("robot", giant)


def test_after_a_wait_even_the_most_expensive_message_is_admitted() -> None:
    inbox = inbox_of_costs()
    for number in range(PENDING_BYTES // GIANT // 2):
        append(inbox, "robot", number, GIANT)
    assert inbox.admits("robot", message("robot", 0, PENDING_BYTES).payload)


def test_postponed_streams_of_an_origin_are_requested_one_at_a_time() -> None:
    inbox = inbox_of_costs()
    postponed = Postponed(inbox)
    for channel in range(4):
        postponed.add(channel, "robot", 0.0)
    postponed.add(9, "other", 0.0)
    append(inbox, "robot", 0, PENDING_BYTES)
    assert postponed.take_due(0.0) == [9]
    inbox.take()
    assert postponed.take_due(0.1) == [0]
    assert postponed.take_due(0.2) == []
    postponed.discard(0)  # it has arrived
    postponed.discard(2)  # its channel has ended
    assert postponed.take_due(0.3) == [1]
    postponed.add(1, "robot", 0.4)  # not admitted
    assert postponed.take_due(0.5) == [3]
    assert postponed.due_at == 0.5 + ANSWER_S
    assert postponed.take_due(0.4 + ANSWER_S) == []
    assert postponed.take_due(0.5 + ANSWER_S) == [1], "the stream before it has nothing to send"
    for channel in (1, 3, 9):
        postponed.discard(channel)
    assert postponed.take_due(9.0) == []
    assert postponed.due_at == float("inf")
    assert not any((postponed._waiting, postponed._requested, postponed._origins))


def test_one_message_is_admitted_however_much_it_stands_for() -> None:
    assert inbox_of_costs().admits("robot", message("robot", 0, 5 * PENDING_BYTES).payload)


@pytest.mark.parametrize("seed", range(20))
def test_each_message_is_taken_once_and_in_order_for_its_origin(seed: int) -> None:
    chance = random.Random(seed)
    inbox = inbox_of_costs()
    sent, taken = dict.fromkeys("abc", 0), dict.fromkeys("abc", 0)
    for _ in range(500):
        for origin in sent:
            if chance.random() < 0.4:
                append(inbox, origin, sent[origin], chance.choice([1, 1_000, GIANT]))
                sent[origin] += 1
        if chance.random() < 0.3:
            for one in inbox.take(chance.choice([1, TAKEN_BYTES])):
                assert one.number == taken[one.stream.decode()]
                taken[one.stream.decode()] += 1
        assert bool(inbox) == (sent != taken)
        assert len(inbox) == len(list(inbox)) == sum(sent.values()) - sum(taken.values())
    while inbox:
        for one in inbox.take():
            taken[one.stream.decode()] += 1
    assert (sent, inbox.held_bytes) == (taken, 0)


def test_origins_that_come_and_go_are_not_remembered_forever() -> None:
    inbox = inbox_of_costs()
    for number in range(20_000):
        append(inbox, f"robot{number}", 0, 1_000)
        inbox.take()
    assert len(inbox._turns) <= 4_097


def test_the_bytes_of_an_ignored_message_are_credit_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tmrl_core.networking.trainer.inbox.PENDING_BYTES", 0)
    state = TrainerState(run="run", name="node", peer=b"t" * 16, inbox_bytes=1 << 20)
    link = TrainerConnection(state, silent_s=10, heartbeat_s=3)
    link.connected(Identity("Server"), 0.0)
    give(link, Welcome(1, 1, 1 << 20, 1 << 18, 1 << 20, 3.0))
    give(link, StreamOpened(1, b"s" * 16, "robot"))
    said(link)
    parts = [SAMPLES_HEAD.pack(number, number, number, 1, 9) + bytes(9) for number in range(2)]
    for part in parts:
        give_frame(link, 1, FIRST | LAST, part)
    parts += [SAMPLES_HEAD.pack(2, 2, 2, 1, 200_000), *[bytes(50_000)] * 3]
    for flags, part in zip((FIRST, 0, 0, 0), parts[2:], strict=True):
        give_frame(link, 1, flags, part)
    (credit,) = (one for one in said(link) if isinstance(one, Credit))
    assert credit.limit == sum(HEADER.size + len(part) for part in parts) - state.inbox.held_bytes + state.inbox_bytes


def test_a_link_knows_whether_several_origins_share_the_inbox() -> None:
    state = TrainerState(run="run", name="node", peer=b"t" * 16, inbox_bytes=1 << 20)
    link = TrainerConnection(state, silent_s=10, heartbeat_s=3)
    link.connected(Identity("Server"), 0.0)
    give(link, Welcome(1, 1, 1 << 20, 1 << 18, 1 << 20, 3.0))
    shared: list[bool] = []
    for label in ("robot", "robot", "other"):
        give(link, StreamOpened(len(shared), bytes([len(shared)]) * 16, label))
        shared.append(state.inbox.shared)
    give(link, StreamClosed(2, True))
    assert [*shared, state.inbox.shared] == [False, False, True, False]


@pytest.mark.parametrize("labels", [("robot-2", "robot"), ("", "robot")])  # the Server numbers equal labels
def test_a_stream_that_returns_under_another_label_stays_in_order(labels: tuple[str, str]) -> None:
    state = TrainerState(run="run", name="node", peer=b"t" * 16, inbox_bytes=1 << 20)
    link = TrainerConnection(state, silent_s=10, heartbeat_s=3)
    link.connected(Identity("Server"), 0.0)
    give(link, Welcome(1, 1, 1 << 20, 1 << 18, 1 << 20, 3.0))
    for channel, label in enumerate(labels):
        give(link, StreamOpened(channel, b"s" * 16, label))
        for number in range(3 * channel, 3 * channel + 3):
            give_frame(link, channel, FIRST | LAST, SAMPLES_HEAD.pack(number, 0, number, 1, 9) + bytes(9))
        give(link, StreamClosed(channel, False))
    assert [one.number for one in state.take()] == list(range(6))
