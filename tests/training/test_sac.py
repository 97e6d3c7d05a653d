from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tmrl_core.actor import SquashedGaussianMLPActor
from tmrl_core.errors import ConfigError
from tmrl_core.training.critics import CriticList, EnsembleCritic, MLPActorCritic, critics_of
from tmrl_core.training.sac import (
    REDQSACAgent,
    SacAgent,
    SpinupSacAgent,
    critic_loss,
    critic_target,
    policy_loss,
    temperature_loss,
)

OBSERVATIONS = gym.spaces.Box(-1, 1, (3,), np.float32)
ACTIONS = gym.spaces.Box(-2, 2, (2,), np.float32)
SMALL: Any = {"hidden_sizes": (16, 16)}


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def batch(size: int = 32, seed: int = 0) -> Any:
    generator = torch.Generator().manual_seed(seed)
    done = (torch.rand(size, generator=generator) < 0.3).float()
    return (
        torch.randn(size, 3, generator=generator),
        torch.rand(size, 2, generator=generator) * 4 - 2,
        torch.randn(size, generator=generator),
        torch.randn(size, 3, generator=generator),
        done,
        1 - done,
    )


def test_critic_target_equals_the_slow_loop() -> None:
    reward, q, log_prob = (torch.randn(20) for _ in range(3))
    terminated = (torch.rand(20) < 0.5).float()
    alpha, gamma = torch.tensor(0.3), 0.9
    expected = []
    for i in range(20):
        value = float(q[i]) - float(alpha) * float(log_prob[i])
        expected.append(float(reward[i]) + (0.0 if terminated[i] else gamma * value))
    found = critic_target(reward, terminated, q, log_prob, alpha, gamma)
    assert found.tolist() == pytest.approx(expected, rel=1e-5)


def test_critic_loss_equals_the_slow_loop() -> None:
    q, target = torch.randn(3, 20), torch.randn(20)
    expected = 0.0
    for k in range(3):
        expected += sum(0.5 * (float(q[k, i]) - float(target[i])) ** 2 for i in range(20)) / 20
    assert float(critic_loss(q, target)) == pytest.approx(expected, rel=1e-5)


def test_policy_loss_equals_the_slow_loop() -> None:
    q, log_prob = torch.randn(20), torch.randn(20)
    expected = sum(0.3 * float(log_prob[i]) - float(q[i]) for i in range(20)) / 20
    assert float(policy_loss(q, log_prob, torch.tensor(0.3))) == pytest.approx(expected, rel=1e-4)


def test_temperature_loss_equals_the_slow_loop_and_moves_the_right_way() -> None:
    log_prob = torch.randn(20).requires_grad_()
    values = log_prob.tolist()
    log_alpha = torch.tensor(-0.7, requires_grad=True)
    loss = temperature_loss(log_alpha, log_prob, -2.0)
    expected = sum(0.7 * (values[i] - 2.0) for i in range(20)) / 20
    assert float(loss.detach()) == pytest.approx(expected, rel=1e-4)
    # Entropy (about 0) above its target (-2): the temperature has to fall, so the gradient is positive.
    loss.backward()  # type: ignore[no-untyped-call]
    assert float(log_alpha.grad) > 0  # type: ignore[arg-type]
    assert log_prob.grad is None


@pytest.mark.parametrize("name", ["reward_B", "terminated_B", "next_q_B", "next_log_prob_B"])
def test_a_column_in_place_of_a_vector_is_refused(name: str) -> None:
    arguments: Any = {n: torch.zeros(4) for n in ("reward_B", "terminated_B", "next_q_B", "next_log_prob_B")}
    arguments[name] = torch.zeros(4, 1)
    with pytest.raises(ValueError, match=name):
        critic_target(**arguments, alpha=torch.tensor(1.0), gamma=0.9)


def test_columns_are_refused_by_every_loss() -> None:
    column, vector = torch.zeros(4, 1), torch.zeros(4)
    calls: list[Callable[[], Tensor]] = [
        lambda: critic_loss(torch.zeros(2, 4), column),
        lambda: policy_loss(column, vector, vector[0]),
        lambda: policy_loss(vector, column, vector[0]),
        lambda: temperature_loss(vector[0], column, -1.0),
    ]
    for call in calls:
        with pytest.raises(ValueError, match=r"must be \[B\]"):
            call()


def test_the_ensemble_equals_its_members_one_by_one() -> None:
    critic = EnsembleCritic(OBSERVATIONS, ACTIONS, (8, 8), nn.Tanh, count=3)
    obs, act = torch.randn(5, 3), torch.randn(5, 2)
    layers: Any = [layer for layer in critic.net if hasattr(layer, "weight")]
    for k in range(3):
        x = torch.cat([obs, act], 1)
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


class Plain(nn.Module):
    """A model with critics of its own, as scripts have it."""

    def __init__(self, observation_space: Any, action_space: Any) -> None:
        super().__init__()
        self.actor = SquashedGaussianMLPActor(observation_space, action_space, (8,))

        class Q(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.line = nn.Linear(5, 1)

            def forward(self, obs: Tensor, act: Tensor) -> Tensor:
                return self.line(torch.cat([obs, act], -1)).squeeze(-1)  # type: ignore[no-any-return]

        self.q1: nn.Module = Q()
        self.q2: nn.Module = Q()


def test_a_model_with_two_critics_of_its_own_trains() -> None:
    agent = SpinupSacAgent(OBSERVATIONS, ACTIONS, "cpu", Plain)
    before = [parameter.clone() for parameter in agent.model.parameters()]
    agent.train(batch())
    assert isinstance(agent.critics, CriticList)
    assert all(not torch.equal(a, b) for a, b in zip(before, agent.model.parameters(), strict=True))


def test_a_model_without_critics_is_named() -> None:
    with pytest.raises(TypeError, match="Linear has no critics"):
        critics_of(nn.Linear(1, 1))


def test_one_update_equals_the_slow_one() -> None:
    """The whole update again, with one critic after the other, plain autograd and plain SGD."""
    torch.manual_seed(0)
    agent = SacAgent(
        OBSERVATIONS, ACTIONS, "cpu", optimizer_actor="sgd", optimizer_critic="sgd", lr_actor=0.1, lr_critic=0.1,
        learn_entropy_coef=False, alpha=0.2, **SMALL,
    )  # fmt: skip
    torch.manual_seed(0)
    slow = SacAgent(OBSERVATIONS, ACTIONS, "cpu", learn_entropy_coef=False, alpha=0.2, **SMALL)
    obs, act, reward, next_obs, terminated, truncated = batch()

    torch.manual_seed(5)
    agent.train((obs, act, reward, next_obs, terminated, truncated))

    torch.manual_seed(5)
    action, log_prob = slow.model.actor(obs)
    with torch.no_grad():
        next_action, next_log_prob = slow.model.actor(next_obs)
        q = slow.target_critics(next_obs, next_action)
        target = torch.stack(
            [
                reward[i] + (0.99 * (min(q[0, i], q[1, i]) - 0.2 * next_log_prob[i]) if not terminated[i] else 0.0)
                for i in range(len(reward))
            ]
        )
    critics = list(slow.critics.parameters())
    loss: Any = sum(0.5 * ((slow.critics(obs, act)[k] - target) ** 2).mean() for k in range(2))
    gradients = torch.autograd.grad(loss, critics)
    with torch.no_grad():
        for parameter, gradient in zip(critics, gradients, strict=True):
            parameter.sub_(0.1 * gradient)
    q = slow.critics(obs, action)
    policy = list(slow.model.actor.parameters())
    loss = (0.2 * log_prob - torch.minimum(q[0], q[1])).mean()
    gradients = torch.autograd.grad(loss, policy)
    with torch.no_grad():
        for parameter, gradient in zip(policy, gradients, strict=True):
            parameter.sub_(0.1 * gradient)
        for old, new in zip(slow.target_critics.parameters(), critics, strict=True):
            old.copy_(0.995 * old + 0.005 * new)

    for a, b in zip(agent.model.state_dict().values(), slow.model.state_dict().values(), strict=True):
        assert torch.allclose(a, b, atol=1e-6)
    for a, b in zip(agent.target_critics.parameters(), slow.target_critics.parameters(), strict=True):
        assert torch.allclose(a, b, atol=1e-7)


def test_truncation_does_not_change_an_update_and_termination_does() -> None:
    def trained(terminated: float, truncated: float) -> Tensor:
        torch.manual_seed(1)
        agent = SacAgent(OBSERVATIONS, ACTIONS, "cpu", **SMALL)
        obs, act, reward, next_obs, _, _ = batch()
        agent.train((obs, act, reward, next_obs, torch.full((32,), terminated), torch.full((32,), truncated)))
        return torch.cat([parameter.detach().flatten() for parameter in agent.critics.parameters()])

    assert torch.equal(trained(0.0, 1.0), trained(0.0, 0.0))
    assert not torch.equal(trained(1.0, 0.0), trained(0.0, 0.0))


@pytest.mark.parametrize("cls", [SacAgent, REDQSACAgent])
def test_same_seed_same_parameters(cls: Any) -> None:
    def trained(seed: int) -> list[Tensor]:
        torch.manual_seed(seed)
        agent = cls(OBSERVATIONS, ACTIONS, "cpu", **SMALL)
        for i in range(5):
            agent.train(batch(seed=i))
        return [*agent.model.state_dict().values(), agent.log_alpha.detach()]

    first, again, other = trained(3), trained(3), trained(4)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(first, other, strict=True))


def test_the_policy_s_update_leaves_the_critics_alone() -> None:
    agent = SacAgent(OBSERVATIONS, ACTIONS, "cpu", lr_critic=0.0, **SMALL)
    before = [parameter.clone() for parameter in agent.critics.parameters()]
    agent.train(batch())
    assert all(torch.equal(a, b) for a, b in zip(before, agent.critics.parameters(), strict=True))
    assert all(parameter.requires_grad for parameter in agent.critics.parameters())


def test_metrics_are_detached_tensors() -> None:
    metrics = SacAgent(OBSERVATIONS, ACTIONS, "cpu", **SMALL).train(batch())
    assert set(metrics) == {"loss_actor", "loss_critic", "loss_entropy", "entropy_coef"}
    assert all(isinstance(value, Tensor) and not value.requires_grad for value in metrics.values())


def test_the_target_entropy_is_minus_the_number_of_action_elements() -> None:
    assert SacAgent(OBSERVATIONS, ACTIONS, "cpu", **SMALL).target_entropy == -2.0
    assert SacAgent(OBSERVATIONS, ACTIONS, "cpu", target_entropy=-0.5, **SMALL).target_entropy == -0.5


def test_an_unknown_optimizer_is_refused() -> None:
    with pytest.raises(ConfigError, match="'lion'"):
        SacAgent(OBSERVATIONS, ACTIONS, "cpu", optimizer_actor="lion")


def test_redq_updates_the_policy_every_so_often_and_refuses_an_impossible_subset() -> None:
    agent = REDQSACAgent(OBSERVATIONS, ACTIONS, "cpu", n=4, m=2, q_updates_per_policy_update=3, **SMALL)
    metrics = [agent.train(batch(seed=i)) for i in range(6)]
    assert ["loss_actor" in metric for metric in metrics] == [False, False, True] * 2
    assert agent.critics.count == 4
    with pytest.raises(ConfigError, match="m=5 and n=4"):
        REDQSACAgent(OBSERVATIONS, ACTIONS, "cpu", n=4, m=5)


def test_redq_s_value_is_the_mean_and_its_target_the_lowest_of_a_random_pair() -> None:
    agent = REDQSACAgent(OBSERVATIONS, ACTIONS, "cpu", n=3, m=2, **SMALL)
    q = torch.tensor([[1.0], [2.0], [6.0]])
    assert agent._value(q).tolist() == [3.0]
    torch.manual_seed(0)
    assert {float(agent._pessimistic(q)) for _ in range(50)} == {1.0, 2.0}


def test_publishing_reads_the_weights_that_are_trained() -> None:
    agent = SacAgent(OBSERVATIONS, ACTIONS, "cpu", **SMALL)
    before = agent.get_actor().to_blob()
    agent.train(batch())
    assert agent.get_actor().to_blob() != before
    assert isinstance(agent.model, MLPActorCritic)


@pytest.mark.parametrize("cls", [SacAgent, REDQSACAgent])
def test_it_solves_a_toy_task(cls: Any) -> None:
    """One step, reward -(a - target(obs))^2: the policy has to find the target, whose sign the observation says."""
    torch.manual_seed(0)
    space = gym.spaces.Box(-1, 1, (1,), np.float32)
    settings: Any = {"n": 3} if cls is REDQSACAgent else {}
    agent = cls(
        space, gym.spaces.Box(-2, 2, (1,), np.float32), "cpu", lr_actor=3e-3, lr_critic=3e-3, alpha=0.01,
        learn_entropy_coef=False, hidden_sizes=(32, 32), **settings,
    )  # fmt: skip
    generator = torch.Generator().manual_seed(0)
    for _ in range(400):
        obs = torch.sign(torch.randn(128, 1, generator=generator))
        act = torch.rand(128, 1, generator=generator) * 4 - 2
        reward = -(act - obs).square().squeeze(1)
        agent.train((obs, act, reward, obs, torch.ones(128), torch.zeros(128)))
    actor = agent.get_actor()
    for sign in (-1.0, 1.0):
        action, _ = actor(torch.tensor([[sign]]), test=True)
        assert float(action.detach()) == pytest.approx(sign, abs=0.15)
