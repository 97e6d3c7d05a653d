"""Environments: Gymnasium's, made to fit, and the project's own, whose ids importing this registers.

Names are imported at their first use. Rooms add further ones.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import gymnasium

from tmrl_core import rooms
from tmrl_core.lazy_names import lazy_names

if TYPE_CHECKING:
    from tmrl_core.envs.delayed_cue import DelayedCue as DelayedCue
    from tmrl_core.envs.example import ExampleEnv as ExampleEnv
    from tmrl_core.envs.generic import GenericGymEnv as GenericGymEnv
    from tmrl_core.envs.old_gym import OldGym as OldGym
    from tmrl_core.envs.real_time import real_time_env as real_time_env
    from tmrl_core.envs.time_limit import TimeLimitAsTruncation as TimeLimitAsTruncation

_, __getattr__, __dir__ = lazy_names(
    __name__,
    {
        "delayed_cue": "DelayedCue",
        "example": "ExampleEnv",
        "generic": "GenericGymEnv",
        "old_gym": "OldGym",
        "real_time": "real_time_env",
        "time_limit": "TimeLimitAsTruncation",
    },
    further=partial(rooms.exports, __name__),
)

for _id in ("example-v0", "Example-v0"):
    # No max_episode_steps: the environment truncates by itself, and its classic variant takes one step more.
    gymnasium.register(_id, entry_point="tmrl_core.envs.example:ExampleEnv")

# A room adds the class, which is imported when the environment is made. Gymnasium's checks stay out: an observation
# that misses a bound is the client's, and must not end a session.
gymnasium.register("ShepherdEnv-v0", entry_point="tmrl_core.envs:ShepherdEnv", disable_env_checker=True)

gymnasium.register("delayed-cue-v0", entry_point="tmrl_core.envs.delayed_cue:DelayedCue")
