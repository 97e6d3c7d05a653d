from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tmrl_core.errors import ConfigError, ObservationError
from tmrl_core.multiagent.algorithms.a2c import A2C
from tmrl_core.training.updates.skipped_updates import SKIPPED

SGD = (torch.optim.SGD, {"lr": 1.0})


class Table(nn.Module):
    """Outputs of numbered states."""

    def __init__(self, values: Any) -> None:
        super().__init__()
        self.values = nn.Parameter(torch.tensor(values, dtype=torch.float32))

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        return self.values[states.to(torch.int64)]


def make(logits: Any, values: Any, optimizer: Any = SGD, **parameters: Any) -> A2C:
    models = {"actor": Table(logits), "critic": Table(values)}
    return A2C(models, optimizer, {}, {"max_grad_norm": None, "entropy_coef": 0.0, **parameters})


def values_of(module: Any) -> Any:
    """The outputs of a table."""
    return module.values.tolist()


def batch(**changed: Any) -> dict[str, Any]:
    return {
        "state": np.array([0]),
        "action": np.array([1]),
        "reward": np.array([1.0]),
        "next_state": np.array([1]),
        "discount": np.array([0.81], np.float32),
        "terminated": np.array([False]),
        "truncated": np.array([True]),
        **changed,
    }


def masked(state: int, mask: list[int]) -> dict[str, Any]:
    return {"observation": np.array([state]), "action_mask": np.array([mask], np.int8)}


def test_an_update_follows_the_policy_gradient_and_the_value_error() -> None:
    made = make([[0.0, 0.0], [0.0, 0.0]], [0.5, 2.0])
    metrics = made.train_on_batch(batch())
    advantage = 1.0 + 0.81 * 2.0 - 0.5
    assert metrics["advantage_mean"] == pytest.approx(advantage)
    assert metrics["loss_critic"] == pytest.approx(advantage**2)
    assert metrics["loss_actor"] == pytest.approx(advantage * math.log(2))
    assert metrics["entropy"] == pytest.approx(math.log(2))
    # The gradient of log pi(1) with equal logits is (-0.5, 0.5).
    assert values_of(made.models["actor"])[0] == pytest.approx([-0.5 * advantage, 0.5 * advantage])
    # Half of the squared error's gradient, 2 * advantage.
    assert values_of(made.models["critic"]) == pytest.approx([0.5 + advantage, 2.0])


@pytest.mark.parametrize(
    "rows",
    [
        batch(terminated=np.array([True])),
        {key: batch()[key] for key in ("state", "action", "reward")},
        batch(state=masked(0, [1, 1]), next_state=masked(1, [0, 0])),
    ],
    ids=["terminated", "complete return", "nothing allowed"],
)
def test_the_next_value_is_left_out(rows: dict[str, Any]) -> None:
    metrics = make([[0.0, 0.0], [0.0, 0.0]], [0.5, 2.0]).train_on_batch(rows)
    assert metrics["advantage_mean"] == pytest.approx(0.5)


def test_probabilities_are_those_of_the_allowed_actions() -> None:
    made = make([[0.0, math.log(3.0), 9.0]], [0.0], entropy_coef=0.1)
    rows: dict[str, Any] = {"state": masked(0, [1, 1, 0]), "action": np.array([1]), "reward": np.array([1.0])}
    metrics = made.train_on_batch(rows)
    assert metrics["loss_actor"] == pytest.approx(-math.log(0.75))
    assert metrics["entropy"] == pytest.approx(-(0.25 * math.log(0.25) + 0.75 * math.log(0.75)))
    assert values_of(made.models["actor"])[0][2] == 9.0
    state = {"observation": 0, "action_mask": np.array([1, 1, 0], np.int8)}
    other = make([[0.0, math.log(3.0), 9.0]], [0.0])
    other.seed(0)
    shares = np.bincount([other.choose_action(state, 0.0) for _ in range(3000)], minlength=3) / 3000
    assert shares == pytest.approx([0.25, 0.75, 0.0], abs=0.03)
    shares = np.bincount([other.choose_action(state, 1.0) for _ in range(3000)], minlength=3) / 3000
    assert shares == pytest.approx([0.5, 0.5, 0.0], abs=0.03)
    other.deterministic = True
    assert {int(other.choose_action(state, 1.0)) for _ in range(20)} == {1}


def test_a_state_without_an_allowed_action_is_refused() -> None:
    with pytest.raises(ObservationError, match="no action is allowed"):
        make([[0.0, 0.0]], [0.0]).choose_action({"observation": 0, "action_mask": np.zeros(2, np.int8)}, 0.0)


def test_advantages_may_be_normalized() -> None:
    rows: dict[str, Any] = {
        "state": np.zeros(4, np.int64),
        "action": np.arange(4) % 2,
        "reward": np.array([1.0, 2.0, 3.0, 4.0]),
    }
    metrics = make([[0.0, 0.0]], [0.0], normalize_advantages=True).train_on_batch(rows)
    assert metrics["advantage_mean"] == pytest.approx(0.0, abs=1e-6)


def test_actors_get_the_policy_only() -> None:
    made, other = make([[0.0, 1.0]], [0.0]), make([[5.0, 0.0]], [7.0])
    other.load_model(made.get_model())
    assert values_of(other.models["actor"]) == [[0.0, 1.0]]
    assert values_of(other.models["critic"]) == [7.0]


def test_a_batch_that_is_not_finite_changes_nothing() -> None:
    made = make([[0.0, 0.0], [0.0, 0.0]], [0.0, 0.0])
    before = made.get_model()
    assert made.train_on_batch(batch(reward=np.array([np.inf]))) == {SKIPPED: True}
    assert made.get_model() == before


@pytest.mark.parametrize(
    ("models", "parameters", "message"),
    [
        (("actor",), {}, "model_dict: found actor; allowed for A2C: actor and critic"),
        (("actor", "critic"), {"value_coef": -1.0}, "hyper_params.value_coef: found -1.0, allowed: 0 or more"),
        (("actor", "critic"), {"max_grad_norm": -1.0}, "hyper_params.max_grad_norm: found -1.0"),
        (("actor", "critic"), {"lr": 1.0}, "A2CParameters takes value_coef"),
    ],
)
def test_impossible_arguments_are_refused(models: Any, parameters: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        A2C({name: nn.Linear(1, 1) for name in models}, SGD, {}, parameters)


def test_it_learns_a_bandit_with_masks() -> None:
    """Whatever is allowed, the best of it has to become the most likely."""
    adam = (torch.optim.Adam, {"lr": 0.05})
    made = make([[0.0] * 4], [0.0], {"actor": adam, "critic": adam}, entropy_coef=0.01)
    made.seed(0)
    rng = np.random.default_rng(0)
    pay = np.array([0.1, 0.6, 0.3, 1.0])
    for _ in range(60):
        masks = (rng.random((64, 4)) < 0.6).astype(np.int8)
        masks[np.arange(64), rng.integers(0, 4, 64)] = 1
        states = [{"observation": np.int64(0), "action_mask": mask} for mask in masks]
        actions = np.array([made.choose_action(state, 0.0) for state in states])
        reward = pay[actions] + 0.1 * rng.standard_normal(64)
        stacked: Any = {"observation": np.zeros(64, np.int64), "action_mask": masks}
        made.train_on_batch({"state": stacked, "action": actions, "reward": reward})
    made.deterministic = True
    for mask, best in (([1, 1, 1, 1], 3), ([1, 1, 1, 0], 1), ([1, 0, 1, 0], 2)):
        assert made.choose_action({"observation": np.int64(0), "action_mask": np.array(mask, np.int8)}, 0.0) == best
