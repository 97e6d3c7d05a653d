"""Faults in words, each with a next step."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.dashboard.played import NOW, peer, scene, status, worker
from tmrl_core.dashboard.faults import Seen, faults
from tmrl_core.networking.protocol.status import BudgetStatus
from tmrl_core.networking.protocol.telemetry import Scene, SceneEvent
from tmrl_core.training.loops.limiter import RateLimiter


def seen(scene_: Scene | None = None, **values: Any) -> Seen:
    return Seen(**({"scene": scene() if scene_ is None else scene_, "status": status()} | values))


def texts(found: Seen) -> list[str]:
    for fault in faults(found):
        assert fault.step
    return [f"{fault.level}: {fault.text}" for fault in faults(found)]


def only(found: Seen) -> str:
    (text,) = texts(found)
    return text


def test_a_run_in_order_has_no_fault() -> None:
    assert texts(seen()) == []


def test_a_return_that_does_not_rise_is_no_fault() -> None:
    assert texts(seen(scene(values={"rollout/ep_rew_mean": -1400.0}))) == []


def test_without_a_server_nothing_else_is_said() -> None:
    found = seen(scene(0), state="not connected to the Server at robots.example port 5000: refused", status=status(0))
    assert (
        only(found)
        == "bad: The Server is not reached: not connected to the Server at robots.example port 5000: refused"
    )
    assert "--doctor -c FILE" in faults(found)[0].step


def test_what_a_server_shows_without_a_proof_is_told() -> None:
    found = seen(state="connected, and what the Server shows is not believed: no proof")
    assert only(found) == "bad: The Server is connected, and what the Server shows is not believed: no proof."


def test_a_missing_trainer_hides_the_age_of_its_values() -> None:
    found = seen(status=status(trainer=False), scene_age_s=500.0, command="-c my.yaml")
    assert only(found) == "bad: No trainer is linked to the Server: nothing learns."
    assert "`python -m tmrl_core --trainer -c my.yaml`" in faults(found)[0].step


def test_a_trainer_that_tells_nothing_is_told() -> None:
    assert only(seen(scene_age_s=16.0)) == "warn: The trainer has told nothing for 16 s."
    assert only(Seen(status=status())) == "note: The trainer has not told its values yet."


def test_a_missing_worker_is_told_once() -> None:
    found = seen(scene(0, state="waiting", waits="no worker"), status=status(0))
    assert only(found) == "bad: No worker is linked to the Server: no samples come."


def test_a_trainer_that_waits_tells_why() -> None:
    assert only(seen(scene(state="waiting", waits="300 of 1,000 samples"))) == (
        "warn: The trainer waits for samples: 300 of 1,000 samples"
    )


ROUND = "300 of 1000 steps of round 4 have arrived, 1 worker is there"


@pytest.mark.parametrize("waits", [RateLimiter(max_updates_per_sample=0.5).shortfall(samples=10, updates=6), ROUND])
def test_a_trainer_that_has_made_its_updates_is_in_order_while_samples_come(waits: str) -> None:
    in_turn = scene(1, state="waiting", waits=waits)
    assert texts(seen(in_turn)) == []
    silent = (worker(0, last_sample_s=60.0, waits="an update"),)
    for found in (
        msgspec.structs.replace(in_turn, workers=silent),
        msgspec.structs.replace(in_turn, waits=f"{waits}, trainer.lockstep.min_workers is 2"),
    ):
        assert only(seen(found)) == f"warn: The trainer waits for samples: {found.waits}"


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"last_sample_s": 31.0}, "warn: robot1 has sent no samples for 31 s."),
        ({"last_sample_s": None, "since_s": 40.0}, "warn: robot1 has sent no samples for 40 s."),
        ({"last_sample_s": 31.0, "waits": "a policy"}, ""),
        ({"last_sample_s": 31.0, "paused": True}, "note: robot1 has been paused by an order."),
        ({"drops": 1234}, "warn: 1,234 samples of robot1 never arrived."),
        ({"refused": "another space"}, "bad: Samples of robot1 are refused: another space"),
    ],
)
def test_a_worker(changes: dict[str, Any], text: str) -> None:
    told = scene(workers=1)
    told = msgspec.structs.replace(told, workers=(worker(0, **changes),))
    assert texts(seen(told)) == ([text] if text else [])


def test_an_age_grows_with_that_of_the_scene() -> None:
    told = msgspec.structs.replace(scene(), workers=(worker(0, last_sample_s=25.0),))
    assert texts(seen(told, scene_age_s=4.0)) == []
    assert only(seen(told, scene_age_s=6.0)) == "warn: robot1 has sent no samples for 31 s."


def test_many_workers_with_one_fault_are_one_entry() -> None:
    told = msgspec.structs.replace(scene(), workers=tuple(worker(i, last_sample_s=60.0 + i) for i in range(50)))
    assert only(seen(told, status=status(50))) == (
        "warn: robot1, robot2, robot3 and 47 more have sent no samples for 109 s."
    )
    told = msgspec.structs.replace(scene(), workers=tuple(worker(i, last_sample_s=60.0) for i in range(2)))
    assert only(seen(told)) == "warn: robot1 and robot2 have sent no samples for 60 s."


def test_workers_are_not_silent_while_training_is_paused() -> None:
    told = scene(state="paused", waits="paused by anna")
    told = msgspec.structs.replace(told, workers=(worker(0, last_sample_s=100.0),))
    assert only(seen(told)) == "note: Training is paused by anna."


def test_updates_that_were_taken_back_are_told() -> None:
    assert only(seen(scene(values={"train/updates_skipped": 3.0}))) == (
        "warn: 3 updates gave NaN or Inf and were taken back."
    )


def test_a_full_disk_is_told() -> None:
    event = SceneEvent(NOW, "storage", "the disk of /runs is full")
    assert only(seen(scene(events=(event, event)))) == "bad: the disk of /runs is full"


def test_a_full_spool_is_told() -> None:
    budgets = {"spool": BudgetStatus(used_bytes=96_000_000, limit_bytes=100_000_000)}
    assert only(seen(status=status(budgets=budgets))) == (
        "bad: The Server's spool is full (96 MB): samples of workers that end are lost."
    )


def test_forged_messages_are_told() -> None:
    found = status(peers=(peer("worker", "robot1", forged=2),))
    assert only(seen(status=found)) == "bad: Messages without a valid proof of their origin reached robot1."


def test_the_end_of_a_run_is_no_fault() -> None:
    assert only(seen(scene(0, state="ended"), status=status(0, trainer=False))) == "note: The run has ended."


def test_hidden_values_are_told() -> None:
    assert only(seen(scene(hidden="the run is encrypted"))) == "note: Values are left out: the run is encrypted"


def test_a_recorded_run_needs_no_server() -> None:
    assert texts(Seen(scene=scene(0), recorded=True, scene_age_s=1e6)) == []
    assert only(Seen(state="/runs/a has no metrics.jsonl", recorded=True)) == (
        "bad: The run is not reached: /runs/a has no metrics.jsonl"
    )


def test_the_worst_comes_first() -> None:
    told = msgspec.structs.replace(
        scene(), workers=(worker(0, paused=True), worker(1, drops=1), worker(2, refused="another space"))
    )
    assert [fault.level for fault in faults(seen(told))] == ["bad", "warn", "note"]
