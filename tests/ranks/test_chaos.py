"""Servers, ranks and workers killed with SIGKILL, over TLS and under torchrun: 0 lost, 0 duplicated, equal networks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.mark.skipif(sys.platform != "linux", reason="finds the ranks of torchrun in /proc")
@pytest.mark.full
@pytest.mark.timeout(600)
def test_kills_lose_and_duplicate_nothing_and_the_ranks_stay_equal(tmp_path: Path) -> None:
    ended = subprocess.run(
        [
            *(sys.executable, str(BENCHMARKS / "rank_chaos.py"), "--kills", "8", "--seed", "1", "--limit", "120"),
            *("--logs", str(tmp_path / "chaos")),
        ],
        capture_output=True,
        text=True,
        timeout=580,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
