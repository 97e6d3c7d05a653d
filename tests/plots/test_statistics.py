from __future__ import annotations

import numpy as np
import pytest

from tmrl_core.plots.statistics import bootstrap, interquartile_mean


@pytest.mark.parametrize("n", range(1, 13))
def test_the_interquartile_mean_equals_a_plain_loop(n: int) -> None:
    values = np.random.default_rng(n).normal(size=n)
    kept = sorted(values)[int(0.25 * n) : n - int(0.25 * n)]
    assert interquartile_mean(values) == pytest.approx(sum(kept) / len(kept))


def test_the_interval_covers_the_truth_as_often_as_it_says() -> None:
    rng = np.random.default_rng(1)
    covered = 0
    for _ in range(200):
        lower, upper = bootstrap(rng.normal(size=25), lambda drawn: drawn.mean(axis=0))
        covered += bool(lower <= 0.0 <= upper)
    assert 0.88 <= covered / 200 <= 0.98, "a percentile interval of 25 values is a little too narrow, and no more"
