"""PettingZoo's environments as event environments. Needs the extra `marl`."""

# Theory of operation
#
# `PettingZooEnvironment` makes each turn of a live agent a decision event. Agents of a parallel environment decide one
# after another, with the observations of the same time (`ParallelTurns`); then all actions are executed at once.
#
# Rewards. PettingZoo gives an agent's reward with its next turn: the sum of all its rewards since its last one.
# `metrics["rewards"]` of a step therefore has the agents whose turn came, and a shaper adds them to the agent's last
# decision. Example: agents a and b alternate, a moves, b moves and a loses 1; that -1 arrives when a's turn comes next,
# and belongs to a's move before. Rewards before an agent's first turn belong to no decision, and count in the episode's
# returns only.
#
# Ends. An agent that has ended gets one more turn from PettingZoo, in which it must not act; these turns are taken here
# with None, and their observation becomes the final event of a truncated agent, from which learning bootstraps.
#
# Observations and infos are copied, because environments reuse their arrays.

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from gymnasium import Space, spaces

from tmrl_core.config.references import resolve
from tmrl_core.errors import ConfigError, MissingExtraError
from tmrl_core.multiagent.environment import EventEnvironment
from tmrl_core.multiagent.parallel_turns import ParallelTurns

try:
    from pettingzoo import AECEnv, ParallelEnv, aec_registry, parallel_registry
    from pettingzoo import make as make_registered
    from pettingzoo.env_registry.exceptions import PettingZooRegistryError
except ModuleNotFoundError as exc:
    if exc.name != "pettingzoo":
        raise
    raise MissingExtraError("pettingzoo", "marl", __name__) from exc


@dataclass(frozen=True, slots=True, eq=False)
class Turn:
    """A turn of an agent, as a decision event.

    Args:
        agent: its name.
        observation: a copy of the agent's observation.
        info: a copy of the agent's info.
    """

    agent: str
    observation: Any
    info: Mapping[str, Any]

    @property
    def state(self) -> Any:
        """The model state: the observation. With an `action_mask`, in it or in the info, a dict that has both."""
        if "action_mask" not in self.info or (
            isinstance(self.observation, Mapping) and "action_mask" in self.observation
        ):
            return self.observation
        seen = self.observation if isinstance(self.observation, Mapping) else {"observation": self.observation}
        return {**seen, "action_mask": self.info["action_mask"]}


class PettingZooEnvironment(EventEnvironment):
    """An environment of PettingZoo. Each turn of a live agent is a decision event.

    Agents of a parallel environment decide one after another, with the observations of the same time; then all actions
    are executed at once. Entries of agents that have ended are not read, and a reset without agents is an empty
    episode. An agent's reward arrives with its next turn, and is the sum of all its rewards since its last
    one. Agents that have ended get no turn. Rewards before an agent's first turn belong to no decision, and count in
    the metrics only.

    Args:
        env: an AECEnv or ParallelEnv, or the name of one: an id of PettingZoo's registry, such as
            `classic/tictactoe-v3`; `package.module`, whose function `env` makes it; or `package.module:name` for
            another callable, such as `parallel_env`.
        kwargs: keyword arguments of the environment, if `env` is a name.

    Raises:
        ConfigError: the name, the keyword arguments or the environment is wrong, or a package that it needs is
            missing.
    """

    def __init__(self, env: Any, kwargs: Mapping[str, Any] | None = None) -> None:
        made = _make(env, kwargs or {}) if isinstance(env, str) else env
        if not isinstance(made, AECEnv | ParallelEnv):
            raise ConfigError(
                f"{env!r:.200} is a {type(made).__name__}, not an environment of PettingZoo. Allowed: an AECEnv, a "
                "ParallelEnv, an id such as classic/tictactoe-v3, or package.module with a function `env`."
            )
        self.env: Any = made
        self._aec: Any = ParallelTurns(made) if isinstance(made, ParallelEnv) else made
        self._seed: int | None = None
        self._returns: dict[str, float] = {}
        self._turns = 0
        self._masks: dict[str, Any] = {}
        """The last mask of each agent that gets them in its info."""

    @property
    def agents(self) -> dict[str, Any]:
        """The environment's agents by their names. Those that appear later are missing if it does not list them."""
        try:
            known = self.env.possible_agents
        except AttributeError:
            known = self._aec.agents
        return {str(agent): agent for agent in known}

    def observation_space(self, agent: str) -> Space[Any]:
        """Return the space of an agent's observations."""
        found: Space[Any] = self.env.observation_space(self.agents[agent])
        return found

    def action_space(self, agent: str) -> Space[Any]:
        """Return the space of an agent's actions."""
        found: Space[Any] = self.env.action_space(self.agents[agent])
        return found

    def set_seed(self, seed: int) -> None:
        """Seed the next episode. Later ones go on with the environment's generator."""
        self._seed = seed

    def reset(self) -> None:
        """End the episode. The environment itself is reset when the next one begins."""

    def step(self, action: Any) -> tuple[dict[str, Any], Turn | None, bool]:
        """Execute an action and go to the next turn of a live agent.

        Returns:
            The metrics have `rewards`, `terminations`, `truncations` and `final_events` (agent -> the turn that it no
            longer gets) of the agents whose turn came.
        """
        if action is None:
            self._aec.reset(seed=self._seed)
            self._seed = None
            self._returns, self._masks, self._turns = {}, {}, 0
        else:
            self._aec.step(self._executable(action))
            self._turns += 1
        metrics: dict[str, dict[str, Any]] = {"rewards": {}, "terminations": {}, "truncations": {}, "final_events": {}}
        while self._aec.agents:
            agent = str(self._aec.agent_selection)
            observation, given, terminated, truncated, info = self._aec.last()
            reward = float(np.asarray(given).item())
            metrics["rewards"][agent] = reward
            self._returns[agent] = self._returns.get(agent, 0.0) + reward
            turn = Turn(agent, copy.deepcopy(observation), copy.deepcopy(info))
            if not (terminated or truncated):
                if "action_mask" in info:
                    self._masks[agent] = turn.info["action_mask"]
                return metrics, turn, False
            metrics["terminations" if terminated else "truncations"][agent] = True
            if agent in self._masks and "action_mask" not in info:
                # At the end many infos are empty. A final state has the keys of the others, and allows all actions.
                turn = replace(turn, info={**turn.info, "action_mask": np.ones_like(self._masks[agent])})
            metrics["final_events"][agent] = turn
            self._aec.step(None)
        return metrics, None, True

    def _executable(self, action: Any) -> Any:
        """Return an action of a discrete space as an int, which some environments need as an index."""
        discrete = isinstance(self.env.action_space(self._aec.agent_selection), spaces.Discrete)
        return int(np.asarray(action).item()) if discrete else action

    @property
    def snapshot_list(self) -> tuple[()]:
        """Empty: PettingZoo keeps no history."""
        return ()

    @property
    def metrics(self) -> dict[str, Any]:
        """The episode so far: `returns` by agent, their mean as the `score`, and the number of `turns`."""
        returns = dict(self._returns)
        return {"score": sum(returns.values()) / max(1, len(returns)), "returns": returns, "turns": self._turns}

    def close(self) -> None:
        """Close the environment."""
        self.env.close()


def _make(name: str, kwargs: Mapping[str, Any]) -> Any:
    """Return the environment that a configuration names.

    Raises:
        ConfigError: there is no such environment, a package that it needs is missing, or it does not accept the
            keyword arguments.
    """
    try:
        if "/" in name:
            kind = "parallel" if name in parallel_registry and name not in aec_registry else "aec"
            return make_registered(kind, name, **kwargs)
        return resolve(name if ":" in name else f"{name}:env", "environment.kwargs.env")(**kwargs)
    except PettingZooRegistryError as exc:
        raise ConfigError(f"environment.kwargs.env: {exc}") from exc
    except TypeError as exc:
        if "unexpected keyword argument" not in str(exc):
            raise
        raise ConfigError(f"environment.kwargs.kwargs: {exc}") from exc
