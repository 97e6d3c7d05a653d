"""Content of the page: processes, workers, curves."""

from __future__ import annotations

import msgspec
import pytest

from tests.dashboard.played import history, scene, status, worker
from tmrl_core.dashboard.faults import Seen
from tmrl_core.dashboard.screen import MOST_ROWS, Screen, curves, screen


def shown(seen: Seen, *, may_order: bool = False) -> Screen:
    return screen(seen, None, may_order=may_order)


def parts(found: Screen) -> dict[str, tuple[str, str]]:
    return {part.name: (part.level, part.text) for part in found.parts}


def test_processes_in_order() -> None:
    assert parts(shown(Seen(scene=scene(), status=status()))) == {
        "Server": ("good", "up 31:40, 61.0 MB"),
        "Trainer": ("good", "training, linked for 30:30"),
        "Workers": ("good", "3 of 3 in order"),
    }


def test_without_a_server_the_others_are_unknown() -> None:
    found = parts(shown(Seen(state="not connected", scene=scene(), status=status())))
    assert [level for level, _ in found.values()] == ["bad", "off", "off"]


def test_without_a_server_workers_are_not_in_order() -> None:
    rows = shown(Seen(state="not connected", scene=scene(), status=status())).workers
    assert {(row.level, row.state) for row in rows} == {("off", "unknown")}


def test_without_a_trainer_workers_come_from_the_server() -> None:
    found = shown(Seen(scene=scene(), status=status(2, trainer=False, refused_peers=4)))
    assert parts(found)["Trainer"] == ("bad", "not linked")
    assert parts(found)["Server"] == ("good", "up 31:40, 61.0 MB, refused 4")
    assert [(row.name, row.level, row.last_sample_s) for row in found.workers] == [
        ("robot1", "off", None),
        ("robot2", "off", None),
    ]


def test_before_the_first_scene() -> None:
    found = shown(Seen(status=status(0)))
    assert parts(found)["Trainer"] == ("note", "linked, no values yet")
    assert parts(found)["Workers"] == ("bad", "none is linked")
    assert found.scene is None


def test_the_worst_worker_comes_first() -> None:
    workers = (
        worker(0),
        worker(1, waits="a policy"),
        worker(2, drops=3),
        worker(3, last_sample_s=29.0),
        worker(4, refused="another space"),
        worker(5, paused=True),
    )
    told = msgspec.structs.replace(scene(), workers=workers)
    found = shown(Seen(scene=told, status=status(6), scene_age_s=2.0))
    assert [(row.name, row.state) for row in found.workers] == [
        ("robot5", "refused"),
        ("robot3", "loses samples"),
        ("robot4", "silent"),
        ("robot2", "waits: a policy"),
        ("robot6", "paused"),
        ("robot1", "collecting"),
    ]
    assert found.workers[-1].last_sample_s == 2.4
    assert found.workers[-1].lateness_ms == pytest.approx(1.2)
    assert parts(found)["Workers"] == ("warn", "3 of 6 in order")


def test_workers_that_are_left_out_are_counted() -> None:
    told = msgspec.structs.replace(scene(3), workers_left_out=97)
    assert parts(shown(Seen(scene=told, status=status(100, peers=()))))["Workers"][1] == (
        "3 of 3 in order, 97 more not shown"
    )


@pytest.mark.parametrize("trainer", [True, False])
def test_a_page_of_a_thousand_workers_has_few_rows(trainer: bool) -> None:
    peer = next(peer for peer in status(1).peers if peer.role == "worker")
    peers = tuple(msgspec.structs.replace(peer, name=f"robot{number + 1}") for number in range(1_000))
    told = msgspec.structs.replace(scene(60), workers_left_out=940)
    found = shown(Seen(scene=told, status=status(1_000, peers=peers, trainer=trainer)))
    if trainer:
        assert parts(found)["Workers"] == ("good", "60 of 60 in order, 940 more not shown")
        assert {row.state for row in found.workers} == {"collecting"}
    else:
        assert parts(found)["Workers"][1].endswith("936 more not shown")
    assert len(found.workers) == (60 if trainer else MOST_ROWS)


def test_buttons_need_an_operator_and_a_trainer_that_obeys() -> None:
    seen = Seen(scene=scene(), status=status())
    assert not shown(seen).may_order
    assert shown(seen, may_order=True).may_order
    assert not shown(Seen(scene=scene(takes_orders=False), status=status()), may_order=True).may_order


def test_a_recorded_run_has_no_processes() -> None:
    found = shown(Seen(scene=scene(0), recorded=True))
    assert ([part.name for part in found.parts], found.workers, found.recorded) == (["Records"], [], True)


def test_curves_are_columns_of_short_numbers() -> None:
    found = curves(history(300))["series"]["rollout/ep_rew"]
    assert {len(column) for column in found.values()} == {300}
    assert max(len(repr(value)) for value in found["values"]) <= 7
    assert found["steps"][-1] == 41_000
