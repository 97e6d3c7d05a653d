"""A worker with another environment comes first, between real processes over TLS: it decides nothing."""

from __future__ import annotations

import contextlib
import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.command_line import Start, records, starting

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


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    with starting(tmp_path, SMALL) as call:
        yield call


@pytest.mark.full  # without processes: test_trainer.py and tests/networking/test_other_environments.py
@pytest.mark.timeout(300)
@pytest.mark.parametrize("checked", [pytest.param(True, id="environments"), pytest.param(False, id="samples")])
def test_a_first_worker_with_another_environment_does_not_stop_training(
    start: Start, tmp_path: Path, checked: bool
) -> None:
    server = start("--server", "--announce")
    assert server.stdout is not None
    at = f"server.port={next(json.loads(line)['port'] for line in server.stdout if line.startswith('{'))}"
    trainer = start("--trainer", "--set", at, "--set", f"trainer.check_environment={str(checked).lower()}")
    environment = ("--set", "environment.kwargs.id=MountainCarContinuous-v0", "--set", "run.folder=elsewhere")
    strange = start("--worker", "--set", "worker.name=strange", "--set", at, *environment)
    deadline = time.monotonic() + 100
    while not any((record.number("wire/refused") or 0) >= 20 for record in records(tmp_path, "network")):
        assert time.monotonic() < deadline
        with contextlib.suppress(subprocess.TimeoutExpired):
            pytest.fail(f"it ended with {trainer.wait(0.1)}: {trainer.communicate()[0]}")
    assert sum(record.number("time/total_timesteps") or 0 for record in records(tmp_path, "network")) == 0
    honest = start("--worker", "--set", "worker.name=honest", "--set", at)
    out, _ = trainer.communicate(timeout=100)
    assert trainer.returncode == 0, out
    named = "another environment, environment_id MountainCarContinuous-v0 at the worker, Pendulum-v1 at the trainer"
    assert (f"samples of worker strange are refused: {named}" in out) is checked
    if not checked:
        assert f"worker strange has {named}" in out
        assert "samples of worker strange are refused: the observation of samples is float32[2]" in out
        assert "the environment declares float32[3]" in out
    assert {record.text("worker") for record in records(tmp_path, "evaluation")} == {"honest"}
    assert records(tmp_path, "round")[-1].values["train/n_updates"] == 100
    assert honest.wait(30) == strange.wait(30) == 0
    assert strange.stdout is not None
    assert (f"the trainer uses no samples of this worker: {named}" in strange.stdout.read()) is checked
