from __future__ import annotations

from typing import Any

import pytest

from tmrl_core.errors import ConfigError
from tmrl_core.training.loops.limiter import SamplesPerInsert


def run(limiter: SamplesPerInsert, stored: int, drawn: int, steps: int, eager: str) -> tuple[int, int]:
    """Store or draw `steps` times, whichever is eager first, as the limiter allows."""
    for _ in range(steps):
        draw, store = limiter.may_draw(stored, drawn), limiter.may_store(stored, drawn)
        assert draw or store, "one of them may always go on"
        if draw and (eager == "draw" or not store):
            drawn += limiter.batch_size
        else:
            stored += 1
    return stored, drawn


@pytest.mark.parametrize("eager", ["draw", "store"])
@pytest.mark.parametrize("ratio", [0.25, 1.0, 32.0])
def test_either_side_is_held_to_the_band(eager: str, ratio: float) -> None:
    limiter = SamplesPerInsert(ratio, min_size=100, error_buffer=200, batch_size=16)
    stored, drawn = run(limiter, 0, 0, 5000, eager)
    off = drawn - ratio * (stored - 100)
    assert abs(off) <= 200 + max(16, ratio)
    assert (off > 0) == (eager == "draw")


def test_nothing_is_drawn_before_the_first_min_size() -> None:
    limiter = SamplesPerInsert(8.0, min_size=50, batch_size=4)
    assert limiter.lack(49, 0).startswith("0 transitions drawn of 49 samples is above 8 for each (trainer.")
    assert limiter.lack(50, 0) == ""


def test_the_band_may_be_changed_while_it_runs_and_the_past_counts_as_even() -> None:
    limiter = SamplesPerInsert(1.0, min_size=10, error_buffer=20, batch_size=1)
    stored, drawn = run(limiter, 0, 0, 400, "draw")
    limiter.change(5.0, 30.0, stored, drawn)
    later, more = run(limiter, stored, drawn, 3000, "draw")
    assert abs((more - drawn) - 5.0 * (later - stored)) <= 36


@pytest.mark.parametrize(
    ("arguments", "said"),
    [((0.0, 1), "above 0"), ((1.0, 0), "at least 1"), ((8.0, 10, 5.0), "error_buffer must be at least 8")],
)
def test_numbers_that_cannot_be_are_named(arguments: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        SamplesPerInsert(*arguments)


def test_without_a_ratio_nothing_is_held() -> None:
    limiter = SamplesPerInsert(None, min_size=10)
    assert limiter.may_draw(0, 10**9)
    assert limiter.may_store(10**9, 0)
    assert (limiter.samples_per_insert, limiter.error_buffer) == (None, None)


def test_a_changed_band_goes_on_after_a_checkpoint() -> None:
    limiter = SamplesPerInsert(1.0, min_size=10, error_buffer=20)
    stored, drawn = run(limiter, 0, 0, 400, "draw")
    limiter.change(4.0, 30.0, stored, drawn)
    again = SamplesPerInsert(1.0, min_size=10, error_buffer=20)
    again.load_state_dict(limiter.state_dict())
    assert (again.samples_per_insert, again.error_buffer) == (4.0, 30.0)
    assert run(again, stored, drawn, 500, "draw") == run(limiter, stored, drawn, 500, "draw")


def test_other_numbers_than_those_of_the_checkpoint_hold_from_there_on() -> None:
    limiter = SamplesPerInsert(1.0, min_size=10, error_buffer=20)
    stored, drawn = run(limiter, 0, 0, 4000, "draw")
    limiter.lack(stored, drawn)
    again = SamplesPerInsert(100.0, min_size=10)
    again.load_state_dict(limiter.state_dict())
    assert again.may_store(stored, drawn), "what was not drawn before is not made up for"
    state = limiter.state_dict()
    with pytest.raises(ValueError, match="above 0"):
        SamplesPerInsert(1.0, min_size=10, error_buffer=20).load_state_dict({**state, "band": [-1.0, 20.0, 0, 0]})
    off = SamplesPerInsert(None, min_size=10)
    off.load_state_dict(limiter.state_dict())
    assert off.may_draw(stored, 10**9)
