"""Delivery through the relay, with a seeded clock and a seeded network. Neither asyncio nor ssl is needed here."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from tmrl_core.errors import RefusedError
from tmrl_core.networking.protocol.connection import Connection, Identity
from tmrl_core.networking.protocol.delivery import StreamSender
from tmrl_core.networking.protocol.messages import Blob, Directive, Place, PolicyUpdate, Progress, decode_body
from tmrl_core.networking.relay import Relay, RelaySettings
from tmrl_core.networking.relay.status import snapshot
from tmrl_core.networking.trainer import TrainerConnection, TrainerState
from tmrl_core.networking.worker import WorkerConnection, WorkerState

KB = 1024


class Pipe:
    """Two connections with bytes in flight between them, delivered piece by piece in a seeded order."""

    def __init__(self, network: Network, client: Connection, server: Connection) -> None:
        self.network = network
        self.ends = (client, server)
        self.flight = (bytearray(), bytearray())  # towards the server, towards the client
        self.open = True
        self.frozen = False
        client.connected(Identity("server"), network.now)
        server.connected(Identity("client"), network.now)

    def step(self) -> bool:
        """Move some bytes one way or the other; False when there was nothing to do."""
        if self.frozen or not self.open:
            return False
        random_ = self.network.random
        moved = False
        for side in random_.sample((0, 1), 2):
            flight = self.flight[side]
            if len(flight) < 128 * KB:
                for buffer in self.ends[side].to_send(self.network.now):
                    flight += buffer
                    moved = True
            receiver = self.ends[1 - side]
            pieces = random_.randint(0, 3)
            while flight and pieces:
                view = receiver.get_buffer()
                n = min(len(view), len(flight), random_.choice((1, 7, 100, 5000, 65536)))
                view[:n] = flight[:n]
                del flight[:n]
                receiver.received(n, self.network.now)
                moved = True
                pieces -= 1
        for side in (0, 1):
            if self.ends[side].closing:
                for buffer in self.ends[side].to_send(self.network.now):
                    self.flight[side].extend(buffer)
                other = self.ends[1 - side]
                while self.flight[side] and not other.closing:
                    view = other.get_buffer()
                    n = min(len(view), len(self.flight[side]))
                    view[:n] = self.flight[side][:n]
                    del self.flight[side][:n]
                    other.received(n, self.network.now)
                self.cut()
                return True
        return moved

    def cut(self) -> None:
        """The connection breaks; what was in flight is gone."""
        if self.open:
            self.open = False
            for end in self.ends:
                end.lost(None, self.network.now)
            self.network.pipes.remove(self)


@dataclass
class Worker:
    """A worker process: its state lives as long as it does."""

    network: Network
    name: str
    queue_bytes: int = 1 << 30
    drop_oldest: bool = False
    run: str = "run"
    pipe: Pipe | None = None
    made: list[bytes] = field(default_factory=list)

    def __post_init__(self) -> None:
        ids = self.network.random.randbytes(16)
        self.state = WorkerState(run=self.run, name=self.name, peer=ids)
        self.sender = StreamSender(ids[::-1], queue_bytes=self.queue_bytes, drop_oldest=self.drop_oldest)
        self.state.add_stream(self.sender, b"")

    def connect(self) -> WorkerConnection:
        connection = WorkerConnection(self.state, silent_s=10, heartbeat_s=3)
        self.pipe = self.network.connect(connection)
        return connection

    def make(self, size: int) -> bool:
        body = f"{self.name}:{len(self.made)}:".encode().ljust(size, b"x")
        taken = self.sender.offer([body], 1)
        if taken:
            self.made.append(body)
        return taken


@dataclass
class Trainer:
    """A trainer process with a memory that is committed with the stream's mark, as a disk memory is."""

    network: Network
    run: str = "run"
    inbox_bytes: int = 1 << 20
    memory: list[bytes] = field(default_factory=list)
    before: TrainerState | None = None
    pipe: Pipe | None = None

    def __post_init__(self) -> None:
        self.start()

    def start(self) -> None:
        """A new process, which knows what was committed and nothing else."""
        self.state = TrainerState(
            run=self.run,
            name="trainer",
            peer=self.network.random.randbytes(16),
            inbox_bytes=self.inbox_bytes,
            incarnation=self.before.incarnation if self.before else 0,
            offsets=self.before.offsets if self.before else None,
        )

    def connect(self) -> TrainerConnection:
        connection = TrainerConnection(self.state, silent_s=10, heartbeat_s=3)
        self.pipe = self.network.connect(connection)
        return connection

    def kill(self) -> None:
        """The process dies with what it had received and not committed."""
        if self.pipe is not None:
            self.pipe.cut()
        self.before = self.state
        self.start()

    def work(self) -> None:
        """Append and commit what has arrived."""
        for received in self.state.take():
            self.memory.append(received.payload.tobytes())
            self.state.acknowledge(received)

    def publish(self, text: str) -> tuple[int, int]:
        return self.state.publish(PolicyUpdate((0, 0), {"policy": Blob("text", text.encode())}))


class Network:
    """A relay, its peers, a seeded order of events and a clock."""

    def __init__(self, seed: int = 0, **settings: object) -> None:
        self.random = random.Random(seed)
        self.now = 0.0
        self.settings = RelaySettings(**{"max_message_bytes": 1 << 20, **settings})  # type: ignore[arg-type]
        self.relay = Relay(self.settings)
        self.pipes: list[Pipe] = []

    def connect(self, connection: Connection) -> Pipe:
        pipe = Pipe(self, connection, self.relay.connection())
        self.pipes.append(pipe)
        return pipe

    def restart_server(self) -> None:
        for pipe in list(self.pipes):
            pipe.cut()
        self.relay = Relay(self.settings)

    def step(self) -> bool:
        moved = False
        for pipe in self.random.sample(self.pipes, len(self.pipes)):
            moved = pipe.step() or moved
        assert 0 <= self.relay.flow.reserved_bytes <= self.settings.budget_bytes
        assert self.relay.flow.queued_bytes <= self.relay.flow.reserved_bytes
        return moved

    def settle(self, until: Callable[[], bool] | None = None, work: Trainer | None = None, steps: int = 20_000) -> None:
        """Run until nothing moves any more, or `until` holds."""
        idle = 0
        for _ in range(steps):
            if until is not None and until():
                return
            moved = self.step()
            if work is not None:
                work.work()
            idle = 0 if moved else idle + 1
            if until is None and idle > 20:
                return
        raise AssertionError("the network did not settle")

    def wait(self, seconds: float) -> None:
        """Let time pass, second by second."""
        for _ in range(int(seconds)):
            self.now += 1
            for pipe in list(self.pipes):
                for end in pipe.ends:
                    if not pipe.frozen or end is pipe.ends[1]:
                        end.tick(self.now)
            for _ in range(5):
                self.step()
            for pipe in list(self.pipes):
                if pipe.frozen and pipe.ends[1].closing:
                    pipe.cut()


@pytest.fixture
def network() -> Network:
    return Network()


def all_made(*workers: Worker) -> list[bytes]:
    return sorted(body for worker in workers for body in worker.made)


def test_samples_arrive_in_order_once_and_are_acknowledged_after_the_commit(network: Network) -> None:
    worker, trainer = Worker(network, "a"), Trainer(network)
    worker.connect()
    trainer.connect()
    for size in (10, 70_000, 500, 300_000):
        worker.make(size)
    network.settle()
    assert [received.samples for received in trainer.state.inbox] == [1] * 4
    assert worker.sender.samples_acked == 0, "nothing is acknowledged before it is committed"
    trainer.work()
    network.settle()
    assert trainer.memory == worker.made
    assert worker.sender.samples_acked == 4
    assert worker.sender.held_bytes == 0
    assert network.relay.flow.queued_bytes == 0


def test_a_trainer_killed_between_receipt_and_append_gets_the_sample_again(network: Network) -> None:
    worker, trainer = Worker(network, "a"), Trainer(network)
    worker.connect()
    trainer.connect()
    worker.make(100)
    network.settle()
    trainer.work()
    network.settle()
    worker.make(100)
    network.settle()
    assert len(trainer.state.inbox) == 1
    trainer.kill()
    trainer.connect()
    network.settle(work=trainer)
    assert trainer.memory == worker.made
    assert worker.sender.samples_acked == 2


def test_a_link_cut_at_any_moment_loses_nothing_and_duplicates_nothing() -> None:
    for seed in range(40):
        network = Network(seed)
        workers = [Worker(network, name) for name in "ab"]
        trainer = Trainer(network)
        for worker in workers:
            worker.connect()
        trainer.connect()
        for _ in range(network.random.randint(5, 60)):
            event = network.random.random()
            worker = network.random.choice(workers)
            if event < 0.4:
                worker.make(network.random.choice((10, 5_000, 200_000)))
            elif event < 0.5 and worker.pipe is not None:
                worker.pipe.cut()
                worker.connect()
            elif event < 0.6 and trainer.pipe is not None:
                trainer.pipe.cut()
                trainer.connect()
            elif event < 0.65:
                trainer.kill()
                trainer.connect()
            elif event < 0.7:
                network.restart_server()
                for other in workers:
                    other.connect()
                trainer.connect()
            elif event < 0.8:
                trainer.work()
            for _ in range(network.random.randint(0, 10)):
                network.step()
        network.settle(work=trainer)
        assert sorted(trainer.memory) == all_made(*workers), f"seed {seed}"
        for worker in workers:
            mine = [body for body in trainer.memory if body.startswith(worker.name.encode() + b":")]
            assert mine == worker.made, f"seed {seed}: the order within a stream changed"
            assert worker.sender.samples_acked == len(worker.made), f"seed {seed}"
        assert network.relay.flow.queued_bytes == 0
        assert trainer.state.gap_messages == 0


def test_the_trainer_counts_dropped_messages_as_a_gap() -> None:
    for seed in range(40):
        network = Network(seed)
        worker = Worker(network, "a", queue_bytes=20_000, drop_oldest=True)
        trainer = Trainer(network)
        worker.connect()
        trainer.connect()
        for _ in range(network.random.randint(5, 80)):
            event = network.random.random()
            if event < 0.6:
                worker.make(network.random.choice((10, 5_000, 9_000)))
            elif event < 0.7 and worker.pipe is not None:
                worker.pipe.cut()
                worker.connect()
            elif event < 0.75:
                trainer.kill()
                trainer.connect()
            elif event < 0.9:
                trainer.work()
            for _ in range(network.random.randint(0, 3)):
                network.step()
            assert worker.sender.held_bytes <= 20_000
        worker.make(10)
        network.settle(work=trainer)
        sender = worker.sender
        assert sender.samples_unresolved == 0
        assert len(trainer.memory) == len(set(trainer.memory))
        assert len(trainer.memory) + sender.samples_dropped == len(worker.made), f"seed {seed}"
        assert sender.samples_acked == len(trainer.memory), f"seed {seed}"
        assert trainer.memory == [body for body in worker.made if body in set(trainer.memory)]


def test_gaps_are_counted_in_messages_and_samples(network: Network) -> None:
    worker = Worker(network, "a", queue_bytes=1_000, drop_oldest=True)
    trainer = Trainer(network)
    for _ in range(10):
        worker.make(400)
    trainer.connect()
    worker.connect()
    network.settle(work=trainer)
    assert trainer.memory == worker.made[-2:]
    assert (trainer.state.gap_messages, trainer.state.gap_samples) == (8, 8)
    assert worker.sender.samples_dropped == 8


def test_a_blocking_sender_refuses_messages_beyond_the_limit(network: Network) -> None:
    worker = Worker(network, "a", queue_bytes=1_000)
    assert worker.make(600)
    assert not worker.make(600)
    assert worker.sender.samples_offered == 1


def test_a_message_larger_than_the_limit_is_accepted_by_an_empty_queue(network: Network) -> None:
    worker = Worker(network, "a", queue_bytes=1_000)
    assert worker.make(5_000)


def test_a_refused_message_is_acknowledged_and_counted_with_its_reason(network: Network) -> None:
    worker, trainer = Worker(network, "a"), Trainer(network)
    worker.connect()
    trainer.connect()
    worker.make(100)
    worker.make(100)
    network.settle()
    first, second = trainer.state.take()
    trainer.state.acknowledge(first, refused="shape (3,) where (4,) is held")
    trainer.state.acknowledge(second)
    network.settle()
    assert (worker.sender.samples_refused, worker.sender.samples_acked) == (1, 1)
    assert list(worker.sender.refusals) == [(0, "shape (3,) where (4,) is held")]
    assert worker.sender.held_messages == 0
    assert trainer.state.samples_refused == 1


def test_a_trainer_that_reads_nothing_fills_inbox_relay_and_worker_within_their_limits() -> None:
    network = Network(budget_bytes=4 << 20)
    worker = Worker(network, "a", queue_bytes=8 << 20)
    trainer = Trainer(network, inbox_bytes=1 << 20)
    worker.connect()
    trainer.connect()
    made = 0
    for _ in range(200):
        made += worker.make(100_000)
        for _ in range(20):
            network.step()
    assert trainer.state.inbox.held_bytes <= 1.1 * (1 << 20)
    assert worker.sender.held_bytes <= 8 << 20
    assert made < 200
    network.settle(work=trainer, steps=100_000)
    assert trainer.memory == worker.made


def test_a_stalled_worker_does_not_hold_back_another() -> None:
    network = Network(budget_bytes=4 << 20)
    slow, fast, trainer = Worker(network, "slow"), Worker(network, "fast"), Trainer(network)
    for worker in (slow, fast):
        worker.connect()
    trainer.connect()
    slow.make(900_000)
    for _ in range(3):
        network.step()
    assert slow.pipe is not None
    slow.pipe.frozen = True
    for _ in range(30):
        fast.make(200_000)
    network.settle(until=lambda: len(trainer.memory) == 30, work=trainer)


def test_a_hundred_workers_share_a_small_budget() -> None:
    network = Network(budget_bytes=6 << 20)
    workers = [Worker(network, f"w{i}") for i in range(100)]
    trainer = Trainer(network)
    for worker in workers:
        worker.connect()
        worker.make(100_000)
        worker.make(100)
    trainer.connect()
    network.settle(until=lambda: len(trainer.memory) == 200, work=trainer)
    assert sorted(trainer.memory) == all_made(*workers)


def test_workers_take_turns_by_bytes() -> None:
    network = Network()
    big, small, trainer = Worker(network, "big"), Worker(network, "small"), Trainer(network, inbox_bytes=1 << 20)
    for worker in (big, small):
        worker.connect()
    for _ in range(8):
        big.make(900_000)
    for _ in range(100):
        small.make(30_000)
    trainer.connect()
    network.settle(until=lambda: len(trainer.memory) > 60, work=trainer)
    sizes = {name: sum(len(body) for body in trainer.memory if body.startswith(name)) for name in (b"big", b"small")}
    assert sizes[b"small"] > 0.3 * sizes[b"big"]


def test_a_stream_that_sends_little_is_served_soon_among_many_busy_ones() -> None:
    network = Network()
    greedy, trainer = [Worker(network, f"greedy{i}") for i in range(20)], Trainer(network, inbox_bytes=4 << 20)
    little = Worker(network, "little")
    for worker in (*greedy, little):
        worker.connect()
        worker.make(100)
    trainer.connect()
    network.settle(until=lambda: len(trainer.memory) == 21, work=trainer)
    assert trainer.pipe is not None
    for _ in range(8):
        for worker in greedy:
            worker.make(60_000)
    network.settle(until=lambda: len(trainer.memory) > 50, work=trainer)
    trainer.pipe.frozen = True
    network.settle(until=lambda: network.relay.flow.queued_bytes > 60 * 60_000)
    little.make(100)
    network.settle(until=lambda: bool(network.relay.streams[little.sender.stream].queue))
    taken = len(trainer.memory)
    trainer.pipe.frozen = False
    network.settle(until=lambda: little.made[-1] in trainer.memory, work=trainer)
    # A few messages were under way to the trainer already.
    assert trainer.memory.index(little.made[-1]) - taken < 8


def test_a_small_credit_request_does_not_wait_for_all_large_ones() -> None:
    network = Network(budget_bytes=4 << 20)
    greedy, trainer = [Worker(network, f"greedy{i}") for i in range(12)], Trainer(network, inbox_bytes=1 << 20)
    little = Worker(network, "little")
    for worker in (*greedy, little):
        worker.connect()
        worker.make(100)
    trainer.connect()
    network.settle(until=lambda: len(trainer.memory) == 13, work=trainer)
    for worker in greedy:
        for _ in range(9):
            worker.make(300_000)
    relay = network.relay

    def wants() -> int:
        return sum(bool(stream.asking) for stream in relay.streams.values())

    network.settle(until=lambda: wants() > 5 and len(trainer.memory) > 60, work=trainer)
    little.make(100_000)  # more than the standing credit
    taken = len(trainer.memory)
    network.settle(until=lambda: little.made[-1] in trainer.memory, work=trainer)
    # What is under way, and what makes room in the budget for it.
    assert trainer.memory.index(little.made[-1]) - taken < 8
    network.settle(until=lambda: len(trainer.memory) == 13 + 1 + 12 * 9, work=trainer)


def test_the_latest_weights_reach_all_workers_and_versions_only_grow(network: Network) -> None:
    worker, trainer = Worker(network, "a"), Trainer(network)
    worker.connect()
    trainer.connect()
    seen: list[tuple[int, int]] = []
    worker.state.on_change = lambda: seen.append(worker.state.policy_version)
    for i in range(50):
        trainer.publish(f"policy {i}" + "x" * 200_000)
        for _ in range(network.random.randint(0, 15)):
            network.step()
    network.settle()
    assert seen == sorted(seen)
    assert worker.state.policy_version == trainer.state.version == (1, 50)
    assert worker.state.policy is not None
    assert decode_body(worker.state.policy[1], PolicyUpdate).policies["policy"].data.startswith(b"policy 49")
    late = Worker(network, "late")
    late.connect()
    network.settle()
    assert late.state.policy_version == (1, 50)


def test_a_worker_counts_published_versions_also_those_that_it_skipped(network: Network) -> None:
    worker, trainer = Worker(network, "a"), Trainer(network)
    trainer.connect()
    for i in range(7):
        trainer.publish(f"policy {i}")
    network.settle()
    worker.connect()
    network.settle()
    assert worker.state.versions_published == 1, "the current version at the first connection counts as one"
    assert worker.pipe is not None
    worker.pipe.frozen = True
    for i in range(5):
        trainer.publish(f"policy {i}")
        network.settle()
    worker.pipe.frozen = False
    network.settle()
    assert worker.state.versions_published == 6
    trainer.kill()
    trainer.connect()
    for i in range(3):
        trainer.publish(f"policy {i}")
    network.settle()
    assert worker.state.versions_published == 7, "a new incarnation adds one"
    trainer.publish("next")
    network.settle()
    assert worker.state.versions_published == 8


def test_a_new_trainer_process_gets_a_higher_incarnation_a_reconnected_one_keeps_its_own(network: Network) -> None:
    trainer = Trainer(network)
    trainer.connect()
    network.settle()
    assert trainer.state.holding == 1
    assert trainer.pipe is not None
    trainer.pipe.cut()
    trainer.connect()
    network.settle()
    assert trainer.state.holding == 1
    trainer.kill()
    trainer.connect()
    network.settle()
    assert trainer.state.holding == 2
    network.restart_server()
    trainer.connect()
    network.settle()
    assert trainer.state.holding == 2


def test_the_trainer_gets_an_incarnation_above_the_highest_known_one(network: Network) -> None:
    trainer, worker = Trainer(network), Worker(network, "a")
    trainer.connect()
    trainer.publish("new")
    network.settle()
    worker.state.policy_arrived((7, 3), b"")
    worker.connect()
    network.settle()
    assert trainer.state.holding == 8
    assert worker.state.policy_version[0] == 8


def test_directives_and_progress_are_last_values_for_later_workers_too(network: Network) -> None:
    first, trainer = Worker(network, "first"), Trainer(network)
    first.connect()
    connection = trainer.connect()
    network.settle()
    trainer.state.progress = Progress(samples=5, updates=3)
    connection.report()
    trainer.state.directives[first.sender.stream] = Directive(revision=1, pause=True)
    connection.direct(first.sender.stream)
    trainer.state.directives[None] = Directive(revision=2, finish=True)
    connection.direct(None)
    network.settle()
    late = Worker(network, "late")
    late.connect()
    network.settle()
    assert first.state.progress == late.state.progress == Progress(samples=5, updates=3)
    assert first.state.directive.pause
    assert first.state.directive.finish
    assert late.state.directive.finish
    assert not late.state.directive.pause


def test_a_wait_reason_reaches_a_trainer_that_connects_later(network: Network) -> None:
    worker, trainer = Worker(network, "a"), Trainer(network)
    connection = worker.connect()
    network.settle()
    worker.state.waits = "for a model"
    connection.say_waits()
    network.settle()
    trainer.connect()
    network.settle()
    assert trainer.state.waits == {worker.sender.stream: "for a model"}
    worker.state.waits = ""
    connection.say_waits()
    network.settle()
    assert trainer.state.waits == {worker.sender.stream: ""}
    assert worker.pipe is not None
    worker.pipe.cut()
    network.settle()
    assert trainer.state.waits == {}


def test_the_lateness_of_a_worker_reaches_the_status_and_a_trainer_that_connects_later(network: Network) -> None:
    worker, trainer = Worker(network, "a"), Trainer(network)
    found = (100, 3, 1_200)
    worker.state.lateness = lambda: found
    worker.connect()
    network.settle()
    (stream,) = snapshot(network.relay, network.now).streams
    assert (stream.steps, stream.late_steps, stream.lateness_p999_s) == (100, 3, 0.0012)
    trainer.connect()
    network.settle()
    assert [late.late_steps for late in trainer.state.lateness.values()] == [3]
    found = (200, 4, 1_200)
    network.settle()
    assert [late.late_steps for late in trainer.state.lateness.values()] == [3], "once in a heartbeat"
    network.wait(4.0)
    network.settle()
    assert [late.late_steps for late in trainer.state.lateness.values()] == [4]
    assert worker.pipe is not None
    worker.pipe.cut()
    network.settle()
    assert trainer.state.lateness == {}


def test_ended_streams_are_not_announced(network: Network) -> None:
    worker = Worker(network, "a")
    connection = worker.connect()
    network.settle()
    worker.state.waits = "for updates"
    connection.say_waits()
    connection.end_streams()
    worker.state.waits = ""
    connection.say_waits()
    network.settle()
    assert network.relay.protocol_errors == 0
    assert not connection.closing


def test_the_trainer_is_notified_of_members(network: Network) -> None:
    trainer, worker = Trainer(network), Worker(network, "robot7")
    trainer.connect()
    worker.connect()
    network.settle()
    assert [member.name for member in trainer.state.members.values()] == ["robot7"]
    assert worker.pipe is not None
    worker.pipe.cut()
    network.settle()
    assert not trainer.state.members


def test_complete_messages_of_a_lost_worker_still_arrive(network: Network) -> None:
    trainer, worker = Trainer(network), Worker(network, "a")
    trainer.connect()
    worker.connect()
    network.settle()
    assert trainer.pipe is not None
    trainer.pipe.frozen = True
    worker.make(1_000)
    worker.make(1_000)
    network.settle()
    assert worker.pipe is not None
    worker.pipe.cut()
    trainer.pipe.frozen = False
    network.settle(work=trainer)
    assert trainer.memory == worker.made
    assert network.relay.streams == {}
    assert network.relay.flow.reserved_bytes == 0


def test_a_second_trainer_is_refused_while_the_first_is_alive_and_admitted_when_it_is_silent(network: Network) -> None:
    first, second = Trainer(network), Trainer(network)
    first.connect()
    network.settle()
    refused = second.connect()
    network.settle()
    assert isinstance(refused.reason, RefusedError)
    assert refused.reason.code == "trainer_present"
    assert first.pipe is not None
    first.pipe.frozen = True
    network.wait(11)
    second.connect()
    network.settle()
    assert second.state.holding == 2


def test_workers_beyond_the_limit_are_refused_until_a_place_is_free() -> None:
    network = Network(max_workers=1)
    first, second = Worker(network, "first"), Worker(network, "second")
    first.connect()
    network.settle()
    refused = second.connect()
    network.settle()
    assert isinstance(refused.reason, RefusedError)
    assert refused.reason.code == "full"
    assert "1 workers" in refused.reason.reason
    assert first.pipe is not None
    first.pipe.cut()
    admitted = second.connect()
    network.settle()
    assert admitted.state == "open"


def test_a_new_link_of_the_same_worker_takes_the_place_of_the_old_one() -> None:
    network = Network(max_workers=1)
    worker, trainer = Worker(network, "a"), Trainer(network)
    trainer.connect()
    worker.connect()
    network.settle()
    assert worker.pipe is not None
    worker.pipe.frozen = True  # the old link hangs
    worker.make(10)
    again = worker.connect()
    network.settle(work=trainer)
    assert again.state == "open"
    assert trainer.memory == worker.made


def test_samples_and_weights_of_another_run_are_separate_and_the_worker_gets_the_reason(network: Network) -> None:
    worker, trainer = Worker(network, "a", run="other"), Trainer(network)
    worker.connect()
    trainer.connect()
    trainer.publish("policy")
    worker.make(10)
    network.settle(work=trainer)
    assert trainer.memory == []
    assert worker.state.policy is None
    assert "'run'" in worker.state.halt_reason
    assert "'other'" in worker.state.halt_reason
    assert trainer.state.notice.other_run_workers == 1


def test_silence_is_noticed_and_heartbeats_keep_an_idle_link(network: Network) -> None:
    worker, trainer = Worker(network, "a"), Trainer(network)
    worker.connect()
    trainer.connect()
    network.settle()
    network.wait(60)
    assert len(network.pipes) == 2, "idle links live on heartbeats"
    assert worker.pipe is not None
    worker.pipe.frozen = True
    network.wait(11)
    assert len(network.pipes) == 1
    assert network.relay.workers == {}


def test_a_new_link_has_no_expired_deadline(network: Network) -> None:
    network.now = 5_000.0
    worker, trainer = Worker(network, "a"), Trainer(network)
    worker.connect()
    trainer.connect()
    network.settle()
    for pipe in network.pipes:
        assert all(end.deadline() > network.now for end in pipe.ends)


def test_a_peer_that_never_identifies_itself_is_disconnected(network: Network) -> None:
    connection = network.relay.connection()
    connection.connected(Identity("somewhere"), 0.0)
    view = connection.get_buffer()
    view[:3] = b"\0\0\0"
    for now in range(1, 12):
        if not connection.closing:
            connection.received(1, float(now))
        connection.tick(float(now))
    assert connection.closing
    assert "did not identify itself" in str(connection.reason)


@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\xff" * 100,
        b"\x05\0\0\0\x09\0\0\0\0\0\0\0hello",
        bytes(12) + b"\xc1" * 20,
    ],
)
def test_garbage_closes_only_its_own_connection_and_is_counted(network: Network, garbage: bytes) -> None:
    worker, trainer = Worker(network, "a"), Trainer(network)
    worker.connect()
    trainer.connect()
    network.settle()
    stranger = network.relay.connection()
    stranger.connected(Identity("stranger"), network.now)
    view = stranger.get_buffer()
    view[: len(garbage)] = garbage
    stranger.received(len(garbage), network.now)
    assert stranger.closing
    assert network.relay.protocol_errors == 1
    worker.make(10)
    network.settle(work=trainer)
    assert trainer.memory == worker.made


def test_delivery_needs_neither_asyncio_nor_ssl() -> None:
    import subprocess

    code = (
        "import sys, tmrl_core.networking.relay, tmrl_core.networking.worker, tmrl_core.networking.trainer; "
        "print([name for name in ('asyncio', 'ssl', 'socket', 'torch') if name in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.strip() == "[]"


def test_a_worker_is_told_its_number_among_those_of_its_label_and_keeps_it_over_links(network: Network) -> None:
    workers = [Worker(network, "robot7") for _ in range(3)] + [Worker(network, "robot7", run="other")]
    for worker in workers:
        worker.connect()
        network.settle()
    assert [worker.state.place for worker in workers] == [0, 2, 3, 0]
    network.restart_server()
    for worker in (workers[2], workers[1]):  # in another order, and without the first
        worker.connect()
        network.settle()
    fourth = Worker(network, "robot7")
    fourth.connect()
    network.settle()
    assert [worker.state.place for worker in workers] == [0, 2, 3, 0]
    assert [link.place for link in network.relay.workers.values()] == [3, 2, 1]
    assert fourth.state.place == 0


def test_a_worker_that_keeps_choosing_numbers_is_refused(network: Network) -> None:
    worker = Worker(network, "robot7")
    link = worker.connect()
    network.settle()
    link.send(Place(7))
    network.settle()
    assert [one.place for one in network.relay.workers.values()] == [7]
    link.send(Place(8))
    network.settle()
    assert not network.relay.workers


def test_workers_with_the_same_label_are_numbered(network: Network) -> None:
    trainer = Trainer(network)
    trainer.connect()
    workers = [Worker(network, "robot7") for _ in range(3)]
    for worker in workers:
        worker.connect()
        network.settle()
    labels = ["robot7", "robot7-2", "robot7-3"]
    assert [link.name for link in network.relay.workers.values()] == labels
    assert [member.name for member in trainer.state.members.values()] == labels
    workers[1].connect()  # again: its own label is no other's
    network.settle()
    assert sorted(link.name for link in network.relay.workers.values()) == labels
