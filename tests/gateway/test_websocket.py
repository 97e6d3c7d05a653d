from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from websockets.exceptions import ConnectionClosedError, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from tests.gateway.serving import FIRST, Served, serve
from tests.gateway.test_app import MESSAGES
from tmrl_core.gateway import websocket


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serve(tmp_path_factory.mktemp("keys"), max_body_bytes=10_000, origins=("https://game.example",)) as served:
        yield served


def opened(gateway: Served, **arguments: Any) -> ClientConnection:
    connection: ClientConnection = connect(f"ws://localhost:{gateway.port}/shepherd/ws/", compression=None, **arguments)
    return connection


def ask(socket: ClientConnection, message: Any, binary: bool = False) -> dict[str, Any]:
    if binary:
        socket.send(msgspec.msgpack.encode(message))
        answer: dict[str, Any] = msgspec.msgpack.decode(socket.recv(timeout=30, decode=False))
    else:
        socket.send(message if isinstance(message, str) else json.dumps(message))
        answer = json.loads(socket.recv(timeout=30, decode=True))
    return answer


@pytest.mark.parametrize("binary", [False, True])
def test_a_client_logs_in_and_plays_on_one_connection(gateway: Served, binary: bool) -> None:
    with opened(gateway) as socket:
        login = ask(socket, {"apikey": gateway.apikey}, binary)
        assert login["ok"] is True
        key = {"session_key": login["session_key"]}
        rows = [(key, 1), ({}, 2), ({"done": True}, None), ({**key, "step": 7}, 3), ({"step": 7}, 3)]
        for changes, action in rows:
            assert ask(socket, {**FIRST, **changes}, binary) == {"action": action}
        assert len(gateway.player.transitions) == 2
        assert ask(socket, {"obs": None}, binary) == {"action": None}
        assert gateway.player.closed
        assert ask(socket, FIRST, binary)["status"] == 401


def test_a_session_goes_on_over_another_connection(gateway: Served) -> None:
    with opened(gateway) as socket:
        key = ask(socket, {"apikey": gateway.apikey})["session_key"]
        assert ask(socket, FIRST) == {"action": 1}
    with opened(gateway) as socket:
        assert "session_key is missing" in ask(socket, FIRST)["error"]
        assert ask(socket, {**FIRST, "session_key": key}) == {"action": 2}
        assert ask(socket, FIRST) == {"action": 3}
    assert gateway.step(key).json == {"action": 4}


def test_connections_without_a_session_are_limited(gateway: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(websocket, "MAX_WITHOUT_SESSION", 2)
    with opened(gateway) as first, opened(gateway):
        with pytest.raises(InvalidStatus):
            opened(gateway)
        assert ask(first, {"apikey": gateway.apikey})["ok"]
        with opened(gateway) as third:
            assert ask(third, {"apikey": gateway.apikey})["ok"]


def test_a_session_has_one_connection(gateway: Served) -> None:
    with opened(gateway) as first, opened(gateway) as second:
        key = ask(first, {"apikey": gateway.apikey})["session_key"]
        assert ask(second, {**FIRST, "session_key": key}) == {"action": 1}
        with pytest.raises(ConnectionClosedError, match="another connection"):
            first.recv(timeout=30)
        assert ask(second, FIRST) == {"action": 2}


def test_a_connection_whose_session_has_ended_needs_another_one(
    gateway: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(gateway) as ended, opened(gateway) as other:
        key = ask(ended, {"apikey": gateway.apikey})["session_key"]
        assert gateway.post("/shepherd/env/", {"obs": None, "session_key": key}).json == {"action": None}
        assert ask(other, {"apikey": gateway.apikey})["ok"]  # makes room
        with pytest.raises(ConnectionClosedError):
            ended.recv(timeout=30)
        monkeypatch.setattr(websocket, "LOGIN_S", 0.1)
        assert ask(other, {"obs": None}) == {"action": None}
        with pytest.raises(ConnectionClosedError, match="no session within"):
            other.recv(timeout=30)


def test_a_connection_that_shows_no_session_is_closed(gateway: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(websocket, "LOGIN_S", 0.1)
    with opened(gateway) as silent, pytest.raises(ConnectionClosedError, match="no session within"):
        silent.recv(timeout=30)


def test_a_refusal_leaves_the_connection_open(gateway: Served) -> None:
    with opened(gateway) as socket:
        for message, status in [
            ({"apikey": "wrong"}, 401),
            ({**FIRST, "session_key": "stale"}, 401),
            ("{", 400),
            ("[]", 400),
            ("[" * 5000, 400),
            ('{"obs":' + "[" * 5000, 400),
            ({**FIRST, "info": {"text": "x" * 10_000}}, 413),
            (json.dumps({**FIRST, "reward": float("nan")}), 400),
        ]:
            answer = ask(socket, message)
            assert (answer["status"], "Traceback" in answer["error"]) == (status, False)
        ask(socket, {"apikey": gateway.apikey})
        assert "reward is nan" in ask(socket, {**FIRST, "reward": float("nan")}, binary=True)["error"]
        assert ask(socket, {**FIRST, "obs": [1.0]})["status"] == 400
        gateway.player.fails = ValueError("a secret")
        answer = ask(socket, FIRST)
        assert (answer["status"], "secret" in answer["error"]) == (500, False)
        assert ask(socket, FIRST) == {"action": 1}


@pytest.mark.parametrize(
    ("headers", "origin", "accepted"),
    [
        ({}, None, True),
        ({}, "https://game.example", True),
        ({}, "https://evil.example", False),
        ({}, "http://[", False),
        ({"Host": "evil.example"}, None, False),
    ],
)
def test_pages_of_other_origins_and_other_hosts_are_refused(
    gateway: Served, headers: dict[str, str], origin: Any, accepted: bool
) -> None:
    if accepted:
        with opened(gateway, additional_headers=headers, origin=origin) as socket:
            assert ask(socket, {"apikey": gateway.apikey})["ok"]
    else:
        with pytest.raises(InvalidStatus) as caught:
            opened(gateway, additional_headers=headers, origin=origin)
        assert caught.value.response.status_code == 403


def test_the_page_of_the_gateway_itself_may_connect(gateway: Served) -> None:
    with opened(gateway, origin=f"http://localhost:{gateway.port}") as socket:
        assert ask(socket, {"apikey": gateway.apikey})["ok"]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    st.lists(
        MESSAGES.map(lambda fields: json.dumps({**FIRST, **fields}))
        | MESSAGES.map(lambda fields: encoded({**FIRST, **fields}))
        | st.binary(max_size=20)
        | st.text(max_size=20),
        min_size=1,
        max_size=5,
    )
)
def test_no_message_makes_the_gateway_fail(gateway: Served, messages: list[str | bytes]) -> None:
    with opened(gateway) as socket:
        assert ask(socket, {"apikey": gateway.apikey})["ok"]
        for message in messages:
            socket.send(message)
            data = socket.recv(timeout=30)
            answer = msgspec.msgpack.decode(data) if isinstance(data, bytes) else json.loads(data)
            assert isinstance(data, type(message))
            assert answer.keys() <= {"action", "ok", "session_key", "error", "status"}
            assert answer.get("status", 400) < 500
        ask(socket, {"obs": None})


def encoded(fields: Any) -> bytes:
    try:
        return msgspec.msgpack.encode(fields)
    except OverflowError:  # an integer of more than 64 bits
        return b""


def test_many_logins(tmp_path: Path) -> None:
    with serve(tmp_path, max_sessions_per_key=50) as gateway, opened(gateway) as socket:
        statuses = Counter(ask(socket, {"apikey": gateway.apikey}).get("status") for _ in range(500))
        wrong = Counter(ask(socket, {"apikey": "wrong"}).get("status") for _ in range(500))
        assert statuses == {None: 50, 429: 450}
        assert wrong.keys() == {401, 429}
        assert len(gateway.sessions) == len(gateway.agent.players) == 50
