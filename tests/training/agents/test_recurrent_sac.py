from __future__ import annotations

import copy
import math
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from tests.training.agents.test_recurrent import GAMMA, B, T, make_batch, make_sac
from tmrl_core.training.agents.losses import critic_loss, critic_target, policy_loss, temperature_loss
from tmrl_core.training.agents.recurrent_networks import RecurrentCritics
from tmrl_core.training.agents.recurrent_sac import RecurrentSacAgent


def slowly(agent: RecurrentSacAgent, batch: list[Any], ticks: list[int]) -> dict[str, Any]:
    """Losses of the functions for single transitions, over sequences without padding, one after the other."""
    actor, alpha = agent.model.actor, agent.log_alpha.exp().detach()
    noise = torch.randn(B, T + 1, 2)
    columns: list[list[torch.Tensor]] = [[] for _ in range(6)]
    weights = []
    for b, count in enumerate(ticks):
        obs = torch.cat([batch[0][b, None], batch[3][b, :count]])[None]
        outputs, _ = actor.unroll(obs, {"h": batch[6]["state.h"][b, None]})
        mu, std = outputs["mu"][0], outputs["log_std"][0].exp()
        u = mu + std * noise[b, : count + 1]
        gaussian = -0.5 * ((u - mu) / std).square() - std.log() - 0.5 * math.log(2.0 * math.pi)
        log_prob = (gaussian - (1.0 - u.tanh().square()).log()).sum(-1)
        action = actor.squash(u)

        def values(critics: RecurrentCritics, of: torch.Tensor, obs: torch.Tensor = obs) -> torch.Tensor:
            features = critics.unroll(obs, critics.initial_state(1))[0][0]
            found: torch.Tensor = critics(features[1:] if critics is agent.target_critics else features[:-1], of)
            return found

        with torch.no_grad():
            next_q = values(agent.target_critics, action[1:]).amin(0)
            target = critic_target(batch[2][b, :count], batch[4][b, :count], next_q, log_prob[1:], alpha, GAMMA)
        q = values(agent.model.critics, batch[1][b, :count])
        frozen = copy.deepcopy(agent.model.critics).requires_grad_(False)
        value = values(frozen, action[:-1]).amin(0)
        for column, found in zip(columns, (q.T, target, value, log_prob[:-1]), strict=False):
            column.append(found)
        weights.append(batch[6]["weights"][b].expand(count))
    q, target, value, log_prob = (torch.cat(column) for column in columns[:4])
    weight = torch.cat(weights)
    return {
        "loss_critic": critic_loss(q.T, target, weight),
        "loss_actor": policy_loss(value, log_prob, alpha, weight),
        "loss_entropy": temperature_loss(agent.log_alpha, log_prob, agent.target_entropy, weight),
    }


@pytest.mark.parametrize("ticks", [(T, 4, 1, T), (1, 1, 1, 1)], ids=["padded", "one tick"])
def test_one_update_equals_the_slow_one(ticks: Any) -> None:
    torch.manual_seed(0)
    agent = make_sac(alpha=0.3, optimizer_actor="sgd", optimizer_critic="sgd")
    batch = make_batch(agent, ticks=ticks)
    batch[4][0, ticks[0] - 1] = 1.0
    slow = copy.deepcopy(agent)
    torch.manual_seed(1)
    metrics = agent.train(tuple(batch))
    torch.manual_seed(1)
    losses = slowly(slow, batch, list(ticks))
    sum(losses.values()).backward()
    for name, loss in losses.items():
        torch.testing.assert_close(metrics[name], loss.detach(), rtol=1e-4, atol=1e-5)
    for found, expected in zip(agent.model.parameters(), slow.model.parameters(), strict=True):
        torch.testing.assert_close(found.grad, expected.grad, rtol=1e-3, atol=1e-5)


def test_actions_are_scaled_for_the_critics() -> None:
    torch.manual_seed(0)
    critics = make_sac().model.critics
    features = critics.unroll(torch.randn(1, 2, 3), critics.initial_state(1))[0].flatten(0, 1)
    action = torch.tensor([[2.0, -2.0], [0.0, 1.0]])
    expected = critics.head(torch.cat([features, action / 2], -1).expand(2, -1, -1)).squeeze(-1)
    torch.testing.assert_close(critics(features, action), expected)


def test_it_learns_to_remember() -> None:
    """The first of three observations is the action wanted at the third."""
    generator = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    space = gym.spaces.Box(-1, 1, (1,), np.float32)
    agent = RecurrentSacAgent(
        space, space, "cpu", hidden_sizes=(16,), cell_size=16, burn_in=0, lr_actor=3e-3, lr_critic=1e-2,
        polyak=0.95, learn_entropy_coef=False,
    )  # fmt: skip
    extras = {"ticks": torch.full((64,), 3.0), "first_tick": torch.zeros(64)}
    terminated = torch.tensor([0.0, 0.0, 1.0]).expand(64, 3)
    for _ in range(200):
        cue = torch.randint(2, (64, 1), generator=generator) * 2.0 - 1.0
        action = torch.rand(64, 3, 1, generator=generator) * 2.0 - 1.0
        reward = -4.0 * (action[:, :, 0] - 0.5 * cue).square() * terminated
        agent.train((cue, action, reward, torch.zeros(64, 3, 1), terminated, torch.zeros(64, 3), extras))
    obs = torch.tensor([[[1.0], [0.0], [0.0]], [[-1.0], [0.0], [0.0]]])
    outputs, _ = agent.model.actor.unroll(obs, agent.model.actor.initial_state(2))
    found = agent.model.actor.squashed(outputs, test=True)[0][:, 2, 0]
    assert found[0] > 0.25
    assert found[1] < -0.25
