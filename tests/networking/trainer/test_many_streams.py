"""Thousands of streams of one stolen certificate at a trainer: others keep their share of its time."""

from __future__ import annotations

import tracemalloc
from collections import Counter

import pytest

from tests.networking.end_to_end.ends import Ends, signer, verifier
from tests.networking.relay.test_large_fleets import steps
from tests.networking.test_unread_answers import give
from tests.networking.trainer.test_greedy_server import give_frame
from tests.networking.trainer.test_own_incarnation import said
from tmrl_core.networking.protocol.connection import Identity
from tmrl_core.networking.protocol.delivery import CommittedOffset
from tmrl_core.networking.protocol.framing import FIRST, LAST, Kind, cut
from tmrl_core.networking.protocol.messages import SAMPLES_HEAD, Blob, PolicyUpdate, Resume, StreamOpened, Welcome
from tmrl_core.networking.trainer import TrainerConnection, TrainerState
from tmrl_core.networking.trainer import connection as trainer_module
from tmrl_core.networking.trainer.connection import MAX_PROVEN, MAX_PROVEN_OF_ONE
from tmrl_core.networking.worker.seal import WorkerSeal


class Trainer:
    """A trainer's link, with streams of several workers."""

    def __init__(self) -> None:
        self.ends = Ends()
        self.state = TrainerState(run="run", name="node", peer=b"t" * 16, inbox_bytes=1 << 20, seal=self.ends.trainer)
        self.link = TrainerConnection(self.state, silent_s=1_000, heartbeat_s=1_000)
        self.link.connected(Identity("Server"), 0.0)
        give(self.link, Welcome(1, 1, 1 << 20, 1 << 20, 1 << 20, 3.0))
        self.streams: dict[bytes, WorkerSeal] = {}

    def open(self, name: str, streams: int) -> None:
        worker = WorkerSeal("run", signer(name=name), verifier(), mode="authenticate")
        assert worker.announced(self.ends.trainer.card(self.state.holding))
        for _ in range(streams):
            stream = worker.new_stream()
            self.streams[stream] = worker
            give(self.link, StreamOpened(len(self.streams), stream, name, worker.record(stream, b"")))
        said(self.link)


def test_bad_messages_of_many_streams_are_requested_again_a_few_times_a_second() -> None:
    """Each search looks at all of them, so that one for each message would cost the square of their number."""
    trainer = Trainer()
    trainer.open("thief", 300)
    link = trainer.link
    for channel in range(1, 301):
        packed = SAMPLES_HEAD.pack(0, 0, 0, 1, 70)
        for wire in iter(cut(Kind.DATA, packed, (bytes(70),), epoch=1, channel=channel)):
            data = bytes(wire)
            link.get_buffer()[: len(data)] = data
            link.received(len(data), channel * 0.003)
    asked, searches = 0, 0
    while asked < 300:
        searches += 1
        link.tick(link.deadline())
        asked += sum(isinstance(message, Resume) for message in said(link))
    assert searches <= 12


def test_signatures_of_authenticated_streams_take_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainer_module, "MAX_SIGNATURES_BYTES", 100_000)
    trainer = Trainer()
    worker = WorkerSeal("run", signer(), verifier(), mode="authenticate")
    tracemalloc.start()
    for channel in range(1, 101):
        stream = worker.new_stream()
        give(trainer.link, StreamOpened(channel, stream, "robot", worker.record(stream, bytes(30_000))))
        said(trainer.link)
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    members = trainer.state.members.values()
    assert (len(members), sum(len(member.signature) for member in members)) == (100, 90_000)
    assert taken < 1_000_000, "three of the hundred signatures, of 3 MB in all"


def test_samples_and_waits_take_as_long_in_a_large_fleet() -> None:
    def measured(size: int) -> tuple[int, ...]:
        state = TrainerState(run="run", name="node", peer=b"t" * 16, inbox_bytes=1 << 20)
        link = TrainerConnection(state, silent_s=1_000, heartbeat_s=1_000)
        link.connected(Identity("Server"), 0.0)
        give(link, Welcome(1, 1, 1 << 20, 1 << 20, 1 << 20, 3.0))
        for channel in range(1, size + 1):
            give(link, StreamOpened(channel, b"%16d" % channel, "robot"))
        said(link)
        give_frame(link, size // 2, FIRST | LAST, SAMPLES_HEAD.pack(0, 0, 0, 1, 0))
        taken = state.take()
        counts = (
            steps(lambda: state.offsets_after(taken)),
            steps(lambda: state.offsets_of([one.stream for one in taken])),
            steps(lambda: state.all_wait(bool)),
            steps(lambda: state.acknowledge(taken[0])),
            steps(lambda: said(link)),
        )
        assert state.offsets_of([taken[0].stream]) == {taken[0].stream: CommittedOffset(1, 1)}
        return counts

    assert measured(800) == measured(20)


def test_the_offsets_after_many_tiny_messages_take_one_pass() -> None:
    """The links wait meanwhile. One search for each message would take minutes here."""
    state = TrainerState(run="run", name="node", peer=b"t" * 16, inbox_bytes=1 << 20)
    link = TrainerConnection(state, silent_s=1_000, heartbeat_s=1_000)
    link.connected(Identity("Server"), 0.0)
    give(link, Welcome(1, 1, 1 << 20, 1 << 20, 1 << 20, 3.0))
    streams = b"a" * 16, b"b" * 16
    for channel, stream in enumerate(streams, 1):
        give(link, StreamOpened(channel, stream, "robot"))
    for number in range(20_000):
        give_frame(link, number % 2 + 1, FIRST | LAST, SAMPLES_HEAD.pack(number // 2, 0, number // 2, 1, 0))
    taken = []
    while state.inbox:
        taken += state.take()
    after = state.offsets_after(taken)
    assert after == dict.fromkeys(streams, CommittedOffset(10_000, 10_000))
    for one in taken:
        state.acknowledge(one)
    assert state.offsets == after


def test_one_certificate_does_not_take_the_proofs_of_large_policies_from_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(trainer_module, "PROVEN_POLICY_BYTES", 1_000)
    trainer = Trainer()
    trainer.open("thief", MAX_PROVEN)
    for number in range(MAX_PROVEN - MAX_PROVEN_OF_ONE - 2):
        trainer.open(f"robot{number}", 1)
    trainer.open("late", 3)
    trainer.state.publish(PolicyUpdate((0, 0), {"": Blob("sim", bytes(2_000))}))
    said(trainer.link)
    proven = Counter(one.name for one in trainer.link._openers.values() if one._policy is not None)
    assert proven.total() == MAX_PROVEN
    assert proven["late"] == 3
    assert proven["thief"] == MAX_PROVEN_OF_ONE - 1


def test_thousands_of_streams_of_one_certificate_receive_few_proofs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The trainer takes no samples while it computes them."""
    monkeypatch.setattr(trainer_module, "PROVEN_POLICY_BYTES", 1_000)
    trainer = Trainer()
    trainer.open("thief", 2 * MAX_PROVEN)
    trainer.state.publish(PolicyUpdate((0, 0), {"": Blob("sim", bytes(2_000))}))
    said(trainer.link)
    assert sum(one._policy is not None for one in trainer.link._openers.values()) == MAX_PROVEN_OF_ONE
