"""The interface of an event-driven environment: it asks for one decision after another, each by one agent."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any


class EventEnvironment(ABC):
    """An environment that runs until an agent has to decide.

    An episode is `step(None)` for the first decision event, `step(action)` until it is done, `metrics`, `reset()`. An
    environment with one agent per time step and one with many simultaneous agents look the same: simultaneous agents
    decide one after another.
    """

    @abstractmethod
    def set_seed(self, seed: int) -> None:
        """Seed the environment's random numbers. The seed takes effect with the next `step(None)`.

        Args:
            seed: at least 0. The same seed and actions give the same episode.
        """

    @abstractmethod
    def reset(self) -> None:
        """End the current episode, at any point of it. The next call is `step(None)`."""

    @abstractmethod
    def step(self, action: Any) -> tuple[Any, Any, bool]:
        """Execute an action and run to the next decision.

        Args:
            action: the executable action for the last decision event, as the action shaper made it; None at the start
                of an episode.

        Returns:
            (metrics, decision_event, is_done).

            metrics: measurements since the last decision, for the reward. In a mapping these keys have a meaning, and
                all of them are optional: `rewards` (agent id -> reward since the last step), `terminations` and
                `truncations` (agent id -> bool: the agent's run ends here) and, at the end, `truncated` (bool: a limit
                cut the episode for all agents that the other two do not name). Without them the end of the episode is
                a termination. `final_events` (agent id -> event) are the decision events that truncated agents no
                longer get: learning then estimates what would have followed. Return new objects in each step.
            decision_event: the next decision. It names the agent, in the attribute or key `agent` unless the manager's
                `agent_of` is overridden. Anything if done.
            is_done: the episode is over.
        """

    @property
    @abstractmethod
    def snapshot_list(self) -> Any:
        """The environment's history, as the shapers read it."""

    @property
    @abstractmethod
    def metrics(self) -> Any:
        """The performance of the episode: a number, text, an array, or a dict of them, but no list."""

    def close(self) -> None:  # noqa: B027 (nothing to free by default)
        """Free the environment's resources. Nothing is called afterwards."""
