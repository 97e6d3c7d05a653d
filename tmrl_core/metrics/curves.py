"""Curves of a run in constant memory: each in a few hundred points, however long the run is."""

# Theory of operation
#
# For: a picture of a run for people that look at it from afar, in a few kB. `metrics.jsonl` has every record.
#
# A curve has at most `MOST_POINTS`. When it is full, neighbouring pairs become one point each, and from then on a point
# stands for twice as many records. An example with 4 points, of records 1, 2, 3, ...:
#
#     1 2 3 4  ->  1.5 3.5  ->  1.5 3.5 5.5 7.5  ->  2.5 6.5  ->  2.5 6.5 10.5 ...
#
# Each point is the mean of the records that it stands for, so nothing is weighted by when it came. For a lower and an
# upper limit the mean would hide what they show: they keep the lowest and the highest. A point has the axes of its last
# record; one that is not complete yet is shown too, since it is the present.

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from tmrl_core.metrics import names
from tmrl_core.metrics.records import MetricRecord

MOST_POINTS = 256
"""Maximum number of points of a curve; even."""
MOST_CURVES = 32
"""Maximum number of curves. With many policies, the losses of the first ones are kept."""


class Point(NamedTuple):
    """Point of a curve."""

    env_steps: int
    elapsed_s: float
    value: float


def _mean(first: float, second: float, weight: float) -> float:
    return first + (second - first) * weight


def _lowest(first: float, second: float, weight: float) -> float:
    return min(first, second)


def _highest(first: float, second: float, weight: float) -> float:
    return max(first, second)


Merge = Callable[[float, float, float], float]
"""Merge two values; the third number is the share of the second one."""


class Curve:
    """One curve.

    Args:
        merge: value of two neighbouring points together.
        most: maximum number of points.
    """

    def __init__(self, merge: Merge = _mean, most: int = MOST_POINTS) -> None:
        self._merge = merge
        self._most = most
        self._points: list[Point] = []
        self._each = 1
        """Number of records for which a complete point stands."""
        self._in_last = 0
        """Number of records in the last point."""

    def add(self, point: Point) -> None:
        """Add a record."""
        points = self._points
        if points and self._in_last < self._each:
            self._in_last += 1
            points[-1] = self._merged(points[-1], point, 1 / self._in_last)
            return
        if len(points) >= self._most:
            self._points = points = self.thinned(points)
            self._each *= 2
        points.append(point)
        self._in_last = 1

    def thinned(self, points: list[Point]) -> list[Point]:
        """Return half as many points."""
        pairs = zip(points[::2], points[1::2], strict=False)
        rest = points[len(points) & ~1 :]
        return [self._merged(first, second, 0.5) for first, second in pairs] + rest

    def _merged(self, first: Point, second: Point, weight: float) -> Point:
        return Point(second.env_steps, second.elapsed_s, self._merge(first.value, second.value, weight))

    def points(self, most: int = MOST_POINTS) -> list[Point]:
        """Return at most `most` points, the oldest first."""
        points = self._points
        while len(points) > most:
            points = self.thinned(points)
        return list(points)


_OF_ROUNDS = (
    names.RETURN_MEAN,
    names.EPISODE_LENGTH_MEAN,
    names.MEMORY_LEN,
    names.SAMPLES_PER_S,
    names.UPDATES_PER_S,
    names.POLICY_LAG_MEAN,
    names.ENTROPY_COEF,
    "rollout/success_rate",
)
"""Metrics of rounds that have a curve, besides losses."""
_OF_EVALUATIONS: Mapping[str, Merge] = {
    names.RETURN_EVALUATION: _mean,
    names.RETURN_EVALUATION_STD: _mean,
    names.RETURN_EVALUATION_MIN: _lowest,
    names.RETURN_EVALUATION_MAX: _highest,
}


class Curves:
    """The curves of a run, by the names of their metrics."""

    def __init__(self) -> None:
        self._curves: dict[str, Curve] = {}

    def add(self, record: MetricRecord) -> None:
        """Add the metrics of a record that have a curve. Values that are not finite are left out."""
        match record.kind:
            case "episode":
                if not record.is_cut:
                    self._add(record, names.RETURN_TRAIN, _mean)
            case "evaluation":
                for name, merge in _OF_EVALUATIONS.items():
                    self._add(record, name, merge)
            case "round":
                for name in record.values:
                    if name in _OF_ROUNDS or name.endswith("_loss"):
                        self._add(record, name, _mean)

    def _add(self, record: MetricRecord, name: str, merge: Merge) -> None:
        value = record.number(name)
        if value is None:
            return
        curve = self._curves.get(name)
        if curve is None:
            if len(self._curves) >= MOST_CURVES:
                return
            curve = self._curves[name] = Curve(merge)
        curve.add(Point(record.env_steps or 0, round(record.elapsed_s, 1), value))

    def points(self, most: int = MOST_POINTS) -> dict[str, list[Point]]:
        """Return at most `most` points of each curve, the oldest first."""
        return {name: curve.points(most) for name, curve in self._curves.items()}
