from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tmrl_core.actor import NumpySquashedGaussianMLPActor, SquashedGaussianMLPActor
from tmrl_core.errors import ConfigError
from tmrl_core.training.agents.discrete_sac import DiscreteSacAgent
from tmrl_core.training.agents.networks import CriticList, MLPActorCritic, critics_of
from tmrl_core.training.agents.redq import REDQSACAgent
from tmrl_core.training.agents.sac import SacAgent, SpinupSacAgent
from tmrl_core.training.checkpoints.capture import capture
from tmrl_core.training.checkpoints.restore import restore
from tmrl_core.training.updates.skipped_updates import SKIPPED

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


def test_a_custom_model_with_two_critics_trains() -> None:
    agent = SpinupSacAgent(OBSERVATIONS, ACTIONS, "cpu", Plain)
    before = [parameter.clone() for parameter in agent.model.parameters()]
    agent.train(batch())
    assert isinstance(agent.critics, CriticList)
    assert all(not torch.equal(a, b) for a, b in zip(before, agent.model.parameters(), strict=True))


@pytest.mark.parametrize("agent_cls", [SacAgent, DiscreteSacAgent])
def test_a_fixed_temperature_of_0_leaves_the_entropy_out(agent_cls: Any) -> None:
    actions = ACTIONS if agent_cls is SacAgent else gym.spaces.Discrete(3)
    rows = batch() if agent_cls is SacAgent else (*batch()[:1], torch.arange(32) % 3, *batch()[2:])
    found = []
    for alpha in (0.0, 1e-30):
        torch.manual_seed(0)
        agent = agent_cls(OBSERVATIONS, actions, "cpu", alpha=alpha, learn_entropy_coef=False, **SMALL)
        metrics = agent.train(rows)
        assert SKIPPED not in metrics
        assert float(metrics["entropy_coef"]) == pytest.approx(0.0, abs=1e-29)
        found.append([*agent.model.parameters(), *agent.target_critics.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def test_a_learned_temperature_of_0_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"agent\.kwargs\.alpha: found 0.*Set learn_entropy_coef: false"):
        SacAgent(OBSERVATIONS, ACTIONS, "cpu", alpha=0, **SMALL)


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


@pytest.mark.parametrize("cls", [SacAgent, REDQSACAgent])
def test_all_losses_of_an_update_are_of_the_temperature_before_it(cls: Any) -> None:
    def trained(lr_entropy: float) -> list[Tensor]:
        torch.manual_seed(1)
        more = {"q_updates_per_policy_update": 1} if cls is REDQSACAgent else {}
        agent = cls(OBSERVATIONS, ACTIONS, "cpu", lr_entropy=lr_entropy, **SMALL, **more)
        agent.train(batch())
        return [*agent.model.state_dict().values(), *agent.target_critics.state_dict().values()]

    assert all(torch.equal(slow, fast) for slow, fast in zip(trained(0.0), trained(0.5), strict=True))


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


@pytest.mark.parametrize("cls", [SacAgent, REDQSACAgent])
def test_workers_act_randomly_before_the_first_updates(cls: Any) -> None:
    """As a worker without torch does what a trainer publishes, and as one that goes on from a checkpoint does."""
    agent = cls(OBSERVATIONS, ACTIONS, "cpu", **SMALL)
    worker = NumpySquashedGaussianMLPActor(OBSERVATIONS, ACTIONS, (16, 16), seed=0)
    obs = np.zeros(3, np.float32)

    def spread() -> float:
        published = agent.get_actor()
        with torch.no_grad():
            published.log_std.bias.fill_(-20.0)  # so that all chance is that of exploration
            published.log_std.weight.zero_()
        tag, data = published.to_blob()
        worker.from_blob(tag, data, "cpu")
        worker.set_exploration(published.exploration())
        return float(np.std([worker.act(obs) for _ in range(500)], axis=0).max())

    assert spread() == pytest.approx(4 / np.sqrt(12), rel=0.1)
    agent.train(batch())
    assert spread() < 1e-3
    saved = capture(agent)
    agent = cls(OBSERVATIONS, ACTIONS, "cpu", **SMALL)
    restore(agent, saved.tree, saved.arrays)
    assert spread() < 1e-3


def test_a_policy_without_random_actions_gets_no_share() -> None:
    class Own(SquashedGaussianMLPActor):
        def exploration(self) -> dict[str, float]:
            return {"noise": 0.5}

        def set_exploration(self, parameters: Any) -> None:
            raise AssertionError(parameters)

    class Model(MLPActorCritic):
        def __init__(self, observation_space: Any, action_space: Any) -> None:
            super().__init__(observation_space, action_space)
            self.actor = Own(observation_space, action_space)

    assert SacAgent(OBSERVATIONS, ACTIONS, "cpu", Model).get_actor().exploration() == {"noise": 0.5}


def test_metrics_are_detached_tensors() -> None:
    metrics = SacAgent(OBSERVATIONS, ACTIONS, "cpu", **SMALL).train(batch())
    assert set(metrics) == {"loss_actor", "loss_critic", "loss_entropy", "entropy_coef", "q_mean"}
    assert all(isinstance(value, Tensor) and not value.requires_grad for value in metrics.values())


def test_the_target_entropy_is_minus_the_number_of_action_elements() -> None:
    assert SacAgent(OBSERVATIONS, ACTIONS, "cpu", **SMALL).target_entropy == -2.0
    assert SacAgent(OBSERVATIONS, ACTIONS, "cpu", target_entropy=-0.5, **SMALL).target_entropy == -0.5


def test_an_unknown_optimizer_is_refused() -> None:
    with pytest.raises(ConfigError, match="'lion'"):
        SacAgent(OBSERVATIONS, ACTIONS, "cpu", optimizer_actor="lion")


def test_publishing_reads_the_weights_that_are_trained() -> None:
    agent = SacAgent(OBSERVATIONS, ACTIONS, "cpu", **SMALL)
    before = agent.get_actor().to_blob()
    agent.train(batch())
    assert agent.get_actor().to_blob() != before
    assert isinstance(agent.model, MLPActorCritic)


@pytest.mark.parametrize("cls", [SacAgent, pytest.param(REDQSACAgent, marks=pytest.mark.full)])
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
    for _ in range(300):
        obs = torch.sign(torch.randn(64, 1, generator=generator))
        act = torch.rand(64, 1, generator=generator) * 4 - 2
        reward = -(act - obs).square().squeeze(1)
        agent.train((obs, act, reward, obs, torch.ones(64), torch.zeros(64)))
    actor = agent.get_actor()
    for sign in (-1.0, 1.0):
        action, _ = actor(torch.tensor([[sign]]), test=True)
        assert float(action.detach()) == pytest.approx(sign, abs=0.15)
