from __future__ import annotations

from tmrl_core.actor.rollout.polling import FIRST_STEPS, POLL_S, next_slice


def test_a_slice_grows_and_shrinks_to_its_time() -> None:
    length = FIRST_STEPS
    for _ in range(20):
        length = next_slice(length, length, length * 0.05)  # 20 steps a second
    assert length == round(POLL_S / 0.05)
    for _ in range(20):
        length = next_slice(length, length, length * 1e-6)
    assert length == 4096
    assert next_slice(length, 1, 60.0) == 1
