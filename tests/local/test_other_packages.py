"""Parts of another package, that of CONTRIBUTING.md: only its entry points make it known."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.command_line import in_this_process
from tests.walkthrough import FILES, MODULES, install
from tmrl_core.config import load
from tmrl_core.errors import ConfigError

ROOT = Path(__file__).resolve().parents[2]

QUICK = """
run: {name: crr}
actor: {kwargs: {hidden_sizes: [8]}}
worker: {max_env_steps_per_update: 8, max_samples_per_episode: 50}
server: {port: 0}
memory: {batch_size: 16}
trainer:
  epochs: 1
  rounds: 1
  steps: 100
  start_training: 100
  update_model_interval: 20
  update_buffer_interval: 20
  device: cpu
  evaluation: {episodes: 2, every_updates: 100, target_return: -1.0e+6, time_limit_s: 60}
"""
WITHOUT_TORCH = """
import json, sys
sys.modules["torch"] = None  # importing it raises
from pathlib import Path
import numpy as np
from tmrl_core.actor import choose_actor
from tmrl_core.config import environment_maker, load
from tmrl_core.config.loading import from_values
from tmrl_core.errors import ConfigError
config = load(Path("crr.yaml"), (), {})
env = environment_maker(config.environment.cls, config.environment.kwargs)()
actor = choose_actor(config.actor.cls, config.actor.kwargs)(env.observation_space, env.action_space)
actor = actor.load(Path(sys.argv[1]), "cpu")
actions = [float(actor.act(env.observation_space.sample(), test=True)[0]) for _ in range(20)]
refused = []
for agent in ({"exploration_noise": -1.0}, {"nois": 2}):
    try:
        from_values({"actor": {"cls": config.actor.cls}, "agent": {"cls": config.agent.cls, "kwargs": agent}})
    except ConfigError as exc:
        refused.append(str(exc))
print(json.dumps([type(actor).__name__, actions, refused]))
"""


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A folder in which the package of CONTRIBUTING.md is installed, with an entry point that leads nowhere."""
    folder = tmp_path / "site"
    install(folder)
    points = folder / "acme_rl-1.0.dist-info" / "entry_points.txt"
    broken = "[tmrl_core.agents]\nBrokenAgent = acme_rl.nothing:Settings\n"
    points.write_text(points.read_text(encoding="utf-8").replace("[tmrl_core.agents]\n", broken), encoding="utf-8")
    return folder


def test_parts_of_another_package_train_resume_and_act_without_torch(
    tmp_path: Path, package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = {**yaml.safe_load(FILES["crr.yaml"]), "server": {"port": 0}}
    for section, values in yaml.safe_load(QUICK).items():
        config[section] = {**config.get(section, {}), **values}
    (tmp_path / "crr.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    monkeypatch.syspath_prepend(str(package))
    local = ("--local", "--single-process", "--workers", "1", "-c", "crr.yaml")
    with in_this_process(tmp_path, MODULES) as run:
        first = run(*local)
        assert first.returncode == 0, first.stderr
        again = run(*local, "--set", "trainer.epochs=2", "--set", "agent.kwargs.lr=1e-4")
        assert again.returncode == 0, again.stderr
        wrong = run(*local, "--set", "actor.cls=tmrl_core.actor:QValueMLPActor")
        broken = run(*local, "--set", "agent.cls=acme_rl.crr:BrokenAgent")
    assert "agent.settings.lr: 0.001 in the checkpoint, 0.0001 from now on" in again.stderr
    assert "does not go with agent.cls: acme_rl.crr:CrrAgent" in wrong.stderr
    assert (broken.returncode, "acme_rl.nothing" in broken.stderr) == (2, True)
    assert "train/critic_loss" in (tmp_path / "runs" / "crr" / "crr.csv").read_text(encoding="utf-8")
    policy = tmp_path / "runs" / "crr" / "policy.tmod"
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(package)])}
    found = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH, str(policy)],
        cwd=tmp_path, env=environ, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert found.returncode == 0, found.stderr
    name, actions, refused = json.loads(found.stdout)
    assert name == "NumpyDeterministicMLPActor"
    assert len(set(actions)) > 1
    assert "agent.kwargs.exploration_noise: found -1.0, allowed: 0 or more" in refused[0]
    assert "agent.kwargs.nois: CrrAgent takes no such keyword argument" in refused[1]


def test_a_class_of_the_same_name_is_another_one(
    tmp_path: Path, package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(package))
    (tmp_path / "own.yaml").write_text("agent: {cls: 'own:CrrAgent', kwargs: {anything: 1}}", encoding="utf-8")
    load(tmp_path / "own.yaml", (), {})


def test_an_entry_point_that_cannot_be_loaded_is_named(
    tmp_path: Path, package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(package))
    (tmp_path / "own.yaml").write_text("agent: {cls: 'acme_rl.crr:BrokenAgent'}", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"acme_rl\.nothing"):
        load(tmp_path / "own.yaml", (), {})
