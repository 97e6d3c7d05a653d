"""Picture of several runs: returns by environment steps and by time, a line and an interval for each group."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tmrl_core.metrics.figure import FAINT, INK, new_figure, style_axes, write
from tmrl_core.plots.runs import Curve, Floats, Group, Source
from tmrl_core.plots.statistics import BAND_FROM, LEVEL, bootstrap

# Okabe and Ito's colours, which colour-blind eyes can tell apart; after them the dashes differ.
_COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#000000")
_DASHES: tuple[Any, ...] = ("-", (0, (6, 3)), (0, (2, 2)))
_POINTS = 200
_OF_SOURCE: dict[Source, str] = {
    "evaluation": "return of evaluations",
    "test": "return of test episodes, moving average",
    "train": "return of training episodes, moving average",
}


def compare(groups: Sequence[Group], source: Source, out: str | os.PathLike[str], title: str = "") -> list[Path]:
    """Draw groups of runs and return the paths of the pictures, a PNG and an SVG.

    Args:
        groups: lines.
        source: source of the returns, which every run has.
        out: path of the pictures without their suffix.
        title: title above them.

    Raises:
        MissingExtraError: matplotlib is not installed.
        OSError: a picture cannot be written.
    """
    figure = new_figure("Drawing runs", 11.0, 5.0, layout="constrained")
    sides = figure.subplots(1, 2, sharey=True)
    for side, axis, label in zip(sides, ("steps", "minutes"), ("environment steps", "minutes"), strict=True):
        for index, group in enumerate(groups):
            style = {"color": _COLORS[index % len(_COLORS)], "linestyle": _DASHES[index // len(_COLORS) % len(_DASHES)]}
            _draw(side, [run.curves[source] for run in group.runs], axis, group.label, style)
        side.set_xlabel(label, color=INK)
        side.set_xlim(left=0)
        side.xaxis.set_major_formatter(lambda x, _: f"{x / 1e6:g} M" if x >= 1e6 else f"{x:,.6g}")
        style_axes(side)
    sides[0].set_ylabel(_OF_SOURCE[source], color=INK)
    handles, labels = sides[0].get_legend_handles_labels()
    figure.legend(
        handles,
        labels,
        loc="outside lower center",
        ncols=min(3, len(groups)),
        frameon=False,
        fontsize=9,
        labelcolor=INK,
    )
    few = any(len(group.runs) < BAND_FROM for group in groups)
    band = f"line: mean over the seeds; band: {LEVEL:.0%} bootstrap interval of the mean" + (
        f", from {BAND_FROM} seeds on" if few else ""
    )
    figure.suptitle(title or "Runs side by side", fontsize=13, fontweight="bold", color=INK, x=0.01, ha="left")
    sides[0].set_title(band, fontsize=9, color=FAINT, loc="left")
    paths = [Path(f"{os.fspath(out)}.{kind}") for kind in ("png", "svg")]
    for path in paths:
        write(figure, path)
    return paths


def _draw(axes: Any, curves: Sequence[Curve], axis: str, label: str, style: dict[str, Any]) -> None:
    """Draw a group: thin lines of the seeds, and their mean as far as all of them have come."""
    columns = [(curve.steps if axis == "steps" else curve.minutes, curve.returns) for curve in curves]
    n = len(columns)
    if n > 1:
        for x, y in columns:
            axes.plot(x, y, linewidth=0.7, alpha=0.35, **style)
    grid, rows = on_one_grid(columns)
    axes.plot(grid, rows.mean(axis=0), linewidth=2.0, label=f"{label} (n = {n})", **style)
    if n >= BAND_FROM:
        lower, upper = bootstrap(rows, lambda drawn: drawn.mean(axis=0))
        axes.fill_between(grid, lower, upper, color=style["color"], alpha=0.15, linewidth=0)


def on_one_grid(columns: Sequence[tuple[Floats, Floats]]) -> tuple[Floats, Floats]:
    """Return [points] positions that all curves have, and [n, points] their values there.

    A mean over the seeds that have come furthest alone would jump where the others end. Seeds that have no position in
    common, such as two parts of one run, begin at the least of their ends.
    """
    end = min(x[-1] for x, _ in columns)
    start = min(max(x[0] for x, _ in columns), end)
    grid = np.linspace(start, end, _POINTS) if len(columns) > 1 else columns[0][0]
    return grid, np.stack([np.interp(grid, x, y) for x, y in columns])
