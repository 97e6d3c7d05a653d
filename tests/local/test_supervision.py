"""Children: started with their share of the cores, started again, ended in order, never orphaned."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.waiting import until
from tmrl_core.config import Config, from_values
from tmrl_core.errors import ConfigError, TmrlError
from tmrl_core.local import supervision
from tmrl_core.local.supervision import Child, Fleet, Pipeline, Threads, command, environment
from tmrl_core.roles.shutdown import STOP


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


class Listener:
    """What a group tells."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.hindered: list[str] = []
        self.starving = False

    def refresh(self) -> None:
        pass

    def say(self, text: str) -> None:
        self.said.append(text)

    def hinder(self, text: str) -> None:
        self.hindered.append(text)


def test_only_a_configured_number_limits_the_trainers_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def threads(**trainer: int) -> list[int | None]:
        group = Pipeline(from_values({"run": {"folder": str(tmp_path)}, "trainer": trainer}), [], workers=1)
        return [child.threads for child in (group.server, *group.workers, group.trainer)]

    assert threads() == [1, 1, None]
    assert threads(threads=7) == [1, 1, 7]
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert environment(2)["OMP_NUM_THREADS"] == "2"
    assert environment(None)["OMP_NUM_THREADS"] == "3"


SHOW = "import json, sys; print(json.dumps([sys.path, sys.argv[1:]]))"


def shown(words: list[str], folder: Path) -> tuple[list[str], list[str]]:
    """Return the search path and the arguments that a process prints."""
    path, arguments = json.loads(subprocess.check_output(words, cwd=folder))
    return [entry or str(folder) for entry in path], arguments


def test_children_search_modules_where_this_process_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "first" / "tmrl_core"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text(SHOW)
    monkeypatch.syspath_prepend(str(tmp_path / "first"))
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path / "last")])
    path, arguments = shown([*command(str(tmp_path)), "--server", "-c", "x.yaml"], tmp_path)
    assert path == sys.path
    assert arguments == ["--server", "-c", "x.yaml"]


@pytest.mark.parametrize("given", [None, "elsewhere"])
def test_children_get_no_search_path_that_they_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str | None
) -> None:
    # PYTHONPATH comes before the packages of an environment that is layered over the one that holds this package.
    monkeypatch.delenv("PYTHONPATH", raising=False)
    if given:
        monkeypatch.setenv("PYTHONPATH", given)
    assert environment(1).get("PYTHONPATH") == given
    own, _ = shown([sys.executable, "-c", SHOW], tmp_path)
    monkeypatch.setattr(sys, "path", own)
    supervision._path_of_a_child.cache_clear()
    try:
        assert command(str(tmp_path)) == [sys.executable, "-m", "tmrl_core"]
    finally:
        supervision._path_of_a_child.cache_clear()


@pytest.mark.skipif(sys.platform == "win32", reason="logs are not bounded there")
def test_the_log_of_a_process_that_prints_without_end_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervision, "LOG_BYTES", 20_000)
    endless = "import itertools\nfor number in itertools.count():\n    print(f'line {number}', flush=True)"
    monkeypatch.setattr(supervision, "command", lambda folder: [sys.executable, "-c", endless])
    log = tmp_path / "worker-1.log"
    log.write_bytes(b"of an earlier run")
    child = Child("worker-1", [], log, 1, tmp_path)
    child.start()
    older = tmp_path / "worker-1.log.1"
    moved: set[bytes] = set()
    try:
        assert older.read_bytes() == b"of an earlier run"
        older.unlink()
        while len(moved) < 4:
            child.bound_log()
            if older.exists():
                moved.add(older.read_bytes())
        until(lambda: log.stat().st_size > 100)
    finally:
        child.end_now()
        child.release()
    assert all(len(content) >= 20_000 for content in moved)
    # It goes on in the same file, at its beginning.
    content = log.read_bytes()
    assert b"\0" not in content
    assert child.last_lines(1)[0].startswith("line ")
    assert {path.name for path in tmp_path.iterdir()} == {log.name, older.name}


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> Iterator[Pipeline]:
    """A group whose trainer is a Server, so that it runs until it is asked to end; its one worker is not started."""
    monkeypatch.setenv("PYTHONPATH", str(Path(supervision.__file__).resolve().parents[2]))
    group = Pipeline(Config(), [], workers=1)
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


@pytest.mark.parametrize(("status", "counts_as"), [(0, 0), (1, 1), (2, 2), (3, 0)])
def test_a_worker_that_has_dropped_samples_is_not_started_again(tmp_path: Path, status: int, counts_as: int) -> None:
    child = Child("worker-1", [], tmp_path / "log", None, tmp_path)
    with subprocess.Popen([sys.executable, "-c", f"raise SystemExit({status})"]) as child.process:
        ended(child)
        assert child.status == counts_as


def test_a_child_ends_in_order_on_request(processes: Pipeline) -> None:
    processes.server.start(announces=True)
    listener = Listener()
    assert processes.port_of_server(listener) > 0
    processes.server.tell(STOP)
    ended(processes.server)
    assert processes.server.status == 0


def test_a_child_ends_when_its_supervisor_dies(tmp_path: Path, processes: Pipeline) -> None:
    code = (
        "import json, os, sys; from tmrl_core.local.supervision import Pipeline; from tmrl_core.config import Config;"
        "from types import SimpleNamespace as View;"
        "group = Pipeline(Config(), ['--set', 'server.port=0'], workers=1); group.server.start(announces=True);"
        "group.port_of_server(View(refresh=lambda: None)); print(group.server.process.pid, flush=True);"
        "os.kill(os.getpid(), 9)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout, done.stderr
    with contextlib.suppress(psutil.NoSuchProcess):
        psutil.Process(int(done.stdout)).wait(30)
    assert "the supervisor is gone" in processes.server.log.read_text(encoding="utf-8")


def test_a_server_that_cannot_start_reports_the_reason(processes: Pipeline) -> None:
    processes.server.arguments = ["--server", "--announce", "--set", "server.prot=1"]
    processes.server.start(announces=True)
    with pytest.raises(ConfigError, match=r"(?s)the server ended with exit status 2; the last lines of .*server\.prot"):
        processes.port_of_server(Listener())


def test_a_worker_that_crashes_is_started_again_a_few_times_and_old_restarts_do_not_count(
    processes: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervision, "RESTART_PAUSE_S", 0.0)
    monkeypatch.setattr(supervision, "RESTARTS", 2)
    processes.trainer.start()
    processes.server.start(announces=True)
    worker = processes.workers[0]
    worker.arguments = ["--benchmark", "--set", "environment.cls=builtins:divmod"]  # which fails when it is called
    worker.restarts = supervision.RESTARTS
    worker.start()
    listener = Listener()
    for number in range(supervision.RESTARTS):
        ended(worker)
        with monkeypatch.context() as steady:
            if number == 0:
                steady.setattr(supervision, "STEADY_S", 0.0)
            assert processes.poll(listener)  # says that it ended, and why
            assert processes.poll(listener)  # starts it again
        assert worker.restarts == number + 1
    ended(worker)
    with pytest.raises(TmrlError, match=r"(?s)^worker-1 ended with exit status 1.*divmod expected 2"):
        processes.poll(listener)
    assert worker.restarts == supervision.RESTARTS
    assert len(listener.said) == supervision.RESTARTS
    said = "EnvironmentFailedError: environment.cls: 'builtins:divmod': TypeError: divmod expected 2"
    assert all(f"exit status 1 and is restarted: {said}" in line for line in listener.said)
    assert worker.log.read_text(encoding="utf-8").count(said) > supervision.RESTARTS


def test_a_worker_with_a_wrong_configuration_is_not_started_again(processes: Pipeline) -> None:
    processes.trainer.start()
    processes.server.start(announces=True)
    worker = processes.workers[0]
    worker.arguments = ["--worker", "--set", "worker.nmae=x"]
    worker.start()
    ended(worker)
    # The whole then ends as that worker would have ended by itself: with the exit status of a wrong configuration.
    with pytest.raises(ConfigError, match=r"(?s)^worker-1 ended with exit status 2.*worker\.nmae"):
        processes.poll(Listener())


@pytest.mark.parametrize(
    ("lines", "found"),
    [
        (["INFO a", "ConfigError: b", "    c", "    d", "printed by the environment"], ["ConfigError: b", "c", "d"]),
        (["ConfigError: a", "ContractError: b"], ["ContractError: b"]),
        (["ConfigError: list", *(f"    {number}" for number in range(30))], ["ConfigError: list", *"0123"]),
        (["no error", "  Error: indented"], []),
        ([], []),
    ],
)
def test_the_last_error_of_a_log_has_five_lines_at_most(lines: list[str], found: list[str]) -> None:
    assert supervision.last_error(lines) == found


HANGING = """
import time
class Env:
    def __init__(self):
        open("entered", "w").close()
        time.sleep(600)
"""


def test_an_environment_that_hangs_is_shown_and_does_not_hold_up_the_end(
    tmp_path: Path, processes: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "hanging.py").write_text(HANGING)
    monkeypatch.chdir(tmp_path)
    worker, listener = processes.workers[0], Listener()
    worker.folder = tmp_path
    worker.arguments = ["--benchmark", "--set", "environment.cls=hanging:Env", "--set", "environment.kwargs={}"]
    worker.arguments += ["--set", "worker.drain_timeout_s=2"]
    worker.start()
    until((tmp_path / "entered").exists, limit_s=60.0)
    began = time.monotonic()
    processes._end([worker], 60.0, listener)
    assert time.monotonic() - began < 30
    assert worker.status == 1
    (said,) = listener.said
    assert "waiting for worker-1: the environment's constructor has lasted" in said
    assert "hanging.py, line 6, in __init__" in said
    assert any(text.startswith("worker-1: the environment's constructor") for text in listener.hindered)
    assert not worker.remarks.exists()


def test_all_end_in_order_workers_first(processes: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    tell = Child.tell

    def note(child: Child, request: bytes) -> None:
        order.append(child.name)
        tell(child, request)

    monkeypatch.setattr(Child, "tell", note)
    processes.server.start(announces=True)
    processes.port_of_server(Listener())
    processes.trainer.start()
    processes.end(Listener())
    assert order == ["worker-1", "trainer", "server"]
    assert (processes.server.status, processes.trainer.status) == (0, 0)


def failing(error: Exception) -> Threads:
    """A group whose trainer has ended with this error."""

    def fail() -> None:
        raise error

    group = Threads(Config(), workers=0)
    group._run("trainer", fail)
    group._threads["trainer"].join(20)
    return group


def test_the_error_of_a_thread_is_raised_and_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    for error in (TmrlError("one of ours"), ZeroDivisionError("unexpected")):
        group = failing(error)
        with pytest.raises(type(error), match=str(error)):
            group.poll(Listener())
        group.end(Listener())
    assert caplog.text == ""


def test_a_trainer_that_fails_during_shutdown_is_a_failure(caplog: pytest.LogCaptureFixture) -> None:
    for error in (TmrlError("the disk is full"), ZeroDivisionError("unexpected")):
        group = failing(error)
        group.end(Listener())
        assert group.failed is error
    assert caplog.text == ""


def test_a_worker_that_fails_during_shutdown_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    for error, traced in ((TmrlError("no place"), False), (ZeroDivisionError("unexpected"), True)):
        caplog.clear()
        group = Threads(Config(), workers=0)
        group._failed.put(("worker-1", error))
        group.end(Listener())
        assert f"the worker-1 failed: {type(error).__name__}: {error}" in caplog.text
        assert ("ZeroDivisionError" in (caplog.records[0].exc_text or "")) == traced
        assert group.failed is None


def test_children_start_in_the_folder_of_the_configuration(
    processes: Pipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "small.yaml").touch()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    child = processes.trainer
    child.arguments = ["--test", "-c", "small.yaml"]
    child.start()
    ended(child)
    assert f"neither {tmp_path / 'runs' / 'default' / 'policy.tmod'} nor" in child.last_lines(1)[0]


def test_a_full_disk_is_reported_on_the_terminal(processes: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    listener = Listener()
    processes._check_disk(listener)
    assert listener.said == []
    # Looked at again only after a while.
    monkeypatch.setattr(supervision, "MIN_FREE_BYTES", 1 << 62)
    processes._check_disk(listener)
    assert listener.said == []
    monkeypatch.setattr(supervision, "DISK_S", 0.0)
    processes._disk_due = 0.0
    processes._check_disk(listener)
    start = f"No space is left on the disk of {Path.cwd() / 'runs' / 'default'}:"
    assert [line.startswith(start) for line in listener.said] == [True]
    processes._disk_due = 0.0
    monkeypatch.setattr(processes, "_logs", Path("gone"))
    processes._check_disk(listener)
    assert "cannot be checked" in listener.said[-1]


def test_a_failing_trainer_ends_the_run_with_its_last_messages(processes: Pipeline) -> None:
    processes.trainer.arguments = ["--trainer", "--set", "trainer.epochs=none"]
    processes.trainer.start()
    ended(processes.trainer)
    with pytest.raises(ConfigError, match=r"(?s)the trainer ended with exit status 2.*trainer\.epochs"):
        processes.poll(Listener())
    processes.end(Listener())
    assert isinstance(processes.failed, ConfigError)
    assert "trainer.epochs" in str(processes.failed)


def test_a_requested_end_of_the_trainer_is_not_a_failure(processes: Pipeline) -> None:
    processes.trainer.start()
    processes.end(Listener())
    assert processes.trainer.status == 0
    assert processes.failed is None


@pytest.fixture
def fleet(monkeypatch: pytest.MonkeyPatch) -> Iterator[Fleet]:
    """Two members that are Servers, so that they run until they are asked to end."""
    monkeypatch.setenv("PYTHONPATH", str(Path(supervision.__file__).resolve().parents[2]))
    group = Fleet(Config(), ["--server", "--set", "server.port=0"], 2)
    yield group
    group.kill()
    for child in group.workers:
        child.release()


def test_workers_of_a_fleet_have_names_and_logs_of_their_own(tmp_path: Path) -> None:
    values = {"run": {"folder": str(tmp_path)}, "worker": {"name": "arm"}}
    fleet = Fleet(from_values(values), ["--worker"], 2)
    assert [child.arguments[-1] for child in fleet.workers] == ["worker.name=arm-1", "worker.name=arm-2"]
    assert [child.log.name for child in fleet.workers] == ["worker-1.log", "worker-2.log"]
    assert [child.threads for child in fleet.workers] == [1, 1]
    assert [child.arguments for child in Fleet(Config(), ["--worker"], 2).workers] == [["--worker"]] * 2


def test_a_member_that_fails_does_not_end_the_fleet(fleet: Fleet) -> None:
    listener = Listener()
    wrong, right = fleet.workers
    wrong.arguments = ["--worker", "--set", "worker.nmae=x"]
    fleet.start(listener)
    ended(wrong)
    assert fleet.poll(listener)
    assert right.running
    assert "unknown key" in str(fleet.failed)
    assert len(listener.said) == 1
    assert fleet.poll(listener)
    assert len(listener.said) == 1
    fleet.end(listener)
    assert right.status == 0
    assert not fleet.poll(listener)


def test_a_member_that_crashes_is_started_again(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervision, "RESTART_PAUSE_S", 0.0)
    listener = Listener()
    fleet.start(listener)
    first = fleet.workers[0]
    first.end_now()
    ended(first)
    assert fleet.poll(listener)
    assert "worker-1 ended with exit status -9 and is restarted" in listener.said[0]
    assert fleet.poll(listener)
    assert first.running
    assert fleet.failed is None
