"""Optimizers' helpers."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tmrl_core.training.agents.optimizers import frozen, minimise, optimizer_metrics


@pytest.mark.parametrize("once", [False, True], ids=["list", "iterator"])
def test_frozen_parameters_let_gradients_through_and_move_again_afterwards(once: bool) -> None:
    critic, policy = nn.Linear(2, 1), nn.Linear(3, 2)
    with frozen(critic.parameters() if once else list(critic.parameters())):
        critic(policy(torch.ones(3))).sum().backward()
    assert all(p.grad is None and p.requires_grad for p in critic.parameters())
    assert all(p.grad is not None for p in policy.parameters())
    with pytest.raises(ZeroDivisionError), frozen(critic.parameters()):
        raise ZeroDivisionError
    assert all(p.requires_grad for p in critic.parameters())


class Agent:
    """Two optimizers that have made a step, and one that has not."""

    def __init__(self) -> None:
        self.weight, self.other = nn.Parameter(torch.tensor([1.0, 1.0])), nn.Parameter(torch.tensor([2.0]))
        self.optimizer_actor = torch.optim.SGD([self.weight], lr=0.1)
        self.optimizer_critic = torch.optim.SGD([self.other], lr=0.2)
        self.optimizer_alpha = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1)


def test_learning_rates_and_gradients_are_those_of_an_agents_optimizers() -> None:
    agent = Agent()
    assert minimise(agent.optimizer_actor, (agent.weight * torch.tensor([3.0, 4.0])).sum()) == {}
    before = minimise(agent.optimizer_critic, 10.0 * agent.other.sum(), max_norm=1.0)
    assert float(before["grad_norm"]) == 10.0
    assert optimizer_metrics(agent) == pytest.approx(
        {"learning_rate": 0.1, "grad_norm_actor": 5.0, "learning_rate_critic": 0.2, "grad_norm_critic": 1.0}
    )
