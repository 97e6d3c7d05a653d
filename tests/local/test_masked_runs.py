"""Whole runs in an environment with an action mask, which fails at any action that is not allowed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.command_line import in_this_process, records, starting
from tests.waiting import until

SMALL = """
run: {name: small, seed: 1}
environment: {cls: "tests.masked_corridor:MaskedCorridor"}
worker: {backend: numpy, max_failures: 0, drain_timeout_s: 3, max_env_steps_per_update: 4}
server: {port: 0}
"""
OFF_POLICY = """
memory: {batch_size: 32}
trainer:
  epochs: 20
  rounds: 5
  steps: 100
  start_training: 300
  max_training_steps_per_env_step: 1
  update_model_interval: 20
  update_buffer_interval: 20
  device: cpu
  threads: 1
  evaluation: {episodes: 2, every_updates: 100, target_return: 0.69, time_limit_s: 90}
"""
LOCKSTEP = """
trainer:
  loop: tmrl_core.training:TrainingLockstep
  epochs: 10
  rounds: 10
  device: cpu
  threads: 1
  lockstep: {steps_per_round: 200, grace_s: 10}
  evaluation: {episodes: 2, every_updates: 40, target_return: 0.69, time_limit_s: 90}
"""
RUNS = {
    "dqn": """
agent: {cls: "tmrl_core.training:DQNAgent", kwargs: {gamma: 0.9, lr: 5e-3, epsilon_updates: 300, target_interval: 10}}
actor: {cls: "tmrl_core.actor:QValueMLPActor", kwargs: {hidden_sizes: [32]}}
"""
    + OFF_POLICY.replace("batch_size: 32", "batch_size: 32, kwargs: {n_step: 2}"),
    "ppo": """
worker: {backend: numpy, max_failures: 0, drain_timeout_s: 3, collection: lockstep}
agent: {cls: "tmrl_core.training:PPOAgent", kwargs: {gamma: 0.9, lr: 1e-2}}
actor: {cls: "tmrl_core.actor:CategoricalMLPActor", kwargs: {hidden_sizes: [32]}}
"""
    + LOCKSTEP,
    "recurrent dqn": """
agent:
  cls: tmrl_core.training:RecurrentDQNAgent
  kwargs: {gamma: 0.9, lr: 5e-3, epsilon_updates: 300, target_interval: 10, burn_in: 0}
actor: {cls: "tmrl_core.actor:QValueRNNActor", kwargs: {hidden_sizes: [16], cell_size: 8, state_interval: 3}}
"""
    + OFF_POLICY.replace(
        "batch_size: 32", 'batch_size: 16, cls: "tmrl_core.training:SequenceMemory", kwargs: {length: 6}'
    ),
    "recurrent ppo": """
worker: {backend: numpy, max_failures: 0, drain_timeout_s: 3, collection: lockstep}
agent: {cls: "tmrl_core.training:RecurrentPPOAgent", kwargs: {gamma: 0.9, lr: 1e-2}}
actor: {cls: "tmrl_core.actor:CategoricalRNNActor", kwargs: {hidden_sizes: [16], cell_size: 8}}
"""
    + LOCKSTEP,
}
RUNS |= {
    f"{name} of several choices": RUNS[name] + 'environment: {cls: "tests.masked_corridor:MaskedChoices"}\n'
    for name in ("ppo", "recurrent ppo")
}
QUICK = ("dqn", "recurrent ppo", "ppo of several choices")


def configured(name: str) -> str:
    own = RUNS[name]
    keys = re.findall(r"^\w+:", own, re.MULTILINE)
    return "".join(line for line in SMALL.splitlines(keepends=True) if line.partition(" ")[0] not in keys) + own


def check(folder: Path, out: str, status: int | None) -> None:
    logs = out + "".join(path.read_text(encoding="utf-8") for path in folder.rglob("*.log"))
    assert "is not allowed in the place" not in logs
    *_, outcome = (line for line in out.splitlines() if not line.startswith("The workers made "))  # an advice
    assert outcome.startswith("Learned: "), logs
    assert status == 0
    assert len(records(folder, "episode")) > 20


@pytest.mark.timeout(180)
@pytest.mark.parametrize("name", [pytest.param(name, marks=[] if name in QUICK else pytest.mark.full) for name in RUNS])
def test_a_run_learns_without_any_action_that_the_mask_forbids(name: str, tmp_path: Path) -> None:
    (tmp_path / "small.yaml").write_text(configured(name), encoding="utf-8")
    with in_this_process(tmp_path) as run:
        done = run("--local", "--workers", "1", "--single-process", "-c", "small.yaml")
    assert "is not allowed in the place" not in done.stderr
    check(tmp_path, done.stdout, done.returncode)


@pytest.mark.full
@pytest.mark.timeout(180)
@pytest.mark.parametrize("name", ["dqn", "ppo"])
def test_a_run_between_processes_learns_too(name: str, tmp_path: Path) -> None:
    with starting(tmp_path, configured(name)) as start:
        process = start("--local", "--workers", "1")
        out, _ = process.communicate(timeout=170)
    check(tmp_path, out, process.returncode)


@pytest.mark.full
@pytest.mark.timeout(180)
def test_a_trainer_starts_beside_a_worker_that_never_rests(tmp_path: Path) -> None:
    small = configured("dqn").replace(", max_env_steps_per_update: 4", "")
    with starting(tmp_path, small) as start:
        process = start("--local", "--workers", "1", "--single-process")
        until(lambda: records(tmp_path, "episode"), process, limit_s=40)  # the trainer records them
        process.terminate()
        process.communicate(timeout=60)
