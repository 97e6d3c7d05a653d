"""What an observer is told of the Server, that it disturbs nobody, and that it can say nothing else. Sans-I/O."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import pytest

from tests.networking.relay.test_one_principal import Place
from tmrl_core.errors import RefusedError, RemoteProtocolError
from tmrl_core.networking.observer import ObserverConnection, ObserverState
from tmrl_core.networking.protocol.connection import Connection, Identity
from tmrl_core.networking.protocol.delivery import StreamSender
from tmrl_core.networking.protocol.framing import FIRST, HEADER, LAST, Kind
from tmrl_core.networking.protocol.messages import (
    Ack,
    Blob,
    CloseStream,
    Control,
    Credit,
    Direct,
    Hello,
    OpenStream,
    PolicyUpdate,
    Report,
    Resume,
    StatusPage,
    StatusRequest,
    Want,
    Welcome,
    control_frame,
    encode_body,
)
from tmrl_core.networking.protocol.status import MAX_STATUS_BYTES, ServerStatus, rates
from tmrl_core.networking.relay import MemorySpool, Relay, RelaySettings, Spool
from tmrl_core.networking.relay.status import FRESH_S, MAX_OBSERVERS, snapshot
from tmrl_core.networking.spools.spool import SpooledMessage, StreamInfo
from tmrl_core.networking.trainer import TrainerConnection, TrainerState
from tmrl_core.networking.worker import WorkerConnection, WorkerState


class Wires:
    """A relay and its peers; `run` moves bytes until nothing moves."""

    def __init__(self, settings: RelaySettings | None = None, spool: Spool | None = None) -> None:
        self.relay = Relay(settings, spool=spool)
        self.pairs: list[tuple[Connection, Connection]] = []
        self.now = 100.0

    def connect(self, client: Connection, address: str = "192.0.2.1:7") -> None:
        server = self.relay.connection()
        client.connected(Identity("server"), self.now)
        server.connected(Identity(address), self.now)
        self.pairs.append((client, server))
        self.run()

    def run(self) -> None:
        moved = True
        while moved:
            moved = False
            for pair in self.pairs:
                for sender, receiver in (pair, pair[::-1]):
                    data = b"".join(sender.to_send(self.now))
                    moved = moved or bool(data)
                    while data and not receiver.closing:
                        view = receiver.get_buffer()
                        n = min(len(view), len(data))
                        view[:n] = data[:n]
                        data = data[n:]
                        receiver.received(n, self.now)

    def worker(self, name: str, *, run: str = "run", streams: int = 1) -> tuple[WorkerState, StreamSender]:
        peer = hashlib.sha256(name.encode()).digest()[:16]
        state = WorkerState(run=run, name=name, peer=peer)
        for index in range(streams):
            sender = StreamSender(index.to_bytes(4, "big") + peer[:12], queue_bytes=1 << 16, drop_oldest=True)
            state.add_stream(sender, b"")
        self.connect(WorkerConnection(state, silent_s=10, heartbeat_s=3))
        return state, state.senders[0][0]

    def trainer(self) -> TrainerState:
        state = TrainerState(run="run", name="hpc", peer=b"t" * 16, inbox_bytes=1 << 20)
        self.connect(TrainerConnection(state, silent_s=10, heartbeat_s=3))
        return state

    def observer(self) -> tuple[ObserverConnection, ObserverState]:
        state = ObserverState(run="", name="eye", peer=b"o" * 16)
        connection = ObserverConnection(state, silent_s=10, heartbeat_s=3)
        self.connect(connection)
        return connection, state

    def look(self) -> ServerStatus:
        self.now += FRESH_S
        connection, state = self.observer()
        connection.request_status()
        self.run()
        assert state.status is not None
        connection.close()
        self.run()
        return state.status


@pytest.fixture
def wires() -> Wires:
    return Wires()


def test_the_status_lists_peers_and_streams(wires: Wires) -> None:
    trainer = wires.trainer()
    _, sender = wires.worker("robot7")
    wires.relay.process = lambda: {"pid": 7, "uptime_s": 3.5, "memory_bytes": 1000, "secret": "no"}
    sender.offer([b"x" * 1000], 12)
    wires.run()
    trainer.publish(PolicyUpdate((0, 0), {"policy": Blob("text", b"weights")}))
    wires.pairs[0][0].wake()
    wires.run()
    wires.now += 2.0
    seen = wires.look()
    assert (seen.pid, seen.uptime_s, seen.memory_bytes, seen.memory_peak_bytes) == (7, 3.5, 1000, None)
    assert (seen.workers, seen.trainer, seen.incarnation) == (1, True, 1)
    assert seen.policy is not None
    assert (seen.policy.incarnation, seen.policy.counter, seen.policy.run) == (1, 1, "run")
    assert {peer.role: peer.name for peer in seen.peers} == {"trainer": "hpc", "worker": "robot7", "observer": "eye"}
    worker = next(peer for peer in seen.peers if peer.role == "worker")
    assert (worker.address, worker.run, worker.policy) == ("192.0.2.1:7", "run", (1, 1))
    assert worker.since_s == pytest.approx(2.2)
    assert worker.bytes_in > 1000
    (stream,) = seen.streams
    assert (stream.worker, stream.active, stream.epoch, stream.linked) == ("robot7", True, 1, True)
    assert (stream.relayed_messages, stream.relayed_samples, stream.position) == (1, 12, 12)
    assert stream.relayed_bytes > 1000
    assert stream.dropped_messages == 0
    assert seen.budgets["samples"].limit_bytes == wires.relay.settings.budget_bytes
    assert seen.budgets["samples"].reserved_bytes == wires.relay.flow.reserved_bytes
    assert seen.budgets["policy"].used_bytes == seen.policy.size_bytes > 0


def test_the_status_shows_queues_of_a_trainer_that_does_not_read(wires: Wires) -> None:
    wires.trainer()
    _, sender = wires.worker("a")
    wires.relay.flow._trainer_limit = 0  # what a trainer that has given no credit looks like
    sender.offer([b"x" * 500], 1)
    wires.run()
    (stream,) = wires.look().streams
    assert stream.queued_messages == 1
    assert stream.queued_bytes == wires.relay.flow.queued_bytes > 500
    assert stream.relayed_messages == 0


def test_the_status_lists_spooled_streams() -> None:
    spool = MemorySpool(1 << 20)
    wires = Wires(spool=spool)
    assert wires.look().spooled == ()
    spool.append(
        StreamInfo(b"s" * 16, "run", "robot7", b"", ""), number=0, floor=0, position=0, samples=12, body=[b"x" * 100]
    )
    seen = wires.look()
    (kept,) = seen.spooled
    assert (kept.worker, kept.run, kept.stream) == ("robot7", "run", (b"s" * 16).hex())
    assert (kept.messages, kept.samples, kept.bytes, kept.ended) == (1, 12, 100, False)
    assert (seen.budgets["spool"].used_bytes, seen.budgets["spool"].limit_bytes) == (spool.used_bytes, 1 << 20)
    more = b"y" * 50
    spool.append(
        StreamInfo(b"s" * 16, "run", "robot7", b"", ""), number=1, floor=0, position=12, samples=3, body=[more]
    )
    spool.drop(b"s" * 16, 1)
    assert [(one.messages, one.samples, one.bytes) for one in snapshot(wires.relay, 0.0).spooled] == [(1, 3, 50)]
    assert "spool" not in Wires().look().budgets


class Unread(list[SpooledMessage]):
    """Messages that are not looked at: there may be a million."""

    def __iter__(self) -> Iterator[SpooledMessage]:
        raise AssertionError


def test_the_work_of_the_status_does_not_grow_with_the_spooled_messages() -> None:
    spool = MemorySpool(1 << 20)
    for number in range(3):
        info = StreamInfo(b"s" * 16, "run", "robot7", b"", "")
        spool.append(info, number=number, floor=0, position=number, samples=1, body=[b"body"])
    kept = spool.streams[b"s" * 16]
    kept.messages = Unread(kept.messages)
    (seen,) = snapshot(Relay(spool=spool), 0.0).spooled
    assert (seen.messages, seen.samples, seen.bytes) == (3, 3, 12)


def test_messages_that_a_worker_dropped_are_counted_once(wires: Wires) -> None:
    _, sender = wires.worker("a")
    for _ in range(10):
        sender.offer([b"x" * 10_000], 1)  # the queue holds six
    wires.trainer()
    seen = wires.look()
    assert seen.dropped_messages == sender.messages_dropped == 4
    assert seen.streams[0].dropped_messages == 4
    assert (seen.streams[0].relayed_samples, seen.streams[0].position) == (6, 10)


def test_rates_are_differences_of_two_snapshots(wires: Wires) -> None:
    wires.trainer()
    _, sender = wires.worker("a")
    earlier = wires.look()
    for _ in range(4):
        sender.offer([b"x" * 10], 5)
    wires.run()
    wires.now += 2.0 - FRESH_S
    later = wires.look()
    rate = rates(earlier, later)
    assert rate is not None
    assert (rate.seconds, rate.messages, rate.samples) == pytest.approx((2.0, 2.0, 10.0))
    assert rate.samples_of[later.streams[0].stream] == pytest.approx(10.0)


def test_two_servers_have_no_rate_between_them(wires: Wires) -> None:
    wires.trainer()
    _, sender = wires.worker("a")
    sender.offer([b"x" * 10], 5)
    wires.run()
    earlier = wires.look()
    restarted = Wires()
    restarted.now = wires.now + 10
    assert rates(earlier, restarted.look()) is None
    assert rates(earlier, earlier) is None


def test_hundreds_of_workers_fit_in_pages(wires: Wires) -> None:
    for index in range(300):
        wires.worker(f"a worker with a rather long name, number {index}")
    seen = wires.look()
    assert len(seen.streams) == seen.workers == 300
    assert len(seen.peers) == 301
    assert len(encode_body(seen)) > 60_000, "one frame does not hold it"
    assert not seen.peers_left_out


def test_entries_beyond_the_limit_are_left_out_and_counted(wires: Wires) -> None:
    for index in range(4):
        wires.worker("x" * 200 + str(index), run="r" * 200, streams=1000)
    full = snapshot(wires.relay, wires.now)
    assert len(full.streams) == 4000
    small = snapshot(wires.relay, wires.now, limit_bytes=100_000)
    assert len(encode_body(small)) <= 100_000
    assert small.streams_left_out == 4000 - len(small.streams) > 0
    assert (len(small.peers), small.peers_left_out) == (4, 0)
    assert len(encode_body(full)) <= MAX_STATUS_BYTES


def test_one_principal_displaces_no_streams_of_others() -> None:
    spool = MemorySpool(64 << 20)
    place = Place(spool)
    place.worker("wolf", streams=900)
    place.worker("honest")
    for number in range(900):
        info = StreamInfo(b"x%15d" % number, "r" * 80, "x" * 80, b"", "certificate worker x")
        spool.append(info, number=0, floor=0, position=0, samples=1, body=[b""])
    honest = StreamInfo(b"h" * 16, "run", "honest", b"", "certificate worker honest")
    spool.append(honest, number=0, floor=0, position=0, samples=1, body=[b""])
    seen = snapshot(place.relay, 0.0, limit_bytes=100_000)
    assert seen.streams_left_out > 0
    assert seen.spooled_left_out > 0
    assert seen.streams[-1].worker == seen.spooled[-1].worker == "honest"


def test_an_observer_occupies_no_place_and_is_not_announced() -> None:
    wires = Wires(RelaySettings(max_workers=1))
    trainer = wires.trainer()
    wires.worker("a")
    before = trainer.notice
    observers = [wires.observer() for _ in range(3)]
    for connection, _ in observers:
        connection.request_status()
    wires.run()
    assert all(state.answers == 1 for _, state in observers)
    assert (len(wires.relay.workers), trainer.notice) == (1, before)
    assert wires.relay.trainer is not None
    trainer.publish(PolicyUpdate((0, 0), {"policy": Blob("text", b"weights")}))
    wires.pairs[0][0].wake()
    wires.run()
    assert not any(connection.closing for connection, _ in observers), "no policy is sent to who only looks"
    for connection, _ in observers:
        connection.close()
    wires.run()
    assert not wires.relay.observers


def test_observers_beyond_the_limit_are_refused_for_now(wires: Wires) -> None:
    for _ in range(MAX_OBSERVERS):
        wires.observer()
    one_more, _ = wires.observer()
    assert isinstance(one_more.reason, RefusedError)
    assert one_more.reason.code == "full"


@pytest.mark.parametrize(
    "message",
    [
        OpenStream(0, b"s" * 16, "a"),
        CloseStream(0),
        Want(0, 1, 10),
        Resume(1, 0),
        Ack(1, 5),
        Credit(0, 0, 1 << 20),
        Direct(1, 1, b""),
        Report(b""),
        Hello((1,), "trainer", "", "run", "a", b"p" * 16),
    ],
    ids=lambda message: type(message).__name__,
)
def test_an_observer_may_send_only_status_requests(wires: Wires, message: Control) -> None:
    observer, _ = wires.observer()
    observer.send(message)
    wires.run()
    assert isinstance(observer.reason, RefusedError)
    assert observer.reason.code == "misuse"
    assert wires.relay.protocol_errors == 1
    assert not wires.relay.observers


def test_samples_and_weights_of_an_observer_are_refused(wires: Wires) -> None:
    for kind in (Kind.DATA, Kind.WEIGHTS):
        observer, _ = wires.observer()
        server = wires.pairs[-1][1]
        frame = HEADER.pack(1, kind, FIRST | LAST, 0, 0) + b"x"
        view = server.get_buffer()
        view[: len(frame)] = frame
        server.received(len(frame), wires.now)
        wires.run()
        assert isinstance(observer.reason, RefusedError)


def test_other_roles_may_not_request_the_status(wires: Wires) -> None:
    state = WorkerState(run="run", name="a", peer=b"w" * 16)
    worker = WorkerConnection(state, silent_s=10, heartbeat_s=3)
    wires.connect(worker)
    worker.send(StatusRequest(0))
    wires.run()
    assert isinstance(worker.reason, RefusedError)


def test_endless_unread_requests_end_the_link(wires: Wires) -> None:
    for index in range(100):
        wires.worker(f"a worker with a rather long name, number {index}")
    wires.observer()
    server = wires.pairs[-1][1]
    frame = control_frame(StatusRequest(0))
    for _ in range(100):
        view = server.get_buffer()
        view[: len(frame)] = frame
        server.received(len(frame), wires.now)
    assert server.closing
    assert server.unread_bytes < 200_000


def test_a_missing_page_is_refused(wires: Wires) -> None:
    observer, _ = wires.observer()
    observer.send(StatusRequest(7))
    wires.run()
    assert isinstance(observer.reason, RefusedError)


def test_simultaneous_requests_share_one_snapshot(wires: Wires) -> None:
    observers = [wires.observer() for _ in range(5)]
    for connection, _ in observers:
        connection.request_status()
    wires.run()
    assert len({state.status.clock_s for _, state in observers if state.status is not None}) == 1
    wires.now += FRESH_S
    observers[0][0].request_status()
    wires.run()
    later = observers[0][1].status
    assert later is not None
    assert later.clock_s == wires.now


@pytest.mark.parametrize(
    "pages",
    [
        [StatusPage(0, 1, b"nonsense")],
        [StatusPage(1, 2, b"x")],
        [StatusPage(0, 0, b"x")],
        [StatusPage(index, 1 << 40, b"x" * 60_000) for index in range(100)],
    ],
    ids=["no status", "not in turn", "no pages", "no end"],
)
def test_an_observer_rejects_an_invalid_status(pages: list[StatusPage]) -> None:
    state = ObserverState(run="", name="eye", peer=b"o" * 16)
    observer = ObserverConnection(state, silent_s=10, heartbeat_s=3)
    observer.connected(Identity("server"), 0.0)
    observer.request_status()
    said: list[Control] = [Welcome(1, 0, 1, 1, 1, 3.0), *pages]
    for message in said:
        data = bytes(control_frame(message))
        while data and not observer.closing:
            view = observer.get_buffer()
            n = min(len(view), len(data))
            view[:n] = data[:n]
            data = data[n:]
            observer.received(n, 0.0)
        observer.to_send(0.0)
    assert isinstance(observer.reason, RemoteProtocolError)
    assert state.status is None
