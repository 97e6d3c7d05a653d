from __future__ import annotations

import re

from tmrl_core.errors import NetworkError
from tmrl_core.networking.protocol.connection import Identity
from tmrl_core.networking.protocol.messages import Bye, Control, Hello, Role, control_frame
from tmrl_core.networking.relay import MemorySpool, Relay, RelayConnection
from tmrl_core.networking.relay.membership_log import SINGLE_LINES, SUMMARY_S
from tmrl_core.rate_limited_log import LINES_AT_ONCE

NOW = 1_000.0


class House:
    """A relay whose lines are kept."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.relay = Relay(say=self.said.append)

    def admit(
        self, name: str = "arm", role: Role = "worker", peer: bytes = b"p" * 16, certificate: str | None = "robot7"
    ) -> RelayConnection:
        connection = self.relay.connection()
        of = role if certificate else None
        connection.connected(Identity("192.0.2.7:1234", of, certificate), NOW)
        hear(connection, Hello((1,), role, "", "pendulum", name, peer))
        return connection


def hear(connection: RelayConnection, message: Control, now: float = NOW) -> None:
    frame = control_frame(message)
    view = connection.get_buffer()
    view[: len(frame)] = frame
    connection.received(len(frame), now)


def test_the_membership_log_names_peer_certificate_and_address() -> None:
    house = House()
    connection = house.admit()
    assert house.said == ["worker arm (robot7's certificate, 192.0.2.7:1234) joined, run 'pendulum'"]
    hear(connection, Bye(), NOW + 65)
    connection.lost(None, NOW + 66)
    assert house.said[1:] == ["worker arm (robot7's certificate, 192.0.2.7:1234) left after 65 s: in order"]


def test_the_reason_of_a_lost_link_is_logged() -> None:
    house = House()
    trainer = house.admit("hpc", "trainer", certificate=None)
    trainer.tick(NOW + 11)
    assert house.said[-1] == ("trainer hpc (192.0.2.7:1234) left after 11 s: no data came from the other side for 10 s")
    house.admit(peer=b"q" * 16).lost(NetworkError("the cable broke."), NOW)
    assert house.said[-1].endswith("left after 0 s: the cable broke")
    older = house.admit(peer=b"r" * 16)
    house.admit(peer=b"r" * 16)
    assert house.said[-2].endswith("the same worker has connected again")
    assert older.closing


def test_the_duration_of_an_idle_link_is_logged() -> None:
    house = House()
    house.admit().refuse("certificate", "its certificate was revoked.", NOW + 42)
    assert house.said[-1].endswith("left after 42 s: its certificate was revoked")


def test_the_servers_shutdown_is_logged_as_such() -> None:
    house = House()
    connection = house.admit()
    connection.close()
    connection.lost(None, NOW)
    assert house.said[-1].endswith("this Server ends")


def test_a_refused_peer_is_not_logged_as_joined() -> None:
    house = House()
    house.admit("one", "trainer")
    house.admit("two", "trainer", b"q" * 16)
    assert len(house.said) == 1


def test_a_name_cannot_forge_a_line() -> None:
    house = House()
    house.admit("arm\n12:00:00 ERROR all is lost")
    assert "\n" not in house.said[0]


def test_many_that_join_are_counted() -> None:
    house = House()
    fleet = [house.admit(f"w{number}", peer=number.to_bytes(16, "big"), certificate=None) for number in range(1000)]
    assert len(house.said) == SINGLE_LINES
    fleet[0].tick(NOW + SUMMARY_S)
    assert house.said[SINGLE_LINES:] == ["workers with their role's token: 980 more joined"]
    fleet[0].tick(NOW + 2 * SUMMARY_S)
    fleet[1].lost(None, NOW + 60)
    assert house.said[SINGLE_LINES + 1 :] == ["worker w1 (192.0.2.7:1234) left after 60 s: in order"]


def test_endless_reconnections_do_not_fill_the_log() -> None:
    house = House()
    for number in range(5000):
        house.admit().lost(None, NOW + number / 1000)
    assert len(house.said) <= SINGLE_LINES + 1 + 5 / SUMMARY_S
    house.relay.membership_log.summarize()
    counted = re.findall("[0-9]+ more joined, ([0-9]+) more left", " ".join(house.said))
    assert sum(map(int, counted)) >= 5000 - SINGLE_LINES


def test_endless_reconnections_hide_no_lines_about_others() -> None:
    house = House()
    for _ in range(500):
        wolf = house.admit(certificate="wolf")
        wolf.lost(None, NOW)
    house.admit(peer=b"q" * 16).lost(None, NOW)
    assert [line.split(" (")[0] for line in house.said[-2:]] == ["worker arm", "worker arm"]
    assert all("robot7's certificate" in line for line in house.said[-2:])
    house.relay.membership_log.slowed(wolf)
    assert "is read slowly" in house.said[-1]


def test_links_that_replace_idle_ones_do_not_fill_the_log() -> None:
    house = House()
    for number in range(2000):
        connection = house.relay.connection()
        connection.connected(Identity("192.0.2.7:1234", "worker", "robot7"), NOW)
        hear(connection, Hello((1,), "worker", "", "pendulum", "arm", b"p" * 16), NOW + number % 2)
    assert len(house.said) <= SINGLE_LINES + 1


def test_endless_handoffs_do_not_fill_the_log() -> None:
    said: list[str] = []
    now = [NOW]
    relay = Relay(spool=MemorySpool(1 << 20), say=said.append, wall_clock=lambda: now[0])
    for i in range(2 * LINES_AT_ONCE):
        relay.spool_handoff.say(f"worker {i} has handed over 1 sample")
    assert len(said) == LINES_AT_ONCE
    now[0] += 2.0
    relay.spool_handoff.say("a trainer has come")
    assert said[-1].startswith("a trainer has come")
    assert f"{LINES_AT_ONCE} that were about the spool" in said[-1]
