"""`--local --ranks N`: several Servers and ranks on this machine, with workers at each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.command_line import Run, Start, in_this_process, records, starting
from tmrl_core.config.endpoints import Endpoint, chosen_endpoint
from tmrl_core.local.supervision import spread_name

SMALL = """
run: {name: small, seed: 5}
environment: {kwargs: {id: Pendulum-v1, to_float32: true}}
actor: {kwargs: {hidden_sizes: [8, 8]}}
worker: {send_every: 20, drain_timeout_s: 3, max_env_steps_per_update: 8}
memory: {batch_size: 16, capacity: 20000}
agent: {cls: "tmrl_core.training:SacAgent"}
trainer: {epochs: 1, rounds: 2, steps: 50, start_training: 100, device: cpu, evaluation: {episodes: 1}}
"""


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    (tmp_path / "small.yaml").write_text(SMALL, encoding="utf-8")
    with in_this_process(tmp_path) as call:
        yield call


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    with starting(tmp_path, SMALL) as call:
        yield call


def test_names_spread_workers_over_the_servers() -> None:
    endpoints = [Endpoint("127.0.0.1", 40_000 + number) for number in range(3)]
    names = [spread_name(f"worker-{number + 1}", number, endpoints) for number in range(12)]
    assert Counter(chosen_endpoint(name, endpoints) for name in names) == dict.fromkeys(endpoints, 4)
    assert len(set(names)) == 12


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--local", "--ranks", "3", "--workers", "2"), "--ranks: found 3, and 2 workers; each rank needs one"),
        (("--local", "--ranks", "2", "--single-process"), "--ranks are processes: leave --single-process out"),
        (("--local", "--ranks", "2", "--seeds", "0-1"), "--ranks does not go with --seeds"),
        (("--local", "--ranks", "0"), "--ranks: found 0, allowed: a whole number of at least 1"),
        (("--trainer", "--ranks", "2"), "--ranks goes with --local, not --trainer"),
    ],
)
def test_what_does_not_go_together_is_refused(options: tuple[str, ...], message: str, run: Run) -> None:
    ended = run(*options, "-c", "small.yaml")
    assert ended.returncode == 2
    assert message in ended.stderr


@pytest.mark.full
def test_one_command_runs_two_ranks(start: Start, tmp_path: Path) -> None:
    process = start("--local", "--ranks", "2", "--workers", "2")
    out, _ = process.communicate(timeout=150)
    assert process.returncode == 0, out
    assert "2 Servers: --status and --worker for this run need --set 'server.endpoints=" in out
    assert records(tmp_path, "round")[-1].values["train/n_updates"] == 100
    assert (tmp_path / "runs" / "small" / "logs" / "trainer-2.log").exists()
