"""Phases of a check: each runs to its end whatever the others found, and the summary says how all of them ended."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from _environment import ROOT, run_here

AT_ONCE = 2
"""Number of phases that run at the same time, of those that use one core each."""


class Phase(NamedTuple):
    """A name and the command behind it."""

    name: str
    command: list[str]


def static_phases(python: Path) -> list[Phase]:
    """What looks at the source without running it."""
    module = [str(python), "-m"]
    return [
        Phase("format", [*module, "ruff", "format", "--check", "."]),
        Phase("lint", [*module, "ruff", "check", "."]),
        Phase("types", [*module, "mypy"]),
        Phase("pins", [str(python), str(ROOT / "scripts" / "pins.py")]),
    ]


def run_phases(
    phases: Sequence[Phase], environment: Mapping[str, str] | None = None, *, together: Sequence[Phase] = ()
) -> int:
    """Run all phases; 0 when each of them succeeded, else 1.

    Args:
        phases: run one after another; their output appears as it is written.
        environment: of all phases; None: this process's.
        together: run first, `AT_ONCE` at a time; the output of each appears when it has ended.
    """
    started, used = time.monotonic(), _processor_s()
    ended: list[tuple[str, int, float, str]] = []
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for phase, (status, seconds, output) in zip(
            together, pool.map(lambda phase: _captured(phase, environment), together), strict=True
        ):
            print(f"\n--- {phase.name}\n{output}", end="", flush=True)
            ended.append((phase.name, status, seconds, ""))
    for phase in phases:
        print(f"\n--- {phase.name}", flush=True)
        begun, before = time.monotonic(), _processor_s()
        status = run_here(phase.command, env=environment)
        ended.append((phase.name, status, time.monotonic() - begun, _processor_text(before)))
    print("\n--- summary", flush=True)
    for name, status, seconds, processor in ended:
        print(f"{name:<12} {'ok' if status == 0 else f'not ok ({status})':<12} {seconds:7.1f} s{processor}")
    good = all(status == 0 for _, status, _, _ in ended)
    print(f"{'all' if good else 'NOT ALL'} ok, {time.monotonic() - started:.0f} s{_processor_text(used)}", flush=True)
    return 0 if good else 1


def _captured(phase: Phase, environment: Mapping[str, str] | None) -> tuple[int, float, str]:
    """Run a phase; its exit status, seconds and output.

    A Ctrl-C reaches the child from the terminal. A SIGTERM ends this process, and the child goes on to its end.
    """
    begun = time.monotonic()
    done = subprocess.run(
        phase.command,
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
        encoding="utf-8",
        errors="replace",
        check=False,
    )
    return done.returncode, time.monotonic() - begun, done.stdout


def _processor_text(before: float) -> str:
    """Return the processor time since `before`, as the end of a line; empty where it is unknown, as on Windows."""
    used = _processor_s() - before
    return f", {used:.0f} s of processor" if used else ""


def _processor_s() -> float:
    """Return the processor time of all children that have ended."""
    times = os.times()
    return times.children_user + times.children_system
