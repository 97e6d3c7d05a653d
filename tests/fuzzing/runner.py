"""Runs targets for so many cases or so long, and keeps the cases that find something."""

from __future__ import annotations

import hashlib
import importlib
import json
import logging
import time
import traceback
from base64 import b64decode, b64encode
from collections.abc import Callable
from pathlib import Path

import msgspec

from tests.fuzzing.mutation import Mutator
from tests.fuzzing.target import Target

TRACE_EVERY = 25
"""Of so many cases the memory is measured for one."""
_MOST_FINDINGS = 20
_BATCH = 256


class Finding(msgspec.Struct, frozen=True):
    """A case whose outcome is not one of those that are documented."""

    target: str
    error: str
    trace: str
    case: bytes


class Report(msgspec.Struct):
    """What came of a run of one target."""

    target: str
    cases: int = 0
    taken: int = 0
    """Not refused: they were right in spite of everything, or did not matter."""
    measured: int = 0
    seconds: float = 0.0
    findings: list[Finding] = []

    def add(self, other: Report) -> None:
        """Count another run of the same target too."""
        self.cases += other.cases
        self.taken += other.taken
        self.measured += other.measured
        self.seconds += other.seconds
        self.findings += other.findings


TARGETS: dict[str, tuple[str, str, int]] = {
    "frames": ("wire", "Frames", 30),
    "messages": ("wire", "Messages", 30),
    "codec": ("codec", "Codec", 20),
    "segments": ("files", "Segments", 10),
    "checkpoints": ("files", "Checkpoints", 8),
    "kept": ("kept", "Kept", 2),
    "weights": ("weights", "Weights", 6),
    "config": ("configuration", "Configuration", 1),
    "connection": ("conversations", "Conversations", 6),
    "handshake": ("handshake", "Handshakes", 2),
    "proofs": ("proofs", "Proofs", 6),
}
"""By name: module and class, which is imported when it is needed, and the share of the cases when all are run."""


def make(name: str) -> Target:
    """A target; some need a while to be made, and a folder of their own."""
    module, kind, _ = TARGETS[name]
    made: Target = getattr(importlib.import_module(f"tests.fuzzing.{module}"), kind)()
    return made


def shares(cases: int, names: list[str]) -> dict[str, int]:
    """How many cases each target gets of `cases`, by weight; at least one."""
    weights = {name: TARGETS[name][2] for name in names}
    whole = sum(weights.values())
    return {name: max(1, cases * weight // whole) for name, weight in weights.items()}


def run(
    target: Target,
    seed: int,
    *,
    cases: int | None = None,
    seconds: float | None = None,
    clock: Callable[[], float] = time.monotonic,
    progress: Callable[[Report], None] = lambda report: None,
) -> Report:
    """Make and try cases until so many are done or so much time is over; the same seed makes the same cases."""
    report = Report(target.name)
    begun = clock()
    number = 0
    seen: set[str] = set()
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)  # a warning for each case would cost more than the case
    try:
        while (cases is None or report.cases < cases) and (seconds is None or clock() - begun < seconds):
            # A batch has a seed of its own, so that a case does not depend on how many came before.
            mutator = Mutator(f"{target.name} {seed} {number}")
            number += 1
            size = _BATCH if cases is None else min(_BATCH, cases - report.cases)
            for index in range(size):
                case = target.make(mutator)
                traced = index % TRACE_EVERY == 0
                report.measured += traced
                finding = attempt(target, case, report, traced)
                if finding is not None and finding.error not in seen and len(seen) < _MOST_FINDINGS:
                    seen.add(finding.error)
                    report.findings.append(finding)
            report.cases += size
            report.seconds = clock() - begun
            progress(report)
    finally:
        logging.disable(before)
    return report


def attempt(target: Target, case: bytes, report: Report | None = None, traced: bool = True) -> Finding | None:
    """Try one case; None: what came of it is documented."""
    try:
        taken = target.attempt(case, traced=traced)
    except (Exception, MemoryError) as exc:
        lines = traceback.format_exc().splitlines()
        place = next((line.strip() for line in reversed(lines) if line.startswith('  File "')), "")
        return Finding(target.name, f"{type(exc).__name__} {place}", "\n".join(lines[-30:]), case)
    if report is not None:
        report.taken += taken
    return None


def save(finding: Finding, folder: Path) -> Path:
    """Keep a finding in a file from which `load` gets its case again."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{finding.target}-{hashlib.sha256(finding.case).hexdigest()[:12]}.json"
    kept = {"target": finding.target, "error": finding.error, "case": b64encode(finding.case).decode()}
    path.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    return path


def load(path: Path) -> tuple[str, bytes]:
    """Target and case of a saved finding."""
    kept = json.loads(path.read_text(encoding="utf-8"))
    return kept["target"], b64decode(kept["case"])
