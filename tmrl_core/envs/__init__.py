"""Environments: Gymnasium's, made to fit, and the project's own, whose ids importing this registers."""

from __future__ import annotations

import gymnasium

from tmrl_core.envs.delayed_cue import DelayedCue
from tmrl_core.envs.example import ExampleEnv
from tmrl_core.envs.generic import GenericGymEnv
from tmrl_core.envs.shepherd import ShepherdEnv

__all__ = ["DelayedCue", "ExampleEnv", "GenericGymEnv", "ShepherdEnv"]

for _id in ("example-v0", "Example-v0"):
    # No max_episode_steps: the environment truncates by itself, and its classic variant takes one step more.
    gymnasium.register(_id, entry_point="tmrl_core.envs.example:ExampleEnv")

# Its own checks stay out: an observation that misses a bound is the client's, and must not end a session.
gymnasium.register("ShepherdEnv-v0", entry_point="tmrl_core.envs.shepherd:ShepherdEnv", disable_env_checker=True)

gymnasium.register("delayed-cue-v0", entry_point="tmrl_core.envs.delayed_cue:DelayedCue")
