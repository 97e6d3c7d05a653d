"""Agents whose algorithm returns the weights by which experiences are sampled."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch

from tmrl_core.errors import ConfigError, SampleRefusedError
from tmrl_core.multiagent.agent import Agent
from tmrl_core.multiagent.agent_algorithm import AgentAlgorithm
from tmrl_core.multiagent.algorithms.dqn import DQN
from tmrl_core.multiagent.settings import AgentParameters
from tmrl_core.multiagent.store import SimpleStore
from tmrl_core.networking.protocol.messages import Blob


class Prioritizing(AgentAlgorithm):
    """The priority of an experience is a function of its number, its state."""

    def __init__(self, priority: Any) -> None:
        super().__init__()
        self.priority = priority
        self.seen: list[int] = []
        self.batches: list[dict[str, Any]] = []

    def choose_action(self, state: Any, epsilon: float) -> Any:
        return 0

    def train_on_batch(self, batch: Any) -> Mapping[str, Any]:
        self.seen += batch["state"].tolist()
        self.batches.append(batch)
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


@pytest.mark.parametrize("exponent", [0.0, 0.5, 1.0])
def test_importance_weights_undo_the_priorities(exponent: float) -> None:
    """With the exponent 1, a weighted mean over many rows is the uniform mean over the pool."""
    agent = make(lambda state: 1.0 + state, importance_exponent=exponent, batch_size=20_000)
    agent.store_experiences(experiences(0, 4))
    agent.train()
    first, *_, last = agent.algorithm.batches  # type: ignore[attr-defined]
    assert first["importance"].dtype == np.float32
    assert set(first["importance"].tolist()) == {1.0}, "all weights are equal before the first update"
    expected = (1.0 + last["state"]) ** -exponent
    np.testing.assert_allclose(last["importance"], expected, rtol=1e-6)
    if exponent == 1.0:
        found = (last["importance"] * last["state"]).sum() / last["importance"].sum()
        assert found == pytest.approx(np.mean([0, 1, 2, 3]), abs=0.1)


def test_importance_weights_of_the_experiences_are_kept() -> None:
    agent = make(lambda state: 1.0 + state)
    agent.store_experiences({**experiences(0, 4), "importance": np.arange(4, dtype=np.float32)})
    agent.train()
    for batch in agent.algorithm.batches:  # type: ignore[attr-defined]
        assert batch["importance"].tolist() == batch["state"].tolist()


@pytest.mark.parametrize("sample_by", [None, "weight"])
def test_a_uniform_batch_has_no_importance_weights(sample_by: str | None) -> None:
    agent = make(lambda state: np.full(len(state), np.nan), sample_by=sample_by)
    agent.store_experiences({**experiences(0, 4), "weight": np.zeros(4)})
    agent.train()
    assert all("importance" not in batch for batch in agent.algorithm.batches)  # type: ignore[attr-defined]


def test_an_algorithm_weights_its_loss_and_sets_the_priorities_after_the_update() -> None:
    """Beside an update on the same rows without importance weights."""
    gradients = []
    for exponent in (0.0, 1.0):
        torch.manual_seed(0)
        algorithm = DQN({"q": torch.nn.Linear(1, 2)}, (torch.optim.SGD, {"lr": 0.1}), {}, {"max_grad_norm": None})
        before = algorithm.get_model()
        params = AgentParameters(batch_size=8, sample_by="weight", importance_exponent=exponent)
        agent = Agent("a", algorithm, SimpleStore(100, seed=1), params)
        rows = {**experiences(0, 4), "state": np.arange(4, dtype=np.float32)[:, None], "weight": np.arange(1.0, 5.0)}
        agent.store_experiences(rows)
        agent.train()
        weights: Any = agent.experience_pool.get()["weight"]
        assert weights.tolist() != rows["weight"].tolist()
        assert algorithm.get_model() != before
        gradients.append(algorithm.get_model())
    assert gradients[0] != gradients[1]


@pytest.mark.parametrize("exponent", [-0.1, 1.1])
def test_exponents_out_of_range_are_refused(exponent: float) -> None:
    with pytest.raises(ConfigError, match="importance_exponent must be 0 to 1"):
        AgentParameters(importance_exponent=exponent)
