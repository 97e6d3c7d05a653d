"""Optimizers' helpers."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tmrl_core.training.optimizers import held


@pytest.mark.parametrize("once", [False, True], ids=["list", "iterator"])
def test_held_parameters_let_gradients_through_and_move_again_afterwards(once: bool) -> None:
    critic, policy = nn.Linear(2, 1), nn.Linear(3, 2)
    with held(critic.parameters() if once else list(critic.parameters())):
        critic(policy(torch.ones(3))).sum().backward()
    assert all(p.grad is None and p.requires_grad for p in critic.parameters())
    assert all(p.grad is not None for p in policy.parameters())
    with pytest.raises(ZeroDivisionError), held(critic.parameters()):
        raise ZeroDivisionError
    assert all(p.requires_grad for p in critic.parameters())
