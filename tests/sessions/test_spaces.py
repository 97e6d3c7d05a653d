from __future__ import annotations

import json
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from tmrl_core.errors import ConfigError
from tmrl_core.sessions.spaces import bounded, completed, space_of_json, space_to_json

ALL = [
    spaces.Box(-1, 1, (3,), np.float32),
    spaces.Box(-np.inf, np.inf, (2, 2), np.float64),
    spaces.Box(np.array([0, -np.inf]), np.array([1.5, np.inf]), dtype=np.float64),
    spaces.Box(0, 255, (4, 4, 3), np.uint8),
    spaces.Box(0.1, 0.7, (), np.float32),
    spaces.Box(-1, 1, (0,), np.float32),
    spaces.Discrete(5, start=-2),
    spaces.MultiBinary(3),
    spaces.MultiBinary((2, 3)),
    spaces.MultiDiscrete([3, 4], start=[1, 2]),
    spaces.MultiDiscrete(np.array([[3, 4], [5, 6]]), dtype=np.int32),
    spaces.Tuple((spaces.Discrete(2), spaces.Dict([("b", spaces.Discrete(2)), ("a", spaces.Box(0, 1))]))),
]


@pytest.mark.parametrize("space", ALL, ids=str)
def test_a_space_is_the_same_after_json(space: gymnasium.Space[Any]) -> None:
    read = space_of_json(json.loads(json.dumps(space_to_json(space), allow_nan=False)))
    assert read == space
    assert repr(read) == repr(space)
    assert read.dtype == space.dtype


def test_the_order_of_keys_is_kept() -> None:
    space = spaces.Dict([("b", spaces.Discrete(2)), ("a", spaces.Discrete(3))])
    read = space_of_json(space_to_json(space))
    assert isinstance(read, spaces.Dict)
    assert list(read.spaces) == ["b", "a"]


def test_a_space_that_cannot_be_recorded_is_named() -> None:
    with pytest.raises(ConfigError, match=r"observation\['text'\] is Text"):
        space_to_json(spaces.Dict({"text": spaces.Text(5)}), "observation")


@pytest.mark.parametrize("value", [None, 3, {}, {"kind": "Text"}, {"kind": "Box"}, {"kind": "Discrete", "n": 0}])
def test_other_values_are_refused(value: Any) -> None:
    with pytest.raises(ValueError, match="describes no space"):
        space_of_json(value)


INF, MOST = np.inf, float(np.finfo(np.float32).max)
BITS: Any = spaces.Box(0, 1, (2,), np.bool_)
FREE = spaces.Box(-INF, INF, (2,), np.float32)
ARM = spaces.Box(-1, np.array([1, 5], np.float32), (2,), np.float32)


@pytest.mark.parametrize(
    ("one", "other", "found"),
    [
        (FREE, ARM, ARM),
        (ARM, FREE, ARM),
        (spaces.Box(np.array([-INF, 0], np.float32), INF, (2,), np.float32), ARM,
         spaces.Box(np.array([-1, 0], np.float32), np.array([1, 5], np.float32))),
        (spaces.Box(-MOST, MOST, (2,), np.float32), ARM, ARM),
        (spaces.Box(-(2**63), 2**63 - 1, (1,), np.int64), spaces.Box(0, 9, (1,), np.int64),
         spaces.Box(0, 9, (1,), np.int64)),
        (spaces.Box(0, 255, (9, 1), np.uint8), spaces.Box(0, 2, (9, 1), np.uint8), spaces.Box(0, 2, (9, 1), np.uint8)),
        (spaces.Box(0, 9, (2,), np.uint8), spaces.Box(3, 4, (2,), np.uint8), spaces.Box(0, 9, (2,), np.uint8)),
        (spaces.Box(0, 255, (8, 8, 3), np.uint8), spaces.Box(0, 1, (8, 8, 3), np.uint8),
         spaces.Box(0, 255, (8, 8, 3), np.uint8)),
        (FREE, spaces.Box(-1, 1, (3,), np.float32), FREE),
        (FREE, spaces.Box(-1, 1, (2,), np.float64), FREE),
        (FREE, spaces.Discrete(2), FREE),
        (BITS, BITS, BITS),
        (spaces.Dict(a=FREE, b=spaces.Tuple([FREE])), spaces.Dict(a=ARM, b=spaces.Tuple([ARM])),
         spaces.Dict(a=ARM, b=spaces.Tuple([ARM]))),
        (spaces.Dict([("a", FREE), ("b", FREE)]), spaces.Dict([("b", ARM), ("a", ARM)]), spaces.Dict(a=FREE, b=FREE)),
    ],
)  # fmt: skip
def test_unknown_bounds_are_those_of_the_other_space(one: Any, other: Any, found: Any) -> None:
    assert completed(one, other) == found
    assert repr(completed(one, other)) == repr(found)


def test_spaces_without_bounds_are_told_from_others() -> None:
    assert bounded(spaces.Dict(a=ARM, b=spaces.Tuple([spaces.Discrete(3)])))
    assert not bounded(spaces.Dict(a=ARM, b=spaces.Tuple([FREE])))
    assert not bounded(spaces.Box(0, INF, (1,), np.float32))
