"""The agent manager: several agents look like one."""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from tmrl_core.errors import ConfigError, EpisodeError, WrongModeError
from tmrl_core.multiagent.agent import Agent
from tmrl_core.multiagent.algorithm import AgentAlgorithm
from tmrl_core.multiagent.assembly import Assembly
from tmrl_core.multiagent.exploration import Explorer
from tmrl_core.multiagent.shapers import ActionShaper, ExperienceShaper, KStepExperienceShaper, StateShaper
from tmrl_core.multiagent.trajectory import Decision, Experiences, Trajectory
from tmrl_core.networking.protocol.messages import Blob

Mode = Literal["inference", "training"]


class AgentManager:
    """Agents of one scenario.

    In inference, the manager chooses actions and makes experiences; in training, it stores them and updates models.

    Args:
        mode: `inference` (in an actor) or `training` (in a learner).
        agent_ids: the agents.
        config: argument of `assemble_agents`.
        state_shaper: makes model states; None: the decision event's attribute or key `state`.
        action_shaper: makes executable actions; None: the model action is executed.
        experience_shaper: makes experiences; None: k-step returns with the defaults.
        explorer: exploration parameters; None: 0 for all agents.

    Attributes:
        agents: the agents by id.
        policies: the algorithms by policy name.
        policy_of: the policy name of each agent.
        explorer: the exploration parameters.
        deterministic: act without exploration, for tests.
    """

    def __init__(
        self,
        mode: Mode,
        agent_ids: Sequence[str],
        *,
        config: Any = None,
        state_shaper: StateShaper | None = None,
        action_shaper: ActionShaper | None = None,
        experience_shaper: ExperienceShaper | None = None,
        explorer: Explorer | None = None,
    ) -> None:
        if mode not in ("inference", "training"):
            raise ConfigError(f"mode must be 'inference' or 'training', got {mode!r}")
        self.mode: Mode = mode
        self.agent_ids = tuple(agent_ids)
        self.state_shaper = state_shaper
        self.action_shaper = action_shaper
        self.experience_shaper = experience_shaper or KStepExperienceShaper()
        self.explorer = explorer or Explorer(self.agent_ids)
        self.agents: dict[str, Agent] = {}
        self.policies: dict[str, AgentAlgorithm] = {}
        self.policy_of: dict[str, str] = {}
        self.assemble_agents(config)
        self._name_policies()
        self._deterministic = False
        self._trajectory = Trajectory()

    def assemble_agents(self, config: Any) -> None:
        """Fill `agents` with one `Agent` for each id. Override it to make pools, models and algorithms differently.

        A policy is named by `policy_of`; an override may leave it out: then an algorithm has the name of its first
        agent.

        Args:
            config: an `Assembly`, unless overridden.
        """
        if not isinstance(config, Assembly):
            raise ConfigError(f"config must be an Assembly, got {config!r}; or override assemble_agents")
        self.agents = config.assemble(self.agent_ids)
        self.policy_of = {agent: config.agents[agent] for agent in self.agent_ids}

    def agent_of(self, decision_event: Any) -> str:
        """Return the id of the agent that decides."""
        agent: str = decision_event["agent"] if isinstance(decision_event, Mapping) else decision_event.agent
        return agent

    def score(self, performance: Any) -> float:
        """Return the value of one episode's performance; larger is better.

        The default is a number itself, or the value of the key `score`; without one, NaN.
        """
        value = performance.get("score", math.nan) if isinstance(performance, Mapping) else performance
        return float(value) if isinstance(value, int | float | np.number) else math.nan

    def set_seed(self, seed: int) -> None:
        """Seed each policy's generator, from the seed and the policy's name."""
        for name, algorithm in self.policies.items():
            algorithm.seed(np.random.SeedSequence([seed, zlib.crc32(name.encode())]))

    @property
    def deterministic(self) -> bool:
        """Act without exploration. Assign it for tests."""
        return self._deterministic

    @deterministic.setter
    def deterministic(self, deterministic: bool) -> None:
        self._deterministic = deterministic
        for algorithm in self.policies.values():
            algorithm.deterministic = deterministic

    # Inference

    def choose_action(self, decision_event: Any, snapshot_list: Any) -> Any:
        """Return the executable action for a decision event, and record the decision."""
        self._require("inference", "choose_action")
        name = self.agent_of(decision_event)
        agent = self.agents.get(name)
        if agent is None:
            raise EpisodeError(f"the decision event names the agent {name!r}; the agents are {list(self.agents)}")
        state = decision_event.state if self.state_shaper is None else self.state_shaper(decision_event, snapshot_list)
        epsilon = 0.0 if self._deterministic else self.explorer.epsilons[name]
        action, extras = agent.choose_action_with_extras(state, epsilon)
        self._trajectory.append(Decision(name, state, action, decision_event, None, extras))
        return action if self.action_shaper is None else self.action_shaper(action, decision_event, snapshot_list)

    def on_env_feedback(self, metrics: Any) -> None:
        """Record the metrics that followed the last action."""
        self._require("inference", "on_env_feedback")
        self._trajectory[-1].metrics = metrics

    def post_process(self, snapshot_list: Any) -> Experiences:
        """Return the experiences of the episode, and begin a new trajectory."""
        self._require("inference", "post_process")
        trajectory, self._trajectory = self._trajectory, Trajectory()
        return self.experience_shaper(trajectory, snapshot_list)

    def discard_trajectory(self) -> None:
        """Begin a new trajectory without experiences of the current one."""
        self._trajectory = Trajectory()

    def load_models(self, models: Mapping[str, Blob]) -> None:
        """Take over the models of the named policies."""
        self._require("inference", "load_models")
        for name, model in models.items():
            self.policies[name].load_model(model)

    # Training

    def get_models(self) -> dict[str, Blob]:
        """Return the model of each policy by its name."""
        self._require("training", "get_models")
        return {name: algorithm.get_model() for name, algorithm in self.policies.items()}

    def store_experiences(self, experiences: Experiences) -> None:
        """Store the experiences of each agent in its pool."""
        self._require("training", "store_experiences")
        for agent, columns in experiences.items():
            self.agents[agent].store_experiences(columns)

    def train(self) -> dict[str, Mapping[str, float]]:
        """Train each policy once on each of its pools. Return metrics by policy name."""
        self._require("training", "train")
        metrics = {}
        done = set()
        for name, agent in self.agents.items():
            pair = id(agent.algorithm), id(agent.experience_pool)
            if pair not in done:
                done.add(pair)
                metrics[self.policy_of[name]] = agent.train()
        return metrics

    def update_epsilon(self, performance: Mapping[str, Any]) -> None:
        """Move the exploration parameters to the next episode.

        Args:
            performance: of each worker, by its name; a list has the performances of several episodes.
        """
        self._require("training", "update_epsilon")
        self.explorer.update(self.mean_score(performance))

    def mean_score(self, performance: Mapping[str, Any]) -> float:
        """Return the mean score of the episodes of all workers; NaN without an episode."""
        episodes = [one for own in performance.values() for one in (own if isinstance(own, list) else [own])]
        return math.fsum(map(self.score, episodes)) / len(episodes) if episodes else math.nan

    def _require(self, mode: Mode, method: str) -> None:
        if self.mode != mode:
            raise WrongModeError(f"{method} needs a manager in mode {mode!r}, and this one is in mode {self.mode!r}")

    def _name_policies(self) -> None:
        """Check the assembled agents, and name the policies that have no name yet."""
        if list(self.agents) != list(self.agent_ids):
            raise ConfigError(f"assemble_agents must make the agents {list(self.agent_ids)}, got {list(self.agents)}")
        first: dict[int, str] = {}
        for name, agent in self.agents.items():
            policy = self.policy_of.setdefault(name, first.setdefault(id(agent.algorithm), name))
            self.policies[policy] = agent.algorithm
