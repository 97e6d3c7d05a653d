"""Ratios of the returns of two sides, with bootstrap intervals over seeds, as lines of a table."""

# Theory of operation
#
# The value of a run is the mean of its last three evaluations up to the steps of the row. The ratio is that of the
# means over seeds. Its interval is the percentile interval of a bootstrap in which the seeds of both sides are drawn
# anew independently: seed 0 of one side and seed 0 of the other have nothing in common.
#
# Example: ours 4,000, 5,000 and 6,000, theirs three times 5,000: the ratio is 1.00. Resamples of ours have means from
# 4,000 to 6,000, so the 80 % interval is 0.87 to 1.13; theirs add nothing.
#
# With fewer than three seeds a side there is no interval: it would lie between the two that were run, whatever the
# truth is. A ratio to a mean that is not above 0 means nothing, and is left out.

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from plan import OURS, PEER, Result, Row, Run

from tmrl_core.plots.statistics import BAND_FROM, Floats, interval, resampled

LAST = 3
"""Evaluations that count as the end of a curve."""
LEVEL = 0.8
HEAD = ("task", "environment", "steps", "n", "ours", "beside", "ratio", "80 % interval", "core-hours a run")


@dataclass(frozen=True)
class Ratio:
    """A ratio of means over seeds.

    Args:
        point: the ratio.
        resamples: [resamples] the same of resampled seeds.
        seeds: of the side that has fewer.
    """

    point: float
    resamples: Floats
    seeds: int

    def told(self) -> tuple[str, str]:
        """Return the ratio and its interval as texts."""
        if not math.isfinite(self.point):
            return "-", "-"
        if self.seeds < BAND_FROM:
            return f"{self.point:.2f}", f"n < {BAND_FROM}: none"
        lower, upper = interval(self.resamples, LEVEL)
        return f"{self.point:.2f}", f"{lower:.2f} to {upper:.2f}"


def end_of(result: Result, steps: int) -> float:
    """Return the mean of the last evaluations up to so many steps (asynchronous ones come a few steps later)."""
    means = [point.mean for point in result.curve if point.steps <= steps * 1.02]
    return float(np.mean(means[-LAST:]))


def ratio(ours_N: Floats, theirs_N: Floats, rng: np.random.Generator) -> Ratio:
    """Return the ratio of two means over seeds; nan where the second one is not above 0."""
    denominators = resampled(theirs_N, _mean, rng)
    fits = theirs_N.mean() > 0 and bool((denominators > 0).all())
    resamples = resampled(ours_N, _mean, rng) / denominators if fits else np.full_like(denominators, math.nan)
    point = float(ours_N.mean() / theirs_N.mean()) if fits else math.nan
    return Ratio(point, resamples, min(len(ours_N), len(theirs_N)))


def _mean(values_N: Floats) -> Floats:
    found: Floats = values_N.mean(axis=0)
    return found


def geometric_mean(ratios: Sequence[Ratio]) -> Ratio:
    """Return the geometric mean of ratios in several environments."""
    return Ratio(
        math.prod(one.point for one in ratios) ** (1 / len(ratios)),
        np.prod([np.maximum(one.resamples, 0.0) for one in ratios], axis=0) ** (1 / len(ratios)),
        min(one.seeds for one in ratios),
    )


def lines(rows: Sequence[Row], results: Mapping[Run, Result]) -> list[str]:
    """Return the table, a line for each row that has results on both sides, and one for each mean over environments."""
    rng = np.random.default_rng(0)  # the same numbers each time
    table = [HEAD, ("---",) * len(HEAD)]
    found: dict[tuple[str, str], list[Ratio]] = {}
    for row in rows:
        ours = _side(results, row, row.task, OURS)
        theirs = _side(results, row, row.task, PEER) if row.beside == PEER else _side(results, row, row.beside, OURS)
        if not ours or not theirs:
            continue
        values, others = (np.array([end_of(one, row.steps) for one in side]) for side in (ours, theirs))
        one = ratio(values, others, rng)
        found.setdefault((row.task, row.beside), []).append(one)
        table.append(
            (
                row.task,
                row.environment,
                f"{row.steps:,}",
                f"{len(ours)} / {len(theirs)} of {len(row.seeds)}",
                f"{values.mean():.0f}",
                f"{row.beside} {others.mean():.0f}",
                *one.told(),
                f"{_core_hours(ours)} / {_core_hours(theirs)}",
            )
        )
    for (task, beside), ratios in found.items():
        if len(ratios) > 1 and all(math.isfinite(one.point) for one in ratios):
            mean = geometric_mean(ratios)
            seeds = f"{mean.seeds} or more"
            table.append((task, "geometric mean", "", seeds, "", beside, *mean.told(), ""))
    return [f"| {' | '.join(cells)} |" for cells in table]


def _side(results: Mapping[Run, Result], row: Row, task: str, side: str) -> list[Result]:
    return [
        one
        for run, one in results.items()
        if (run.task, run.environment, run.side) == (task, row.environment, side) and run.seed in row.seeds
    ]


def _core_hours(side: Sequence[Result]) -> str:
    counted = [one.core_s for one in side if one.core_s is not None]
    return f"{np.mean(counted) / 3600.0:.2f}" if counted else "-"
