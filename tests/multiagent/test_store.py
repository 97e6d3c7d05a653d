from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tmrl_core.errors import ConfigError, SampleRefusedError
from tmrl_core.multiagent.store import SimpleStore


def rows(first: int, count: int) -> dict[str, Any]:
    """Experiences that are numbered from `first` on."""
    number = np.arange(first, first + count)
    return {
        "state": {"board": np.stack([number, -number], 1).astype(np.int8), "action_mask": np.ones((count, 3), bool)},
        "action": number,
        "reward": number.astype(np.float32),
    }


def numbers(store: SimpleStore, *given: Any) -> list[int]:
    found: Any = store.get(*given)
    assert found["state"]["board"][:, 0].tolist() == found["action"].astype(np.int8).tolist(), "rows stay together"
    listed: list[int] = found["action"].tolist()
    return listed


# --- put and get ------------------------------------------------------------------------------------------------------


def test_values_keep_keys_order_dtypes_and_shapes() -> None:
    store = SimpleStore(10)
    assert (len(store), store.keys, store.get()) == (0, [], {})
    assert store.put(rows(0, 4)).tolist() == [0, 1, 2, 3]
    reordered = dict(reversed(rows(4, 2).items()))
    assert store.put(reordered).tolist() == [4, 5]
    found: Any = store.get()
    assert store.keys == list(found) == ["state", "action", "reward"]
    assert list(found["state"]) == ["board", "action_mask"]
    for column, dtype, shape in (
        (found["state"]["board"], np.int8, (6, 2)),
        (found["state"]["action_mask"], np.bool_, (6, 3)),
        (found["action"], np.int64, (6,)),
        (found["reward"], np.float32, (6,)),
    ):
        assert (column.dtype, column.shape) == (dtype, shape)
    assert numbers(store) == [0, 1, 2, 3, 4, 5]
    assert numbers(store, [4, 0, 4]) == [4, 0, 4]
    assert numbers(store, []) == []


def test_stored_rows_share_no_memory_with_the_caller() -> None:
    store, given_rows = SimpleStore(10), rows(0, 3)
    store.put(given_rows)
    given_rows["action"][:] = 99
    found: Any = store.get()
    found["reward"][:] = 99
    again: Any = store.get()
    assert again["action"].tolist() == again["reward"].tolist() == [0, 1, 2]


def test_unaligned_and_foreign_byte_orders_are_stored_natively() -> None:
    store = SimpleStore(10)
    store.put({"reward": np.arange(3, dtype=">f4")})
    store.put({"reward": np.frombuffer(b"\0" + np.arange(3, dtype="<f4").tobytes(), np.uint8)[1:].view("<f4")})
    found: Any = store.get()["reward"]
    assert found.dtype == np.dtype(np.float32)
    assert found.tolist() == [0, 1, 2, 0, 1, 2]


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"action": np.zeros(2, bool)}, "'action' is bool[n], stored is int64[n]"),
        ({"action": np.zeros((2, 1), np.int64)}, "'action' is int64[n, 1], stored is int64[n]"),
        ({"logp": np.zeros(2)}, "the key 'logp' is unknown"),
        ({"state": np.zeros(2)}, "the key 'state.action_mask' is missing"),
        ({"state": {"board": np.zeros((2, 2), np.int8)}}, "the key 'state.action_mask' is missing"),
    ],
)
def test_rows_that_differ_are_refused_by_key(change: dict[str, Any], message: str, first: bool) -> None:
    store = SimpleStore(10)
    store.put(rows(0, 4))
    if first:
        store.clear()  # the layout stays
    before = numbers(store)
    with pytest.raises(SampleRefusedError, match=re.escape(message)):
        store.put({**rows(4, 2), **change})
    assert numbers(store) == before


def test_all_differences_are_named_at_once() -> None:
    store = SimpleStore(10)
    store.put(rows(0, 4))
    with pytest.raises(SampleRefusedError, match=r"'reward' is missing.*'logp' is unknown.*'action' is float64\[n\]"):
        store.put({"state": rows(0, 1)["state"], "action": np.zeros(1), "logp": np.zeros(1)})


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({}, "columns of the same length, got the lengths {}"),
        ({"a": np.zeros(2), "b": {"c": np.zeros(3)}}, "got the lengths {'a': 2, 'b.c': 3}"),
        ({"a": [1, 2]}, "'a' is a list; a store holds arrays"),
        ({"a": {"b": 1.0}}, "'a.b' is a float; a store holds arrays"),
        ({"a": np.float32(1)}, "'a' is a float32; a store holds arrays"),
        ({"a": np.array(1.0)}, "'a' is float64[n]; a store holds arrays"),
        ({"a": np.array([None])}, "'a' is object[n]; a store holds arrays"),
        ({"a": np.array(["x"])}, "'a' is <U1[n]; a store holds arrays"),
        ({"a": np.zeros(2, np.complex64)}, "'a' is complex64[n]; a store holds arrays"),
        ({"a": np.zeros(2, "M8[s]")}, "a store holds arrays"),
        ({"a": np.zeros(2, np.longdouble)}, "a store holds arrays"),
    ],
)
def test_values_that_are_no_columns_are_refused(columns: dict[str, Any], message: str) -> None:
    store = SimpleStore(10)
    with pytest.raises(SampleRefusedError, match=re.escape(message)):
        store.put(columns)
    assert (len(store), store.keys) == (0, [])


def test_no_rows_change_nothing() -> None:
    store = SimpleStore(10)
    assert store.put({"a": np.zeros((0, 7))}).tolist() == []
    store.put(rows(0, 2))
    assert store.put(rows(0, 0)).tolist() == []
    assert numbers(store) == [0, 1]


# --- capacity ---------------------------------------------------------------------------------------------------------


@given(
    capacity=st.integers(1, 12),
    puts=st.lists(st.integers(0, 30), max_size=8),
    overwrite=st.sampled_from(["rolling", "random"]),
)
def test_any_puts_keep_rows_whole_and_within_the_capacity(capacity: int, puts: list[int], overwrite: Any) -> None:
    store = SimpleStore(capacity, overwrite, seed=1)
    total, at = 0, np.full(capacity, -1)
    for count in puts:
        before = set(at[at >= 0].tolist())
        places = store.put(rows(total, count))
        assert places.shape == (count,)
        stored = places[places >= 0]
        assert len(set(stored.tolist())) == len(stored) == min(count, capacity), "each in its own place"
        at[stored] = total + np.flatnonzero(places >= 0)
        total += count
        assert len(store) == min(total, capacity)
        if len(store):
            assert numbers(store, np.arange(len(store))) == at[: len(store)].tolist()
            assert set(numbers(store)) <= before | set(range(total - count, total))
        if overwrite == "rolling" and total:
            assert numbers(store) == list(range(max(0, total - capacity), total)), "the newest, the oldest first"


def test_random_overwriting_replaces_each_earlier_row_equally_often() -> None:
    replaced = np.zeros(10)
    for seed in range(2000):
        store = SimpleStore(10, "random", seed=seed)
        store.put(rows(0, 10))
        places = store.put(rows(10, 3))
        assert numbers(store, places) == [10, 11, 12]
        replaced[places] += 1
    # 600 expected each, with a standard deviation of 20.
    assert np.abs(replaced - 600).max() < 100


def test_of_too_many_rows_random_overwriting_keeps_each_equally_often() -> None:
    kept = np.zeros(40)
    for seed in range(2000):
        store = SimpleStore(10, "random", seed=seed)
        kept[store.put(rows(0, 40)) >= 0] += 1
    # 500 expected each, with a standard deviation of 19.
    assert np.abs(kept - 500).max() < 95


def test_memory_grows_with_the_rows_up_to_the_capacity() -> None:
    store = SimpleStore(1_000_000_000)  # 4 GB of float32, if it were allocated at once
    for _ in range(10):
        store.put({"reward": np.zeros(100, np.float32)})
    assert len(store) == 1000
    assert store.nbytes <= 2 * 4 * 1000
    full = SimpleStore(10)
    for _ in range(100):
        full.put({"reward": np.zeros(3, np.float32)})
    assert full.nbytes == 40


@pytest.mark.parametrize("capacity", [0, -1, 1.5, True, "10"])
def test_an_impossible_capacity_is_refused(capacity: Any) -> None:
    with pytest.raises(ConfigError, match="capacity of a store must be an integer of at least 1"):
        SimpleStore(capacity)


def test_an_unknown_way_of_overwriting_is_refused() -> None:
    with pytest.raises(ConfigError, match="'rolling' or 'random', got 'oldest'"):
        SimpleStore(10, "oldest")  # type: ignore[arg-type]


def test_more_memory_than_there_is_names_the_key() -> None:
    row = np.broadcast_to(np.zeros(1), (1, 1 << 45))
    with pytest.raises(ConfigError, match=r"1 rows of 'state' need 281475.0 GB"):
        SimpleStore(10).put({"state": row})


# --- update and filter ------------------------------------------------------------------------------------------------


def test_rows_are_updated_by_index() -> None:
    store = SimpleStore(10)
    store.put(rows(0, 5))
    store.update([3, 1], {"reward": np.array([30, 10], np.float32)})
    store.update([0], {"state": {"board": np.full((1, 2), 7, np.int8), "action_mask": np.zeros((1, 3), bool)}})
    found: Any = store.get()
    assert found["reward"].tolist() == [0, 10, 2, 30, 4]
    assert found["state"]["board"][:2].tolist() == [[7, 7], [1, -1]]
    store.update([2, 2], {"reward": np.array([5, 6], np.float32)})
    found = store.get([2])
    assert found["reward"].tolist() == [6], "the last value counts"


@pytest.mark.parametrize(
    ("indices", "columns", "error", "message"),
    [
        ([5], {"reward": np.zeros(1, np.float32)}, IndexError, "the store has 5 rows; got indices from 5 to 5"),
        ([-1], {"reward": np.zeros(1, np.float32)}, IndexError, "got indices from -1 to -1"),
        ([0.5], {"reward": np.zeros(1, np.float32)}, IndexError, "a list of integers, got float64"),
        ([True] * 5, {"reward": np.zeros(5, np.float32)}, IndexError, "a list of integers, got bool"),
        ([0], {"reward": np.zeros(2, np.float32)}, SampleRefusedError, "2 values were given for 1 rows"),
        ([0], {"reward": np.zeros(1)}, SampleRefusedError, "'reward' is float64[n], stored is float32[n]"),
        ([0], {"logp": np.zeros(1)}, SampleRefusedError, "the key 'logp' is unknown"),
        ([0], {"state": {"board": np.zeros((1, 2), np.int8)}}, SampleRefusedError, "'state.action_mask' is missing"),
    ],
)
def test_impossible_updates_are_refused(indices: Any, columns: Any, error: Any, message: str) -> None:
    store = SimpleStore(10)
    store.put(rows(0, 5))
    with pytest.raises(error, match=re.escape(message)):
        store.update(indices, columns)
    found: Any = store.get()
    assert found["reward"].tolist() == [0, 1, 2, 3, 4]


def test_filters_apply_in_turn() -> None:
    store = SimpleStore(10)
    store.put(rows(0, 14))  # 10 to 13 overwrite 0 to 3
    seen = []

    def even(columns: Any) -> Any:
        seen.append(len(columns["action"]))
        return columns["action"] % 2 == 0

    def high(columns: Any) -> Any:
        return columns["reward"] >= 8

    found = store.filter(high, even)
    assert seen == [6]
    assert sorted(numbers(store, found)) == [8, 10, 12]
    assert store.filter().tolist() == store.indices.tolist()
    rows_found, columns = store.sample(100, among=found)
    assert set(columns["action"].tolist()) == {8, 10, 12}  # type: ignore[union-attr]
    assert set(rows_found.tolist()) == set(found.tolist())


@pytest.mark.parametrize("result", [[1, 0], [True], np.array([True, False])])
def test_a_predicate_that_returns_no_flag_for_each_row_is_refused(result: Any) -> None:
    store = SimpleStore(10)
    store.put(rows(0, 3))
    with pytest.raises(ValueError, match=r"a predicate must return \[3\] bool"):
        store.filter(lambda columns: result)


def test_clear_removes_all_rows() -> None:
    store = SimpleStore(4)
    store.put(rows(0, 6))
    store.clear()
    assert (len(store), store.nbytes) == (0, 0)
    assert store.put(rows(6, 2)).tolist() == [0, 1]
    assert numbers(store) == [6, 7]


# --- sampling ---------------------------------------------------------------------------------------------------------


def weighted(weights: Any, seed: int = 0) -> SimpleStore:
    store = SimpleStore(max(1, len(weights)), seed=seed)
    store.put({"row": np.arange(len(weights)), "weight": np.asarray(weights)})
    return store


def frequencies(store: SimpleStore, size: int, weight: str | None) -> Any:
    sampled, columns = store.sample(size, weight)
    assert columns["row"].tolist() == sampled.tolist()  # type: ignore[union-attr]
    return np.bincount(sampled, minlength=len(store)) / size


def test_uniform_sampling() -> None:
    # 0.2 each, with a standard deviation of 0.0013.
    np.testing.assert_allclose(frequencies(weighted(np.ones(5)), 100_000, None), 0.2, atol=0.006)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64, np.uint8])
def test_sampling_in_proportion_to_a_weight(dtype: Any) -> None:
    weights = np.array([0, 1, 3, 0, 6, 0], dtype)
    found = frequencies(weighted(weights), 100_000, "weight")
    np.testing.assert_allclose(found, weights / 10, atol=0.007)
    assert not found[weights == 0].any()


def test_sampling_without_replacement_follows_the_weights_one_draw_after_another() -> None:
    weights = np.array([1.0, 2.0, 0.0, 5.0])
    store = weighted(weights)
    counts = np.zeros((4, 4))
    for _ in range(20_000):
        first, second = store.sample(2, "weight", replace=False)[0]
        counts[first, second] += 1
    expected = np.zeros((4, 4))
    for i, j in np.ndindex(4, 4):
        if i != j:
            expected[i, j] = weights[i] / 8 * weights[j] / (8 - weights[i])
    np.testing.assert_allclose(counts / 20_000, expected, atol=0.018)  # five standard deviations


def test_without_replacement_no_row_comes_twice() -> None:
    store = weighted(np.arange(10.0))
    assert sorted(store.sample(9, "weight", replace=False)[0].tolist()) == list(range(1, 10))
    assert sorted(store.sample(10, replace=False)[0].tolist()) == list(range(10))
    assert sorted(store.sample(3, replace=False, among=[1, 5, 7])[0].tolist()) == [1, 5, 7]
    assert sorted(store.sample(2, "weight", replace=False, among=[0, 5, 7])[0].tolist()) == [5, 7]


def test_weights_of_any_magnitude_are_possible() -> None:
    np.testing.assert_allclose(frequencies(weighted([1e308, 1e308, 1e308]), 30_000, "weight"), 1 / 3, atol=0.015)
    assert weighted([1e308, 1e-10, 0.0]).sample(2, "weight", replace=False)[0].tolist() == [0, 1]
    assert frequencies(weighted([0.0, 5e-324, 0.0]), 100, "weight").tolist() == [0, 1, 0]


def test_the_same_seed_samples_the_same_rows() -> None:
    first, same, other = (weighted(np.ones(50), seed) for seed in (1, 1, 2))
    expected = first.sample(20, "weight")[0].tolist()
    assert same.sample(20, "weight")[0].tolist() == expected
    assert other.sample(20, "weight")[0].tolist() != expected
    first.seed(1)
    assert first.sample(20, "weight")[0].tolist() == expected


@pytest.mark.parametrize(
    ("weights", "size", "kwargs", "message"),
    [
        ([0.0, 0.0], 1, {"weight": "weight"}, "all 2 weights are 0. Set some with `update`"),
        ([1.0, np.nan], 1, {"weight": "weight"}, "1 of 2 weights are negative, NaN or infinite"),
        ([1.0, np.inf], 1, {"weight": "weight"}, "1 of 2 weights are negative, NaN or infinite"),
        ([1.0, -1.0], 1, {"weight": "weight"}, "1 of 2 weights are negative, NaN or infinite"),
        ([1.0, 1.0], 1, {"weight": "no"}, "by 'no': no such key. The store has the keys ['row', 'weight']"),
        ([[1.0], [1.0]], 1, {"weight": "weight"}, "not a column of single numbers"),
        ([1.0, 0.0], 2, {"weight": "weight", "replace": False}, "from 1 rows with a 'weight' above 0"),
        ([1.0, 1.0], 3, {"replace": False}, "3 rows cannot be sampled without replacement from 2 rows"),
        ([1.0, 1.0], 1, {"among": []}, "1 rows cannot be sampled from 0 rows. Store more experiences first"),
        ([], 1, {}, "1 rows cannot be sampled from 0 rows"),
    ],
)
def test_impossible_samples_name_the_cause(weights: Any, size: int, kwargs: Any, message: str) -> None:
    store = weighted(weights)
    with pytest.raises(ValueError, match=re.escape(message)):
        store.sample(size, **kwargs)


# --- checkpoints ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("overwrite", ["rolling", "random"])
@pytest.mark.parametrize("puts", [[], [3], [10, 3], [25]])
def test_a_restored_store_continues_as_without_the_interruption(overwrite: Any, puts: list[int]) -> None:
    whole = SimpleStore(10, overwrite, seed=3)
    for number, count in enumerate(puts):
        whole.put(rows(100 * number, count))
    half = SimpleStore(10, overwrite, seed=4)
    half.load_state_dict(whole.state_dict())
    results = []
    for store in (whole, half):
        store.put(rows(50, 4))
        sampled, _ = store.sample(20, "action")
        results.append((numbers(store), sampled.tolist(), store.indices.tolist()))
    assert results[0] == results[1]


def test_a_state_of_another_capacity_is_refused() -> None:
    state = SimpleStore(10).state_dict()
    with pytest.raises(ValueError, match=r"had capacity 10 \(rolling\) and has 11 \(rolling\) now"):
        SimpleStore(11).load_state_dict(state)
    with pytest.raises(ValueError, match=r"had capacity 10 \(rolling\) and has 10 \(random\) now"):
        SimpleStore(10, "random").load_state_dict(state)


def test_a_checkpoint_holds_the_store_and_its_generator() -> None:
    from tmrl_core.training.checkpoints.capture import capture_part
    from tmrl_core.training.checkpoints.restore import restore_part

    store = SimpleStore(6, seed=1)
    store.put(rows(0, 8))
    captured = capture_part({"pool": store}, "")
    other = SimpleStore(6, seed=2)
    restore_part({"pool": other}, "", captured.tree, captured.arrays, {})
    assert not captured.skipped
    assert numbers(other) == numbers(store)
    assert other.sample(9)[0].tolist() == store.sample(9)[0].tolist()
