from __future__ import annotations

import numpy as np

from tmrl_core.plots.comparison import on_one_grid


def test_a_mean_goes_as_far_as_all_seeds() -> None:
    x, short = np.array([0.0, 10.0, 20.0]), np.array([0.0, 10.0])
    grid, rows = on_one_grid([(x, x), (short, 2 * short)])
    assert (grid[0], grid[-1]) == (0.0, 10.0)
    np.testing.assert_allclose(rows[0], grid)
    np.testing.assert_allclose(rows[1], 2 * grid)
