"""Environments: Gymnasium's, made to fit."""

from __future__ import annotations

from tmrl_core.envs.generic import GenericGymEnv

__all__ = ["GenericGymEnv"]
