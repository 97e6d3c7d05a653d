"""Policies of agents by id, where `multiagent.agents` may name many agents by a pattern such as `port_*`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

from tmrl_core.errors import ConfigError


def policy_by_agent(agents: Mapping[str, str], agent_ids: Sequence[str]) -> dict[str, str]:
    """Return the policy of each agent.

    An entry with the id itself counts first, then the pattern that matches it: `*` is any text, `?` one character,
    `[1-6]` one of those.

    Args:
        agents: policy by id or pattern.
        agent_ids: ids of the agents.

    Raises:
        ConfigError: an agent has no policy, two patterns match it, or a pattern matches no agent.
    """
    patterns = [name for name in agents if name not in agent_ids and is_pattern(name)]
    matching = {agent: [name for name in patterns if fnmatchcase(agent, name)] for agent in agent_ids}
    found = {}
    for agent, names in matching.items():
        if len(names) > 1 and agent not in agents:
            raise ConfigError(
                f"agents: the patterns {names[0]!r} and {names[1]!r} match the agent {agent!r}. Change one of them, or "
                f"add {agent!r} itself"
            )
        if name := agent if agent in agents else next(iter(names), None):
            found[agent] = agents[name]
    if missing := [agent for agent in agent_ids if agent not in found]:
        raise ConfigError(f"agents names no policy for {missing}; it has {list(agents)!r:.300}")
    for name in patterns:
        if not any(name in names for names in matching.values()):
            raise ConfigError(f"agents: the pattern {name!r} matches none of the agents {list(agent_ids)!r:.300}")
    return found


def is_pattern(name: str) -> bool:
    """Return True if a name matches others than itself."""
    return any(character in name for character in "*?[")
