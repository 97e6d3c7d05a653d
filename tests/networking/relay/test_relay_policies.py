"""A policy passes the relay frame by frame, whatever becomes of its rest: a seeded network."""

from __future__ import annotations

import pytest

from tests.networking.relay.test_relay import Network, Trainer, Worker
from tmrl_core.errors import RemoteProtocolError
from tmrl_core.networking.protocol.framing import FIRST, HEADER, LAST, MAX_PAYLOAD_BYTES, Frame, Kind
from tmrl_core.networking.protocol.messages import POLICY_HEAD, PolicyUpdate, decode_body
from tmrl_core.networking.relay.latest_policy import Policies, Policy

SIZE = 900_000


def frame(payload: bytes, flags: int = 0) -> Frame:
    header = HEADER.pack(len(payload), Kind.WEIGHTS, flags, 0, 0)
    return Frame(Kind.WEIGHTS, flags, 0, 0, bytearray(header + payload))


def begin(version: tuple[int, int], frames: int = 3) -> Frame:
    """The first frame of a policy of that many full frames."""
    head = POLICY_HEAD.pack(*version, frames * MAX_PAYLOAD_BYTES - POLICY_HEAD.size)
    return frame(head.ljust(MAX_PAYLOAD_BYTES, b"x"), FIRST)


FULL = bytes(MAX_PAYLOAD_BYTES)


def amid_a_policy(network: Network) -> Policy:
    """Run until the relay has a part of a policy."""
    policies = network.relay.policies
    network.settle(until=lambda: policies.arriving is not None and len(policies.arriving.frames) >= 3)
    assert policies.arriving is not None
    return policies.arriving


def text_of(worker: Worker) -> str:
    assert worker.state.policy is not None
    update: PolicyUpdate = decode_body(worker.state.policy[1], PolicyUpdate)
    return update.policies["policy"].data[:8].decode()


@pytest.mark.parametrize("seed", range(5))
def test_workers_receive_a_policy_while_it_still_arrives_at_the_relay(seed: int) -> None:
    network = Network(seed)
    workers, trainer = [Worker(network, "a"), Worker(network, "b")], Trainer(network)
    links = [worker.connect() for worker in workers]
    trainer.connect()
    network.settle()
    trainer.publish("policy 1" + "x" * SIZE)
    policies = network.relay.policies
    network.settle(until=lambda: all(link.bytes_in > SIZE // 4 for link in links))
    assert policies.latest is None
    network.settle()
    assert [text_of(worker) for worker in workers] == ["policy 1"] * 2


@pytest.mark.parametrize("seed", range(10))
def test_a_trainer_lost_during_a_policy_leaves_no_worker_with_a_part(seed: int) -> None:
    network = Network(seed)
    early, trainer = Worker(network, "early"), Trainer(network)
    early.connect()
    trainer.connect()
    trainer.publish("policy 1" + "x" * 100)
    network.settle()
    trainer.publish("policy 2" + "x" * SIZE)
    part = amid_a_policy(network)
    trainer.kill()
    late = Worker(network, "late")
    late.connect()
    network.settle()
    assert part.abandoned
    assert network.relay.policies.held_bytes < 1_000, "the part is not kept"
    assert (text_of(early), text_of(late)) == ("policy 1", "policy 1")
    trainer.connect()
    trainer.publish("policy 3" + "x" * SIZE)
    network.settle()
    assert (text_of(early), text_of(late)) == ("policy 3", "policy 3")
    assert early.state.policy_version == trainer.state.version


def test_a_version_sent_again_over_another_link_arrives_completely() -> None:
    network = Network()
    worker, trainer = Worker(network, "a"), Trainer(network)
    worker.connect()
    trainer.connect()
    network.settle()
    version = trainer.publish("policy 1" + "x" * SIZE)
    amid_a_policy(network)
    assert trainer.pipe is not None
    trainer.pipe.cut()
    network.settle()
    assert worker.state.policy is None
    trainer.connect()
    network.settle()
    assert worker.state.policy_version == version == trainer.state.version
    assert text_of(worker) == "policy 1"


def test_a_worker_that_joins_during_a_policy_gets_the_previous_complete_one_first() -> None:
    network = Network()
    trainer = Trainer(network)
    trainer.connect()
    trainer.publish("policy 1" + "x" * 100)
    network.settle()
    trainer.publish("policy 2" + "x" * SIZE)
    amid_a_policy(network)
    assert trainer.pipe is not None
    trainer.pipe.frozen = True
    worker = Worker(network, "late")
    worker.connect()
    network.settle()
    assert text_of(worker) == "policy 1", "however slow the trainer's link is"
    trainer.pipe.frozen = False
    network.settle()
    assert text_of(worker) == "policy 2"


def test_a_higher_reported_incarnation_aborts_the_arriving_policy_which_is_sent_again() -> None:
    network = Network()
    worker, trainer = Worker(network, "a"), Trainer(network)
    worker.connect()
    trainer.connect()
    network.settle()
    trainer.publish("policy 1" + "x" * SIZE)
    part = amid_a_policy(network)
    other = Worker(network, "from elsewhere")
    other.state.policy_arrived((7, 3), b"")
    other.state.policy = None
    other.connect()
    network.settle()
    assert part.abandoned
    for each in (worker, other):
        assert text_of(each) == "policy 1"
        assert each.state.policy_version == trainer.state.version == (8, 1)


NAMED = (1 << 20, 1 << 32, 1 << 48, (1 << 48) + 1, (1 << 61) + 1, (1 << 62) - 1)


@pytest.mark.parametrize("named", NAMED)
@pytest.mark.parametrize(("first", "forgetful"), [("worker", False), ("trainer", False), ("worker", True)])
def test_incarnations_reported_by_one_worker_block_neither_peers_nor_weights(
    named: int, first: str, forgetful: bool
) -> None:
    """Also when the Server has been restarted, and when the trainer has lost its checkpoint."""
    network = Network()
    trainer, worker = Trainer(network), Worker(network, "honest")
    trainer.connect()
    worker.connect()
    trainer.publish("before")
    network.settle()
    wolf = Worker(network, "wolf")
    wolf.state.incarnation = named
    wolf.connect()
    network.settle()
    trainer.publish("told")
    network.settle()
    assert text_of(worker) == "told"
    network.restart_server()
    trainer.kill()
    if forgetful:
        trainer.before = None
        trainer.start()
    trainer.publish("after")
    for each in (worker, trainer) if first == "worker" else (trainer, worker):
        each.connect()
        network.settle()
    assert network.relay.protocol_errors == 0
    assert text_of(worker) == "after"
    assert worker.state.policy_version == trainer.state.version
    assert worker.make(1_000)
    network.settle(work=trainer)
    assert trainer.memory == worker.made


def test_a_worker_that_used_up_its_reports_does_not_exclude_others_with_its_token() -> None:
    network = Network()
    trainer, worker = Trainer(network), Worker(network, "honest")
    trainer.connect()
    for i in range(20):
        wolf = Worker(network, f"wolf {i}")
        wolf.state.incarnation = network.relay.incarnation + 1
        wolf.connect()
        network.settle()
    raised = network.relay.incarnation
    worker.state.policy_arrived((raised + 5, 3), b"")
    worker.state.policy = None
    worker.connect()
    trainer.publish("now")
    network.settle()
    assert network.relay.incarnation == raised
    assert network.relay.protocol_errors == 0
    assert text_of(worker) == "now"
    assert worker.state.policy_version == trainer.state.version


@pytest.mark.parametrize("poisoned", NAMED)
@pytest.mark.parametrize("first", ["worker", "trainer"])
def test_peers_with_too_high_an_incarnation_are_admitted_and_start_again(poisoned: int, first: str) -> None:
    network = Network()
    trainer, worker = Trainer(network), Worker(network, "honest")
    trainer.state.incarnation = poisoned
    worker.state.policy_arrived((poisoned, 9), b"")
    worker.state.policy = None
    for _ in range(3):
        trainer.publish("now")
        for each in (worker, trainer) if first == "worker" else (trainer, worker):
            each.connect()
            network.settle()
        assert text_of(worker) == "now"
        assert worker.state.policy_version == trainer.state.version
        trainer.kill()
        network.restart_server()
    assert network.relay.protocol_errors == 0


# -- Policies by itself -----------------------------------------------------------------------------------------------


def test_an_older_version_is_accepted_but_not_forwarded() -> None:
    policies = Policies(1 << 20)
    policies.begin_run("run")
    for version in ((1, 5), (1, 4)):
        policies.take(begin(version, 2), 1)
        policies.take(frame(FULL, LAST), 1)
    assert policies.latest is not None
    assert policies.latest.version == (1, 5)
    assert policies.version_for("run", (1, 4)) is policies.latest
    assert policies.version_for("run", (1, 5)) is None
    assert policies.version_for("another run", (0, 0)) is None


def test_a_restarted_policy_replaces_its_first_part() -> None:
    policies = Policies(1 << 20)
    policies.begin_run("run")
    first = policies.take(begin((1, 1)), 1)
    assert policies.version_for("run", (0, 0)) is first
    second = policies.take(begin((1, 2)), 1)
    assert (first.abandoned, second.abandoned) == (True, False)
    assert policies.version_for("run", (0, 0)) is second


def test_a_new_run_removes_the_policies_of_another() -> None:
    policies = Policies(1 << 20)
    policies.begin_run("one")
    policies.take(frame(POLICY_HEAD.pack(1, 1, 1) + b"x", FIRST | LAST), 1)
    policies.begin_run("one")
    assert policies.held_bytes == HEADER.size + POLICY_HEAD.size + 1
    policies.begin_run("two")
    assert policies.held_bytes == 0


@pytest.mark.parametrize(
    ("frames", "complaint"),
    [
        ([frame(b"x")], "without a beginning"),
        ([frame(b"x", FIRST)], "too short for its head"),
        ([frame(POLICY_HEAD.pack(1, 1, 1 << 30), FIRST)], "a policy of 1073741824 bytes; at most 1048576 are allowed"),
        ([frame(POLICY_HEAD.pack(1, 1 << 62, 1), FIRST)], "is out of range"),
        ([frame(POLICY_HEAD.pack(1, 1, 9), FIRST | LAST)], "different lengths"),
        ([frame(POLICY_HEAD.pack(1, 1, 1) + b"xx", FIRST | LAST)], "different lengths"),
        ([frame(POLICY_HEAD.pack(1, 1, 1) + b"x", FIRST)], "different lengths"),
        ([frame(POLICY_HEAD.pack(1, 1, 9) + b"x", FIRST)], "only a policy's last frame is not full"),
        ([begin((1, 1), 2), frame(FULL)], "different lengths"),
        ([begin((1, 1), 2), frame(FULL, LAST), frame(FULL)], "without a beginning"),
        ([begin((1, 1)), begin((1, 1 << 62))], "is out of range"),
    ],
)
def test_frames_that_contradict_their_head_are_refused(frames: list[Frame], complaint: str) -> None:
    policies = Policies(1 << 20)
    policies.begin_run("run")
    *before, last = frames
    for one in before:
        policies.take(one, 1)
    with pytest.raises(RemoteProtocolError, match=complaint):
        policies.take(last, 1)
