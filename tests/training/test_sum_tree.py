from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tmrl_core.training.sum_tree import SumTree


@pytest.mark.parametrize("capacity", [1, 5, 16, 17, 256, 257, 5000])
def test_draws_are_those_of_a_slow_running_sum(capacity: int) -> None:
    generator = np.random.default_rng(capacity)
    tree, slow = SumTree(capacity), np.zeros(capacity)
    for _ in range(30):
        places = generator.integers(0, capacity, generator.integers(1, 40))
        values = generator.random(len(places)) * (generator.random(len(places)) > 0.3)
        tree.set(places, values)
        for place, value in zip(places, values, strict=True):
            slow[place] = value
        assert tree.total == pytest.approx(slow.sum())
        if slow.sum() > 0:
            sought = np.sort(generator.random(64)) * tree.total
            expected = []
            for value in sought:
                running, place = 0.0, 0
                while place < capacity - 1 and running + slow[place] <= value:
                    running += slow[place]
                    place += 1
                expected.append(place)
            assert tree.find(sought).tolist() == expected
    np.testing.assert_array_equal(tree.leaves, slow)


def test_a_run_of_new_places_counts_once_each() -> None:
    tree = SumTree(3000)
    tree.set(np.arange(1000, 2500), 2.0)
    assert tree.total == 3000
    tree.set(np.arange(2900, 3100) % 3000, 1.0)
    assert tree.total == 3200


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(0, 1e12), min_size=1, max_size=60), st.floats(0, 1))
def test_rounding_never_leads_to_a_place_of_priority_zero(values: list[float], share: float) -> None:
    if sum(values) == 0:
        return
    tree = SumTree(len(values))
    tree.set(np.arange(len(values)), np.array(values))
    found = tree.find(np.array([0.0, share * tree.total, np.nextafter(tree.total, 0), tree.total]))
    assert (tree.leaves[found] > 0).all()
