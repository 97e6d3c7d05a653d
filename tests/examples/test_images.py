"""The example of images: its environment, its policy, and both trained and played from the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from gymnasium.utils.env_checker import check_env

from tests.command_line import in_this_process

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "images"


@pytest.fixture(autouse=True)
def _found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLE))


def make() -> Any:
    from catch import Catch  # type: ignore[import-not-found,unused-ignore]

    return Catch()


def test_the_environment_keeps_gymnasiums_rules() -> None:
    check_env(make(), skip_render_check=True)


def test_every_ball_can_be_caught() -> None:
    for seed in range(20):
        env = make()
        env.reset(seed=seed)
        over, reward = False, 0.0
        while not over:
            side = env.column - env.paddle
            _, reward, over, _, _ = env.step(1 + (side > 0) - (side < 0))
        assert reward == 1.0


def test_the_policy_takes_images_and_takes_its_weights_over() -> None:
    from catch import ConvQActor, ConvQNetwork

    env = make()
    trained = ConvQNetwork(env.observation_space, env.action_space, channels=4).actor
    acting = ConvQActor(env.observation_space, env.action_space, channels=4)
    acting.from_bytes(trained.to_bytes(), "cpu")
    acting.set_exploration({"epsilon": 0.0})
    for seed in range(5):
        obs, _ = env.reset(seed=seed)
        assert acting.act_(obs) == trained.act_(obs, test=True)
        assert env.action_space.contains(acting.act_(obs))
    assert trained.index(torch.tensor([[0], [2]])).tolist() == [0, 2]


@pytest.mark.parametrize("name", ["catch", "own_network"])
def test_it_trains_and_plays_from_the_command_line(name: str, tmp_path: Path) -> None:
    given = ("-c", str(EXAMPLE / f"{name}.yaml"))
    changes = ["epochs=1", "rounds=1", "steps=40", "start_training=200", "evaluation.every_updates=0"]
    changes += ["evaluation.target_return=null", "evaluation.time_limit_s=null"]
    short = [word for change in changes for word in ("--set", f"trainer.{change}")]
    with in_this_process(tmp_path, ["catch"]) as run:
        trained = run("--local", "--single-process", "--workers", "1", *given, *short)
        assert trained.returncode == 0, trained.stderr
        played = run("--test", "--episodes", "2", *given)
        assert played.returncode == 0, played.stderr
    assert "mean return of 2 episodes" in played.stdout
