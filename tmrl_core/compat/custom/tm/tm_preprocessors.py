"""Observation preprocessors under the names of `tmrl.custom.tm.tm_preprocessors`."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = [
    "obs_preprocessor_tm_act_in_obs",
    "obs_preprocessor_tm_lidar_act_in_obs",
    "obs_preprocessor_tm_lidar_progress_act_in_obs",
    "sample_preprocessor_tm_lidar_act_in_obs",
]

SPEED, GEAR, RPM, PIXEL = 1000.0, 10.0, 10_000.0, 256.0
"""Values that observations are divided by."""


def obs_preprocessor_tm_act_in_obs(obs: Any) -> tuple[Any, ...]:
    """Scale speed, gear, engine speed and images (uint8 to float32); actions stay."""
    speed, gear, rpm, images, *actions = obs
    return speed / SPEED, gear / GEAR, rpm / RPM, np.asarray(images, np.float32) / PIXEL, *actions


def obs_preprocessor_tm_lidar_act_in_obs(obs: Any) -> tuple[Any, ...]:
    """Flatten the history of lidar measurements; speed and actions stay."""
    speed, lidar, *actions = obs
    return speed, np.ravel(lidar), *actions


def obs_preprocessor_tm_lidar_progress_act_in_obs(obs: Any) -> tuple[Any, ...]:
    """Flatten the history of lidar measurements; speed, progress and actions stay."""
    speed, progress, lidar, *actions = obs
    return speed, progress, np.ravel(lidar), *actions


def sample_preprocessor_tm_lidar_act_in_obs(
    last_obs: Any, act: Any, rew: Any, new_obs: Any, terminated: Any, truncated: Any
) -> tuple[Any, ...]:
    """Return the transition unchanged."""
    return last_obs, act, rew, new_obs, terminated, truncated
