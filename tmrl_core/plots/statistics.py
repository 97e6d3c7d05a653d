"""Statistics over the seeds of a group, with bootstrap intervals."""

# Theory of operation
#
# Reinforcement learning is run with few seeds, and their returns are far from normal: one of five may not learn at all.
# The mean follows that one, and the best of five says nothing. Agarwal et al. (arXiv:2108.13264) therefore report the
# interquartile mean, which leaves out a quarter at each end, with an interval from resampling the seeds.
#
# An interval over two seeds would be between those two, whatever the truth is; it promises something that is not there.
# Below `INTERVAL_FROM` seeds there is none, and n is always said. The bootstrap of a mean (for pictures) needs three.
#
# Example: returns of 10, 200, 210, 220 and 230. The mean is 174. A quarter of five, rounded down, is one at each end:
# the interquartile mean leaves out 10 and 230, and is 210.

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
INTERVAL_FROM = 5
"""Fewest seeds for the interval of an interquartile mean."""
BAND_FROM = 3
"""Fewest seeds for the interval of a mean in a picture."""
RESAMPLES = 2_000
LEVEL = 0.95
# The same picture and the same numbers each time: a resampling that differs would look like news.
_SEED = 0


@dataclass(frozen=True)
class Summary:
    """Statistics of one group.

    Args:
        n: number of seeds.
        mean, median, lowest, highest: over the seeds.
        iqm: interquartile mean.
        interval: of `iqm`, at level `LEVEL`; None: fewer than `INTERVAL_FROM` seeds.
    """

    n: int
    mean: float
    median: float
    lowest: float
    highest: float
    iqm: float
    interval: tuple[float, float] | None


def interquartile_mean(values_N: Floats) -> Floats:
    """Return the mean without the lowest and highest quarter of the values, along the first axis.

    A quarter of n is rounded down, as scipy's `trim_mean` does, so that below four values it is the mean.

    Args:
        values_N: [n, ...] values.
    """
    cut = len(values_N) // 4
    kept: Floats = np.sort(values_N, axis=0)[cut : len(values_N) - cut].mean(axis=0)
    return kept


def resampled(values_N: Floats, statistic: Callable[[Floats], Floats], rng: np.random.Generator) -> Floats:
    """Return [resamples, ...] a statistic of seeds that are drawn with replacement, as often as there are seeds.

    Args:
        values_N: [n, ...] one value or curve for each seed.
        statistic: from [n, resamples, ...] to [resamples, ...], along the first axis.
        rng: draws the seeds.
    """
    n = len(values_N)
    return statistic(values_N[rng.integers(n, size=(n, RESAMPLES))])


def bootstrap(values_N: Floats, statistic: Callable[[Floats], Floats]) -> tuple[Floats, Floats]:
    """Return the percentile interval of a statistic over resampled seeds.

    Args:
        values_N, statistic: as for `resampled`.

    Returns:
        lower and upper ends, [...].
    """
    return interval(resampled(values_N, statistic, np.random.default_rng(_SEED)))


def interval(found: Floats, level: float = LEVEL) -> tuple[Floats, Floats]:
    """Return the lower and upper ends [...] of the middle `level` of [resamples, ...] values."""
    lower, upper = np.quantile(found, [(1 - level) / 2, (1 + level) / 2], axis=0)
    return lower, upper


def summary(values_N: Floats) -> Summary:
    """Return the statistics of one value for each seed, [n]."""
    ends = None
    if len(values_N) >= INTERVAL_FROM:
        lower, upper = bootstrap(values_N, interquartile_mean)
        ends = (float(lower), float(upper))
    return Summary(
        n=len(values_N),
        mean=float(values_N.mean()),
        median=float(np.median(values_N)),
        lowest=float(values_N.min()),
        highest=float(values_N.max()),
        iqm=float(interquartile_mean(values_N)),
        interval=ends,
    )
