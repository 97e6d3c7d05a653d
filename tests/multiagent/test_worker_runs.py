"""Workers of many agents as processes over TLS: one is killed, others do not fit, and none of them has torch."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.command_line import ROOT, Start, records, starting
from tests.roles.test_lockstep_runs import port_of
from tests.waiting import until

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


def test_all_roles_run_in_one_process(start: Start, tmp_path: Path) -> None:
    out = ended(start("--local", "--single-process", "--workers", "2"))
    assert len(records(tmp_path, "round")) == 15, out
    assert (tmp_path / "runs" / "small" / "policy.tmod").exists()


def test_workers_that_do_not_fit_are_refused_with_the_reason_and_others_train(start: Start, tmp_path: Path) -> None:
    at = port_of(start("--server"))
    absent = start("--worker", "--set", at, "--set", "environment.cls=not_installed:Ports")
    out, _ = absent.communicate(timeout=LIMIT_S)
    assert absent.returncode == 2
    assert "environment.cls: 'not_installed:Ports': module 'not_installed' was not found" in out
    policy = f"{{algorithm: '{SCENARIO}:Weights', memory: all}}"
    plan = ("multiagent.agents={north: a, south: c}", f"multiagent.policies={{a: {policy}, c: {policy}}}")
    renamed = start("--worker", *(word for change in (at, "worker.name=renamed", *plan) for word in ("--set", change)))
    assert renamed.stdout is not None
    assert any("no trainer of run 'small' is connected" in line for line in renamed.stdout)  # it has joined
    worker = start("--worker", "--set", at)
    out = ended(start("--trainer", "--set", at, "--set", "trainer.lockstep.min_workers=1"))
    assert "samples of worker renamed are refused: another policy, policies: a, c at the worker, a, b at the" in out
    assert len(records(tmp_path, "round")) == 15
    ended(worker)
    out = ended(renamed)
    assert out.count("the trainer uses no samples of this worker: another policy, policies: a, c at the") == 1
    assert "0 samples acknowledged" in out


def test_roles_that_have_one_agent_are_refused(start: Start) -> None:
    for arguments in (
        ("--expert",),
        ("--gateway",),
        ("--benchmark",),
        ("--local", "--gateway"),
        ("--test", "--render"),
    ):
        process = start(*arguments)
        out, _ = process.communicate(timeout=LIMIT_S)
        assert process.returncode == 2
        assert f"{arguments[-1]} does not go with the section multiagent" in out
    process = start("--worker", "--record", "kept")
    assert "worker.record: found 'kept', and it has no effect" in process.communicate(timeout=LIMIT_S)[0]
