from __future__ import annotations

import contextlib
import http.client
import json
import re
import select
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tests.gateway.serving import FIRST, Answer, Served, serve
from tmrl_core.errors import TmrlError
from tmrl_core.gateway import app
from tmrl_core.gateway.messages import fields_from_json

LOGIN, ENV = "/shepherd/login_user/", "/shepherd/env/"
ORIGIN = "https://game.example"


async def fail(request: Request) -> Response:
    raise ValueError("a secret")


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("keys")
    settings: dict[str, Any] = {"max_body_bytes": 100_000, "origins": (ORIGIN,), "hosts": ("home.example",)}
    with serve(folder, routes=[Route("/fails/", fail)], **settings) as served:
        yield served


def test_a_client_logs_in_and_plays_an_episode(gateway: Served) -> None:
    login = gateway.post(LOGIN, {"apikey": gateway.apikey})
    assert login.status == 200
    assert login.json.keys() == {"ok", "session_key"}
    key = login.json["session_key"]
    rows: list[tuple[dict[str, Any], int | None]] = [
        ({}, 1),
        ({"reward": 1}, 2),
        ({"done": True, "info": ...}, None),
        ({"done": True}, None),
        ({}, 3),
    ]
    assert [gateway.step(key, **changes).json for changes, _ in rows] == [{"action": action} for _, action in rows]
    assert [row[3:] for row in gateway.player.transitions] == [(1.0, False, False), (0.0, True, False)]


def test_one_connection_serves_many_steps(gateway: Served) -> None:
    connection, key = gateway.connect(), gateway.login()
    for number in range(1, 20):
        answer = gateway.post(ENV, {**FIRST, "session_key": key}, connection=connection)
        assert answer.json == {"action": number}
    connection.close()


def test_a_repeated_step_is_recorded_once(gateway: Served) -> None:
    key = gateway.login()
    answers = [gateway.step(key, step=number).json["action"] for number in (0, 0, 1, 1, 1, 2)]
    assert answers == [1, 1, 2, 2, 2, 3]
    assert len(gateway.player.transitions) == 2


def test_an_end_message_needs_a_key_or_the_cookie(gateway: Served) -> None:
    before = len(gateway.sessions)
    login = gateway.post(LOGIN, {"apikey": gateway.apikey})
    cookie = login.headers["Set-Cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    nobodys = gateway.post(ENV, {"obs": None}).json
    assert nobodys.pop("note").startswith("no session was ended: give the session_key")
    assert nobodys == {"action": None}
    assert gateway.post(ENV, {"obs": None, "session_key": "stale"}).json == {"action": None}
    assert len(gateway.sessions) == before + 1
    sent = {"Cookie": cookie.partition(";")[0]}
    assert "session_key is missing" in gateway.post(ENV, FIRST, headers=sent).error
    assert gateway.post(ENV, {"obs": None}, headers=sent).json == {"action": None}
    assert len(gateway.sessions) == before
    key = gateway.login()
    assert gateway.post(ENV, {"obs": None, "session_key": key}).json == {"action": None}
    assert gateway.player.closed
    assert gateway.step(key).status == 401


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"obs": ...}, "obs is missing"),
        ({"reward": ...}, "reward is missing"),
        ({"done": ...}, "done is missing"),
        ({"session_key": ...}, "session_key is missing"),
        ({"obs": [1.0]}, "obs: expected `array` of length >= 2"),
        ({"obs": [[1.0], 2.0]}, "obs[0]: expected"),
        ({"obs": [1.0, None]}, "obs[1]: expected"),
        ({"obs": {"a": 1}}, "obs: expected `array`"),
        ({"reward": "1"}, "reward: expected"),
        ({"reward": float("nan")}, "without NaN and Infinity"),
        ({"obs": [float("inf"), 1.0]}, "without NaN and Infinity"),
        ({"done": "no"}, "done: expected"),
        ({"info": 5}, "info: expected"),
    ],
)
def test_a_wrong_field_is_refused_and_named(gateway: Served, changes: dict[str, Any], said: str) -> None:
    key = gateway.login()
    assert gateway.step(key).json == {"action": 1}
    answer = gateway.step(key, **changes)
    assert answer.status == 400
    assert said in answer.error
    assert gateway.step(key).json == {"action": 2}
    assert len(gateway.player.transitions) == 1


@pytest.mark.parametrize(
    "body", [b"", b"{", b"nonsense", b"[]", b"5", b"\xff\xfe", b'{"obs":' + b"[" * 90_000, b'{"a":' * 15_000]
)
@pytest.mark.parametrize("path", [LOGIN, ENV])
def test_a_body_that_is_no_json_object_is_refused(gateway: Served, path: str, body: bytes) -> None:
    answer = gateway.post(path, body)
    assert answer.status == 400
    assert answer.error


@pytest.mark.parametrize(
    "body", [{"obs": [[[[[[[[[[1]]]]]]]]]]}, {"info": {"a": [[[[[[[[[[1]]]]]]]]]]}}, {"info": 5, "done": 0}]
)
def test_a_stranger_is_refused_before_an_observation_or_info_is_decoded(gateway: Served, body: dict[str, Any]) -> None:
    answer = gateway.step("unknown", **body)
    assert (answer.status, "log in again" in answer.error) == (401, True)


def test_wrong_keys_are_refused(gateway: Served) -> None:
    for apikey in ("wrong", gateway.apikey + "x", "", "\ud800", "key." * 1000):
        answer = gateway.post(LOGIN, {"apikey": apikey})
        assert 400 <= answer.status < 500
        assert answer.error
    assert "log in again" in gateway.step("stale").error
    assert gateway.step("stale").status == 401


@pytest.mark.parametrize("chunked", [False, True])
def test_a_huge_body_is_refused_while_it_is_read(gateway: Served, chunked: bool) -> None:
    part, parts = b" " * 65_536, 800
    with socket.create_connection(("127.0.0.1", gateway.port), timeout=30) as connection:
        length = "Transfer-Encoding: chunked" if chunked else f"Content-Length: {len(part) * parts}"
        connection.sendall(f"POST {ENV} HTTP/1.1\r\nHost: localhost\r\n{length}\r\n\r\n".encode())
        sending = threading.Thread(target=send_all, args=(connection, part, parts, chunked))
        sending.start()
        response = http.client.HTTPResponse(connection)
        response.begin()
        answer = Answer(response.status, response.headers, response.read())
        sending.join()
    assert answer.status == 413
    assert "larger than 100000 bytes" in answer.error
    key = gateway.login()
    assert gateway.step(key, info={"text": "x" * 90_000}).status == 200
    assert gateway.step(key, info={"text": "x" * 110_000}).status == 413


def send_all(connection: socket.socket, part: bytes, parts: int, chunked: bool) -> None:
    framed = b"%x\r\n%s\r\n" % (len(part), part) if chunked else part
    try:
        for _ in range(parts):
            connection.sendall(framed)
    except OSError:  # the server does not wait for all of it
        pass


def test_requests_that_are_not_complete_share_a_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(app, "_INCOMPLETE_BYTES", 1000)
    with serve(tmp_path, max_body_bytes=50_000) as gateway, contextlib.ExitStack() as stack:
        head = f"POST {ENV} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 49000\r\n\r\n".encode()
        held = [stack.enter_context(socket.create_connection(("127.0.0.1", gateway.port), 30)) for _ in range(3)]
        for connection in held:
            connection.sendall(head + b" " * 48_000)
        ready = select.select(held, [], [], 30)[0]  # one of them is refused
        response = http.client.HTTPResponse(ready[0])
        response.begin()
        assert response.status == 429
        assert "not complete" in json.loads(response.read())["error"]
        assert gateway.login()  # small requests arrive at once
        for connection in held:
            if connection is not ready[0]:
                connection.sendall(b" " * 1000)
                response = http.client.HTTPResponse(connection)
                response.begin()
                assert response.status == 400  # complete now
    assert not caplog.records


def test_two_requests_at_once(gateway: Served) -> None:
    key = gateway.login()
    gateway.open_gate(False)
    with ThreadPoolExecutor() as pool:
        first = pool.submit(gateway.step, key, step=0)
        while gateway.player.waiting == 0:
            assert not first.done()
        second = gateway.step(key, step=0)
        gateway.open_gate(True)
        assert second.status == 409
        assert "in progress" in second.error
        assert first.result().json == gateway.step(key, step=0).json == {"action": 1}


def test_a_failing_agent_answers_no_action(gateway: Served) -> None:
    key = gateway.login()
    gateway.player.fails = TmrlError("no policy yet")
    answer = gateway.step(key)
    assert (answer.status, answer.error) == (503, "no policy yet")
    gateway.player.fails = ValueError("a secret")
    answer = gateway.step(key)
    assert (answer.status, "secret" in answer.error) == (500, False)
    assert gateway.step(key).json == {"action": 1}


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("POST", "/", 405),
        ("GET", "/shepherd/unknown/", 404),
        ("POST", "/shepherd/env", 404),
        ("GET", ENV, 405),
        ("DELETE", LOGIN, 405),
        ("POST", "/shepherd/", 405),
        ("OPTIONS", ENV, 405),
        ("GET", "/shepherd/ws/", 404),
        ("GET", "/fails/", 500),
        ("GET", "/%00%ff/../..", 404),
    ],
)
def test_every_refusal_is_a_json_object(gateway: Served, method: str, path: str, status: int) -> None:
    answer = gateway.request(method, path)
    assert answer.status == status
    assert "secret" not in answer.error


def test_the_address_that_the_log_shows_leads_to_all_pages(gateway: Served) -> None:
    answer = gateway.request("GET", "/")
    assert answer.status == 200
    assert re.findall(rb'href="([^"]+)"', answer.body) == [b"shepherd/", b"owner/"]


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200),
        ("LOCALHOST:8000", 200),
        ("127.0.0.1:1", 200),
        ("127.1.2.3", 200),
        ("[::1]:8000", 200),
        ("[::1]", 200),
        ("home.example", 200),
        ("Home.Example:8000", 200),
        ("evil.example", 421),
        ("evil.example:8000", 421),
        ("localhost.evil.example", 421),
        ("127.0.0.1.evil.example", 421),
        ("localhost@evil.example", 421),
        ("[::2]", 421),
        ("[", 421),
        ("192.168.1.5", 421),
    ],
)
def test_only_names_of_this_machine_are_served(gateway: Served, host: str, status: int) -> None:
    answer = gateway.post(LOGIN, {"apikey": gateway.apikey}, headers={"Host": host})
    assert answer.status == status
    assert ("ok" in answer.json) == (status == 200)


def test_a_preflight_is_answered_for_the_origins_of_the_settings(gateway: Served) -> None:
    asked = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "content-type"}
    answer = gateway.request("OPTIONS", ENV, headers={**asked, "Origin": ORIGIN})
    assert answer.status == 200
    assert answer.json == {"ok": True}
    assert answer.headers["Access-Control-Allow-Origin"] == ORIGIN
    assert "POST" in answer.headers["Access-Control-Allow-Methods"]
    assert "content-type" in answer.headers["Access-Control-Allow-Headers"].lower()
    other = gateway.request("OPTIONS", ENV, headers={**asked, "Origin": "https://evil.example"})
    assert other.status == 400
    assert "gateway.origins" in other.error
    assert "Access-Control-Allow-Origin" not in other.headers


def test_answers_and_refusals_name_the_allowed_origin(gateway: Served) -> None:
    for apikey in (gateway.apikey, "wrong"):
        answer = gateway.post(LOGIN, {"apikey": apikey}, headers={"Origin": ORIGIN})
        assert answer.headers["Access-Control-Allow-Origin"] == ORIGIN
        other = gateway.post(LOGIN, {"apikey": apikey}, headers={"Origin": "https://evil.example"})
        assert "Access-Control-Allow-Origin" not in other.headers


def test_any_content_type_will_do(gateway: Served) -> None:
    for kind in ("text/plain", "application/x-www-form-urlencoded", "nonsense"):
        assert gateway.post(LOGIN, {"apikey": gateway.apikey}, headers={"Content-Type": kind}).json["ok"]


def test_the_protocol_is_described(gateway: Served) -> None:
    document = gateway.request("GET", "/shepherd/openapi.json").json
    assert document["openapi"].startswith("3.")
    assert document["paths"].keys() == {LOGIN, ENV}
    for path, operations in document["paths"].items():
        for answer in operations["post"]["responses"].values():
            assert answer["description"]
        body = operations["post"]["requestBody"]["content"]["application/json"]
        assert body["example"].keys() <= body["schema"]["properties"].keys()
        fields = fields_from_json(json.dumps(body["example"]))
        assert fields.login() if path == LOGIN else fields.message()
    page = gateway.request("GET", "/shepherd/")
    assert page.headers["Content-Type"].startswith("text/html")
    assert LOGIN.encode() in page.body
    for outside in (b"http:", b"https:", b"<script", b"<link"):
        assert outside not in page.body


VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
MESSAGES = st.fixed_dictionaries(
    {},
    optional={
        "obs": st.just([0.5, 1.5]) | VALUES,
        "reward": st.floats(-1, 1) | VALUES,
        "done": st.booleans() | VALUES,
        "terminated": st.booleans() | VALUES,
        "truncated": st.booleans() | VALUES,
        "info": st.just({"TimeLimit.truncated": True}) | VALUES,
        "session_key": st.just("KEY") | VALUES,
        "step": st.integers(0, 3) | VALUES,
        "apikey": VALUES,
    },
)


@pytest.fixture(scope="module")
def connection(gateway: Served) -> Iterator[tuple[Any, str]]:
    connection = gateway.connect()
    yield connection, gateway.login()
    connection.close()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    st.sampled_from(["GET", "POST", "PUT", "OPTIONS", "HEAD"]) | st.just("POST"),
    st.sampled_from([LOGIN, ENV, "/shepherd/", "/shepherd/ws/", "/x"]) | st.just(ENV),
    MESSAGES.map(lambda fields: json.dumps(fields).encode()) | st.binary(max_size=40) | VALUES.map(json.dumps),
)
def test_no_request_makes_the_gateway_fail(
    gateway: Served, connection: tuple[Any, str], method: str, path: str, body: bytes | str
) -> None:
    used, key = connection
    data = body if isinstance(body, bytes) else body.encode()
    answer = gateway.request(method, path, data.replace(b'"KEY"', json.dumps(key).encode()), connection=used)
    assert answer.status < 500
    if method not in ("HEAD", "GET"):
        assert ("error" in answer.json) == (answer.status != 200)
