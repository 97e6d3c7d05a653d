"""Environments: Gymnasium's, made to fit, and the project's own, whose ids importing this registers.

Names are imported at their first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import gymnasium

from tmrl_core.lazy_names import lazy_names

if TYPE_CHECKING:
    from tmrl_core.envs.delayed_cue import DelayedCue as DelayedCue
    from tmrl_core.envs.example import ExampleEnv as ExampleEnv
    from tmrl_core.envs.functional_environment import BaseEnvironment as BaseEnvironment
    from tmrl_core.envs.functional_environment import FunctionalEnv as FunctionalEnv
    from tmrl_core.envs.generic import GenericGymEnv as GenericGymEnv
    from tmrl_core.envs.old_gym import OldGym as OldGym
    from tmrl_core.envs.real_time import real_time_env as real_time_env
    from tmrl_core.envs.replay import SessionBatchEnvironment as SessionBatchEnvironment
    from tmrl_core.envs.shepherd import ShepherdEnv as ShepherdEnv
    from tmrl_core.envs.time_limit import TimeLimitAsTruncation as TimeLimitAsTruncation
    from tmrl_core.envs.unrolling import SessionActor as SessionActor
    from tmrl_core.envs.unrolling import Sessions as Sessions
    from tmrl_core.envs.unrolling import get_sessions as get_sessions
    from tmrl_core.sessions.environment import SessionPoolEnvironment as SessionPoolEnvironment

__all__, __getattr__, __dir__ = lazy_names(
    __name__,
    {
        "delayed_cue": "DelayedCue",
        "example": "ExampleEnv",
        "generic": "GenericGymEnv",
        "shepherd": "ShepherdEnv",
        "functional_environment": "BaseEnvironment FunctionalEnv",
        "old_gym": "OldGym",
        "real_time": "real_time_env",
        "replay": "SessionBatchEnvironment",
        "time_limit": "TimeLimitAsTruncation",
        "unrolling": "SessionActor Sessions get_sessions",
        ".sessions.environment": "SessionPoolEnvironment",  # of the package above: it is a pool
    },
)

for _id in ("example-v0", "Example-v0"):
    # No max_episode_steps: the environment truncates by itself, and its classic variant takes one step more.
    gymnasium.register(_id, entry_point="tmrl_core.envs.example:ExampleEnv")

# Its own checks stay out: an observation that misses a bound is the client's, and must not end a session.
gymnasium.register("ShepherdEnv-v0", entry_point="tmrl_core.envs.shepherd:ShepherdEnv", disable_env_checker=True)

gymnasium.register("delayed-cue-v0", entry_point="tmrl_core.envs.delayed_cue:DelayedCue")
