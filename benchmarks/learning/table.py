"""The table and the pictures of the learning curves that `run.py` and `peer.py` have written.

    python benchmarks/learning/table.py

For each task: the mean over seeds and over the last three evaluations (the last 30 % of the steps), of ours and of
stable-baselines3, each seed's beside it, and ours as a share of theirs; the same for the last evaluation alone and for
the whole curve; the mean return of the training episodes in the same time, where the actions are drawn; and what was
published. Only steps that every curve of a task has count.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import curves
from published import PUBLISHED
from run import HERE, RESULTS

REACH = 0.95
LAST = 3
"""Evaluations that count as the end of a curve."""

COLUMNS = (
    "task",
    "steps",
    "ours (seeds)",
    "stable-baselines3 (seeds)",
    "share",
    "last evaluation",
    "curve",
    "training episodes",
    "published",
)

Seeds = Mapping[int, curves.Curve]


@dataclass(frozen=True)
class Side:
    """Of one side: the mean over seeds at the end, and each seed's; of the last evaluation; of the whole curve; and the
    mean at the end of training episodes, of each seed for which it was noted."""

    end: float
    ends: tuple[float, ...]
    last: float
    whole: float
    trains: tuple[float, ...]


def share(ours: float, theirs: float) -> float:
    """Ours as a share of theirs; where returns are negative, 0.95 means worse by 5 % of what theirs amounts to."""
    return 1.0 + (ours - theirs) / abs(theirs)


def common(sides: Sequence[Seeds]) -> int:
    """Up to how many steps all these curves go.

    Raises:
        ValueError: there is none, or they were not evaluated after the same steps.
    """
    all_curves = [curve for side in sides for curve in side.values()]
    if not all(sides) or not all(all_curves):
        raise ValueError("a side has no curve, or an empty one")
    steps = min(curve[-1].steps for curve in all_curves)
    # Asynchronous training is evaluated a few steps later than it asked to be.
    if len({len(_until(curve, steps)) for curve in all_curves}) != 1:
        raise ValueError(f"the curves have different numbers of evaluations up to {steps} steps")
    return steps


def summary(side: Seeds, steps: int) -> Side:
    """What one side has learned within so many steps."""
    cut = [_until(curve, steps) for _, curve in sorted(side.items())]
    ends = tuple(statistics.fmean(point.mean for point in curve[-LAST:]) for curve in cut)
    return Side(
        statistics.fmean(ends),
        ends,
        statistics.fmean(curve[-1].mean for curve in cut),
        statistics.fmean(point.mean for curve in cut for point in curve),
        tuple(
            train
            for train in (statistics.fmean(point.train for point in curve[-LAST:]) for curve in cut)
            if not math.isnan(train)
        ),
    )


def _until(curve: curves.Curve, steps: int) -> curves.Curve:
    return [point for point in curve if point.steps <= steps * 1.02]


def load(folder: Path, task: str, side: str) -> dict[int, list[curves.Point]]:
    """The curves of one side, by seed."""
    paths = folder.glob(f"{task}_{side}_*.csv")
    return {int(path.stem.removeprefix(f"{task}_{side}_")): curves.read(path) for path in paths}


def row(task: str, ours: Seeds, theirs: Seeds) -> str:
    """A line of the table."""
    steps = common([ours, theirs])
    left, right = summary(ours, steps), summary(theirs, steps)
    end = share(left.end, right.end)
    cells = [
        task,
        f"{steps:,}",
        _means(left.ends),
        _means(right.ends),
        f"{end:.2f}{'' if end >= REACH else ' **below**'}",
        f"{left.last:.0f} / {right.last:.0f} = {share(left.last, right.last):.2f}",
        f"{share(left.whole, right.whole):.2f}",
        f"{_means(left.trains)} / {_means(right.trains)}",
        PUBLISHED[task],
    ]
    return f"| {' | '.join(cells)} |"


def _means(values: Sequence[float]) -> str:
    if not values:
        return "-"
    return f"{statistics.fmean(values):.0f} ({', '.join(f'{value:.0f}' for value in values)})"


def draw(path: Path, task: str, ours: Seeds, theirs: Seeds) -> None:
    """A picture of all seeds, and of the means of both sides."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for side, name, colour in ((theirs, "stable-baselines3", "#c2571a"), (ours, "tmrl_core", "#1f5fa8")):
        for curve in side.values():
            steps = [point.steps for point in curve]
            axes.plot(steps, [point.mean for point in curve], color=colour, alpha=0.35, linewidth=1.0)
        points = list(zip(*side.values(), strict=False))
        means = [statistics.fmean(point.mean for point in seeds) for seeds in points]
        axes.plot(
            [seeds[0].steps for seeds in points],
            means,
            color=colour,
            linewidth=2.2,
            label=f"{name}, {len(side)} seed{'s' if len(side) > 1 else ''}",
        )
    axes.set_xlabel("environment steps")
    axes.set_ylabel("mean return of the evaluation")
    axes.set_title(task, loc="left")
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    figure.savefig(path, dpi=110)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    print(f"| {' | '.join(COLUMNS)} |")
    print(f"| {' | '.join('---' for _ in COLUMNS)} |")
    reached = True
    for task in sorted(path.stem for path in HERE.glob("*.yaml")):
        ours, theirs = load(arguments.folder, task, "ours"), load(arguments.folder, task, "sb3")
        if not ours or not theirs:
            print(f"{task}: not run on both sides", file=sys.stderr)
            reached = False
            continue
        line = row(task, ours, theirs)
        reached = reached and "**below**" not in line
        print(line)
        draw(arguments.folder / f"{task}.png", task, ours, theirs)
    return 0 if reached else 1


if __name__ == "__main__":
    sys.exit(main())
