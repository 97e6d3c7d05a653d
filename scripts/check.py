"""What to run before a review: format, lint, types, and tests with branch coverage.

python scripts/check.py [pytest's arguments ...]
"""

from __future__ import annotations

import argparse
import sys

from _environment import SetupError, ensure
from _phases import Phase, run_phases, static_phases


def main() -> int:
    """Run the phases; the exit status."""
    parser = argparse.ArgumentParser(
        description="Format, lint, types, and tests with branch coverage.",
        usage="%(prog)s [-h] [pytest's arguments ...]",
        allow_abbrev=False,
    )
    _, for_pytest = parser.parse_known_args()
    try:
        python = ensure(["all", "dev"])
    except SetupError as exc:
        print(f"error: {exc}", file=sys.stderr)
        return 1
    tests = [str(python), "-m", "pytest", "--cov", "--cov-branch", "--cov-report=term", *for_pytest]
    return run_phases([*static_phases(python), Phase("tests", tests)])


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
