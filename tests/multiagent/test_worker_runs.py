"""Roles of many agents from the command line: a worker without torch is killed, and roles run or are refused."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.command_line import ROOT, Start, records, starting
from tests.roles.test_lockstep_runs import port_of
from tests.waiting import until
from tmrl_core.blas_threads import THREAD_VARIABLES
from tmrl_core.cli.main import main

SCENARIO = "tests.multiagent.remote_scenario"
SMALL = f"""
run: {{name: small, seed: 5}}
environment: {{cls: "{SCENARIO}:Stocks", kwargs: {{hang_in: .}}}}
worker: {{collection: lockstep, drain_timeout_s: 3}}
server: {{port: 0}}
trainer:
  epochs: 3
  rounds: 5
  device: cpu
  lockstep: {{steps_per_round: null, episodes_per_round: 4, grace_s: 1, min_workers: 2}}
  evaluation: {{episodes: 2, every_updates: 16}}
multiagent:
  manager: {SCENARIO}:Manager
  test_environment: {{cls: "{SCENARIO}:Stocks", kwargs: {{}}}}
  agents: {{north: a, south: b}}
  policies:
    a: {{algorithm: "{SCENARIO}:Weights", memory: all, parameters: {{batch_size: 8}}}}
    b: {{algorithm: "{SCENARIO}:Weights", memory: all, parameters: {{batch_size: 8}}}}
  memories: {{all: {{capacity: 500}}}}
  exploration: {{cls: "tmrl_core.multiagent:LinearExplorer", kwargs: {{initial: 0.9, final: 0.1, episodes: 7}}}}
"""
LIMIT_S = 90.0


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    with starting(tmp_path, SMALL) as call:
        yield call


@pytest.fixture
def no_torch(tmp_path: Path) -> str:
    """Return a PYTHONPATH on which torch is not installed."""
    (tmp_path / "without" / "torch").mkdir(parents=True)
    error = "raise ModuleNotFoundError(\"No module named 'torch'\", name='torch')\n"
    (tmp_path / "without" / "torch" / "__init__.py").write_text(error)
    return os.pathsep.join([str(tmp_path / "without"), str(ROOT)])


def ended(process: subprocess.Popen[str]) -> str:
    out, _ = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0, out
    return out


@pytest.mark.full  # in one process: test_remote.py; two workers as processes: test_end_to_end_runs.py
def test_a_worker_killed_in_an_episode_does_not_stop_the_others(start: Start, tmp_path: Path, no_torch: str) -> None:
    (tmp_path / "hang").touch()  # the worker that finds it stops in its first episode
    at = port_of(start("--server"))
    workers = {worker.pid: worker for worker in (start("--worker", "--set", at, PYTHONPATH=no_torch) for _ in range(2))}
    trainer = start("--trainer", "--set", at)
    until(lambda: (tmp_path / "hangs").exists() and bool((tmp_path / "hangs").read_text()), trainer, limit_s=LIMIT_S)
    killed = workers.pop(int((tmp_path / "hangs").read_text()))
    os.kill(killed.pid, signal.SIGKILL)
    ended(trainer)
    rounds = records(tmp_path, "round")
    assert len(rounds) == 15
    assert all(record.values["rollout/episodes"] == 4 for record in rounds)
    (worker,) = workers.values()
    ended(worker)
    # The saved policies play without a Server, and without torch.
    out = ended(start("--test", "--episodes", "2", PYTHONPATH=no_torch))
    assert out.count("12 steps") == 2


def run_here(folder: Path, config: str, *arguments: str) -> int:
    """Run a command line in this process, which is as before at the end, and return its exit status."""
    (folder / "small.yaml").write_text(config, encoding="utf-8")
    interval = sys.getswitchinterval()
    with pytest.MonkeyPatch.context() as changed:
        changed.chdir(folder)
        for name in THREAD_VARIABLES:
            changed.setenv(name, "1")
        try:
            return main([*arguments, "-c", "small.yaml"])
        finally:
            sys.setswitchinterval(interval)
            gc.unfreeze()


def test_all_roles_run_in_one_process(tmp_path: Path) -> None:
    assert run_here(tmp_path, SMALL, "--local", "--single-process", "--workers", "2") == 0
    assert len(records(tmp_path, "round")) == 15
    assert (tmp_path / "runs" / "small" / "policy.tmod").exists()


def test_an_absent_environment_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_here(tmp_path, SMALL, "--worker", "--set", "environment.cls=not_installed:Ports") == 2
    said = capsys.readouterr().err
    assert "environment.cls: 'not_installed:Ports': module 'not_installed' was not found" in said


def test_roles_that_have_one_agent_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (
        ("--expert",),
        ("--gateway",),
        ("--benchmark",),
        ("--local", "--gateway"),
        ("--test", "--render"),
    ):
        assert run_here(tmp_path, SMALL, *arguments) == 2
        assert f"{arguments[-1]} does not go with the section multiagent" in capsys.readouterr().err
    assert run_here(tmp_path, SMALL, "--worker", "--record", "kept") == 2
    assert "worker.record: found 'kept', and it has no effect" in capsys.readouterr().err
