"""Exploration of several agents: the share of random actions of each, which the learner lowers and sends along.

An explorer is part of an agent manager. In training, `update` follows each episode, or each round of episodes of
several workers. In inference, `epsilons` is assigned before each episode.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import TypeAlias

import numpy as np

from tmrl_core.errors import ConfigError
from tmrl_core.training.value_types import State

PerAgent: TypeAlias = "float | Mapping[str, float]"
"""A number for all agents, or one for each by id."""

LARGEST = float(np.finfo(np.float64).max)


class Explorer:
    """Shares of random actions that stay as they are.

    Args:
        agent_ids: ids of the agents.
        epsilon: share of random actions, 0 to 1.

    Raises:
        ConfigError: a share is not a number from 0 to 1, an agent is unknown, or one of the agents has no value.
    """

    type_id = "explorer"
    type_version = 1

    def __init__(self, agent_ids: Iterable[str], epsilon: PerAgent = 0.0) -> None:
        self.agent_ids = tuple(agent_ids)
        self._epsilons: Mapping[str, float] = MappingProxyType(self._shares("epsilon", epsilon))

    @property
    def epsilons(self) -> Mapping[str, float]:
        """Share of random actions by agent id, as of now.

        Assign a mapping to change the shares of the agents in it. An assigned share holds until the next `update`.

        Raises:
            ConfigError: an agent is unknown, or a value is not a number from 0 to 1. Nothing was changed.
        """
        return self._epsilons

    @epsilons.setter
    def epsilons(self, values: Mapping[str, float]) -> None:
        shares = {
            agent: _number(value, f"epsilons[{agent!r}]", 0.0, 1.0) for agent, value in self._known(values).items()
        }
        # A new dict, because others may hold a view of the present one.
        self._epsilons = MappingProxyType({**self._epsilons, **shares})

    def update(self, score: PerAgent) -> None:
        """Set the shares for the next episode.

        Args:
            score: of the last episode, or of each agent in it; larger is better, NaN if there is none.
        """

    def state_dict(self) -> State:
        """Return the state for a checkpoint."""
        return {"epsilons": dict(self._epsilons)}

    def load_state_dict(self, state: State) -> None:
        """Load the result of `state_dict`. Agents that are new keep their values.

        Raises:
            ConfigError: the state has unknown agents.
        """
        self.epsilons = state["epsilons"]

    def _known(self, values: Mapping[str, float]) -> Mapping[str, float]:
        if unknown := list(values.keys() - set(self.agent_ids)):
            raise ConfigError(f"no agents of this explorer: {unknown}; its agents are {list(self.agent_ids)!r:.300}.")
        return values

    def _per_agent(self, name: str, value: PerAgent, lowest: float, highest: float) -> dict[str, float]:
        """Return a number for each agent.

        Raises:
            ConfigError: a number is out of range, an agent is unknown, or one has none.
        """
        if not isinstance(value, Mapping):
            return dict.fromkeys(self.agent_ids, _number(value, name, lowest, highest))
        if missing := [agent for agent in self.agent_ids if agent not in value]:
            raise ConfigError(f"{name} has no value for {missing}; give one for each agent, or one number for all.")
        return {
            agent: _number(item, f"{name}[{agent!r}]", lowest, highest) for agent, item in self._known(value).items()
        }

    def _shares(self, name: str, value: PerAgent) -> dict[str, float]:
        return self._per_agent(name, value, 0.0, 1.0)


class LinearExplorer(Explorer):
    """Shares that change linearly over a number of episodes, and stay at their final value.

    Args:
        agent_ids: ids of the agents.
        initial: share in the first episode.
        final: share after `episodes` updates, and later.
        episodes: number of updates from the initial to the final share.

    Raises:
        ConfigError: a share is not a number from 0 to 1, `episodes` is not at least 1, an agent is unknown, or one of
            the agents has no value.
    """

    type_id = "linear_explorer"
    type_version = 1

    def __init__(
        self, agent_ids: Iterable[str], *, initial: PerAgent = 1.0, final: PerAgent = 0.05, episodes: PerAgent
    ) -> None:
        super().__init__(agent_ids)
        self.epsilons = self._shares("initial", initial)
        self._phases = [(self._per_agent("episodes", episodes, 1, LARGEST), self._shares("final", final))]
        self._initial = self.epsilons
        self.updates = 0

    def update(self, score: PerAgent) -> None:
        """Move each share along its lines, whatever the score is."""
        self.updates += 1
        self.epsilons = {agent: self._share(agent) for agent in self.agent_ids}

    def _share(self, agent: str) -> float:
        ends = np.cumsum([0.0, *(episodes[agent] for episodes, _ in self._phases)])
        shares = [self._initial[agent], *(share[agent] for _, share in self._phases)]
        return float(np.interp(self.updates, ends, shares))

    def state_dict(self) -> State:
        """Return the shares and the number of updates."""
        return {**super().state_dict(), "updates": self.updates}

    def load_state_dict(self, state: State) -> None:
        """Load the result of `state_dict`. From the next update on, the constructor's settings count."""
        super().load_state_dict(state)
        self.updates = state["updates"]


class TwoPhaseLinearExplorer(LinearExplorer):
    """Shares that change along two lines: usually fast first, then slowly.

    Args:
        agent_ids: ids of the agents.
        initial: share in the first episode.
        middle: share after `first_episodes` updates.
        final: share after `first_episodes + second_episodes` updates, and later.
        first_episodes: number of updates of the first phase.
        second_episodes: number of updates of the second phase.

    Raises:
        ConfigError: as for `LinearExplorer`.
    """

    type_id = "two_phase_linear_explorer"

    def __init__(
        self,
        agent_ids: Iterable[str],
        *,
        initial: PerAgent = 1.0,
        middle: PerAgent = 0.2,
        final: PerAgent = 0.05,
        first_episodes: PerAgent,
        second_episodes: PerAgent,
    ) -> None:
        super().__init__(agent_ids, initial=initial, final=middle, episodes=first_episodes)
        self._phases.append(
            (self._per_agent("second_episodes", second_episodes, 1, LARGEST), self._shares("final", final))
        )


def _number(value: object, name: str, lowest: float, highest: float) -> float:
    """Return a number in a range as a float.

    Raises:
        ConfigError: it is not one.
    """
    if isinstance(value, bool) or not isinstance(value, int | float | np.number) or not lowest <= value <= highest:
        raise ConfigError(f"{name} must be a number from {lowest:g} to {highest:g}, got {value!r:.100}")
    return float(value)
