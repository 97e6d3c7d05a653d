"""Deltas pass the relay: each worker gets what it can use, and the newest version always arrives."""

from __future__ import annotations

import numpy as np
import pytest

from tests.networking.relay.test_relay import Network, Trainer, Worker
from tmrl_core.errors import RemoteProtocolError
from tmrl_core.networking.protocol.framing import FIRST, LAST, Frame, Kind, cut
from tmrl_core.networking.protocol.messages import (
    POLICY_DELTA,
    POLICY_DELTA_HEAD,
    POLICY_HEAD,
    Blob,
    PolicyUpdate,
    decode_body,
)
from tmrl_core.networking.relay.latest_policy import Policies

SIZE = 40_000
_BASE = np.random.default_rng(0).standard_normal(SIZE).astype(np.float32)


class Packing(Trainer):
    """A trainer that packs its policies."""

    def start(self) -> None:
        super().start()
        self.state.packs = True

    def publish_number(self, number: int) -> tuple[int, int]:
        values = _BASE + np.float32(number / 1_000)
        values[0] = number
        return self.state.publish(PolicyUpdate((0, 0), {"policy": Blob("safetensors", values.tobytes())}))


def number_of(worker: Worker) -> int:
    assert worker.state.policy is not None
    update: PolicyUpdate = decode_body(worker.state.policy[1], PolicyUpdate)
    values = np.frombuffer(update.policies["policy"].data, np.float32)
    assert np.array_equal(values[1:], (_BASE + np.float32(values[0] / 1_000))[1:]), "exact"
    return int(values[0])


@pytest.fixture(params=range(3))
def network(request: pytest.FixtureRequest) -> Network:
    return Network(request.param)


@pytest.fixture
def trainer(network: Network) -> Packing:
    made = Packing(network)
    made.connect()
    network.settle()
    return made


def test_a_delta_takes_fewer_bytes_than_the_policy_and_is_exact(network: Network, trainer: Packing) -> None:
    worker = Worker(network, "a")
    link = worker.connect()
    trainer.publish_number(1)
    network.settle()
    complete = link.bytes_in
    trainer.publish_number(2)
    network.settle()
    assert number_of(worker) == 2
    assert link.bytes_in - complete < 0.6 * 4 * SIZE


def test_a_worker_that_joins_late_gets_the_complete_one_and_then_the_delta(network: Network, trainer: Packing) -> None:
    for number in range(1, 5):
        trainer.publish_number(number)
        network.settle()
    trainer.pipe.cut()  # type: ignore[union-attr]
    late = Worker(network, "late")
    late.connect()
    network.settle()
    assert number_of(late) == 4, "also without the trainer"
    assert late.state.policy_version == trainer.state.version
    assert network.relay.policies.newest is network.relay.policies.delta


def test_a_worker_that_connects_again_gets_a_delta_to_what_it_has_kept(network: Network, trainer: Packing) -> None:
    worker = Worker(network, "a")
    worker.connect()
    trainer.publish_number(1)
    network.settle()
    worker.pipe.cut()  # type: ignore[union-attr]
    for number in (2, 3):
        trainer.publish_number(number)
        network.settle()
    link = worker.connect()
    network.settle()
    assert number_of(worker) == 3
    assert link.bytes_in < 0.6 * 4 * SIZE, "one that was skipped is not needed"


def test_a_trainer_that_connects_again_begins_with_a_complete_one_that_workers_need_not_get_again(
    network: Network, trainer: Packing
) -> None:
    worker = Worker(network, "a")
    link = worker.connect()
    for number in (1, 2):
        trainer.publish_number(number)
        network.settle()
    trainer.pipe.cut()  # type: ignore[union-attr]
    network.settle()
    trainer.connect()
    before = link.bytes_in
    network.settle()
    assert network.relay.policies.delta is None
    assert link.bytes_in - before < 1_000
    trainer.publish_number(3)
    network.settle()
    assert number_of(worker) == 3
    assert link.bytes_in - before < 0.6 * 4 * SIZE


def test_a_worker_without_its_base_gets_it_again(network: Network, trainer: Packing) -> None:
    worker = Worker(network, "a")
    worker.connect()
    for number in (1, 2):
        trainer.publish_number(number)
        network.settle()
    worker.state.kept.clear()
    trainer.publish_number(3)
    network.settle()
    assert (number_of(worker), worker.state.kept.misfits) == (2, 1), "it acts on with what it has"
    trainer.publish_number(4)
    network.settle()
    assert (number_of(worker), worker.state.kept.misfits) == (4, 1)


def test_a_trainer_that_stops_packing_sends_complete_policies(network: Network, trainer: Packing) -> None:
    worker = Worker(network, "a")
    worker.connect()
    for number in (1, 2):
        trainer.publish_number(number)
        network.settle()
    trainer.kill()
    trainer.state.packs = False
    trainer.connect()
    for number in (3, 4):
        trainer.publish_number(number)
        network.settle()
    assert number_of(worker) == 4
    assert worker.state.kept.base == (0, 0)
    assert network.relay.policies.delta is None


# --- the store alone ---


def frame(version: tuple[int, int], base: tuple[int, int] | None = None) -> Frame:
    """A complete policy, or a delta, in one frame."""
    head = POLICY_HEAD.pack(*version, 4) if base is None else POLICY_DELTA_HEAD.pack(*version, 4, *base)
    flags = 0 if base is None else POLICY_DELTA
    (wire,) = cut(Kind.WEIGHTS, head, [b"data"], epoch=0, channel=0, flags=flags)
    return Frame(Kind.WEIGHTS, FIRST | LAST | flags, 0, 0, bytearray(bytes(wire)))


def stored() -> Policies:
    policies = Policies(1_000)
    policies.begin_run("run")
    policies.take(frame((3, 1)), 3)
    policies.take(frame((3, 4), (3, 1)), 3)
    return policies


@pytest.mark.parametrize(
    ("have", "base", "expected"),
    [
        ((0, 0), (0, 0), (3, 1)),
        ((3, 1), (3, 1), (3, 4)),
        ((3, 3), (3, 1), (3, 4)),
        ((3, 1), (2, 9), (3, 4)),
        ((3, 1), (0, 0), (3, 1)),
        ((3, 3), (0, 0), (3, 1)),
        ((3, 3), (2, 9), (3, 1)),
        ((3, 4), (0, 0), None),
        ((3, 5), (3, 1), None),
    ],
)
def test_a_worker_gets_a_delta_only_to_what_it_keeps(
    have: tuple[int, int], base: tuple[int, int], expected: tuple[int, int] | None
) -> None:
    found = stored().version_for("run", have, base)
    assert (found.version if found is not None else None) == expected


def test_a_delta_to_another_policy_than_the_stored_one_is_the_trainers_fault() -> None:
    with pytest.raises(RemoteProtocolError, match="not stored here"):
        stored().take(frame((3, 5), (3, 4)), 3)
    with pytest.raises(RemoteProtocolError, match="not stored here"):
        Policies(1_000).take(frame((3, 5), (3, 4)), 3)


def test_a_complete_policy_replaces_both_and_an_old_delta_is_dropped() -> None:
    policies = stored()
    assert policies.take(frame((3, 3), (3, 1)), 3).abandoned
    assert policies.take(frame((3, 5), (3, 1)), 4).abandoned, "another incarnation has begun"
    policies.take(frame((3, 4)), 3)
    assert policies.latest is not None
    assert (policies.latest.version, policies.delta) == ((3, 4), None)


def test_all_that_is_stored_counts_and_goes_with_the_run() -> None:
    policies = stored()
    assert policies.held_bytes == sum(policy.size for policy in policies.held) > 0
    policies.begin_incarnation(2)
    assert policies.held == ()
    policies = stored()
    policies.begin_run("other")
    assert policies.held == ()
