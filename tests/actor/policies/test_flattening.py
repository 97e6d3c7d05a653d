from __future__ import annotations

import logging
import math
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from tmrl_core.actor.policies.flattening import flatten_into, layout_of, vector_size
from tmrl_core.actor.policies.spaces import action_bounds
from tmrl_core.actor.policies.torch.mlp import flatten_batch
from tmrl_core.actor.policies.torch.module import collate_one
from tmrl_core.errors import ConfigError

NESTED = spaces.Dict(
    {
        "z": spaces.Box(-1, 1, (2, 2), np.float32),
        "a": spaces.Tuple((spaces.Discrete(3, start=5), spaces.MultiBinary(2))),
        "m": spaces.MultiDiscrete([2, 3]),
        "n": spaces.Box(0, 9, (2,), np.int64),
    }
)


def flat(space: Any, obs: Any) -> list[float]:
    layout = layout_of(space)
    vector = np.full(vector_size(layout), np.nan, np.float32)
    flatten_into(layout, obs, vector)
    return [float(value) for value in vector]


def test_the_order_is_the_documented_one() -> None:
    obs = {
        "z": np.array([[1, 2], [3, 4]], np.float32) / 10,
        "a": (np.int64(6), np.array([1, 0], np.int8)),
        "m": np.array([1, 2]),
        "n": np.array([7, 8]),
    }
    # keys sorted: a, m, n, z
    assert flat(NESTED, obs) == pytest.approx([0, 1, 0, 1, 0, 0, 1, 0, 0, 1, 7, 8, 0.1, 0.2, 0.3, 0.4])


@pytest.mark.parametrize(
    "space",
    [
        NESTED,
        spaces.Discrete(4),
        spaces.Tuple((spaces.Box(-1, 1, (), np.float64), spaces.MultiDiscrete(np.array([[2, 3], [4, 5]])))),
        spaces.Box(-1, 1, (3,), np.float64),
    ],
)
def test_numpy_and_torch_flatten_equally(space: Any) -> None:
    space.seed(3)
    layout = layout_of(space)
    for _ in range(5):
        obs = space.sample()
        batch = flatten_batch(layout, collate_one(obs, "cpu"))
        assert batch.shape == (1, vector_size(layout))
        assert batch.dtype == torch.float32
        np.testing.assert_array_equal(batch[0].numpy(), np.array(flat(space, obs), np.float32))


@pytest.mark.parametrize(
    ("shape", "image_shape"),
    [
        ((64, 48), (1, 64, 48)),
        ((64, 48, 3), (3, 64, 48)),
        ((4, 64, 48), (4, 64, 48)),
        ((5, 5, 5), (5, 5, 5)),
        ((4, 64, 48, 3), (12, 64, 48)),
        ((4, 3, 64, 48), (12, 64, 48)),
    ],
)
def test_the_smaller_of_the_outer_axes_counts_the_channels(
    shape: tuple[int, ...], image_shape: tuple[int, int, int]
) -> None:
    (image,) = layout_of(spaces.Box(0, 255, shape, np.uint8))
    assert (image.kind, image.image_shape, image.size) == ("image", image_shape, math.prod(shape))


def test_images_come_after_all_values_as_they_are() -> None:
    space = spaces.Dict(
        camera=spaces.Box(0, 255, (2, 2, 3), np.uint8),
        speed=spaces.Box(-1, 1, (1,), np.float32),
        gear=spaces.Discrete(2),
    )
    pixels = np.arange(12, dtype=np.uint8).reshape(2, 2, 3)
    obs = {"camera": pixels, "gear": np.int64(1), "speed": np.array([0.5], np.float32)}
    expected: list[float] = [0.5, 0, 1, *range(12)]
    assert flat(space, obs) == expected
    batch = flatten_batch(layout_of(space), collate_one(obs, "cpu"))
    assert batch.tolist() == [flat(space, obs)]


def test_images_alone_stay_bytes() -> None:
    space = spaces.Box(0, 255, (4, 8, 8), np.uint8)
    assert flatten_batch(layout_of(space), collate_one(space.sample(), "cpu")).dtype == torch.uint8


def test_floats_are_images_only_where_convolutions_are_set() -> None:
    space = spaces.Box(0, 1, (4, 8, 8), np.float32)
    assert [leaf.kind for leaf in layout_of(space)] == ["values"]
    assert [(leaf.kind, leaf.scale) for leaf in layout_of(space, convolutions="small")] == [("image", 1.0)]


def test_convolutions_without_an_image_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"actor\.kwargs\.convolutions: found 'small', and .* has no image"):
        layout_of(spaces.Box(-1, 1, (3,), np.float32), convolutions="small")


def of_bytes(*shape: int, low: Any = 0, high: Any = 255) -> spaces.Box:
    return spaces.Box(low, high, shape, np.uint8)


BOXES = {
    "planes": of_bytes(6, 6, 2, high=1),
    "board": of_bytes(8, 8, high=9),
    "board of other numbers": of_bytes(5, 5, low=2, high=6),
    "number": of_bytes(high=4),
    "vector": of_bytes(128),
    "each element": spaces.Box(np.array([0, 2, 7], np.uint8), np.array([10, 4, 8], np.uint8), dtype=np.uint8),
    "one row": of_bytes(1, 4),
    "one column": of_bytes(20, 1),
    "many channels": of_bytes(8, 8, 111, high=1),
    "five dimensions": of_bytes(2, 2, 4, 4, 3),
    "stack": of_bytes(4, 6, 6, 3, high=10),
}


@pytest.mark.parametrize("box", BOXES.values(), ids=BOXES)
def test_bytes_that_are_no_images_are_scaled_by_their_bounds(box: spaces.Box) -> None:
    box.seed(5)
    nested = spaces.Dict(b=box, c=spaces.Tuple((spaces.Discrete(2), box)))
    low, high = box.low.astype(np.float64), box.high.astype(np.float64)
    for _ in range(3):
        obs = box.sample()
        expected = ((obs - low) / (high - low)).ravel().tolist()
        for space, value, vector in (
            (box, obs, expected),
            (nested, {"b": obs, "c": (1, obs)}, [*expected, 0.0, 1.0, *expected]),
        ):
            assert flat(space, value) == pytest.approx(vector)
            batch = flatten_batch(layout_of(space), collate_one(value, "cpu"))
            assert batch.dtype == torch.float32
            assert batch[0].tolist() == flat(space, value)


def test_an_element_with_one_value_is_zero() -> None:
    space = spaces.Box(np.array([7, 0], np.uint8), np.array([7, 4], np.uint8), dtype=np.uint8)
    assert flat(space, np.array([7, 3], np.uint8)) == [0, 0.75]


@pytest.mark.parametrize("dtype", [np.int8, np.int16, np.uint16, np.int64, np.float32, np.float64])
def test_other_numbers_stay_as_they_are(dtype: Any) -> None:
    assert flat(spaces.Box(0, 9, (2, 2), dtype), np.array([[1, 2], [3, 4]], dtype)) == [1, 2, 3, 4]


def test_set_convolutions_take_bytes_of_other_bounds_as_images_too() -> None:
    (from_zero,) = layout_of(of_bytes(6, 6, 2, high=4), convolutions="tiny")
    assert (from_zero.kind, from_zero.scale) == ("image", 0.25)
    space = of_bytes(6, 6, low=1, high=4)
    layout = layout_of(space, convolutions="tiny")
    assert (layout[0].kind, layout[0].scale) == ("image", 1.0)
    obs = np.full((6, 6), 4, np.uint8)
    assert flatten_batch(layout, collate_one(obs, "cpu")).tolist() == [[1.0] * 36]


def test_without_convolutions_pictures_are_numbers() -> None:
    layout = layout_of(of_bytes(2, 2), convolutions="none")
    vector = np.zeros(4, np.float32)
    flatten_into(layout, np.array([[0, 51], [102, 255]], np.uint8), vector)
    assert [leaf.kind for leaf in layout] == ["values"]
    assert vector.tolist() == pytest.approx([0, 0.2, 0.4, 1])


def test_the_layout_of_bytes_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    space = spaces.Dict(board=of_bytes(31, 17, high=6), view=of_bytes(31, 17, 3))
    with caplog.at_level(logging.INFO):
        for _ in range(2):
            layout_of(space)
    board, view = caplog.messages
    assert "['board'], uint8 of shape (31, 17), is taken as numbers, scaled by its bounds 0 to 6" in board
    assert "['view'], uint8 of shape (31, 17, 3), is taken as an image, for convolutions" in view


def test_a_space_without_numbers_is_refused() -> None:
    with pytest.raises(ConfigError, match="Allowed: Box, Discrete"):
        layout_of(spaces.Text(5))


@pytest.mark.parametrize(
    ("space", "obs", "message"),
    [
        (spaces.Box(-1, 1, (3,), np.float32), np.zeros(2, np.float32), r"shape \(2,\), not \(3,\)"),
        (spaces.Discrete(3, start=1), 0, r"is 0, not in 1\.\.3"),
    ],
)
def test_observations_outside_of_the_space_are_refused(space: Any, obs: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        flat(space, obs)


HUGE = float(np.finfo(np.float32).max)


@pytest.mark.parametrize(
    ("space", "message"),
    [
        (spaces.Discrete(2), "Box of floats"),
        (spaces.Box(-np.inf, np.inf, (2,), np.float32), "finite bounds.*TransformAction"),
        (spaces.Box(-HUGE, HUGE, (2,), np.float32), "finite bounds.*at most 8e37 apart.*TransformAction"),
        (spaces.Box(-HUGE, 0, (2,), np.float32), "finite bounds.*TransformAction"),
        (spaces.Box(np.array([-1, HUGE / 2], np.float32), np.array([1, HUGE], np.float32)), "finite bounds"),
        (spaces.Box(-1e300, 1e300, (2,), np.float64), "finite bounds"),
        (spaces.Box(np.array([0.0, 1.0]), np.array([1.0, 1.0]), dtype=np.float64), "low < high"),
    ],
)
def test_unbounded_action_spaces_are_refused(space: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        action_bounds("Policy", space)


def test_the_wrapper_named_for_infinite_bounds_makes_them_finite() -> None:
    class Endless(gymnasium.Env[Any, Any]):
        observation_space = spaces.Box(-1, 1, (1,), np.float32)
        action_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)

    bounded = spaces.Box(-3, 3, (2,), np.float32)
    env = gymnasium.wrappers.TransformAction(Endless(), lambda action: action, bounded)
    assert action_bounds("Policy", env.action_space).high.tolist() == [3, 3]


def test_an_entry_that_cannot_be_flattened_is_named_with_the_setting_that_leaves_it_out() -> None:
    space = spaces.Dict({"direction": spaces.Discrete(4), "mission": spaces.Text(9)})
    with pytest.raises(
        ConfigError, match=r"\['mission'\] is of the space Text.* with environment.drop: \[mission\]\.$"
    ):
        layout_of(space)
    deep = spaces.Dict({"direction": spaces.Discrete(4), "told": spaces.Tuple([spaces.Discrete(2), spaces.Text(9)])})
    with pytest.raises(ConfigError, match=r"\['told'\]\[1\] is of the space Text.* environment.drop: \[told\]\.$"):
        layout_of(deep)


def test_integers_just_outside_their_space_are_refused() -> None:
    layout = layout_of(spaces.Dict({"a": spaces.Discrete(3, start=2), "b": spaces.MultiDiscrete([3, 2])}))
    vector = np.zeros(8, np.float32)
    for first in (2, 4):
        flatten_into(layout, {"a": first, "b": np.array([2, 1])}, vector)
        assert vector.sum() == 3
    for wrong in (1, 5):
        with pytest.raises(ValueError, match=r"observation \['a'\] is \d, not in 2..4"):
            flatten_into(layout, {"a": wrong, "b": np.array([0, 0])}, vector)
    for pair, text in (([3, 0], "3, not in 0..2"), ([0, 2], "2, not in 0..1"), ([-1, 0], "-1, not in 0..2")):
        with pytest.raises(ValueError, match=rf"observation \['b'\] is {text}"):
            flatten_into(layout, {"a": 2, "b": np.array(pair)}, vector)
