from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tmrl_core.training.agents.gae import discounted_sums, generalized_advantages


def slow_advantage(
    start: int, reward: list[float], value: list[float], next_value: list[float], terminated: list[bool],
    ends: list[bool], gamma: float, gae_lambda: float,
) -> float:  # fmt: skip
    """The sum of eq. 16, term by term, from one transition on."""
    total, weight = 0.0, 1.0
    for index in range(start, len(reward)):
        bootstrap = 0.0 if terminated[index] else next_value[index]
        total += weight * (reward[index] + gamma * bootstrap - value[index])
        if ends[index]:
            break
        weight *= gamma * gae_lambda
    return total


@pytest.mark.parametrize("seed", range(20))
def test_gae_equals_a_slow_loop(seed: int) -> None:
    rng = np.random.default_rng(seed)
    length = int(rng.integers(1, 60))
    reward, value, next_value = rng.standard_normal((3, length))
    terminated = rng.random(length) < 0.1
    ends = terminated | (rng.random(length) < 0.15)
    ends[-1] = True
    gamma, gae_lambda = rng.uniform(0.5, 1.0, 2).tolist()
    advantages, returns = generalized_advantages(
        reward, value, next_value, terminated, ends, gamma=gamma, gae_lambda=gae_lambda
    )
    lists: list[Any] = [array.tolist() for array in (reward, value, next_value, terminated, ends)]
    rest: tuple[Any, ...] = (*lists, gamma, gae_lambda)
    slow = [slow_advantage(index, *rest) for index in range(length)]
    np.testing.assert_allclose(advantages, slow, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(returns, np.array(slow) + value, rtol=1e-5, atol=1e-6)


def one(terminated: float, ends: float) -> float:
    zeros = np.zeros(1)
    advantages, _ = generalized_advantages(
        zeros + 1, zeros + 2, zeros + 10, zeros + terminated, zeros + ends, gamma=0.9, gae_lambda=0.5
    )
    return float(advantages[0])


def test_a_termination_has_no_value_after_it_and_a_truncation_has() -> None:
    assert one(terminated=1, ends=1) == pytest.approx(1 - 2)
    assert one(terminated=0, ends=1) == pytest.approx(1 + 0.9 * 10 - 2)


def test_no_advantage_passes_across_an_end() -> None:
    rewards = np.array([0.0, 100.0])
    zeros = np.zeros(2)
    joined, _ = generalized_advantages(rewards, zeros, zeros, zeros, np.array([0, 1]), gamma=1.0, gae_lambda=1.0)
    parted, _ = generalized_advantages(rewards, zeros, zeros, zeros, np.array([1, 1]), gamma=1.0, gae_lambda=1.0)
    assert joined.tolist() == [100.0, 100.0]
    assert parted.tolist() == [0.0, 100.0]


def test_other_shapes_are_refused() -> None:
    flat = np.zeros(3)
    wrongs: list[Any] = [np.zeros(4), np.zeros((3, 1))]
    for wrong in wrongs:
        with pytest.raises(ValueError, match="five arrays of one length"):
            generalized_advantages(flat, flat, flat, flat, wrong, gamma=1.0, gae_lambda=1.0)
    with pytest.raises(ValueError, match="five arrays of one length"):
        generalized_advantages(*[np.zeros((3, 1))] * 5, gamma=1.0, gae_lambda=1.0)


def test_a_discounted_sum_restarts_with_each_run() -> None:
    sums = discounted_sums(np.array([1.0, 2.0, 4.0, 8.0]), np.array([0, 1, 0, 0]), gamma=0.5)
    assert sums.tolist() == [1.0, 2.5, 4.0, 10.0]


def test_a_discounted_sum_continues_an_earlier_one() -> None:
    rewards, ends = np.array([1.0, 2.0, 4.0]), np.array([0, 1, 1])
    sums = discounted_sums(rewards, ends, gamma=0.5, before_T=np.array([6.0, 0.0, 2.0]))
    assert sums.tolist() == [4.0, 4.0, 5.0]
