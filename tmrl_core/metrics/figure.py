"""Figures of matplotlib with one look, written as files that are never incomplete."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from tmrl_core.errors import MissingExtraError

INK = "#1f2933"
FAINT = "#7b8794"
GRID = "#e4e7eb"


def new_figure(
    purpose: str, width: float, height: float, *, dpi: int = 150, layout: str | None = None, extra: str = "trainer"
) -> Any:
    """Return an empty figure.

    Args:
        purpose: begins the message if matplotlib is missing, such as "Drawing runs".
        width, height: in inches.
        dpi: pixels of an inch.
        layout: layout engine of matplotlib; None: axes are placed by hand.
        extra: extra of this package that has matplotlib.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    try:
        # matplotlib.pyplot is avoided, because it chooses a window system and keeps every figure.
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError("matplotlib", extra, purpose) from error
    figure = Figure(figsize=(width, height), dpi=dpi, facecolor="white", layout=layout)  # type: ignore[arg-type]
    FigureCanvasAgg(figure)
    return figure


def style_axes(axes: Any) -> None:
    """Give axes a faint grid, and spines at the left and below."""
    axes.grid(True, color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    for side, spine in axes.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color(GRID)
    axes.tick_params(colors=INK, labelsize=9, length=0, pad=5)


def write(figure: Any, path: Path) -> None:
    """Write a figure in the format that the path ends with. A reader sees the old or the new picture.

    Raises:
        OSError: the file cannot be written.
    """
    partial = path.with_name(f".{path.stem}.partial{path.suffix}")
    figure.savefig(partial, format=path.suffix[1:])
    os.replace(partial, path)
