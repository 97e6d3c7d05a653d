"""End-to-end authentication over TLS with bundles: restarts, other machines, renewed and revoked certificates."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.hostile.fleet import Fleet
from tests.networking.test_hostile import DEADLINE_S
from tests.waiting import until
from tmrl_core.networking.links import WorkerLink
from tmrl_core.networking.protocol.messages import Blob
from tmrl_core.networking.security import credentials
from tmrl_core.networking.security.authentication import ServerAccess
from tmrl_core.networking.security.renewal import renew, revoke
from tmrl_core.networking.security.revocations import REVOKED_FILE, SIGNED_FILE
from tmrl_core.networking.trainer.connection import PROVEN_POLICY_BYTES

WEIGHTS = {"policy": Blob("file", b"weights")}


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    with ExitStack() as stack:
        yield Fleet(tmp_path, stack)


@pytest.mark.parametrize("theirs", ["authenticate", "encrypt"])
@pytest.mark.parametrize("mode", ["authenticate", "encrypt"])
def test_samples_policies_and_acknowledgements_pass(fleet: Fleet, mode: str, theirs: str) -> None:
    fleet.server()
    trainer, worker = fleet.trainer(settings={"end_to_end": theirs}), fleet.worker(settings={"end_to_end": mode})
    trainer.publish(WEIGHTS)
    fleet.goes_on(worker, trainer)
    assert worker.wait_policy(DEADLINE_S)
    update = worker.take_policy()
    assert update is not None
    assert bytes(update.policies["policy"].data) == b"weights"
    assert (worker.counts.forged, trainer.counts.forged) == (0, 0)


def test_a_trainer_and_a_server_that_start_again_are_accepted(fleet: Fleet) -> None:
    server = fleet.server()
    trainer, worker = fleet.trainer(), fleet.worker()
    fleet.goes_on(worker, trainer)
    first = trainer.trainer.incarnation
    trainer.close()
    trainer = fleet.trainer(offsets=trainer.trainer.offsets)  # without its incarnation: the credentials folder has it
    assert trainer.trainer.incarnation == first + 1
    fleet.goes_on(worker, trainer)
    server.close()
    fleet.server()
    fleet.goes_on(worker, trainer)
    assert (worker.counts.forged, trainer.counts.forged) == (0, 0)


def test_a_trainer_without_a_checkpoint_never_uses_an_incarnation_again(fleet: Fleet) -> None:
    server = fleet.server()
    trainer = fleet.trainer()
    first = trainer.trainer.incarnation
    trainer.close()
    server.close()
    fleet.server()  # it knows of no earlier incarnation
    assert fleet.trainer().trainer.incarnation > first


def test_another_trainer_machine_continues_the_run(fleet: Fleet) -> None:
    fleet.server()
    trainer, worker = fleet.trainer(), fleet.worker()
    for _ in range(3):
        trainer.close()
        trainer = fleet.trainer(offsets=trainer.trainer.offsets)
    fleet.goes_on(worker, trainer)
    trainer.close()
    fleet.install("trainer", "hpc2")
    other = fleet.trainer("hpc2", offsets=trainer.trainer.offsets)
    fleet.goes_on(worker, other)
    assert (worker.counts.forged, other.counts.forged) == (0, 0)


def test_another_trainer_machine_continues_after_a_restart_of_the_server(fleet: Fleet, tmp_path: Path) -> None:
    server = fleet.server()
    trainer = fleet.trainer()
    for _ in range(3):
        trainer.close()
        trainer = fleet.trainer()
    worker = fleet.worker(model_path=tmp_path / "policy")
    trainer.publish(WEIGHTS)
    assert worker.wait_policy(DEADLINE_S)
    trainer.close()
    server.close()
    fleet.server()
    fleet.install("trainer", "hpc2")
    other = fleet.trainer("hpc2")
    fleet.goes_on(worker, other)
    worker.close()
    # A worker that starts again knows the incarnation from its file.
    again = fleet.worker(model_path=tmp_path / "policy")
    fleet.goes_on(again, other)


def test_samples_handed_over_without_a_trainer_wait_for_one(fleet: Fleet, tmp_path: Path) -> None:
    server = fleet.server(spool_dir=str(tmp_path / "spool"))
    worker = fleet.worker()  # it has never seen a trainer
    fleet.send(worker)
    assert worker.close().handed_over == 10
    trainer = fleet.trainer()
    seen = fleet.worker()  # this one has
    fleet.goes_on(seen, trainer)
    trainer.close()
    fleet.send(seen)
    assert seen.close().handed_over == 10
    server.close()
    fleet.server(spool_dir=str(tmp_path / "spool"))
    late = fleet.trainer(offsets=trainer.trainer.offsets)

    def done() -> bool:
        fleet.take(late)
        return len(fleet.arrived) >= fleet.sent

    until(done)
    assert sorted(fleet.arrived) == [float(number) for number in range(fleet.sent)]
    assert late.counts.forged == 0


@pytest.mark.parametrize("copied", [True, False])
def test_samples_that_were_stored_for_another_trainer_machine_need_its_key(
    fleet: Fleet, tmp_path: Path, copied: bool
) -> None:
    fleet.server(spool_dir=str(tmp_path / "spool"))
    trainer, worker = fleet.trainer(), fleet.worker()
    fleet.goes_on(worker, trainer)
    trainer.close()
    fleet.send(worker)
    assert worker.close().handed_over == 10
    older = fleet.install("trainer", "hpc2") / "run_keys" / "older"
    if copied:
        older.mkdir(parents=True)
        (key,) = (fleet.folder / "hpc" / "run_keys").glob("*.key")
        (older / key.name).write_bytes(key.read_bytes())
    late = fleet.trainer("hpc2", offsets=trainer.trainer.offsets)

    def done() -> bool:
        fleet.take(late)
        return len(fleet.arrived) >= fleet.sent or late.counts.unknown_keys > 0

    until(done)
    assert len(fleet.arrived) == (fleet.sent if copied else 10)
    assert (late.counts.unknown_keys > 0) is not copied
    assert late.counts.forged == 0


def test_renewed_certificates_of_both_ends_are_used_without_a_restart(fleet: Fleet, tmp_path: Path) -> None:
    fleet.server()
    trainer, worker = fleet.trainer(), fleet.worker()
    fleet.goes_on(worker, trainer)
    for name in ("robot", "hpc"):
        (tmp_path / "new").mkdir(exist_ok=True)
        (bundle,) = renew(fleet.authority, [name], tmp_path / "new")
        credentials.install(bundle, fleet.folder / name)
    until(lambda: trainer.counts.reconnects > 0 and worker.counts.reconnects > 0)
    fleet.goes_on(worker, trainer)
    trainer.publish(WEIGHTS)
    assert worker.wait_policy(DEADLINE_S)
    assert (worker.counts.forged, trainer.counts.forged) == (0, 0)


def test_a_revoked_worker_is_refused_by_a_trainer_that_has_the_list(fleet: Fleet) -> None:
    fleet.server()  # it has not been told: it may be hostile
    trainer, worker = fleet.trainer(), fleet.worker()
    fleet.goes_on(worker, trainer)
    revoke(fleet.authority, "robot")
    (fleet.folder / "hpc" / REVOKED_FILE).write_bytes((fleet.authority / REVOKED_FILE).read_bytes())
    until(lambda: trainer.counts.forged > 0)
    fleet.send(worker)
    fleet.install("worker", "honest")
    before, fleet.arrived, fleet.sent = fleet.sent, [], 0
    fleet.goes_on(fleet.worker("honest"), trainer)
    assert before == 20
    assert worker.counts.samples_acked == 10


def hand_out_list(fleet: Fleet) -> None:
    """Copy the lists of revoked certificates to the Server, as a person does."""
    for name in (REVOKED_FILE, SIGNED_FILE):
        (fleet.folder / "server" / name).write_bytes((fleet.authority / name).read_bytes())


def test_the_server_sends_the_list_to_ends_that_keep_it(fleet: Fleet, caplog: pytest.LogCaptureFixture) -> None:
    """Later, a Server that was taken over lets the revoked worker in again: the trainer still knows it."""
    server = fleet.server()
    trainer, worker = fleet.trainer(), fleet.worker()
    fleet.goes_on(worker, trainer)
    fleet.install("worker", "honest")
    honest = fleet.worker("honest")
    revoke(fleet.authority, "robot")
    hand_out_list(fleet)
    until(lambda: (fleet.folder / "hpc" / SIGNED_FILE).exists() and (fleet.folder / "honest" / SIGNED_FILE).exists())
    assert not (fleet.folder / "honest" / REVOKED_FILE).exists(), "workers do not learn the names of other machines"
    until(lambda: not worker.connected)
    assert honest.counts.reconnects == 0, "only ends that know the revoked machine connect again"
    worker.close(drain=False)
    server.close()
    for name in (REVOKED_FILE, SIGNED_FILE):
        (fleet.folder / "server" / name).unlink()
    fleet.server()
    trainer.close()
    trainer = fleet.trainer(offsets=trainer.trainer.offsets)
    thief = fleet.worker()
    until(lambda: trainer.counts.forged > 0)
    fleet.send(thief)
    before, fleet.arrived, fleet.sent = fleet.sent, [], 0
    fleet.goes_on(honest, trainer)
    assert before == 20
    assert thief.counts.samples_acked == 0


def test_a_trainers_bundle_has_the_list_of_that_time(fleet: Fleet) -> None:
    revoke(fleet.authority, "robot")
    fleet.server()
    fleet.install("trainer", "hpc2")
    trainer, worker = fleet.trainer("hpc2"), fleet.worker()
    fleet.send(worker)
    until(lambda: trainer.counts.forged > 0)
    assert not trainer.receive()


def keys_of(worker: WorkerLink) -> set[bytes]:
    seal = worker._worker.seal
    assert seal is not None
    return set(seal.group_keys)


def weights_of(worker: WorkerLink) -> bytes:
    assert worker.wait_policy(DEADLINE_S)
    update = worker.take_policy()
    assert update is not None
    return bytes(update.policies["policy"].data)


def test_a_revoked_worker_receives_no_later_key(fleet: Fleet) -> None:
    fleet.server()  # it has not been told: it may be hostile
    settings = {"end_to_end": "encrypt"}
    fleet.install("worker", "honest")
    trainer, honest = fleet.trainer(settings=settings), fleet.worker("honest", settings=settings)
    thief = fleet.worker(settings=settings)
    trainer.publish(WEIGHTS)
    assert weights_of(honest) == weights_of(thief) == b"weights"
    before = keys_of(thief)
    revoke(fleet.authority, "robot")
    (fleet.folder / "hpc" / REVOKED_FILE).write_bytes((fleet.authority / REVOKED_FILE).read_bytes())
    until(lambda: keys_of(honest) > before)  # and the key of the last policy
    trainer.publish({"policy": Blob("file", b"secret")})
    assert weights_of(honest) == b"secret"
    late = fleet.worker("honest", settings=settings)
    assert weights_of(late) == b"secret"
    assert keys_of(thief) == before
    assert not keys_of(late) & before
    assert not thief.wait_policy(0.2)
    assert thief.counts.forged == honest.counts.forged == 0


def test_encrypted_policies_pass_a_restart_and_wait_for_a_trainer(fleet: Fleet) -> None:
    fleet.server()
    settings = {"end_to_end": "encrypt"}
    trainer, worker = fleet.trainer(settings=settings), fleet.worker(settings=settings)
    trainer.publish({"policy": Blob("file", b"weights" * 500_000)})
    assert weights_of(worker) == b"weights" * 500_000
    trainer.close()
    late = fleet.worker(settings=settings)
    assert not late.wait_policy(0.5), "nobody can give it the key"
    trainer = fleet.trainer(settings=settings, counter=1)
    trainer.publish({"policy": Blob("file", b"newer" * 500_000)})
    for link in (worker, late):
        assert weights_of(link) == b"newer" * 500_000
    assert worker.counts.forged == late.counts.forged == 0


def test_a_large_encrypted_policy_is_opened(fleet: Fleet) -> None:
    fleet.server()
    settings = {"end_to_end": "encrypt"}
    trainer, worker = fleet.trainer(settings=settings), fleet.worker(settings=settings)
    fleet.goes_on(worker, trainer)
    weights = bytes(PROVEN_POLICY_BYTES)
    trainer.publish({"policy": Blob("file", weights)})
    assert weights_of(worker) == weights
    assert worker.counts.forged == 0


def test_a_worker_with_the_list_ignores_a_revoked_trainer(fleet: Fleet) -> None:
    fleet.server()
    revoke(fleet.authority, "hpc")
    (fleet.folder / "robot" / REVOKED_FILE).write_bytes((fleet.authority / REVOKED_FILE).read_bytes())
    trainer, worker = fleet.trainer(), fleet.worker()
    trainer.publish(WEIGHTS)
    fleet.send(worker)
    until(lambda: worker.counts.forged > 0)
    assert not worker.wait_policy(0.5)
    assert worker.counts.samples_acked == 0
    assert worker.counts.queued_samples == 10


@pytest.mark.parametrize("hides_card", [False, True])
@pytest.mark.parametrize(("machine", "file"), [("robot", REVOKED_FILE), ("server", SIGNED_FILE)])
def test_a_trainer_that_is_revoked_while_it_runs_is_ignored(
    fleet: Fleet, machine: str, file: str, hides_card: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The list comes to the worker by hand, or from a Server that does not close the trainer's link."""
    server = fleet.server()
    monkeypatch.setattr(ServerAccess, "check_certificate", lambda self, identity: None)  # the Server is the attacker's
    trainer, worker = fleet.trainer(), fleet.worker()
    fleet.goes_on(worker, trainer)
    if hides_card:
        server.relay._cards.clear()  # the worker only has the card that it has accepted before
    revoke(fleet.authority, "hpc")
    (fleet.folder / machine / file).write_bytes((fleet.authority / file).read_bytes())
    until(lambda: worker.counts.reconnects > 0)
    trainer.publish(WEIGHTS)
    fleet.send(worker)
    assert not worker.wait_policy(0.5)
    assert worker.counts.queued_samples == 10
    assert server.relay.trainer is not None


@pytest.mark.parametrize("off", ["robot", "hpc"])
def test_ends_that_differ_say_so_and_keep_the_samples(fleet: Fleet, off: str, caplog: pytest.LogCaptureFixture) -> None:
    fleet.server()
    trainer = fleet.trainer(settings={"end_to_end": "off" if off == "hpc" else None})
    worker = fleet.worker(settings={"end_to_end": "off" if off == "robot" else None})
    trainer.publish(WEIGHTS)
    fleet.send(worker)

    def said() -> set[str]:
        about = [record for record in list(caplog.records) if "end_to_end" in record.message]
        return {record.name.rpartition(".")[2] for record in about}

    until(lambda: said() >= {"worker_link", "trainer_link"})
    assert not worker.wait_policy(0.5)
    fleet.take(trainer)
    assert not fleet.arrived
    if off == "hpc":
        assert worker.counts.queued_samples == 10
