"""MiniGrid as observations of numbers: the grid without the text of the mission."""

from __future__ import annotations

from typing import Any

import gymnasium
import minigrid  # registers the ids
import numpy as np
from gymnasium.spaces import Box
from minigrid.wrappers import ImgObsWrapper

__all__ = ["make", "minigrid"]


def make(id: str) -> gymnasium.Env[Any, Any]:
    """Make an environment whose observation is [7, 7, 3] of object types, colours and states.

    They are declared as numbers from 0 to 10; MiniGrid declares 0 to 255, as of an image.
    """
    env = ImgObsWrapper(gymnasium.make(id))
    shape = env.observation_space.shape
    return gymnasium.wrappers.TransformObservation(env, lambda obs: obs, Box(0, 10, shape, np.uint8))
