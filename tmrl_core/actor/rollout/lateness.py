"""Lateness: delay of the steps of an environment that has a rate."""

from __future__ import annotations

from math import log2
from typing import NamedTuple, Protocol, runtime_checkable

from tmrl_core.metrics.text import milliseconds_text

LATE = 0.1
"""Fraction of a time step. A step that ends later than this after its time is late."""
RECENT_STEPS = 10_000
"""Minimum number of the latest steps whose percentile is reported, once there are so many."""
_SMALLEST_S = 1e-6
_PER_DOUBLING = 8
_BINS = 26 * _PER_DOUBLING
"""Bins of the histogram: 1 us to 67 s, each 9 % wider than the one before."""


@runtime_checkable
class Timed(Protocol):
    """An environment with a rate. The environments of rtgym are.

    Attributes:
        time_step_duration: seconds from the end of one step to the end of the next.
    """

    time_step_duration: float


class LatenessFigures(NamedTuple):
    """Lateness of a worker's steps.

    Attributes:
        steps: number of steps since the worker was created, resets excluded.
        late_steps: number of steps among them that ended more than `LATE` of a time step after their time.
        p999_s: 99.9th percentile of the lateness of the latest 10,000 to 20,000 steps, in seconds.
    """

    steps: int
    late_steps: int
    p999_s: float


class Lateness:
    """Compare the end of each step with an elastic clock of the environment's rate, like rtgym's.

    A late step does not move the clock: the next one is due at its time nevertheless. A step that ends earlier moves it
    back. A step that is later than the elasticity begins the clock anew, and so does each episode. Time between
    episodes is not measured.

    One thread calls `begin` and `note`; any thread reads `figures`.
    """

    def __init__(self) -> None:
        self.steps = 0
        self.late_steps = 0
        self._duration_s = self._late_s = self._elasticity_s = 0.0
        self._due = 0.0
        self._bins, self._older_bins = [0] * _BINS, [0] * _BINS

    def begin(self, now: float, duration_s: float, elasticity_s: float) -> None:
        """Begin an episode, whose first step ends a time step after `now`.

        Args:
            now: seconds.
            duration_s: duration of a time step.
            elasticity_s: maximum lateness that later steps make up for.
        """
        self._due = now
        self._duration_s, self._late_s, self._elasticity_s = duration_s, LATE * duration_s, elasticity_s

    def note(self, now: float) -> None:
        """Record the end of a step."""
        due = self._due + self._duration_s
        late_s = now - due
        self._due = now if late_s <= 0.0 or late_s >= self._elasticity_s else due
        self.steps += 1
        if late_s > self._late_s:
            self.late_steps += 1
        self._bins[0 if late_s <= _SMALLEST_S else min(int(_PER_DOUBLING * log2(late_s / _SMALLEST_S)), _BINS - 1)] += 1
        if self.steps % RECENT_STEPS == 0:
            self._bins, self._older_bins = [0] * _BINS, self._bins

    def report(self) -> tuple[int, int, int]:
        """Return steps, late steps and the percentile in microseconds, for a link."""
        steps, late_steps, p999_s = self.figures
        return steps, late_steps, round(p999_s * 1e6)

    @property
    def figures(self) -> LatenessFigures:
        """Return the figures of the steps so far."""
        counts = [newer + older for newer, older in zip(self._bins, self._older_bins, strict=True)]
        rest = sum(counts) // 1000
        highest = _BINS - 1
        while highest and counts[highest] <= rest:
            rest -= counts[highest]
            highest -= 1
        p999_s = _SMALLEST_S * 2 ** ((highest + 1) / _PER_DOUBLING) if highest else 0.0
        return LatenessFigures(self.steps, self.late_steps, p999_s)


def lateness_text(figures: LatenessFigures) -> str:
    """Return figures as text for log messages."""
    return (
        f"{figures.late_steps:,} of {figures.steps:,} steps late, 99.9th percentile of lateness "
        + milliseconds_text(figures.p999_s)
    )
