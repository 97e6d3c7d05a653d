"""Whole runs in an environment with an action mask, which fails at any action that is not allowed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.command_line import records, starting

SMALL = """
run: {name: small, seed: 1}
environment: {cls: "tests.masked_corridor:MaskedCorridor"}
worker: {backend: numpy, max_failures: 0, drain_timeout_s: 3}
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


@pytest.mark.timeout(180)
@pytest.mark.parametrize("name", RUNS)
def test_a_run_learns_without_any_action_that_the_mask_forbids(name: str, tmp_path: Path) -> None:
    own = RUNS[name]
    common = SMALL if "worker:" not in own else SMALL.replace("worker:", "#")
    # Over TLS between processes, or as threads of one process.
    threads = ("--single-process",) if "recurrent" in name else ()
    with starting(tmp_path, common + own) as start:
        process = start("--local", "--workers", "1", *threads)
        out, _ = process.communicate(timeout=170)
    logs = out + "".join(path.read_text(encoding="utf-8") for path in tmp_path.rglob("*.log"))
    assert "is not allowed in the place" not in logs
    assert out.rstrip().splitlines()[-1].startswith("Learned: "), logs
    assert process.returncode == 0
    assert len(records(tmp_path, "episode")) > 20
