"""All roles on this machine: what is refused before the start, and how children are looked after."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tmrl_core import local, supervision
from tmrl_core.config import Config, from_values
from tmrl_core.ending import Ending
from tmrl_core.errors import ConfigError, TmrlError
from tmrl_core.metrics import MetricRecord
from tmrl_core.outcome import Outcome, files, minutes, what_next
from tmrl_core.supervision import Child, Processes, environment, trainer_threads

STARVING = {
    "worker": {"collection": "synchronous", "max_steps_per_update": 1.0, "initial_steps": 10},
    "trainer": {"start_training": 5000, "max_training_steps_per_env_step": 0.1},
}


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


class Listener:
    """What a group tells."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.starving = False

    def refresh(self) -> None:
        pass

    def say(self, text: str) -> None:
        self.said.append(text)


# --- before the start -------------------------------------------------------------------------------------------------


def test_ratios_that_starve_are_refused_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"trainer\.start_training = 5000"):
        local.run_local(from_values(STARVING), [], Ending(), workers=2)
    assert list(tmp_path.iterdir()) == []


def test_the_command_line_refuses_them_with_exit_status_2(tmp_path: Path) -> None:
    package = Path(local.__file__).resolve().parents[1]
    done = subprocess.run(
        [sys.executable, "-m", "tmrl_core", "--local", "--set", "worker.max_env_steps_per_update=0.5"],
        env={**os.environ, "PYTHONPATH": str(package)},
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=60,
    )
    assert done.returncode == 2
    assert "Their product, 0.5, must be at least 1" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "runs").exists()


def test_the_local_transport_connects_threads_only() -> None:
    config = from_values({"network": {"transport": "local"}})
    with pytest.raises(ConfigError, match="--single-process"):
        local.changes_for_this_machine(config, single_process=False, quickstart=False)
    assert local.changes_for_this_machine(config, single_process=True, quickstart=False) == ["network.transport=local"]


def test_a_server_elsewhere_is_here_now() -> None:
    config = from_values({"server": {"host": "server.example.org", "bind": "0.0.0.0"}})
    changes = local.changes_for_this_machine(config, single_process=False, quickstart=False)
    assert changes == ["server.host=127.0.0.1", "network.hostname=null", "server.bind=127.0.0.1"]
    assert local.changes_for_this_machine(Config(), single_process=False, quickstart=False) == []


def test_a_quickstart_leaves_earlier_runs_alone(tmp_path: Path) -> None:
    config = from_values({"run": {"name": "x"}})
    assert local.free_run_name(config) == "x"
    (tmp_path / "runs" / "x").mkdir(parents=True)
    (tmp_path / "runs" / "x-2").mkdir()
    assert local.free_run_name(config) == "x-3"
    changes = local.changes_for_this_machine(config, single_process=False, quickstart=True)
    assert changes == ["run.name=x-3", "server.port=0"]
    long = from_values({"run": {"name": "y" * 64}})
    (tmp_path / "runs" / ("y" * 64)).mkdir()
    assert local.free_run_name(long) == "y" * 56 + "-2"


def test_the_trainer_computes_with_the_cores_left_over(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in supervision.THREAD_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    assert trainer_threads(Config(), workers=10_000) == 1
    assert trainer_threads(from_values({"trainer": {"threads": 7}}), workers=1) == 7
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert trainer_threads(Config(), workers=1) is None
    assert environment(2)["OMP_NUM_THREADS"] == "2"
    assert environment(None)["OMP_NUM_THREADS"] == "3"


# --- children ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> Iterator[Processes]:
    """A group whose trainer is a Server, so that it runs until it is asked to end; its one worker is not started."""
    monkeypatch.setenv("PYTHONPATH", str(Path(local.__file__).resolve().parents[1]))
    group = Processes(Config(), [], workers=1)
    group.trainer.arguments = ["--server", "--set", "server.port=0"]
    group.server.arguments = ["--server", "--announce", "--set", "server.port=0"]
    yield group
    group.kill()
    for child in (*group.workers, group.trainer, group.server):
        child.release()


def ended(child: Child) -> None:
    """Wait for a child's end."""
    assert child.process is not None
    child.process.wait(60)


def test_a_child_ends_in_order_when_it_is_asked_to(processes: Processes) -> None:
    processes.server.start(announces=True)
    listener = Listener()
    assert processes.port_of_server(listener) > 0
    processes.server.ask_to_end()
    ended(processes.server)
    assert processes.server.status == 0


def test_a_child_ends_when_its_supervisor_dies(tmp_path: Path, processes: Processes) -> None:
    code = (
        "import json, os, sys; from tmrl_core.supervision import Processes; from tmrl_core.config import Config;"
        "from types import SimpleNamespace as View;"
        "group = Processes(Config(), ['--set', 'server.port=0'], workers=1); group.server.start(announces=True);"
        "group.port_of_server(View(refresh=lambda: None)); print(group.server.process.pid, flush=True);"
        "os.kill(os.getpid(), 9)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout, done.stderr
    with contextlib.suppress(psutil.NoSuchProcess):
        psutil.Process(int(done.stdout)).wait(30)
    assert "the supervisor is gone" in processes.server.log.read_text(encoding="utf-8")


def test_a_server_that_cannot_start_says_why(processes: Processes) -> None:
    processes.server.arguments = ["--server", "--announce", "--set", "server.prot=1"]
    processes.server.start(announces=True)
    with pytest.raises(TmrlError, match=r"(?s)the server ended with exit status 2; the last lines of .*server\.prot"):
        processes.port_of_server(Listener())


def test_a_worker_that_crashes_is_started_again_a_few_times(
    processes: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervision, "RESTART_PAUSE_S", 0.0)
    processes.trainer.start()
    processes.server.start(announces=True)
    worker = processes.workers[0]
    worker.arguments = ["--benchmark", "--set", "environment.kwargs.id=NoSuchEnvironment-v0"]
    worker.start()
    listener = Listener()
    for _ in range(supervision.RESTARTS):
        ended(worker)
        assert processes.look(listener)  # says that it ended
        assert processes.look(listener)  # starts it again
    ended(worker)
    with pytest.raises(TmrlError, match=r"(?s)the worker-1 ended with exit status 1.*NoSuchEnvironment"):
        processes.look(listener)
    assert worker.restarts == supervision.RESTARTS
    assert len(listener.said) == supervision.RESTARTS
    assert worker.log.read_text(encoding="utf-8").count("Traceback (most recent call last)") > supervision.RESTARTS


def test_a_worker_with_a_wrong_configuration_is_not_started_again(processes: Processes) -> None:
    processes.trainer.start()
    processes.server.start(announces=True)
    worker = processes.workers[0]
    worker.arguments = ["--worker", "--set", "worker.nmae=x"]
    worker.start()
    ended(worker)
    with pytest.raises(TmrlError, match=r"(?s)exit status 2.*worker\.nmae"):
        processes.look(Listener())


def test_a_trainer_that_fails_ends_the_run_with_its_last_words(processes: Processes) -> None:
    processes.trainer.arguments = ["--trainer", "--set", "trainer.loop=no_such_module:Loop"]
    processes.trainer.start()
    ended(processes.trainer)
    with pytest.raises(TmrlError, match="the trainer ended with exit status"):
        processes.look(Listener())


def test_all_end_in_order_workers_first(processes: Processes, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    asked = Child.ask_to_end

    def note(child: Child) -> None:
        order.append(child.name)
        asked(child)

    monkeypatch.setattr(Child, "ask_to_end", note)
    processes.server.start(announces=True)
    processes.port_of_server(Listener())
    processes.trainer.start()
    processes.end(Listener())
    assert order == ["worker-1", "trainer", "server"]
    assert (processes.server.status, processes.trainer.status) == (0, 0)


# --- the outcome ------------------------------------------------------------------------------------------------------


def record(kind: str, step: int = 0, **values: float | str) -> MetricRecord:
    """A record of second 90."""
    return MetricRecord(time_s=0.0, elapsed_s=90.0, step=step, kind=kind, values=dict(values))  # type: ignore[arg-type]


def test_an_evaluation_at_the_target_is_learned() -> None:
    outcome = Outcome(-200.0)
    outcome.take([record("round", step=100, samples_received=1500), record("evaluation", return_evaluation=-900.0)])
    assert outcome.sentence().startswith("Not learned: the last evaluation has a mean return of -900.0")
    outcome.take([record("evaluation", step=200, return_evaluation=-150.0, episodes=10)])
    assert outcome.learned
    assert outcome.sentence() == (
        "Learned: the last evaluation of 10 episodes has a mean return of -150.0, the target is -200; "
        "1,500 environment steps, 200 updates, 1 min 30 s."
    )


def test_without_samples_the_reason_is_that() -> None:
    assert Outcome(-200.0).sentence() == "Not learned: no sample reached the trainer in 0 s."
    assert Outcome(None).learned
    assert Outcome(None).sentence().startswith("Done: no evaluation was finished")


def test_what_the_trainer_lacks_is_known_until_it_trains_again() -> None:
    outcome = Outcome(None)
    outcome.take([record("network", lack="no sample has arrived yet")])
    assert outcome.lack == "no sample has arrived yet"
    outcome.take([record("network", step=1)])
    assert outcome.lack == ""


def test_only_files_that_are_there_are_named(tmp_path: Path) -> None:
    (tmp_path / "policy.tmod").touch()
    (tmp_path / "logs").mkdir()
    text = files(tmp_path)
    assert "policy.tmod" in text
    assert "logs" + os.sep in text
    assert "learning_curve.png" not in text


def test_what_to_type_next_is_on_the_command_line() -> None:
    from tmrl_core import cli

    for line in what_next(from_values({"run": {"name": "x"}})).splitlines():
        for command in line.split("python -m tmrl_core ")[1:]:
            words = command.split(" (")[0].split()
            if words[0] != "--credentials":
                assert cli.parser().parse_args(words).role in cli.ROLES


def test_durations_are_said_as_people_do() -> None:
    assert [minutes(s) for s in (0.4, 59.4, 60, 125)] == ["0 s", "59 s", "1 min 00 s", "2 min 05 s"]
