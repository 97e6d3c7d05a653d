"""A Server that has been taken over, with its own key, over TLS: it forges, alters and replays, to no effect."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.hostile.fleet import Fleet
from tests.networking.test_hostile import DEADLINE_S
from tests.waiting import until
from tmrl_core import rate_limited_log
from tmrl_core.metrics import MemorySink, Recorder
from tmrl_core.networking import Server
from tmrl_core.networking.end_to_end.stream_keys import TAG_BYTES
from tmrl_core.networking.links import TrainerLink, WorkerLink
from tmrl_core.networking.protocol.framing import Kind, cut, message_bytes
from tmrl_core.networking.protocol.messages import (
    ALL_CHANNELS,
    POLICY_HEAD,
    Ack,
    Blob,
    Control,
    Direct,
    Directive,
    Halt,
    PolicyUpdate,
    Progress,
    Report,
    Resume,
    Version,
    encode_body,
)
from tmrl_core.networking.relay.connection import RelayConnection
from tmrl_core.networking.relay.latest_policy import Policy
from tmrl_core.networking.relay.status import snapshot
from tmrl_core.training.remote.interface import RemoteInterface

KEY_ID = -1 - TAG_BYTES - 8 - 1
"""Place of the last byte of the name of the key in a sealed message: the mode, the tag and the counter follow."""


class TakenOver:
    """A Server whose owner has lost it, between an honest worker and an honest trainer."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.fleet = Fleet(folder, stack)
        self.server: Server = self.fleet.server()
        self.trainer: TrainerLink = self.fleet.trainer()
        self.worker: WorkerLink = self.fleet.worker()

    def do(self, act: Callable[[RelayConnection], None]) -> None:
        """Let the Server's thread do this to the worker's link."""
        done = threading.Event()

        def run() -> None:
            (worker,) = self.server.relay.workers.values()
            act(worker)
            worker.wake()
            done.set()

        assert self.server._loop is not None
        self.server._loop.call_soon_threadsafe(run)
        assert done.wait(DEADLINE_S)

    def send_policy(self, version: Version, body: bytes) -> None:
        """Send a policy of the Server's choice to the worker."""
        size = message_bytes(POLICY_HEAD, len(body))
        policy = Policy(version, size)
        policy.frames = [
            memoryview(bytearray(bytes(frame)))
            for frame in cut(Kind.WEIGHTS, POLICY_HEAD.pack(*version, len(body)), (body,), epoch=0, channel=0)
        ]
        policy.received, policy.whole = size, True

        def act(worker: RelayConnection) -> None:
            worker.have = (0, 0)
            self.server.relay.policies.latest = policy
            self.server.relay.notify_policy()

        self.do(act)
        until(lambda: [one.have for one in self.server.relay.workers.values()] == [version])  # it has arrived

    def counted(self, worker: int = 0, trainer: int = 0) -> None:
        until(lambda: self.worker.counts.forged >= worker and self.trainer.counts.forged >= trainer)

    def policy_body(self) -> bytes:
        """Return the bytes of the trainer's policy as the Server has them."""
        policy = self.server.relay.policies.latest
        assert policy is not None
        whole = b"".join(bytes(frame[12:]) for frame in policy.frames)
        return whole[POLICY_HEAD.size :]


@pytest.fixture
def taken(tmp_path: Path) -> Iterator[TakenOver]:
    with ExitStack() as stack:
        yield TakenOver(tmp_path, stack)


def weights(text: bytes) -> dict[str, Blob]:
    return {"policy": Blob("file", text)}


def test_forged_altered_and_old_policies_are_not_used(taken: TakenOver) -> None:
    taken.trainer.publish(weights(b"first"))
    assert taken.worker.wait_policy(DEADLINE_S)
    first = taken.policy_body()
    taken.trainer.publish(weights(b"second"))
    until(lambda: taken.worker.versions_published == 2)
    second, version = taken.policy_body(), taken.trainer.trainer.version
    assert taken.worker.take_policy() is not None
    taken.send_policy((version[0], 90), encode_body(PolicyUpdate((0, 0), weights(b"forged"), {})))
    taken.counted(worker=1)
    taken.send_policy((version[0], 91), second)  # genuine weights under a new version
    taken.counted(worker=2)
    taken.send_policy((version[0], 92), second.replace(b"second", b"secomd"))
    taken.counted(worker=3)
    taken.send_policy((version[0], 1), first)  # a genuine older version
    until(lambda: taken.worker.counts.outdated == 1)
    until(lambda: [peer.outdated or 0 for peer in snapshot(taken.server.relay, 0.0).peers] == [0, 1])
    taken.fleet.goes_on(taken.worker, taken.trainer)
    assert not taken.worker.wait_policy(0.2)
    taken.trainer.publish(weights(b"third"))
    taken.do(lambda worker: setattr(worker, "have", version))
    taken.server.relay.policies.latest = None
    taken.trainer.publish(weights(b"fourth"))
    assert taken.worker.wait_policy(DEADLINE_S)
    update = taken.worker.take_policy()
    assert update is not None
    assert bytes(update.policies["policy"].data) in (b"third", b"fourth")


def test_a_large_policy_is_used_by_its_mac_and_refused_when_altered(taken: TakenOver) -> None:
    seal = taken.worker._worker.seal
    assert seal is not None
    taken.fleet.goes_on(taken.worker, taken.trainer)
    taken.trainer.publish(weights(bytes(2_000_000)))
    assert taken.worker.wait_policy(DEADLINE_S)
    proof = seal._streams[taken.worker.stream].policy
    assert proof is not None
    assert proof.version == taken.trainer.trainer.version
    assert taken.worker.take_policy() is not None
    genuine, version = taken.policy_body(), (taken.trainer.trainer.version[0], 50)
    taken.send_policy(version, genuine.replace(bytes(1_000), b"harm" * 250, 1))
    taken.counted(worker=1)
    assert taken.worker.take_policy() is None


@pytest.mark.parametrize("kept", [True, False])
def test_a_worker_that_starts_again_with_its_file_accepts_no_older_policy(
    taken: TakenOver, tmp_path: Path, kept: bool
) -> None:
    model_path = tmp_path / "policy.tmod"
    relay = taken.server.relay
    taken.worker.close(drain=False)
    worker = taken.fleet.worker(model_path=model_path)
    taken.trainer.publish(weights(b"first"))
    assert worker.wait_policy(DEADLINE_S)
    first = relay.policies.latest
    taken.trainer.publish(weights(b"second"))
    until(lambda: worker.versions_published == 2)
    worker.close(drain=False)
    relay.policies.latest = first
    if not kept:
        (tmp_path / "policy.tmod.accepted").unlink()
    again = taken.fleet.worker(model_path=model_path)
    assert again.wait_policy(DEADLINE_S)
    update = again.take_policy()
    assert update is not None
    # With the file, the worker asks for a higher incarnation, under which the trainer publishes its policy again.
    assert bytes(update.policies["policy"].data) == (b"second" if kept else b"first")
    assert (again.counts.outdated > 0) is kept


def test_forged_acknowledgements_release_no_samples(taken: TakenOver, caplog: pytest.LogCaptureFixture) -> None:
    taken.fleet.send(taken.worker)
    assert taken.trainer.wait(DEADLINE_S)
    taken.do(lambda worker: worker.send(Ack(0, 1)))
    taken.do(lambda worker: worker.send(Ack(0, 1, ((0, "refused"),), bytes(16))))
    taken.counted(worker=2)
    # The Server's status has the number too, as long as the Server is honest about that.
    until(lambda: [peer.forged or 0 for peer in snapshot(taken.server.relay, 0.0).peers] == [0, 2])
    counts = taken.worker.counts
    assert (counts.samples_acked, counts.samples_refused, counts.queued_samples) == (0, 0, 10)
    assert "was ignored: an acknowledgement has no valid proof of its origin" in caplog.text
    taken.fleet.goes_on(taken.worker, taken.trainer)


def test_forged_directives_and_reports_are_not_obeyed(taken: TakenOver) -> None:
    taken.fleet.goes_on(taken.worker, taken.trainer)
    finish, gave_up = encode_body(Directive(finish=True)), encode_body(Progress(lack="no samples", gave_up=True))
    taken.do(lambda worker: worker.send(Direct(ALL_CHANNELS, 99, finish, lasting=True)))
    taken.do(lambda worker: worker.send(Direct(0, 99, finish)))
    taken.do(lambda worker: worker.send(Report(gave_up)))
    taken.counted(worker=3)
    assert not taken.worker.finished
    assert not taken.worker.progress.gave_up
    taken.trainer.direct(Directive(pause=True))
    until(lambda: taken.worker.directive.pause)
    taken.trainer.report(Progress(updates=7))
    until(lambda: taken.worker.progress.updates == 7)
    taken.fleet.goes_on(taken.worker, taken.trainer)


def saying(message: Control) -> Callable[[RelayConnection], None]:
    return lambda worker: worker.send(message)


@pytest.fixture
def few_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rate_limited_log, "LINES_AT_ONCE", 5)


def test_samples_that_are_halted_again_and_again_do_not_fill_the_log(
    few_lines: None, taken: TakenOver, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "tmrl_core.networking.links.worker_link")
    taken.fleet.goes_on(taken.worker, taken.trainer)
    caplog.clear()
    (stream,) = taken.server.relay.streams.values()
    for number in range(30):
        taken.do(saying(Halt(0, f"reason {number}")))
        until(lambda: taken.worker._taken is False)
        taken.do(saying(Resume(0, 1, stream.epoch, 1 << 20)))
        until(lambda: taken.worker._taken)
    assert 5 <= len([record for record in caplog.records if record.name.endswith("links.worker_link")]) <= 11
    taken.fleet.goes_on(taken.worker, taken.trainer)


@pytest.mark.parametrize("at", [0.5, KEY_ID], ids=["content", "name of the key"])
def test_altered_samples_do_not_reach_the_trainer_and_are_requested_again(
    taken: TakenOver, at: float | int, caplog: pytest.LogCaptureFixture
) -> None:
    link = taken.server.relay.trainer
    assert link is not None
    honest, altered = taken.server.relay.flow.next_frame, [0]

    def alter() -> bytearray | None:
        frame = honest()
        if frame is not None and altered[0] < 3:
            altered[0] += 1
            frame[at if isinstance(at, int) else int(at * len(frame))] ^= 1
        return frame

    link.source = alter
    for _ in range(3):
        taken.fleet.send(taken.worker)
    until(lambda: taken.trainer.counts.forged + taken.trainer.counts.unknown_keys)
    taken.fleet.goes_on(taken.worker, taken.trainer)
    assert altered == [3]
    assert taken.trainer.counts.gap_messages == 0
    sink = MemorySink()
    recorder = Recorder([sink])
    RemoteInterface(taken.trainer, recorder=recorder, clock=lambda: 1e9).retrieve_buffer()
    recorder.close()
    (network,) = [record for record in sink.records if record.kind == "network"]
    assert network.number("wire/forged") == taken.trainer.counts.forged
    assert network.number("wire/unknown_keys") == taken.trainer.counts.unknown_keys
    assert (taken.trainer.counts.forged == 0) == (at == KEY_ID)
    assert ("of a stream has a wrong proof of its origin" in caplog.text) == (at != KEY_ID)
    assert ("samples of worker robot wait" in caplog.text) == (at == KEY_ID)
