from __future__ import annotations

import numpy as np
import torch

from tmrl_core.training.agents.running_moments import RunningMoments


def test_running_moments_equal_those_of_all_rows() -> None:
    rng = np.random.default_rng(0)
    rows = rng.normal([1.0, -1e4, 0.0], [2.0, 1e-3, 0.0], (500, 3))
    moments = RunningMoments(3)
    assert moments.std.tolist() == torch.tensor(1.0 + 1e-8, dtype=torch.float64).sqrt().expand(3).tolist()
    for part in np.split(rows, [1, 7, 300]):
        moments.see(torch.from_numpy(part))
    np.testing.assert_allclose(moments.mean.numpy(), rows.mean(axis=0), rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(moments.variance.numpy(), rows.var(axis=0), rtol=1e-6, atol=1e-12)
    assert moments.std[2] > 0, "what never changes is divided by something"


def test_rows_that_are_not_finite_do_not_count() -> None:
    moments = RunningMoments(2)
    moments.see(torch.tensor([[1.0, 2.0], [float("nan"), 3.0], [float("inf"), 3.0], [3.0, 6.0]]))
    moments.see(torch.tensor([[float("nan"), 0.0]]))
    assert (float(moments.count), moments.mean.tolist(), moments.variance.tolist()) == (2.0, [2.0, 4.0], [1.0, 4.0])
