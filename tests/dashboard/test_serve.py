"""The live page as a server: start, streams, TLS, end."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.dashboard.played import Played, history, scene, status
from tests.waiting import until
from tmrl_core.config import Config, from_values
from tmrl_core.dashboard.serve import Dashboard
from tmrl_core.errors import CredentialsError, NetworkError
from tmrl_core.networking.security import credentials


def config(folder: Path, **settings: Any) -> Config:
    return from_values(
        {
            "run": {"name": "pendulum_sac", "folder": str(folder / "runs")},
            "network": {"credentials_dir": str(folder / "credentials")},
            "dashboard": {"port": 0, **settings},
        }
    )


class Stream:
    """The events of one page."""

    def __init__(self, port: int, headers: dict[str, str] | None = None) -> None:
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        self.connection.request("GET", "/events", headers=headers or {})
        self.response = self.connection.getresponse()
        self.status = self.response.status

    def close(self) -> None:
        self.response.close()
        self.connection.close()

    def event(self) -> tuple[str, Any, str]:
        """Return the next event: kind, content and id."""
        found: dict[str, str] = {}
        while True:
            line = self.response.readline().decode()
            if line == "\n" and "event" in found:
                return found["event"], json.loads(found["data"]), found.get("id", "")
            if line == "\n":
                found = {}
            else:
                assert line, "the stream has ended"
                name, _, value = line.rstrip("\n").partition(": ")
                found[name] = value

    def screens(self) -> Iterator[dict[str, Any]]:
        while True:
            kind, found, _ = self.event()
            if kind == "screen":
                yield found


def get(port: int, path: str) -> tuple[int, bytes]:
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=10)) as connection:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read()


def test_pages_follow_the_run_until_the_end(tmp_path: Path) -> None:
    source = Played()
    source.show(scene=scene(), history=history(), status=status())
    with Dashboard(config(tmp_path), source) as page:
        assert page.link == page.url == f"http://localhost:{page.port}/"
        assert b"Is it learning?" in get(page.port, "/")[1]
        streams = [Stream(page.port) for _ in range(3)]
        for steps, stream in enumerate(streams, 1):
            source.show(scene=scene(env_steps=steps, time_s=steps))
            assert next(one for one in stream.screens() if one["scene"].get("env_steps") == steps)
        ending = threading.Thread(target=page.close)
        ending.start()
        for stream in streams:
            while stream.event()[0] != "end":
                pass
            assert stream.response.readline() == b""
            stream.close()
        ending.join(10)
        assert not ending.is_alive()
    assert source.closed


def test_a_page_that_has_gone_is_forgotten(tmp_path: Path) -> None:
    source = Played()
    source.show(scene=scene())
    with Dashboard(config(tmp_path, max_viewers=1), source) as page:
        stream = Stream(page.port)
        stream.event()
        assert get(page.port, "/events")[0] == 503
        stream.close()

        def served() -> bool:
            source.show(scene=scene())
            with contextlib.closing(Stream(page.port)) as another:
                return another.status == 200

        until(served)


def test_a_port_that_is_taken_is_said_and_the_source_is_closed(tmp_path: Path) -> None:
    source = Played()
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(NetworkError, match=rf"port {port} of 127.0.0.1 is in use: .* set dashboard.port"):
            Dashboard(config(tmp_path, port=port), source)
    assert source.closed


def test_other_machines_need_the_certificate_of_a_server(tmp_path: Path) -> None:
    with pytest.raises(CredentialsError, match=r"reach the dashboard over HTTPS.*set dashboard.host to 127.0.0.1"):
        Dashboard(config(tmp_path, host="0.0.0.0"), Played())


def test_other_machines_reach_it_over_https_with_a_login(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tmp_path / "credentials"
    credentials.create(folder, ["robots.example"])
    with Dashboard(config(tmp_path, host="0.0.0.0"), Played()) as page:
        assert f"the certificate is not for {socket.gethostname().lower()} but for robots.example, " in caplog.text
        token = page.link.partition("/login/#")[2]
        assert len(token) > 30
        context = ssl.create_default_context(cafile=str(folder / "ca.pem"))
        context.check_hostname = False
        connection = http.client.HTTPSConnection("127.0.0.1", page.port, timeout=10, context=context)
        connection.request("GET", "/about")
        assert connection.getresponse().read().startswith(b'{"error":"the live page needs a login')
        connection.request("GET", "/about", headers={"Authorization": f"Bearer {token}"})
        assert json.loads(connection.getresponse().read())["run"] == "pendulum_sac"
        connection.close()
    caplog.clear()
    credentials.create(folder, [socket.gethostname()])
    with Dashboard(config(tmp_path, host="0.0.0.0"), Played()):
        assert "the certificate is not for" not in caplog.text
