"""Phases of a check: each runs to its end whatever the others found, and the summary says how all of them ended."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from _environment import run_here


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
    ]


def run_phases(phases: Sequence[Phase], environment: Mapping[str, str] | None = None) -> int:
    """Run all phases; 0 when each of them succeeded, else 1."""
    ended = []
    for phase in phases:
        print(f"\n--- {phase.name}", flush=True)
        started = time.monotonic()
        status = run_here(phase.command, env=environment)
        ended.append((phase.name, status, time.monotonic() - started))
    print("\n--- summary", flush=True)
    for name, status, seconds in ended:
        print(f"{name:<12} {'ok' if status == 0 else f'not ok ({status})':<12} {seconds:7.1f} s")
    total = sum(seconds for _, _, seconds in ended)
    good = all(status == 0 for _, status, _ in ended)
    print(f"{'all' if good else 'NOT ALL'} ok, {total:.0f} s", flush=True)
    return 0 if good else 1
