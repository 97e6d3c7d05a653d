"""Addresses of several Servers: their forms, and the one that a worker belongs to."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tmrl_core.config import load
from tmrl_core.config.checks import check_values
from tmrl_core.config.endpoints import (
    Endpoint,
    chosen_endpoint,
    endpoint_of,
    only_endpoint,
)
from tmrl_core.config.sections import Config, NetworkSection, ServerSection
from tmrl_core.errors import ConfigError

NAMES = [f"robot-{number}" for number in range(9_000)]


def servers(count: int) -> list[Endpoint]:
    return [Endpoint(f"relay{number}.example.org", 55555) for number in range(count)]


@pytest.mark.parametrize("count", [2, 3, 8, 20])
def test_workers_are_balanced(count: int) -> None:
    each = Counter(chosen_endpoint(name, servers(count)) for name in NAMES)
    mean = len(NAMES) / count
    assert len(each) == count
    # Four standard deviations of a fair choice.
    assert all(abs(number - mean) < 4 * mean**0.5 for number in each.values())


def test_an_added_server_takes_its_share_and_moves_no_other_worker() -> None:
    before, after = servers(3), servers(4)
    moved = [(chosen_endpoint(name, before), chosen_endpoint(name, after)) for name in NAMES]
    changed = [new for old, new in moved if old != new]
    assert set(changed) == {after[3]}
    assert abs(len(changed) - len(NAMES) / 4) < 4 * (len(NAMES) / 4) ** 0.5


def test_a_removed_server_gives_away_its_own_workers_only() -> None:
    before = servers(4)
    after = before[:1] + before[2:]
    assert all(
        chosen_endpoint(name, after) == chosen_endpoint(name, before)
        for name in NAMES[:2_000]
        if chosen_endpoint(name, before) != before[1]
    )


def test_the_order_of_the_list_and_the_machine_do_not_matter() -> None:
    assert [chosen_endpoint(name, servers(5)) for name in NAMES[:100]] == [
        chosen_endpoint(name, servers(5)[::-1]) for name in NAMES[:100]
    ]
    # Part of what a release promises: a worker that is updated keeps its Server.
    found = "".join(str(servers(3).index(chosen_endpoint(name, servers(3)))) for name in NAMES[:24])
    assert found == "001022021012120212112110"


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("relay1.example.org:55555", "relay1.example.org", 55555),
        ("Relay1.Example.org:1", "relay1.example.org", 1),
        ("10.0.0.7:65535", "10.0.0.7", 65535),
        ("[2001:db8::1]:55556", "2001:db8::1", 55556),
    ],
)
def test_an_endpoint_has_a_host_and_a_port(text: str, host: str, port: int) -> None:
    found = endpoint_of(text)
    assert found == Endpoint(host, port)
    assert endpoint_of(str(found)) == found


@pytest.mark.parametrize(
    "text", ["relay1", "relay1:", ":55555", "relay1:0", "relay1:65536", "https://relay1:1", "2001:db8::1:5", "a b:1"]
)
def test_other_forms_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"server\.endpoints: found .* allowed: host:port"):
        endpoint_of(text)
    with pytest.raises(ConfigError, match=r"allowed: host:port"):
        check_values(Config(server=ServerSection(endpoints=(text,))))


def test_lists_that_mean_nothing_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"a:1 is listed 2 times"):
        check_values(Config(server=ServerSection(endpoints=("a:1", "b:1", "A:1"))))
    with pytest.raises(ConfigError, match=r"several Servers need network.transport: tls, and it is local"):
        check_values(Config(server=ServerSection(endpoints=("a:1",)), network=NetworkSection(transport="local")))
    with pytest.raises(ConfigError, match=r"server\.endpoints: 'relay1' is not this machine, and network.security"):
        check_values(Config(server=ServerSection(endpoints=("relay1:1",)), network=NetworkSection(security=None)))


def test_one_process_has_one_server() -> None:
    assert only_endpoint(Config()) == Endpoint("127.0.0.1", 55555)
    assert only_endpoint(Config(server=ServerSection(endpoints=("x:7",)))) == Endpoint("x", 7)
    with pytest.raises(ConfigError, match=r"found 2 Servers.*torchrun --nproc-per-node 2 -m tmrl_core --trainer"):
        only_endpoint(Config(server=ServerSection(endpoints=("x:7", "y:7"))))


def test_a_server_for_other_machines_listens_to_them() -> None:
    assert ServerSection(endpoints=("127.0.0.1:1", "[::1]:2")).bind_address == "127.0.0.1"
    assert ServerSection(endpoints=("127.0.0.1:1", "relay2:1")).bind_address == "0.0.0.0"
    assert ServerSection(host="relay").bind_address == "0.0.0.0"
    assert ServerSection(host="2001:db8::1").bind_address == "::"


def test_a_file_may_list_them(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text('server: {endpoints: ["one:1", "two:2"]}\n')
    assert load(file).server.endpoints == ("one:1", "two:2")
