"""The plan of a manager: which agents share a policy, and which policies share a memory.

Sharing is by name: the same name is the same object.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from tmrl_core.errors import ConfigError
from tmrl_core.multiagent.agent import Agent, AgentParameters
from tmrl_core.multiagent.algorithm import AgentAlgorithm
from tmrl_core.multiagent.store import SimpleStore


@dataclass(frozen=True, kw_only=True, slots=True)
class MemorySettings:
    """A memory that policies may share.

    Args:
        capacity: experiences that it holds at most.
        overwrite: replaced experiences once it is full: the oldest, or random ones.
    """

    capacity: int = 100_000
    overwrite: Literal["rolling", "random"] = "rolling"


@dataclass(frozen=True, kw_only=True, slots=True)
class PolicySettings:
    """A policy that agents may share.

    Args:
        algorithm: makes the algorithm. Each manager calls it once.
        memory: the memory's name; None: a memory of its own, under the policy's name.
        parameters: storage, sampling and training strategy of its agents.
    """

    algorithm: Callable[[], AgentAlgorithm]
    memory: str | None = None
    parameters: AgentParameters = field(default_factory=AgentParameters)


@dataclass(frozen=True, kw_only=True, slots=True)
class Assembly:
    """Agents, their policies and memories.

    Args:
        agents: policy name by agent id.
        policies: settings by policy name.
        memories: settings by memory name; a memory that is not listed takes its policies' parameters.
    """

    agents: Mapping[str, str]
    policies: Mapping[str, PolicySettings]
    memories: Mapping[str, MemorySettings] = field(default_factory=dict)

    def assemble(self, agent_ids: Iterable[str]) -> dict[str, Agent]:
        """Make the agents. Agents of one policy share its algorithm, policies of one memory share its pool."""
        ids = list(agent_ids)
        if missing := [agent for agent in ids if agent not in self.agents]:
            raise ConfigError(f"agents name no policy for {missing}; they name {sorted(self.agents)}")
        names = dict.fromkeys(self.agents[agent] for agent in ids)
        if missing := [name for name in names if name not in self.policies]:
            raise ConfigError(f"policies {missing} have no settings; settings are given for {sorted(self.policies)}")
        algorithms = {name: self.policies[name].algorithm() for name in names}
        pools: dict[str, SimpleStore] = {}
        agents = {}
        for agent in ids:
            name = self.agents[agent]
            policy = self.policies[name]
            memory = policy.memory or name
            if memory not in pools:
                settings = self.memories.get(memory) or policy.parameters
                pools[memory] = SimpleStore(settings.capacity, settings.overwrite)
            agents[agent] = Agent(agent, algorithms[name], pools[memory], policy.parameters)
        return agents
