"""Atari as DQN's paper prepares it: grey frames of 84 x 84, four of them, each for four frames of the game."""

from __future__ import annotations

from typing import Any

import ale_py
import gymnasium
import numpy as np
from gymnasium.wrappers import AtariPreprocessing, FrameStackObservation, TransformReward

gymnasium.register_envs(ale_py)


def make(id: str, clip: bool = True) -> gymnasium.Env[Any, Any]:
    """Make an environment of ALE.

    Args:
        id: such as "ALE/Pong-v5".
        clip: take the sign of rewards, so that one learning rate suits all games.
    """
    # The v5 ids repeat each action themselves; AtariPreprocessing does that here, with the maximum of two frames.
    env: gymnasium.Env[Any, Any] = gymnasium.make(id, frameskip=1)
    env = FrameStackObservation(AtariPreprocessing(env), 4)
    return TransformReward(env, lambda reward: float(np.sign(reward))) if clip else env
