"""Products of policies against direct computation."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tmrl_core.gateway.advice.combine import (
    Gaussian,
    choice_product,
    epsilon_greedy,
    gaussian_product,
    sample_choice,
    sample_gaussian,
    softmax,
)

numbers = st.floats(-50, 50)
spreads = st.floats(0.01, 100)


@st.composite
def choices(draw: st.DrawFn, most: int = 4) -> list[np.ndarray]:
    """Probabilities of one to `most` policies over the same actions, none of them 0."""
    count = draw(st.integers(1, 6))
    rows = draw(st.lists(st.lists(st.floats(-5, 5), min_size=count, max_size=count), min_size=1, max_size=most))
    return [softmax(np.array(row), 1.0) for row in rows]


@st.composite
def gaussians(draw: st.DrawFn) -> list[Gaussian]:
    size = draw(st.integers(1, 4))
    means = st.lists(numbers, min_size=size, max_size=size).map(np.array)
    stds = st.lists(spreads, min_size=size, max_size=size).map(np.array)
    return draw(st.lists(st.builds(Gaussian, means, stds), min_size=1, max_size=4))


@given(choices())
def test_a_product_of_choices_is_their_normalized_product(policies: list[np.ndarray]) -> None:
    product = np.array([math.prod(policy[action] for policy in policies) for action in range(len(policies[0]))])
    found = choice_product(policies[0], policies[1:])
    assert np.allclose(found, product / product.sum(), rtol=1e-9)
    assert math.isclose(found.sum(), 1.0, rel_tol=1e-12)


@given(choices(), st.integers(0, 3))
def test_a_uniform_choice_changes_no_bit(policies: list[np.ndarray], at: int) -> None:
    uniform = softmax(np.full(len(policies[0]), 3.7), 0.3)
    own, *advice = policies
    assert (choice_product(own, [*advice[:at], uniform, *advice[at:]]) == choice_product(own, advice)).all()


def test_a_long_product_does_not_vanish() -> None:
    product = choice_product(np.array([0.5, 0.5]), [np.array([1e-200, 2e-200])] * 50)
    assert np.allclose(product, [0.0, 1.0])


def test_where_no_action_suits_all_the_own_policy_counts() -> None:
    assert choice_product(np.array([1.0, 0.0]), [np.array([0.0, 1.0])]).tolist() == [1.0, 0.0]


@given(gaussians(), st.integers(0, 2**32))
def test_a_product_of_gaussians_has_their_summed_log_density(policies: list[Gaussian], seed: int) -> None:
    product = gaussian_product(policies)
    assert product is not None

    def log_density(policy: Gaussian, action_A: np.ndarray) -> np.ndarray:
        density_A: np.ndarray = -0.5 * np.square((action_A - policy.mean_A) / policy.std_A)
        return density_A

    # Up to a constant: differences between two points agree.
    first, second = np.random.default_rng(seed).normal(0.0, 10.0, (2, len(product.mean_A)))
    expected = sum(log_density(policy, first) - log_density(policy, second) for policy in policies)
    found = log_density(product, first) - log_density(product, second)
    assert np.allclose(found, expected, rtol=1e-6, atol=1e-6 * np.abs(expected).max() + 1e-3)


@given(gaussians(), st.integers(0, 3))
def test_a_uniform_gaussian_changes_no_bit(policies: list[Gaussian], at: int) -> None:
    size = len(policies[0].mean_A)
    uniform = Gaussian(np.full(size, 5.0), np.full(size, math.inf))
    found = gaussian_product([*policies[:at], uniform, *policies[at:]])
    expected = gaussian_product(policies)
    assert found is not None
    assert expected is not None
    assert (found.mean_A == expected.mean_A).all()
    assert (found.std_A == expected.std_A).all()


def test_only_uniform_policies_have_no_gaussian_product() -> None:
    assert gaussian_product([]) is None
    assert gaussian_product([Gaussian(np.zeros(2), np.array([1.0, math.inf]))]) is None


@given(st.lists(numbers, min_size=1, max_size=6), st.floats(0.1, 10))
def test_softmax_has_the_ratios_of_the_exponentials(values: list[float], temperature: float) -> None:
    found = softmax(np.array(values), temperature)
    best = max(values)
    assert np.allclose(found / found.max(), [math.exp((value - best) / temperature) for value in values])


def test_a_high_temperature_makes_the_choice_uniform() -> None:
    assert np.allclose(softmax(np.array([0.0, 1.0, 100.0]), 1e9), 1 / 3)


@pytest.mark.parametrize(("epsilon", "expected"), [(0.0, [0, 1, 0]), (1.0, [1 / 3] * 3), (0.3, [0.1, 0.8, 0.1])])
def test_epsilon_greedy(epsilon: float, expected: list[float]) -> None:
    assert np.allclose(epsilon_greedy(np.array([1.0, 3.0, 2.0]), epsilon), expected)
    masked = epsilon_greedy(np.array([1.0, -np.inf, 3.0, 2.0, -np.inf]), epsilon)
    assert np.allclose(masked, [expected[0], 0, *expected[1:], 0])


def test_an_action_without_probability_is_never_drawn() -> None:
    choice = np.array([0.1, 0.2, 0.7, 0.0])
    choice /= choice.sum()

    class Largest(np.random.Generator):
        def random(self, *args: Any, **kwargs: Any) -> Any:
            return 1.0  # as rounding may make of the largest number below it, times the sum

    assert sample_choice(choice, Largest(np.random.PCG64())) == 2


def test_samples_follow_their_distribution() -> None:
    rng = np.random.default_rng(0)
    drawn = [sample_choice(np.array([0.2, 0.0, 0.8]), rng) for _ in range(20_000)]
    shares = np.bincount(drawn, minlength=3) / len(drawn)
    assert shares[1] == 0.0
    assert abs(shares[0] - 0.2) < 0.02
    policy = Gaussian(np.array([1.0, -2.0]), np.array([0.5, 2.0]))
    samples = np.array([sample_gaussian(policy, rng) for _ in range(20_000)])
    assert np.allclose(samples.mean(axis=0), policy.mean_A, atol=0.06)
    assert np.allclose(samples.std(axis=0), policy.std_A, rtol=0.05)
