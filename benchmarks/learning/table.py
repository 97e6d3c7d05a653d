"""The tables and the pictures of the learning curves that `run.py` and `peer.py` have written.

    python benchmarks/learning/table.py

For each task, of ours and of stable-baselines3: the number of seeds n, the mean over them of the last three evaluations
(the last 30 % of the steps) with its 95 % interval, and the difference of both means with its interval; the means of
the last evaluation alone, of the whole curve and of the training episodes in the same time, where the actions are
drawn; and what was published. The second table has each seed's value. Only steps that every curve of a task has count.
A row that does not have all of `seeds.SEEDS` on both sides says so.

Intervals are those of Student's t over seeds, of the difference those of Welch's t: they assume nothing about equal
variances, and returns near their bound are not normal, so that they are rough where n is small.
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
from run import RESULTS
from seeds import SEEDS

LAST = 3
"""Evaluations that count as the end of a curve."""

COLUMNS = (
    "task",
    "steps",
    "n",
    "ours",
    "stable-baselines3",
    "difference",
    "last evaluation",
    "curve",
    "training episodes",
    "published",
)
SEED_COLUMNS = ("task", "side", "n", "end, by seed", "training episodes, by seed")

T_975 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131)
"""The 97.5 % quantiles of Student's t for 1, 2, ... degrees of freedom; beyond them the last, which is wider."""

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


def interval(values: Sequence[float]) -> float:
    """Return half the width of the mean's 95 % interval; infinite for one value."""
    if len(values) < 2:
        return math.inf
    return T_975[min(len(values) - 1, len(T_975)) - 1] * statistics.stdev(values) / math.sqrt(len(values))


def difference(ours: Sequence[float], theirs: Sequence[float]) -> tuple[float, float]:
    """Return the difference of two means, and half the width of its 95 % interval (Welch)."""
    apart = statistics.fmean(ours) - statistics.fmean(theirs)
    if min(len(ours), len(theirs)) < 2:
        return apart, math.inf
    left, right = (statistics.variance(values) / len(values) for values in (ours, theirs))
    if not left + right:
        return apart, 0.0
    freedom = (left + right) ** 2 / (left**2 / (len(ours) - 1) + right**2 / (len(theirs) - 1))
    # Rounded down, to the wider side.
    return apart, T_975[min(max(int(freedom), 1), len(T_975)) - 1] * math.sqrt(left + right)


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
    """Return a line of the first table."""
    steps = common([ours, theirs])
    left, right = summary(ours, steps), summary(theirs, steps)
    apart, width = difference(left.ends, right.ends)
    cells = [
        task,
        f"{steps:,}",
        f"{len(ours)} / {len(theirs)}{'' if complete(ours, theirs) else f' of {len(SEEDS)}'}",
        f"{left.end:.0f} {_within(interval(left.ends))}",
        f"{right.end:.0f} {_within(interval(right.ends))}",
        f"{apart:+.0f} {_within(width)}",
        f"{left.last:.0f} / {right.last:.0f}",
        f"{left.whole:.0f} / {right.whole:.0f}",
        f"{_mean(left.trains)} / {_mean(right.trains)}",
        PUBLISHED[task],
    ]
    return f"| {' | '.join(cells)} |"


def complete(*sides: Seeds) -> bool:
    """Return True if all sides have exactly the seeds that were fixed."""
    return all(sorted(side) == list(SEEDS) for side in sides)


def seed_rows(task: str, ours: Seeds, theirs: Seeds) -> list[str]:
    """Return the lines of the second table: each seed's value, in the order of the seeds."""
    steps = common([ours, theirs])
    lines = []
    for name, side in (("ours", ours), ("stable-baselines3", theirs)):
        found = summary(side, steps)
        cells = [task, name, str(len(side)), _each(found.ends), _each(found.trains)]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _within(width: float) -> str:
    return "(no interval)" if math.isinf(width) else f"± {width:.0f}"


def _mean(values: Sequence[float]) -> str:
    return f"{statistics.fmean(values):.0f} (n {len(values)})" if values else "-"


def _each(values: Sequence[float]) -> str:
    return ", ".join(f"{value:.0f}" for value in values) or "-"


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
    lines = [f"| {' | '.join(COLUMNS)} |", f"| {' | '.join('---' for _ in COLUMNS)} |"]
    seeds = [f"| {' | '.join(SEED_COLUMNS)} |", f"| {' | '.join('---' for _ in SEED_COLUMNS)} |"]
    all_there = True
    for task in sorted(PUBLISHED):
        ours, theirs = load(arguments.folder, task, "ours"), load(arguments.folder, task, "sb3")
        if not ours or not theirs:
            print(f"{task}: not run on both sides", file=sys.stderr)
            all_there = False
            continue
        all_there = all_there and complete(ours, theirs)
        lines.append(row(task, ours, theirs))
        seeds += seed_rows(task, ours, theirs)
        draw(arguments.folder / f"{task}.png", task, ours, theirs)
    print("\n".join([*lines, "", *seeds]))
    return 0 if all_there else 1


if __name__ == "__main__":
    sys.exit(main())
