"""run_fleet: several workers on one machine."""

from __future__ import annotations

import io
import json
import logging
import sys
from pathlib import Path

import pytest

from tmrl_core.config import Config, from_values
from tmrl_core.errors import ConfigError
from tmrl_core.local import supervision
from tmrl_core.local.fleet import run_fleet
from tmrl_core.roles.shutdown import ShutdownSignal

ENVIRONMENT = """
import os, time
import gymnasium, numpy as np
from gymnasium.spaces import Box
class Env(gymnasium.Env):
    observation_space = action_space = Box(-1, 1, (1,), np.float32)
    steps = 0
    def __init__(self, folder):
        self.folder = folder
        open(os.path.join(folder, str(os.getpid())), "w").close()
    def reset(self, *, seed=None, options=None):
        return np.zeros(1, np.float32), {}
    def step(self, action):
        self.steps += 1
        if self.steps > ALONE:
            while len(os.listdir(self.folder)) < 2:
                time.sleep(0.01)
            print("ConfigError: no lathe", flush=True)
            os._exit(2)
        return np.zeros(1, np.float32), REWARD, False, False, {}
"""


def fleet(folder: Path, monkeypatch: pytest.MonkeyPatch, reward: str, alone: int = 1) -> tuple[Config, list[str], Path]:
    """Return the configuration of two workers, their command line, and the folder with a file of each environment.

    Args:
        reward: of each step.
        alone: number of steps before the environment waits for a second one, and ends its process.
    """
    monkeypatch.setenv("PYTHONPATH", str(Path(supervision.__file__).resolve().parents[2]))
    monkeypatch.chdir(folder)
    (folder / "lathe.py").write_text(ENVIRONMENT.replace("REWARD", reward).replace("ALONE", str(alone)))
    made = folder / "made"
    made.mkdir()
    values = {
        "run": {"folder": str(folder / "läufe"), "name": "fleet"},
        "server": {"port": 1},
        "environment": {"cls": "lathe:Env", "kwargs": {"folder": str(made)}},
        "worker": {"drain_timeout_s": 0.1},
    }
    (folder / "fleet.json").write_text(json.dumps(values))
    return from_values(values), ["--worker", "-c", str(folder / "fleet.json")], made


def test_failed_workers_are_reported_where_the_console_cannot_show_the_names_of_their_logs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding="ascii"))
    config, arguments, _ = fleet(tmp_path, monkeypatch, reward="0.0")
    with caplog.at_level(logging.INFO), pytest.raises(ConfigError, match="no lathe"):
        run_fleet(config, arguments, ShutdownSignal(), 2)
    logs = tmp_path / "läufe" / "fleet" / "logs"
    assert f"2 workers for run 'fleet'; their logs are {logs / 'worker-1.log'} and so on" in caplog.text
    assert caplog.text.count("no lathe") == 2
    assert {log.name for log in logs.iterdir()} == {"worker-1.log", "worker-2.log"}


def test_a_breach_of_contract_is_found_before_a_second_machine_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, arguments, made = fleet(tmp_path, monkeypatch, reward="[0.0, 1.0]")
    with pytest.raises(ConfigError, match=r"the reward is \[0\.0, 1\.0\] of type list") as caught:
        run_fleet(config, arguments, ShutdownSignal(), 2)
    assert len(str(caught.value).splitlines()) <= 6
    assert len(list(made.iterdir())) == 1


def test_an_environment_that_waits_for_that_of_another_worker_gets_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, arguments, made = fleet(tmp_path, monkeypatch, reward="0.0", alone=0)
    monkeypatch.setattr(supervision, "FIRST_STEP_S", 0.5)
    with pytest.raises(ConfigError, match="no lathe"):
        run_fleet(config, arguments, ShutdownSignal(), 2)
    assert len(list(made.iterdir())) == 2


def test_an_environment_that_cannot_be_used_is_refused_before_the_workers_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(supervision.__file__).resolve().parents[2]))
    change = "environment.kwargs={id: ALE/Pong-v5}"
    config = from_values({"run": {"folder": str(tmp_path)}, "server": {"host": "192.0.2.1"}})
    with pytest.raises(ConfigError, match=r"Write id: ale_py:ALE/Pong-v5"):
        run_fleet(config, ["--worker", "--set", change], ShutdownSignal(), 2)
    assert list(tmp_path.iterdir()) == []
