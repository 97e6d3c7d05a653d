"""The pure parts of `benchmarks/learning`: curves as files, the same settings in two libraries' words, the table."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.benchmarks.scripts import imported
from tmrl_core.config import load
from tmrl_core.metrics import MetricRecord
from tmrl_core.metrics import record as made

FOLDER = Path(__file__).resolve().parents[3] / "benchmarks" / "learning"
MODULES = ("curves", "seeds", "run", "peer_settings", "published", "table")
# FlashSAC has no implementation in the other libraries.
TASKS = sorted({path.stem for path in FOLDER.glob("*.yaml")} - {"plan", "flashsac"})


@pytest.fixture(scope="module")
def modules() -> Iterator[dict[str, Any]]:
    """The scripts' modules, imported as when they are run."""
    with imported(FOLDER, MODULES) as found:
        yield found


def test_a_curve_is_read_as_it_was_written(modules: dict[str, Any], tmp_path: Path) -> None:
    curves = modules["curves"]
    curve = [curves.Point(2048, 21.5, 3.25, 1.5, 20.0), curves.Point(4096, -0.125, 0.0, 3.0, -1.0)]
    path = tmp_path / "new" / "curve.csv"
    curves.write(path, curve)
    assert path.read_text().splitlines()[0] == "steps,mean,std,seconds,train"
    assert curves.read(path) == curve
    path.write_text("a,b\n1,2\n")
    with pytest.raises(ValueError, match="no learning curve"):
        curves.read(path)


def record(kind: Any, elapsed_s: float, **values: float) -> MetricRecord:
    return made(kind, values, step=0, elapsed_s=elapsed_s, time_s=0.0)


@pytest.mark.parametrize(("steps_per_round", "steps"), [(2048, [2048, 6144]), (None, [2060, 6170])])
def test_evaluations_become_points_at_the_steps_learned_from(
    modules: dict[str, Any], steps_per_round: int | None, steps: list[int]
) -> None:
    played = {"return_evaluation": 5.0, "return_evaluation_std": 1.0}
    records = [
        record("round", 1.0, rounds=1),
        record("evaluation", 2.0, samples_received=2060, **played),
        record("round", 3.0, rounds=2),
        record("episode", 3.5, return_train=1.0),
        record("episode", 3.6, return_train=3.0),
        record("episode", 3.7, return_evaluation=9.0),
        record("round", 4.0, rounds=3),
        record("evaluation", 5.0, samples_received=6170, **played),
    ]
    points = modules["curves"].points_of(records, steps_per_round)
    assert [points[1].train, math.isnan(points[0].train)] == [2.0, True]
    assert [(point.steps, point.mean, point.std, point.seconds) for point in points] == [
        (steps[0], 5.0, 1.0, 2.0),
        (steps[1], 5.0, 1.0, 5.0),
    ]


@pytest.mark.parametrize("task", TASKS)
def test_both_sides_learn_a_task_with_the_same_settings(modules: dict[str, Any], task: str) -> None:
    config = load(FOLDER / f"{task}.yaml", [], {})
    settings = modules["peer_settings"].peer_settings(config)
    ours = config.agent.kwargs
    assert settings.kwargs["gamma"] == ours["gamma"]
    assert settings.evaluate_at[-1] == settings.steps, "the last evaluation is that of all that was learned"
    if settings.algorithm == "PPO":
        lockstep, kwargs = config.trainer.lockstep, settings.kwargs
        assert lockstep.steps_per_round is not None
        assert kwargs["n_steps"] * settings.envs == lockstep.steps_per_round
        assert settings.steps == config.trainer.epochs * config.trainer.rounds * lockstep.steps_per_round
        assert (kwargs["n_epochs"], kwargs["batch_size"]) == (ours["update_epochs"], ours["minibatch_size"])
        assert kwargs["policy_kwargs"]["net_arch"]["pi"] == config.actor.kwargs["hidden_sizes"]
        normalize = settings.normalize or {"norm_obs": False, "norm_reward": False, "gamma": ours["gamma"]}
        assert normalize["norm_obs"] == config.actor.kwargs.get("normalize_observations", False)
        assert normalize["norm_reward"] == ours.get("normalize_rewards", False)
        assert normalize["gamma"] == ours["gamma"]
        every = kwargs["n_epochs"] * lockstep.steps_per_round / kwargs["batch_size"]
        rounds = config.trainer.evaluation.every_updates / every
        assert settings.evaluate_at[0] == rounds * lockstep.steps_per_round
    else:
        assert settings.kwargs["learning_rate"] == ours["lr_actor"]
        assert settings.kwargs["learning_starts"] == config.trainer.start_training
        architecture = settings.kwargs["policy_kwargs"]["net_arch"]
        hidden = config.actor.kwargs["hidden_sizes"]
        assert architecture == (
            {"pi": hidden, "qf": ours["critic_sizes"]} if settings.algorithm == "CrossQ" else hidden
        )


def test_the_rate_falls_as_ours_does(modules: dict[str, Any]) -> None:
    rounds = 10
    schedule = modules["peer_settings"].rate(1e-3, 0.1, 5, rounds)
    # Asked for with one round behind it, it is that of our first round.
    found = [schedule(1.0 - (number + 1) / rounds) for number in range(rounds)]
    ours = [1e-3 * (1.0 + min(1.0, number / 5) * (0.1 - 1.0)) for number in range(rounds)]
    assert found == pytest.approx(ours)


@pytest.mark.parametrize(
    ("task", "change", "message"),
    [
        ("cartpole", "agent.kwargs.optimizer=sgd", "optimizer"),
        ("cartpole", "trainer.lockstep.min_workers=3", "not the same for each of 3 workers"),
        ("pendulum", "agent.kwargs.lr_critic=3e-4", "one learning rate"),
        ("pendulum", "agent.cls=tmrl_core.training:TD3Agent", "only PPOAgent, SacAgent, CrossQAgent, TQCAgent are"),
    ],
)
def test_unsupported_policies_cannot_be_translated(
    modules: dict[str, Any], task: str, change: str, message: str
) -> None:
    other = ["actor.cls=tmrl_core.actor:DeterministicMLPActor", "agent.kwargs={}"]
    changes = [change] + (other if "TD3" in change else [])
    config = load(FOLDER / f"{task}.yaml", changes, {})
    with pytest.raises(ValueError, match=message):
        modules["peer_settings"].peer_settings(config)


def test_intervals_are_those_of_students_t(modules: dict[str, Any]) -> None:
    table = modules["table"]
    assert table.interval([1.0, 2.0, 3.0]) == pytest.approx(4.303 / math.sqrt(3))
    assert math.isinf(table.interval([1.0]))
    # Equal variances: the degrees of freedom are those of both samples together.
    apart, width = table.difference([1.0, 2.0, 3.0], [2.0, 3.0, 4.0])
    assert (apart, width) == (-1.0, pytest.approx(2.776 * math.sqrt(2 / 3)))
    # One side without variance: those of the other side alone.
    assert table.difference([5.0, 5.0], [1.0, 2.0, 3.0])[1] == pytest.approx(4.303 / math.sqrt(3))
    assert table.difference([5.0, 5.0], [5.0, 5.0]) == (0.0, 0.0)
    assert math.isinf(table.difference([5.0], [5.0, 6.0])[1])


def test_only_the_fixed_seeds_are_run_and_none_twice(
    modules: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    curves, run, seeds = modules["curves"], modules["run"], modules["seeds"].SEEDS
    arguments = run.parser_of(None).parse_args(["cartpole", "--folder", str(tmp_path)])

    def learned(seed: int) -> Any:
        return [curves.Point(1000, float(seed), 0.0, 1.0)]

    run.run_seeds("ours", arguments, learned)
    assert sorted(modules["table"].load(tmp_path, "cartpole", "ours")) == list(seeds)
    with pytest.raises(SystemExit, match="added, not edited"):
        run.run_seeds("ours", arguments, learned)
    with pytest.raises(SystemExit):
        run.parser_of(None).parse_args(["cartpole", "--seed", str(len(seeds))])
    assert "invalid choice" in capsys.readouterr().err


def test_only_steps_that_all_curves_have_count(modules: dict[str, Any]) -> None:
    curves, table = modules["curves"], modules["table"]

    def curve(values: list[float], late: int = 0) -> list[Any]:
        return [curves.Point(1000 * (1 + at) + late, value, 0.0, 1.0, 2 * value) for at, value in enumerate(values)]

    ours = {1: curve([0, 1, 2, 3, 4, 100]), 0: curve([0, 3, 4, 5, 6])}
    theirs = {0: curve([0, 4, 4, 4, 4], late=3)}
    steps = table.common([ours, theirs])
    assert steps == 5000
    side = table.summary(ours, steps)
    assert side.ends == (5.0, 3.0)
    assert (side.end, side.last, side.whole) == (4.0, 5.0, 2.8)
    assert side.trains == (10.0, 6.0)
    assert math.isclose(table.summary(theirs, steps).end, 4.0)
    line = table.row("cartpole", ours, theirs)
    assert line.startswith("| cartpole | 5,000 | 2 / 1 of 10 | 4 ± 13 | 4 (no interval) | +0 (no interval) |")
    assert table.seed_rows("cartpole", ours, theirs) == [
        "| cartpole | ours | 2 | 5, 3 | 10, 6 |",
        "| cartpole | stable-baselines3 | 1 | 4 | 8 |",
    ]
    assert not table.complete(ours, theirs)
    with pytest.raises(ValueError, match="no curve"):
        table.common([ours, {}])


def test_a_picture_is_drawn(modules: dict[str, Any], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    curves = modules["curves"]
    side = {0: [curves.Point(1000, 1.0, 0.0, 1.0), curves.Point(2000, 2.0, 0.0, 2.0)]}
    modules["table"].draw(tmp_path / "one.png", "cartpole", side, side)
    assert (tmp_path / "one.png").stat().st_size > 1000
