from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tmrl_core.errors import ConfigError, ObservationError, SampleRefusedError
from tmrl_core.multiagent.algorithms.dqn import DQN, DQNParameters
from tmrl_core.training.updates.skipped_updates import SKIPPED

SGD = (torch.optim.SGD, {"lr": 0.1})


class Table(nn.Module):
    """Values of each action in numbered states."""

    def __init__(self, values: Any) -> None:
        super().__init__()
        self.values = nn.Parameter(torch.tensor(values, dtype=torch.float32))

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        return self.values[states.to(torch.int64)]


def batch(**changed: Any) -> dict[str, Any]:
    return {
        "state": np.array([0, 1]),
        "action": np.array([1, 0]),
        "reward": np.array([1.0, 2.0]),
        "next_state": np.array([1, 0]),
        "discount": np.array([0.81, 0.9], np.float32),
        "terminated": np.array([False, False]),
        "truncated": np.array([False, True]),
        **changed,
    }


def masked(states: Any, masks: Any) -> dict[str, Any]:
    return {"observation": np.array(states), "action_mask": np.array(masks, np.int8)}


def make(values: Any, losses: Any = None, **parameters: Any) -> DQN:
    return DQN({"q": Table(values)}, SGD, losses or {}, {"max_grad_norm": None, **parameters})


def errors(made: DQN, rows: dict[str, Any]) -> list[float]:
    """Absolute TD errors of the update."""
    found: list[float] = made.train_on_batch(rows)["priorities"].tolist()
    return found


def values_of(module: Any) -> torch.Tensor:
    """The values of a table."""
    values: torch.Tensor = module.values
    return values


VALUES = [[0.0, 1.0, 5.0], [2.0, 3.0, 4.0]]


def test_targets_have_the_discount_of_each_row_and_bootstrap_from_truncations() -> None:
    assert errors(make(VALUES), batch()) == pytest.approx([abs(1 + 0.81 * 4 - 1), abs(2 + 0.9 * 5 - 2)])


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"action": np.array([0, 3])}, "the actions 0 to 2"),
        ({"action": np.array([0, -1])}, "from -1 to 0"),
        ({"action": np.array([0.0, 1.0])}, "'action' is float64"),
        ({"state": np.array([0, 2])}, "'state' does not fit the model 'q'"),
        ({"next_state": {"a": np.array([0, 1])}}, "'next_state' does not fit"),
        ({"discount": np.ones((2, 2))}, "'discount' is not one number a row"),
    ],
)
def test_experiences_that_cannot_be_trained_on_are_refused(changed: dict[str, Any], problem: str) -> None:
    made = make(VALUES)
    made.check_experiences(batch())
    with pytest.raises(SampleRefusedError, match=problem):
        made.check_experiences(batch(**changed))
    complete = {key: column for key, column in batch().items() if key in ("state", "action", "reward")}
    made.check_experiences(complete)
    with pytest.raises(SampleRefusedError, match="'discount' is missing"):
        made.check_experiences({**complete, "next_state": batch()["next_state"]})


def test_a_termination_has_no_next_value() -> None:
    assert errors(make(VALUES), batch(terminated=np.array([True, False])))[0] == pytest.approx(0.0)


def test_complete_returns_need_no_next_state() -> None:
    rows = {key: batch()[key] for key in ("state", "action", "reward")}
    assert errors(make(VALUES), rows) == pytest.approx([0.0, 0.0])


def test_it_bootstraps_among_allowed_actions_only() -> None:
    rows = batch(state=masked([0, 1], [[1, 1, 1]] * 2), next_state=masked([1, 0], [[1, 1, 0], [1, 0, 0]]))
    for double in (False, True):
        found = errors(make(VALUES, double=double), rows)
        assert found == pytest.approx([1 + 0.81 * 3 - 1, 2 + 0.9 * 0 - 2])


def test_a_next_state_without_an_allowed_action_counts_as_terminal() -> None:
    rows = batch(state=masked([0, 1], [[1, 1, 1]] * 2), next_state=masked([1, 0], [[0, 0, 0], [1, 1, 1]]))
    for double in (False, True):
        assert errors(make(VALUES, double=double), rows)[0] == pytest.approx(1 - 1)


def test_double_takes_the_targets_value_of_the_online_choice() -> None:
    made = make(VALUES)
    with torch.no_grad():
        values_of(made.models["q"])[1] = torch.tensor([9.0, 3.0, 4.0])
    assert errors(made, batch())[0] == pytest.approx(1 + 0.81 * 2 - 1)


def test_the_loss_is_hubers_and_weighted() -> None:
    made = make(VALUES, target_interval=10)
    metrics = made.train_on_batch(batch(importance=np.array([0.5, 2.0])))
    assert metrics["loss_critic"] == pytest.approx((0.5 * (3.24 - 0.5) + 2.0 * (4.5 - 0.5)) / 2)
    # The gradient of Huber's loss is the error, at most 1; of a mean over two rows, with the rows' weights.
    assert values_of(made.models["q"])[0, 1].item() == pytest.approx(1.0 + 0.1 * 0.5 / 2)


def test_another_loss_function_may_be_given() -> None:
    metrics = make(VALUES, {"q": nn.MSELoss}).train_on_batch(batch())
    assert metrics["loss_critic"] == pytest.approx((3.24**2 + 4.5**2) / 2)


def test_the_target_network_moves_by_polyak_updates_at_its_interval() -> None:
    made = make(VALUES, target_interval=2, polyak=0.75)
    before = values_of(made.target_network).clone()
    made.train_on_batch(batch())
    assert torch.equal(values_of(made.target_network), before)
    made.train_on_batch(batch())
    expected = 0.75 * before + 0.25 * values_of(made.models["q"])
    assert torch.allclose(values_of(made.target_network), expected)
    assert not torch.equal(values_of(made.target_network), before)


def test_a_batch_that_is_not_finite_changes_nothing() -> None:
    made = make(VALUES)
    before = made.get_model()
    assert made.train_on_batch(batch(reward=np.array([np.nan, 0.0]))) == {SKIPPED: True}
    assert made.get_model() == before


def test_epsilon_is_the_share_of_random_actions() -> None:
    made = make([[0.0, 1.0, 0.0]])
    made.seed(0)
    found = np.bincount([made.choose_action(np.int64(0), 0.3) for _ in range(3000)], minlength=3) / 3000
    assert found == pytest.approx([0.1, 0.8, 0.1], abs=0.03)
    made.deterministic = True
    assert {int(made.choose_action(0, 1.0)) for _ in range(20)} == {1}


@pytest.mark.parametrize("epsilon", [0.0, 1.0])
def test_only_allowed_actions_are_chosen(epsilon: float) -> None:
    made = make([[0.0, 9.0, 1.0]])
    state = {"observation": np.int64(0), "action_mask": np.array([1, 0, 1], np.int8)}
    found = {int(made.choose_action(state, epsilon)) for _ in range(50)}
    assert found == ({2} if epsilon == 0.0 else {0, 2})


def test_a_state_without_an_allowed_action_is_refused() -> None:
    with pytest.raises(ObservationError, match="no action is allowed"):
        make(VALUES).choose_action({"observation": 0, "action_mask": np.zeros(3, np.int8)}, 0.0)


def test_models_get_all_other_entries_of_masked_states() -> None:
    class Sum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bias = nn.Parameter(torch.zeros(2))

        def forward(self, state: dict[str, torch.Tensor]) -> torch.Tensor:
            assert set(state) == {"own", "others"}
            return state["own"] + state["others"] + self.bias

    made = DQN({"q": Sum()}, SGD, {}, {})
    state = {"own": np.zeros(2), "others": np.array([0.0, 1.0]), "action_mask": np.ones(2, np.int8)}
    assert made.choose_action(state, 0.0) == 1


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"target_interval": 0}, "hyper_params.target_interval: found 0, allowed: at least 1"),
        ({"polyak": 1.0}, "hyper_params.polyak: found 1.0, allowed: 0 or more, less than 1"),
        ({"max_grad_norm": 0.0}, "hyper_params.max_grad_norm: found 0.0"),
        ({"double": 3}, "hyper_params.double: found 3, allowed: bool"),
        ({"gamma": 0.9}, "hyper_params: .*'gamma'.* DQNParameters takes double"),
        (None, "hyper_params: found NoneType, allowed: DQNParameters, or a dict"),
    ],
)
def test_impossible_hyper_parameters_are_refused(parameters: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        DQN({"q": nn.Linear(1, 2)}, SGD, {}, parameters)


def test_hyper_parameters_may_be_an_object() -> None:
    assert DQN({"q": nn.Linear(1, 2)}, SGD, {}, DQNParameters(polyak=0.5)).hyper_params.polyak == 0.5


def test_more_than_one_model_is_refused() -> None:
    with pytest.raises(ConfigError, match="model_dict: found a, b; allowed is one model"):
        DQN({"a": nn.Linear(1, 2), "b": nn.Linear(1, 2)}, SGD, {}, {})


@pytest.mark.parametrize("missing", ["reward", "discount", "terminated"])
def test_a_missing_column_is_named(missing: str) -> None:
    rows = batch()
    del rows[missing]
    with pytest.raises(ValueError, match=f"the batch lacks {missing}; it has state, .*KStepExperienceShaper"):
        make(VALUES).train_on_batch(rows)


def test_it_learns_a_walk() -> None:
    """A walk of 5 places, 0 ends without and 4 with a reward; at place 2 the mask forbids to stay."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(5, 32), nn.ReLU(), nn.Linear(32, 3))
    made = DQN({"q": net}, (torch.optim.Adam, {"lr": 5e-3}), {}, {"target_interval": 20})
    made.seed(0)
    rng = np.random.default_rng(0)

    def states(place_B: Any) -> dict[str, Any]:
        mask_BN = np.ones((len(place_B), 3), np.int8)
        mask_BN[place_B == 2, 2] = 0
        mask_BN[(place_B == 0) | (place_B == 4)] = 0
        return {"place": np.eye(5, dtype=np.float32)[place_B], "action_mask": mask_BN}

    for _ in range(300):
        place_B, action_B = rng.integers(1, 4, 64), rng.integers(0, 3, 64)
        action_B[(place_B == 2) & (action_B == 2)] = 0
        after_B = place_B + np.array([-1, 1, 0])[action_B]
        made.train_on_batch(
            {
                "state": states(place_B),
                "action": action_B,
                "reward": (after_B == 4).astype(np.float32),
                "next_state": states(after_B),
                "discount": np.full(64, 0.9, np.float32),
                # Neither end is flagged: their masks allow nothing.
                "terminated": np.zeros(64, bool),
                "truncated": np.zeros(64, bool),
            }
        )
    places = np.array([1, 2, 3])
    chosen = [made.choose_action({k: v[i] for k, v in states(places).items()}, 0.0) for i in range(3)]
    assert chosen == [1, 1, 1]
    with torch.no_grad():
        best = made.models["q"](torch.eye(5)[[1, 2, 3]])[:, :2].amax(dim=1)
    assert best.tolist() == pytest.approx([0.81, 0.9, 1.0], abs=0.05)
