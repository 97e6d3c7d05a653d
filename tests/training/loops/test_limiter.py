from __future__ import annotations

import math
from typing import Any

import pytest

from tmrl_core.errors import ConfigError
from tmrl_core.training.loops.limiter import RateLimiter


def run(limiter: RateLimiter, samples: int, updates: int, steps: int, eager: str) -> tuple[int, int]:
    """Insert or sample `steps` times, the eager one first, as the limiter allows."""
    for _ in range(steps):
        sample, insert = limiter.updates_left(samples, updates), limiter.can_insert(samples, updates)
        assert sample or insert, "one of them may always go on"
        if sample and (eager == "sample" or not insert):
            updates += 1
        else:
            samples += 1
    return samples, updates


@pytest.mark.parametrize("eager", ["sample", "insert"])
@pytest.mark.parametrize("ratio", [0.25, 1.0, 32.0])
def test_either_side_is_held_to_the_band(eager: str, ratio: float) -> None:
    limiter = RateLimiter(ratio, min_size=100, error_buffer=200, batch_size=16)
    samples, updates = run(limiter, 0, 0, 5000, eager)
    off = 16 * updates - ratio * (samples - 100)
    assert abs(off) <= 200 + max(16, ratio)
    assert (off > 0) == (eager == "sample")


def test_no_sampling_before_min_size() -> None:
    limiter = RateLimiter(8.0, min_size=50, batch_size=4)
    assert limiter.shortfall(49, 0).startswith("0 transitions sampled of 49 samples is above 8 for each (trainer.")
    assert limiter.shortfall(50, 0) == ""


def test_updates_per_sample_are_limited_in_addition_to_the_band() -> None:
    limiter = RateLimiter(8.0, min_size=50, batch_size=4, max_updates_per_sample=0.5)
    assert limiter.updates_left(100, 50), "one more update passes"
    assert not limiter.updates_left(100, 51)
    assert limiter.shortfall(100, 50) == ""
    assert limiter.shortfall(100, 51) == (
        "51 updates / 100 samples received is above trainer.max_training_steps_per_env_step = 0.5"
    )


@pytest.mark.parametrize("ratio", [0.25, 1.0, 32.0])
def test_as_many_updates_are_left_as_may_be_made_one_by_one(ratio: float) -> None:
    limiter = RateLimiter(ratio, min_size=10, error_buffer=60, batch_size=16, max_updates_per_sample=1.3)
    updates = 0
    for samples in range(5, 200, 3):
        left = limiter.updates_left(samples, updates)
        for made in range(int(left) + 1):
            assert (limiter.shortfall(samples, updates + made) == "") == (made < left), (samples, updates, made)
        updates += int(left)
    assert updates


@pytest.mark.parametrize(
    ("arguments", "said"),
    [((0.0, 1), "above 0"), ((1.0, 0), "at least 1"), ((8.0, 10, 5.0), "error_buffer must be at least 8")],
)
def test_impossible_numbers_are_named(arguments: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        RateLimiter(*arguments)


def test_without_a_ratio_nothing_is_held() -> None:
    limiter = RateLimiter(None, min_size=10)
    assert limiter.updates_left(10, 10**9)
    assert limiter.can_insert(10**9, 0)


def test_changed_settings_apply_after_the_checkpoint() -> None:
    limiter = RateLimiter(1.0, min_size=10, error_buffer=20)
    samples, updates = run(limiter, 0, 0, 4000, "sample")
    limiter.shortfall(samples, updates)
    again = RateLimiter(100.0, min_size=10)
    again.load_state_dict(limiter.state_dict())
    assert again.can_insert(samples, updates), "what was not drawn before is not made up for"
    off = RateLimiter(None, min_size=10)
    off.load_state_dict(limiter.state_dict())
    assert off.updates_left(samples, 10**9)


def test_a_ratio_that_is_set_in_the_middle_of_a_run_takes_the_counts_as_balanced() -> None:
    limiter = RateLimiter(max_updates_per_sample=1.0)
    assert limiter.updates_left(1_000, 1_001) == 0
    limiter.change_most(0.5, 1_000, 1_001)
    assert limiter.changes == 1
    assert limiter.updates_left(1_000, 1_001) == 1
    assert limiter.updates_left(1_010, 1_001) == 6
    assert "6 updates / 10 samples received since an operator set the ratio is above 0.5" in limiter.shortfall(
        1_010, 1_007
    )
    for wrong in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(ConfigError, match="must be above 0"):
            limiter.change_most(wrong, 1_010, 1_007)


def test_a_ratio_that_was_set_outlives_a_resume_until_the_configured_one_is_changed() -> None:
    limiter = RateLimiter(max_updates_per_sample=1.0)
    assert "most" not in limiter.state_dict(), "a checkpoint is as before"
    limiter.change_most(0.5, 1_000, 1_001)
    state = limiter.state_dict()
    resumed, changed = RateLimiter(max_updates_per_sample=1.0), RateLimiter(max_updates_per_sample=2.0)
    resumed.load_state_dict(state)
    assert resumed.updates_left(1_010, 1_001) == 6
    changed.load_state_dict(state)
    assert changed.updates_left(1_010, 1_001) == 1_020
