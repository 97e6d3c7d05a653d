"""Agents whose algorithm returns the weights by which experiences are sampled."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from tmrl_core.errors import SampleRefusedError
from tmrl_core.multiagent.agent import Agent, AgentParameters
from tmrl_core.multiagent.algorithm import AgentAlgorithm
from tmrl_core.multiagent.store import SimpleStore
from tmrl_core.networking.protocol.messages import Blob


class Prioritizing(AgentAlgorithm):
    """The priority of an experience is a function of its number, its state."""

    def __init__(self, priority: Any) -> None:
        super().__init__()
        self.priority = priority
        self.seen: list[int] = []

    def choose_action(self, state: Any, epsilon: float) -> Any:
        return 0

    def train_on_batch(self, batch: Any) -> Mapping[str, Any]:
        self.seen += batch["state"].tolist()
        return {"loss": 0.5, "priorities": self.priority(batch["state"])}

    def get_model(self) -> Blob:
        return Blob("none", b"")

    def load_model(self, model: Blob) -> None: ...


def experiences(first: int, count: int) -> dict[str, Any]:
    number = np.arange(first, first + count)
    return {"state": number, "action": np.zeros(count, np.int64), "reward": np.zeros(count, np.float32)}


def make(priority: Any, **parameters: Any) -> Agent:
    params = AgentParameters(**{"sample_by": "weight", "batch_size": 64, "updates_per_episode": 20, **parameters})
    return Agent("a", Prioritizing(priority), SimpleStore(100, seed=1), params)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.int64])
def test_priorities_of_any_dtype_become_weights(dtype: Any) -> None:
    agent = make(lambda state: (state == 2).astype(dtype))
    agent.store_experiences(experiences(0, 4))
    assert agent.train() == {"loss": 0.5}
    weights: Any = agent.experience_pool.get()["weight"]
    assert weights.tolist() == [1e-6, 1e-6, 1, 1e-6]
    agent.train()
    assert set(agent.algorithm.seen[-64:]) == {2}  # type: ignore[attr-defined]


def test_weights_of_the_experiences_keep_their_dtype() -> None:
    agent = make(lambda state: state + 0.5)
    agent.store_experiences({**experiences(0, 4), "weight": np.ones(4, np.float32)})
    agent.train()
    weights: Any = agent.experience_pool.get()["weight"]
    assert weights.dtype == np.float32
    assert weights.tolist() == [0.5, 1.5, 2.5, 3.5]


def test_priorities_that_are_not_finite_change_nothing() -> None:
    agent = make(lambda state: np.where(state == 1, np.nan, np.where(state == 2, np.inf, 3.0)))
    agent.store_experiences(experiences(0, 4))
    agent.train()
    agent.train()
    weights: Any = agent.experience_pool.get()["weight"]
    assert weights.tolist() == [3, 1, 1, 3]


def test_new_experiences_get_the_highest_weight() -> None:
    agent = make(lambda state: state * 10.0)
    agent.store_experiences(experiences(0, 4))
    agent.train()
    agent.store_experiences(experiences(4, 1))
    weights: Any = agent.experience_pool.get()["weight"]
    assert weights.tolist() == [1e-6, 10, 20, 30, 30]


def test_experiences_of_priority_0_can_be_sampled_again() -> None:
    agent = make(lambda state: np.zeros(len(state)))
    agent.store_experiences(experiences(0, 4))
    agent.train()
    agent.train()
    assert set(agent.algorithm.seen[-64:]) == {0, 1, 2, 3}  # type: ignore[attr-defined]


def test_experiences_that_do_not_fit_name_their_agent() -> None:
    agent = make(lambda state: state)
    agent.store_experiences(experiences(0, 4))
    with pytest.raises(SampleRefusedError, match=r"agent 'a': .*'reward' is float64\[n\], stored is float32\[n\]"):
        agent.store_experiences({**experiences(4, 1), "reward": np.zeros(1)})


def test_experiences_whose_weights_are_all_0_are_sampled_uniformly() -> None:
    agent = make(lambda state: np.full(len(state), np.nan))
    agent.store_experiences({**experiences(0, 4), "weight": np.zeros(4)})
    agent.train()
    assert set(agent.algorithm.seen) == {0, 1, 2, 3}  # type: ignore[attr-defined]
