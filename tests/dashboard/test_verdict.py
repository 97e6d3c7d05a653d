"""Is it learning: the trend of a curve, and the words for it."""

from __future__ import annotations

import math

import pytest

from tests.dashboard.played import history, scene
from tmrl_core.dashboard.verdict import has_risen, trend, verdict
from tmrl_core.networking.protocol.telemetry import History, Point


def curve(*values: float) -> list[Point]:
    return [(100 * i, 1.0 * i, value) for i, value in enumerate(values)]


NOISE = [10.0 * math.sin(7.0 * i) for i in range(100)]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1.0] * 19, "early"),
        ([1.0] * 50, "steady"),
        (NOISE, "steady"),
        ([i + one for i, one in enumerate(NOISE)], "rising"),
        ([one - i for i, one in enumerate(NOISE)], "falling"),
    ],
)
def test_a_trend(values: list[float], expected: str) -> None:
    assert trend(curve(*values)) == expected


def test_a_curve_that_rose_and_is_steady_has_risen() -> None:
    assert has_risen(curve(*NOISE, *(100.0 + one for one in NOISE)))
    assert not has_risen(curve(*NOISE))
    assert not has_risen(curve(1.0, 2.0))


def test_the_words_have_the_numbers() -> None:
    found = verdict(scene(), history())
    assert found.headline == "Yes, it rose and is steady now"
    assert found.text == "-197 in the latest episodes, -212 in the latest evaluation, target -200"
    assert found.latest == pytest.approx(-197, abs=1)
    assert not found.reached


def test_a_reached_target_is_told() -> None:
    found = verdict(scene(values={"eval/mean_reward": -199.0}), None)
    assert (found.headline, found.reached) == ("Yes, the target is reached", True)


def test_without_episodes_it_is_too_early() -> None:
    assert verdict(None, None).headline == "Nothing is known yet"
    found = verdict(scene(values={}), History(run="a"))
    assert (found.headline, found.text, found.latest) == ("Too early to say", "no episode has ended yet", None)


def test_without_a_curve_the_run_gives_the_mean() -> None:
    assert verdict(scene(values={"rollout/ep_rew_mean": 3.0}, target_return=None), None).text == (
        "3 in the latest episodes"
    )
