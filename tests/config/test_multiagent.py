"""The section of many agents: names that exist, and settings that go with it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tmrl_core.config.loading import from_values
from tmrl_core.errors import ConfigError
from tmrl_core.multiagent import AgentParameters, MemorySettings
from tmrl_core.multiagent.settings import MultiAgentSection


def values(**sections: Any) -> dict[str, Any]:
    """Return a valid configuration of two agents with one policy; `sections` replaces whole keys of `multiagent`."""
    return {
        "environment": {"cls": "ports:Ports", "kwargs": {}},
        "worker": {"collection": "lockstep"},
        "trainer": {"lockstep": {"episodes_per_round": 2}},
        "multiagent": {
            "agents": {"north": "shared", "south": "shared"},
            "policies": {"shared": {"algorithm": "ports:make"}},
            **sections,
        },
    }


def test_a_plan_of_agents_policies_and_memories_is_read() -> None:
    config = from_values(
        values(
            policies={"shared": {"algorithm": "ports:make", "memory": "all", "parameters": {"batch_size": 8}}},
            memories={"all": {"capacity": 10}},
            exploration={"cls": "tmrl_core.multiagent:Explorer", "kwargs": {"epsilon": 0.1}},
            test_environment={"cls": "ports:Ports", "kwargs": {"hard": True}},
        )
    )
    many = MultiAgentSection.of(config)
    assert many is not None
    assert list(many.agents) == ["north", "south"]
    assert many.policies["shared"].parameters.batch_size == 8
    assert many.memories["all"].capacity == 10
    assert many.test_environment is not None
    assert many.test_environment.kwargs == {"hard": True}


def test_defaults_are_those_of_the_classes() -> None:
    config = from_values(values(memories={"all": {}}, policies={"shared": {"algorithm": "a:b", "memory": "all"}}))
    many = MultiAgentSection.of(config)
    assert many is not None
    assert AgentParameters(**msgspec.to_builtins(many.policies["shared"].parameters)) == AgentParameters()
    assert many.memories["all"] == MemorySettings()


POLICY = {"algorithm": "ports:make"}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"agents": {}}, ["multiagent.agents: found none"]),
        ({"agents": {"*th": "shared"}}, ["multiagent.agents: found the pattern '*th'", "multiagent.agent_ids"]),
        (
            {"agents": {"n*": "shared", "*h": "shared"}, "agent_ids": ["north"]},
            ["multiagent.agents: the patterns 'n*' and '*h' match the agent 'north'"],
        ),
        ({"agents": {"n*": "shared", "s*": "shared"}, "agent_ids": ["north"]}, ["the pattern 's*' matches none"]),
        (
            {"agents": {"*": "shared", "east": "shared"}, "agent_ids": ["north"]},
            ["multiagent.agents.east", "agent_ids"],
        ),
        (
            {"agent_ids": ["north", "south", "north"]},
            ["multiagent.agent_ids: found north, south, north; allowed: each"],
        ),
        ({"agents": {"north": "own"}}, ["multiagent.agents.north", "'own'", "allowed: 'shared'"]),
        ({"policies": {"shared": POLICY, "idle": POLICY}}, ["multiagent.policies.idle: no agent uses it"]),
        (
            {"policies": {"shared": {**POLICY, "memory": "al"}}, "memories": {"all": {}}},
            ["multiagent.policies.shared.memory: found 'al', allowed: 'all'", "multiagent.memories.all: no policy"],
        ),
        ({"policies": {"shared": {}}}, ["multiagent.policies.shared: set one of algorithm", "agent"]),
        ({"policies": {"shared": {**POLICY, "batch": 3}}}, ["multiagent.policies", "batch"]),
        ({"managers": "a:b"}, ["multiagent.managers", "Did you mean manager?"]),
        ({"max_episode_bytes": 0}, ["multiagent.max_episode_bytes"]),
    ],
)
def test_names_that_do_not_exist_are_refused(changes: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        from_values(values(**changes))
    assert all(word in str(caught.value) for word in words), caught.value


@pytest.mark.parametrize(
    ("section", "changes", "words"),
    [
        ("worker", {"collection": "asynchronous"}, ["worker.collection: found asynchronous", "write lockstep"]),
        ("trainer", {}, ["trainer.lockstep", "write, for example, episodes_per_round: 2"]),
        (
            "trainer",
            {
                "loop": "tmrl_core.training:TrainingLockstep",
                "lockstep": {"steps_per_round": None, "episodes_per_round": 1},
            },
            ["trainer.loop", "leave it out"],
        ),
        ("worker", {"collection": "lockstep", "record": "kept"}, ["worker.record: found 'kept'"]),
        ("worker", {"collection": "lockstep", "max_samples_per_episode": 5}, ["worker.max_samples_per_episode"]),
        ("memory", {"capacity": 5000}, ["memory: has no effect"]),
        ("agent", {"kwargs": {"gamma": 0.9}}, ["agent: has no effect"]),
    ],
)
def test_settings_of_one_agent_are_refused(section: str, changes: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        from_values({**values(), section: changes})
    assert all(word in str(caught.value) for word in words), caught.value
