"""Many agents between real processes over TLS: a worker that stops in a round, and a trainer that is killed."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.command_line import Start, records, starting
from tests.multiagent.test_worker_runs import run_here
from tests.roles.test_lockstep_runs import port_of
from tests.waiting import until
from tmrl_core.actor.policies.bundle import PolicyBundle

SMALL = """
run: {name: small, seed: 5}
environment: {cls: "tests.multiagent.remote_scenario:Stocks", kwargs: {hang_in: "."}}
multiagent:
  manager: tests.multiagent.remote_scenario:Manager
  agents: {north: a, south: b}
  policies:
    a: {algorithm: "tests.multiagent.remote_scenario:Weights", memory: all, parameters: {capacity: 500, batch_size: 8}}
    b: {algorithm: "tests.multiagent.remote_scenario:Weights", memory: all, parameters: {capacity: 500, batch_size: 8}}
  exploration: {cls: "tmrl_core.multiagent:LinearExplorer", kwargs: {initial: 0.9, final: 0.1, episodes: 20}}
worker: {collection: lockstep, drain_timeout_s: 3}
server: {port: 0}
trainer:
  epochs: 4
  rounds: 5
  device: cpu
  threads: 1
  lockstep: {steps_per_round: null, episodes_per_round: 2, grace_s: 2}
  evaluation: {episodes: 1, every_updates: 20}
"""


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    with starting(tmp_path, SMALL) as call:
        yield call


def rounds(folder: Path) -> list[int]:
    return [int(record.numbers()["time/iterations"]) for record in records(folder, "round")]


def finish(trainer: subprocess.Popen[str]) -> None:
    out, _ = trainer.communicate(timeout=120)
    assert trainer.returncode == 0, out


@pytest.mark.full  # in one process: test_remote.py
def test_a_worker_that_stops_within_a_round_is_replaced_after_its_grace(start: Start, tmp_path: Path) -> None:
    server = start("--server")
    at = port_of(server)
    workers = [start("--worker", "--set", f"worker.name={name}", "--set", at) for name in ("anna", "berta")]
    trainer = start("--trainer", "--set", at, "--set", "trainer.epochs=100", "--set", "trainer.lockstep.min_workers=2")
    until(lambda: len(rounds(tmp_path)) >= 3, server, trainer, *workers, limit_s=60)
    (tmp_path / "hang").touch()
    hangs = tmp_path / "hangs"
    until(lambda: hangs.exists() and hangs.read_text() != "", server, trainer, *workers, limit_s=60)
    before = len(rounds(tmp_path))
    until(lambda: len(rounds(tmp_path)) >= before + 20, server, trainer, limit_s=60)
    assert max(record.numbers()["wire/redistributed"] for record in records(tmp_path, "round")) >= 1
    assert all(record.numbers()["rollout/episodes"] >= 2 for record in records(tmp_path, "round"))
    os.kill(int((tmp_path / "hangs").read_text()), signal.SIGCONT)
    trainer.send_signal(signal.SIGINT)
    finish(trainer)


def test_a_killed_trainer_resumes_as_if_nothing_had_happened(start: Start, tmp_path: Path) -> None:
    """One worker and one seed: the policies at the end equal those of a run that was not killed, bit for bit."""
    server = start("--server")
    at = port_of(server)
    worker = start("--worker", "--set", at, "--set", "worker.name=anna")
    trainer = start("--trainer", "--set", at)
    until(lambda: len(rounds(tmp_path)) >= 7, server, worker, trainer, limit_s=60)
    trainer.kill()
    trainer.wait()
    finish(start("--trainer", "--set", at))
    assert worker.wait(20) == 0
    # It goes on from the checkpoint of an epoch's end: what came after it is collected again.
    assert sorted(set(rounds(tmp_path))) == list(range(1, 21))
    killed = PolicyBundle.read(tmp_path / "runs" / "small" / "policy.tmod")
    undisturbed = ("--set", "run.name=undisturbed", "--set", "worker.name=anna")
    assert run_here(tmp_path, SMALL, "--local", "--single-process", "--workers", "1", *undisturbed) == 0
    assert killed == PolicyBundle.read(tmp_path / "runs" / "undisturbed" / "policy.tmod")
