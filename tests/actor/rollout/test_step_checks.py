from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from tmrl_core.actor.rollout.step_checks import (
    make_observation_check,
    reset_problem,
    reward_problem,
    unpacking_hint,
)

BOX = spaces.Box(-1, 1, (2,), np.float32)
NESTED = spaces.Dict({"a": BOX, "b": spaces.Tuple((spaces.Discrete(3), spaces.MultiDiscrete([2, 2])))})


@pytest.mark.parametrize(
    "space",
    [BOX, NESTED, spaces.Discrete(2), spaces.MultiBinary(3), spaces.Box(-1, 1, (), np.float64), spaces.Text(4)],
)
def test_samples_of_the_space_pass(space: Any) -> None:
    check = make_observation_check(space).problem
    assert [check(space.sample()) for _ in range(5)] == [None] * 5


def test_bounds_are_not_checked() -> None:
    assert make_observation_check(BOX).problem(np.full(2, 9.0, np.float32)) is None


@pytest.mark.parametrize(
    ("space", "obs", "words"),
    [
        (BOX, [0.0, 0.0], "is a list"),
        (BOX, np.zeros(3, np.float32), "shape (3,), its space wants (2,)"),
        (BOX, np.zeros(2, np.float64), "float64, its space wants float32"),
        (BOX, np.array([0, np.nan], np.float32), "NaN"),
        (BOX, np.array([0, -np.inf], np.float32), "infinite"),
        (spaces.Discrete(2), 0.5, "wants an integer"),
        (spaces.Discrete(2), np.zeros(1, np.int64), "wants an integer"),
        (NESTED, (1, 2), "wants a dict"),
        (NESTED, {"a": np.zeros(2, np.float32)}, "keys ['a'], its space wants ['a', 'b']"),
        (NESTED, {"a": np.zeros(2, np.float32), "b": (1,)}, "observation['b'] has 1 entries"),
        (NESTED, {"a": np.zeros(2, np.float32), "b": 1}, "observation['b'] is a int"),
        (NESTED, {"a": np.zeros(2, np.float32), "b": (1, np.zeros(3, np.int64))}, "observation['b'][1]"),
    ],
)
def test_the_problem_is_named(space: Any, obs: Any, words: str) -> None:
    problem = make_observation_check(space).problem(obs)
    assert problem is not None
    assert words in problem


@pytest.mark.parametrize(
    ("space", "value"),
    [
        (BOX, np.array([2**24 + 1, 0])),
        (BOX, np.array([1e39, 0])),
        (BOX, ["1", "2"]),
        (BOX, [[1.0], [2.0, 3.0]]),
        (BOX, np.zeros(2, np.complex64)),
        (spaces.Box(0, 255, (2,), np.uint8), np.array([256, 0])),
        (spaces.Box(0, 255, (2,), np.uint8), np.array([-1, 0])),
        (spaces.Box(0, 255, (2,), np.uint8), np.array([0.5, 0])),
        (spaces.Box(0, 255, (2,), np.uint64), np.array([-1, 0], np.int8)),
        (spaces.Box(0, 255, (1,), np.uint8), 256),
        (spaces.Box(0.0, 1.0), [[0.5]]),
        (spaces.Discrete(2), 0.5),
        (spaces.Discrete(2), np.zeros(1, np.int64)),
    ],
)
def test_values_that_do_not_survive_are_not_cast(space: Any, value: Any) -> None:
    check = make_observation_check(space)
    assert check.problem(check.cast(value)) is not None


@pytest.mark.parametrize(
    ("space", "value"),
    [
        (BOX, [0.1, 2]),
        (spaces.Box(0, 255, (2,), np.uint8), np.array([255.0, 0.0])),
        (spaces.Box(-1, 1, (), np.float64), 0.5),
        (spaces.Box(0.0, 1.0), 0.5),
        (spaces.Box(0.0, 1.0, (1, 1)), np.float32(0.5)),
        (spaces.MultiBinary(2), np.array([True, False])),
        (spaces.Discrete(2), True),
        (spaces.Discrete(2), np.float64(1.0)),
        (NESTED, {"b": [1, [0, 1]], "a": (0.0, 1.0)}),
    ],
)
def test_values_that_survive_are_cast(space: Any, value: Any) -> None:
    check = make_observation_check(space)
    assert check.problem(value) is not None
    assert check.problem(check.cast(value)) is None


@pytest.mark.parametrize("reward", [0, 1.5, True, np.float32(2), np.float64(-1), np.int64(3), np.array(1.0)])
def test_numbers_are_valid_rewards(reward: Any) -> None:
    assert reward_problem(reward) is None


@pytest.mark.parametrize("reward", [float("nan"), np.float32(np.inf), None, "1", np.zeros(2)])
def test_other_values_are_invalid_rewards(reward: Any) -> None:
    assert "the reward is" in (reward_problem(reward) or "")


def test_a_reset_returns_an_observation_and_a_dict() -> None:
    assert reset_problem((np.zeros(2), {})) is None
    for result in (np.zeros(2), (1, 2, 3), None, {"obs": 1, "info": 2}):
        assert "wanted: obs, info" in (reset_problem(result) or "")


def test_only_results_that_could_not_be_unpacked_have_a_hint() -> None:
    def fault(values: Any) -> Exception:
        with pytest.raises((TypeError, ValueError)) as caught:
            _, _, _, _, _ = values
        return caught.value

    for values in ((1, 2, 3, 4), (1, 2, 3, 4, 5, 6), None):
        assert "step returns five" in unpacking_hint(fault(values))
    assert unpacking_hint(ValueError("joint 5 is out of its range")) == ""
    assert unpacking_hint(OSError("too many values to unpack (expected 5)")) == ""
