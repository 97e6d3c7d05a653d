"""Growing columns: what fits, and what Python's own numbers become."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from tmrl_core.errors import CodecError
from tmrl_core.samples.columns import Kind, Tree
from tmrl_core.samples.growing_columns import ArrayLeaf, ListLeaf, leaves_of, plan
from tmrl_core.samples.supported_values import MAX_DEPTH


def write(*values: Any, ragged: set[str] | None = None) -> tuple[Any, list[Kind], int]:
    """Write values until one does not fit; return the column, its kinds, and how many fit."""
    node = plan(values[0], "observation", set() if ragged is None else ragged)
    for leaf in leaves_of(node):
        leaf.resize(0, len(values))
    rows = 0
    for value in values:
        if not node.write(value, rows):
            break
        rows += 1
    kinds: list[Kind] = []
    tree: Tree = node.finish(rows, kinds)
    return tree, kinds, rows


f32, f64, i64 = np.float32, np.float64, np.int64


@pytest.mark.parametrize(
    ("values", "dtype", "kind"),
    [
        ((1.0, 2.5), f64, "float"),
        ((1, 2), i64, "int"),
        ((True, False), np.bool_, "bool"),
        ((f32(1), f32(2)), f32, ""),
        ((np.array(1, ">i2"), np.array(2, ">i2")), ">i2", "0-d"),
        ((np.array(1.0), f64(2)), f64, ""),
        ((f64(1), np.array(2.0)), f64, ""),
        # Weak first, then strong.
        ((0.0, f32(0.1)), f32, ""),
        ((0.0, f64(0.1)), f64, ""),
        ((0.0, i64(3)), i64, ""),
        ((0, np.uint8(3)), np.uint8, ""),
        ((0.0, np.array(0.1, f32)), f32, ""),
        ((0.0, np.complex64(1j)), np.complex64, ""),
        ((math.nan, f32(0.1)), f32, ""),
        ((-0.0, f32(0.1)), f32, ""),
        # Strong first, then weak.
        ((f32(0.1), 0.5), f32, ""),
        ((f32(0.1), math.inf), f32, ""),
        ((f32(0.1), math.nan), f32, ""),
        ((f32(0.1), -0.0), f32, ""),
        ((np.uint8(1), 255), np.uint8, ""),
        ((i64(1), 2.0), i64, ""),
        ((f32(1), True), f32, ""),
        ((np.array(0.1, ">f8"), 0.1), ">f8", ""),
        # Weak and weak.
        ((1, 2.5), f64, "float"),
        ((0.0, 1), f64, "float"),
        ((True, 2), i64, "int"),
        ((3, True), i64, "int"),
    ],
)
def test_numbers_share_a_column_where_no_value_changes(values: tuple[Any, ...], dtype: Any, kind: str) -> None:
    column, kinds, rows = write(*values)
    assert rows == len(values)
    assert column.dtype == dtype
    assert kinds == [kind]
    for value, back in zip(values, column.tolist(), strict=True):
        assert value == back or (math.isnan(value) and math.isnan(back))
        if isinstance(back, float):
            assert math.copysign(1, value) == math.copysign(1, back)


@pytest.mark.parametrize(
    ("first", "then"),
    [
        (f32(0.1), 0.1),
        (f32(0.1), 1e300),
        (0.1, f32(0.1)),
        (2**53 + 1, 0.5),
        (0.5, 2**53 + 1),
        (2**63 - 1, f64(0)),
        (np.uint8(1), 256),
        (np.uint8(1), -1),
        (np.uint8(1), 0.5),
        (i64(1), math.nan),
        (i64(1), -0.0),
        (i64(1), 2**63),
        (-0.0, i64(1)),
        (-1, np.uint8(1)),
        (f32(1), f64(1)),
        (f64(1), np.array(1, f32)),
        (f32(1), np.zeros(1, f32)),
        (np.zeros(1, f32), f32(1)),
        (np.zeros(1, f32), 1.0),
        (np.zeros(1, f32), np.zeros(1, f64)),
        (np.zeros(1, f32), np.zeros(1, ">f4")),
        (np.zeros(1, f32), np.zeros(2, f32)),
        (np.zeros(1, f32), np.zeros((1, 1), f32)),
        (np.zeros(1, f32), np.ma.zeros(1, f32)),
        (np.zeros(1, f32), None),
        (1.0, None),
        (1.0, "1.0"),
        (1.0, np.str_("1.0")),
        (0.0, np.longdouble(1)),
        (0.0, np.datetime64(0, "s")),
        ((1.0,), (1.0, 2.0)),
        ((1.0,), [1.0]),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        ({"a": 1}, {"a": 1, "b": 2}),
        ({"a": 1}, 1),
    ],
)
def test_values_that_do_not_fit_are_refused_and_change_no_row(first: Any, then: Any) -> None:
    tree, _, rows = write(first, then)
    assert rows == 1
    expected, _, _ = write(first)
    assert repr(tree) == repr(expected) or tree == expected


def test_arrays_are_copied() -> None:
    array = np.zeros(3)
    listed = [np.zeros(3)]
    tree, _, _ = write((array, listed))
    array[:] = 1
    listed[0][:] = 1
    assert tree[0].tolist() == [[0, 0, 0]]
    assert tree[1][0][0].tolist() == [0, 0, 0]


@pytest.mark.parametrize("value", [None, "text", b"bytes", [1, 2], 2**64, np.str_("x")])
def test_other_values_go_to_a_list(value: Any) -> None:
    tree, kinds, rows = write(value, None, "x", np.zeros(2))
    assert rows == 4
    assert isinstance(tree, list)
    assert tree[0] == value
    assert kinds == [""]


def test_a_shape_that_varies_is_remembered_with_its_path() -> None:
    ragged: set[str] = set()
    first = {"a": (np.zeros((2, 3)), np.zeros(1)), "b": np.zeros(4)}
    then = {"a": (np.zeros((5, 3)), np.zeros(1)), "b": np.zeros(3)}
    _, _, rows = write(first, then, ragged=ragged)
    assert rows == 1
    assert ragged == {"observation['a'][0]", "observation['b']"}
    tree, _, rows = write(then, first, ragged=ragged)
    assert rows == 2
    assert [array.shape for array in tree["a"][0]] == [(5, 3), (2, 3)]
    assert isinstance(tree["a"][1], np.ndarray)


def test_a_shape_that_changes_after_a_while_is_not_called_varying() -> None:
    ragged: set[str] = set()
    _, _, rows = write(*[np.zeros(2)] * 20, np.zeros(3), ragged=ragged)
    assert rows == 20
    assert ragged == set()


def test_missing_values_are_zeros_or_none() -> None:
    array, values = plan(np.ones(2), "action", set()), plan("x", "action", set())
    assert isinstance(array, ArrayLeaf)
    assert isinstance(values, ListLeaf)
    for leaf in (array, values):
        leaf.resize(0, 4)
        leaf.fill_missing(0, 2)
    assert array.write(np.ones(2), 2)
    assert values.write("x", 2)
    assert array.finish(3, []).tolist() == [[0, 0], [0, 0], [1, 1]]  # type: ignore[union-attr]
    assert values.finish(3, []) == [None, None, "x"]


def test_unsupported_values_are_named() -> None:
    with pytest.raises(CodecError, match=r"observation\['a'\]\[0\] is a object"):
        write({"a": [object()]})
    with pytest.raises(CodecError, match="observation is an array of dtype object"):
        write(np.array([None]))
    with pytest.raises(CodecError, match="observation has a key of type tuple"):
        write({(1, 2): 3})
    deep: Any = 1
    for _ in range(MAX_DEPTH + 1):
        deep = (deep,)
    with pytest.raises(CodecError, match="nested deeper"):
        write(deep)
