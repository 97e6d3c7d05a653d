"""What strangers may cost, with a clock of the test's own."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tmrl_core.networking.security import admission
from tmrl_core.networking.security.admission import Admission, AdmissionSettings, PendingConnection, network_of

ATTACKER = "192.0.2.66:5000"
FLEET = "198.51.100.7:5000"


class Door:
    """An admission, and what became of those who came."""

    def __init__(self, **changes: float) -> None:
        self.admission = Admission(AdmissionSettings(**changes))  # type: ignore[arg-type]
        self.closed: list[int] = []
        self._number = 0

    def come(self, address: str, now: float = 0.0) -> PendingConnection | str:
        number = self._number
        self._number += 1
        return self.admission.arrive(address, now, lambda reason: self.closed.append(number))

    def enter(self, address: str, now: float = 0.0) -> PendingConnection:
        pending = self.come(address, now)
        assert isinstance(pending, PendingConnection), pending
        return pending


def test_an_address_has_a_burst_and_then_its_rate() -> None:
    door = Door(max_unauthenticated=8, connections_per_s=2.0)
    for _ in range(8):
        door.admission.leave(door.enter(ATTACKER))
    assert "too many connections from that address" in str(door.come(ATTACKER))
    assert isinstance(door.come(FLEET), PendingConnection), "another address has its own"
    came = sum(isinstance(door.come(ATTACKER, now / 10), PendingConnection) for now in range(1, 21))
    assert came == 4, "two seconds at two a second"
    assert door.admission.rejected == 17


def test_peers_that_overspent_return_no_token() -> None:
    door = Door(max_unauthenticated=4, connections_per_s=1.0)
    for _ in range(4):
        door.admission.admit(door.enter(FLEET), 0.0, overspent=True)
    assert "too many connections from that address" in str(door.come(FLEET))


def test_admitted_peers_return_their_token() -> None:
    door = Door(max_unauthenticated=8, connections_per_s=0.001)
    for _ in range(1_000):
        door.admission.admit(door.enter(FLEET), 0.0)
    assert door.admission.waiting == 0


def test_many_unknown_addresses_do_not_keep_the_known_ones_out() -> None:
    door = Door(max_unauthenticated=8, connections_per_s=0.001)
    door.admission.admit(door.enter(FLEET), 0.0)
    for i in range(16):
        door.admission.leave(door.enter(f"203.0.113.{i}:1"))
    assert "too many connections from unknown addresses" in str(door.come("203.0.113.99:1"))
    assert isinstance(door.come(FLEET), PendingConnection)
    assert isinstance(door.come("127.0.0.1:9"), PendingConnection)
    assert isinstance(door.come("::1:9"), PendingConnection)


def test_an_address_is_known_for_a_day() -> None:
    door = Door(max_unauthenticated=4, connections_per_s=1e-9)
    door.admission.admit(door.enter(FLEET), 0.0)
    for i in range(8):
        door.admission.leave(door.enter(f"203.0.113.{i}:1"))
    assert isinstance(door.come(FLEET, admission.KNOWN_S - 1), PendingConnection)
    assert "too many connections from unknown addresses" in str(door.come(FLEET, admission.KNOWN_S + 1))


def test_a_peer_that_stays_keeps_its_address_known() -> None:
    door = Door(max_unauthenticated=4, connections_per_s=0.000_001)
    door.admission.admit(door.enter(FLEET), 0.0)
    door.admission.remember(network_of(FLEET), admission.KNOWN_S)
    for i in range(8):
        door.admission.leave(door.enter(f"203.0.113.{i}:1", admission.KNOWN_S))
    assert isinstance(door.come("203.0.113.9:1", admission.KNOWN_S), str)
    assert isinstance(door.come(FLEET, admission.KNOWN_S + 1), PendingConnection)


def test_at_the_limit_the_oldest_connection_of_the_busiest_address_is_closed() -> None:
    door = Door(max_unauthenticated=8)
    door.enter(FLEET)  # number 0 has waited for longest, but alone
    for _ in range(4):
        door.enter(ATTACKER, 0.1)
    for i in range(3):
        door.enter(f"203.0.113.{i}:1", 0.2)
    door.enter("203.0.113.77:1", 5.0)
    assert door.closed == [1]
    assert door.admission.waiting == 8
    assert door.admission.evicted == 1


def test_one_address_has_half_of_the_places() -> None:
    door = Door(max_unauthenticated=8)
    for _ in range(4):
        door.enter(ATTACKER)
    assert "unauthenticated connections from that address" in str(door.come(ATTACKER)), "nobody has waited for long yet"
    door.enter(FLEET)
    assert door.closed == []
    door.enter(ATTACKER, 2.0)
    assert door.closed == [0]


def test_connections_with_a_certificate_are_closed_last() -> None:
    door = Door(max_unauthenticated=4)
    first, _ = door.enter(ATTACKER), door.enter(ATTACKER)
    first.certified = True
    door.enter(ATTACKER, 2.0)
    assert door.closed == [1]


def test_a_legitimate_peer_is_admitted_during_an_attack() -> None:
    """Both behind one address: the honest one has its share of tries, and is not crowded out while it is let in."""
    source = random.Random(3)
    door = Door()
    waited: list[float] = []
    now, next_attack, next_try, wants_since = 0.0, 0.0, 5.0, 5.0
    while now < 120.0:
        now = min(next_attack, next_try)
        if now == next_attack:
            door.come("127.0.0.1:1", now)
            next_attack += source.expovariate(100.0)
            continue
        next_try = now + source.uniform(0.1, 0.5)
        pending = door.come("127.0.0.1:2", now)
        if isinstance(pending, PendingConnection):
            door.admission.admit(pending, now + 0.3)
            waited.append(now - wants_since)
            wants_since = next_try = now + 1.0
    assert len(waited) >= 20
    assert max(waited) < 15.0
    assert door.admission.waiting <= door.admission.settings.max_per_address


# -- slow refusals -----------------------------------------------------------------------------------------------------


def test_each_failure_is_answered_later_than_the_one_before() -> None:
    door = Door()
    delays = [door.admission.failed(ATTACKER, 0.0) for _ in range(12)]
    assert delays[: admission.FREE_FAILURES] == [0.0] * admission.FREE_FAILURES
    assert delays[admission.FREE_FAILURES] == admission.FIRST_DELAY_S
    grown = delays[admission.FREE_FAILURES :]
    assert all(later == min(2 * earlier, admission.MAX_DELAY_S) for earlier, later in pairwise(grown))
    assert delays[-1] == admission.MAX_DELAY_S
    assert door.admission.failed(FLEET, 0.0) == 0.0, "another address is not slowed"


def test_failures_are_forgotten() -> None:
    door = Door()
    for _ in range(1_000):
        door.admission.failed(ATTACKER, 0.0)
    assert door.admission.failed(ATTACKER, 600.0) == 0.0


def test_the_longest_delay_is_shorter_than_a_peer_waits() -> None:
    assert AdmissionSettings().greeting_s > admission.MAX_DELAY_S


# -- addresses ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("192.0.2.7:55555", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6:55555", "2001:db8:1:2::/64"),
        ("2001:db8:1:2:ffff::1:55555", "2001:db8:1:2::/64"),
        ("fe80::1%eth0:55555", "fe80::/64"),
        ("::ffff:192.0.2.7:55555", "192.0.2.7"),
        ("127.0.0.1:1", "this machine"),
        ("127.9.9.9:1", "this machine"),
        ("::1:1", "this machine"),
        ("::ffff:127.0.0.1:1", "this machine"),
        ("?", ""),
    ],
)
def test_ipv4_addresses_and_ipv6_networks_count_as_one_address(address: str, network: str) -> None:
    assert network_of(address) == network


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**32), st.integers(2, 12))
def test_the_bounds_hold_for_any_input(seed: int, places: int) -> None:
    source = random.Random(seed)
    door = Door(max_unauthenticated=places, connections_per_s=5.0)
    inside: list[PendingConnection] = []
    now = 0.0
    for _ in range(300):
        now += source.expovariate(20.0)
        action = source.random()
        if action < 0.6 or not inside:
            pending = door.come(f"203.0.113.{source.randrange(5)}:1", now)
            if isinstance(pending, PendingConnection):
                pending.certified = source.random() < 0.2
                inside.append(pending)
        elif action < 0.8:
            door.admission.admit(inside.pop(source.randrange(len(inside))), now)
        else:
            door.admission.leave(inside.pop(source.randrange(len(inside))))
        assert door.admission.waiting <= places
        assert sum(door.admission._of_network.values()) == door.admission.waiting
        assert max(door.admission._of_network.values(), default=0) <= max(1, places // 2)


def test_tables_are_bounded() -> None:
    door = Door(max_unauthenticated=1 << 20)
    for i in range(admission.MAX_ADDRESSES + 500):
        address = f"10.0.{i >> 8}.{i & 255}:1"
        door.admission.admit(door.enter(address), 0.0)
        door.admission.failed(address, 0.0)
    for table in (door.admission._buckets, door.admission._known, door.admission._failures):
        assert len(table) == admission.MAX_ADDRESSES
