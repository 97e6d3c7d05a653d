"""Whole runs over the transport `tlspyo`: all roles as processes, with credentials that the command has made."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tmrl_core.metrics import read_records

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.skipif(importlib.util.find_spec("tlspyo") is None, reason="the extra tlspyo")

SMALL = """
run: {name: small}
environment: {cls: "tmrl_core.envs:GenericGymEnv", kwargs: {id: Pendulum-v1, to_float32: true}}
actor: {kwargs: {hidden_sizes: [16, 16]}}
worker: {max_env_steps_per_update: 8, max_samples_per_episode: 50}
server: {port: 0}
memory: {batch_size: 32}
network: {transport: tlspyo}
trainer:
  epochs: 1
  rounds: 2
  steps: 100
  start_training: 200
  update_model_interval: 20
  update_buffer_interval: 20
  device: cpu
  evaluation: {episodes: 2, every_updates: 100, target_return: -1.0e+6, time_limit_s: 60}
"""


def run(folder: Path, *arguments: str, timeout_s: float) -> str:
    process = subprocess.run(
        [sys.executable, "-m", "tmrl_core", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "TMRL_CORE_HOME": str(folder / "home")},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout_s,
    )
    assert process.returncode == 0, process.stdout
    return process.stdout


@pytest.mark.full
def test_the_three_roles_train_and_evaluate_over_tlspyo(tmp_path: Path) -> None:
    (tmp_path / "small.yaml").write_text(SMALL, encoding="utf-8")
    run(tmp_path, "--credentials", "create", timeout_s=60)
    out = run(tmp_path, "--local", "--workers", "1", "-c", "small.yaml", timeout_s=110)
    assert out.rstrip().splitlines()[-1].startswith("Learned: "), out
    records = read_records(tmp_path / "runs" / "small" / "metrics.jsonl")
    assert {record.text("worker") for record in records if record.kind == "episode"} == {"worker-1"}


@pytest.mark.full
@pytest.mark.timeout(900)
def test_the_three_roles_learn_pendulum_over_tlspyo(tmp_path: Path) -> None:
    run(tmp_path, "--credentials", "create", timeout_s=60)
    config = str(ROOT / "config" / "pendulum_sac.yaml")
    out = run(tmp_path, "--local", "--quickstart", "-c", config, "--set", "network.transport=tlspyo", timeout_s=850)
    assert out.rstrip().splitlines()[-1].startswith("Learned: "), out
