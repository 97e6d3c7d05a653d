"""DDPG: its update is the paper's, and it learns."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from tmrl_core.training import DDPGAgent

OBSERVATIONS = gym.spaces.Box(-1, 1, (3,), np.float32)
ACTIONS = gym.spaces.Box(-2, 2, (1,), np.float32)


def batch(seed: int) -> Any:
    generator = torch.Generator().manual_seed(seed)
    terminated = (torch.rand(32, generator=generator) < 0.3).float()
    obs, next_obs = torch.randn(2, 32, 3, generator=generator)
    act = torch.rand(32, 1, generator=generator) * 4 - 2
    return obs, act, torch.randn(32, generator=generator), next_obs, terminated, 1 - terminated


def test_two_updates_equal_the_paper_s_algorithm() -> None:
    """Algorithm 1 again, with plain autograd and plain SGD."""

    def agent() -> Any:
        torch.manual_seed(0)
        return DDPGAgent(
            OBSERVATIONS, ACTIONS, "cpu", optimizer_actor="sgd", optimizer_critic="sgd", lr_actor=0.1, lr_critic=0.1,
            polyak=0.9, hidden_sizes=(16, 16),
        )  # fmt: skip

    fast, plain = agent(), agent()
    critics, policy = list(plain.critics.parameters()), list(plain.model.actor.parameters())
    for seed in range(2):
        obs, act, reward, next_obs, terminated, _ = batch(seed)
        fast.train(batch(seed))
        with torch.no_grad():
            next_q = plain.target_critics(next_obs, plain.target_actor(next_obs))
            target = reward + 0.99 * (1 - terminated) * next_q[0]
        q = plain.critics(obs, act)
        assert q.shape == (1, 32)
        loss = 0.5 * ((q[0] - target) ** 2).mean()
        for parameter, gradient in zip(critics, torch.autograd.grad(loss, critics), strict=True):
            parameter.data.sub_(0.1 * gradient)
        loss = -plain.critics(obs, plain.model.actor(obs))[0].mean()
        for parameter, gradient in zip(policy, torch.autograd.grad(loss, policy), strict=True):
            parameter.data.sub_(0.1 * gradient)
        for targets, sources in ((plain.target_critics, plain.critics), (plain.target_actor, plain.model.actor)):
            for old, new in zip(targets.parameters(), sources.parameters(), strict=True):
                old.data.copy_(0.9 * old + 0.1 * new)
    for name in ("model", "target_actor", "target_critics"):
        pairs = zip(getattr(fast, name).parameters(), getattr(plain, name).parameters(), strict=True)
        assert all(torch.allclose(a, b, atol=1e-6) for a, b in pairs)


def test_it_solves_a_toy_task() -> None:
    """One step with the reward -(a - obs)^2: the policy has to find the sign that the observation gives."""
    torch.manual_seed(0)
    space = gym.spaces.Box(-1, 1, (1,), np.float32)
    agent = DDPGAgent(space, ACTIONS, "cpu", lr_critic=1e-2, hidden_sizes=(32, 32))
    generator = torch.Generator().manual_seed(0)
    for _ in range(300):
        obs = torch.sign(torch.randn(64, 1, generator=generator))
        act = torch.rand(64, 1, generator=generator) * 4 - 2
        reward = -(act - obs).square().squeeze(1)
        agent.train((obs, act, reward, obs, torch.ones(64), torch.zeros(64)))
    for sign in (-1.0, 1.0):
        action = agent.get_actor().act_(np.array([sign], np.float32), test=True)
        assert float(action[0]) == pytest.approx(sign, abs=0.2)
