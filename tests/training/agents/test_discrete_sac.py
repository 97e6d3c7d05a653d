from __future__ import annotations

import math
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from tmrl_core.training.agents.discrete_sac import DiscreteSacAgent

OBSERVATIONS = gym.spaces.Box(-1, 1, (3,), np.float32)
ACTIONS = gym.spaces.Discrete(3, start=4)


def batch(seed: int, size: int = 32) -> Any:
    generator = torch.Generator().manual_seed(seed)
    terminated = (torch.rand(size, generator=generator) < 0.3).float()
    return (
        torch.randn(size, 3, generator=generator),
        torch.randint(4, 7, (size,), generator=generator),
        torch.randn(size, generator=generator),
        torch.randn(size, 3, generator=generator),
        terminated,
        1 - terminated,
    )


def test_one_update_equals_the_slow_one() -> None:
    """The whole update again: one row, action and critic after the other, plain autograd and plain SGD."""

    def agent() -> DiscreteSacAgent:
        torch.manual_seed(0)
        return DiscreteSacAgent(
            OBSERVATIONS, ACTIONS, "cpu", optimizer_actor="sgd", optimizer_critic="sgd", lr_actor=0.1, lr_critic=0.1,
            lr_entropy=1e-2, alpha=0.2, polyak=0.9, hidden_sizes=(16,),
        )  # fmt: skip

    fast, slow = agent(), agent()
    fast.train(batch(0))

    obs, act, reward, next_obs, terminated, _ = batch(0)
    with torch.no_grad():
        next_probs = torch.softmax(slow.model.actor.logits(slow.model.actor.net(next_obs)), -1)
        next_q = slow.target_critics(next_obs)
        target = torch.zeros(32)
        for i in range(32):
            value = 0.0
            for n in range(3):
                p = float(next_probs[i, n])
                value += p * (min(float(next_q[0, i, n]), float(next_q[1, i, n])) - 0.2 * math.log(p))
            target[i] = reward[i] + (0.0 if terminated[i] else 0.99 * value)
    critics = list(slow.critics.parameters())
    loss = torch.zeros(())
    q = slow.critics(obs)
    for k in range(2):
        for i in range(32):
            loss = loss + 0.5 * (q[k, i, int(act[i]) - 4] - target[i]) ** 2 / 32
    for parameter, gradient in zip(critics, torch.autograd.grad(loss, critics), strict=True):
        parameter.data.sub_(0.1 * gradient)
    probs = torch.softmax(slow.model.actor.logits(slow.model.actor.net(obs)), -1)
    entropy = 0.0
    loss = torch.zeros(())
    with torch.no_grad():
        q = slow.critics(obs)
    for i in range(32):
        for n in range(3):
            entropy -= float(probs[i, n].detach()) * math.log(float(probs[i, n].detach())) / 32
            loss = loss + probs[i, n] * (0.2 * probs[i, n].log() - min(q[0, i, n], q[1, i, n])) / 32
    policy = list(slow.model.actor.parameters())
    for parameter, gradient in zip(policy, torch.autograd.grad(loss, policy), strict=True):
        parameter.data.sub_(0.1 * gradient)
    for old, new in zip(slow.target_critics.parameters(), critics, strict=True):
        old.data.copy_(0.9 * old + 0.1 * new)

    for name in ("model", "target_critics"):
        pairs = zip(getattr(fast, name).parameters(), getattr(slow, name).parameters(), strict=True)
        assert all(torch.allclose(a, b, atol=1e-6) for a, b in pairs)
    # Adam's first step is its learning rate: up where the entropy is below its target, down where it is above.
    direction = 1.0 if entropy < 0.5 * math.log(3) else -1.0
    assert float(fast.log_alpha.detach()) == pytest.approx(math.log(0.2) + direction * 1e-2, abs=1e-5)


def test_the_target_entropy_is_a_share_of_the_uniform_one() -> None:
    agent = DiscreteSacAgent(OBSERVATIONS, ACTIONS, "cpu", target_entropy_share=0.98)
    assert agent.target_entropy == pytest.approx(0.98 * math.log(3))


def test_a_fixed_temperature_stays() -> None:
    agent = DiscreteSacAgent(OBSERVATIONS, ACTIONS, "cpu", alpha=0.3, learn_entropy_coef=False)
    metrics = agent.train(batch(0))
    assert "loss_entropy" not in metrics
    assert float(metrics["entropy_coef"]) == pytest.approx(0.3)


def test_it_solves_a_toy_task() -> None:
    """A walk of 5 places, 0 ends without and 4 with a reward: from everywhere it has to go right."""
    torch.manual_seed(0)
    agent = DiscreteSacAgent(
        gym.spaces.Discrete(5), gym.spaces.Discrete(2), "cpu", gamma=0.9, alpha=0.02, learn_entropy_coef=False,
        lr_actor=5e-3, lr_critic=5e-3, polyak=0.95, hidden_sizes=(32,),
    )  # fmt: skip
    generator = torch.Generator().manual_seed(0)
    for _ in range(300):
        place = torch.randint(1, 4, (64,), generator=generator)
        move = torch.randint(0, 2, (64,), generator=generator)
        after = place + 2 * move - 1
        agent.train((place, move, (after == 4).float(), after, ((after == 0) | (after == 4)).float(), torch.zeros(64)))
    actor = agent.get_actor()
    assert [int(actor.act_(np.int64(place), test=True)) for place in (1, 2, 3)] == [1, 1, 1]
