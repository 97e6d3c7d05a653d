from __future__ import annotations

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


def test_an_image_of_five_dimensions_is_refused_by_name() -> None:
    space = spaces.Dict({"camera": spaces.Box(0, 255, (2, 2, 8, 8, 3), np.uint8)})
    with pytest.raises(ConfigError, match=r"\['camera'\] is an image of shape \(2, 2, 8, 8, 3\)\. Allowed: "):
        layout_of(space)


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


@pytest.mark.parametrize(
    ("space", "message"),
    [
        (spaces.Discrete(2), "Box of floats"),
        (spaces.Box(-np.inf, np.inf, (2,), np.float32), "finite bounds.*TransformAction"),
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
