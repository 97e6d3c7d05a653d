"""Agents of the mode `advice`, as the configuration describes them."""

from __future__ import annotations

from functools import partial
from typing import Any

import gymnasium
import msgspec

from tmrl_core.config import Config, environment_maker
from tmrl_core.config.algorithms import Algorithm, algorithm_of, algorithms
from tmrl_core.config.sections import MemorySection, WorkerSection
from tmrl_core.errors import ConfigError
from tmrl_core.gateway.advice.agent import AdviceAgent, MakeLearner
from tmrl_core.gateway.advice.learner import Learner
from tmrl_core.gateway.settings import GatewayAgentSection, gateway_section
from tmrl_core.gateway.shepherd import client_spaces
from tmrl_core.roles.training_object import agent_from_config


def advice_agent(config: Config, name: str) -> AdviceAgent:
    """Return an agent of `gateway.agents`.

    Raises:
        ConfigError: its settings do not go together.
    """
    settings = gateway_section(config).agents[name]
    try:
        observation_space, action_space = _spaces(config, settings)
        return AdviceAgent(
            name,
            settings,
            observation_space,
            action_space,
            _learners(config, settings),
            config.run_folder / "gateway" / name / "saves",
            seed=config.run.seed,
            max_bad_updates=config.trainer.max_bad_updates,
        )
    except ConfigError as exc:
        raise ConfigError(f"gateway.agents.{name}: {exc}") from exc


def _spaces(config: Config, settings: GatewayAgentSection) -> tuple[gymnasium.Space[Any], gymnasium.Space[Any]]:
    given = (settings.observation_space, settings.action_space, settings.env_id)
    if any(value is not None for value in given):
        return client_spaces(*given)
    environment = config.environment
    env = environment_maker(environment.cls, environment.kwargs, environment.drop)()
    env.close()
    return env.observation_space, env.action_space


def _learns_from_sessions(algorithm: Algorithm) -> bool:
    return "asynchronous" in algorithm.collection and "ReplayMemory" in algorithm.memories


def _learners(config: Config, settings: GatewayAgentSection) -> MakeLearner:
    own = msgspec.structs.replace(
        config,
        actor=settings.actor or config.actor,
        agent=settings.agent or config.agent,
        # The sessions' own: those of the run's Trainer may be for another algorithm.
        memory=MemorySection(),
        worker=WorkerSection(),
    )
    algorithm = algorithm_of(own.agent.cls)
    if algorithm is None or not _learns_from_sessions(algorithm):
        fitting = ", ".join(name for name, row in algorithms().items() if _learns_from_sessions(row))
        raise ConfigError(
            f"agent.cls is {own.agent.cls}; sessions with advice learn with one of {fitting} (tmrl_core.training). "
            "They act with a product of several policies, and learn from single transitions in a ReplayMemory; PPO "
            "learns only from rounds of its own policy, and recurrent agents from sequences."
        )
    # The updates of many learners share the cores, so none is worth a compilation of half a minute.
    own = msgspec.structs.replace(
        own, agent=msgspec.structs.replace(own.agent, kwargs={"compile": False, **own.agent.kwargs})
    )
    return partial(Learner, make_agent=agent_from_config(own))
