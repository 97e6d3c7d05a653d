"""The agent: storing, sampling and training by its parameters, without a scenario."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from tests.multiagent.ring import Table, array
from tmrl_core.errors import ConfigError
from tmrl_core.multiagent import Agent, AgentParameters, SimpleStore
from tmrl_core.multiagent.trajectory import Columns


def columns(first: int, rows: int) -> Columns:
    number = np.arange(first, first + rows, dtype=np.float32)
    return {"state": np.zeros((rows, 3)), "action": np.zeros(rows, np.int64), "reward": number}


def agent(algorithm: Table | None = None, **parameters: Any) -> tuple[Agent, Table]:
    algorithm = algorithm or Table()
    return Agent("a", algorithm, SimpleStore(100, seed=0), AgentParameters(**parameters)), algorithm


def rewards(algorithm: Table) -> list[list[float]]:
    return [array(batch, "reward").tolist() for batch in algorithm.batches]


def test_it_chooses_by_its_algorithm_and_keeps_its_name() -> None:
    one, algorithm = agent()
    assert one.name == "a"
    assert one.choose_action(np.ones(3), 0.0) in range(4)
    assert algorithm.acted == [(0.0, False)]


def test_off_policy_training_samples_batches_after_each_episode() -> None:
    one, algorithm = agent(batch_size=5, updates_per_episode=3)
    one.store_experiences(columns(0, 4))
    assert one.train() == {"loss": 2.0}
    assert [len(batch) for batch in rewards(algorithm)] == [5, 5, 5]
    assert len(one.experience_pool) == 4


def test_training_waits_for_enough_experiences() -> None:
    one, _ = agent(min_experiences=5)
    one.store_experiences(columns(0, 4))
    assert one.train() == {}
    one.store_experiences(columns(4, 1))
    assert one.train() == {"loss": 1.0}


def test_on_policy_training_takes_each_experience_once_per_epoch_and_clears_the_pool() -> None:
    one, algorithm = agent(batch_size=4, on_policy=True, epochs=2)
    one.store_experiences(columns(0, 9))
    one.train()
    found = rewards(algorithm)
    assert [len(batch) for batch in found] == [3, 3, 3, 3, 3, 3]
    for epoch in (found[:3], found[3:]):
        assert sorted(itertools.chain(*epoch)) == list(range(9))
    assert found[:3] != found[3:]
    assert len(one.experience_pool) == 0
    assert one.train() == {}


class Prioritized(Table):
    """Gives the experience with the reward 3 all the weight."""

    def train_on_batch(self, batch: Columns) -> dict[str, Any]:
        priorities = (array(batch, "reward") == 3).astype(np.float32)
        return {**super().train_on_batch(batch), "priorities": priorities}


def test_priorities_become_the_weights_of_the_sampled_experiences() -> None:
    one, algorithm = agent(Prioritized(), batch_size=200, sample_by="weight", updates_per_episode=2)
    one.store_experiences(columns(0, 5))
    assert one.train() == {"loss": 1.5}
    first, second = rewards(algorithm)
    assert set(first) == {0.0, 1.0, 2.0, 3.0, 4.0}
    assert set(second) == {3.0}


def test_weights_that_come_with_the_experiences_are_kept() -> None:
    one, algorithm = agent(batch_size=50, sample_by="weight")
    one.store_experiences({**columns(0, 5), "weight": np.array([0.0, 0.0, 1.0, 0.0, 0.0])})
    one.train()
    assert set(rewards(algorithm)[0]) == {2.0}


@pytest.mark.parametrize("name", ["capacity", "batch_size", "min_experiences", "updates_per_episode", "epochs"])
def test_numbers_must_be_positive(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} must be at least 1, got 0"):
        AgentParameters(**{name: 0})  # type: ignore[arg-type]


def test_contradictions_are_refused() -> None:
    with pytest.raises(ConfigError, match="min_experiences is 11, but the pool holds at most 10"):
        AgentParameters(capacity=10, min_experiences=11)
    with pytest.raises(ConfigError, match="sample_by is 'w', but on-policy training takes all"):
        AgentParameters(on_policy=True, sample_by="w")
