"""The observation wrappers of tmrl."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest

from tmrl_core.compat import wrappers


def test_observations_are_shifted_and_scaled_with_their_bounds() -> None:
    env = wrappers.AffineObservationWrapper(gym.make("Pendulum-v1"), 1.0, -2.0)
    assert isinstance(env.observation_space, gym.spaces.Box)
    assert env.observation_space.low.tolist() == [-4.0, -4.0, -18.0]
    assert env.observation_space.high.tolist() == [0.0, 0.0, 14.0]
    obs, _ = env.reset(seed=0)
    assert obs in env.observation_space
    with pytest.raises(TypeError, match="Discrete"):
        wrappers.AffineObservationWrapper(gym.make("Taxi-v4"), 0, 1)


def test_nested_float64_becomes_float32() -> None:
    env = wrappers.Float64ToFloat32(gym.make("Pendulum-v1"))
    nested = {"a": (np.ones(2), np.arange(2)), "b": 2.0}
    found = env.observation(nested)
    assert (found["a"][0].dtype, found["a"][0].shape, found["a"][1].dtype) == (np.float32, (2,), np.arange(2).dtype)
    assert found["b"].tolist() == [2.0]
    with pytest.raises(AttributeError, match="found a str"):
        env.observation("text")
