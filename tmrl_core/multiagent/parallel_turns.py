"""Turns of a parallel environment of PettingZoo: its agents decide one after another, then all act at once.

PettingZoo's own converter wants exactly the agents that acted in each dict. Environments that pass PettingZoo's tests
may keep agents that have ended in their dicts, or in their list of agents; entries of these are not read here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tmrl_core.errors import ContractError


class ParallelTurns:
    """A parallel environment with the methods of AEC environments by which `PettingZooEnvironment` plays.

    Args:
        env: a ParallelEnv.

    Attributes:
        agents: agents that get a turn before the episode ends: after a step, those that it has ended come first.
    """

    def __init__(self, env: Any) -> None:
        self.env = env
        self.agents: list[Any] = []
        self._turn = 0
        self._ended: dict[Any, tuple[bool, bool]] = {}
        """Agents that have ended in this episode, with both flags."""
        self._actions: dict[Any, Any] = {}
        self._observations: Mapping[Any, Any] = {}
        self._rewards: Mapping[Any, Any] = {}
        self._infos: Mapping[Any, Any] = {}

    @property
    def agent_selection(self) -> Any:
        """Return the agent whose turn it is."""
        return self.agents[self._turn]

    def reset(self, seed: int | None = None) -> None:
        """Begin an episode. Without agents it is over at once.

        Raises:
            ContractError: the environment does not return dicts of observations and infos, or an agent lacks an
                observation.
        """
        result = self.env.reset(seed=seed)
        if not (isinstance(result, tuple) and len(result) == 2 and all(isinstance(one, Mapping) for one in result)):
            raise ContractError(
                f"{self._name('reset')} returned {_kinds(result)}; wanted: a dict of observations, a dict of infos"
            )
        self._observations, self._infos = result
        self._rewards = {}
        self._ended = {}
        self._begin_turns([], list(self.env.agents), "reset")

    def last(self) -> tuple[Any, Any, bool, bool, Mapping[str, Any]]:
        """Return observation, reward, both flags and info of the agent whose turn it is."""
        agent = self.agent_selection
        terminated, truncated = self._ended.get(agent, (False, False))
        info = self._infos.get(agent)
        return (
            self._observations[agent],
            self._rewards.get(agent, 0.0),
            terminated,
            truncated,
            {} if info is None else info,
        )

    def step(self, action: Any) -> None:
        """Take the action of the agent whose turn it is; None for one that has ended.

        Raises:
            ContractError: the environment does not return five dicts, or an agent that acted is missing in one.
        """
        agent = self.agent_selection
        if agent in self._ended:
            self.agents.pop(self._turn)
        else:
            self._actions[agent] = action
            self._turn += 1
        if self._turn == len(self.agents) and self._actions:
            self._act()

    def _act(self) -> None:
        actions, self._actions = self._actions, {}
        result = self.env.step(actions)
        if not (isinstance(result, tuple) and len(result) == 5 and all(isinstance(one, Mapping) for one in result)):
            raise ContractError(
                f"{self._name('step')} returned {_kinds(result)}; wanted five dicts: observations, rewards, "
                "terminations, truncations, infos"
            )
        self._observations, self._rewards, terminations, truncations, self._infos = result
        for name, found in zip(("rewards", "terminations", "truncations"), result[1:4], strict=True):
            if missing := [agent for agent in actions if agent not in found]:
                raise ContractError(f"{self._name('step')} acted for {missing}, and its dict of {name} lacks them")
        flags = {agent: (bool(terminations[agent]), bool(truncations[agent])) for agent in actions}
        ends = {agent: both for agent, both in flags.items() if any(both)}
        listed = list(self.env.agents)
        if gone := [agent for agent in actions if agent not in listed and agent not in ends]:
            raise ContractError(
                f"{self._name('step')} removed {gone} from `agents` without `terminations` or `truncations`"
            )
        self._ended |= ends
        # As PettingZoo's converter orders them: agents that are still listed, then the others by name.
        first = [agent for agent in listed if agent in ends]
        first += sorted((agent for agent in ends if agent not in listed), key=str)
        self._begin_turns(first, [agent for agent in listed if agent not in self._ended], "step")

    def _begin_turns(self, ended: list[Any], live: list[Any], call: str) -> None:
        self.agents = [*ended, *live]
        self._turn = 0
        self._actions = {}
        if missing := [agent for agent in self.agents if agent not in self._observations]:
            raise ContractError(f"{self._name(call)} has the agents {missing}, and its dict of observations lacks them")

    def _name(self, call: str) -> str:
        return f"{type(self.env).__name__}.{call}"


def _kinds(result: Any) -> str:
    if not isinstance(result, tuple):
        return f"a {type(result).__name__}"
    return f"({', '.join(type(one).__name__ for one in result)})"
