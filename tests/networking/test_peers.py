"""What a worker believes of a trainer: while there is one, and after it has gone. Sans-I/O."""

from __future__ import annotations

import pytest

from tmrl_core.networking.connection import Connection, Identity
from tmrl_core.networking.delivery import StreamSender
from tmrl_core.networking.messages import Progress
from tmrl_core.networking.peers import TrainerConnection, TrainerState, WorkerConnection, WorkerState
from tmrl_core.networking.relay import Relay

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

    def run(self) -> None:
        moved = True
        while moved:
            moved = sum(deliver(*ends) for pair in self.pairs for ends in (pair, pair[::-1])) > 0

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


def deliver(sender: Connection, receiver: Connection) -> bool:
    data = b"".join(sender.to_send(0.0))
    rest = data
    while rest and not receiver.closing:
        view = receiver.get_buffer()
        n = min(len(view), len(rest))
        view[:n] = rest[:n]
        rest = rest[n:]
        receiver.received(n, 0.0)
    return bool(data)


@pytest.fixture
def place() -> Place:
    return Place()


def test_a_trainer_that_is_killed_lacks_nothing_any_more(place: Place) -> None:
    trainer = place.trainer()
    place.report(trainer[0], LACK)
    place.run()
    assert place.worker.progress == LACK
    place.kill(trainer)
    place.run()
    assert place.worker.progress == Progress(samples=5, updates=5)


def test_nor_when_its_last_word_has_not_left_the_server_yet(place: Place) -> None:
    trainer = place.trainer()
    place.report(trainer[0], LACK)
    deliver(*trainer)
    place.kill(trainer)
    place.run()
    assert place.worker.progress == Progress(samples=5, updates=5)


def test_what_made_a_trainer_give_up_stays_known(place: Place) -> None:
    trainer = place.trainer()
    parting = Progress(samples=5, updates=5, lack=LACK.lack, gave_up=True)
    place.report(trainer[0], parting)
    deliver(*trainer)
    place.kill(trainer)
    place.run()
    assert place.worker.progress == parting


def test_until_there_is_another_trainer(place: Place) -> None:
    trainer = place.trainer()
    place.report(trainer[0], Progress(lack="all", gave_up=True))
    place.run()
    place.kill(trainer)
    place.run()
    place.trainer(b"u")
    assert place.worker.progress == Progress()


def test_what_the_next_trainer_lacks_is_believed(place: Place) -> None:
    first = place.trainer()
    place.report(first[0], LACK)
    place.run()
    place.kill(first)
    place.run()
    second = place.trainer(b"u")
    place.report(second[0], LACK)
    place.run()
    assert place.worker.progress == LACK


def test_without_a_server_nobody_lacks_anything(place: Place) -> None:
    trainer = place.trainer()
    place.report(trainer[0], LACK)
    place.run()
    place.kill(place.worker_pair)
    assert place.worker.progress.lack == ""
    place.worker_pair = place.connect(WorkerConnection(place.worker, silent_s=10, heartbeat_s=3))
    assert place.worker.progress == LACK, "the Server tells it again"
