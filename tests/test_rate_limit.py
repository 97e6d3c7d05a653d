"""The arithmetic of the throttles, and that no two of them stop both sides."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import pytest

from tmrl_core.rate_limit import RateLimit, exact


@pytest.mark.parametrize("slack", [0, 1, 12.5, Fraction(1, 3)])
def test_the_limit_is_the_highest_allowed_count(slack: float) -> None:
    for ratio in (1.0, 0.3, 2.5, 1 / 3, 0.1, 7.7, 1e-3, Fraction(7, 3)):
        limit = RateLimit(ratio, slack)
        for paid in (0, 1, 2, 3, 10, 1000):
            most = limit.most(paid)
            assert most >= 0, (ratio, paid)
            assert most == 0 or limit.allows(int(most), paid), (ratio, paid)
            assert not limit.allows(int(most) + 1, paid), (ratio, paid)


@pytest.mark.parametrize("kind", [float, exact])
def test_a_ratio_has_its_written_value(kind: Callable[[float], float | Fraction]) -> None:
    for hundredths in range(1, 100):
        limit = RateLimit(kind(hundredths / 100))
        assert limit.allows(hundredths, 100), hundredths
        assert not limit.allows(hundredths + 1, 100), hundredths
        assert limit.most(100) == hundredths


@pytest.mark.parametrize(("ratio", "slack"), [(2.0, 16.0), (0.1, 1.0), (1 / 3, 0.7), (32.0, 256.0)])
def test_the_inverse_limits_the_other_count(ratio: float, slack: float) -> None:
    inverse = RateLimit(ratio, slack).inverse
    for count in range(0, 200, 7):
        most = inverse.most(count)
        assert exact(ratio) * int(most) <= count + exact(slack) < exact(ratio) * int(most + 1)


def test_an_infinite_ratio_sets_no_limit() -> None:
    limit = RateLimit(math.inf)
    assert limit.most(1) == math.inf
    assert limit.allows(10**9, 1)
    assert limit.allows(0, 0)


def test_slack_is_allowed_before_anything_is_paid() -> None:
    assert RateLimit(2.0, 5).allows(5, 0)
    assert not RateLimit(2.0, 5).allows(6, 0)


@pytest.mark.parametrize("steps_per_update", [0.5, 1.0, 1.7, 10.0])
@pytest.mark.parametrize("episode", [1, 7, 200])
def test_a_trainer_whose_ratio_is_just_enough_always_frees_the_workers(steps_per_update: float, episode: int) -> None:
    workers, trainer = RateLimit(steps_per_update), RateLimit(1 / steps_per_update)
    samples, updates = 0, 0
    for _ in range(50):
        samples += episode
        while not workers.allows(samples, updates + 1):
            assert trainer.allows(updates, samples), "both wait"
            updates += 1
