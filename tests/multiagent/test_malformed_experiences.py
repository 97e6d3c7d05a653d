"""Experiences that a shaper of a user, or a worker of another version, has made wrongly."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tmrl_core.multiagent.trajectory import experience_problem

GOOD: dict[str, Any] = {"state": np.zeros(2), "action": np.zeros(2), "reward": np.zeros(2)}


def test_good_experiences_have_no_problem() -> None:
    dicts = {"state": {"x": np.zeros((2, 3)), "action_mask": np.ones((2, 4), bool)}}
    assert experience_problem({"a": GOOD, "b": {**GOOD, **dicts}}, ["a", "b"]) is None


@pytest.mark.parametrize("columns", [5, None, [GOOD]])
def test_columns_must_be_a_mapping(columns: Any) -> None:
    found = experience_problem({"a": columns}, ["a"])
    assert found == f"the experiences of 'a' must map keys to columns, got {type(columns).__name__}"


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"reward": 3.0}, "'reward' of 'a' is a float; it must be an array [n]"),
        ({"reward": np.float32(3)}, "'reward' of 'a' is a float32; it must be an array [n]"),
        ({"reward": {"r": np.zeros(2)}}, "'reward' of 'a' is a dict; it must be an array [n]"),
        ({"reward": [1.0, 2.0]}, "'reward' of 'a' is a list; it must be an array [n]"),
        ({"logp": 5}, "'logp' of 'a' is a int; it must be an array [n, ...] of numbers"),
        ({"logp": None}, "'logp' of 'a' is a NoneType; it must be an array [n, ...] of numbers"),
        ({"logp": [1.0, 2.0]}, "'logp' of 'a' is a list; it must be an array [n, ...] of numbers"),
        ({"logp": np.array(1.0)}, "'logp' of 'a' is float64[]; it must be an array [n, ...] of numbers"),
        ({"action": np.array([None, 1])}, "'action' of 'a' is object[2]; it must be an array [n, ...] of numbers"),
        ({"state": {"x": np.array(["a", "b"])}}, "'state' of 'a' is <U1[2]; it must be an array [n, ...] of numbers"),
        ({"state": {"x": np.zeros(3)}}, "the experiences of 'a' have 2 rewards, but 3 rows of 'state'"),
    ],
)
def test_values_that_are_no_columns_are_named(change: dict[str, Any], problem: str) -> None:
    found = experience_problem({"a": {**GOOD, **change}}, ["a"])
    assert found is not None
    assert found.startswith(problem)
