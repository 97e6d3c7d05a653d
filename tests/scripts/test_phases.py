"""Phases run to their end whatever the others found, and Ctrl-C waits for a child's orderly end."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"


def run(code: str) -> subprocess.CompletedProcess[str]:
    code = f"import sys; sys.path.insert(0, {str(SCRIPTS)!r})\n{code}"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)


def test_later_phases_run_after_a_failed_one() -> None:
    ended = run(
        "from _phases import Phase, run_phases\n"
        "def say(text, status):\n"
        "    return Phase(text, [sys.executable, '-c', f'print({text!r} * 2); raise SystemExit({status})'])\n"
        "sys.exit(run_phases([say('one', 0), say('two', 5), say('three', 0)]))"
    )
    assert ended.returncode == 1
    assert [word for word in ("oneone", "twotwo", "threethree") if word in ended.stdout] == [
        "oneone",
        "twotwo",
        "threethree",
    ]
    summary = ended.stdout.partition("--- summary")[2]
    assert "not ok (5)" in summary
    assert "NOT ALL ok" in summary


def test_all_good_phases_succeed() -> None:
    ended = run(
        "from _phases import Phase, run_phases\nsys.exit(run_phases([Phase('one', [sys.executable, '-c', 'pass'])]))"
    )
    assert ended.returncode == 0
    assert "all ok" in ended.stdout


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_waits_for_the_childs_orderly_end(number: signal.Signals) -> None:
    child = (
        "import signal, sys; both = {signal.SIGINT, signal.SIGTERM}; signal.pthread_sigmask(signal.SIG_BLOCK, both)\n"
        "print('ready', flush=True); signal.sigwait(both); print('in order', flush=True); sys.exit(7)"
    )
    code = (
        f"import sys; sys.path.insert(0, {str(SCRIPTS)!r})\n"
        f"from _environment import run_here; sys.exit(run_here([sys.executable, '-c', {child!r}]))"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            # A terminal's Ctrl-C goes to the whole group; a SIGTERM to one process.
            if number == signal.SIGINT:
                os.killpg(process.pid, number)
            else:
                process.send_signal(number)
            assert process.stdout.read() == "in order\n"
            assert process.wait(30) == 7
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


@pytest.mark.parametrize("name", sorted(path.name for path in SCRIPTS.glob("[!_]*.py")))
def test_asking_a_script_for_help_starts_nothing(name: str) -> None:
    ended = subprocess.run(
        [sys.executable, str(SCRIPTS / name), "--help"], capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.startswith("usage: ")


def test_phases_that_run_together_show_their_output_one_after_another() -> None:
    ended = run(
        "from _phases import Phase, run_phases\n"
        "def say(text, status):\n"
        "    return Phase(text, [sys.executable, '-c', f'print({text!r} * 2); raise SystemExit({status})'])\n"
        "sys.exit(run_phases([say('last', 0)], together=[say('one', 0), say('two', 5), say('three', 0)]))"
    )
    assert ended.returncode == 1
    lines = [line for line in ended.stdout.partition("--- summary")[0].splitlines() if line]
    assert lines == [line for name in ("one", "two", "three", "last") for line in (f"--- {name}", name * 2)]
    assert "not ok (5)" in ended.stdout.partition("--- summary")[2]
