"""The role `--dashboard` on the command line, alone and with `--local`."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.command_line import ROOT, Run, Start, announced, in_this_process, started
from tests.dashboard.test_recorded import Folder
from tests.waiting import until
from tmrl_core.config import from_values
from tmrl_core.dashboard.role import ROLE, local_changes, local_text, source_of
from tmrl_core.dashboard.settings import DashboardSection
from tmrl_core.dashboard.several import SeveralServers


def test_a_taken_default_port_is_replaced_for_a_local_run() -> None:
    default = DashboardSection().port
    with socket.socket() as other:
        with contextlib.suppress(OSError):  # a page of this machine has it
            other.bind(("127.0.0.1", default))
            other.listen()
        (change,) = local_changes(from_values({}))
    port = int(change.removeprefix("dashboard.port="))
    assert port != default
    assert local_text(from_values({"dashboard": {"port": port}})) == f"Live page: http://localhost:{port}/"


def test_a_port_of_the_configuration_stays() -> None:
    assert local_changes(from_values({"dashboard": {"port": 1234}})) == []


def test_a_link_with_a_token_is_in_the_log_only() -> None:
    text = local_text(from_values({"dashboard": {"login": True}}))
    assert text.startswith("Live page: its link is in ")
    assert text.endswith("dashboard.log")


def test_each_server_of_a_run_is_shown(tmp_path: Path) -> None:
    servers = {"endpoints": ["127.0.0.1:1", "127.0.0.1:2"]}
    config = from_values({"server": servers, "network": {"credentials_dir": str(tmp_path)}})
    source = source_of(config, None)
    with contextlib.closing(source):
        assert isinstance(source, SeveralServers)
        (other,) = source.others("")
        assert other.place == "127.0.0.1:2"
        assert "the Server at 127.0.0.1 port 2" in other.state


def test_it_watches_and_collects_nothing() -> None:
    assert ROLE.watches
    assert ROLE.client


@pytest.fixture
def command(tmp_path: Path) -> Iterator[Run]:
    with in_this_process(tmp_path) as run:
        yield run


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("TMRL_CORE_")}
    environ |= {"PYTHONPATH": str(ROOT), "TMRL_CORE_HOME": str(tmp_path / "home")}
    with started(tmp_path, environ) as call:
        yield call


def test_a_folder_is_an_option_of_this_role(command: Run) -> None:
    ended = command("--server", "--folder", "x")
    assert ended.returncode == 2
    assert "--folder goes with --dashboard, not --server" in ended.stderr


def test_a_folder_without_a_run_is_refused(command: Run) -> None:
    ended = command("--dashboard", "--folder", "nothing")
    assert ended.returncode == 2
    assert "no such folder; allowed: the folder of a run" in ended.stderr


@pytest.mark.full
@pytest.mark.timeout(120)
def test_a_folder_is_shown_without_a_server(start: Start, tmp_path: Path) -> None:
    Folder(tmp_path).learn()
    process = start("--dashboard", "--announce", "--folder", str(tmp_path), "--set", "dashboard.port=0", "--control")
    port = announced(process)
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    connection.request("GET", "/events")
    answer = connection.getresponse()
    while not (line := answer.readline()).startswith(b"data: "):
        pass
    assert json.loads(line[6:])["scene"]["run"] == "pendulum"
    assert process.stdin is not None
    process.stdin.write("stop\n")
    process.stdin.flush()
    assert process.wait(20) == 0
    connection.close()


@pytest.mark.full
@pytest.mark.timeout(400)
def test_a_page_that_cannot_start_does_not_end_the_run(start: Start) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        taken = f"dashboard.port={other.getsockname()[1]}"
        process = start("--local", "--small", "--workers", "1", "--dashboard", "--set", taken)
        output, _ = process.communicate(timeout=380)
    assert process.returncode in (0, 1), output  # 1: a short run has not learned
    assert "400 updates" in output
    assert "the dashboard ended with exit status 1" in output
    assert "set dashboard.port" in output


@pytest.mark.full
@pytest.mark.timeout(400)
def test_the_page_of_a_local_run_shows_its_trainer(start: Start, tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = start("--local", "--small", "--workers", "1", "--dashboard", "--set", f"dashboard.port={port}")
    lines: list[str] = []
    assert process.stdout is not None
    reading = threading.Thread(target=lambda: lines.extend(process.stdout or ()))
    reading.start()

    def shown() -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        try:
            connection.request("GET", "/events")
            answer, deadline = connection.getresponse(), time.monotonic() + 4
            while time.monotonic() < deadline:
                line = answer.readline()
                if line.startswith(b"data: ") and (json.loads(line[6:]).get("scene") or {}).get("env_steps"):
                    return True
        except OSError:
            return False
        finally:
            connection.close()
        return False

    until(shown, process, limit_s=200)
    process.wait(200)
    reading.join(10)
    assert any(line.startswith(f"Live page: http://localhost:{port}/") for line in lines)
