"""A worker with another environment comes first, between real processes over TLS: it decides nothing."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tmrl_core.metrics import read_records
from tmrl_core.metrics.records import MetricRecord

ROOT = Path(__file__).resolve().parents[1]

SMALL = """
run: {name: small}
environment: {kwargs: {id: Pendulum-v1, to_float32: true}}
actor: {kwargs: {hidden_sizes: [8]}}
worker: {max_samples_per_episode: 50, max_env_steps_per_update: 8}
server: {port: 0}
memory: {batch_size: 16}
trainer:
  epochs: 1
  rounds: 2
  steps: 50
  start_training: 100
  device: cpu
  threads: 1
  evaluation: {every_updates: 50, episodes: 1}
"""

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts the command line in an empty folder; what still runs at the test's end is killed."""
    (tmp_path / "small.yaml").write_text(SMALL, encoding="utf-8")
    environ = {name: value for name, value in os.environ.items() if not name.startswith("TMRL_CORE_")}
    environ |= {"PYTHONPATH": str(ROOT), "TMRL_CORE_HOME": str(tmp_path / "home")}
    with contextlib.ExitStack() as stack:

        def call(*arguments: str) -> subprocess.Popen[str]:
            process = stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-m", "tmrl_core", *arguments, "-c", "small.yaml"],
                    cwd=tmp_path,
                    env=environ,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                )
            )
            stack.callback(process.kill)
            return process

        yield call


def records(folder: Path, kind: str) -> list[MetricRecord]:
    path = folder / "runs" / "small" / "metrics.jsonl"
    return [record for record in read_records(path) if record.kind == kind] if path.exists() else []


@pytest.mark.timeout(300)
def test_a_worker_with_another_environment_that_comes_first_stops_nobody(start: Start, tmp_path: Path) -> None:
    server = start("--server", "--announce")
    assert server.stdout is not None
    at = f"server.port={next(json.loads(line)['port'] for line in server.stdout if line.startswith('{'))}"
    trainer = start("--trainer", "--set", at)
    environment = ("--set", "environment.kwargs.id=MountainCarContinuous-v0", "--set", "run.folder=elsewhere")
    strange = start("--worker", "--set", "worker.name=strange", "--set", at, *environment)
    deadline = time.monotonic() + 100
    while not any((record.number("refused") or 0) >= 20 for record in records(tmp_path, "network")):
        assert time.monotonic() < deadline
        with contextlib.suppress(subprocess.TimeoutExpired):
            pytest.fail(f"it ended with {trainer.wait(0.1)}: {trainer.communicate()[0]}")
    assert sum(record.number("samples_received") or 0 for record in records(tmp_path, "network")) == 0
    honest = start("--worker", "--set", "worker.name=honest", "--set", at)
    out, _ = trainer.communicate(timeout=100)
    assert trainer.returncode == 0, out
    assert "samples refused, of worker strange: the observation of samples is float32[2]" in out
    assert "the environment declares float32[3]" in out
    assert {record.text("worker") for record in records(tmp_path, "evaluation")} == {"honest"}
    assert records(tmp_path, "round")[-1].values["updates"] == 100
    assert honest.wait(30) == strange.wait(30) == 0
