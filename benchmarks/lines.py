"""Lines of code, docstrings and comments of the package, of its core, and of each room.

    python benchmarks/lines.py [FOLDER]

FOLDER is that of a checkout, by default this one. Counted are the files `tmrl_core/**/*.py`. Each of their lines is one
of four things:

- docstring: not empty, and part of the string that a module, class or function begins with;
- code: any other line with a token that is not a comment. A string counts with all its lines, empty ones too. A string
  after an assignment, which describes an attribute, is code;
- comment: a line with a comment alone;
- blank: any other line.

A room is a part that can be taken away, as in `ROOMS`; the core is the package without its rooms. A room inside another
folder counts in that folder too, and has a row of its own below.
"""

from __future__ import annotations

import argparse
import ast
import io
import tokenize
from collections.abc import Iterable
from fnmatch import fnmatch
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "tmrl_core"
ROOMS = (
    "gateway", "multiagent", "compat", "dashboard", "onnx_export", "plots", "ranks", "success", "teleop", "testing",
    "envs/lerobot*", "envs/replay*", "sessions/lerobot*", "sessions/minari*", "networking/transports/tlspyo*",
)  # fmt: skip
"""Folders or modules below the package; a pattern covers a module that becomes a folder."""
NO_CODE = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER,
}  # fmt: skip


class Lines(NamedTuple):
    """Numbers of lines, which add up to all lines."""

    code: int = 0
    docstring: int = 0
    comment: int = 0
    blank: int = 0


def total(parts: Iterable[Lines]) -> Lines:
    return Lines(*(sum(column) for column in zip(Lines(), *parts, strict=True)))


def count(source: str) -> Lines:
    """Count the lines of a module."""
    with_docstring: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if (
            isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
            and ast.get_docstring(node, clean=False) is not None
        ):
            string = node.body[0]
            with_docstring.update(range(string.lineno, (string.end_lineno or 0) + 1))
    with_code: set[int] = set()
    with_comment: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            with_comment.add(token.start[0])
        elif token.type not in NO_CODE:
            with_code.update(range(token.start[0], token.end[0] + 1))
    lines = source.splitlines()
    empty = {number for number, line in enumerate(lines, 1) if not line.strip()}
    code = with_code - with_docstring
    docstring = with_docstring - empty
    comment = with_comment - with_docstring - code
    return Lines(len(code), len(docstring), len(comment), len(lines) - len(code) - len(docstring) - len(comment))


def modules(checkout: Path) -> dict[str, Lines]:
    """Count each module of a checkout's package, by its path below the package."""
    package = checkout / PACKAGE
    return {
        path.relative_to(package).as_posix(): count(path.read_text(encoding="utf-8"))
        for path in sorted(package.rglob("*.py"))
    }


def is_in(module: str, room: str) -> bool:
    """Return True if a module, by its path below the package, belongs to a room of `ROOMS`."""
    parts = module.removesuffix(".py").split("/")
    depth = room.count("/") + 1
    return fnmatch("/".join(parts[:depth]), room)


def rows(found: dict[str, Lines]) -> dict[str, list[Lines]]:
    """Return the modules of each row of the table by its name."""
    table = {
        "the package": list(found.values()),
        "the core": [n for module, n in found.items() if not any(is_in(module, room) for room in ROOMS)],
        "all rooms": [n for module, n in found.items() if any(is_in(module, room) for room in ROOMS)],
    }
    for folder in sorted({module.split("/")[0] for module in found if "/" in module}):
        name = f"room {folder}" if folder in ROOMS else folder
        table[name] = [n for module, n in found.items() if module.startswith(f"{folder}/")]
    table["modules at the top"] = [n for module, n in found.items() if "/" not in module]
    for room in ROOMS:
        if "/" in room:
            table[f"room {room}"] = [n for module, n in found.items() if is_in(module, room)]
    return table


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, default=ROOT, help="of a checkout")
    folder = parser.parse_args().folder
    found = modules(folder)
    if not found:
        parser.error(f"{folder / PACKAGE} holds no module")
    print("| what | modules | code | docstring | comment | blank | comment, % of all lines |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for name, parts in rows(found).items():
        lines = total(parts)
        cells = " | ".join(f"{number:,}" for number in lines)
        print(f"| {name} | {len(parts)} | {cells} | {100 * lines.comment / (sum(lines) or 1):.1f} |")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
