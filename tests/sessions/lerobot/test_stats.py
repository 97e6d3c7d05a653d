"""Statistics of features: exact by episode and in total, and pooled where the values are too many."""

from __future__ import annotations

import numpy as np
import pytest

from tmrl_core.sessions.lerobot.stats import QUANTILES, FeatureStats, Stats

DRAW = np.random.default_rng(0)


def expected(values: np.ndarray, axes: int | tuple[int, ...]) -> Stats:
    found = {name: np.ravel(getattr(np, name)(values, axis=axes)) for name in ("min", "max", "mean", "std")}
    return found | {name: np.ravel(np.quantile(values, part, axis=axes)) for name, part in QUANTILES.items()}


def assert_close(found: Stats, wanted: Stats, frames: int) -> None:
    assert found["count"].tolist() == [frames]
    assert found.keys() == {*wanted, "count"}
    for name, value in wanted.items():
        np.testing.assert_allclose(np.ravel(found[name]), value, atol=1e-12, err_msg=name)


@pytest.mark.parametrize("shape", [(), (1,), (3,), (2, 2)])
@pytest.mark.parametrize("dtype", [np.float32, np.int64, np.bool_])
def test_numbers_are_exact(shape: tuple[int, ...], dtype: type) -> None:
    stats = FeatureStats(image=False)
    episodes: list[np.ndarray] = [(9 * DRAW.standard_normal((ticks, *shape))).astype(dtype) for ticks in (1, 7, 40)]
    for column in episodes:
        assert_close(stats.add(column), expected(column.astype(np.float64), 0), len(column))
    found = stats.total()
    assert_close(found, expected(np.concatenate(episodes).astype(np.float64), 0), 48)
    assert found["q10"].shape == (shape or (1,))


@pytest.mark.parametrize("high", [1, 2, 256])
def test_images_are_exact(high: int) -> None:
    stats = FeatureStats(image=True)
    episodes: list[np.ndarray] = [DRAW.integers(0, high, (ticks, 2, 3, 3), np.uint8) for ticks in (1, 5)]
    for column in episodes:
        assert_close(stats.add(column), expected(column / 255, (0, 1, 2)), len(column))
    found = stats.total()
    assert_close(found, expected(np.concatenate(episodes) / 255, (0, 1, 2)), 6)
    assert {value.shape for name, value in found.items() if name != "count"} == {(3, 1, 1)}


def test_beyond_the_memory_quantiles_are_means_of_the_episodes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tmrl_core.sessions.lerobot.stats.KEPT_BYTES", 100)
    stats = FeatureStats(image=False)
    episodes: list[np.ndarray] = [DRAW.standard_normal((ticks, 2)) for ticks in (3, 9, 20)]
    single = [stats.add(column) for column in episodes]
    wanted = expected(np.concatenate(episodes), 0)
    wanted |= {name: np.average([one[name] for one in single], axis=0, weights=[3.0, 9.0, 20.0]) for name in QUANTILES}
    assert_close(stats.total(), wanted, 32)
