"""Observation wrappers under the names of `tmrl.wrappers`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import gymnasium
import numpy as np

__all__ = ["AffineObservationWrapper", "Float64ToFloat32", "deepmap", "float64_to_float32", "float_to_float32"]


class AffineObservationWrapper(gymnasium.ObservationWrapper[Any, Any, Any]):
    """Observations of a Box as `(obs + shift) * scale`, in the space too.

    Args:
        env: its observations are a Box.
        shift: added first.
        scale: factor; a negative one swaps the bounds.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], shift: Any, scale: Any) -> None:
        super().__init__(env)
        space = env.observation_space
        if not isinstance(space, gymnasium.spaces.Box):
            raise TypeError(f"AffineObservationWrapper needs observations in a Box, found {space}")
        self.shift = shift
        self.scale = scale
        bounds = [self.observation(space.low), self.observation(space.high)]
        low, high = np.minimum(*bounds), np.maximum(*bounds)
        self.observation_space = gymnasium.spaces.Box(low, high, dtype=space.dtype.type)

    def observation(self, obs: Any) -> Any:
        """Return the observation, shifted and scaled."""
        return (obs + self.shift) * self.scale


class Float64ToFloat32(gymnasium.ObservationWrapper[Any, Any, Any]):
    """Observations with float32 instead of float64, nested or not. Numbers become arrays of one element."""

    def observation(self, observation: Any) -> Any:
        """Return the observation with its float64 values as float32."""
        convert: dict[type, Callable[[Any], Any]] = {np.ndarray: float64_to_float32}
        convert |= dict.fromkeys((float, np.float32, np.float64), float_to_float32)
        return deepmap(convert, observation)


def deepmap(f: Mapping[type, Callable[[Any], Any]], m: Any) -> Any:
    """Apply to each leaf of nested lists, tuples and dicts the function of its type.

    Raises:
        AttributeError: a leaf has another type.
    """
    for kind, function in f.items():
        if isinstance(m, kind):
            return function(m)
    if isinstance(m, Mapping):
        return {key: deepmap(f, value) for key, value in m.items()}
    if isinstance(m, (list, tuple)):
        return type(m)(deepmap(f, value) for value in m)
    raise AttributeError(f"found a {type(m).__name__}, allowed: {', '.join(kind.__name__ for kind in f)}")


def float64_to_float32(x: Any) -> Any:
    """Return a float64 array as float32, of the same shape; others unchanged."""
    return x.astype(np.float32) if x.dtype == np.float64 else x


def float_to_float32(x: Any) -> Any:
    """Return a number as a float32 array of one element."""
    return np.asarray([x], np.float32)
