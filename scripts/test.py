"""Everything that CI runs: format, lint, types, documentation, tests and one small quickstart.

    python scripts/test.py            at most eight minutes on two cores
    python scripts/test.py --fast     format, lint and the units: no processes, no sockets; under two minutes
    python scripts/test.py --full     the long forms too: more seeds, more cycles, learning runs
    python scripts/test.py --shuffle  the files of tests in a random order; its number repeats it: --shuffle 7

Makes the environment first. Each phase runs whatever the others found; the exit status is 0 when all succeeded.
"""

from __future__ import annotations

import argparse
import os
import random
import sys

from _environment import ROOT, SetupError, ensure
from _phases import Phase, run_phases, static_phases


def main() -> int:
    """Run the phases; the exit status."""
    parser = argparse.ArgumentParser(description="Format, lint, types, documentation, tests and one small quickstart.")
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--fast", action="store_true", help="format, lint and unit tests only")
    length.add_argument("--full", action="store_true", help="add the long forms of the tests")
    parser.add_argument(
        "--shuffle",
        nargs="?",
        type=int,
        const=random.randrange(1000),
        metavar="SEED",
        help="run the files of tests in a random order, or in that of this seed",
    )
    arguments = parser.parse_args()
    try:
        python = ensure(["all", "dev", "docs"])
    except SetupError as exc:
        print(f"error: {exc}", file=sys.stderr)
        return 1
    environment = dict(os.environ)
    # Tests that wait for processes and sockets leave a core to others: three workers keep two cores busy.
    tests = [str(python), "-m", "pytest", "-n", "3", "--dist", "worksteal"]
    if arguments.fast:
        tests += ["-m", "unit"]
    elif arguments.full:
        environment["FULL_TESTS"] = "1"
        tests += ["-m", "full or not full"]
    if arguments.shuffle is not None:
        print(f"order of test files: --shuffle {arguments.shuffle}")
        tests += ["--shuffle", str(arguments.shuffle)]
    quickstart = [sys.executable, str(ROOT / "scripts" / "quickstart.py"), "--small"]
    site = [sys.executable, str(ROOT / "scripts" / "docs.py")]
    together = [*static_phases(python), Phase("docs", site)]
    if not any((ROOT / "tests").rglob("*-pytest-*.pyc")):
        # Each worker of pytest would compile all tests by itself, for half a minute; the types leave a core to this.
        together.append(
            Phase("bytecode", [str(python), "-m", "pytest", "--collect-only", "-qq", "-k", "test_conftest"])
        )
    phases = [Phase("tests", tests), Phase("quickstart", quickstart)]
    if arguments.fast:
        together = [phase for phase in together if phase.name not in ("types", "docs", "bytecode")]
        phases = phases[:1]
    return run_phases(phases, environment, together=together)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
