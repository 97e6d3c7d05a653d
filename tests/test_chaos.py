"""Real processes over TLS, killed with SIGKILL at random moments: nothing is lost, nothing comes twice.

`benchmarks/chaos.py` does it and reckons; here is a cycle of it, and a try of the reckoning.
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    import chaos as chaos_module

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"
ON_POSIX = pytest.mark.skipif(os.name == "nt", reason="kills and ends processes by signals")


def run(tmp_path: Path, *arguments: str, timeout_s: float) -> None:
    ended = subprocess.run(
        [sys.executable, str(BENCHMARKS / "chaos.py"), "--logs", str(tmp_path / "chaos"), *arguments],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr


@ON_POSIX
@pytest.mark.timeout(300)
def test_a_kill_of_each_role_loses_and_duplicates_nothing(tmp_path: Path) -> None:
    # A handover begins with the kill of the trainer.
    run(tmp_path, "--cycles", "1", "--role", "server,worker,handover", "--rate", "50", timeout_s=280)


@ON_POSIX
@pytest.mark.full
@pytest.mark.timeout(900)
def test_twenty_kills_of_each_role_lose_and_duplicate_nothing(tmp_path: Path) -> None:
    run(tmp_path, "--cycles", "20", "--role", "all", timeout_s=800)


# --- the reckoning ----------------------------------------------------------------------------------------------------


@pytest.fixture
def chaos(monkeypatch: pytest.MonkeyPatch) -> chaos_module:  # type: ignore[valid-type]
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("chaos")


def transitions(chaos: Any, life: int, numbers: list[int]) -> list[tuple[Any, Any]]:
    see = chaos.chaos_parts.observation
    return [(see(life, number - 1), see(life, number)) for number in numbers]


def test_a_memory_that_holds_all_is_good(chaos: Any) -> None:
    # Number 41 is that of a reset. What was not acknowledged may be there all the same, or not.
    held = transitions(chaos, 0, [*range(1, 41), *range(42, 60)]) + transitions(chaos, 1, [1, 2, 3])
    result = chaos.reckon(held, [chaos.Account(made=70, acknowledged=60), chaos.Account(made=9, acknowledged=2)])
    assert result == (68 + 8, 58 + 1, 61, 0, 0, 0, 0, 0)
    assert result.good


@pytest.mark.parametrize(
    ("numbers", "acknowledged", "fault"),
    [
        ([1, 2, 3], 5, "lost"),
        ([1, 2, 4], 2, "lost"),
        ([1, 2, 3, 3], 4, "duplicated"),
        ([1, 3, 2], 4, "disordered"),
    ],
)
def test_each_fault_is_found(chaos: Any, numbers: list[int], acknowledged: int, fault: str) -> None:
    result = chaos.reckon(transitions(chaos, 0, numbers), [chaos.Account(made=9, acknowledged=acknowledged)])
    assert not result.good
    assert getattr(result, fault) == 1
    assert sum(result[3:]) == 1


def test_other_content_is_found(chaos: Any) -> None:
    (before, seen), *_ = transitions(chaos, 0, [1])
    seen[5] += 1
    assert chaos.reckon([(before, seen)], [chaos.Account(made=2, acknowledged=2)]).wrong == 1
    joined_wrongly = (chaos.chaos_parts.observation(0, 3), chaos.chaos_parts.observation(0, 1))
    assert chaos.reckon([joined_wrongly], [chaos.Account(made=2, acknowledged=2)]).wrong == 1


def test_a_version_that_went_back_is_found(chaos: Any) -> None:
    assert not chaos.reckon([], [chaos.Account(backwards=1)]).good
