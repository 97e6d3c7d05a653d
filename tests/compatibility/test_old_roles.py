"""Roles of an earlier version and of this one together: real processes, over real TLS on loopback."""

from __future__ import annotations

import io
import os
import re
import signal
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.command_line import ROOT, Start, records, started

OLD = "fe8f9ce"
"""The commit whose roles take part."""
DEADLINE_S = 100.0

CONFIG = """
run: {name: small}
environment: {cls: "tmrl_core.envs:GenericGymEnv", kwargs: {id: Pendulum-v1, to_float32: true}}
actor: {kwargs: {hidden_sizes: [8, 8]}}
worker: {name: robot7, max_samples_per_episode: 50, max_env_steps_per_update: 8}
server: {port: PORT}
network: {security: TLS, credentials_dir: home/credentials}
memory: {batch_size: 16}
trainer:
  epochs: 1
  rounds: 2
  steps: 40
  start_training: 200
  update_model_interval: 10
  update_buffer_interval: 10
  device: cpu
  threads: 1
  evaluation: {episodes: 1, every_updates: 40}
"""


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the old package."""
    try:
        archive = subprocess.run(
            ["git", "archive", OLD, "tmrl_core"], cwd=ROOT, capture_output=True, check=True, timeout=60
        ).stdout
    except (OSError, subprocess.CalledProcessError):
        pytest.skip(f"the package of commit {OLD} is not in this checkout's history")
    folder = tmp_path_factory.mktemp("old")
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        files.extractall(folder, filter="data")
    return folder


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("TMRL_CORE_")}
    environ |= {"TMRL_CORE_HOME": str(tmp_path / "home"), "OMP_NUM_THREADS": "1"}
    with started(tmp_path, environ, ["-c", "small.yaml"]) as call:
        yield call


def package_in(folder: Path) -> str:
    """Return the folder from which a process with this path imports the package."""
    command = [sys.executable, "-c", "import tmrl_core; print(tmrl_core.__file__)"]
    environ = {**os.environ, "PYTHONPATH": str(folder)}
    return subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, timeout=60).stdout.strip()


def read_until(process: subprocess.Popen[str], pattern: str) -> re.Match[str]:
    """Read the output of a process up to a line with this pattern."""
    assert process.stdout is not None
    said = ""
    while not (found := re.search(pattern, said, re.MULTILINE)):
        line = process.stdout.readline()
        assert line, said
        said += line
    return found


@pytest.mark.parametrize("old_role", ["worker", "server and trainer"])
def test_samples_and_policies_pass_between_an_old_version_and_this_one(
    old_role: str, old: Path, start: Start, tmp_path: Path
) -> None:
    assert package_in(old) == str(old / "tmrl_core" / "__init__.py")
    central, edge = (str(ROOT), str(old)) if old_role == "worker" else (str(old), str(ROOT))
    config = tmp_path / "small.yaml"
    config.write_text(CONFIG.replace("PORT", "0"), encoding="utf-8")
    server = start("--server", "--announce", PYTHONPATH=central)
    found = read_until(server, r'^\{.*"port": *(\d+)')
    config.write_text(CONFIG.replace("PORT", found[1]), encoding="utf-8")
    trainer = start("--trainer", PYTHONPATH=central)
    worker = start("--worker", PYTHONPATH=edge)
    trained, _ = trainer.communicate(timeout=DEADLINE_S)
    collected, _ = worker.communicate(timeout=DEADLINE_S)
    assert trainer.returncode == 0, trained
    assert worker.returncode == 0, collected
    report = re.search(r"(\d[\d,]*) samples acknowledged, (\d+) handed over to the Server, (\d+) lost", collected)
    assert report is not None, collected
    assert int(report[1].replace(",", "")) >= 200
    assert report[3] == "0"
    # It has played what the trainer asked for, with policies that followed the first one.
    versions = [record.text("version") for record in records(tmp_path, "evaluation")]
    assert versions
    assert "1.1" not in versions
    assert (tmp_path / "runs" / "small" / "worker" / "policy.tmod").exists()


def test_an_old_worker_keeps_the_samples_that_a_trainer_that_demands_proofs_cannot_take(
    old: Path, start: Start, tmp_path: Path
) -> None:
    config = tmp_path / "small.yaml"
    config.write_text(CONFIG.replace("PORT", "0"), encoding="utf-8")
    server = start("--server", "--announce", PYTHONPATH=str(ROOT))
    said = read_until(server, r'^\{.*"port": *(\d+)')
    config.write_text(CONFIG.replace("PORT", said[1]), encoding="utf-8")
    trainer = start("--trainer", "--set", "network.end_to_end=authenticate", PYTHONPATH=str(ROOT))
    read_until(trainer, "connected to the Server")
    worker = start("--worker", PYTHONPATH=str(old))
    read_until(trainer, "network.end_to_end")
    read_until(worker, "does not authenticate its samples.*network.end_to_end")
    read_until(worker, r"queued [1-9]\d* samples")  # a line comes every 30 s
    worker.send_signal(signal.SIGTERM)
    report = read_until(worker, r"0 samples acknowledged, (\d+) handed over to the Server, 0 lost")
    assert int(report[1]) > 0
