from __future__ import annotations

import pytest

from tmrl_core.actor.rollout.starvation import StarvationWatch
from tmrl_core.networking.protocol.messages import Progress


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_starvation_needs_a_full_window_without_changes() -> None:
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
def test_any_change_restarts_the_window(progress: Progress, versions: int, unacknowledged: int) -> None:
    clock = Clock()
    watch = StarvationWatch(longest_episode_s=0.0, clock=clock)
    waiting = Progress(samples=10, updates=5, lack="3 samples")
    watch.starving(waiting, 1, 0)
    clock.now = 59.0
    assert not watch.starving(progress, versions, unacknowledged)
    clock.now = 61.0
    assert not watch.starving(waiting, 1, 0)


def test_a_trainer_that_gave_up_counts_as_starved_once_all_samples_have_arrived() -> None:
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
