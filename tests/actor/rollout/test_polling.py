from __future__ import annotations

from tmrl_core.actor.rollout.polling import POLL_S, PollingInterval


def test_a_slice_grows_and_shrinks_to_its_time() -> None:
    slices = PollingInterval()
    for _ in range(20):
        slices.note(slices.length, slices.length * 0.05)  # 20 steps a second
    assert slices.length == round(POLL_S / 0.05)
    for _ in range(20):
        slices.note(slices.length, slices.length * 1e-6)
    assert slices.length == 4096
    slices.note(1, 60.0)
    assert slices.length == 1
