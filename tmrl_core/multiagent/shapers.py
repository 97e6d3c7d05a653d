"""Shapers: raw events become states, model actions become executable ones, trajectories become experiences."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np

from tmrl_core.multiagent.trajectory import Experiences, Trajectory


class StateShaper(ABC):
    """Makes the model state of a decision event. Override `_shape`."""

    def __call__(self, decision_event: Any, snapshot_list: Any) -> Any:
        """Return the model state: an array, a number, or a (nested) dict of arrays."""
        return self._shape(decision_event, snapshot_list)

    @abstractmethod
    def _shape(self, decision_event: Any, snapshot_list: Any) -> Any:
        """Return the model state."""


class ActionShaper(ABC):
    """Makes an executable action of a model action. Override `_shape`."""

    def __call__(self, model_action: Any, decision_event: Any, snapshot_list: Any) -> Any:
        """Return the action that the environment executes."""
        return self._shape(model_action, decision_event, snapshot_list)

    @abstractmethod
    def _shape(self, model_action: Any, decision_event: Any, snapshot_list: Any) -> Any:
        """Return the executable action."""


class ExperienceShaper(ABC):
    """Makes the experiences of each agent from a trajectory. Override `_shape`.

    Args:
        reward: a function from metrics to the reward of a decision; None: override `_rewards`.
    """

    def __init__(self, reward: Callable[[Any], float] | None = None) -> None:
        self._reward = reward

    def __call__(self, trajectory: Trajectory, snapshot_list: Any) -> Experiences:
        """Return the experiences by agent, at least `state`, `action` and `reward`."""
        return self._shape(trajectory, snapshot_list)

    @abstractmethod
    def _shape(self, trajectory: Trajectory, snapshot_list: Any) -> Experiences:
        """Return the experiences by agent."""


class KStepExperienceShaper(ExperienceShaper):
    """The k-step return of each agent. (A placeholder: one step, without next states.)"""

    def _shape(self, trajectory: Trajectory, snapshot_list: Any) -> Experiences:
        found: Experiences = {}
        for agent in dict.fromkeys(decision.agent for decision in trajectory):
            own = [decision for decision in trajectory if decision.agent == agent]
            rewards = [
                self._reward(decision.metrics) if self._reward else decision.metrics["rewards"][agent]
                for decision in own
            ]
            found[agent] = {
                "state": np.stack([decision.state for decision in own]),
                "action": np.array([decision.action for decision in own]),
                "reward": np.array(rewards, np.float32),
            }
        return found
