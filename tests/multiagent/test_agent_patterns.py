"""Policies of agents by id and by pattern."""

from __future__ import annotations

import pytest

from tmrl_core.errors import ConfigError
from tmrl_core.multiagent.agent_patterns import policy_by_agent

PORTS = [f"port_{number}" for number in range(1, 9)]


def test_patterns_name_the_agents_that_no_entry_names_itself() -> None:
    agents = {"port_*": "rest", "port_3": "third", "ship": "ship"}
    found = policy_by_agent(agents, [*PORTS, "ship"])
    assert list(found) == [*PORTS, "ship"]
    assert found.pop("port_3") == "third"
    assert found.pop("ship") == "ship"
    assert set(found.values()) == {"rest"}


@pytest.mark.parametrize(
    ("pattern", "matching"), [("port_[1-6]", PORTS[:6]), ("port_[!1-6]", PORTS[6:]), ("?ort_8", PORTS[7:])]
)
def test_patterns_are_those_of_file_names(pattern: str, matching: list[str]) -> None:
    others = {port: "other" for port in PORTS if port not in matching}
    found = policy_by_agent({pattern: "policy", **others}, PORTS)
    assert [port for port, policy in found.items() if policy == "policy"] == matching


def test_an_id_with_the_characters_of_a_pattern_is_an_id() -> None:
    assert policy_by_agent({"port[1]": "x", "port*": "y"}, ["port[1]", "port2"]) == {"port[1]": "x", "port2": "y"}


@pytest.mark.parametrize(
    ("agents", "message"),
    [
        ({"port_*": "x", "ship_*": "y"}, r"the pattern 'ship_\*' matches none of the agents \['port_1', 'port_2'"),
        ({"port_*": "x", "port_[1-6]": "x"}, r"'port_\*' and 'port_\[1-6\]' match the agent 'port_1'. Change one"),
        ({"port_[1-6]": "x"}, r"agents names no policy for \['port_7', 'port_8'\]; it has \['port_\[1-6\]'\]"),
        ({"PORT_*": "x"}, "agents names no policy"),
    ],
)
def test_unclear_patterns_are_refused(agents: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        policy_by_agent(agents, PORTS)


def test_a_pattern_whose_agents_all_have_an_entry_is_used() -> None:
    """It matches, so it is no misspelling."""
    assert policy_by_agent({"a": "x", "*": "y"}, ["a"]) == {"a": "x"}
