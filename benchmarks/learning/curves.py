"""A learning curve: mean return of deterministic episodes over environment steps, as a small CSV file."""

from __future__ import annotations

import csv
import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path

from tmrl_core.metrics import MetricRecord, names


@dataclass(frozen=True)
class Point:
    """One evaluation.

    Args:
        steps: environment steps (without resets, where they are counted apart) that had been learned from.
        mean: of the episodes' returns.
        std: their standard deviation.
        seconds: since the run began, evaluations included.
        train: mean return of the training episodes, explored in, that have ended since the evaluation before; nan where
            that was not noted.
    """

    steps: int
    mean: float
    std: float
    seconds: float
    train: float = math.nan


Curve = Sequence[Point]

_NAMES = [field.name for field in fields(Point)]


def write(path: Path, curve: Iterable[Point]) -> None:
    """Write a curve, the folders above it included."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(_NAMES)
        for point in curve:
            steps, *rest = astuple(point)
            writer.writerow([steps, *(round(value, 3) for value in rest)])


def read(path: Path) -> list[Point]:
    """A curve that `write` wrote.

    Raises:
        ValueError: it is something else.
    """
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.reader(file))
    if not rows or rows[0] != _NAMES:
        raise ValueError(f"{path} does not begin with {','.join(_NAMES)}: it is no learning curve")
    return [Point(int(row[0]), *(float(value) for value in row[1:])) for row in rows[1:]]


def mean_of(values: Sequence[float]) -> float:
    """Their mean; nan if there is none."""
    return statistics.fmean(values) if values else math.nan


def points_of(records: Iterable[MetricRecord], steps_per_round: int | None) -> list[Point]:
    """The evaluations of a run.

    Args:
        records: of its metrics.jsonl.
        steps_per_round: in lockstep, whose rounds count steps exactly; None: the samples received count, resets too.
    """
    steps = 0
    points = []
    trained: list[float] = []
    for record in records:
        if record.kind == "episode" and not record.is_cut:
            value = record.number(names.RETURN_TRAIN)
            trained += [] if value is None else [value]
        elif record.kind == "round" and steps_per_round is not None:
            steps = int(record.number(names.ROUNDS) or 0) * steps_per_round
        elif record.kind == "evaluation":
            if steps_per_round is None:
                steps = int(record.number(names.SAMPLES_RECEIVED) or 0)
            mean, std = record.number(names.RETURN_EVALUATION), record.number(names.RETURN_EVALUATION_STD)
            assert mean is not None
            assert std is not None
            points.append(Point(steps, mean, std, record.elapsed_s, mean_of(trained)))
            trained = []
    return points
