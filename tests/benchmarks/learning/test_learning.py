"""The pure parts of `benchmarks/learning`: curves as files, and the same settings in two libraries' words."""

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
MODULES = ("curves", "run", "peer_settings")
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


def test_a_curve_goes_to_the_file_that_is_named(
    modules: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    curves, run = modules["curves"], modules["run"]
    file = tmp_path / "curve.csv"
    arguments = run.parser_of(None).parse_args(["cartpole", "--seed", "3", "--out", str(file)])
    run.run_seed(arguments, lambda seed: [curves.Point(1000, float(seed), 0.0, 1.0)])
    assert [point.mean for point in curves.read(file)] == [3.0]
    assert "cartpole seed 3:    1000 steps" in capsys.readouterr().out
