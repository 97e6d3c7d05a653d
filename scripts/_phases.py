"""Phases of a check: each runs to its end whatever the others found, and the summary says how all of them ended."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from _environment import ROOT, run_here


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


def run_phases(phases: Sequence[Phase], environment: Mapping[str, str] | None = None) -> int:
    """Run all phases; 0 when each of them succeeded, else 1."""
    ended: list[tuple[str, int, float, float]] = []
    for phase in phases:
        print(f"\n--- {phase.name}", flush=True)
        started, used = time.monotonic(), _processor_s()
        status = run_here(phase.command, env=environment)
        ended.append((phase.name, status, time.monotonic() - started, _processor_s() - used))
    print("\n--- summary", flush=True)
    for name, status, seconds, processor in ended:
        used_here = f"  {processor:7.1f} s of processor" if processor else ""  # unknown on Windows
        print(f"{name:<12} {'ok' if status == 0 else f'not ok ({status})':<12} {seconds:7.1f} s{used_here}")
    total = sum(seconds for _, _, seconds, _ in ended)
    good = all(status == 0 for _, status, _, _ in ended)
    print(f"{'all' if good else 'NOT ALL'} ok, {total:.0f} s", flush=True)
    return 0 if good else 1


def _processor_s() -> float:
    """Return the processor time of all children that have ended."""
    times = os.times()
    return times.children_user + times.children_system
