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


def test_a_few_absurd_rows_do_not_hide_all_others() -> None:
    moments = RunningMoments(2)
    rows = np.random.default_rng(0).uniform(-1.0, 1.0, (1000, 2))
    rows[::100] = [1e30, -1e30]
    seen = torch.from_numpy(rows)
    moments.see(seen)
    assert moments.std.max() < 1e3
    assert seen[0, 0] == 1e30, "the rows are those of the batch"


def test_absurd_rows_of_a_third_of_the_workers_have_a_limit() -> None:
    rows = np.random.default_rng(0).uniform(-1.0, 1.0, (1000, 2))
    rows[::3] = [1e30, -1e30]
    moments = RunningMoments(2)
    moments.see(torch.from_numpy(rows))
    assert moments.std.max() < 1e6


def test_a_column_with_one_frequent_value_counts_as_it_is() -> None:
    depth = np.where(np.arange(1000) % 10 < 3, 65535.0, 1000.0)  # 65535: nothing in sight
    reward = np.where(np.arange(1000) % 10 == 0, 1e5, 0.0)  # at the end of each episode
    for rows in (np.stack([depth, reward], 1), np.array([[0.0, 0.0], [1e6, -1e6]])):
        moments = RunningMoments(2)
        moments.see(torch.from_numpy(rows))
        np.testing.assert_allclose(moments.mean.numpy(), rows.mean(axis=0), rtol=1e-12)
        np.testing.assert_allclose(moments.variance.numpy(), rows.var(axis=0), rtol=1e-9)


def test_rows_of_any_plausible_spread_count_as_they_are() -> None:
    rng = np.random.default_rng(0)
    rare = np.where(rng.random(1000) < 0.01, 9999.0, 0.0)  # the distance of something that is seldom in sight
    rows = np.stack([rare, rng.normal(0, 1e20, 1000), 1e6 + rng.standard_cauchy(1000), np.arange(1000) * 1e5], 1)
    moments = RunningMoments(4)
    moments.see(torch.from_numpy(rows))
    np.testing.assert_allclose(moments.mean.numpy(), rows.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(moments.variance.numpy(), rows.var(axis=0), rtol=1e-9)
