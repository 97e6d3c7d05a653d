"""scripts/fleets: workers under Ray; the manifests of JobSet and SkyPilot against the command line that they call."""

from __future__ import annotations

import importlib
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from tmrl_core.cli.credentials import parser as credentials_parser
from tmrl_core.cli.main import all_overrides, parser
from tmrl_core.config import Config, load

FOLDER = Path(__file__).resolve().parents[2] / "scripts" / "fleets"
ROLES = {"server", "trainer", "worker"}


def accepted(words: list[str], variables: dict[str, str]) -> tuple[str, Config]:
    """The role of a command line, and its configuration; the file itself is the user's."""
    options = parser().parse_args(words)
    assert options.config.endswith("my.yaml")
    return options.role, load(
        FOLDER.parents[1] / "config" / "pendulum_sac.yaml", all_overrides(options), {**variables, "HOME": "/home"}
    )


# --- Ray --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def workers(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """`scripts/fleets/ray_workers.py`, which waits for nothing."""
    monkeypatch.syspath_prepend(FOLDER)
    module = importlib.import_module("ray_workers")
    monkeypatch.setattr(module, "PAUSE_S", 0.01)
    monkeypatch.setattr(module, "POLL_S", 0.05)
    return module


def child(code: str) -> list[str]:
    """A program in the place of a worker."""
    return [sys.executable, "-S", "-c", code]


def until_input_ends(path: Path) -> list[str]:
    """A program that notes its start, and ends in order when its standard input does."""
    return child(f"import sys; open({str(path)!r}, 'a').write('started '); sys.stdin.read()")


class Call:
    """Of an actor's method, in a thread."""

    def __init__(self, method: Callable[[], Any]) -> None:
        self.outcome: Any = None
        self.thread = threading.Thread(target=self._run, args=[method])
        self.thread.start()

    def _run(self, method: Callable[[], Any]) -> None:
        self.outcome = method()


class Method:
    def __init__(self, method: Callable[[], Any]) -> None:
        self.remote = lambda: Call(method)


class Actor:
    def __init__(self, supervisor: Any) -> None:
        self.run, self.stop = Method(supervisor.run), Method(supervisor.stop)


class LocalRay:
    """Calls of Ray that `run_fleet` makes, with threads."""

    def __init__(self) -> None:
        self.asked: dict[str, Any] = {}

    def remote(self, cls: type[Any]) -> Any:
        outer = self

        class Made:
            @staticmethod
            def options(**asked: Any) -> Any:
                outer.asked = asked
                return Made

            @staticmethod
            def remote(*arguments: Any) -> Actor:
                return Actor(cls(*arguments))

        return Made

    def wait(self, calls: list[Call], timeout: float) -> tuple[list[Call], list[Call]]:
        calls[0].thread.join(timeout)
        ended = [call for call in calls if not call.thread.is_alive()]
        return ended, [call for call in calls if call not in ended]

    def get(self, call: Call) -> Any:
        return call.outcome


def test_a_worker_that_crashes_is_started_again(workers: ModuleType, tmp_path: Path) -> None:
    crashes_once = f"import os; os.mkdir({str(tmp_path / 'here')!r})"
    assert workers.Supervisor(child(f"try: {crashes_once}\nexcept OSError: pass\nelse: raise SystemExit(1)")).run() == 0


def test_a_wrong_configuration_is_not_started_again(workers: ModuleType) -> None:
    assert workers.Supervisor(child("raise SystemExit(2)")).run() == 2


def test_a_worker_does_not_start_after_the_request_to_end(workers: ModuleType, tmp_path: Path) -> None:
    supervisor = workers.Supervisor(until_input_ends(tmp_path / "x"))
    supervisor.stop()
    assert supervisor.run() == 0
    assert not (tmp_path / "x").exists()


def test_all_workers_end_in_order_at_a_request(workers: ModuleType, tmp_path: Path) -> None:
    ray, end = LocalRay(), threading.Event()
    files = [tmp_path / "1", tmp_path / "2"]
    commands = [until_input_ends(file) for file in files]
    ended: list[int] = []
    fleet = threading.Thread(target=lambda: ended.append(workers.run_fleet(ray, commands, 0.5, end)))
    fleet.start()
    while not all(file.exists() for file in files):
        fleet.join(0.01)
    end.set()
    fleet.join(20)
    assert ended == [0]
    assert [file.read_text() for file in files] == ["started ", "started "]
    # Ray restarts a lost actor and repeats its call; `stop` runs beside `run`.
    assert (ray.asked["max_restarts"], ray.asked["max_task_retries"], ray.asked["num_cpus"]) == (-1, -1, 0.5)
    assert ray.asked["max_concurrency"] == 2


def test_a_wrong_configuration_ends_the_fleet(
    workers: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    commands = [until_input_ends(tmp_path / "1"), child("raise SystemExit(2)")]
    assert workers.run_fleet(LocalRay(), commands, 1.0, threading.Event()) == 2
    assert "configuration is wrong" in capsys.readouterr().err


def test_the_worker_of_an_actor_is_accepted(workers: ModuleType) -> None:
    _, _, _, *words = workers.command("ray-3", ["-c", "my.yaml", "--set", "worker.send_every=50"])
    role, config = accepted(["--worker", *words], {})
    assert (role, config.worker.name, config.worker.send_every) == ("worker", "ray-3", 50)
    assert parser().parse_args(["--worker", *words]).control


def test_the_driver_says_what_is_wrong(
    workers: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        workers.main(["--workers", "0", "-c", "my.yaml"])
    assert "at least 1, got 0" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(SystemExit):
        workers.main(["--workers", "2", "-c", "my.yaml"])
    assert "pip install ray" in capsys.readouterr().err


# --- JobSet -----------------------------------------------------------------------------------------------------------


def documents(name: str) -> list[Any]:
    return list(yaml.safe_load_all((FOLDER / name).read_text(encoding="utf-8")))


def pods() -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    """(name, pod, its only container) of each role."""
    _, jobset = documents("jobset.yaml")
    for job in jobset["spec"]["replicatedJobs"]:
        pod = job["template"]["spec"]["template"]["spec"]
        (container,) = pod["containers"]
        yield job["name"], pod, container


def test_each_role_has_a_pod_whose_command_is_accepted() -> None:
    claim, jobset = documents("jobset.yaml")
    server = f"{jobset['metadata']['name']}-server-0-0.{jobset['metadata']['name']}"
    seen = set()
    for name, pod, container in pods():
        variables = {one["name"]: one["value"] for one in container["env"] if "value" in one}
        role, config = accepted(container["args"], variables)
        assert role == name
        seen.add(role)
        assert config.server.host == server
        mounted = {one["name"]: one["mountPath"] for one in container["volumeMounts"]}
        volumes = {one["name"]: one for one in pod["volumes"]}
        assert mounted.keys() == volumes.keys()
        # A role sees its own secret only.
        assert volumes["bundle"]["secret"]["secretName"] == f"tmrl-{role}"
        assert variables["TMRL_CORE_HOME"] == mounted["data"]
        if role == "server":
            assert container["ports"] == [{"containerPort": config.server.tcp_port}]
            assert str(config.server.spool_dir).startswith(mounted["data"])
        else:
            assert str(config.run.folder).startswith(mounted["data"])
        if role == "trainer":
            assert volumes["data"]["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
            assert config.memory.storage == "disk"
        if role == "worker":
            assert pod["terminationGracePeriodSeconds"] > config.worker.drain_timeout_s
            assert config.worker.name == "worker-$(INDEX)"
            assert [one["name"] for one in container["env"]].index("INDEX") < len(container["env"]) - 1
    assert seen == ROLES
    assert jobset["spec"]["successPolicy"]["targetReplicatedJobs"] == ["trainer"]


@pytest.mark.skipif(sys.platform == "win32", reason="bash and POSIX signals")
@pytest.mark.parametrize(
    ("then", "status"), [("exit 2", 2), ("exit 0", 0), ("while sleep 0.05; do :; done", 143)], ids=str
)
def test_an_evicted_pod_does_not_count_as_completed(tmp_path: Path, then: str, status: int) -> None:
    # A role that ends in order, with status 0, at SIGTERM.
    program = tmp_path / "python"
    program.write_text(
        f'#!/bin/bash\ntrap "exit 0" TERM\necho "$@"\nif [ "$3" = --credentials ]; then exit; fi\n{then}\n'
    )
    program.chmod(0o755)
    (command,) = {tuple(container["command"]) for _, _, container in pods()}
    with subprocess.Popen(
        [*command, "--worker"],
        env={"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"},
        stdout=subprocess.PIPE,
        text=True,
    ) as pod:
        assert pod.stdout is not None
        assert pod.stdout.readline() == "-m tmrl_core --credentials install /bundle/bundle\n"
        assert pod.stdout.readline() == "-m tmrl_core --worker\n"
        if status == 143:
            pod.send_signal(signal.SIGTERM)
        assert pod.wait(20) == status


# --- SkyPilot ---------------------------------------------------------------------------------------------------------


def test_each_role_has_a_task_whose_commands_are_accepted() -> None:
    group, *tasks = documents("skypilot.yaml")
    assert {task["name"] for task in tasks} == ROLES
    assert group["primary_tasks"] == ["trainer"]
    for task in tasks:
        words = shlex.split(re.sub(r"\$\w+", "1", task["run"]))
        assert words[:4] == ["exec", "python", "-m", "tmrl_core"]
        role, config = accepted(words[4:], task["envs"])
        assert role == task["name"]
        assert config.server.host == f"server-0.{group['name']}"
        # A node holds the bundle of its own role only, and the clone has none.
        files = task["file_mounts"]
        assert files.keys() == {"~/my.yaml", "~/bundle"}
        assert files["~/bundle"].endswith(f".{role}.bundle")
        (install,) = re.findall(r"--credentials (.*)", task["setup"])
        assert credentials_parser().parse_args(shlex.split(install)).file == "~/bundle"
