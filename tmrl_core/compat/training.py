"""The interface of `tmrl.training`: the project's own."""

from __future__ import annotations

from tmrl_core.training.agent import TrainingAgent as TrainingAgent

__all__ = ["TrainingAgent"]
