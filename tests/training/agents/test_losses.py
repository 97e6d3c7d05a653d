from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tmrl_core.training.agents.losses import (
    chosen_value,
    critic_loss,
    critic_target,
    deterministic_policy_loss,
    discrete_policy_loss,
    double_value,
    huber_loss,
    largest_value,
    policy_loss,
    smoothed_action,
    soft_value,
    td_error,
    td_target,
    temperature_loss,
)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def test_critic_target_equals_the_slow_loop() -> None:
    reward, q, log_prob = (torch.randn(20) for _ in range(3))
    terminated = (torch.rand(20) < 0.5).float()
    alpha, gamma = torch.tensor(0.3), 0.9
    expected = []
    for i in range(20):
        value = float(q[i]) - float(alpha) * float(log_prob[i])
        expected.append(float(reward[i]) + (0.0 if terminated[i] else gamma * value))
    found = critic_target(reward, terminated, q, log_prob, alpha, gamma)
    assert found.tolist() == pytest.approx(expected, rel=1e-5)


def test_critic_loss_equals_the_slow_loop() -> None:
    q, target = torch.randn(3, 20), torch.randn(20)
    expected = 0.0
    for k in range(3):
        expected += sum(0.5 * (float(q[k, i]) - float(target[i])) ** 2 for i in range(20)) / 20
    assert float(critic_loss(q, target)) == pytest.approx(expected, rel=1e-5)


def test_policy_loss_equals_the_slow_loop() -> None:
    q, log_prob = torch.randn(20), torch.randn(20)
    expected = sum(0.3 * float(log_prob[i]) - float(q[i]) for i in range(20)) / 20
    assert float(policy_loss(q, log_prob, torch.tensor(0.3))) == pytest.approx(expected, rel=1e-4)


def test_temperature_loss_equals_the_slow_loop_and_moves_the_right_way() -> None:
    log_prob = torch.randn(20).requires_grad_()
    values = log_prob.tolist()
    log_alpha = torch.tensor(-0.7, requires_grad=True)
    loss = temperature_loss(log_alpha, log_prob, -2.0)
    expected = sum(0.7 * (values[i] - 2.0) for i in range(20)) / 20
    assert float(loss.detach()) == pytest.approx(expected, rel=1e-4)
    # Entropy (about 0) above its target (-2): the temperature has to fall, so the gradient is positive.
    loss.backward()  # type: ignore[no-untyped-call]
    assert float(log_alpha.grad) > 0  # type: ignore[arg-type]
    assert log_prob.grad is None


@pytest.mark.parametrize("name", ["reward_B", "terminated_B", "next_q_B", "next_log_prob_B"])
def test_a_column_in_place_of_a_vector_is_refused(name: str) -> None:
    arguments: Any = {n: torch.zeros(4) for n in ("reward_B", "terminated_B", "next_q_B", "next_log_prob_B")}
    arguments[name] = torch.zeros(4, 1)
    with pytest.raises(ValueError, match=name):
        critic_target(**arguments, alpha=torch.tensor(1.0), gamma=0.9)


def test_columns_are_refused_by_every_loss() -> None:
    column, vector = torch.zeros(4, 1), torch.zeros(4)
    calls: list[Callable[[], Tensor]] = [
        lambda: critic_loss(torch.zeros(2, 4), column),
        lambda: policy_loss(column, vector, vector[0]),
        lambda: policy_loss(vector, column, vector[0]),
        lambda: temperature_loss(vector[0], column, -1.0),
        lambda: critic_loss(torch.zeros(2, 4), vector, column),
        lambda: huber_loss(column, vector),
        lambda: td_target(vector, vector, vector, column),
        lambda: deterministic_policy_loss(column),
        lambda: chosen_value(torch.zeros(4, 2), column),
        lambda: td_error(vector, column),
    ]
    for call in calls:
        with pytest.raises(ValueError, match=r"must be \[B\]"):
            call()


def test_n_step_targets_equal_the_sum_over_steps() -> None:
    """From single rewards: up to three steps, cut at a termination (no value after it) or a truncation (with one)."""
    gamma = 0.9
    rewards = torch.randn(20, 3).tolist()
    value = torch.randn(20)
    ends = ["", "terminated 1", "terminated 2", "truncated 1", "truncated 2"]
    reward, terminated, discount, expected = torch.zeros(20), torch.zeros(20), torch.zeros(20), []
    for i in range(20):
        end = ends[i % 5]
        steps = int(end[-1]) if end else 3
        total = 0.0
        for step in range(steps):
            total += gamma**step * rewards[i][step]
        reward[i], discount[i], terminated[i] = total, gamma**steps, float(end.startswith("terminated"))
        expected.append(total if end.startswith("terminated") else total + gamma**steps * float(value[i]))
    assert td_target(reward, terminated, value, discount).tolist() == pytest.approx(expected, rel=1e-5)


def test_double_value_takes_the_action_of_one_network_and_the_value_of_the_other() -> None:
    online, target = torch.randn(20, 4), torch.randn(20, 4)
    expected = []
    for i in range(20):
        best = 0
        for n in range(4):
            if online[i, n] > online[i, best]:
                best = n
        expected.append(float(target[i, best]))
    assert double_value(online, target).tolist() == expected


def test_chosen_value_takes_each_row_s_own_action() -> None:
    q, index = torch.randn(20, 4), torch.randint(0, 4, (20,), dtype=torch.int32)
    assert chosen_value(q, index).tolist() == [float(q[i, int(index[i])]) for i in range(20)]


def test_soft_value_and_the_discrete_policy_loss_equal_the_slow_loop() -> None:
    q, alpha = torch.randn(20, 4), torch.tensor(0.3)
    log_prob = torch.log_softmax(torch.randn(20, 4), dim=-1)
    expected = []
    for i in range(20):
        value = 0.0
        for n in range(4):
            value += math.exp(float(log_prob[i, n])) * (float(q[i, n]) - 0.3 * float(log_prob[i, n]))
        expected.append(value)
    assert soft_value(q, log_prob, alpha).tolist() == pytest.approx(expected, rel=1e-4)
    assert float(discrete_policy_loss(q, log_prob, alpha)) == pytest.approx(-sum(expected) / 20, rel=1e-4)


def test_the_noise_of_a_smoothed_action_is_clipped_and_so_is_the_action() -> None:
    low, high = torch.tensor([-2.0, 0.0]), torch.tensor([2.0, 1.0])
    action = torch.rand(50, 2) * (high - low) + low
    noise = torch.randn(50, 2) * 3
    found = smoothed_action(action, noise, 0.2, 0.5, low, high)
    for i in range(50):
        for a in range(2):
            half_range = (float(high[a]) - float(low[a])) / 2
            moved = float(action[i, a]) + max(-0.5, min(0.5, 0.2 * float(noise[i, a]))) * half_range
            assert float(found[i, a]) == pytest.approx(max(float(low[a]), min(float(high[a]), moved)), abs=1e-5)


def test_huber_loss_is_squared_near_and_linear_far() -> None:
    q, target, weight = torch.randn(20) * 2, torch.randn(20) * 2, torch.rand(20)
    plain = weighted = 0.0
    for i in range(20):
        error = abs(float(q[i]) - float(target[i]))
        one = 0.5 * error**2 if error < 1 else error - 0.5
        plain += one / 20
        weighted += float(weight[i]) * one / 20
    assert float(huber_loss(q, target)) == pytest.approx(plain, rel=1e-4)
    assert float(huber_loss(q, target, weight)) == pytest.approx(weighted, rel=1e-4)


def test_weights_scale_each_row_of_the_critics_loss() -> None:
    q, target, weight = torch.randn(3, 20), torch.randn(20), torch.rand(20)
    expected = 0.0
    for k in range(3):
        for i in range(20):
            expected += float(weight[i]) * 0.5 * (float(q[k, i]) - float(target[i])) ** 2 / 20
    assert float(critic_loss(q, target, weight)) == pytest.approx(expected, rel=1e-4)


def test_the_error_of_a_row_is_the_mean_over_critics_without_gradient() -> None:
    q, target = torch.randn(3, 20, requires_grad=True), torch.randn(20)
    found = td_error(q, target)
    for i in range(20):
        expected = sum(abs(float(q[k, i].detach()) - float(target[i])) for k in range(3)) / 3
        assert float(found[i]) == pytest.approx(expected, rel=1e-4)
    assert not found.requires_grad
    assert td_error(q[0], target).tolist() == (q[0] - target).abs().tolist()


def test_the_deterministic_policy_s_loss_falls_as_values_rise() -> None:
    q = torch.randn(20)
    assert float(deterministic_policy_loss(q)) == pytest.approx(-sum(q.tolist()) / 20, rel=1e-4)


def test_values_of_a_masked_state_are_those_of_its_allowed_actions() -> None:
    online, target, alpha = torch.randn(20, 4), torch.randn(20, 4), torch.tensor(0.3)
    allowed = torch.rand(20, 4) < 0.5
    allowed[0] = False  # a state without any action has no value
    assert allowed.any(dim=1).sum() > 10
    log_prob = torch.log_softmax(torch.randn(20, 4).masked_fill(~allowed, -1e9), dim=-1)
    largest, double, soft = (
        largest_value(target, allowed).tolist(),
        double_value(online, target, allowed).tolist(),
        soft_value(target, log_prob, alpha, allowed).tolist(),
    )
    assert (largest[0], double[0], soft[0]) == (0.0, 0.0, 0.0)
    for i in range(20):
        choices = [n for n in range(4) if allowed[i, n]]
        if not choices:
            continue
        assert largest[i] == max(float(target[i, n]) for n in choices)
        assert double[i] == float(target[i, max(choices, key=lambda n: float(online[i, n]))])
        expected = sum(math.exp(log_prob[i, n]) * (float(target[i, n]) - 0.3 * float(log_prob[i, n])) for n in choices)
        assert soft[i] == pytest.approx(expected, rel=1e-4)


def test_a_target_entropy_for_each_state_equals_that_of_the_slow_loop() -> None:
    log_alpha, entropy, wanted = torch.tensor(0.3), torch.rand(20), torch.rand(20)
    expected = sum(-0.3 * (float(wanted[i]) - float(entropy[i])) for i in range(20)) / 20
    assert float(temperature_loss(log_alpha, -entropy, wanted)) == pytest.approx(expected, rel=1e-4)
    with pytest.raises(ValueError, match="target_entropy must be"):
        temperature_loss(log_alpha, -entropy, wanted[:, None])
