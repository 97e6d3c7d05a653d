"""Build the documentation site into build/site: the pages of this repository and an API reference.

    python scripts/docs.py

Warnings are errors: a dead link, a page that is in no menu, a docstring that does not fit its signature. Makes the
environment first.
"""

from __future__ import annotations

import argparse
import os
import sys

from _environment import ROOT, SetupError, ensure, run_here


def main() -> int:
    """Build the site; the exit status."""
    argparse.ArgumentParser(description="Build the documentation site into build/site.").parse_args()
    try:
        python = ensure(["all", "dev", "docs"])
    except SetupError as exc:
        print(f"error: {exc}", file=sys.stderr)
        return 1
    # Material announces its successor on each build; docs/dependencies.md says when we move.
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    status = run_here([str(python), "-m", "mkdocs", "build", "--strict"], env=environment)
    if status == 0:
        print(f"open {ROOT / 'build' / 'site' / 'index.html'}")
    return status


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
