"""Settings that have changed since a checkpoint take effect, in whatever agent, compiled or not."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from tmrl_core.errors import CheckpointError
from tmrl_core.training import (
    CheckpointStore,
    DiscreteSacAgent,
    DQNAgent,
    PPOAgent,
    REDQSACAgent,
    ReplayMemory,
    TD3Agent,
)
from tmrl_core.training.agents.sac import SacAgent
from tmrl_core.training.loops.training_loop import TrainingOffline
from tmrl_core.training.updates.compiled import Compiler
from tmrl_core.training.updates.rollback import agent_tensors

OBSERVATIONS = gym.spaces.Box(-8, 8, (3,), np.float32)
BOX, CHOICES = gym.spaces.Box(-2, 2, (1,), np.float32), gym.spaces.Discrete(4)
RATES: dict[str, tuple[Any, Any, dict[str, float]]] = {
    "sac": (SacAgent, BOX, {"lr_actor": 0.0, "lr_critic": 0.0, "lr_entropy": 0.0}),
    "redq": (partial(REDQSACAgent, n=3), BOX, {"lr_actor": 0.0, "lr_critic": 0.0, "lr_entropy": 0.0}),
    "td3": (TD3Agent, BOX, {"lr_actor": 0.0, "lr_critic": 0.0}),
    "dqn": (DQNAgent, CHOICES, {"lr": 0.0}),
    "discrete sac": (DiscreteSacAgent, CHOICES, {"lr_actor": 0.0, "lr_critic": 0.0, "lr_entropy": 0.0}),
    "ppo": (PPOAgent, CHOICES, {"lr": 0.0}),
}
"""Agents with rates at which nothing moves."""


def training_of(agent_cls: Callable[..., Any], action_space: Any = BOX, **kwargs: Any) -> TrainingOffline:
    return TrainingOffline(
        (OBSERVATIONS, action_space),
        partial(ReplayMemory, memory_size=10),
        partial(agent_cls, hidden_sizes=(8,), **kwargs),
        device="cpu",
    )


def batch(action_space: Any, on_policy: bool) -> tuple[Any, ...]:
    obs, next_obs = torch.randn(16, 3), torch.randn(16, 3)
    action = torch.randint(0, 4, (16,)) if action_space is CHOICES else torch.rand(16, 1)
    rows = (obs, action, torch.randn(16), next_obs, torch.zeros(16), torch.zeros(16))
    ends = torch.zeros(16, dtype=torch.bool)
    ends[-1] = True
    return (*rows, {"logp": torch.full((16,), -1.4), "ends": ends}) if on_policy else rows


def resumed(folder: Path, training: TrainingOffline, make: Callable[[], TrainingOffline]) -> Any:
    CheckpointStore(folder).save(training, wait=True)
    found = CheckpointStore(folder).restore(make)
    assert found is not None
    return found.agent


def moves(agent: Any, action_space: Any) -> bool:
    before = [p.detach().clone() for p in agent.model.parameters()]
    for _ in range(3):
        agent.train(batch(action_space, isinstance(agent, PPOAgent)))
    return not all(torch.equal(a, b) for a, b in zip(before, agent.model.parameters(), strict=True))


@pytest.mark.parametrize(
    ("name", "compiled"),
    [
        *((name, False) for name in RATES),
        ("dqn", True),
        *(pytest.param(name, True, marks=pytest.mark.full) for name in ("sac", "redq", "td3", "discrete sac")),
    ],
)
def test_a_changed_learning_rate_takes_effect(tmp_path: Path, name: str, compiled: bool) -> None:
    agent_cls, space, rates = RATES[name]
    torch.manual_seed(1)
    make = partial(training_of, agent_cls, space, **({"compile": compiled} if name != "ppo" else {}))

    def prepared(training: TrainingOffline) -> TrainingOffline:
        if compiled:
            training.agent.compiler = Compiler(training.agent, lambda graph, inputs: graph)
        return training

    training = prepared(make())
    assert moves(training.agent, space)
    still = resumed(tmp_path / "still", training, lambda: prepared(make(**rates)))
    assert not moves(still, space)
    assert moves(resumed(tmp_path / "same", training, lambda: prepared(make())), space)
    # And back again: what the checkpoint holds of the rate in between is nothing.
    training.agent = still
    training.constructed = make(**rates).constructed
    assert moves(resumed(tmp_path / "again", training, lambda: prepared(make())), space)
    assert not compiled or not still.compiler.gave_up


def test_other_changed_settings_take_effect_and_are_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    training = training_of(SacAgent)
    changed = partial(training_of, SacAgent, gamma=0.9, betas_actor=(0.5, 0.9), l2_critic=0.25, target_entropy=-3.0)
    agent = resumed(tmp_path, training, changed)
    assert (agent.settings.gamma, agent.target_entropy) == (0.9, -3.0)
    assert agent.optimizer_actor.param_groups[0]["betas"] == (0.5, 0.9)
    assert agent.optimizer_critic.param_groups[0]["weight_decay"] == 0.25
    assert "agent.settings.gamma: 0.99 in the checkpoint, 0.9 from now on" in caplog.text
    share = resumed(
        tmp_path / "share",
        training_of(DiscreteSacAgent, CHOICES),
        partial(training_of, DiscreteSacAgent, CHOICES, target_entropy_share=0.25),
    )
    assert share.target_entropy == pytest.approx(0.25 * np.log(4))


class Annealed(SacAgent):
    """Changes its settings while it trains, as an `agent_scheduler` may; one optimizer is in a list."""

    def __init__(
        self, observation_space: Any, action_space: Any, device: Any, rate: float = 1.0, **kwargs: Any
    ) -> None:
        super().__init__(observation_space, action_space, device, **kwargs)
        self.rate = rate
        weight = torch.nn.Parameter(torch.ones(1))
        self.more = [torch.optim.SGD([weight], lr=rate)]
        self.schedule = torch.optim.lr_scheduler.LambdaLR(self.more[0], lambda step: 0.5**step)

    def anneal(self) -> None:
        self.rate *= 0.5
        self.more[0].step()
        self.schedule.step()
        self.optimizer_actor.param_groups[0]["lr"] *= 0.5


def test_trained_values_continue_unless_the_setting_changes(tmp_path: Path) -> None:
    training = training_of(Annealed)
    training.agent.anneal()
    same = resumed(tmp_path / "same", training, partial(training_of, Annealed))
    assert (same.rate, same.more[0].param_groups[0]["lr"]) == (0.5, 0.5)
    assert same.optimizer_actor.param_groups[0]["lr"] == 5e-4
    other = resumed(tmp_path / "other", training, partial(training_of, Annealed, rate=8.0))
    assert other.rate == 8.0
    other.anneal()
    assert other.more[0].param_groups[0]["lr"] == 2.0  # its second step down from 8
    assert other.optimizer_actor.param_groups[0]["lr"] == 2.5e-4


def test_another_optimizer_or_kind_of_temperature_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"agent\.optimizer_actor was of type .*Adam and is of type .*SGD"):
        resumed(tmp_path / "a", training_of(SacAgent), partial(training_of, SacAgent, optimizer_actor="sgd"))
    fixed = training_of(SacAgent, learn_entropy_coef=False)
    with pytest.raises(CheckpointError, match=r"agent\.optimizer_alpha was not there and is a .*Adam"):
        resumed(tmp_path / "b", fixed, partial(training_of, SacAgent))


def test_a_checkpoint_without_constructor_settings_takes_the_present_ones(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    training = training_of(SacAgent)
    training.constructed = {}
    agent = resumed(tmp_path, training, partial(training_of, SacAgent, lr_actor=3e-4, gamma=0.9))
    assert (agent.settings.gamma, agent.optimizer_actor.param_groups[0]["lr"]) == (0.9, 3e-4)
    assert "agent.settings.gamma is 0.99 in the checkpoint and 0.9 now: 0.9 counts" in caplog.text
    assert "optimizer_actor[0].lr is 0.001 in the checkpoint and 0.0003 now" in caplog.text


def test_settings_do_not_change_learned_values(tmp_path: Path) -> None:
    training = training_of(SacAgent)
    training.agent.train(batch(BOX, False))
    agent = resumed(tmp_path, training, partial(training_of, SacAgent, lr_actor=1e-5))
    pairs = zip(agent_tensors(training.agent), agent_tensors(agent), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
