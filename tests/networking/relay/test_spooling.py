"""Workers that end while there is no trainer, the Server's spool, and the trainer that comes: a seeded network."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.networking.end_to_end.ends import Ends
from tests.networking.relay.test_one_principal import End
from tests.networking.relay.test_relay import KB, Network, Trainer, Worker
from tmrl_core.networking.protocol.connection import Connection, Identity
from tmrl_core.networking.protocol.framing import FrameReader, Kind, cut
from tmrl_core.networking.protocol.messages import (
    SAMPLES_HEAD,
    CloseStream,
    Control,
    Directive,
    HandOver,
    Hello,
    OpenStream,
    Refused,
    Resume,
    Stored,
    control_frame,
    decode_control,
)
from tmrl_core.networking.relay import MemorySpool, Relay, Spool
from tmrl_core.networking.spools.spool import STREAM_COST_BYTES, StreamInfo
from tmrl_core.networking.trainer import TrainerState
from tmrl_core.networking.worker import WorkerConnection

MAX_STEPS = 40_000


class SpoolNetwork(Network):
    """A network whose relay has a spool; `restart_server` keeps it, as one on disk is kept."""

    def __init__(self, seed: int = 0, spool_bytes: int = 64 << 20, **settings: object) -> None:
        super().__init__(seed, **settings)
        self.said: list[str] = []
        self.refused: list[str] = []
        self.new_spool: Callable[[], Spool] = lambda: MemorySpool(spool_bytes)
        self.spool: Spool = self.new_spool()
        self.relay = self._relay()

    def _relay(self) -> Relay:
        return Relay(
            self.settings,
            on_refused=lambda address, reason: self.refused.append(reason),
            spool=self.spool,
            say=self.said.append,
        )

    def restart_server(self, lose_spool: bool = False) -> None:
        for pipe in list(self.pipes):
            pipe.cut()
        if lose_spool:
            self.spool = self.new_spool()
        self.relay = self._relay()


def end(worker: Worker) -> None:
    """The worker begins to end: it drains."""
    worker.state.ending = True
    if worker.pipe is not None and worker.pipe.open:
        connection(worker).hand_over()


def connection(worker: Worker) -> WorkerConnection:
    assert worker.pipe is not None
    client: Connection = worker.pipe.ends[0]
    assert isinstance(client, WorkerConnection)
    return client


def connected(worker: Worker) -> bool:
    return connection(worker).state == "open" and not connection(worker).closing


def leave(worker: Worker) -> None:
    """The worker has drained and goes."""
    assert worker.sender.settled
    connection(worker).end_streams()
    connection(worker).close()


def spooled(network: SpoolNetwork, worker: Worker) -> int:
    kept = network.spool.streams.get(worker.sender.stream)
    return kept.samples if kept is not None else 0


@pytest.fixture
def network() -> SpoolNetwork:
    return SpoolNetwork()


def hand_over_all(network: SpoolNetwork, worker: Worker) -> None:
    worker.connect()
    end(worker)
    network.settle(until=lambda: worker.sender.settled)
    leave(worker)
    network.settle()
    assert not network.relay.workers


@pytest.mark.parametrize("linked", [False, True])
def test_nobody_else_can_open_a_spooled_stream_after_a_restart(linked: bool) -> None:
    """An authenticating trainer would refuse the stream, and so release what the spool has."""
    spool = MemorySpool(1 << 20)
    info = StreamInfo(b"s" * 16, "run", "robot", b"its record", "certificate worker robot")
    spool.append(info, number=0, floor=0, position=0, samples=1, body=[b"body"])
    relay = Relay(spool=spool)
    if linked:
        End(relay, "trainer", "trainer")
    thief, robot = End(relay, "worker", "thief"), End(relay, "worker", "robot")
    thief.tell(OpenStream(0, info.stream, "robot", b"another record"))
    (refused,) = [message for message in thief.heard() if isinstance(message, Refused)]
    assert refused.code == "name"
    assert relay.streams.keys() <= {info.stream}
    robot.tell(OpenStream(0, info.stream, "robot", info.signature))
    assert relay.streams[info.stream].worker is robot.link


class CheckingTrainer(Trainer):
    """A trainer that takes authenticated samples only."""

    def start(self) -> None:
        super().start()
        self.state = TrainerState(
            run=self.run, name="checking", peer=b"c" * 16, inbox_bytes=self.inbox_bytes, seal=Ends().trainer
        )


@pytest.mark.parametrize("ends_first", [False, True])
def test_samples_that_the_linked_trainer_cannot_check_are_handed_over(network: SpoolNetwork, ends_first: bool) -> None:
    worker, checking, trainer = Worker(network, "a"), CheckingTrainer(network), Trainer(network)
    worker.connect()
    for size in (10, 70_000, 500, 300_000):
        worker.make(size)
    if ends_first:
        end(worker)  # the spool takes them while the trainer connects
    checking.connect()
    network.settle()
    assert worker.sender.samples_acked == worker.sender.samples_refused == 0
    if not ends_first:
        assert "use the same network.end_to_end on all machines" in worker.state.halt_reason
        end(worker)
    network.settle(until=lambda: worker.sender.settled)
    leave(worker)
    network.settle()
    assert spooled(network, worker) == 4
    assert network.relay.streams == {}
    assert network.relay.flow.reserved_bytes == network.relay.flow.queued_bytes == 0
    checking.kill()
    network.settle()
    trainer.connect()
    network.settle(work=trainer)
    assert trainer.memory == worker.made
    assert network.spool.streams == {}


def test_handed_over_samples_reach_a_later_trainer_in_order_and_once(network: SpoolNetwork) -> None:
    worker, trainer = Worker(network, "a"), Trainer(network)
    for size in (10, 70_000, 500, 300_000):
        worker.make(size)
    hand_over_all(network, worker)
    assert worker.sender.samples_stored == 4
    assert worker.sender.samples_acked == 0
    assert spooled(network, worker) == 4
    assert network.relay.streams == {}
    assert network.relay.flow.reserved_bytes == network.relay.flow.queued_bytes == 0
    trainer.connect()
    network.settle(work=trainer)
    assert trainer.memory == worker.made
    assert (trainer.state.duplicates, trainer.state.gap_messages) == (0, 0)
    assert network.spool.streams == {}
    assert network.spool.used_bytes == 0
    assert network.relay.streams == {}


def test_the_trainer_sees_a_spooled_stream_as_disconnected(network: SpoolNetwork) -> None:
    worker, trainer = Worker(network, "robot7"), Trainer(network)
    worker.state.senders[0] = (worker.sender, b"signature")
    worker.make(10)
    hand_over_all(network, worker)
    seen: list[tuple[str, bytes, bool]] = []
    trainer.state.on_change = lambda: seen.extend(
        (member.name, member.signature, member.live) for member in trainer.state.members.values()
    )
    trainer.connect()
    network.settle()
    assert set(seen) == {("robot7", b"signature", False)}
    assert trainer.state.members, "it stays until everything is acknowledged"
    trainer.work()
    network.settle()
    assert not trainer.state.members


def test_there_is_no_handoff_with_a_trainer(network: SpoolNetwork) -> None:
    worker, trainer = Worker(network, "a"), Trainer(network)
    trainer.connect()
    worker.connect()
    worker.make(10)
    end(worker)
    network.settle(work=trainer)
    assert (worker.sender.samples_acked, worker.sender.samples_stored) == (1, 0)
    assert network.spool.streams == {}


def test_the_spool_takes_the_rest_if_the_trainer_leaves_while_a_worker_drains(network: SpoolNetwork) -> None:
    worker, trainer = Worker(network, "a"), Trainer(network)
    trainer.connect()
    worker.connect()
    worker.make(10)
    network.settle(work=trainer)
    worker.make(10)
    worker.make(10)
    network.settle()
    end(worker)
    trainer.kill()
    network.settle(until=lambda: worker.sender.settled)
    assert (worker.sender.samples_acked, worker.sender.samples_stored) == (1, 2)
    leave(worker)
    network.settle()
    trainer.connect()
    network.settle(work=trainer)
    assert trainer.memory == worker.made
    assert trainer.state.gap_messages == 0


@pytest.mark.parametrize("seed", [pytest.param(seed, marks=() if seed < 8 else pytest.mark.full) for seed in range(40)])
def test_a_trainer_that_connects_during_a_handoff_gets_the_spooled_part_then_the_rest(seed: int) -> None:
    network = SpoolNetwork(seed)
    worker, trainer = Worker(network, "a"), Trainer(network)
    for _ in range(20):
        worker.make(network.random.choice((10, 5_000, 200_000)))
    worker.connect()
    end(worker)
    some = network.random.randint(0, 20)
    network.settle(until=lambda: spooled(network, worker) >= some)
    trainer.connect()
    network.settle(until=lambda: worker.sender.settled, work=trainer)
    leave(worker)
    network.settle(work=trainer)
    assert trainer.memory == worker.made
    assert trainer.state.gap_messages == 0
    assert network.spool.used_bytes == 0
    assert network.relay.flow.reserved_bytes == network.relay.flow.queued_bytes == 0
    assert network.relay.streams == {}


def test_cuts_and_restarts_at_any_moment_of_a_hand_over_lose_and_duplicate_nothing(full: bool) -> None:
    for seed in range(80 if full else 25):
        network = SpoolNetwork(seed, budget_bytes=(4 << 20))
        workers = [Worker(network, name) for name in "abc"]
        gone: list[Worker] = []
        trainer = Trainer(network)
        here = False
        for worker in workers:
            worker.connect()
        for _ in range(network.random.randint(20, 120)):
            event = network.random.random()
            worker = network.random.choice(workers)
            if worker not in gone and worker.pipe is not None:
                if event < 0.3 and not worker.state.ending:
                    worker.make(network.random.choice((10, 5_000, 200_000)))
                elif event < 0.4:
                    worker.pipe.cut()
                    worker.connect()
                elif event < 0.55:
                    end(worker)
                elif event < 0.65 and worker.state.ending and worker.sender.settled and connected(worker):
                    leave(worker)
                    gone.append(worker)
            if 0.65 < event < 0.7:
                trainer.connect()
                here = True
            elif 0.7 < event < 0.75 and here and trainer.pipe is not None:
                trainer.kill()
                here = False
            elif 0.75 < event < 0.8 and here and trainer.pipe is not None:
                trainer.pipe.cut()
                here = False
            elif 0.8 < event < 0.84:
                # Without its spool a Server may only go while nothing depends on it.
                network.restart_server()
                here = False
                for other in workers:
                    if other not in gone:
                        other.connect()
            elif event > 0.9:
                trainer.work()
            for _ in range(network.random.randint(0, 10)):
                network.step()
        if not here:
            trainer.connect()
        for worker in workers:
            if worker not in gone:
                end(worker)
        network.settle(work=trainer, steps=MAX_STEPS)
        for worker in workers:
            mine = [body for body in trainer.memory if body.startswith(worker.name.encode() + b":")]
            assert mine == worker.made, f"seed {seed}"
            if worker not in gone:
                assert worker.sender.samples_acked == len(worker.made), f"seed {seed}"
        assert trainer.state.gap_messages == 0, f"seed {seed}"
        assert network.spool.used_bytes == 0, f"seed {seed}"
        assert network.refused == [], f"seed {seed}"


def test_a_connected_worker_hands_over_again_if_the_server_lost_its_spool(
    network: SpoolNetwork,
) -> None:
    worker, trainer = Worker(network, "a"), Trainer(network)
    for _ in range(5):
        worker.make(10)
    worker.connect()
    end(worker)
    network.settle(until=lambda: worker.sender.settled)
    network.restart_server(lose_spool=True)
    worker.connect()
    network.settle(until=lambda: spooled(network, worker) == 5)
    network.settle()
    assert worker.sender.samples_stored == 5
    leave(worker)
    network.settle()
    trainer.connect()
    network.settle(work=trainer)
    assert trainer.memory == worker.made


def test_samples_requested_again_no_longer_count_as_stored(
    network: SpoolNetwork,
) -> None:
    worker = Worker(network, "a")
    for _ in range(5):
        worker.make(200_000)
    worker.connect()
    end(worker)
    network.settle(until=lambda: worker.sender.settled)
    network.restart_server(lose_spool=True)
    worker.connect()
    network.settle(until=lambda: worker.sender.active)
    assert not worker.sender.settled, "what was stored went with the Server that had it"
    assert worker.sender.samples_stored < 5


def test_an_ended_worker_answers_no_further_requests(network: SpoolNetwork) -> None:
    worker = Worker(network, "a")
    worker.make(10)
    worker.connect()
    end(worker)
    network.settle(until=lambda: worker.sender.settled)
    client = connection(worker)
    client.end_streams()
    # A Server that has been restarted meanwhile asks for everything, before it has heard of the end.
    data = control_frame(Resume(0, 0, 7, 65_536))
    view = client.get_buffer()
    view[: len(data)] = data
    client.received(len(data), network.now)
    assert worker.sender.held_messages == 1
    network.settle()
    assert network.refused == []
    assert network.relay.streams == {}


def test_a_refusal_is_the_last_message_of_a_handoff() -> None:
    network = SpoolNetwork(spool_bytes=(STREAM_COST_BYTES + 2 * 11_000) * 5 // 4)
    told: list[Control] = []
    stranger = network.relay.connection()
    stranger.connected(Identity("stranger"), network.now)
    messages = b"".join(message(number, 10_000) for number in range(3))
    for data in (control_frame(HELLO), control_frame(OPEN), control_frame(HandOver(0)), messages):
        while data:
            view = stranger.get_buffer()
            n = min(len(view), len(data))
            view[:n] = data[:n]
            data = data[n:]
            stranger.received(n, network.now)
    reader = FrameReader()
    for buffer in stranger.to_send(network.now):
        reader.get_buffer()[: len(buffer)] = buffer
        told += [decode_control(frame.payload) for frame in reader.received(len(buffer))]
    stored = [what for what in told if isinstance(what, Stored)]
    assert [what.next for what in stored] == [2]
    assert stored[0].refusal


def test_a_trainer_killed_before_it_committed_gets_the_spooled_samples_again(network: SpoolNetwork) -> None:
    worker, trainer = Worker(network, "a"), Trainer(network)
    for _ in range(5):
        worker.make(10)
    hand_over_all(network, worker)
    trainer.connect()
    network.settle()
    assert len(trainer.state.inbox) == 5
    (first,) = trainer.state.inbox.take(1)
    trainer.memory.append(first.payload.tobytes())
    trainer.state.acknowledge(first)
    network.settle()
    assert spooled(network, worker) == 4
    trainer.kill()
    network.settle()
    trainer.connect()
    network.settle(work=trainer)
    assert trainer.memory == worker.made
    assert trainer.state.gap_messages == 0


def test_a_trainer_that_resumes_before_acknowledged_messages_counts_a_gap_and_continues(network: SpoolNetwork) -> None:
    worker, trainer = Worker(network, "a"), Trainer(network)
    for _ in range(5):
        worker.make(10)
    hand_over_all(network, worker)
    older = trainer.state
    trainer.connect()
    network.settle()
    for received in trainer.state.take()[:2]:
        trainer.state.acknowledge(received)
    network.settle()
    assert spooled(network, worker) == 3
    trainer.before = None  # an older checkpoint, from before the stream was heard of
    assert trainer.pipe is not None
    trainer.pipe.cut()
    trainer.start()
    assert trainer.state is not older
    trainer.connect()
    network.settle(work=trainer)
    assert trainer.memory == worker.made[2:]
    assert (trainer.state.gap_messages, trainer.state.gap_samples) == (2, 2)
    assert network.spool.streams == {}


def test_stored_messages_remain_when_a_worker_disappears_during_its_handoff(network: SpoolNetwork) -> None:
    worker, trainer = Worker(network, "a"), Trainer(network)
    for _ in range(40):
        worker.make(100_000)
    worker.connect()
    end(worker)
    network.settle(until=lambda: spooled(network, worker) >= 7)
    stored = spooled(network, worker)
    assert stored < 40
    assert worker.pipe is not None
    worker.pipe.cut()
    trainer.connect()
    network.settle(work=trainer)
    assert trainer.memory == worker.made[: len(trainer.memory)]
    assert len(trainer.memory) >= stored
    assert network.spool.streams == {}


def test_a_full_spool_refuses_and_the_worker_keeps_the_rest() -> None:
    network = SpoolNetwork(spool_bytes=(STREAM_COST_BYTES + 2 * 11_000) * 5 // 4)
    worker, other = Worker(network, "a"), Worker(network, "b")
    for _ in range(5):
        worker.make(10_000)
    worker.connect()
    end(worker)
    network.settle()
    assert worker.sender.samples_stored == 2
    assert worker.sender.held_samples == 5
    assert not worker.sender.settled
    assert "server.spool_bytes" in worker.state.hand_over_refusal
    assert network.spool.used_bytes <= network.spool.limit_bytes
    other.make(10_000)
    other.connect()
    end(other)
    network.settle()
    assert other.sender.samples_stored == 0
    assert any("not taken" in line for line in network.said)
    trainer = Trainer(network)
    trainer.connect()
    network.settle(work=trainer)
    assert sorted(trainer.memory) == sorted(worker.made + other.made), "they are still there: their usual way is open"
    assert network.relay.flow.reserved_bytes <= 2 * network.settings.standing_bytes


def test_samples_of_another_run_are_kept_until_its_trainer_comes(network: SpoolNetwork) -> None:
    worker, mine, theirs = Worker(network, "a", run="theirs"), Trainer(network), Trainer(network, run="theirs")
    worker.make(10)
    mine.connect()
    hand_over_all(network, worker)
    network.settle(work=mine)
    assert mine.memory == []
    assert any("run 'theirs'" in line for line in network.said)
    assert mine.pipe is not None
    mine.pipe.cut()
    mine.connect()
    network.settle()
    assert any("1 samples of run 'theirs'" in line for line in network.said)
    mine.pipe.cut()
    theirs.connect()
    network.settle(work=theirs)
    assert theirs.memory == worker.made


def test_a_trainer_of_another_run_does_not_disturb_a_hand_over(network: SpoolNetwork) -> None:
    worker, mine = Worker(network, "a", run="theirs"), Trainer(network)
    for _ in range(30):
        worker.make(100_000)
    worker.connect()
    end(worker)
    network.settle(until=lambda: spooled(network, worker) > 3)
    mine.connect()
    network.settle(until=lambda: spooled(network, worker) > 10)
    assert mine.pipe is not None
    mine.pipe.cut()
    network.settle(until=lambda: worker.sender.settled)
    assert spooled(network, worker) == 30


def test_handoffs_stay_within_the_pool_and_replay_uses_credit() -> None:
    network = SpoolNetwork(budget_bytes=3 << 20)
    workers = [Worker(network, f"w{i}") for i in range(10)]
    for worker in workers:
        for _ in range(10):
            worker.make(100_000)
        worker.connect()
        end(worker)
    network.settle(until=lambda: all(worker.sender.settled for worker in workers), steps=MAX_STEPS)
    trainer = Trainer(network, inbox_bytes=1 << 20)
    trainer.connect()
    network.settle(steps=MAX_STEPS)
    assert 0 < trainer.state.inbox.held_bytes <= 1.1 * (1 << 20)
    network.settle(work=trainer, steps=MAX_STEPS)
    assert len(trainer.memory) == 100
    assert network.spool.used_bytes == 0


def test_spooled_and_live_streams_take_turns() -> None:
    network = SpoolNetwork()
    ended, live = Worker(network, "ended"), Worker(network, "live")
    for _ in range(40):
        ended.make(100_000)
        live.make(100_000)
    hand_over_all(network, ended)
    live.connect()
    trainer = Trainer(network)
    trainer.connect()
    network.settle(until=lambda: len(trainer.memory) >= 40, work=trainer)
    of_live = sum(body.startswith(b"live") for body in trainer.memory)
    assert 10 <= of_live <= 30


def test_no_handoff_is_requested_from_a_server_without_a_spool() -> None:
    network = Network()
    worker = Worker(network, "a")
    worker.make(10)
    worker.connect()
    end(worker)
    network.settle()
    assert worker.sender.samples_stored == 0
    assert network.relay.protocol_errors == 0


def test_the_end_of_a_run_reaches_workers_that_connect_later(network: SpoolNetwork) -> None:
    here, away, other = Worker(network, "here"), Worker(network, "away"), Worker(network, "o", run="other")
    trainer = Trainer(network)
    here.connect()
    talking = trainer.connect()
    network.settle()
    trainer.state.directives[None] = Directive(revision=1, finish=True)
    talking.direct(None)
    network.settle()
    assert trainer.pipe is not None
    trainer.pipe.cut()
    away.connect()
    other.connect()
    network.settle()
    assert here.state.directive.finish
    assert away.state.directive.finish
    assert not other.state.directive.finish


def test_a_new_trainer_of_the_run_revokes_its_end(network: SpoolNetwork) -> None:
    late, trainer = Worker(network, "late"), Trainer(network)
    talking = trainer.connect()
    trainer.state.directives[None] = Directive(revision=1, finish=True)
    network.settle()
    talking.direct(None)
    network.settle()
    trainer.kill()
    trainer.connect()
    network.settle()
    late.connect()
    network.settle()
    assert not late.state.directive.finish
    assert trainer.pipe is not None
    trainer.pipe.cut()
    later = Worker(network, "later")
    later.connect()
    network.settle()
    assert not later.state.directive.finish


def test_other_directives_end_with_their_trainer(network: SpoolNetwork) -> None:
    trainer, late = Trainer(network), Worker(network, "late")
    trainer.state.directives[None] = Directive(revision=1, pause=True)
    trainer.connect()
    network.settle()
    assert trainer.pipe is not None
    trainer.pipe.cut()
    late.connect()
    network.settle()
    assert not late.state.directive.pause


# --- peers that do not keep to it ---


def message(number: int, length: int, *, floor: int = 0, channel: int = 0, epoch: int = 1) -> bytes:
    head = SAMPLES_HEAD.pack(number, floor, number, 1, length)
    return b"".join(map(bytes, cut(Kind.DATA, head, [bytes(length)], epoch=epoch, channel=channel)))


HELLO = Hello((1,), "worker", "", "run", "w", b"w" * 16)
OPEN = OpenStream(0, b"s" * 16, "w")

WRONG: list[tuple[str, list[Control | bytes], str]] = [
    ("a channel that is not open", [HandOver(3)], "channel 3 is not open"),
    ("more than its credit", [HandOver(0), message(0, 100_000)], "more were sent than credit"),
    ("a number again", [HandOver(0), message(4, 10), message(4, 10)], "instead of message 5"),
    ("an older number", [HandOver(0), message(4, 10), message(2, 10)], "instead of message 5"),
    ("a message held back", [HandOver(0), message(0, 10), message(5, 10, floor=4)], "instead of message 1"),
    ("a closed channel", [HandOver(0), CloseStream(0), HandOver(0)], "channel 0 is not open"),
    ("a closed channel's samples", [HandOver(0), CloseStream(0), message(0, 10)], "channel 0 is not open"),
    ("a number out of the world", [HandOver(0), message(1 << 62, 10)], "is out of range"),
]


@pytest.mark.parametrize(("said", "reason"), [row[1:] for row in WRONG], ids=[row[0] for row in WRONG])
def test_violations_of_the_handoff_end_only_the_workers_own_link(
    network: SpoolNetwork, said: list[Control | bytes], reason: str
) -> None:
    good = Worker(network, "good")
    good.make(10)
    good.connect()
    end(good)
    network.settle()
    stranger = network.relay.connection()
    stranger.connected(Identity("stranger"), network.now)
    for what in (HELLO, OPEN, *said):
        data = what if isinstance(what, bytes) else control_frame(what)
        while data and not stranger.closing:
            view = stranger.get_buffer()
            n = min(len(view), len(data))
            view[:n] = data[:n]
            data = data[n:]
            stranger.received(n, network.now)
    assert stranger.closing
    reader = FrameReader()
    told = []
    for buffer in stranger.to_send(network.now):
        while buffer:
            view = reader.get_buffer()
            n = min(len(view), len(buffer))
            view[:n] = buffer[:n]
            buffer = buffer[n:]
            told += [decode_control(frame.payload) for frame in reader.received(n)]
    (refused,) = [what for what in told if isinstance(what, Refused)]
    assert refused.code == "misuse"
    assert reason in refused.reason
    assert good.sender.settled
    leave(good)
    network.settle()
    trainer = Trainer(network)
    trainer.connect()
    network.settle(work=trainer)
    assert good.made[0] in trainer.memory


def test_a_worker_that_hands_over_without_reading_loses_its_link(network: SpoolNetwork) -> None:
    stranger = network.relay.connection()
    stranger.connected(Identity("stranger"), network.now)

    def say(what: Control) -> None:
        data = control_frame(what)
        view = stranger.get_buffer()
        view[: len(data)] = data
        stranger.received(len(data), network.now)

    say(HELLO)
    network.spool.limit_bytes = 0
    for i in range(100_000):
        if stranger.closing:
            break
        if i % 1_000 == 0:
            say(OpenStream(i, i.to_bytes(16, "big"), "w"))
        say(HandOver(i // 1_000 * 1_000))
    assert stranger.unread_bytes < 2_000 * KB


def test_a_stream_that_is_spooled_for_one_run_is_not_opened_by_another(network: SpoolNetwork) -> None:
    worker = Worker(network, "a")
    worker.make(10)
    hand_over_all(network, worker)
    thief = Worker(network, "thief", run="other")
    thief.state.senders[0] = (worker.sender, b"")
    thief.connect()
    network.settle()
    assert network.relay.protocol_errors == 1
    assert spooled(network, worker) == 1
