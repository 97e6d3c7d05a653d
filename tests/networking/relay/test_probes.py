"""Versions of the protocol, and peers that only ask: they are judged as others are, take no place, and are bounded."""

from __future__ import annotations

import msgspec
import pytest

from tmrl_core.networking.observer import ObserverConnection, ObserverState
from tmrl_core.networking.protocol.client import ClientState
from tmrl_core.networking.protocol.connection import Connection, Identity
from tmrl_core.networking.protocol.framing import HEADER, FrameReader, Kind
from tmrl_core.networking.protocol.messages import (
    MAX_BODY_BYTES,
    PROTOCOL_VERSION,
    Control,
    Diagnosis,
    Echo,
    Hello,
    OpenStream,
    Probe,
    Refused,
    Role,
    Welcome,
    control_frame,
    decode_control,
)
from tmrl_core.networking.relay import Relay, RelayConnection, RelaySettings
from tmrl_core.networking.relay.probes import ALL_BYTES, ECHO_BYTES, LINK_BYTES, MAX_PROBES, PROBE_S, REFILL_BYTES_S
from tmrl_core.networking.trainer import TrainerConnection, TrainerState
from tmrl_core.networking.worker import WorkerConnection, WorkerState

SOMEWHERE = Identity("somewhere:1")
PROBE = Probe((1,), "worker", "", "run")


def feed(connection: Connection, data: bytes, now: float = 0.0) -> None:
    while data and not connection.closing:
        view = connection.get_buffer()
        n = min(len(view), len(data))
        view[:n] = data[:n]
        data = data[n:]
        connection.received(n, now)


def heard(connection: Connection, now: float = 0.0) -> list[Control]:
    """What has left a connection: whole control messages."""
    reader = FrameReader()
    messages: list[Control] = []
    while buffers := connection.to_send(now):
        for buffer in buffers:
            rest = bytes(buffer)
            while rest:
                view = reader.get_buffer()
                n = min(len(view), len(rest))
                view[:n] = rest[:n]
                rest = rest[n:]
                frames = reader.received(n)
                messages += [decode_control(frame.payload) for frame in frames if frame.kind == Kind.CONTROL]
    return messages


def linked(relay: Relay, *messages: Control, now: float = 0.0, identity: Identity = SOMEWHERE) -> RelayConnection:
    connection = relay.connection()
    connection.connected(identity, now)
    for message in messages:
        feed(connection, control_frame(message), now)
    return connection


# -- versions ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("versions", [(1,), (1, 2), (2, 1)])
def test_a_peer_that_offers_our_version_is_answered_in_it(versions: tuple[int, ...]) -> None:
    for hello in (Hello(versions, "worker", "", "run", "w", b"w" * 16), Probe(versions, "worker", "", "run")):
        first = heard(linked(Relay(), hello))[0]
        assert isinstance(first, Welcome | Diagnosis)
        assert first.version == PROTOCOL_VERSION


@pytest.mark.parametrize(
    ("versions", "older"),
    [((2, 3), "the Server's is the older"), ((0,), "the peer's is the older"), ((), "the peer's")],
)
def test_a_refusal_names_both_sides_versions(versions: tuple[int, ...], older: str) -> None:
    for hello in (Hello(versions, "trainer", "", "run", "", b"t" * 16), Probe(versions, "worker", "", "run")):
        (said,) = heard(linked(Relay(), hello))
        assert isinstance(said, Refused)
        assert said.code == "protocol"
        assert f"version {PROTOCOL_VERSION}, the peer {', '.join(map(str, versions)) or 'none'}" in said.reason
        assert older in said.reason


def test_a_hello_of_a_newer_version_is_refused_for_its_version() -> None:
    payload = msgspec.msgpack.encode(["hello", [7, 8], {"role": "conductor"}, 3.5])
    connection = linked(Relay())
    feed(connection, HEADER.pack(len(payload), Kind.CONTROL, 0, 0, 0) + payload)
    (said,) = heard(connection)
    assert isinstance(said, Refused)
    assert said.code == "protocol"
    assert "7, 8" in said.reason


def test_a_broken_hello_of_our_version_is_misuse() -> None:
    payload = msgspec.msgpack.encode(["hello", [1], {"role": "conductor"}, 3.5])
    connection = linked(Relay())
    feed(connection, HEADER.pack(len(payload), Kind.CONTROL, 0, 0, 0) + payload)
    (said,) = heard(connection)
    assert isinstance(said, Refused)
    assert said.code == "misuse"


def clients() -> list[tuple[Connection, ClientState]]:
    worker = WorkerState(run="run", name="w", peer=b"w" * 16)
    trainer = TrainerState(run="run", name="t", peer=b"t" * 16, inbox_bytes=1 << 20)
    observer = ObserverState(run="run", name="o", peer=b"o" * 16)
    return [
        (WorkerConnection(worker, silent_s=10, heartbeat_s=3), worker),
        (TrainerConnection(trainer, silent_s=10, heartbeat_s=3), trainer),
        (ObserverConnection(observer, silent_s=10, heartbeat_s=3), observer),
    ]


def test_clients_refuse_a_version_that_they_did_not_offer() -> None:
    for connection, _ in clients():
        connection.connected(Identity("server"), 0.0)
        feed(connection, control_frame(Welcome(9, 1, 1, 1, 1, 3.0)))
        assert connection.closing
        assert "protocol version 9, this side speaks [1]" in str(connection.reason)


# -- who only asks -----------------------------------------------------------------------------------------------------


def test_a_probe_reports_the_state_and_occupies_no_place() -> None:
    relay = Relay(RelaySettings(max_workers=1), wall_clock=lambda: 1234.5)
    trainer = linked(relay, Hello((1,), "trainer", "", "mine", "hpc", b"t" * 16))
    worker = linked(relay, Hello((1,), "worker", "", "mine", "w", b"w" * 16), OpenStream(0, b"s" * 16, "w"))
    heard(trainer)
    heard(worker)
    roles: list[tuple[Role, str]] = [
        ("worker", "takes 1 workers (server.max_workers) and has them"),
        ("trainer", "already has a trainer (hpc of run 'mine', at somewhere:1)"),
    ]
    for role, words in roles:
        (told,) = heard(linked(relay, Probe((1,), role, "", "mine")))
        assert isinstance(told, Diagnosis)
        assert words in told.no_place
        assert told == Diagnosis(1, (1,), 1234.5, told.no_place, True, "mine", LINK_BYTES)
    assert relay.trainer is trainer
    assert list(relay.workers.values()) == [worker]
    assert list(relay.streams) == [b"s" * 16]
    assert heard(trainer) == heard(worker) == []
    assert relay.refused_peers == relay.protocol_errors == 0


def test_a_probe_is_authenticated_like_a_hello() -> None:
    asked: list[Hello] = []

    def authenticate(hello: Hello, connection: Connection) -> tuple[str, str] | None:
        asked.append(hello)
        return None if hello.token == "right" else ("token", "not the token")

    relay = Relay(authenticate=authenticate)
    assert heard(linked(relay, Probe((1,), "trainer", "wrong", "run"))) == [Refused("token", "not the token")]
    assert isinstance(heard(linked(relay, Probe((1,), "trainer", "right", "run")))[0], Diagnosis)
    assert [(hello.role, hello.token) for hello in asked] == [("trainer", "wrong"), ("trainer", "right")]
    assert relay.refused_peers == 1


def test_the_token_is_in_no_repr() -> None:
    assert "secret" not in repr(Probe((1,), "worker", "secret", "run"))


def test_echoes_return_in_order_with_the_requested_size() -> None:
    connection = linked(Relay(), PROBE, Echo(1), Echo(2, 10), Echo(3, MAX_BODY_BYTES, b"x" * MAX_BODY_BYTES))
    assert heard(connection)[1:] == [Echo(1), Echo(2, 0, bytes(10)), Echo(3, 0, bytes(MAX_BODY_BYTES))]


@pytest.mark.parametrize("up", [True, False])
def test_measurements_stay_within_the_allowance(up: bool) -> None:
    connection = linked(Relay(), PROBE)
    heard(connection)
    echo = Echo(1, 0, bytes(MAX_BODY_BYTES)) if up else Echo(1, MAX_BODY_BYTES)
    for _ in range(LINK_BYTES // (MAX_BODY_BYTES + ECHO_BYTES)):
        feed(connection, control_frame(echo))
        assert len(heard(connection)) == 1
    feed(connection, control_frame(echo))
    said = heard(connection)[-1]
    assert isinstance(said, Refused)
    assert said.reason == "the probe exceeded its allowance"


def test_unread_answers_are_bounded() -> None:
    connection = linked(Relay(), PROBE, *[Echo(i, 1000) for i in range(65)])
    said = heard(connection)[-1]
    assert isinstance(said, Refused)
    assert "at most 64 echoes" in said.reason


def test_simultaneous_probes_are_limited_and_places_are_released() -> None:
    relay = Relay()
    links = [linked(relay, PROBE) for _ in range(MAX_PROBES)]
    (said,) = heard(linked(relay, PROBE))
    assert isinstance(said, Refused)
    assert said.code == "full"
    links[0].lost(None, 1.0)
    links[0].lost(None, 1.0)
    assert len(relay.probes.places) == MAX_PROBES - 1
    assert isinstance(heard(linked(relay, PROBE))[0], Diagnosis)


def test_a_certificate_that_probes_all_the_time_keeps_nobody_out() -> None:
    relay = Relay()
    wolf, dog = (Identity("somewhere:1", "worker", name) for name in ("wolf", "dog"))
    links = [linked(relay, PROBE, identity=wolf) for _ in range(MAX_PROBES)]
    assert isinstance(heard(linked(relay, PROBE, identity=wolf))[0], Refused)
    for replaced in range(MAX_PROBES // 2):
        assert isinstance(heard(linked(relay, PROBE, identity=dog))[0], Diagnosis)
        assert [link.closing for link in links].count(True) == replaced + 1
        assert "these credentials have most" in str(links[replaced].reason)
    for identity in (wolf, dog):
        assert isinstance(heard(linked(relay, PROBE, identity=identity))[0], Refused)
    links[0].lost(None, 1.0)
    assert len(relay.probes.places) == MAX_PROBES


def test_probes_share_an_allowance_that_refills() -> None:
    relay = Relay()

    def ask(now: float) -> int:
        connection = linked(relay, PROBE, now=now)
        told = heard(connection, now)[0]
        assert isinstance(told, Diagnosis)
        connection.lost(None, now)
        return told.allowance_bytes

    assert sum(ask(0.0) for _ in range(20)) == ALL_BYTES
    assert ask(1.0) == REFILL_BYTES_S
    assert ask(1e6) == LINK_BYTES


def test_the_duration_of_a_probe_is_limited() -> None:
    relay = Relay()
    connection = linked(relay, PROBE)
    connection.tick(PROBE_S - 1)  # nothing was heard for long, but that is another matter
    connection = linked(relay, PROBE)
    for second in range(1, int(PROBE_S)):
        feed(connection, control_frame(Echo(second)), float(second))
        connection.tick(float(second))
        assert not connection.closing
    connection.tick(PROBE_S)
    assert connection.closing
    assert len(relay.probes.places) == 0
