from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tmrl_core.training.memories.prioritized import Prioritization
from tmrl_core.training.memories.sum_tree import SumTree, sum_tree
from tmrl_core.training.memories.sum_tree_loops import Loops, compiled


def made(kind: str, capacity: int) -> SumTree:
    """A tree of each kind that there is; the loops run as Python, and compiled where numba is installed."""
    if kind == "numpy":
        return SumTree(capacity)
    loops = Loops() if kind == "loops" else compiled()
    if loops is None:
        pytest.skip("numba is not installed")
    return SumTree(capacity, loops)


@pytest.fixture(params=["numpy", "loops", "compiled"])
def kind(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.mark.parametrize("capacity", [1, 5, 16, 17, 256, 257, 5000])
def test_sampling_equals_a_slow_running_sum(kind: str, capacity: int) -> None:
    generator = np.random.default_rng(capacity)
    tree, slow = made(kind, capacity), np.zeros(capacity)
    for round_number in range(20):
        places = generator.integers(0, capacity, generator.integers(1, 40))
        errors = generator.random(len(places))
        if round_number % 2:
            values = errors * (errors > 0.3)
            tree.set(places, values)
        else:
            values = errors + 1e-6
            assert tree.update(places, errors, 0, Prioritization(alpha=1.0), False) == values.max()
        for place, value in zip(places, values, strict=True):
            slow[place] = value
        assert tree.total == pytest.approx(slow.sum())
        if slow.sum() > 0:
            noise = generator.random(16)
            sought = (np.arange(16) + noise) * (tree.total / 16)
            # The first place whose running sum, added up from the left, is larger.
            expected = np.minimum(np.searchsorted(np.cumsum(slow), sought, side="right"), capacity - 1).tolist()
            found, priorities = tree.find(sought)
            assert found.tolist() == expected
            np.testing.assert_array_equal(priorities, slow[expected])
            sampled, weights = tree.sample(noise, 0.4)
            assert sampled.tolist() == expected
            raw = (slow[expected] / slow.sum()) ** -0.4
            np.testing.assert_allclose(weights, raw / raw.max(), rtol=1e-5)
            assert (sampled.dtype.str, weights.dtype.str) == ("<i8", "<f4")
    np.testing.assert_array_equal(tree.leaves, slow)


def test_a_run_of_new_places_counts_once_each(kind: str) -> None:
    tree = made(kind, 3000)
    tree.set(np.arange(1000, 2500), 2.0)
    assert tree.total == 3000
    tree.set(np.arange(2900, 3100) % 3000, 1.0)
    assert tree.total == 3200


def test_updates_skip_removed_excluded_and_nan_entries(kind: str) -> None:
    tree = made(kind, 100)
    tree.set(np.arange(100), 2.0)
    tree.set(np.array([7]), 0.0)
    indices = np.array([149, 150, 249, 207, 208, 209, 150, 150])
    errors = np.array([9.0, -3.0, 4.0, 5.0, np.nan, np.inf, 1.0, -8.0], np.float32)
    how = Prioritization(alpha=0.5, epsilon=1.0)
    assert tree.update(indices, errors, 150, how, True) == 9.0
    expected = np.full(100, 2.0)
    expected[[49, 50, 7]] = 5**0.5, 3.0, 0.0
    np.testing.assert_allclose(tree.leaves, expected)
    assert tree.total == pytest.approx(expected.sum())
    assert tree.update(indices[:1], errors[:1], 150, how, False) == 0.0
    assert tree.update(np.array([207]), np.array([3.0]), 150, how, False) == 4.0
    assert tree.leaves[7] == 2.0


def test_compiled_loops_equal_their_python_form() -> None:
    fast, slow = made("compiled", 4000), made("loops", 4000)
    generator = np.random.default_rng(0)
    for tree in (fast, slow):
        tree.set(np.arange(4000), 1.0)
    for _ in range(30):
        noise, errors = generator.random(64), generator.standard_normal(64)
        sampled = [tree.sample(noise.copy(), 0.4) for tree in (fast, slow)]
        np.testing.assert_array_equal(sampled[0][0], sampled[1][0])
        np.testing.assert_array_equal(sampled[0][1], sampled[1][1])
        for tree in (fast, slow):
            tree.update(sampled[0][0], errors, 0, Prioritization(), False)
    np.testing.assert_array_equal(fast.leaves, slow.leaves)
    assert fast.total == slow.total


def test_sums_do_not_depend_on_the_order_of_updates() -> None:
    one, other = made("loops", 3000), made("loops", 3000)
    generator = np.random.default_rng(0)
    for _ in range(20):
        one.update(generator.integers(0, 3000, 64), generator.random(64), 0, Prioritization(), False)
    other.set(np.arange(3000), one.leaves)
    noise = generator.random(64)
    np.testing.assert_array_equal(one.sample(noise.copy(), 0.4)[0], other.sample(noise.copy(), 0.4)[0])
    assert one.total == other.total


def test_without_numba_numpy_samples(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    monkeypatch.setitem(sys.modules, "numba", None)
    compiled.cache_clear()
    try:
        assert sum_tree(10).total == 0.0
    finally:
        compiled.cache_clear()
    assert caplog.messages == ["priorities are sampled by NumPy (with the extra numba in half the time)"]


def test_an_unusable_numba_is_logged(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setitem(sys.modules, "numba", ModuleType("numba"))  # as one that refuses this NumPy: it has no `njit`
    compiled.cache_clear()
    try:
        assert sum_tree(10).total == 0.0
        assert sum_tree(10).total == 0.0
    finally:
        compiled.cache_clear()
    assert caplog.text.count("numba cannot be used") == 1


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(["numpy", "loops"]), st.lists(st.floats(0, 1e12), min_size=1, max_size=60), st.floats(0, 1))
def test_rounding_never_leads_to_a_place_of_priority_zero(kind: str, values: list[float], share: float) -> None:
    if sum(values) == 0:
        return
    tree = made(kind, len(values))
    tree.set(np.arange(len(values)), np.array(values))
    found, _ = tree.find(np.array([0.0, share * tree.total, np.nextafter(tree.total, 0), tree.total]))
    assert (tree.leaves[found] > 0).all()
    sampled, weights = tree.sample(np.array([0.0, share, np.nextafter(1.0, 0), 1.0]), 0.5)
    assert (tree.leaves[sampled] > 0).all()
    assert weights.max() == 1
