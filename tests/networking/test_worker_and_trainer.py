"""What worker and trainer remember of each other: while both are there, and after one has gone. Sans-I/O."""

from __future__ import annotations

from typing import Any

import pytest

from tmrl_core.errors import LocalProtocolError
from tmrl_core.networking.protocol.connection import Connection, Identity
from tmrl_core.networking.protocol.delivery import CommittedOffset, StreamReceiver, StreamSender
from tmrl_core.networking.protocol.messages import (
    MAX_NAME_CHARACTERS,
    MAX_WAITS_CHARACTERS,
    Blob,
    CloseStream,
    Control,
    Hello,
    OpenStream,
    PolicyUpdate,
    Progress,
    StreamClosed,
    StreamOpened,
    Waits,
    Welcome,
    check_update_head,
    control_frame,
)
from tmrl_core.networking.relay import Relay
from tmrl_core.networking.trainer import TrainerConnection, TrainerState
from tmrl_core.networking.trainer import connection as trainer_peer
from tmrl_core.networking.worker import WorkerConnection, WorkerState

LACK = Progress(samples=5, updates=5, lack="1 sample for the next update")


class Place:
    """A relay, a worker and a trainer; what one says is heard at once, or not before `run`."""

    def __init__(self) -> None:
        self.relay = Relay()
        self.pairs: list[tuple[Connection, Connection]] = []
        self.worker = WorkerState(run="run", name="a", peer=b"w" * 16)
        self.worker.add_stream(StreamSender(b"s" * 16, queue_bytes=1 << 20, drop_oldest=False), b"")
        self.worker_pair = self.connect(WorkerConnection(self.worker, silent_s=10, heartbeat_s=3))

    def connect(self, client: Connection) -> tuple[Connection, Connection]:
        pair = (client, self.relay.connection())
        for end in pair:
            end.connected(Identity("there"), 0.0)
        self.pairs.append(pair)
        self.run()
        return pair

    def run(self, now: float = 0.0) -> None:
        moved = True
        while moved:
            moved = sum(deliver(*ends, now) for pair in self.pairs for ends in (pair, pair[::-1])) > 0

    def trainer(self, peer: bytes = b"t") -> tuple[TrainerConnection, Connection]:
        state = TrainerState(run="run", name="hpc", peer=peer * 16, inbox_bytes=1 << 20)
        client, server = self.connect(TrainerConnection(state, silent_s=10, heartbeat_s=3))
        assert isinstance(client, TrainerConnection)
        return client, server

    def report(self, trainer: TrainerConnection, progress: Progress) -> None:
        trainer.trainer.progress = progress
        trainer.report()

    def kill(self, pair: tuple[Connection, Connection]) -> None:
        self.pairs.remove(pair)
        for end in pair:
            end.lost(None, 0.0)


def deliver(sender: Connection, receiver: Connection, now: float = 0.0) -> bool:
    data = b"".join(sender.to_send(now))
    rest = data
    while rest and not receiver.closing:
        view = receiver.get_buffer()
        n = min(len(view), len(rest))
        view[:n] = rest[:n]
        rest = rest[n:]
        receiver.received(n, now)
    return bool(data)


def say(link: Connection, *messages: Control) -> None:
    """Have an end of a link hear these."""
    for message in messages:
        rest = control_frame(message)
        while rest and not link.closing:
            view = link.get_buffer()
            n = min(len(view), len(rest))
            view[:n] = rest[:n]
            rest = rest[n:]
            link.received(n, 0.0)


@pytest.fixture
def place() -> Place:
    return Place()


def test_the_wait_reason_of_a_killed_trainer_is_cleared(place: Place) -> None:
    trainer = place.trainer()
    place.report(trainer[0], LACK)
    place.run()
    assert place.worker.progress == LACK
    place.kill(trainer)
    place.run()
    assert place.worker.progress == Progress(samples=5, updates=5)


def join_49(place: Place) -> None:
    for number in range(49):
        worker = WorkerState(run="run", name=f"w{number}", peer=b"w%015d" % number)
        worker.add_stream(StreamSender(b"s%015d" % number, queue_bytes=1 << 20, drop_oldest=False), b"")
        place.connect(WorkerConnection(worker, silent_s=10, heartbeat_s=3))


@pytest.mark.parametrize("lacks", ["", "samples"])
def test_many_workers_hear_of_each_round_seldom(place: Place, lacks: str) -> None:
    join_49(place)
    trainer = place.trainer()
    heard: list[Progress] = []
    for number in range(111):
        place.report(trainer[0], Progress(samples=number, lack=lacks * (number % 2)))
        place.run(number / 100)
        if not heard or place.worker.progress != heard[-1]:
            heard.append(place.worker.progress)
    assert len(heard) == 6  # one at once, then five a second to each of 50 workers
    assert heard[-1].samples >= 90


def test_many_workers_hear_at_once_of_a_turn_and_soon_of_a_lack(place: Place) -> None:
    join_49(place)
    trainer = place.trainer()
    reported = Progress(samples=5, updates=5)
    for change in (reported, Progress(turn=(1, 1)), Progress(turn=(1, 1), lack="all", gave_up=True)):
        place.report(trainer[0], change)
        place.run()
        assert place.worker.progress == change
    place.report(trainer[0], reported)
    place.run()
    place.report(trainer[0], LACK)
    place.run()
    assert place.worker.progress == reported
    assert not trainer[0].all_sent
    due = trainer[0].deadline()
    assert due == pytest.approx(0.1)
    trainer[0].tick(due)
    place.run(due)
    assert place.worker.progress == LACK
    assert trainer[0].all_sent


def test_the_wait_reason_is_cleared_even_if_the_last_report_was_not_sent_yet(place: Place) -> None:
    trainer = place.trainer()
    place.report(trainer[0], LACK)
    deliver(*trainer)
    place.kill(trainer)
    place.run()
    assert place.worker.progress == Progress(samples=5, updates=5)


def test_the_reason_of_a_trainer_that_gave_up_stays(place: Place) -> None:
    trainer = place.trainer()
    parting = Progress(samples=5, updates=5, lack=LACK.lack, gave_up=True)
    place.report(trainer[0], parting)
    deliver(*trainer)
    place.kill(trainer)
    place.run()
    assert place.worker.progress == parting


def test_the_reason_is_cleared_by_another_trainer(place: Place) -> None:
    trainer = place.trainer()
    place.report(trainer[0], Progress(lack="all", gave_up=True))
    place.run()
    place.kill(trainer)
    place.run()
    place.trainer(b"u")
    assert place.worker.progress == Progress()


def test_the_wait_reason_of_the_next_trainer_is_stored(place: Place) -> None:
    first = place.trainer()
    place.report(first[0], LACK)
    place.run()
    place.kill(first)
    place.run()
    second = place.trainer(b"u")
    place.report(second[0], LACK)
    place.run()
    assert place.worker.progress == LACK


def test_a_refusal_with_a_lost_acknowledgement_survives_a_restart(place: Place) -> None:
    sender, _ = place.worker.senders[0]
    for _ in range(3):
        sender.offer([b"x"], 10)
    client, server = place.trainer()
    state = client.trainer
    taken = state.take()
    assert len(taken) == 3
    state.acknowledge(taken[0])
    state.acknowledge(taken[1], "shape (3,) where (4,) is held")
    place.kill((client, server))  # before it has told anybody
    assert state.refusals == {sender.stream: ((1, "shape (3,) where (4,) is held"),)}
    restored = TrainerState(
        run="run", name="hpc", peer=b"u" * 16, inbox_bytes=1 << 20, offsets=state.offsets, refusals=state.refusals
    )
    place.connect(TrainerConnection(restored, silent_s=10, heartbeat_s=3))
    assert (sender.samples_acked, sender.samples_refused) == (10, 10)
    for one in restored.take():
        restored.acknowledge(one)
    place.pairs[-1][0].wake()
    place.run()
    assert (sender.samples_acked, sender.samples_refused) == (20, 10)
    assert list(sender.refusals) == [(1, "shape (3,) where (4,) is held")]


def test_the_latest_refusals_up_to_the_offset_are_stored(place: Place) -> None:
    receiver = StreamReceiver(b"s" * 16, CommittedOffset(30, 30))
    receiver.remember((number, "no") for number in range(40))
    assert [number for number, _ in receiver.refusals] == list(range(10, 30))


def test_without_a_server_there_is_no_wait_reason(place: Place) -> None:
    trainer = place.trainer()
    place.report(trainer[0], LACK)
    place.run()
    place.kill(place.worker_pair)
    assert place.worker.progress.lack == ""
    place.worker_pair = place.connect(WorkerConnection(place.worker, silent_s=10, heartbeat_s=3))
    assert place.worker.progress == LACK, "the Server tells it again"


@pytest.mark.parametrize("policies", [{"policy": b"weights"}, {"policy": Blob("x", "text")}, [1]])  # type: ignore[arg-type]
def test_unreadable_policies_are_not_published(policies: Any) -> None:
    state = TrainerState(run="run", name="hpc", peer=b"t" * 16, inbox_bytes=1 << 20)
    state.publish(PolicyUpdate((0, 0), {"policy": Blob("x", b"good")}))
    with pytest.raises(LocalProtocolError, match="workers could not decode it"):
        state.publish(PolicyUpdate((0, 0), policies))
    assert state.counter == state.published == 1
    assert state.policy is not None
    check_update_head(state.policy[1])


def test_streams_that_ended_are_forgotten_before_those_that_may_come_back(place: Place) -> None:
    place.worker.senders[0][0].offer([b"x"], 10)
    trainer, _ = place.trainer()
    state = trainer.trainer
    (taken,) = state.take()
    state.acknowledge(taken)
    place.kill(place.worker_pair)
    place.run()
    link = place.relay.connection()
    link.connected(Identity("elsewhere"), 0.0)
    say(link, Hello((1,), "worker", "", "run", "b", b"x" * 16))
    for number in range(5_000):
        say(link, OpenStream(0, number.to_bytes(16, "big"), "short"), CloseStream(0))
        link.to_send(0.0)
        place.run()
    assert not link.closing
    assert state.receivers[b"s" * 16].next_number == 1
    assert 1_000 < len(state.receivers) < 5_000


def test_a_server_that_announces_endless_streams_cannot_fill_the_trainers_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(trainer_peer, "MAX_SIGNATURES_BYTES", 100_000)
    monkeypatch.setattr(trainer_peer, "MAX_MEMBERS", 50)
    state = TrainerState(run="run", name="hpc", peer=b"t" * 16, inbox_bytes=1 << 20)
    link = TrainerConnection(state, silent_s=10, heartbeat_s=3)
    link.connected(Identity("there"), 0.0)
    say(link, Welcome(1, 1, 1 << 20, 1 << 20, 1 << 20, 3.0))
    wide = "\N{GRINNING FACE}" * 1_000
    for number in range(1, 51):
        say(link, StreamOpened(number, bytes([number]) * 16, wide, bytes(30_000)), Waits(number, wide))
    held = sum(len(member.signature) for member in state.members.values())
    assert (len(state.members), held) == (50, 90_000)
    assert {len(member.name) for member in state.members.values()} == {MAX_NAME_CHARACTERS}
    assert {len(text) for text in state.waits.values()} == {MAX_WAITS_CHARACTERS}
    say(link, StreamClosed(1, True), StreamOpened(51, b"n" * 16, "new", bytes(30_000)))
    assert len(state.members[b"n" * 16].signature) == 30_000, "what has left counts no more"
    assert link.reason is None
    say(link, StreamOpened(52, b"o" * 16, "other", b""))
    assert "more than 50 streams" in str(link.reason)


def test_a_flood_of_streams_without_samples_makes_a_trainer_forget_no_offset() -> None:
    honest = b"honest".ljust(16)
    offsets = {honest: CommittedOffset(3, 3)}
    state = TrainerState(run="run", name="t", peer=bytes(16), inbox_bytes=1_000, offsets=offsets)
    for number in range(10_000):
        state.receiver(b"wolf" + number.to_bytes(12, "big"))
    assert state.receivers[honest].offset == offsets[honest]
    assert len(state.receivers) <= trainer_peer._FORGOTTEN_STREAMS + 1


def test_messages_of_an_origin_with_too_many_arrive_later_and_in_order(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tmrl_core.networking.trainer.inbox.PENDING_BYTES", 10_000)
    monkeypatch.setattr("tmrl_core.networking.trainer.inbox.ALONE", 1)
    sender, _ = place.worker.senders[0]
    for _ in range(30):
        sender.offer([bytes(1_000)], 1)
    client, _ = place.trainer()
    state = client.trainer
    assert len(state.inbox) == 10
    now = 0.0
    taken: list[int] = []
    while len(taken) < 30:
        assert now < 60
        client.tick(now)
        place.run()
        if now % 2:
            assert len(state.inbox) <= 10
            for received in state.inbox.take(3_000):
                state.acknowledge(received)
                taken.append(received.number)
        now += 0.5
    assert taken == list(range(30))
    assert (state.gap_messages, state.messages_received) == (0, 30)
