"""The agent manager: several agents look like one."""

# Theory of operation
#
# A manager is the one object that a `Learner` and an `Actor` call, in one process and over TLS in the same order:
# models and epsilons go to the actor, experiences come back, are stored and trained on. It knows nothing of networks
# and of rounds, and the environment only through shapers.
#
# Modes. A manager acts (`inference`) or learns (`training`); methods of the other mode are replaced in the constructor
# by ones that raise, so the check costs nothing at each decision. Rejected: a manager without a mode, since an actor
# that trains by mistake would train a copy.
#
# Names. A policy has a name of its own, because agents may share it: models, metrics and seeds go by that name. If an
# override of `assemble_agents` names none, an algorithm has the name of its first agent. Rejected: models by agent id,
# by which a shared model would be sent several times.
#
# Seeds. Each policy's generator is seeded from the episode's seed and the policy's name. With seed 7, the policy "ship"
# draws the same numbers whether there are one or ten other policies, in whatever process and order.
#
# Copies. States and actions are copied, because environments reuse arrays and shapers scale actions in place. Events
# and metrics are kept as they are: environments return new ones.
#
# Checks. Actions are checked before they are executed, one at a time; states and rewards once per episode, over whole
# columns, which is much cheaper. An error ends the episode, drops its trajectory, and names the part that failed and
# the decision.

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Literal, NoReturn

import numpy as np
from numpy import ndarray

from tmrl_core.actor.rollout.step_checks import copy_action
from tmrl_core.errors import (
    ConfigError,
    EpisodeError,
    PolicyFailedError,
    SampleRefusedError,
    TmrlError,
    WeightsError,
    WrongModeError,
)
from tmrl_core.multiagent.agent import Agent, mean_metrics
from tmrl_core.multiagent.agent_algorithm import NO_EXTRAS, AgentAlgorithm
from tmrl_core.multiagent.assembly import Assembly
from tmrl_core.multiagent.exploration import Explorer
from tmrl_core.multiagent.shapers import ActionShaper, ExperienceShaper, KStepExperienceShaper, StateShaper
from tmrl_core.multiagent.trajectory import Decision, Experiences, Trajectory, experience_problem
from tmrl_core.networking.protocol.messages import Blob
from tmrl_core.samples.finite import is_finite
from tmrl_core.training.loops.evaluation import mean_of

Mode = Literal["inference", "training"]
_METHODS: Mapping[Mode, tuple[str, ...]] = {
    "inference": ("choose_action", "on_env_feedback", "post_process", "load_models"),
    "training": ("get_models", "store_experiences", "train", "update_epsilon"),
}
"""Methods that belong to one mode only."""


class AgentManager:
    """The agents of one scenario.

    In inference, the manager chooses actions and makes experiences. In training, it stores experiences and updates
    models. Each of its methods belongs to one mode; the other mode raises `WrongModeError`.

    Args:
        mode: `inference` (in an actor) or `training` (in a learner).
        agent_ids: ids of the agents.
        config: argument of `assemble_agents`.
        state_shaper: makes model states; None: the attribute `state` of the decision event, or that key of a dict.
        action_shaper: makes executable actions; None: the model action is executed.
        experience_shaper: makes experiences; None: `KStepExperienceShaper` with its defaults.
        explorer: exploration parameters; None: 0 for all agents.

    Raises:
        ConfigError: the mode is unknown, an id is not unique, or `assemble_agents` or the explorer left an agent out.

    Attributes:
        agents: each `Agent` by its id.
        policies: each algorithm by its policy's name.
        policy_of: the policy's name of each agent.
        explorer: the exploration parameters.
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
        if not self.agent_ids or len(set(self.agent_ids)) < len(self.agent_ids):
            raise ConfigError(f"agent_ids must be one or more unique ids, got {list(self.agent_ids)!r:.300}")
        self.state_shaper = state_shaper or _StateOfEvent()
        self.action_shaper = action_shaper
        self.experience_shaper = experience_shaper or KStepExperienceShaper()
        self.explorer = explorer or Explorer(self.agent_ids)
        if missing := [agent for agent in self.agent_ids if agent not in self.explorer.epsilons]:
            raise ConfigError(f"the explorer has no epsilon for {missing}: give it all agent ids")
        self.agents: dict[str, Agent] = {}
        self.policy_of: dict[str, str] = {}
        self.assemble_agents(config)
        self.policies = self._named_policies()
        self._deterministic = False
        self.discard_trajectory()
        # Refused here and not in the methods, because some of them are called at each decision.
        for method in _METHODS["training" if mode == "inference" else "inference"]:
            setattr(self, method, partial(self._refuse, method))

    # --- for users to override ----------------------------------------------------------------------------------------

    def assemble_agents(self, config: Any) -> None:
        """Fill `agents` with one `Agent` for each id in `agent_ids`.

        An override makes pools, models and algorithms by other means. It may fill `policy_of` too; otherwise each
        algorithm has the name of its first agent.

        Args:
            config: an `Assembly`, unless the method is overridden.
        """
        if not isinstance(config, Assembly):
            raise ConfigError(
                f"config must be an Assembly, got {type(config).__name__}. For another config override assemble_agents"
            )
        self.agents = config.assemble(self.agent_ids)
        self.policy_of = config.policies_of(self.agent_ids)

    def agent_of(self, decision_event: Any) -> str:
        """Return the id of the agent that decides: the attribute `agent`, or that key of a dict."""
        agent: str = decision_event["agent"] if isinstance(decision_event, dict) else decision_event.agent
        return agent

    def score(self, performance: Any) -> float:
        """Return the value of one episode's performance; larger is better.

        The default is the performance if it is a number, or the number under its key `score`; otherwise NaN.
        """
        value = performance.get("score") if isinstance(performance, Mapping) else performance
        return float(value) if isinstance(value, int | float | np.number) else math.nan

    # --- both modes ---------------------------------------------------------------------------------------------------

    def set_seed(self, seed: int) -> None:
        """Seed the generator of each policy, and in training that of each pool.

        Args:
            seed: at least 0. The same seed and name of a policy give the same generator in every process.
        """
        if seed < 0:
            raise ConfigError(f"a seed must be at least 0, got {seed}")
        for name, algorithm in self.policies.items():
            algorithm.seed(_seed_of(seed, "policy", name))
        if self.mode == "training":
            # Of agents that share a pool, the first one counts.
            for name, agent in reversed(self.agents.items()):
                agent.experience_pool.seed(_seed_of(seed, "pool", name))

    @property
    def deterministic(self) -> bool:
        """Act without exploration. Assign True for tests."""
        return self._deterministic

    @deterministic.setter
    def deterministic(self, deterministic: bool) -> None:
        self._deterministic = deterministic
        for algorithm in self.policies.values():
            algorithm.deterministic = deterministic

    # --- inference ----------------------------------------------------------------------------------------------------

    def choose_action(self, decision_event: Any, snapshot_list: Any) -> Any:
        """Return the executable action for a decision event, and record the decision.

        Raises:
            EpisodeError: the event names no known agent, a shaper or the policy failed, or the state is not finite.
            PolicyFailedError: the action is not finite.
        """
        try:
            name = self.agent_of(decision_event)
        except Exception as exc:
            raise EpisodeError(
                f"no agent was found in the decision event {decision_event!r:.200} ({_named(exc)}). "
                "Give events an attribute or key 'agent', or override agent_of"
            ) from exc
        if name not in self.agents:
            raise EpisodeError(
                f"the decision event names the agent {name!r}; the agents are {list(self.agents)!r:.300}. "
                "Correct the environment's event, or add the agent to agent_ids"
            )
        try:
            # Environments reuse arrays, and the state is read again at the end of the episode.
            state = self.state_shaper(decision_event, snapshot_list)
            state = state.copy() if type(state) is ndarray else copy_action(state)
        except Exception as exc:
            self._fail("state shaper", name, exc)
        epsilon = 0.0 if self._deterministic else self.explorer.epsilons[name]
        agent = self.agents[name]
        try:
            if agent.algorithm.has_extras:
                action, extras = agent.choose_action_with_extras(state, epsilon)
            else:
                action, extras = agent.choose_action(state, epsilon), NO_EXTRAS
        except TmrlError:
            raise
        except Exception as exc:
            # torch's own text names neither the agent nor the shaper, which usually is what does not fit the model.
            self._fail(f"policy {self.policy_of[name]!r}, with a state of {_described(state)},", name, exc)
        if type(action) is not int and not is_finite(action):
            self._refuse_action(name, state, action)
        # Shapers and environments may scale an action in place.
        recorded = action if type(action) is int else copy_action(action)
        self._trajectory.append(Decision(name, state, recorded, decision_event, None, extras))
        if self.action_shaper is None:
            return action
        try:
            return self.action_shaper(action, decision_event, snapshot_list)
        except Exception as exc:
            self._fail("action shaper", name, exc)

    def on_env_feedback(self, metrics: Any) -> None:
        """Record the metrics that followed the last action."""
        self._trajectory[-1].metrics = metrics

    def post_process(self, snapshot_list: Any) -> Experiences:
        """Return the experiences of the episode, and begin a new trajectory.

        Raises:
            EpisodeError: the experience shaper failed, or an experience is not finite or lacks a column.
        """
        trajectory = self._trajectory
        for name, event in trajectory.final_events():
            try:
                trajectory.final_states[name] = copy_action(self.state_shaper(event, snapshot_list))
            except Exception as exc:
                self._fail("state shaper", name, exc)
        self.discard_trajectory()
        try:
            experiences = self.experience_shaper(trajectory, snapshot_list)
        except EpisodeError:
            raise
        except Exception as exc:
            raise EpisodeError(
                f"the experience shaper failed on a trajectory of {len(trajectory)} decisions: {_named(exc)}"
            ) from exc
        if problem := experience_problem(experiences, self.agents):
            raise EpisodeError(f"{problem}. Correct the environment, its metrics or the shapers")
        return experiences

    def discard_trajectory(self) -> None:
        """Begin a new trajectory, without experiences of the present one."""
        self._trajectory = Trajectory()
        for agent in self.agents.values():
            agent.begin_episode()

    def load_models(self, models: Mapping[str, Blob]) -> None:
        """Load the models of the named policies.

        Raises:
            WeightsError: a name is unknown, or a model belongs to another architecture.
        """
        if unknown := sorted(models.keys() - self.policies.keys()):
            raise WeightsError(f"models of unknown policies {unknown}; the policies are {list(self.policies)}")
        for name, model in models.items():
            self.policies[name].load_model(model)

    # --- training -----------------------------------------------------------------------------------------------------

    def get_models(self) -> dict[str, Blob]:
        """Return the model of each policy by its name."""
        return {name: algorithm.get_model() for name, algorithm in self.policies.items()}

    def store_experiences(self, experiences: Experiences) -> None:
        """Store the experiences of each agent in its pool.

        Raises:
            SampleRefusedError: an agent is unknown, or an experience is not finite or lacks a column: nothing was
                stored. Or they do not fit those in the agent's pool: nothing of this and later agents was stored.
        """
        if problem := experience_problem(experiences, self.agents):
            raise SampleRefusedError(problem)
        for agent, columns in experiences.items():
            self.agents[agent].store_experiences(columns)

    def train(self) -> dict[str, Mapping[str, float]]:
        """Train each policy on its pool, once even if agents share both. Return metrics by policy name."""
        trained: dict[str, list[dict[str, float]]] = {}
        done = set()
        for name, agent in self.agents.items():
            pair = id(agent.algorithm), id(agent.experience_pool)
            if pair not in done:
                done.add(pair)
                trained.setdefault(self.policy_of[name], []).append(agent.train())
        return {policy: mean_metrics(several) for policy, several in trained.items()}

    def update_epsilon(self, performance: Mapping[str, Any]) -> None:
        """Move the exploration parameters to the next episode.

        Args:
            performance: by worker; a list has the performances of several episodes.
        """
        self.explorer.update(self.mean_score(performance))

    def mean_score(self, performance: Mapping[str, Any]) -> float:
        """Return the mean score over the episodes of all workers; NaN without an episode."""
        episodes = [one for own in performance.values() for one in (own if isinstance(own, list) else [own])]
        return mean_of(list(map(self.score, episodes))) if episodes else math.nan

    # --- helpers ------------------------------------------------------------------------------------------------------

    def _refuse(self, method: str, *args: Any, **kwargs: Any) -> NoReturn:
        wanted = "training" if self.mode == "inference" else "inference"
        raise WrongModeError(
            f"{method} belongs to the mode {wanted!r}, and this manager is in mode {self.mode!r}. "
            f"Make a manager with mode={wanted!r} for it"
        )

    def _refuse_action(self, agent: str, state: Any, action: Any) -> NoReturn:
        if not is_finite(state):
            raise EpisodeError(
                f"the state of decision {len(self._trajectory)}, of the agent {agent!r}, is not finite: "
                f"{state!s:.200}. Correct the environment or the state shaper"
            )
        raise PolicyFailedError(f"the policy {self.policy_of[agent]!r} chose an action that is not finite: {action}")

    def _fail(self, part: str, agent: str, exc: Exception) -> NoReturn:
        where = f"decision {len(self._trajectory)}, of the agent {agent!r}"
        raise EpisodeError(f"the {part} failed at {where}: {_named(exc)}") from exc

    def _named_policies(self) -> dict[str, AgentAlgorithm]:
        """Return the algorithms by policy name, and complete `policy_of`."""
        if set(self.agents) != set(self.agent_ids):
            raise ConfigError(
                f"assemble_agents must make one agent for each of {list(self.agent_ids)!r:.300}, got "
                f"{list(self.agents)!r:.300}"
            )
        first: dict[int, str] = {}
        policies: dict[str, AgentAlgorithm] = {}
        for name in self.agent_ids:
            algorithm = self.agents[name].algorithm
            policy = self.policy_of.setdefault(name, first.setdefault(id(algorithm), name))
            if policies.setdefault(policy, algorithm) is not algorithm:
                raise ConfigError(f"assemble_agents gave the policy {policy!r} two algorithms: share one, or rename it")
        return policies


class _StateOfEvent(StateShaper):
    def _shape(self, decision_event: Any, snapshot_list: Any) -> Any:
        return decision_event["state"] if isinstance(decision_event, dict) else decision_event.state


def _seed_of(seed: int, kind: str, name: str) -> np.random.SeedSequence:
    return np.random.SeedSequence([seed, zlib.crc32(f"{kind} {name}".encode())])


def _described(state: Any) -> str:
    if isinstance(state, Mapping):
        return "{" + ", ".join(f"{key}: {_described(part)}" for key, part in state.items()) + "}"
    found = np.asarray(state)
    return f"{found.dtype} and shape {found.shape}"


def _named(exc: Exception) -> str:
    return f"{type(exc).__name__}: {exc}"
