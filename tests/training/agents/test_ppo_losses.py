from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

from tmrl_core.training.agents.ppo_losses import clipped_policy_loss, divergence, value_loss


def draw(seed: int, number: int = 40) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(3, number, generator=generator))


@pytest.mark.parametrize("seed", range(5))
def test_the_policy_loss_as_a_slow_loop(seed: int) -> None:
    log_prob, old, advantage = draw(seed)
    terms = []
    for new_logp, old_logp, a in zip(log_prob.tolist(), old.tolist(), advantage.tolist(), strict=True):
        ratio = math.exp(new_logp - old_logp)
        clipped = min(max(ratio, 0.8), 1.2)
        terms.append(min(ratio * a, clipped * a))
    assert float(clipped_policy_loss(log_prob, old, advantage, 0.2)) == pytest.approx(-sum(terms) / 40, rel=1e-5)


def test_a_ratio_beyond_the_clip_pulls_no_further_and_is_pulled_back() -> None:
    old = torch.zeros(2)
    for advantage, log_prob, moves in ((1.0, 1.0, False), (1.0, -1.0, True), (-1.0, -1.0, False), (-1.0, 1.0, True)):
        parameter = torch.full((2,), log_prob, requires_grad=True)
        clipped_policy_loss(parameter, old, torch.full((2,), advantage), 0.2).backward()  # type: ignore[no-untyped-call]
        assert parameter.grad is not None
        assert bool(parameter.grad.abs().sum() > 0) == moves


@pytest.mark.parametrize("value_clip", [None, 0.3])
def test_the_value_loss_as_a_slow_loop(value_clip: float | None) -> None:
    value, returns, old = draw(7)
    terms = []
    for v, r, o in zip(value.tolist(), returns.tolist(), old.tolist(), strict=True):
        error = (v - r) ** 2
        if value_clip is not None:
            clipped = o + min(max(v - o, -value_clip), value_clip)
            error = max(error, (clipped - r) ** 2)
        terms.append(0.5 * error)
    assert float(value_loss(value, returns, old, value_clip)) == pytest.approx(sum(terms) / 40, rel=1e-5)


def test_clipping_values_needs_the_old_ones() -> None:
    with pytest.raises(ValueError, match="old_value_B"):
        value_loss(torch.zeros(2), torch.zeros(2), None, 0.2)


def test_the_divergence_is_nothing_without_change_and_that_of_two_gaussians_otherwise() -> None:
    assert float(divergence(torch.ones(3), torch.ones(3))) == 0.0
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randn(200_000, generator=generator)
    old, new = torch.distributions.Normal(0.0, 1.0), torch.distributions.Normal(0.2, 1.1)
    exact = torch.distributions.kl_divergence(old, new)
    found = divergence(new.log_prob(drawn), old.log_prob(drawn))  # type: ignore[no-untyped-call]
    assert float(found) == pytest.approx(float(exact), rel=0.05)


def test_other_shapes_are_refused() -> None:
    column, flat = torch.zeros(3, 1), torch.zeros(3)
    calls: list[Callable[[], object]] = [
        lambda: clipped_policy_loss(flat, flat, column, 0.2),
        lambda: value_loss(column, flat),
        lambda: value_loss(column, column),
        lambda: value_loss(flat, flat, column, 0.1),
        lambda: divergence(flat, column),
    ]
    for call in calls:
        with pytest.raises(ValueError, match=r"one shape \[B\]"):
            call()
