"""The gateway behind a reverse proxy that adds a prefix, closes connections and loses answers."""

from __future__ import annotations

import contextlib
import http.client
import json
import runpy
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import requests
from websockets.sync.client import connect

from tests.gateway.serving import FIRST, Served, serve
from tmrl_core.gateway.episodes import EpisodeFiles
from tmrl_core.gateway.owner import OwnerPages

PREFIX = "/agents"
HOST = "game.example"
EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "clients" / "client.py"


class Proxy(BaseHTTPRequestHandler):
    """Pass requests on, without the prefix and with the client's Host, as nginx with `proxy_set_header Host $host`.

    Attributes:
        loses_every: each such answer is lost; 0: none.
        away: the gateway is not reached.
        requests: number of requests so far.
    """

    protocol_version = "HTTP/1.1"
    upstream = 0
    loses_every = 0
    away = False
    requests = 0
    kept: http.client.HTTPConnection | None = None

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        if self.headers.get("Upgrade"):
            self.tunnel()
        else:
            self.pass_on()

    def do_POST(self) -> None:
        self.pass_on()

    def forwarded(self) -> dict[str, str]:
        dropped = {"connection", "content-length"}
        headers = {name: value for name, value in self.headers.items() if name.lower() not in dropped}
        return {**headers, "Host": HOST, "X-Forwarded-For": "203.0.113.9", "X-Forwarded-Proto": "https"}

    def pass_on(self) -> None:
        kind = type(self)
        kind.requests += 1
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if kind.away:
            self.answer(502, {"Content-Type": "text/html"}, b"<html>502 Bad Gateway</html>")
            return
        # A connection for five requests of all clients together.
        if kind.kept is None or kind.requests % 5 == 0:
            if kind.kept is not None:
                kind.kept.close()
            kind.kept = http.client.HTTPConnection("127.0.0.1", kind.upstream, timeout=30)
        kind.kept.request(self.command, self.path.removeprefix(PREFIX), body, self.forwarded())
        response = kind.kept.getresponse()
        content = response.read()
        if kind.loses_every and kind.requests % kind.loses_every == 0:
            self.close_connection = True
            return
        headers = {name: value for name, value in response.getheaders() if name.lower() != "content-length"}
        if "set-cookie" in headers:  # as `proxy_cookie_path / /agents/`
            headers["set-cookie"] = headers["set-cookie"].replace("Path=/", f"Path={PREFIX}/")
        self.answer(response.status, headers, content)

    def answer(self, status: int, headers: dict[str, str], content: bytes) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def tunnel(self) -> None:
        with socket.create_connection(("127.0.0.1", self.upstream)) as there:
            head = [f"GET {self.path.removeprefix(PREFIX)} HTTP/1.1"]
            head += [f"{name}: {value}" for name, value in {**self.forwarded(), "Connection": "Upgrade"}.items()]
            there.sendall("\r\n".join([*head, "", ""]).encode())
            back = threading.Thread(target=self.copy, args=(there, self.connection))
            back.start()
            self.copy(self.connection, there)
            back.join()
        self.close_connection = True

    @staticmethod
    def copy(source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while part := source.recv(65536):
                target.sendall(part)
            target.shutdown(socket.SHUT_WR)


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[Served]:
    episodes = EpisodeFiles(tmp_path)
    pages = OwnerPages(is_owner=lambda token: token == "T", agents={}, sessions=list, episodes=episodes)
    with serve(tmp_path, routes=pages.routes(), hosts=(HOST,), origins=("https://other.example",)) as served:
        yield served
    episodes.close()


@pytest.fixture
def proxy(gateway: Served) -> Iterator[type[Proxy]]:
    class Made(Proxy):
        upstream = gateway.port

    server = ThreadingHTTPServer(("127.0.0.1", 0), Made)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    Made.address = f"http://127.0.0.1:{server.server_address[1]}{PREFIX}/"  # type: ignore[attr-defined]
    try:
        yield Made
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
        if Made.kept is not None:
            Made.kept.close()


def test_a_client_that_repeats_its_steps_loses_none(gateway: Served, proxy: Any) -> None:
    client = runpy.run_path(str(EXAMPLE))["Client"](gateway.apikey, proxy.address, retry_s=20.0)
    proxy.loses_every = 3
    assert [client.begin([0.0, 0.0]), *(client.step([float(step), 0.0], step) for step in range(1, 20))] == [
        *range(1, 21)
    ]
    proxy.loses_every = 0
    assert [row[3] for row in gateway.player.transitions] == list(range(1, 20))
    proxy.away = True
    failed = threading.Timer(0.3, lambda: setattr(proxy, "away", False))
    failed.start()
    assert client.step([20.0, 0.0], 20.0) == 21
    failed.join()
    client.close()


def test_wrong_keys_of_one_client_leave_the_others_their_logins(gateway: Served, proxy: Any) -> None:
    statuses = {
        requests.post(f"{proxy.address}shepherd/login_user/", json={"apikey": "no"}).status_code for _ in range(25)
    }
    assert statuses == {401, 429}
    assert "ok" in requests.post(f"{proxy.address}shepherd/login_user/", json={"apikey": gateway.apikey}).json()


@pytest.mark.parametrize(("origin", "allowed"), [(f"https://{HOST}", True), ("https://evil.example", False)])
def test_a_websocket_passes(gateway: Served, proxy: Any, origin: str, allowed: bool) -> None:
    url = proxy.address.replace("http", "ws") + "shepherd/ws/"
    expected = contextlib.nullcontext() if allowed else pytest.raises(Exception, match="403")
    with expected, connect(url, additional_headers={"Origin": origin}, compression=None) as socket:
        socket.send(json.dumps({"apikey": gateway.apikey}))
        assert "ok" in json.loads(socket.recv(timeout=30))
        socket.send(json.dumps(FIRST))
        assert json.loads(socket.recv(timeout=30)) == {"action": 1}


def test_the_owner_logs_in_and_out_under_the_prefix(proxy: Any) -> None:
    with requests.Session() as browser:
        origin = {"Origin": f"https://{HOST}"}
        assert "Owner's token" in browser.get(proxy.address + "owner/").text
        wrong = browser.post(proxy.address + "owner/login/", {"token": "no"}, headers=origin)
        assert (wrong.status_code, 'action="./"' in wrong.text) == (401, True)
        page = browser.post(proxy.address + "owner/login/", {"token": "T"}, headers=origin)
        assert (page.url, "Open sessions" in page.text) == (proxy.address + "owner/", True)
        out = browser.post(proxy.address + "owner/logout/", headers=origin)
        assert (out.url, "Owner's token" in out.text) == (proxy.address + "owner/", True)
