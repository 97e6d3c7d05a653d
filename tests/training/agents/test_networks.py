from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tmrl_core.actor import CategoricalMLPActor, DeterministicMLPActor, QValueMLPActor
from tmrl_core.training.agents.networks import EnsembleCritic

OBSERVATIONS = gym.spaces.Box(-1, 1, (3,), np.float32)
ACTIONS = gym.spaces.Box(-2, 2, (2,), np.float32)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def test_the_ensemble_equals_its_members_one_by_one() -> None:
    critic = EnsembleCritic(OBSERVATIONS, ACTIONS, (8, 8), nn.Tanh, count=3)
    obs, act = torch.randn(5, 3), torch.randn(5, 2)
    layers: Any = [layer for layer in critic.net if hasattr(layer, "weight")]
    for k in range(3):
        x = torch.cat([obs, act / 2], 1)
        for i, layer in enumerate(layers):
            x = x @ layer.weight[k] + layer.bias[k, 0]
            x = torch.tanh(x) if i < 2 else x
        assert torch.allclose(critic(obs, act)[k], x[:, 0], atol=1e-6)


def test_the_ensemble_starts_as_torch_starts_a_linear_layer() -> None:
    critic = EnsembleCritic(OBSERVATIONS, ACTIONS, (64,), nn.ReLU, count=2)
    layer: Any = critic.net[0]
    weight = layer.weight.detach()
    bound = 1 / math.sqrt(5)
    assert float(weight.abs().max()) <= bound
    assert float(weight.std()) == pytest.approx(bound / math.sqrt(3), rel=0.1)
    assert not torch.equal(weight[0], weight[1])


def test_values_do_not_depend_on_the_actuators_units() -> None:
    """The same action in other units, of which one element has no bounds and is taken as it is."""
    low, high = np.array([-3.0, 0.0, -np.inf], np.float32), np.array([1.0, 1000.0, 5.0], np.float32)
    unit = gym.spaces.Box(-1, 1, (3,), np.float32)
    one, other = EnsembleCritic(OBSERVATIONS, unit, (8,)), EnsembleCritic(OBSERVATIONS, gym.spaces.Box(low, high), (8,))
    assert one.state_dict().keys() == other.state_dict().keys()  # the units are not in checkpoints
    other.load_state_dict(one.state_dict())
    obs, act = torch.randn(6, 3), torch.rand(6, 3) * 2 - 1
    elsewhere = torch.stack([-3.0 + (act[:, 0] + 1) / 2 * 4.0, (act[:, 1] + 1) / 2 * 1000.0, act[:, 2]], 1)
    assert torch.allclose(one(obs, act), other(obs, elsewhere), atol=1e-5)


def test_in_bfloat16_values_keep_their_digits() -> None:
    """A value of some hundreds would be a whole number in bfloat16, and so would what is learned from it."""
    critic = EnsembleCritic(OBSERVATIONS, ACTIONS, (8,), nn.ReLU)
    with torch.no_grad():
        last: Any = critic.net[-1]
        last.bias += 300.0
        with torch.autocast("cpu", dtype=torch.bfloat16):
            values = critic(torch.randn(5, 3), torch.randn(5, 2))
    assert values.dtype == torch.float32
    assert not torch.equal(values, values.bfloat16().float())


@pytest.mark.parametrize(
    "outputs", ["quantiles", "actions of critics", "actions", "dueling", "logits", "deterministic"]
)
def test_in_bfloat16_all_last_layers_keep_their_digits(outputs: str) -> None:
    observation_BD, action_BA, choices = torch.randn(5, 3), torch.randn(5, 2), gym.spaces.Discrete(3)
    found: dict[str, Callable[[], Tensor]] = {
        "quantiles": lambda: EnsembleCritic(OBSERVATIONS, ACTIONS, (8,), outputs=5)(observation_BD, action_BA),
        "actions of critics": lambda: EnsembleCritic(OBSERVATIONS, choices, (8,))(observation_BD),
        "actions": lambda: QValueMLPActor(OBSERVATIONS, choices, (8,))(observation_BD),
        "dueling": lambda: QValueMLPActor(OBSERVATIONS, choices, (8,), dueling=True)(observation_BD),
        "logits": lambda: CategoricalMLPActor(OBSERVATIONS, choices, (8,)).outputs_at(observation_BD)["logits"],
        "deterministic": lambda: DeterministicMLPActor(OBSERVATIONS, ACTIONS, (8,))(observation_BD),
    }
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        values = found[outputs]()
    assert values.dtype == torch.float32
    assert not torch.equal(values, values.bfloat16().float())


def test_several_outputs_of_an_action_are_kept() -> None:
    critic = EnsembleCritic(OBSERVATIONS, ACTIONS, (8,), count=3, outputs=5)
    observation_BD, action_BA = torch.zeros(4, *OBSERVATIONS.shape), torch.zeros(4, *ACTIONS.shape)
    assert critic(observation_BD, action_BA).shape == (3, 4, 5)


@pytest.mark.parametrize("actions", [1, 3])
def test_of_discrete_actions_each_has_a_value(actions: int) -> None:
    critic = EnsembleCritic(OBSERVATIONS, gym.spaces.Discrete(actions), (8,), count=2)
    assert critic(torch.zeros(4, *OBSERVATIONS.shape)).shape == (2, 4, actions)
