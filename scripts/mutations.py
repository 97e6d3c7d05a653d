"""Put defects into a copy of the package, one at a time, and check that the tests named for each of them notice.

    python scripts/mutations.py                      all of tests/mutations.py
    python scripts/mutations.py --jobs 2 acknowledged-before-stored nonce-used-again

Whoever removes or replaces a test keeps this at "all found": each defect breaks a promise to users. The named tests run
once without a defect and must pass. Then every one of them must fail in its own call: a defect that ends the import or
a fixture is broken, and proves nothing. Exit status: 0 all found, 1 otherwise, 2 for a name that is not there.
"""

# Theory of operation
#
# A test that passes proves little; a test that fails when the promise is broken proves that it watches. The table
# `tests/mutations.py` says for each defect which text of which file it replaces, which promise that breaks, and which
# tests must fail. Nothing is generated: generated mutations are mostly harmless changes, and each must be judged by
# hand.
#
# Each job has a copy of the files that git tracks, in a temporary folder, so that a killed run leaves no defect in the
# checkout. One mutation at a time is written into a copy and taken back; bytecode is removed with it, because Python
# compares sizes and seconds only, and a defect may change neither.
#
# A test counts as "found" if its own call fails. An error of the import or of a fixture would fail for any reason, also
# for a syntax error in the table, and counts as BROKEN. All tests run once without a defect first: a test that fails
# anyway would find everything.
#
# Some defects let children of a killed process go on; they are found by the PYTHONPATH of their copy and killed, since
# they would take the processor from the next mutation, and their time limits would fail for that reason.

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import os
import queue
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

import psutil

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.mutations import MUTATIONS, Mutation  # noqa: E402

_NO_FINDING = re.compile(r"^(?:\w+\.)*(?:ImportError|ModuleNotFoundError|NameError|SyntaxError|IndentationError)\b")
"""Errors of code that cannot run, which any test would find."""


LIMIT_S = 900
"""Time after which a process of tests is killed: a defect may also hang the end of a test, which has no time-out."""


class Outcome(NamedTuple):
    """Tests that failed in their call, and those that could not be run, with the reason."""

    failed: frozenset[str]
    broken: dict[str, str]
    seconds: float


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="mutations to try; none: all")
    parser.add_argument("--jobs", type=int, default=1, help="mutations at a time (default: 1)")
    parser.add_argument("--list", action="store_true", help="print the table and run nothing")
    arguments = parser.parse_args()
    if unknown := set(arguments.names) - {one.name for one in MUTATIONS}:
        print(f"unknown: {', '.join(sorted(unknown))}; --list shows the names", file=sys.stderr)
        return 2
    chosen = [one for one in MUTATIONS if not arguments.names or one.name in arguments.names]
    if arguments.list:
        for one in chosen:
            print(f"{one.name}: {one.promise}: {one.file}: {', '.join(one.tests)}")
        return 0
    with tempfile.TemporaryDirectory(prefix="mutations-") as folder:
        return try_all(chosen, [Path(folder) / str(job) for job in range(max(1, arguments.jobs))])


def try_all(chosen: Sequence[Mutation], copies: Sequence[Path]) -> int:
    """Try mutations, as many at a time as there are places for copies, and print the table. Return the exit status."""
    free: queue.SimpleQueue[Path] = queue.SimpleQueue()
    for copy in copies:
        copy_tree(copy)
        free.put(copy)
    tests = list(dict.fromkeys(test for one in chosen for test in one.tests))
    clean = run(copies[0], tests)
    print(f"{len(tests)} tests without a mutation: {clean.seconds:.0f} s", flush=True)
    for test in sorted(clean.failed | clean.broken.keys()):
        print(f"  fails without a mutation: {test} {clean.broken.get(test, '')}")
    if clean.failed or clean.broken:
        return 1

    def work(mutation: Mutation) -> bool:
        copy = free.get()
        try:
            found, line = attempt(copy, mutation)
        finally:
            free.put(copy)
        print(line, flush=True)
        return found

    with ThreadPoolExecutor(len(copies)) as pool:
        found = sum(pool.map(work, chosen))
    print(f"{found} of {len(chosen)} found")
    return 0 if found == len(chosen) else 1


def copy_tree(target: Path) -> None:
    """Copy the files that git tracks, as they are now."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
    for name in filter(None, listed.decode().split("\0")):
        source, place = ROOT / name, target / name
        if source.is_file():
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, place)


def attempt(copy: Path, mutation: Mutation) -> tuple[bool, str]:
    """Try one mutation in a copy. Return True if each of its tests has failed, and a row of the table."""
    path = copy / mutation.file
    before = path.read_bytes()
    write_source(path, mutation.applied(before.decode()).encode())
    try:
        outcome = run(copy, mutation.tests)
    finally:
        write_source(path, before)
    missed = [test for test in mutation.tests if test not in outcome.failed]
    state = "found" if not missed else "BROKEN" if outcome.broken else "NOT FOUND"
    by = ", ".join(f"{test} ({outcome.broken.get(test, 'passes')})" for test in missed) or ", ".join(mutation.tests)
    return not missed, f"| {mutation.name} | {mutation.promise} | {state} | {by} | {outcome.seconds:.0f} s |"


def write_source(path: Path, content: bytes) -> None:
    """Replace a module, and its bytecode, which knows its source by size and second only."""
    path.write_bytes(content)
    Path(importlib.util.cache_from_source(str(path))).unlink(missing_ok=True)


def run(copy: Path, tests: Sequence[str]) -> Outcome:
    """Run tests of a copy in a process of its own."""
    report = copy.with_suffix(".xml")
    report.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", f"--junitxml={report}", *tests]
    environment = {**os.environ, "PYTHONPATH": str(copy)}
    started = time.monotonic()
    try:
        ran = subprocess.run(
            command, cwd=copy, env=environment, capture_output=True, text=True, check=False, timeout=LIMIT_S
        )
        end = [*(ran.stdout + ran.stderr).strip().splitlines(), f"exit status {ran.returncode}"]
    except subprocess.TimeoutExpired:
        end = [f"not over after {LIMIT_S} s"]
    end_orphans(copy)
    seconds = time.monotonic() - started
    cases = list(ElementTree.parse(report).iter("testcase")) if report.exists() else []
    failed, broken = set(), {}
    for test in tests:
        own = [case for case in cases if is_case_of(case, test)]
        errors = [error.get("message", "") for case in own for error in case.iter("error")]
        failures = [failure.get("message", "") for case in own for failure in case.iter("failure")]
        errors += [message for message in failures if _NO_FINDING.match(message)]
        if failures and not errors:
            failed.add(test)
        elif errors or not any(case.find("skipped") is None for case in own):
            broken[test] = " ".join((errors[:1] or end[-2:-1] or end)[0].split())[:200]
    return Outcome(frozenset(failed), broken, seconds)


def end_orphans(copy: Path) -> None:
    """Kill what a copy's tests have left running: with some defects, the children of a killed process go on."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get("PYTHONPATH", "").split(os.pathsep)[0] == str(copy):
                process.kill()


def is_case_of(case: ElementTree.Element, test: str) -> bool:
    """Return True if a case of a report belongs to a test, which may name one case of it: `file::test[case]`."""
    file, _, name = test.partition("::")
    module = file.removesuffix(".py").replace("/", ".")
    found = case.get("name", "")
    return case.get("classname", "") == module and (found == name or found.startswith(f"{name}["))


if __name__ == "__main__":
    sys.exit(main())
