"""Exploration parameters of agents, and how they change from episode to episode."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tmrl_core.errors import ConfigError


class Explorer:
    """Exploration parameters that stay as they are.

    Args:
        agent_ids: the agents.
        epsilon: the parameter of all agents, or of each by id.
    """

    def __init__(self, agent_ids: Iterable[str], epsilon: float | Mapping[str, float] = 0.0) -> None:
        self._epsilons = {
            agent: float(epsilon[agent] if isinstance(epsilon, Mapping) else epsilon) for agent in agent_ids
        }

    @property
    def epsilons(self) -> Mapping[str, float]:
        """The parameter of each agent. Assign a mapping to replace those that it names."""
        return self._epsilons

    @epsilons.setter
    def epsilons(self, epsilons: Mapping[str, float]) -> None:
        if unknown := sorted(epsilons.keys() - self._epsilons.keys()):
            raise ConfigError(f"epsilons name unknown agents {unknown}; the agents are {sorted(self._epsilons)}")
        self._epsilons |= {agent: float(value) for agent, value in epsilons.items()}

    def update(self, score: float) -> None:
        """Move to the next episode.

        Args:
            score: the last episode's; larger is better, NaN if the performance has no score.
        """
