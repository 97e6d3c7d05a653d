from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import nn

from tmrl_core.errors import ConfigError
from tmrl_core.training.agents.dqn import DQNAgent

OBSERVATIONS = gym.spaces.Box(-1, 1, (3,), np.float32)
ACTIONS = gym.spaces.Discrete(3, start=4)


def batch(seed: int, size: int = 32) -> Any:
    generator = torch.Generator().manual_seed(seed)
    terminated = (torch.rand(size, generator=generator) < 0.3).float()
    return (
        torch.randn(size, 3, generator=generator),
        torch.randint(4, 7, (size,), generator=generator),
        torch.randn(size, generator=generator) * 3,
        torch.randn(size, 3, generator=generator),
        terminated,
        1 - terminated,
        {"discount": 0.9 ** torch.randint(1, 4, (size,), generator=generator)},
    )


@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("dueling", [False, True])
def test_two_updates_equal_the_slow_ones(double: bool, dueling: bool) -> None:
    def agent() -> DQNAgent:
        torch.manual_seed(0)
        return DQNAgent(
            OBSERVATIONS, ACTIONS, "cpu", double=double, dueling=dueling, optimizer="sgd", lr=0.1, target_interval=2,
            max_grad_norm=None, hidden_sizes=(16,), activation=nn.Tanh,
        )  # fmt: skip

    fast, slow = agent(), agent()
    for seed in range(2):
        fast.train(batch(seed))

    network, weights = slow.model.actor, list(slow.model.actor.parameters())
    for seed in range(2):
        obs, act, reward, next_obs, terminated, _, extras = batch(seed)
        target = torch.zeros(32)
        with torch.no_grad():
            for i in range(32):
                values = slow.target_network(next_obs[i : i + 1])[0].tolist()
                ranked = network(next_obs[i : i + 1])[0].tolist() if double else values
                value = values[ranked.index(max(ranked))]
                target[i] = reward[i] + (0.0 if terminated[i] else extras["discount"][i] * value)
        loss = torch.zeros(())
        for i in range(32):
            error = (network(obs[i : i + 1])[0, int(act[i]) - 4] - target[i]).abs()
            loss = loss + (0.5 * error**2 if error < 1 else error - 0.5) / 32
        for parameter, gradient in zip(weights, torch.autograd.grad(loss, weights), strict=True):
            parameter.data.sub_(0.1 * gradient)

    for a, b in zip(fast.model.parameters(), slow.model.parameters(), strict=True):
        assert torch.allclose(a, b, atol=1e-6)
    # After two updates the target network is the online one.
    for a, b in zip(fast.model.parameters(), fast.target_network.parameters(), strict=True):
        assert torch.equal(a, b)


def test_the_target_network_waits_for_its_interval() -> None:
    agent = DQNAgent(OBSERVATIONS, ACTIONS, "cpu", target_interval=3, hidden_sizes=(8,))
    before = [p.clone() for p in agent.target_network.parameters()]
    for seed in range(2):
        agent.train(batch(seed))
        assert all(torch.equal(a, b) for a, b in zip(before, agent.target_network.parameters(), strict=True))
    agent.train(batch(2))
    assert not any(torch.equal(a, b) for a, b in zip(before, agent.target_network.parameters(), strict=True))


def test_gradients_are_scaled_down_to_their_norm() -> None:
    def moved(norm: float | None) -> float:
        torch.manual_seed(0)
        agent = DQNAgent(OBSERVATIONS, ACTIONS, "cpu", optimizer="sgd", lr=1.0, max_grad_norm=norm, hidden_sizes=(8,))
        before = nn.utils.parameters_to_vector(agent.model.parameters()).detach()
        agent.train(batch(0))
        return float((nn.utils.parameters_to_vector(agent.model.parameters()).detach() - before).norm())

    assert moved(None) > 0.1
    assert moved(0.1) == pytest.approx(0.1, rel=1e-3)


def test_epsilon_falls_in_a_straight_line_and_is_published() -> None:
    agent = DQNAgent(
        OBSERVATIONS, ACTIONS, "cpu", epsilon_initial=0.9, epsilon_final=0.1, epsilon_updates=4, hidden_sizes=(8,)
    )
    published = []
    for seed in range(6):
        published.append(agent.get_actor().exploration()["epsilon"])
        agent.train(batch(seed))
    assert published == pytest.approx([0.9, 0.7, 0.5, 0.3, 0.1, 0.1])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"epsilon_final": 1.5}, r"agent\.kwargs\.epsilon_final: found 1.5, allowed: 0 to 1"),
        ({"epsilon_updates": 0}, "epsilon_updates: found 0, allowed: at least 1"),
        ({"target_interval": 0}, "target_interval: found 0, allowed: at least 1"),
    ],
)
def test_impossible_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        DQNAgent(OBSERVATIONS, ACTIONS, "cpu", **settings)


@pytest.mark.parametrize("dueling", [False, True])
def test_it_solves_a_toy_task(dueling: bool) -> None:
    """A walk of 5 places, 0 ends without and 4 with a reward: from everywhere it has to go right."""
    torch.manual_seed(0)
    agent = DQNAgent(
        gym.spaces.Discrete(5), gym.spaces.Discrete(2), "cpu", gamma=0.9, lr=5e-3, target_interval=20,
        dueling=dueling, hidden_sizes=(32,),
    )  # fmt: skip
    generator = torch.Generator().manual_seed(0)
    for _ in range(300):
        place = torch.randint(1, 4, (64,), generator=generator)
        move = torch.randint(0, 2, (64,), generator=generator)
        after = place + 2 * move - 1
        agent.train((place, move, (after == 4).float(), after, ((after == 0) | (after == 4)).float(), torch.zeros(64)))
    actor = agent.get_actor()
    assert [int(actor.act_(np.int64(place), test=True)) for place in (1, 2, 3)] == [1, 1, 1]
    with torch.no_grad():
        best = actor(torch.tensor([1, 2, 3])).amax(dim=1)
    assert best.tolist() == pytest.approx([0.81, 0.9, 1.0], abs=0.05)
