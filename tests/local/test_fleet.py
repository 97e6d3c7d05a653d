"""run_fleet: several workers on one machine."""

from __future__ import annotations

import io
import logging
import sys
from pathlib import Path

import pytest

from tmrl_core.config import from_values
from tmrl_core.errors import ConfigError
from tmrl_core.local import supervision
from tmrl_core.local.fleet import run_fleet
from tmrl_core.roles.shutdown import ShutdownSignal


def test_failed_workers_are_reported_where_the_console_cannot_show_the_names_of_their_logs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(supervision.__file__).resolve().parents[2]))
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding="ascii"))
    config = from_values(
        {
            "run": {"folder": str(tmp_path / "läufe"), "name": "fleet"},
            "server": {"host": "192.0.2.1"},
            "environment": {"probe": False},
        }
    )
    with caplog.at_level(logging.INFO), pytest.raises(ConfigError, match="nmae"):
        run_fleet(config, ["--worker", "--set", "worker.nmae=x"], ShutdownSignal(), 2)
    logs = tmp_path / "läufe" / "fleet" / "logs"
    assert f"2 workers for run 'fleet'; their logs are {logs / 'worker-1.log'} and so on" in caplog.text
    assert caplog.text.count("unknown key") == 2
    assert {log.name for log in logs.iterdir()} == {"worker-1.log", "worker-2.log"}


def test_an_environment_that_cannot_be_used_is_refused_before_the_workers_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(supervision.__file__).resolve().parents[2]))
    change = "environment.kwargs={id: ALE/Pong-v5}"
    config = from_values({"run": {"folder": str(tmp_path)}, "server": {"host": "192.0.2.1"}})
    with pytest.raises(ConfigError, match=r"Write id: ale_py:ALE/Pong-v5"):
        run_fleet(config, ["--worker", "--set", change], ShutdownSignal(), 2)
    assert list(tmp_path.iterdir()) == []
