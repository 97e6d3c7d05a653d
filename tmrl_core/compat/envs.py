"""The environments of `tmrl.envs`, and the configured environment."""

from __future__ import annotations

from typing import Any

from tmrl_core.config import current, environment_maker
from tmrl_core.envs.generic import GenericGymEnv as GenericGymEnv

__all__ = ["GenericGymEnv", "get_environment"]


def get_environment() -> Any:
    """Return a new environment of the configuration's section `environment`."""
    environment = current().environment
    return environment_maker(environment.cls, environment.kwargs, environment.drop)()
