from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from tmrl_core.errors import ConfigError
from tmrl_core.training.agents.td3 import TD3Agent

OBSERVATIONS = gym.spaces.Box(-1, 1, (3,), np.float32)
ACTIONS = gym.spaces.Box(np.array([-2.0, 0.0], np.float32), np.array([2.0, 1.0], np.float32))


def batch(seed: int, size: int = 32) -> Any:
    generator = torch.Generator().manual_seed(seed)
    terminated = (torch.rand(size, generator=generator) < 0.3).float()
    return (
        torch.randn(size, 3, generator=generator),
        torch.rand(size, 2, generator=generator) * torch.tensor([4.0, 1.0]) - torch.tensor([2.0, 0.0]),
        torch.randn(size, generator=generator),
        torch.randn(size, 3, generator=generator),
        terminated,
        1 - terminated,
    )


def test_two_updates_equal_the_paper_s_algorithm() -> None:
    """Algorithm 1 again, with a delay of 2: one critic after the other, plain autograd and plain SGD."""

    def agent() -> TD3Agent:
        torch.manual_seed(0)
        return TD3Agent(
            OBSERVATIONS, ACTIONS, "cpu", optimizer_actor="sgd", optimizer_critic="sgd", lr_actor=0.1, lr_critic=0.1,
            polyak=0.9, hidden_sizes=(16, 16),
        )  # fmt: skip

    fast, slow = agent(), agent()
    torch.manual_seed(5)
    for seed in range(2):
        fast.train(batch(seed))

    torch.manual_seed(5)
    critics, policy = list(slow.critics.parameters()), list(slow.model.actor.parameters())
    half_range, low, high = [2.0, 0.5], [-2.0, 0.0], [2.0, 1.0]
    for seed in range(2):
        obs, act, reward, next_obs, terminated, _ = batch(seed)
        with torch.no_grad():
            next_action = slow.target_actor(next_obs)
            noise = torch.randn(32, 2)
            for i in range(32):
                for a in range(2):
                    moved = float(next_action[i, a]) + max(-0.5, min(0.5, 0.2 * float(noise[i, a]))) * half_range[a]
                    next_action[i, a] = max(low[a], min(high[a], moved))
            q = slow.target_critics(next_obs, next_action)
            target = torch.zeros(32)
            for i in range(32):
                target[i] = reward[i] + (0.0 if terminated[i] else 0.99 * min(q[0, i], q[1, i]))
        for k in range(2):
            loss = 0.5 * ((slow.critics(obs, act)[k] - target) ** 2).mean()
            for parameter, gradient in zip(critics, torch.autograd.grad(loss, critics), strict=True):
                parameter.data.sub_(0.1 * gradient)
        if seed == 1:
            loss = -slow.critics(obs, slow.model.actor(obs))[0].mean()
            for parameter, gradient in zip(policy, torch.autograd.grad(loss, policy), strict=True):
                parameter.data.sub_(0.1 * gradient)
            for targets, sources in ((slow.target_critics, slow.critics), (slow.target_actor, slow.model.actor)):
                for old, new in zip(targets.parameters(), sources.parameters(), strict=True):
                    old.data.copy_(0.9 * old + 0.1 * new)

    for name in ("model", "target_actor", "target_critics"):
        pairs = zip(getattr(fast, name).parameters(), getattr(slow, name).parameters(), strict=True)
        assert all(torch.allclose(a, b, atol=1e-6) for a, b in pairs)


def test_workers_act_randomly_before_the_first_updates() -> None:
    agent = TD3Agent(OBSERVATIONS, ACTIONS, "cpu", exploration_noise=0.3, hidden_sizes=(8,))
    assert agent.get_actor().exploration() == {"noise": 0.3, "random": 1.0}
    agent.train(batch(0))
    assert agent.get_actor().exploration() == {"noise": 0.3, "random": 0.0}


def test_a_delay_of_zero_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"agent\.kwargs\.policy_delay: found 0, allowed: at least 1"):
        TD3Agent(OBSERVATIONS, ACTIONS, "cpu", policy_delay=0)


def test_it_solves_a_toy_task() -> None:
    """One step, reward -(a - target(obs))^2: the policy has to find the target, whose sign the observation says."""
    torch.manual_seed(0)
    space = gym.spaces.Box(-1, 1, (1,), np.float32)
    agent = TD3Agent(
        space, gym.spaces.Box(-2, 2, (1,), np.float32), "cpu", lr_actor=1e-3, lr_critic=1e-2, hidden_sizes=(32, 32)
    )
    generator = torch.Generator().manual_seed(0)
    for _ in range(300):
        obs = torch.sign(torch.randn(64, 1, generator=generator))
        act = torch.rand(64, 1, generator=generator) * 4 - 2
        reward = -(act - obs).square().squeeze(1)
        agent.train((obs, act, reward, obs, torch.ones(64), torch.zeros(64)))
    for sign in (-1.0, 1.0):
        action = agent.get_actor().act_(np.array([sign], np.float32), test=True)
        assert float(action[0]) == pytest.approx(sign, abs=0.2)
