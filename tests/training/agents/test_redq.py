from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import Tensor

from tmrl_core.errors import ConfigError
from tmrl_core.training.agents.redq import REDQSACAgent

OBSERVATIONS = gym.spaces.Box(-1, 1, (3,), np.float32)
ACTIONS = gym.spaces.Box(-2, 2, (2,), np.float32)
SMALL: Any = {"hidden_sizes": (16, 16)}


def batch(size: int = 32, seed: int = 0) -> Any:
    generator = torch.Generator().manual_seed(seed)
    terminated = (torch.rand(size, generator=generator) < 0.3).float()
    return (
        torch.randn(size, 3, generator=generator),
        torch.rand(size, 2, generator=generator) * 4 - 2,
        torch.randn(size, generator=generator),
        torch.randn(size, 3, generator=generator),
        terminated,
        1 - terminated,
    )


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


def test_an_epoch_of_updates_equals_the_paper_s_loop() -> None:
    """Algorithm 1 again, with G = 3: critics one after the other, plain autograd and plain SGD."""

    def agent() -> REDQSACAgent:
        torch.manual_seed(0)
        return REDQSACAgent(
            OBSERVATIONS, ACTIONS, "cpu", n=4, m=2, q_updates_per_policy_update=3, learn_entropy_coef=False,
            optimizer_actor="sgd", optimizer_critic="sgd", lr_actor=0.1, lr_critic=0.1, polyak=0.9, **SMALL,
        )  # fmt: skip

    fast, slow = agent(), agent()
    torch.manual_seed(5)
    for seed in range(3):
        fast.train(batch(seed=seed))

    torch.manual_seed(5)
    critics, targets = list(slow.critics.parameters()), list(slow.target_critics.parameters())
    for seed in range(3):
        obs, act, reward, next_obs, terminated, _ = batch(seed=seed)
        with torch.no_grad():
            next_action, next_log_prob = slow.model.actor(next_obs)
            q = slow.target_critics(next_obs, next_action)
            one, two = torch.randperm(4)[:2].tolist()
            target = torch.zeros(len(reward))
            for i in range(len(reward)):
                value = min(q[one, i], q[two, i]) - 0.2 * next_log_prob[i]
                target[i] = reward[i] + (0.0 if terminated[i] else 0.99 * value)
        for k in range(4):
            loss = 0.5 * ((slow.critics(obs, act)[k] - target) ** 2).mean()
            # Each critic is one slice of every parameter: the others' gradients are zero.
            for parameter, gradient in zip(critics, torch.autograd.grad(loss, critics), strict=True):
                parameter.data.sub_(0.1 * gradient)
        if seed == 2:
            action, log_prob = slow.model.actor(obs)
            q = slow.critics(obs, action)
            loss = (0.2 * log_prob - (q[0] + q[1] + q[2] + q[3]) / 4).mean()
            policy = list(slow.model.actor.parameters())
            for parameter, gradient in zip(policy, torch.autograd.grad(loss, policy), strict=True):
                parameter.data.sub_(0.1 * gradient)
        for old, new in zip(targets, critics, strict=True):
            old.data.copy_(0.9 * old + 0.1 * new)

    def parameters(of: REDQSACAgent) -> list[Tensor]:
        return [*of.model.parameters(), *of.target_critics.parameters()]

    for a, b in zip(parameters(fast), parameters(slow), strict=True):
        assert torch.allclose(a, b, atol=1e-6)


def test_no_critic_update_for_each_of_the_policy_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"q_updates_per_policy_update: found 0, allowed: at least 1"):
        REDQSACAgent(OBSERVATIONS, ACTIONS, "cpu", q_updates_per_policy_update=0)
