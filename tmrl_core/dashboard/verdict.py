"""Answer to the page's first question, is it learning: the latest return, its trend, and the target."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Literal

import msgspec

from tmrl_core.metrics import names
from tmrl_core.metrics.text import return_text
from tmrl_core.networking.protocol.telemetry import History, Point, Scene

Trend = Literal["rising", "steady", "falling", "early"]
_LEAST_POINTS = 20
"""Points of a curve below which a trend would be noise."""
_RECENT = 10
"""Points of the curve in the mean that is shown."""
_PART = 5
"""The latest fifth of the curve is compared with the fifth before it."""
_NOISE = 2.0
"""Standard errors of the difference that count as noise."""


class Verdict(msgspec.Struct, frozen=True):
    """Verdict on a run's returns.

    Args:
        trend: of the returns of training.
        latest: latest return; None: no episode has ended.
        headline: the answer in a few words.
        text: the numbers behind it.
        reached: True: the latest evaluation has reached the target.
    """

    trend: Trend
    latest: float | None
    headline: str
    text: str
    reached: bool = False


def verdict(scene: Scene | None, history: History | None) -> Verdict:
    """Return the verdict on what is known of a run. A return that does not rise is a fact and no fault."""
    if scene is None:
        return Verdict("early", None, "Nothing is known yet", "")
    curve = history.series.get(names.RETURN_TRAIN, ()) if history is not None else ()
    evaluation = scene.values.get(names.RETURN_EVALUATION)
    # The run's own mean is of the latest 100 episodes, which hides for long that a policy has learned.
    mean = statistics.fmean(value for _, _, value in curve[-_RECENT:]) if curve else scene.values.get(names.RETURN_MEAN)
    latest = evaluation if mean is None else mean
    if latest is None:
        return Verdict("early", None, "Too early to say", "no episode has ended yet")
    target = scene.target_return
    facts = [f"{return_text(mean, target)} in the latest episodes"] if mean is not None else []
    if evaluation is not None:
        facts.append(f"{return_text(evaluation, target)} in the latest evaluation")
    if target is not None:
        facts.append(f"target {return_text(target)}")
    reached = target is not None and evaluation is not None and evaluation >= target
    found = trend(curve)
    words = {
        "rising": "Yes, the return rises",
        "steady": "Yes, it rose and is steady now" if has_risen(curve) else "Not yet, the return is steady",
        "falling": "The return falls",
        "early": "Too early to say",
    }
    headline = "Yes, the target is reached" if reached else words[found]
    return Verdict(found, latest, headline, ", ".join(facts), reached)


def trend(curve: Sequence[Point]) -> Trend:
    """Return the trend of a curve: its latest fifth beside the fifth before, if the difference is more than noise."""
    if len(curve) < _LEAST_POINTS:
        return "early"
    size = max(_LEAST_POINTS // 2, len(curve) // _PART)
    values = [value for _, _, value in curve[-2 * size :]]
    return _compared(values[:-size], values[-size:])


def has_risen(curve: Sequence[Point]) -> bool:
    """Return True if the latest fifth of a curve is above its first fifth by more than noise."""
    size = max(_LEAST_POINTS // 2, len(curve) // _PART)
    values = [value for _, _, value in curve]
    return len(curve) >= 2 * size and _compared(values[:size], values[-size:]) == "rising"


def _compared(before: Sequence[float], after: Sequence[float]) -> Trend:
    change = statistics.fmean(after) - statistics.fmean(before)
    error = (statistics.pvariance(before) / len(before) + statistics.pvariance(after) / len(after)) ** 0.5
    if abs(change) <= _NOISE * error or change == 0.0:
        return "steady"
    return "rising" if change > 0 else "falling"
