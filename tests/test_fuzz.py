"""Any bytes give a value or the documented error, within the limits: some of what `scripts/fuzz.py` does at length."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.fuzzing import runner
from tests.fuzzing.mutation import Mutator
from tests.fuzzing.target import Target
from tmrl_core.errors import RemoteProtocolError

ROOT = Path(__file__).resolve().parents[1]
NAMES = list(runner.TARGETS)
TOTAL = 20_000 if os.environ.get("FULL_TESTS") == "1" else 8_000
CASES = runner.shares(TOTAL, NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_any_bytes_give_a_value_or_the_documented_error(name: str) -> None:
    target = runner.make(name)
    try:
        report = runner.run(target, seed=1, cases=CASES[name])
    finally:
        target.close()
    assert not report.findings, "\n\n".join(f"{found.trace}\n{found.case[:300]!r}" for found in report.findings)
    assert report.cases == CASES[name]
    # Some get through, or nothing beyond the first check would have been tried.
    assert report.taken >= report.cases // 100


def test_thousands_of_cases_are_tried() -> None:
    assert TOTAL - 100 < sum(CASES.values()) <= TOTAL + len(NAMES)
    assert min(CASES.values()) > 40


def test_a_handshake_on_a_slow_machine_is_no_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = itertools.count()
    monkeypatch.setattr(time, "thread_time", lambda: float(next(seconds)))
    target = runner.make("handshake")
    try:
        report = runner.run(target, seed=2, cases=50)
    finally:
        target.close()
    assert not report.findings, report.findings[0].trace


# -- the fuzzing itself ------------------------------------------------------------------------------------------------


class Careless(Target):
    """What a parser with three mistakes would look like."""

    name = "careless"
    allowed = (RemoteProtocolError,)

    def make(self, mutator: Mutator) -> bytes:
        return mutator.mutate(bytes(8))

    def run(self, case: bytes) -> None:
        if not case:
            raise RemoteProtocolError("nothing")
        if case[0] == 0x7F:
            raise KeyError(case[0])
        if len(case) > 8:
            bytearray(case[-1] << 16)

    def limit_bytes(self, case: bytes) -> int:
        return 1 << 20


def test_mistakes_are_found_kept_and_found_again(tmp_path: Path) -> None:
    report = runner.run(Careless(), seed=3, cases=10_000)
    errors = sorted(finding.error.split()[0] for finding in report.findings)
    assert errors == ["AssertionError", "KeyError"]
    for finding in report.findings:
        path = runner.save(finding, tmp_path / "found")
        name, case = runner.load(path)
        again = runner.attempt(Careless(), case)
        assert again is not None
        assert (name, again.error) == ("careless", finding.error)


def test_the_same_seed_makes_the_same_cases() -> None:
    for name in ("frames", "messages", "codec", "connection"):
        target = runner.make(name)
        one, two, other = Mutator("a"), Mutator("a"), Mutator("b")
        made = [target.make(one) for _ in range(50)]
        assert made == [target.make(two) for _ in range(50)]
        assert made != [target.make(other) for _ in range(50)]


def test_time_is_a_limit_too() -> None:
    now = iter(range(1000))
    report = runner.run(runner.make("messages"), seed=0, seconds=5.0, clock=lambda: float(next(now)))
    assert 0 < report.cases < 2000


def fuzz(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "scripts" / "fuzz.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, check=False, cwd=ROOT)


def test_the_script_runs_and_replays(tmp_path: Path) -> None:
    ended = fuzz("--cases", "600", "--target", "frames", "--target", "messages", "--jobs", "1")
    assert ended.returncode == 0, ended.stderr
    assert "| frames | 300 |" in ended.stdout
    assert '{"found": 0}' in ended.stdout
    finding = runner.Finding("messages", "an error that was mended", "", b"\x00\x91\xa3bye")
    ended = fuzz("--replay", str(runner.save(finding, tmp_path)))
    assert ended.returncode == 0, ended.stderr
    assert "all right" in ended.stdout


def test_the_script_wants_to_know_how_long() -> None:
    assert fuzz().returncode == 2
