from __future__ import annotations

from tmrl_core.actor.rollout.polling import POLL_S, PollingInterval


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_slice_grows_and_shrinks_to_its_time() -> None:
    clock = Clock()
    slices = PollingInterval(clock)
    for _ in range(20):
        slices.begin()
        clock.now += slices.length * 0.05  # 20 steps a second
        slices.end(slices.length)
    assert slices.length == round(POLL_S / 0.05)
    for _ in range(20):
        slices.begin()
        clock.now += slices.length * 1e-6
        slices.end(slices.length)
    assert slices.length == 4096
    slices.begin()
    clock.now += 60.0
    slices.end(1)
    assert slices.length == 1
