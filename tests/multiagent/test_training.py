"""The state of training many agents: counters, checkpoints, and what ends it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.multiagent.remote_scenario import AGENTS, Manager, Weights, assembly, manager
from tests.multiagent.test_experiences import same
from tmrl_core.errors import BadUpdatesError, CheckpointError
from tmrl_core.multiagent import AgentManager, EpisodeResult, MultiAgentTraining
from tmrl_core.multiagent.training import agent_metrics, policy_metrics
from tmrl_core.multiagent.trajectory import Columns, Experiences
from tmrl_core.training.updates.skipped_updates import SKIPPED


def made(**kwargs: Any) -> MultiAgentTraining:
    return MultiAgentTraining(partial(manager, "training"), device="cpu", **kwargs)


class Broken(Weights):
    """An algorithm without a usable update."""

    def train_on_batch(self, batch: Columns) -> Mapping[str, Any]:
        return {SKIPPED: True}


def test_rounds_without_a_usable_update_end_training() -> None:
    training = made(max_bad_updates=3)
    agent = training.manager.agents["south"]
    agent.algorithm = Broken()
    for agent in training.manager.agents.values():
        agent.store_experiences({"state": np.ones((2, 1)), "action": np.ones(2), "reward": np.ones(2)})

    def train() -> None:
        before = training._counts()
        metrics = training.manager.train()
        result = EpisodeResult(episode=1, performance={}, score=0.0, epsilons={}, metrics=metrics)
        training._note(result, before, 0.0)

    train()
    train()
    assert (training.total_updates, training.updates_skipped) == (8, 4)
    with pytest.raises(BadUpdatesError, match="3 updates in a row"):
        train()


def test_hundreds_of_policies_have_common_metrics() -> None:
    metrics = {f"p{number}": {"loss": float(number), SKIPPED: 1.0} for number in range(101)}
    assert policy_metrics(metrics) == {"train/loss": 50.0}
    assert agent_metrics(dict.fromkeys(metrics, 3)) == {"rollout/experiences": 303}
    del metrics["p100"]
    assert policy_metrics(metrics)["train/p99/loss"] == 99.0
    assert agent_metrics(dict.fromkeys(metrics, 3))["rollout/experiences/p99"] == 3


def test_a_checkpoint_holds_policies_pools_exploration_and_generators(tmp_path: Path) -> None:
    def experiences(number: int) -> Experiences:
        rng = np.random.default_rng(number)
        return {
            agent: {"state": rng.random((6, 2)), "action": np.ones(6, np.int64), "reward": rng.random(6)}
            for agent in AGENTS
        }

    def episodes(training: MultiAgentTraining, numbers: range) -> None:
        agents: AgentManager = training.manager
        for number in numbers:
            agents.store_experiences(experiences(number))
            agents.train()
            agents.update_epsilon({"anna": -1.0})

    first = made(seed=3)
    episodes(first, range(3))
    first.rounds_done = 3
    first.save(tmp_path / "checkpoint")
    second = made(seed=9)
    second.load(tmp_path / "checkpoint")
    assert second.rounds_done == 3
    episodes(first, range(3, 6))
    episodes(second, range(3, 6))
    assert first.manager.get_models() == second.manager.get_models()
    assert first.manager.explorer.epsilons == second.manager.explorer.epsilons
    for agent in AGENTS:
        assert same(
            first.manager.agents[agent].experience_pool.get(), second.manager.agents[agent].experience_pool.get()
        )


def test_a_checkpoint_of_other_pools_is_refused(tmp_path: Path) -> None:
    first = made()
    first.manager.agents["north"].store_experiences(
        {"state": np.ones((2, 1)), "action": np.ones(2), "reward": np.ones(2)}
    )
    first.save(tmp_path / "checkpoint")
    other = MultiAgentTraining(lambda: Manager("training", config=assembly(capacity=7)), device="cpu")
    with pytest.raises(CheckpointError, match="capacity"):
        other.load(tmp_path / "checkpoint")
