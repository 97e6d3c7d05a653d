"""The figures of a round."""

from __future__ import annotations

import pytest
import torch

from tmrl_core.training.loops.round_statistics import RoundStatistics


def test_times_are_per_update_and_rates_per_second() -> None:
    now = [5.0]
    statistics = RoundStatistics(lambda: now[0])
    statistics.add({})
    statistics.add({})
    statistics.samples = 8
    statistics.idle_s, statistics.sampling_s, statistics.training_s = 1.0, 0.5, 3.0
    now[0] = 9.0
    assert statistics.row() == {
        "round_time": 4.0,
        "idle_time": 1.0,
        "sampling_duration": 0.25,
        "training_step_duration": 1.5,
        "samples_per_s": 2.0,
        "updates_per_s": 0.5,
    }


def test_an_empty_round_has_a_row() -> None:
    row = RoundStatistics(lambda: 1.0).row()
    assert row["updates_per_s"] == row["samples_per_s"] == row["sampling_duration"] == 0.0


def test_metrics_are_means_of_the_updates_that_had_them() -> None:
    statistics = RoundStatistics()
    statistics.add({"loss": torch.tensor(1.0), "rate": 2})
    statistics.add({"loss": torch.tensor([3.0]), "rate": 4, "rare": torch.tensor(7, dtype=torch.int64)})
    statistics.add({"loss": 5.0})
    row = statistics.row()
    assert row["loss"] == pytest.approx(3.0)
    assert row["rate"] == 3.0
    assert row["rare"] == 7.0


def test_lag_is_weighted_by_samples() -> None:
    statistics = RoundStatistics()
    assert "policy_lag_mean" not in statistics.row()
    statistics.note_lag(2, 3)
    statistics.note_lag(0, 1)
    row = statistics.row()
    assert row["policy_lag_mean"] == 1.5
    assert row["policy_lag_max"] == 2
