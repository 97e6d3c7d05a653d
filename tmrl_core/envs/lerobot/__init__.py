"""Robots of lerobot as environments."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tmrl_core.lazy_names import lazy_names

if TYPE_CHECKING:
    from tmrl_core.envs.lerobot.robot import Robot as Robot
    from tmrl_core.envs.lerobot.robot import RobotEnvironment as RobotEnvironment
    from tmrl_core.envs.lerobot.robot import Task as Task

__all__, __getattr__, __dir__ = lazy_names(__name__, {"robot": "Robot RobotEnvironment Task"})
