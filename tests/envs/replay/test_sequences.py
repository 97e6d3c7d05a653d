"""Declarations of items, and checks of arrays."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from tmrl_core.envs.replay.sequences import ItemFormat, array_of, checked, item_formats, listed
from tmrl_core.errors import ConfigError, SampleRefusedError

FLOAT, INT = np.dtype(np.float32), np.dtype(np.int32)


@pytest.mark.parametrize(
    ("declared", "expected"),
    [
        (2, [(None, FLOAT)] * 2),
        (np.int64(1), [(None, FLOAT)]),
        (spaces.Box(-1, 1, (3, 4), np.float64), [((3, 4), np.dtype(np.float64))]),
        ([spaces.Discrete(3), spaces.MultiBinary(4)], [((), np.dtype(np.int64)), ((4,), np.dtype(np.int8))]),
        (spaces.Box(0, 255, (2,), np.uint8), [((2,), np.dtype(np.uint8))]),
        (gymnasium.Space((2,)), [((2,), FLOAT)]),  # a space that states no dtype
    ],
)
def test_a_number_or_spaces_declare_items(declared: object, expected: list[tuple[Any, Any]]) -> None:
    found = item_formats(declared, "observations", shape=None, dtype="float32", least=1)
    assert [(one.shape, one.dtype) for one in found] == expected


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        (0, "observations is 0; allowed are a number of at least 1, a Gymnasium space and a list of such spaces"),
        (-1, "observations is -1"),
        (True, "observations is True"),
        (1.0, "observations is 1.0"),
        ("1", "observations is '1'"),
        (None, "observations is None"),
        ([], "observations is an empty list"),
        ([spaces.Discrete(2), 3], r"observations\[1\] is 3; allowed is a Gymnasium space"),
        (spaces.Dict(a=spaces.Discrete(2)), r"observations\[0\] is Dict.*has no shape.*Declare each part"),
        (gymnasium.Space((2,), np.complex64), r"complex64; allowed are the dtypes of booleans, integers and real"),
    ],
)
def test_other_declarations_are_refused(declared: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        item_formats(declared, "observations", shape=None, dtype="float32", least=1)


@pytest.mark.parametrize("dtype", ["int33", "complex64", "U3", object])
def test_a_default_dtype_is_one_of_numbers(dtype: object) -> None:
    with pytest.raises(ConfigError, match="the dtype of actions is"):
        item_formats(1, "actions", shape=(), dtype=dtype, least=1)


def test_a_list_has_one_array_for_each_declared_item() -> None:
    one, two = np.zeros(1), np.ones(1)
    assert [name for name, _ in listed([one, two], 2, "action_sequences", "actions")] == [
        "action_sequences[0]",
        "action_sequences[1]",
    ]
    assert listed(one, 1, "action_sequences", "actions") == [("action_sequences", one)]
    assert listed([one], 1, "action_sequences", "actions") == [("action_sequences", one)]
    with pytest.raises(SampleRefusedError, match="action_sequences is a list of 2; the pool declares 1 actions"):
        listed((one, two), 1, "action_sequences", "actions")
    with pytest.raises(SampleRefusedError, match="action_sequences is one array; the pool declares 2 actions"):
        listed(one, 2, "action_sequences", "actions")


class Elsewhere:
    """Like a tensor on a GPU."""

    def __array__(self, *arguments: object, **keywords: object) -> None:
        raise TypeError("can't convert cuda:0 device type tensor to numpy")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([[1], [1, 2]], "rewards cannot be read as an array"),
        (Elsewhere(), "rewards cannot be read as an array: can't convert cuda"),
        (["a"], "rewards has the dtype <U1; allowed are booleans, integers and real numbers"),
        (np.zeros(2, np.complex64), "rewards has the dtype complex64"),
        (None, "rewards has the dtype object"),
    ],
)
def test_what_is_no_array_of_numbers_is_refused(value: object, message: str) -> None:
    with pytest.raises(SampleRefusedError, match=message):
        array_of(value, "rewards")


@pytest.mark.parametrize(
    ("array", "format_", "message"),
    [
        (np.zeros((2, 3)), (None, FLOAT), r"x has the shape \[2, 3\]; expected is \[batch, tick, unit\]\. Declare a"),
        (np.zeros((2, 3, 4, 5)), (None, FLOAT), r"expected is \[batch, tick, unit\]"),
        (np.zeros((2, 3, 1)), ((), INT), r"x has the shape \[2, 3, 1\]; expected is \[batch, tick\]$"),
        (np.zeros((2, 3, 4)), ((5,), FLOAT), r"expected is \[batch, tick, 5\]$"),
        (
            np.zeros((3, 3, 4)),
            (None, FLOAT),
            "x has 3 sessions and 3 ticks; the arguments before it have 2 sessions and",
        ),
        (
            np.zeros((2, 4, 4)),
            (None, FLOAT),
            "x has 2 sessions and 4 ticks; the arguments .* have 2 sessions and 3 ticks",
        ),
    ],
)
def test_shapes_and_lengths(array: Any, format_: tuple[Any, Any], message: str) -> None:
    with pytest.raises(SampleRefusedError, match=message):
        checked(array, ItemFormat(*format_), "x", (2, 3), cast=True)


def with_one(value: Any, dtype: Any) -> Any:
    array = np.zeros((2, 3, 4), dtype)
    array[1, 2, 3] = value
    return array


@pytest.mark.parametrize(
    ("array", "dtype", "message"),
    [
        (with_one(np.nan, np.float32), "float32", "x, session 1, tick 2: found nan; only finite numbers"),
        (with_one(-np.inf, np.float64), "int32", "x, session 1, tick 2: found -inf; only finite numbers"),
        (with_one(1e39, np.float64), "float32", "x, session 1, tick 2: found 1e.39; float32 cannot hold it; declare"),
        (with_one(0.5, np.float32), "int32", "x, session 1, tick 2: found 0.5; int32 cannot hold it"),
        (with_one(2**31, np.int64), "int32", "found 2147483648; int32 cannot hold it"),
        (with_one(-1, np.int64), "uint8", "found -1; uint8 cannot hold it"),
        (with_one(2, np.int64), "bool", "found 2; bool cannot hold it"),
    ],
)
def test_numbers_that_cannot_be_stored_are_named(array: Any, dtype: str, message: str) -> None:
    with pytest.raises(SampleRefusedError, match=message):
        checked(array, ItemFormat(None, np.dtype(dtype)), "x", (2, 3), cast=True)


def test_numbers_are_cast_only_if_that_is_wanted() -> None:
    array = np.full((2, 3, 4), 0.1)
    cast = checked(array, ItemFormat(None, FLOAT), "x", (2, 3), cast=True)
    assert cast.dtype == np.float32
    np.testing.assert_array_equal(cast, array.astype(np.float32))
    assert checked(array, ItemFormat(None, FLOAT), "x", (2, 3), cast=False) is array
    assert checked(array, ItemFormat(None, np.dtype(np.float64)), "x", (2, 3), cast=True) is array
    assert checked(np.array([1, 0]), ItemFormat((), np.dtype(np.bool_)), "x", (2,), cast=True).tolist() == [True, False]
