"""Draw `docs/packages.svg`, the picture of `docs/architecture.md`, from the imports of the package.

    python scripts/package_picture.py

A box is a package. It stands one row above the highest package that it imports, and its lines lead to the packages that
it needs and that no other one of these needs already. Needs only the standard library.
"""

from __future__ import annotations

import argparse
import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "tmrl_core"
PICTURE = ROOT / "docs" / "packages.svg"

# Folders whose folders are boxes of their own. A module belongs to the deepest box; modules at the top are one.
DIVIDED = ("actor", "networking", "training")
TOP = "errors, ..."
ROOMS = (
    *("compat", "dashboard", "envs/lerobot", "envs/replay", "gateway", "multiagent", "networking/transports/tlspyo"),
    *("onnx_export", "plots", "ranks", "sessions/lerobot", "sessions/minari", "success", "teleop", "testing"),
)
# Lazy exports only: nothing is imported when the package is.
EMPTY = {"networking"}

WIDTH, BOX_HEIGHT, ROW_HEIGHT, MARGIN = 1120, 28, 62, 12
COLORS = {"networking": "#dbe9f6", "training": "#fbe3cd", "actor": "#dff0d8", "": "#eeeeee"}


def box_of(module: Path) -> str:
    """Return the box of a module, given by its path below the package."""
    folder, first = module.parent, module.parts[0]
    for room in ROOMS:
        if folder.is_relative_to(room):
            return room
    if len(module.parts) == 1:
        return TOP
    return "/".join(folder.parts[:2]) if first in DIVIDED else first


def imported(tree: ast.AST) -> Iterator[str]:
    """Yield the modules that a module imports when it is imported itself, deferred and typing imports left out."""
    # A deferred import (inside a function) breaks a circle or saves the start of a role the time of a heavy package;
    # what it leads to is a decision of that function and no dependency of the package.
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == PACKAGE.name:
            for name in node.names:
                yield f"{node.module}.{name.name}"
        yield from imported(node)


def file_of(name: str) -> Path | None:
    """Return the path below the package of the module that an imported name is or is in."""
    parts = name.split(".")[1:]
    for length in range(len(parts), -1, -1):
        base = PACKAGE.joinpath(*parts[:length])
        for path in (base.with_suffix(".py"), base / "__init__.py"):
            if path.exists() and path != PACKAGE.with_suffix(".py"):
                return path.relative_to(PACKAGE)
    return None


def needs() -> dict[str, set[str]]:
    """Return the boxes that each box imports."""
    found: dict[str, set[str]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        module = path.relative_to(PACKAGE)
        # The package's own `__init__` and `__main__` stand above everything and would hide the order below.
        if module.as_posix() in ("__init__.py", "__main__.py"):
            continue
        box = box_of(module)
        targets = found.setdefault(box, set())
        if module.name == "__init__.py" and box in EMPTY:
            continue
        for name in imported(ast.parse(path.read_text(encoding="utf-8"))):
            target = file_of(name)
            if target is not None and target.as_posix() != "__init__.py":
                targets.add(box_of(target))
    return {box: targets - {box} - EMPTY for box, targets in found.items() if box not in EMPTY}


def ranks(graph: dict[str, set[str]]) -> dict[str, int]:
    """Return the row of each box: 0 at the bottom.

    Raises:
        SystemExit: packages import each other in a circle.
    """
    rank: dict[str, int] = {}
    while len(rank) < len(graph):
        ready = [box for box in graph if box not in rank and graph[box] <= rank.keys()]
        if not ready:
            raise SystemExit(f"error: a circle of imports among {sorted(set(graph) - set(rank))}")
        for box in ready:
            rank[box] = max((rank[target] + 1 for target in graph[box]), default=0)
    return rank


def direct(graph: dict[str, set[str]], rank: dict[str, int]) -> dict[str, set[str]]:
    """Return the graph without the edges that follow from others."""
    below: dict[str, set[str]] = {}
    for box in sorted(graph, key=rank.__getitem__):
        below[box] = set(graph[box]).union(*(below[target] for target in graph[box]))
    return {
        box: {target for target in targets if not any(target in below[other] for other in targets)}
        for box, targets in graph.items()
    }


def places(lines: dict[str, set[str]], rank: dict[str, int]) -> dict[str, tuple[float, float, float]]:
    """Return the left edge, the top and the width of each box."""
    rows = [sorted(box for box in rank if rank[box] == row) for row in range(max(rank.values()) + 1)]
    center: dict[str, float] = {}
    found: dict[str, tuple[float, float, float]] = {}
    for number, row in enumerate(rows):
        # Each row is ordered by the middle of what its boxes lead to, which leaves few lines that cross.
        row.sort(key=lambda box: (sum(center[each] for each in lines[box]) / (len(lines[box]) or 1), box))
        widths = [7.9 * len(label(box)) + 18 for box in row]
        free = WIDTH - 2 * MARGIN - sum(widths)
        space = free / (len(row) + 1)
        x = MARGIN + space
        for box, width in zip(row, widths, strict=True):
            found[box] = (x, MARGIN + (len(rows) - 1 - number) * ROW_HEIGHT, width)
            center[box] = x + width / 2
            x += width + space
    return found


def label(box: str) -> str:
    """Return the text in a box."""
    return box.removeprefix("networking/")


def draw() -> str:
    """Return the picture as SVG."""
    graph = needs()
    rank = ranks(graph)
    lines = direct(graph, rank)
    place = places(lines, rank)
    height = 2 * MARGIN + max(rank.values()) * ROW_HEIGHT + BOX_HEIGHT
    # No color scheme is known to an image inside a page: a white ground is readable on light and dark pages.
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}"',
        ' font-family="monospace" font-size="13">',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
    ]
    for box, targets in sorted(lines.items()):
        x, y, width = place[box]
        for target in sorted(targets):
            to_x, to_y, to_width = place[target]
            parts.append(
                f'<line x1="{x + width / 2:.0f}" y1="{y + BOX_HEIGHT}" x2="{to_x + to_width / 2:.0f}" y2="{to_y}" '
                'stroke="#999999"/>'
            )
    for box, (x, y, width) in sorted(place.items()):
        color = COLORS.get(box.split("/")[0], COLORS[""])
        border = 'stroke="#333333"' + (' stroke-dasharray="4 3"' if box in ROOMS else "")
        parts += [
            f'<rect x="{x:.0f}" y="{y}" width="{width:.0f}" height="{BOX_HEIGHT}" rx="4" fill="{color}" {border}/>',
            f'<text x="{x + width / 2:.0f}" y="{y + 18}" text-anchor="middle">{label(box)}</text>',
        ]
    return "\n".join([*parts, "</svg>", ""])


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    PICTURE.write_text(draw(), encoding="utf-8")
