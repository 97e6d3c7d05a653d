"""Environments that come with the project hold to the promises of an environment."""

from __future__ import annotations

from typing import Any

from tmrl_core.envs import GenericGymEnv
from tmrl_core.testing.environments import EnvironmentSuite


class TestPendulum(EnvironmentSuite):
    def make_environment(self) -> Any:
        return GenericGymEnv("Pendulum-v1", to_float32=True)
