"""`--metrics send`: a tracker gets what a run's metrics.jsonl holds."""

from __future__ import annotations

from pathlib import Path

import pytest

from tmrl_core.cli.main import main
from tmrl_core.config import from_values
from tmrl_core.config.run_folder import write_in_force
from tmrl_core.metrics.records import record
from tmrl_core.metrics.sinks import JsonLinesSink


@pytest.fixture
def run(tmp_path: Path) -> Path:
    config = from_values({"run": {"name": "run7", "folder": str(tmp_path), "group": "seeds"}})
    write_in_force(config)
    with JsonLinesSink(config.metrics_path) as sink:
        for step in range(3):
            sink.write(record("round", {"return_test": -1.5 - step}, step=step, elapsed_s=float(step)))
    with config.metrics_path.open("ab") as file:
        file.write(b'{"cut by a cra')
    return config.run_folder


def test_tensorboard_gets_all_records_once(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    assert main(["--metrics", "send", str(run), "--to", "tensorboard"]) == 0
    assert "metrics.jsonl: 3 records" in capsys.readouterr().out
    found = reader.EventAccumulator(str(run / "tensorboard"))
    found.Reload()
    assert [point.value for point in found.Scalars("rollout/test_ep_rew")] == [-1.5, -2.5, -3.5]
    assert main(["--metrics", "send", str(run), "--to", "tensorboard"]) == 2
    assert "would be there twice" in capsys.readouterr().err


def test_wandb_gets_all_records(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    assert main(["--metrics", "send", str(run), "--to", "wandb"]) == 0
    wandb.teardown()
    (sent,) = (run / "wandb").glob("offline-run-*/*.wandb")
    content = sent.read_bytes()
    assert content.count(b"rollout/test_ep_rew") >= 3
    assert b"run7" in content
    assert b"seeds" in content


def test_a_folder_without_records_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--metrics", "send", str(tmp_path), "--to", "wandb"]) == 2
    assert "name the folder of a run" in capsys.readouterr().err
