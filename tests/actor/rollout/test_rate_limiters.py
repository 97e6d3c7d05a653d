from __future__ import annotations

import math

import pytest

from tmrl_core.actor.rollout.rate_limiters import RateLimiter, Ratio, StarvationWatch
from tmrl_core.networking.protocol.messages import Progress


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize("maximum", [1.0, 0.3, 2.5, 1 / 3, 0.1, 7.7, 1e-3])
@pytest.mark.parametrize("models", [0, 1, 2, 9, 10, 999])
def test_room_is_the_number_of_steps_that_the_rule_allows(maximum: float, models: int) -> None:
    ratio = Ratio(maximum)
    ratio.models = models
    for steps in (0, 1, 5, 100):
        slow = steps
        while (slow + 1) / (1 + models) <= maximum:
            slow += 1
        assert ratio.room(steps) == slow - steps
        assert ratio.allows(steps) == (slow > steps)


def test_no_limit_is_no_limit() -> None:
    ratio = Ratio(math.inf)
    assert ratio.room(10**9) == math.inf
    assert ratio.allows(10**9)


@pytest.mark.parametrize("maximum", [0.0, -1.0, math.nan])
def test_an_impossible_ratio_is_refused(maximum: float) -> None:
    with pytest.raises(ValueError, match="above 0"):
        Ratio(maximum)


def test_the_brake_lets_the_start_pass_and_then_keeps_the_ratio() -> None:
    brake = RateLimiter(2.0)
    assert not brake.holds(Progress(samples=0, start_training=1000), 1002)
    assert brake.holds(Progress(samples=0, start_training=1000), 1003)
    assert not brake.holds(Progress(samples=1100, updates=100, start_training=1000), 102)
    assert brake.holds(Progress(samples=1100, updates=100, start_training=1000), 103)


@pytest.mark.parametrize("limit", [0.5, 1.0, 1.7, 10.0])
@pytest.mark.parametrize("episode", [1, 7, 200])
def test_a_trainer_whose_ratio_is_just_enough_always_frees_the_brake(limit: float, episode: int) -> None:
    brake = RateLimiter(limit)
    samples, updates = 0, 0
    for _ in range(50):
        samples += episode
        while brake.holds(Progress(samples=samples, updates=updates), 0):
            # As the trainer: it stops when updates / samples is above its maximum, 1 / limit here.
            assert updates / samples <= 1 / limit, "both wait"
            updates += 1


def test_without_a_limit_nothing_holds() -> None:
    assert not RateLimiter(None).holds(Progress(samples=10**9), 10**9)


def test_starving_needs_everything_still_for_the_whole_window() -> None:
    clock = Clock()
    watch = StarvationWatch(longest_episode_s=1.0, clock=clock)
    waiting = Progress(samples=10, updates=5, lack="3 samples")
    assert not watch.starving(waiting, 1, 0)
    clock.now = 59.9
    assert not watch.starving(waiting, 1, 0)
    clock.now = 60.1
    assert watch.starving(waiting, 1, 0)


@pytest.mark.parametrize(
    ("progress", "versions", "unacknowledged"),
    [
        (Progress(samples=11, updates=5, lack="2 samples"), 1, 0),
        (Progress(samples=10, updates=5, lack="3 samples"), 2, 0),
        (Progress(samples=10, updates=5, lack="3 samples"), 1, 4),
        (Progress(samples=10, updates=5), 1, 0),
    ],
)
def test_anything_that_moves_starts_the_window_again(progress: Progress, versions: int, unacknowledged: int) -> None:
    clock = Clock()
    watch = StarvationWatch(longest_episode_s=0.0, clock=clock)
    waiting = Progress(samples=10, updates=5, lack="3 samples")
    watch.starving(waiting, 1, 0)
    clock.now = 59.0
    assert not watch.starving(progress, versions, unacknowledged)
    clock.now = 61.0
    assert not watch.starving(waiting, 1, 0)


def test_a_trainer_that_gave_up_is_believed_at_once_but_not_before_everything_has_arrived() -> None:
    watch = StarvationWatch(longest_episode_s=1.0, clock=Clock())
    parting = Progress(samples=10, updates=5, lack="3 samples", gave_up=True)
    assert not watch.starving(parting, 1, 4)
    assert watch.starving(parting, 1, 0)


def test_long_episodes_make_the_window_longer() -> None:
    clock = Clock()
    watch = StarvationWatch(longest_episode_s=40.0, clock=clock)
    waiting = Progress(lack="samples")
    watch.starving(waiting, 0, 0)
    clock.now = 119.0
    assert not watch.starving(waiting, 0, 0)
    clock.now = 120.0
    assert watch.starving(waiting, 0, 0)
