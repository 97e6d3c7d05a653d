"""The package's sources as syntax trees: several tests read all of them."""

from __future__ import annotations

import ast
import functools
from pathlib import Path

import tmrl_core

PACKAGE = Path(tmrl_core.__file__).parent
FILES = sorted(PACKAGE.rglob("*.py"))


@functools.cache
def tree(file: Path) -> ast.Module:
    """Return a file's syntax tree, which nobody changes. Each is parsed once in a process: all take seconds."""
    return ast.parse(file.read_text(encoding="utf-8"))
