"""Lockstep between real processes over TLS: a trainer that is killed, and the same weights twice."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.command_line import Start, in_this_process, records, starting
from tests.waiting import until
from tmrl_core.metrics import read_records
from tmrl_core.metrics.branch import CUT_NAME

SMALL = """
run: {name: small, seed: 5}
environment: {kwargs: {id: CartPole-v1, to_float32: true}}
actor: {cls: "tmrl_core.actor:CategoricalMLPActor", kwargs: {hidden_sizes: [8]}}
worker: {collection: lockstep, drain_timeout_s: 3}
server: {port: 0}
agent: {cls: "tmrl_core.training:PPOAgent", kwargs: {update_epochs: 2, minibatch_size: 50}}
trainer:
  loop: tmrl_core.training:TrainingLockstep
  epochs: 3
  rounds: 5
  device: cpu
  threads: 1
  lockstep: {steps_per_round: 200, grace_s: 10}
  evaluation: {episodes: 2, every_updates: 40}
"""


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    with starting(tmp_path, SMALL) as call:
        yield call


def port_of(server: subprocess.Popen[str]) -> str:
    assert server.stdout is not None
    for line in server.stdout:
        if "port" in line:
            digits = [word.strip(".,:") for word in line.replace(":", " ").split()]
            found = [word for word in digits if word.isdigit() and int(word) > 1024]
            if found:
                return f"server.port={found[-1]}"
    raise AssertionError("the server did not say where it listens")


@pytest.mark.full  # many agents, whose loop derives from this one, in each change: tests/multiagent/test_remote_runs.py
def test_a_killed_trainer_begins_the_round_again_and_nothing_is_stuck(start: Start, tmp_path: Path) -> None:
    server = start("--server")
    at = port_of(server)
    worker = start("--worker", "--set", at)
    trainer = start("--trainer", "--set", at)
    until(lambda: len(records(tmp_path, "round")) >= 7, server, worker, trainer, limit_s=60)
    trainer.kill()
    trainer.wait()
    trainer = start("--trainer", "--set", at)
    out, _ = trainer.communicate(timeout=100)
    assert trainer.returncode == 0, out
    rounds = [int(record.values["time/iterations"] or 0) for record in records(tmp_path, "round")]
    assert rounds == list(range(1, 16))
    # It goes on from the checkpoint of an epoch's end, so the rounds after that are cut.
    cut = read_records(tmp_path / "runs" / "small" / CUT_NAME)
    lost = [int(record.values["time/iterations"] or 0) for record in cut if record.kind == "round"]
    assert lost[0] % 5 == 1
    assert lost == list(range(lost[0], lost[0] + len(lost)))
    for record in records(tmp_path, "round"):
        assert record.values["train/memory_len"] == 200
        assert record.values["worker/policy_lag_max"] in (0, None) or record.values["wire/samples_stale"]
    assert worker.wait(20) == 0


@pytest.mark.full
@pytest.mark.parametrize("envs", [1, 4])
def test_one_worker_and_one_seed_give_the_same_weights_between_processes_as_among_threads(
    envs: int, start: Start, tmp_path: Path
) -> None:
    short = ("--local", "--workers", "1", "--set", "trainer.epochs=1", "--set", f"worker.envs={envs}", "--set")
    process = start(*short, "run.folder=first")
    out, _ = process.communicate(timeout=100)
    assert process.returncode == 0, out
    with in_this_process(tmp_path) as run:
        assert run(*short, "run.folder=second", "--single-process", "-c", "small.yaml").returncode == 0
    found = [(tmp_path / name / "small" / "policy.tmod").read_bytes() for name in ("first", "second")]
    assert found[0] == found[1]
