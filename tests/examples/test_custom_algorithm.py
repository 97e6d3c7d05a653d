"""The algorithm of the tutorial, as a user has it: its page says what its files say, and it learns."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from tests.training.updates.test_compiled import assert_alike, batch, interpreted
from tmrl_core.config import load
from tmrl_core.roles.training_object import training_from_config
from tmrl_core.samples import Chunk, Segment
from tmrl_core.training import ReplayMemory
from tmrl_core.training.interface import LocalInterface
from tmrl_core.training.loops.training_loop import TrainingOffline
from tmrl_core.training.updates import compiled

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "custom_algorithm"
PAGE = ROOT / "docs" / "tutorials" / "custom_algorithm.md"
SPACES = (gym.spaces.Box(-8, 8, (3,), np.float32), gym.spaces.Box(-2, 2, (1,), np.float32))


@pytest.fixture
def ddpg(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.syspath_prepend(str(EXAMPLE))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    import ddpg as module  # type: ignore[import-not-found, unused-ignore]

    yield module
    del sys.modules["ddpg"]


def test_the_page_shows_the_files() -> None:
    (shown,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    docstring, code = (EXAMPLE / "ddpg.py").read_text().split("\n\n", 1)
    assert docstring.startswith('"""')
    assert shown == code
    (configured,) = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert configured == (EXAMPLE / "pendulum_ddpg.yaml").read_text()


def test_its_configuration_makes_it(ddpg: Any, tmp_path: Path) -> None:
    config = load(EXAMPLE / "pendulum_ddpg.yaml", [f"run.folder={tmp_path}"], {})
    assert isinstance(training_from_config(config)().agent, ddpg.DDPGAgent)


@pytest.mark.full  # `test_compiled.py` compiles its like
def test_compiled_it_learns_the_same(ddpg: Any) -> None:
    agents = []
    for wanted in (False, True):
        torch.manual_seed(1)
        agent = ddpg.DDPGAgent(*SPACES, "cpu", hidden_sizes=(8, 8), compile=wanted)
        agent.compiler = compiled.Compiler(agent, interpreted)
        generator = torch.Generator().manual_seed(0)
        for _ in range(5):
            agent.train(batch(generator, False, extras=True))
        agents.append(agent)
    assert agents[1].compiler._graphs
    assert not agents[1].compiler.gave_up
    assert_alike(*agents)


def test_it_learns_the_best_action(ddpg: Any) -> None:
    """Actions near 0.5 are rewarded most, whatever is observed, and nothing that follows counts."""
    torch.manual_seed(0)
    generator = np.random.default_rng(0)
    interface = LocalInterface()

    def memory(nb_steps: int, device: Any) -> ReplayMemory:
        return ReplayMemory(device, nb_steps, batch_size=64, seed=0)

    training = TrainingOffline(
        SPACES,
        memory,
        lambda **spaces: ddpg.DDPGAgent(**spaces, hidden_sizes=(32, 32), lr_critic=1e-2, compile=False),
        epochs=1,
        rounds=1,
        steps=500,
        max_training_steps_per_env_step=1e9,
        device="cpu",
    )
    rows = 400
    action = generator.uniform(-2, 2, (rows, 1)).astype(np.float32)
    chunk = Chunk(
        rows=rows,
        action=action,
        action_present=np.arange(rows) > 0,
        observation=generator.standard_normal((rows, 3)).astype(np.float32),
        reward=-((action[:, 0].astype(np.float64) - 0.5) ** 2),
        terminated=np.zeros(rows, bool),
        truncated=np.zeros(rows, bool),
        segments=(Segment(rows, 0, 0, 1, 1),),
        stream=bytes(16),
    )
    training.memory.append_chunk(chunk)
    training.total_samples = rows
    training.agent.settings.gamma = 0.0
    training.run_epoch(interface)
    actor = training.agent.get_actor()
    actions = [float(actor.act_(obs, test=True)[0]) for obs in np.asarray(chunk.observation[:20])]
    assert np.mean(actions) == pytest.approx(0.5, abs=0.2)
