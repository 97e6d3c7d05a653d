"""The plan of a manager: which agents share a policy, and which policies share a memory.

Sharing is by name: the same name is the same object.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from tmrl_core.errors import ConfigError
from tmrl_core.multiagent.agent import Agent
from tmrl_core.multiagent.agent_algorithm import AgentAlgorithm
from tmrl_core.multiagent.agent_patterns import policy_by_agent
from tmrl_core.multiagent.settings import AgentParameters, MemorySettings
from tmrl_core.multiagent.store import SimpleStore


@dataclass(frozen=True, kw_only=True, slots=True)
class PolicySettings:
    """A policy that agents may share.

    Args:
        algorithm: makes the algorithm. Each manager calls it once.
        memory: the memory's name; None: a memory with the policy's name.
        parameters: storage, sampling and training strategy of its agents.

    Raises:
        ConfigError: `algorithm` is an algorithm and no function.
    """

    algorithm: Callable[[], AgentAlgorithm]
    memory: str | None = None
    parameters: AgentParameters = field(default_factory=AgentParameters)

    def __post_init__(self) -> None:
        """Refuse an algorithm in place of a function: the managers of actor and learner would share it."""
        if not callable(self.algorithm):
            raise ConfigError(
                f"algorithm: found {self.algorithm!r:.100}, allowed: a function that makes the algorithm, without "
                "parentheses behind its name"
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class Assembly:
    """Agents, their policies and memories.

    Args:
        agents: policy name by agent id, or by a pattern of ids such as `port_*` or `port_[1-6]`. An id itself counts
            before patterns.
        policies: settings by policy name.
        memories: settings by memory name. A memory that is not listed has the capacity of its policies' parameters.

    Raises:
        ConfigError: a name has no settings, a memory has no policy, policies contradict each other about an unlisted
            memory, or an on-policy policy shares its memory.
    """

    agents: Mapping[str, str]
    policies: Mapping[str, PolicySettings]
    memories: Mapping[str, MemorySettings] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse contradictions."""
        if missing := sorted(set(self.agents.values()) - self.policies.keys()):
            raise ConfigError(f"agents use the policies {missing}, which policies does not list: {list(self.policies)}")
        users: dict[str, list[str]] = {}
        for name in self.policies:
            users.setdefault(self.memory_of(name), []).append(name)
        if unused := sorted(self.memories.keys() - users.keys()):
            raise ConfigError(f"memories {unused} have no policy; the policies use {list(users)}")
        for memory, names in users.items():
            parameters = [self.policies[name].parameters for name in names]
            if len(names) > 1 and any(one.on_policy for one in parameters):
                raise ConfigError(
                    f"the memory {memory!r} is shared by {names}, and an on-policy one clears it after training. "
                    "Give each on-policy policy its own memory"
                )
            if memory not in self.memories and len({(one.capacity, one.overwrite) for one in parameters}) > 1:
                raise ConfigError(
                    f"the memory {memory!r} is shared by {names}, whose parameters differ in capacity or overwrite. "
                    "List it in memories"
                )

    def memory_of(self, policy: str) -> str:
        """Return the name of a policy's memory."""
        return self.policies[policy].memory or policy

    def policies_of(self, agent_ids: Sequence[str]) -> dict[str, str]:
        """Return the policy name of each agent.

        Raises:
            ConfigError: an agent has no policy, two patterns match it, or a pattern matches no agent.
        """
        return policy_by_agent(self.agents, agent_ids)

    def assemble(self, agent_ids: Sequence[str]) -> dict[str, Agent]:
        """Make the agents. Agents of one policy share its algorithm; policies of one memory share its pool.

        Raises:
            ConfigError: as for `policies_of`.
        """
        algorithms: dict[str, AgentAlgorithm] = {}
        pools: dict[str, SimpleStore] = {}
        agents = {}
        for agent, name in self.policies_of(agent_ids).items():
            policy, memory = self.policies[name], self.memory_of(name)
            if name not in algorithms:
                algorithms[name] = policy.algorithm()
            if memory not in pools:
                settings = self.memories.get(memory, policy.parameters)
                pools[memory] = SimpleStore(settings.capacity, settings.overwrite)
            agents[agent] = Agent(agent, algorithms[name], pools[memory], policy.parameters)
        return agents
