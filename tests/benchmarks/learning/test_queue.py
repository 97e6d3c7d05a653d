"""The plan of learning curves, its queue and its table."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.benchmarks.scripts import imported
from tmrl_core.storage.lock import FolderLock

FOLDER = Path(__file__).resolve().parents[3] / "benchmarks" / "learning"
MODULES = ("curves", "run", "plan", "ratios", "learning_queue")
PLAN = """
- {task: sac, environment: Hopper-v5, steps: 100000, seeds: [0, 1], beside: sb3}
- {task: flashsac, environment: Hopper-v5, steps: 60000, seeds: [0], beside: sac}
"""


@pytest.fixture(scope="module")
def modules() -> Iterator[dict[str, Any]]:
    """The scripts' modules, imported as when they are run."""
    with imported(FOLDER, MODULES) as found:
        yield found


@pytest.fixture
def rows(modules: dict[str, Any], tmp_path: Path) -> Any:
    (tmp_path / "plan.yaml").write_text(PLAN)
    return modules["plan"].read_plan(tmp_path / "plan.yaml")


def result(modules: dict[str, Any], run: Any, *means: float) -> Any:
    point = modules["curves"].Point
    curve = [point(20_000 * (1 + at), mean, 1.0, 2.0, 3.0) for at, mean in enumerate(means)]
    return modules["plan"].Result(run=run, curve=curve, wall_s=9.0, core_s=3600.0, ended="2026-11-28", versions={})


def test_the_first_seed_of_all_rows_runs_first(modules: dict[str, Any], rows: Any) -> None:
    assert [run.name for run in modules["plan"].planned(rows)] == [
        "Hopper-v5_sac_ours_0",
        "Hopper-v5_sac_sb3_0",
        "Hopper-v5_flashsac_ours_0",
        "Hopper-v5_sac_ours_1",
        "Hopper-v5_sac_sb3_1",
    ]


def test_what_has_a_result_is_not_missing(modules: dict[str, Any], rows: Any, tmp_path: Path) -> None:
    plan = modules["plan"]
    first, *others = plan.planned(rows)
    written = result(modules, first, 1.0)
    path = plan.write(written, tmp_path / "results")
    assert plan.read(path) == written
    assert plan.missing(rows, tmp_path / "results") == others
    assert plan.results(rows, tmp_path / "results") == {first: written}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- {task: sac}", "missing required field"),
        (PLAN.replace("seeds", "seed"), "seed"),
        (PLAN.replace("flashsac", "flashy"), "no flashy.yaml"),
        (PLAN.replace("beside: sac", "beside: tqc"), "flashsac in Hopper-v5 is beside tqc"),
        (PLAN.replace("seeds: [0]", "seeds: [7]"), "these seeds"),
    ],
)
def test_a_plan_that_cannot_be_run_is_refused(modules: dict[str, Any], text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "plan.yaml").write_text(text)
    with pytest.raises(SystemExit, match=message):
        modules["plan"].read_plan(tmp_path / "plan.yaml")


def test_the_committed_plan_has_runs_of_whole_epochs(modules: dict[str, Any]) -> None:
    plan, queue = modules["plan"], modules["learning_queue"]
    runs = list(plan.planned(plan.read_plan()))
    assert len({run.name for run in runs}) == len(runs)
    kinds = {(run.task, run.environment, run.steps): run for run in runs}
    settings = {kind: queue.settings_of(run) for kind, run in kinds.items()}
    assert settings["flashsac", "HalfCheetah-v5", 60_000] == [
        "environment.kwargs.id=HalfCheetah-v5",
        "trainer.epochs=10",
    ]
    odd = plan.Run("sac", "Hopper-v5", 12_345, "ours", 0)
    with pytest.raises(SystemExit, match="not whole epochs"):
        queue.settings_of(odd)


def test_every_result_is_of_the_plan_and_small(modules: dict[str, Any]) -> None:
    plan = modules["plan"]
    paths = sorted(plan.RESULTS.glob("*")) if plan.RESULTS.exists() else []
    assert set(paths) <= {plan.path_of(run) for run in plan.planned(plan.read_plan())}
    for path in paths:
        found = plan.read(path)
        assert plan.path_of(found.run) == path
        assert found.curve[-1].steps >= 0.98 * found.run.steps
        assert path.stat().st_size < 10_000


def test_a_ratio_has_an_interval_from_three_seeds_on(modules: dict[str, Any]) -> None:
    ratios = modules["ratios"]
    rng = np.random.default_rng(0)
    same = np.array([5000.0] * 3)
    assert ratios.ratio(np.array([4000.0, 5000.0, 6000.0]), same, rng).told() == ("1.00", "0.87 to 1.13")
    assert ratios.ratio(same[:2] * 2, same, rng).told() == ("2.00", "n < 3: none")
    assert ratios.ratio(same, np.array([-1.0, 2.0, 3.0]), rng).told() == ("-", "-")
    twice, half = ratios.ratio(same * 2, same, rng), ratios.ratio(same / 2, same, rng)
    assert ratios.geometric_mean([twice, half]).told() == ("1.00", "1.00 to 1.00")


def test_the_table_compares_at_equal_steps_and_prints_n(modules: dict[str, Any], rows: Any) -> None:
    runs = list(modules["plan"].planned(rows))
    found = {
        runs[0]: result(modules, runs[0], 10.0, 20.0, 30.0, 40.0, 50.0),  # at 60,000 steps: 20
        runs[2]: result(modules, runs[2], 20.0, 40.0, 60.0),
    }
    lines = modules["ratios"].lines(rows, found)
    assert len(lines) == 3, "a row without results on both sides is left out"
    assert lines[2] == (
        "| flashsac | Hopper-v5 | 60,000 | 1 / 1 of 1 | 40 | sac 20 | 2.00 | n < 3: none | 1.00 / 1.00 |"
    )


def test_a_run_is_ended_at_the_deadline(modules: dict[str, Any], tmp_path: Path) -> None:
    queue = modules["learning_queue"]
    with pytest.raises(queue.Stopped):
        queue._run([sys.executable, "-c", "import time; time.sleep(60)"], tmp_path, time.monotonic())


def test_a_missing_package_is_named_before_the_first_run(
    modules: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    queue = modules["learning_queue"]
    monkeypatch.setattr(queue, "NEEDED", ("numpy", "no-such-package"))
    monkeypatch.setattr(sys, "argv", ["learning_queue.py", "--run", "--results", str(tmp_path)])
    with pytest.raises(SystemExit, match="no-such-package is not installed"):
        queue.main()


def test_a_run_of_another_process_is_left_to_it(
    modules: dict[str, Any], rows: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    queue = modules["learning_queue"]
    runs = list(modules["plan"].planned(rows))
    monkeypatch.setattr(queue, "NEEDED", ("numpy",))
    monkeypatch.chdir(tmp_path)
    options = "--run --plan plan.yaml --results results --work work"
    monkeypatch.setattr(sys, "argv", ["learning_queue.py", *options.split()])
    with contextlib.ExitStack() as held:
        for run in runs:
            held.enter_context(FolderLock(tmp_path / "work" / run.name, "a run"))
        assert queue.main() == 0
    assert not (tmp_path / "results").exists()
    assert len(list((tmp_path / "work").iterdir())) == len(runs)


def test_a_failing_run_names_its_output(modules: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(modules["learning_queue"].Failed, match="ended with 1: see "):
        modules["learning_queue"]._run([sys.executable, "-c", "1 / 0"], tmp_path, float("inf"))
    assert "ZeroDivisionError" in (tmp_path / "output.txt").read_text()
