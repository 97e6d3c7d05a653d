"""A trainer that forgets streams recognises their replay, and one member makes it forget its own streams only."""

from __future__ import annotations

import struct

import pytest

from tests.networking.end_to_end.ends import Ends, certificate, verifier
from tests.networking.test_unread_answers import give
from tmrl_core.networking.end_to_end.identity import Signer
from tmrl_core.networking.protocol.connection import Identity
from tmrl_core.networking.protocol.delivery import CommittedOffset
from tmrl_core.networking.protocol.messages import StreamClosed, StreamOpened, Welcome
from tmrl_core.networking.trainer import Member, TrainerConnection, TrainerState
from tmrl_core.networking.trainer import connection as trainer_peer
from tmrl_core.networking.trainer.forgotten_streams import ForgottenStreams
from tmrl_core.networking.worker.seal import WorkerSeal

START = 1_800_000_000


def stream(holder: bytes, start: int, key: int = 1) -> bytes:
    return struct.pack(">I4sQ", start, holder, key)


def test_the_oldest_streams_of_the_holder_with_the_most_are_forgotten() -> None:
    thief = [stream(b"thif", START + n, n) for n in range(10)]
    honest = [stream(bytes([n]) * 4, START - 1_000, n) for n in range(1, 20)]
    known = [*honest, *reversed(thief)]
    assert ForgottenStreams().choose(known, known, 4) == thief[:4]
    assert ForgottenStreams().choose(known, [*honest, thief[7]], 1) == [thief[7]]


def test_random_ids_are_forgotten_first() -> None:
    random = [struct.pack(">IQI", n, n, n) for n in range(3)]
    known = [stream(b"thif", START), stream(b"thif", START + 1), *random]
    assert ForgottenStreams().choose(known, known, 3) == random


def test_only_streams_that_are_not_newer_may_be_replays() -> None:
    forgotten = ForgottenStreams()
    assert not forgotten.may_hold(stream(b"robo", START))
    forgotten.add(stream(b"robo", START))
    forgotten.add(stream(b"robo", START - 5))
    forgotten.add(stream(b"rand", 5))
    assert forgotten.may_hold(stream(b"robo", START, key=2))
    assert not forgotten.may_hold(stream(b"robo", START + 1))
    assert not forgotten.may_hold(stream(b"othr", START))
    assert not forgotten.may_hold(stream(b"rand", 4))


def test_checkpoints_hold_it_among_the_offsets() -> None:
    forgotten, restored = ForgottenStreams(), ForgottenStreams()
    forgotten.add(stream(b"robo", START))
    assert [restored.restore(*mark) for mark in forgotten.marks.items()] == [True]
    assert restored.may_hold(stream(b"robo", START))
    for other in (stream(b"robo", START), stream(b"robo", 0), b"", b"short", bytes(17)):
        assert not restored.restore(other, 5)


class Server:
    """A hostile Server with a trainer's link, and the workers whose streams it has seen."""

    def __init__(self, **kept: object) -> None:
        self.ends = Ends()
        self.state = TrainerState(
            run="run",
            name="node",
            peer=b"t" * 16,
            inbox_bytes=1 << 20,
            seal=self.ends.trainer,
            **kept,  # type: ignore[arg-type]
        )
        self.link = TrainerConnection(self.state, silent_s=10, heartbeat_s=3)
        self.link.connected(Identity("Server"), 0.0)
        give(self.link, Welcome(1, 1, 1 << 20, 1 << 20, 1 << 20, 3.0))
        self.channel = 0

    def open_and_close(self, worker: WorkerSeal, stream_id: bytes) -> None:
        self.channel += 1
        give(self.link, StreamOpened(self.channel, stream_id, "label", worker.record(stream_id, b"")))
        give(self.link, StreamClosed(self.channel, True))
        self.link.to_send(0.0)
        assert not self.link.closing


def worker(name: str, start: int) -> WorkerSeal:
    signed = certificate(name=name)
    made = WorkerSeal(
        "run", Signer(signed.certificate, signed.key), verifier(), mode="authenticate", clock=lambda: start
    )
    return made


@pytest.mark.parametrize("clock", [START - 50_000, 0])
def test_a_stolen_bundle_cannot_make_a_trainer_forget_others(monkeypatch: pytest.MonkeyPatch, clock: int) -> None:
    monkeypatch.setattr(trainer_peer, "_FORGOTTEN_STREAMS", 32)
    server = Server()
    robot = worker("robot", clock)
    honest = robot.new_stream()
    server.open_and_close(robot, honest)
    first = b""
    for number in range(100):
        thief = worker("thief", START + number)
        stolen = thief.new_stream()
        first = first or stolen
        server.open_and_close(thief, stolen)
    assert honest in server.state.receivers
    assert first not in server.state.receivers
    assert len(server.state.receivers) <= 32
    assert server.ends.trainer.forged == 0


def test_a_forgotten_stream_is_refused_also_after_a_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainer_peer, "_FORGOTTEN_STREAMS", 32)
    server = Server()
    robots = [worker("robot", START + number) for number in range(60)]
    streams = [robot.new_stream() for robot in robots]
    for robot, one in zip(robots, streams, strict=True):
        server.open_and_close(robot, one)
    assert streams[0] not in server.state.receivers
    restarted = Server(offsets=server.state.offsets)
    for again in (server, restarted):
        told: list[tuple[str, str]] = []
        again.ends.trainer._on_forged = lambda *attempt, told=told: told.append(attempt)
        again.open_and_close(robots[0], streams[0])
        assert streams[0] not in again.state.receivers
        assert again.ends.trainer.forged == 1
        assert "forgotten" in told[0][0]
        new = worker("robot", START + 1_000)
        one = new.new_stream()
        again.open_and_close(new, one)
        assert one in again.state.receivers
    assert all(isinstance(offset, CommittedOffset) for offset in restarted.state.offsets.values())


@pytest.mark.parametrize("authenticated", [True, False])
def test_streams_that_stay_are_not_searched_for_each_new_one(
    monkeypatch: pytest.MonkeyPatch, authenticated: bool
) -> None:
    monkeypatch.setattr(trainer_peer, "_FORGOTTEN_STREAMS", 64)
    searches: list[bytes] = []
    search = TrainerState._forget_streams

    def counted(self: TrainerState, newest: bytes) -> None:
        searches.append(newest)
        search(self, newest)

    monkeypatch.setattr(TrainerState, "_forget_streams", counted)
    seal = Ends().trainer if authenticated else None
    state = TrainerState(run="run", name="node", peer=b"t" * 16, inbox_bytes=1 << 20, seal=seal)
    for number in range(400):
        one = stream(b"wolf", START + number)
        state.members[one] = Member(one, "wolf", b"", 0.0)
        state.receiver(one)
    assert len(state.receivers) == 400
    assert len(searches) <= 400 / 4
    state.members.clear()
    state.receiver(stream(b"last", START))
    for number in range(5):
        state.receiver(stream(b"more", START + number))
    assert len(state.receivers) <= 65


class Fleet:
    """A trainer, and a Server that announces streams of workers without certificates."""

    def __init__(self, offsets: dict[bytes, CommittedOffset]) -> None:
        self.state = TrainerState(run="run", name="node", peer=b"t" * 16, inbox_bytes=1 << 20, offsets=offsets)
        self.connect()

    def connect(self) -> None:
        self.link = TrainerConnection(self.state, silent_s=10, heartbeat_s=3)
        self.link.connected(Identity("Server"), 0.0)
        give(self.link, Welcome(1, 1, 1 << 20, 1 << 20, 1 << 20, 3.0))
        self.channel = 0

    def announce(self, stream_id: bytes) -> int:
        self.channel += 1
        give(self.link, StreamOpened(self.channel, stream_id, "label", b""))
        self.link.to_send(0.0)
        assert not self.link.closing
        return self.channel


def numbered(number: int) -> bytes:
    return b"worker" + number.to_bytes(10, "big")


@pytest.mark.parametrize("restarted", [False, True], ids=["link lost", "trainer restarted"])
def test_a_fleet_that_comes_back_finds_its_offsets_however_large_it_is(
    monkeypatch: pytest.MonkeyPatch, restarted: bool
) -> None:
    monkeypatch.setattr(trainer_peer, "_FORGOTTEN_STREAMS", 32)
    offsets = {numbered(number): CommittedOffset(number + 1, number) for number in range(200)}
    fleet = Fleet(offsets)
    if not restarted:
        for one in offsets:
            fleet.announce(one)
        fleet.link.lost(None, 1.0)
        fleet.connect()
    for number in range(1_000, 1_100):  # new workers are faster than those of the fleet
        fleet.announce(numbered(number))
    for one in offsets:
        fleet.announce(one)
        assert fleet.state.receivers[one].offset == offsets[one]


def test_a_worker_whose_link_was_lost_finds_its_offset_beside_many_that_left_earlier(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(trainer_peer, "_FORGOTTEN_STREAMS", 32)
    first = numbered(0)
    fleet = Fleet({first: CommittedOffset(7, 7)})
    channel = fleet.announce(first)
    for number in range(1, 300):
        give(fleet.link, StreamClosed(fleet.announce(numbered(number)), False))
    assert len(fleet.state.receivers) <= 32 + 16 + 1
    give(fleet.link, StreamClosed(channel, False))
    for number in range(300, 310):
        give(fleet.link, StreamClosed(fleet.announce(numbered(number)), False))
    assert fleet.state.receivers[first].offset == CommittedOffset(7, 7)


def test_a_server_that_loses_its_streams_again_and_again_cannot_fill_the_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(trainer_peer, "_FORGOTTEN_STREAMS", 32)
    monkeypatch.setattr(trainer_peer, "MAX_MEMBERS", 50)
    fleet = Fleet({})
    for turn in range(20):
        for number in range(50):
            fleet.announce(numbered(1_000 * turn + number))
        assert len(fleet.state.receivers) <= 50 + 2 * 32
        fleet.link.lost(None, 1.0)
        fleet.connect()
