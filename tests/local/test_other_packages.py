"""An algorithm of another package, which only its entry point makes known."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.command_line import in_this_process
from tmrl_core.config import load
from tmrl_core.errors import ConfigError

ROOT = Path(__file__).resolve().parents[2]

SETTINGS = """
from typing import Annotated

from tmrl_core.config.algorithms import BOX
from tmrl_core.training.agents.settings import AT_LEAST_1, OffPolicySettings


class PullSettings(
    OffPolicySettings,
    agent="acme_pull.agent:PullAgent",
    action_spaces=BOX,
    actors=frozenset({"DeterministicMLPActor"}),
):
    lr: Annotated[float, "learning rate"] = 1e-2
    every: Annotated[int, AT_LEAST_1, "calls between two steps"] = 1
"""
AGENT = '''
from acme_pull.pull_settings import PullSettings
from tmrl_core.training import DeterministicActorCritic, OffPolicyAgent
from tmrl_core.training.agents.declared import takes
from tmrl_core.training.agents.optimizers import make_optimizer, minimise


@takes(PullSettings, DeterministicActorCritic)
class PullAgent(OffPolicyAgent):
    """Pull every action towards 0.5."""

    settings: PullSettings

    def prepare(self):
        self.updates = 0
        self.optimizer = make_optimizer("adam", self.model.actor.parameters(), self.settings.lr)

    def target_pairs(self):
        return []

    def update(self, transitions):
        self.updates += 1
        loss = (self.model.actor(transitions.obs) - 0.5).square().mean()
        if self.updates % self.settings.every == 0:
            minimise(self.optimizer, loss)
        return {"loss_actor": loss.detach()}
'''
CONFIGURATION = """
run: {name: pulled}
environment: {cls: "tmrl_core.envs:GenericGymEnv", kwargs: {id: Pendulum-v1, to_float32: true}}
actor: {cls: "tmrl_core.actor:DeterministicMLPActor", kwargs: {hidden_sizes: [8]}}
agent: {cls: "acme_pull.agent:PullAgent", kwargs: {every: 2}}
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
config = load(Path("pull.yaml"), (), {})
env = environment_maker(config.environment.cls, config.environment.kwargs)()
actor = choose_actor(config.actor.cls, config.actor.kwargs)(env.observation_space, env.action_space)
actor = actor.load(Path(sys.argv[1]), "cpu")
actions = [float(actor.act(env.observation_space.sample(), test=True)[0]) for _ in range(20)]
refused = []
for agent in ({"every": 0}, {"evry": 2}):
    try:
        from_values({"actor": {"cls": config.actor.cls}, "agent": {"cls": config.agent.cls, "kwargs": agent}})
    except ConfigError as exc:
        refused.append(str(exc))
print(json.dumps([type(actor).__name__, actions, refused]))
"""


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A folder in which the package is installed."""
    folder = tmp_path / "site"
    for name, text in {
        "acme_pull/__init__.py": "",
        "acme_pull/pull_settings.py": SETTINGS,
        "acme_pull/agent.py": AGENT,
        "acme_pull-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: acme-pull\nVersion: 1.0\n",
        "acme_pull-1.0.dist-info/entry_points.txt": (
            "[tmrl_core.agents]\nPullAgent = acme_pull.pull_settings:PullSettings\n"
            "BrokenAgent = acme_pull.nothing:Settings\n"
        ),
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    return folder


def test_an_algorithm_of_another_package_trains_resumes_and_acts_without_torch(
    tmp_path: Path, package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pull.yaml").write_text(CONFIGURATION, encoding="utf-8")
    monkeypatch.syspath_prepend(str(package))
    local = ("--local", "--single-process", "--workers", "1", "-c", "pull.yaml")
    with in_this_process(tmp_path, ["acme_pull", "acme_pull.agent", "acme_pull.pull_settings"]) as run:
        first = run(*local)
        assert first.returncode == 0, first.stderr
        again = run(*local, "--set", "trainer.epochs=2", "--set", "agent.kwargs.every=1")
        assert again.returncode == 0, again.stderr
        wrong = run(*local, "--set", "actor.cls=tmrl_core.actor:QValueMLPActor")
        broken = run(*local, "--set", "agent.cls=acme_pull.agent:BrokenAgent")
    assert "agent.settings.every: 2 in the checkpoint, 1 from now on" in again.stderr
    assert "does not go with agent.cls: acme_pull.agent:PullAgent" in wrong.stderr
    assert (broken.returncode, "acme_pull.nothing" in broken.stderr) == (2, True)
    policy = tmp_path / "runs" / "pulled" / "policy.tmod"
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(package)])}
    found = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH, str(policy)],
        cwd=tmp_path, env=environ, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert found.returncode == 0, found.stderr
    name, actions, refused = json.loads(found.stdout)
    assert name == "NumpyDeterministicMLPActor"
    assert max(abs(action - 0.5) for action in actions) < 0.2
    assert "agent.kwargs.every: found 0, allowed: at least 1" in refused[0]
    assert "agent.kwargs.evry: PullAgent takes no such keyword argument" in refused[1]


def test_a_class_of_the_same_name_is_another_one(
    tmp_path: Path, package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(package))
    (tmp_path / "own.yaml").write_text("agent: {cls: 'own:PullAgent', kwargs: {anything: 1}}", encoding="utf-8")
    load(tmp_path / "own.yaml", (), {})


def test_an_entry_point_that_cannot_be_loaded_is_named(
    tmp_path: Path, package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(package))
    (tmp_path / "own.yaml").write_text("agent: {cls: 'acme_pull.agent:BrokenAgent'}", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"acme_pull\.nothing"):
        load(tmp_path / "own.yaml", (), {})
