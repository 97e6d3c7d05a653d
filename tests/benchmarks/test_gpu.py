"""`benchmarks/gpu.py`, with tiny networks on the CPU: every row is measured, within a budget."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "gpu.py"
COMMAND = [sys.executable, str(SCRIPT), "--small", "--device", "cpu"]


@pytest.mark.full
@pytest.mark.timeout(1200)  # tracing takes minutes on a busy machine
def test_every_row_is_measured() -> None:
    done = subprocess.run([*COMMAND, "--budget-s", "900"], capture_output=True, text=True, check=False)
    missing = [line for line in done.stdout.splitlines() if line.startswith("Not measured")]
    assert all("stable-baselines3" in line for line in missing), done.stdout
    for row in ("FlashSAC", "PPO", "recurrent SAC", "SAC, batch 32, compiled"):
        assert f"\n| {row}" in done.stdout
    assert done.stdout.count("equal to") == 2


@pytest.mark.full
@pytest.mark.timeout(1200)  # tracing takes minutes on a busy machine
def test_rows_that_do_not_fit_are_named() -> None:
    done = subprocess.run([*COMMAND, "--budget-s", "0.1"], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "Not measured: PPO" in done.stdout
    assert "of the budget were left" in done.stdout
