from __future__ import annotations

import contextlib
import http.client
import json
import socket
import ssl
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosedError
from websockets.frames import Frame, Opcode
from websockets.sync.client import ClientConnection, connect

from tests.gateway.serving import Served, serve
from tmrl_core.networking.security import credentials
from tmrl_core.web import connections
from tmrl_core.web.connections import FRAMES_AT_ONCE, MAX_HEAD_BYTES, MAX_HEADERS, MAX_PIPELINED, REQUEST_S
from tmrl_core.web.listening import https_context

BEGUN = b"POST /shepherd/env/ HTTP/1.1\r\nHost: localhost\r\n"


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[Served]:
    with serve(tmp_path, max_connections=5, max_body_bytes=1_000_000) as served:
        yield served


def opened(gateway: Served) -> socket.socket:
    return socket.create_connection(("127.0.0.1", gateway.port), timeout=30)


def refusal(connection: socket.socket) -> str:
    response = http.client.HTTPResponse(connection)
    response.begin()
    assert response.status == 400
    return str(json.loads(response.read())["error"])


def ended(connection: socket.socket) -> bool:
    """Wait until the gateway has closed the connection."""
    with contextlib.suppress(ConnectionError):
        return connection.recv(1) == b""
    return True


def expire(gateway: Served, after_s: float) -> None:
    assert gateway.loop is not None
    gateway.loop.call_soon_threadsafe(gateway.connections.expire, gateway.loop.time() + after_s)


def test_the_share_of_an_address_is_free_again_after_its_connections() -> None:
    held = connections.Connections(4)

    def client(network: str) -> Any:
        return type("Client", (), {"network": network, "is_local": False})()

    first, others = client("a"), [client("a"), client("b")]
    assert [held.add(one) for one in (first, *others, client("a"))] == [True, True, True, False]
    held.remove(first)
    held.remove(first)
    assert held.add(client("a"))
    assert len(held) == 3


@pytest.mark.parametrize(
    ("begun", "part"),
    [
        (b"GET /", b"x" * 1000),
        (BEGUN + b"X: ", b"x" * 1000),
        (BEGUN, b"X: y\r\n" * 100),
        (BEGUN + b"Transfer-Encoding: chunked\r\n\r\n1;", b"x" * 1000),
        (BEGUN + b"Transfer-Encoding: chunked\r\n\r\n0\r\nX: ", b"x" * 1000),
    ],
)
def test_an_endless_head_is_refused(gateway: Served, begun: bytes, part: bytes) -> None:
    with opened(gateway) as connection:
        connection.sendall(begun)
        with contextlib.suppress(ConnectionError):
            for _ in range(4 * MAX_HEAD_BYTES // len(part)):
                connection.sendall(part)
        with contextlib.suppress(ConnectionError):  # it may have closed before all was sent
            assert refusal(connection)
        assert ended(connection)


def test_invalid_http_is_answered_with_json(gateway: Served) -> None:
    with opened(gateway) as connection:
        connection.sendall(b"nonsense\r\n\r\n")
        assert "Invalid HTTP" in refusal(connection)


@pytest.mark.parametrize("body", [b'Content-Length: 18\r\n\r\n{"apikey": "none"}', b""])
@pytest.mark.parametrize("pause", [True, False])
def test_a_wish_for_http_2_is_declined_and_the_body_is_read(gateway: Served, body: bytes, pause: bool) -> None:
    """As Java's HttpClient and `curl --http2` begin a connection."""
    body = body or b'Transfer-Encoding: chunked\r\n\r\n9\r\n{"apikey"\r\n9\r\n: "none"}\r\n0\r\n\r\n'
    wish = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAEAAEAA\r\n"
    request = b"POST /shepherd/login_user/ HTTP/1.1\r\nHost: localhost\r\n" + wish + body
    with opened(gateway) as connection:
        for _ in range(2):
            for part in (request[:90], request[90:-9], request[-9:]) if pause else (request,):
                connection.sendall(part)
            response = http.client.HTTPResponse(connection)
            response.begin()
            assert (response.status, b"API key is not valid" in response.read()) == (401, True)


def test_the_number_of_headers_is_limited(gateway: Served) -> None:
    with opened(gateway) as connection:
        connection.sendall(BEGUN + b"X:\r\n" * MAX_HEADERS + b"Y")
        assert "too many headers" in refusal(connection)


@pytest.mark.parametrize("requests", [MAX_PIPELINED, 5000])
def test_many_requests_at_once_are_refused(gateway: Served, requests: int, caplog: pytest.LogCaptureFixture) -> None:
    for reads in (True, False):
        with opened(gateway) as connection:
            with contextlib.suppress(ConnectionError):
                connection.sendall(b"GET /none HTTP/1.1\r\nHost: localhost\r\n\r\n" * requests)
            if reads and requests == MAX_PIPELINED:
                answers = b""  # not as HTTPResponse reads: it takes more than one answer from the socket
                while answers.count(b"HTTP/1.1 404 ") < requests:
                    part = connection.recv(65536)
                    assert part
                    answers += part
            elif reads:
                assert "requests at once" in refusal(connection)
    assert gateway.login()
    assert all("refused a connection" in record.message for record in caplog.records)
    assert len(caplog.records) <= 1


def test_a_long_body_in_many_chunks_is_no_head(gateway: Served) -> None:
    with opened(gateway) as connection:
        connection.sendall(BEGUN + b"Transfer-Encoding: chunked\r\n\r\n")
        for _ in range(200):
            connection.sendall(b"3e8\r\n%s\r\n" % (b" " * 1000))
        connection.sendall(b"0\r\n\r\n")
        assert "not valid JSON" in refusal(connection)


@pytest.mark.parametrize("sent", [b"", b"POST", BEGUN, BEGUN + b"Content-Length: 100\r\n\r\n{"])
def test_a_connection_whose_request_is_not_complete_is_closed(gateway: Served, sent: bytes) -> None:
    with opened(gateway) as waiting:
        waiting.sendall(sent)
        assert gateway.login()  # the gateway has accepted the other connection too
        expire(gateway, REQUEST_S - 10.0)
        assert gateway.login()
        waiting.settimeout(0.0)
        with pytest.raises(BlockingIOError):
            waiting.recv(1)
        waiting.settimeout(30.0)
        expire(gateway, REQUEST_S + 1.0)
        assert ended(waiting)


def test_a_connection_between_requests_or_of_a_websocket_is_left(gateway: Served) -> None:
    from websockets.sync.client import connect

    connection = gateway.connect()
    gateway.post("/shepherd/login_user/", {"apikey": gateway.apikey}, connection=connection)
    with connect(f"ws://localhost:{gateway.port}/shepherd/ws/") as websocket:
        expire(gateway, 10 * REQUEST_S)
        assert gateway.post("/shepherd/login_user/", {"apikey": gateway.apikey}, connection=connection).json["ok"]
        websocket.send("{}")
        assert "obs is missing" in str(websocket.recv(timeout=30))
        assert len(gateway.connections) == 1
    connection.close()


def test_the_number_of_connections_is_limited(gateway: Served) -> None:
    with contextlib.ExitStack() as stack:
        held = []
        for _ in range(5):
            connection = gateway.connect()
            stack.callback(connection.close)
            assert gateway.request("GET", "/shepherd/", connection=connection).status == 200
            held.append(connection)
        with opened(gateway) as one_more:
            assert ended(one_more)
        held[0].close()
        assert gateway.request("GET", "/shepherd/", connection=held[1]).status == 200
        while len(gateway.connections) == 5:
            gateway.request("GET", "/shepherd/", connection=held[1])
        assert gateway.login()


def test_one_address_has_half_of_the_connections(gateway: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "is_loopback", lambda host: False)  # this machine has no such limit
    with contextlib.closing(gateway.connect()) as first, contextlib.closing(gateway.connect()) as second:
        for connection in (first, second):
            assert gateway.request("GET", "/shepherd/", connection=connection).status == 200
        with opened(gateway) as third:
            assert ended(third)
        monkeypatch.undo()
        assert gateway.request("GET", "/shepherd/").status == 200


@pytest.fixture
def websocket(gateway: Served) -> Iterator[ClientConnection]:
    with connect(f"ws://127.0.0.1:{gateway.port}/shepherd/ws/", proxy=None) as connection:
        yield connection


def send_frames(connection: ClientConnection, frames: Iterable[Frame]) -> None:
    connection.socket.sendall(b"".join(frame.serialize(mask=True) for frame in frames))


def test_many_small_messages_at_once_are_all_answered(gateway: Served, websocket: ClientConnection) -> None:
    send_frames(websocket, [Frame(Opcode.TEXT, b'{"n":1}'), Frame(Opcode.BINARY, b"\x80")] * 2000)
    for _ in range(2000):
        assert isinstance(websocket.recv(timeout=30), str)
        assert isinstance(websocket.recv(timeout=30), bytes)
    websocket.send(b"".join([b"{", b" " * 50_000, b"}"]).decode())
    assert "obs is missing" in websocket.recv(timeout=30)


@pytest.mark.parametrize(
    "frame", [Frame(Opcode.PING, b"x"), Frame(Opcode.PONG, b"x"), Frame(Opcode.CONT, b"", fin=False)]
)
def test_frames_that_are_no_messages_are_limited(
    gateway: Served, websocket: ClientConnection, frame: Frame, caplog: pytest.LogCaptureFixture
) -> None:
    begun = [Frame(Opcode.TEXT, b"{", fin=False)]
    send_frames(websocket, begun + [frame] * (FRAMES_AT_ONCE - 10))
    send_frames(websocket, [Frame(Opcode.CONT, b"}")])
    assert "obs is missing" in websocket.recv(timeout=30)
    with contextlib.suppress(ConnectionError):
        send_frames(websocket, begun + [frame] * FRAMES_AT_ONCE)
    with pytest.raises(ConnectionClosedError):
        websocket.recv(timeout=30)
    assert gateway.login()
    assert not caplog.records


def test_text_that_is_not_utf_8_closes_a_websocket_without_a_traceback(
    websocket: ClientConnection, caplog: pytest.LogCaptureFixture
) -> None:
    send_frames(websocket, [Frame(Opcode.TEXT, b"\xff", fin=False), Frame(Opcode.CONT, b"\xff")])
    with pytest.raises(ConnectionClosedError, match="1007"):
        websocket.recv(timeout=30)
    assert not caplog.records


@pytest.fixture
def https(tmp_path: Path) -> Iterator[Served]:
    credentials.create(tmp_path)
    with serve(tmp_path, https_context(tmp_path, "gateway")) as served:
        yield served


def login(gateway: Served, folder: Path) -> int:
    context = ssl.create_default_context(cafile=folder / "ca.pem")
    connection = http.client.HTTPSConnection("localhost", gateway.port, timeout=30, context=context)
    with contextlib.closing(connection):
        connection.request("POST", "/shepherd/login_user/", json.dumps({"apikey": gateway.apikey}))
        return connection.getresponse().status


def test_handshakes_that_are_not_complete_are_limited(
    https: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "MAX_HANDSHAKES", 4)
    with contextlib.ExitStack() as stack:
        silent = [stack.enter_context(opened(https)) for _ in range(10)]
        assert login(https, tmp_path) == 200
        assert all(ended(connection) for connection in silent[:7])
        for connection in silent[-3:]:
            connection.setblocking(False)
            with pytest.raises(BlockingIOError):
                connection.recv(1)


def test_a_handshake_has_a_deadline(https: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "HANDSHAKE_S", 0.2)
    with opened(https) as silent, opened(https) as begun, opened(https) as nonsense:
        begun.sendall(b"\x16\x03\x01\x02\x00\x01")
        nonsense.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert ended(silent)
        assert ended(begun)
        with contextlib.suppress(ConnectionError):
            nonsense.recv(1000)  # an alert of TLS
        assert ended(nonsense)
    assert login(https, tmp_path) == 200
