from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from tmrl_core.actor.policies.torch.mlp import flatten_batch
from tmrl_core.training import BehaviorCloningAgent

OBSERVATIONS = gym.spaces.Box(-1, 1, (3,), np.float32)
BOX = gym.spaces.Box(np.array([-2, 0], np.float32), np.array([2, 10], np.float32))
DISCRETE = gym.spaces.Discrete(3, start=4)


def batch(action: torch.Tensor, obs: torch.Tensor, **extras: Any) -> Any:
    zeros = torch.zeros(len(obs))
    return (obs, action, zeros, obs, zeros, zeros, *([extras] if extras else []))


def test_the_loss_of_a_box_is_the_squared_error_of_scaled_actions() -> None:
    agent = BehaviorCloningAgent(OBSERVATIONS, BOX, "cpu", hidden_sizes=(8,))
    obs = torch.rand(5, 3)
    wanted = torch.tensor(np.stack([BOX.sample() for _ in range(5)]))
    played = np.stack([agent.get_actor().act_(one.numpy(), test=True) for one in obs])
    expected = np.mean(((played - wanted.numpy()) / [2, 5]) ** 2)
    np.testing.assert_allclose(float(agent.train(batch(wanted, obs))["loss_actor"]), expected, rtol=1e-5)


def test_the_loss_of_discrete_actions_is_the_cross_entropy() -> None:
    agent = BehaviorCloningAgent(OBSERVATIONS, DISCRETE, "cpu", hidden_sizes=(8,))
    obs, wanted = torch.rand(5, 3), torch.tensor([4, 5, 6, 5, 4])
    with torch.no_grad():
        log_probs = agent.model.actor.log_probs(obs)
    expected = -log_probs[torch.arange(5), wanted - 4].mean()
    torch.testing.assert_close(agent.train(batch(wanted, obs))["loss_actor"], expected)


CHOICES = gym.spaces.MultiDiscrete([3, 2], start=[4, 0])
SWITCHES = gym.spaces.MultiBinary(3)


def test_the_loss_of_several_choices_is_the_sum_of_their_cross_entropies() -> None:
    agent = BehaviorCloningAgent(OBSERVATIONS, CHOICES, "cpu", hidden_sizes=(8,))
    obs, wanted = torch.rand(5, 3), torch.tensor([[4, 0], [5, 1], [6, 0], [5, 1], [4, 1]])
    with torch.no_grad():
        logits = agent.model.actor.outputs_at(obs)["logits"]
    parts = [torch.nn.functional.cross_entropy(logits[:, :3], wanted[:, 0] - 4)]
    parts += [torch.nn.functional.cross_entropy(logits[:, 3:], wanted[:, 1])]
    torch.testing.assert_close(agent.train(batch(wanted, obs))["loss_actor"], sum(parts))


def test_a_choice_that_its_mask_does_not_allow_is_not_learned() -> None:
    space = gym.spaces.Dict(
        {"x": OBSERVATIONS, "action_mask": gym.spaces.Tuple([gym.spaces.MultiBinary(3), gym.spaces.MultiBinary(2)])}
    )
    agent = BehaviorCloningAgent(space, CHOICES, "cpu", hidden_sizes=())
    masks = torch.tensor([[1, 1, 0]], dtype=torch.int8), torch.tensor([[1, 1]], dtype=torch.int8)
    obs: Any = {"x": torch.rand(1, 3), "action_mask": masks}
    zero = torch.zeros(1)
    with torch.no_grad():
        logits = agent.model.actor.outputs_at(flatten_batch(agent.model.actor.layout, obs))["logits"]
    for action, of_first in ((6, 0.0), (5, float(-logits[0, :3].log_softmax(0)[1]))):
        before = agent.model.actor.logits.weight.detach().clone()
        metrics = agent.train((obs, torch.tensor([[action, 1]]), zero, obs, zero, zero))
        of_second = float(-logits[0, 3:].log_softmax(0)[1])
        assert float(metrics["loss_actor"]) == pytest.approx(of_first + of_second, abs=2e-2)
        moved = (agent.model.actor.logits.weight.detach() - before).abs().sum(dim=1) > 0
        assert moved.tolist() == [action == 5, action == 5, False, True, True]


def test_it_learns_a_policy_of_several_choices() -> None:
    torch.manual_seed(0)
    chosen = BehaviorCloningAgent(OBSERVATIONS, CHOICES, "cpu", lr=1e-2, hidden_sizes=(32,), compile=False)
    switched = BehaviorCloningAgent(OBSERVATIONS, SWITCHES, "cpu", lr=1e-2, hidden_sizes=(32,), compile=False)
    for _ in range(200):
        obs = torch.rand(64, 3) * 2 - 1
        wanted = torch.stack([4 + obs.argmax(dim=1), (obs[:, 0] > 0).long()], dim=1)
        chosen.train(batch(wanted, obs))
        switched.train(batch((obs > 0).to(torch.int8), obs))
    played = [chosen.get_actor().act_(one, test=True) for one in obs.numpy()]
    assert np.mean(np.stack(played) == wanted.numpy()) > 0.9
    right = [switched.get_actor().act_(one, test=True) == (one > 0) for one in obs.numpy()]
    assert np.mean(right) > 0.9


def test_it_learns_a_policy() -> None:
    torch.manual_seed(0)
    continuous = BehaviorCloningAgent(OBSERVATIONS, BOX, "cpu", lr=1e-2, hidden_sizes=(32,), compile=False)
    discrete = BehaviorCloningAgent(OBSERVATIONS, DISCRETE, "cpu", lr=1e-2, hidden_sizes=(32,), compile=False)
    for _ in range(300):
        obs = torch.rand(64, 3) * 2 - 1
        continuous.train(batch(torch.stack([obs[:, 0] * 2, obs[:, 1] * 5 + 5], 1), obs))
        discrete.train(batch(4 + obs.argmax(dim=1), obs))
    for _ in range(20):
        one = OBSERVATIONS.sample()
        np.testing.assert_allclose(continuous.get_actor().act_(one, test=True), [one[0] * 2, one[1] * 5 + 5], atol=0.8)
    right = [discrete.get_actor().act_(one, test=True) == 4 + one.argmax() for one in obs.numpy()]
    assert np.mean(right) > 0.9


def test_actions_at_the_bounds_give_finite_losses() -> None:
    agent = BehaviorCloningAgent(OBSERVATIONS, BOX, "cpu", hidden_sizes=(8,))
    obs = torch.rand(2, 3)
    assert torch.isfinite(agent.train(batch(torch.tensor([[-2.0, 0.0], [2.0, 10.0]]), obs))["loss_actor"])


def test_importance_weights_scale_rows_and_errors_are_reported() -> None:
    agent = BehaviorCloningAgent(OBSERVATIONS, BOX, "cpu", hidden_sizes=(8,))
    obs, wanted = torch.rand(4, 3), torch.rand(4, 2)
    before = {name: value.clone() for name, value in agent.model.state_dict().items()}
    loss = agent.train(batch(wanted, obs, weights=torch.zeros(4)))["loss_actor"]
    assert float(loss) == 0
    assert all(torch.equal(before[name], value) for name, value in agent.model.state_dict().items())
    assert agent.td_error_B is not None
    assert agent.td_error_B.shape == (4,)
    assert (agent.td_error_B > 0).all()


def test_workers_act_at_random_until_the_first_update() -> None:
    agent = BehaviorCloningAgent(OBSERVATIONS, BOX, "cpu", hidden_sizes=(8,))
    assert agent.get_actor().exploration() == {"random": 1.0}
    agent.train(batch(torch.rand(4, 2), torch.rand(4, 3)))
    assert agent.get_actor().exploration() == {"random": 0.0}


def test_a_step_is_no_longer_than_the_clipped_gradient() -> None:
    """With plain gradient descent, an update moves the weights by the learning rate times the clipped norm."""
    torch.manual_seed(0)
    agent = BehaviorCloningAgent(
        OBSERVATIONS, DISCRETE, "cpu", hidden_sizes=(8,), optimizer="sgd", lr=2.0, max_grad_norm=0.01
    )
    before = torch.nn.utils.parameters_to_vector(agent.model.parameters()).detach()
    metrics = agent.train(batch(torch.full((8,), 5), torch.rand(8, 3)))
    moved = torch.nn.utils.parameters_to_vector(agent.model.parameters()).detach() - before
    assert float(metrics["grad_norm"]) > 0.01
    assert float(moved.norm()) == pytest.approx(0.02, rel=1e-3)


def test_workers_act_with_the_spread_that_is_set() -> None:
    space = gym.spaces.Box(-1.0, 1.0, (1,), np.float32)
    agent = BehaviorCloningAgent(gym.spaces.Box(-1.0, 1.0, (2,), np.float32), space, device="cpu", spread=0.05)
    actor = agent.get_actor()
    actor.set_exploration({"random": 0.0})
    actor.seed(0)
    acted = [float(actor.act_(np.full(2, 0.5, np.float32))[0]) for _ in range(200)]
    assert 0.03 < np.std(np.arctanh(acted)) < 0.07
