from __future__ import annotations

import json
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from tmrl_core.errors import ConfigError
from tmrl_core.sessions.spaces import space_of_json, space_to_json

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
