"""The environments of `tmrl.envs`, and the configured environment."""

from __future__ import annotations

from typing import Any

from tmrl_core.config import current
from tmrl_core.envs.generic import GenericGymEnv as GenericGymEnv
from tmrl_core.roles.from_config import environment_of

__all__ = ["GenericGymEnv", "get_environment"]


def get_environment() -> Any:
    """Return a new environment of the configuration's section `environment`."""
    return environment_of(current())()
