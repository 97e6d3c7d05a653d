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
from tmrl_core.networking import Server
from tmrl_core.networking.security import credentials


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
    network = {"credentials_dir": str(tmp_path)}
    credentials.create(tmp_path, ["localhost"])
    with contextlib.ExitStack() as stack:
        servers = [Server(config=from_values({"network": network, "server": {"port": 0}})) for _ in range(2)]
        for server in servers:
            stack.callback(server.close)
        places = [f"localhost:{server.port}" for server in servers]
        source = source_of(from_values({"network": network, "server": {"endpoints": places}}), None)
        stack.enter_context(contextlib.closing(source))
        assert isinstance(source, SeveralServers)
        until(lambda: source.status is not None and source.others("")[0].status is not None)
        (other,) = source.others("")
        assert (source.state, other.state, other.place) == ("connected", "connected", places[1])
        servers[1].close()
        until(lambda: source.others("")[0].state.startswith("not connected to the Server at localhost port"))
        assert source.state == "connected"


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
    connection.request("GET", "/about")
    assert json.loads(connection.getresponse().read())["run"] == tmp_path.name
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


@pytest.mark.full
@pytest.mark.timeout(500)
def test_a_local_run_shows_its_camera_and_the_video_of_its_latest_evaluation(start: Start) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    changes = [f"dashboard.port={port}", "server.port=0", "worker.evaluation_videos=true", "trainer.epochs=20"]
    changes += ["trainer.evaluation.target_return=null", "trainer.evaluation.every_updates=100"]
    sets = [word for change in changes for word in ("--set", change)]
    process = start("--local", "--workers", "1", "--dashboard", "--control", *sets)
    drain = threading.Thread(target=lambda: list(process.stdout or ()))
    drain.start()

    def ask(method: str, path: str, body: str = "") -> tuple[int, bytes]:
        headers = {"Origin": f"http://127.0.0.1:{port}", "Content-Type": "application/json"} if body else {}
        try:
            with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=5)) as connection:
                connection.request(method, path, body, headers)
                answer = connection.getresponse()
                return answer.status, answer.read()
        except OSError:
            return 0, b""

    camera = json.dumps({"kind": "camera", "worker": "worker-1"})
    until(lambda: ask("POST", "/orders", camera)[0] == 202, process, limit_s=120)

    def filmed() -> bool:
        time.sleep(1.0)
        ask("POST", "/orders", camera)  # the first ones came before the worker
        return ask("GET", "/pictures/camera?worker=worker-1")[1].startswith(b"\xff\xd8")

    until(filmed, process, limit_s=120)
    until(lambda: b"moov" in ask("GET", "/pictures/video")[1], process, limit_s=120)
    assert process.stdin is not None
    process.stdin.write("stop\n")
    process.stdin.flush()
    assert process.wait(60) in (0, 1)
    drain.join(10)
