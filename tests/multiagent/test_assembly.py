"""The plan of a manager: settings of memories, and contradictions."""

from __future__ import annotations

import pytest

from tests.multiagent.ring import Table
from tmrl_core.errors import ConfigError
from tmrl_core.multiagent import AgentManager, AgentParameters, Assembly, MemorySettings, PolicySettings


def policy(memory: str | None = None, **parameters: int | bool | str) -> PolicySettings:
    return PolicySettings(algorithm=Table, memory=memory, parameters=AgentParameters(**parameters))  # type: ignore[arg-type]


def test_a_memory_has_its_own_capacity_or_that_of_its_policy() -> None:
    plan = Assembly(
        agents={"a": "x", "b": "y"},
        policies={"x": policy("listed", capacity=5), "y": policy(capacity=7, overwrite="random")},
        memories={"listed": MemorySettings(capacity=11)},
    )
    agents = plan.assemble(["a", "b"])
    assert (agents["a"].experience_pool.capacity, agents["b"].experience_pool.capacity) == (11, 7)
    assert (agents["a"].experience_pool.overwrite, agents["b"].experience_pool.overwrite) == ("rolling", "random")
    assert agents["a"].params.capacity == 5


def test_only_the_wanted_agents_and_their_policies_are_made() -> None:
    made = []

    def make() -> Table:
        made.append(1)
        return Table()

    policies = {name: PolicySettings(algorithm=make) for name in ("x", "y")}
    agents = Assembly(agents={"a": "x", "b": "y"}, policies=policies).assemble(["b"])
    assert list(agents) == ["b"]
    assert len(made) == 1


def test_an_agent_needs_a_policy_and_a_policy_settings() -> None:
    with pytest.raises(ConfigError, match=r"agents use the policies \['y'\], which policies does not list: \['x'\]"):
        Assembly(agents={"a": "x", "b": "y"}, policies={"x": policy()})
    with pytest.raises(ConfigError, match=r"agents names no policy for \['b'\]; it has \['a'\]"):
        Assembly(agents={"a": "x"}, policies={"x": policy()}).assemble(["a", "b"])


def test_an_algorithm_in_place_of_a_function_is_refused() -> None:
    made = policy().algorithm()
    with pytest.raises(ConfigError, match=r"algorithm: found .*, allowed: a function that makes the algorithm"):
        PolicySettings(algorithm=made)  # type: ignore[arg-type]


def test_a_memory_that_no_policy_uses_is_a_mistake() -> None:
    with pytest.raises(ConfigError, match=r"memories \['shard'\] have no policy; the policies use \['shared'\]"):
        Assembly(agents={"a": "x"}, policies={"x": policy("shared")}, memories={"shard": MemorySettings(capacity=9)})


def test_policies_that_share_an_unlisted_memory_must_agree_on_it() -> None:
    with pytest.raises(ConfigError, match=r"the memory 'm' is shared by \['x', 'y'\], whose parameters differ"):
        Assembly(agents={"a": "x"}, policies={"x": policy("m", capacity=5), "y": policy("m", capacity=6)})


def test_an_on_policy_policy_shares_no_memory() -> None:
    with pytest.raises(ConfigError, match="an on-policy one clears it after training"):
        Assembly(agents={"a": "x"}, policies={"x": policy("m", on_policy=True), "y": policy("m")})


def test_agents_that_a_pattern_names_share_a_policy() -> None:
    ids = ["port_1", "port_2", "ship"]
    plan = Assembly(agents={"port_*": "x", "ship": "y"}, policies={"x": policy(), "y": policy()})
    manager = AgentManager("training", ids, config=plan)
    assert manager.policy_of == {"port_1": "x", "port_2": "x", "ship": "y"}
    assert manager.agents["port_1"].algorithm is manager.agents["port_2"].algorithm
    with pytest.raises(ConfigError, match=r"the pattern 'port_\*' matches none of the agents \['ship'\]"):
        plan.assemble(["ship"])
