"""Helpers for models."""

from __future__ import annotations

import torch
from torch import nn

from tmrl_core.compat.custom.utils import nn as helpers


def test_a_shared_copy_follows_parameters_and_buffers() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    shared = helpers.no_grad(helpers.copy_shared(model))
    assert all(parameter.requires_grad for parameter in model.parameters())
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    model(torch.randn(8, 2)).square().mean().backward()
    optimizer.step()
    pairs = zip(model.state_dict().values(), shared.state_dict().values(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
    assert not any(parameter.requires_grad for parameter in shared.parameters())
    assert not {id(p) for p in model.parameters()} & {id(p) for p in shared.parameters()}


def test_averages_move_towards_values() -> None:
    average = torch.zeros(2)
    helpers.exponential_moving_average([average], [torch.ones(2)], 0.25)
    assert average.tolist() == [0.25, 0.25]


def test_gradients_are_left_behind() -> None:
    x = torch.ones(1, requires_grad=True)
    assert not helpers.detach(x * 2).requires_grad
    assert [part.requires_grad for part in helpers.detach([x, [x * 2]])[1]] == [False]
