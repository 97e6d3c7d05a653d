"""Declaration of the samples that a memory will get, from the environment's spaces and the agent's policy."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from tmrl_core.actor.module import ActorModule
from tmrl_core.errors import ConfigError
from tmrl_core.training.contracts import AgentLike, TrainingMemory
from tmrl_core.training.memories.sample_schema import WHAT, DeclaredSamples
from tmrl_core.training.value_types import Space, Tree


def expect(
    memory: TrainingMemory, agent: AgentLike, declared_spaces: tuple[Space, Space], what: Collection[str]
) -> None:
    """Make a memory refuse samples that differ from the declaration, if it supports that.

    Args:
        memory: memory whose `expect` is called.
        agent: agent whose policy workers act with.
        declared_spaces: spaces of observations and actions.
        what: members of `WHAT`; empty: the memory stays unchanged.

    Raises:
        ConfigError: `what` names something else.
    """
    odd = set(what) - WHAT
    if odd:
        raise ConfigError(f"declared: found {', '.join(sorted(odd))}, allowed: {', '.join(sorted(WHAT))}")
    if what:
        # A policy without a declaration of extras may still produce some.
        extras: Mapping[str, Tree] = {}
        if "extras" in what:
            actor = agent.get_actor()
            extras = actor.reset_extras() if isinstance(actor, ActorModule) else {}
        memory.expect(DeclaredSamples(*declared_spaces, what, extras or None))
