"""Scripts of `benchmarks/`, imported as when they are run."""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any


@contextlib.contextmanager
def imported(folder: Path, names: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Import modules from their folder, and forget them afterwards."""
    before = dict(sys.modules)
    sys.path.insert(0, str(folder))
    try:
        yield {name: importlib.import_module(name) for name in names}
    finally:
        sys.path.remove(str(folder))
        for name in names:
            if name not in before:
                sys.modules.pop(name, None)
