"""Statistics of a LeRobot dataset's features: by episode (`stats/*` in meta/episodes) and of all frames."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

from tmrl_core.samples.columns import Array

Stats: TypeAlias = "dict[str, Array]"

QUANTILES = {"q01": 0.01, "q10": 0.1, "q50": 0.5, "q90": 0.9, "q99": 0.99}
# Quantiles need all values; 64 MiB are 1.4 million ticks of an arm with six float64 joints.
KEPT_BYTES = 64 << 20
"""Maximum size of a feature's values that are kept, for the quantiles of all frames."""


class FeatureStats:
    """Minimum, maximum, mean, standard deviation and quantiles of a feature.

    Those of images are by channel, of values from 0 to 1, and exact: a histogram of bytes loses nothing. Quantiles of
    other features with more than `KEPT_BYTES` are the mean of the episodes' ones, as in lerobot 0.6.

    Args:
        image: the columns are images, uint8 [T, height, width, 3].
    """

    def __init__(self, image: bool) -> None:
        self._image = image
        self._frames = 0
        self._histogram: Array = np.zeros((3, 256), np.int64)
        self._kept: list[Array] | None = []
        self._kept_bytes = 0
        self._pooled: Stats = {}

    def add(self, column: Array) -> Stats:
        """Add the frames of an episode; return their statistics."""
        frames, before = len(column), self._frames
        self._frames += frames
        if self._image:
            channels = column.reshape(-1, 3).T
            histogram = np.stack([np.bincount(channel, minlength=256) for channel in channels])
            self._histogram = self._histogram + histogram
            return _counted(_of_histogram(histogram), frames)
        found = _of_values(column)
        self._pooled = _pooled(self._pooled, before, found, frames) if before else found
        if self._kept is not None:
            self._kept.append(column)
            self._kept_bytes += column.nbytes
            if self._kept_bytes > KEPT_BYTES:
                self._kept = None
        return _counted(found, frames)

    def total(self) -> Stats:
        """Return the statistics of all frames."""
        if self._image:
            found = _of_histogram(self._histogram)
        else:
            found = self._pooled if self._kept is None else _of_values(np.concatenate(self._kept))
        return _counted(found, self._frames)


def as_lists(stats: Stats) -> dict[str, Any]:
    """Return statistics as JSON and Parquet hold them."""
    return {name: value.tolist() for name, value in stats.items()}


def _counted(found: Stats, frames: int) -> Stats:
    # lerobot's loader compares shapes: a number is [1].
    return {**{name: np.atleast_1d(value) for name, value in found.items()}, "count": np.array([frames])}


def _of_values(column: Array) -> Stats:
    values = column.astype(np.float64)
    found = {
        "min": values.min(axis=0),
        "max": values.max(axis=0),
        "mean": values.mean(axis=0),
        "std": values.std(axis=0),
    }
    quantiles = np.quantile(values, list(QUANTILES.values()), axis=0)
    return found | dict(zip(QUANTILES, quantiles, strict=True))


def _of_histogram(histogram: Array) -> Stats:
    """Return the statistics of bytes, each [3, 1, 1]."""
    levels = np.arange(256) / 255
    count = histogram.sum(axis=1, keepdims=True)
    below = np.cumsum(histogram, axis=1)

    def ranked(rank: Array) -> Array:
        """Return the values of a rank, from 0; [3, 1]."""
        found: Array = levels[(below <= rank).sum(axis=1, keepdims=True)]
        return found

    def quantile(part: float) -> Array:
        rank = part * (count - 1)
        low, high = ranked(np.floor(rank)), ranked(np.ceil(rank))
        found: Array = low + (high - low) * (rank - np.floor(rank))
        return found

    mean = (histogram * levels).sum(axis=1, keepdims=True) / count
    deviation = np.sqrt((histogram * (levels - mean) ** 2).sum(axis=1, keepdims=True) / count)
    found = {"min": ranked(np.zeros_like(count)), "max": ranked(count - 1), "mean": mean, "std": deviation}
    found |= {name: quantile(part) for name, part in QUANTILES.items()}
    return {name: value[:, :, None] for name, value in found.items()}


def _pooled(one: Stats, frames: int, other: Stats, more: int) -> Stats:
    """Return the statistics of two sets of frames together."""
    count = frames + more
    pooled = {name: (one[name] * frames + other[name] * more) / count for name in ("mean", *QUANTILES)}
    # Chan, Golub and LeVeque: variances of two sets, without the differences of large sums.
    spread = (one["mean"] - other["mean"]) ** 2 * frames * more / count**2
    deviation = np.sqrt((one["std"] ** 2 * frames + other["std"] ** 2 * more) / count + spread)
    low, high = np.minimum(one["min"], other["min"]), np.maximum(one["max"], other["max"])
    return {"min": low, "max": high, "std": deviation, **pooled}
