"""Sampling in proportion to priorities, a batch at a time."""

# Theory of operation
#
# A tree of sums with three levels: priorities, sums of 32 of them, sums of 1,024. It knows places and numbers, nothing
# of transitions, ages or TD errors beyond the formula of a priority.
#
# Sampling divides the sum of all priorities into as many equal parts as the batch has rows, and draws one point in each
# part. Example with the priorities 1, 3, 0, 4 (sum 8) and a batch of 2: a point in [0, 4) falls on place 0 (up to 1) or
# place 1 (up to 4), a point in [4, 8) on place 3; place 2 is never drawn. A lookup finds the block in the running sum
# of the top level by binary search, then descends two levels, for all samples of a batch together: two dozen calls of
# NumPy or torch, whichever is faster. A binary tree over a million priorities would have twenty levels, hence twenty
# rounds of such calls, each of which costs more than its arithmetic.
#
# A change recomputes the sums of its blocks from the level below instead of adding a difference. Adding would be
# cheaper, but its rounding errors accumulate for as long as the run lasts, until the sum no longer belongs to the
# leaves.
#
# A point can still land on a place of priority 0, because the running sums of two levels round differently. Such places
# are repaired to the next positive one; they are rare, so the repair may search all leaves.
#
# What the time goes to is calls, first access to memory, and unpredictable branches. Therefore intermediate arrays are
# reused for each batch (`_Descent`), and a place within a block is found by comparing all its running sums instead of
# searching them. If numba is installed, compiled loops do the same in about half the time (sum_tree_loops.py): 6,200 to
# 6,600 batches of 256 a second instead of 3,200 to 3,500, and 5,000 are wanted
# (benchmarks/results/prioritized_sampling_epyc2core_202611.md). Both sample the same rows except for rounding, which
# tests compare.

from __future__ import annotations

import logging
import math

import numpy as np
import torch

from tmrl_core.config.sections import PrioritySection
from tmrl_core.training.memories.layout import Array
from tmrl_core.training.memories.sum_tree_loops import FAN, Loops, compiled

logger = logging.getLogger(__name__)

_ONES = np.ones(FAN)


class _Descent:
    """One step down: from blocks of a level to places in the level, for `size` samples at a time.

    Args:
        level: [blocks, FAN].
        size: number of samples.
    """

    def __init__(self, level: Array, size: int) -> None:
        self._level = level
        self._values = level.reshape(-1)
        self._sums: Array = np.empty((size, FAN))
        self._first = self._sums[:, 0]
        self._sums_tensor = torch.from_numpy(self._sums)
        self._inside = torch.empty(size, FAN, dtype=torch.float64)
        self._beyond: Array = self._inside.numpy()
        self._beyond_values = self._beyond.reshape(-1)
        self._above: Array = np.empty((size, FAN), bool)
        self._last = self._above[:, -1]
        self._starts = np.arange(0, size * FAN, FAN)

    def __call__(self, block: Array, rest: Array) -> tuple[Array, Array, Array]:
        """Find the place in the level where the running sum of a block passes `rest`.

        Args:
            block: [size] int64, overwritten with the result.
            rest: [size].

        Returns:
            Places [size] in the level, the sums stored there, and `rest` less the sums before each place.
        """
        # "clip" is the mode that writes to `out` without a copy; no block is outside.
        self._level.take(block, axis=0, out=self._sums, mode="clip")
        # Subtract first, so that all running sums are compared with 0. Comparing row by row costs much more.
        self._first -= rest
        torch.cumsum(self._sums_tensor, 1, out=self._inside)
        np.greater(self._beyond, 0.0, out=self._above)
        self._last.fill(True)  # rounding may lead beyond the block
        found = self._above.argmax(axis=1)
        block *= FAN
        block += found
        found += self._starts
        values = self._values.take(block)
        return block, values, values - self._beyond_values.take(found)


class SumTree:
    """Priorities of `capacity` places, all 0 at first.

    Args:
        capacity: number of places.
        loops: compiled functions that sample batches and compute the sums; None: NumPy and torch are used.

    Attributes:
        capacity: number of places.
        leaves: [capacity] float64; only `set` may change them.
    """

    def __init__(self, capacity: int, loops: Loops | None = None) -> None:
        self.capacity = capacity
        self._loops = loops
        top = -(-capacity // (FAN * FAN))
        self._leaves: Array = np.zeros((top * FAN, FAN))
        self._leaf_values = self._leaves.reshape(-1)
        self._middle: Array = np.zeros((top, FAN))
        self._middle_values = self._middle.reshape(-1)
        self._top = torch.zeros(top, dtype=torch.float64)
        self._top_values: Array = self._top.numpy()
        self._running: Array | None = None
        """Running sums of the top level; None: outdated."""
        self._descents: tuple[int, tuple[_Descent, ...]] = (0, ())
        """Number of samples and the matching `Descent` objects."""
        self.leaves: Array = self._leaf_values[:capacity]

    @property
    def total(self) -> float:
        """Sum of all priorities."""
        return float(self._sums()[-1])

    def _sums(self) -> Array:
        if self._running is None:
            self._running = self._top.cumsum(0).numpy()
        return self._running

    def set(self, places: Array, priorities: Array | float) -> None:
        """Set priorities, each 0 or more, of places ([n] int64); for repeated places, the last value counts."""
        self._running = None
        self.leaves[places] = priorities
        if self._loops is not None:
            self._loops.sum_up(places, self._leaves, self._middle, self._top_values)
            return
        blocks = places // FAN
        if len(blocks) > FAN and blocks[-1] - blocks[0] < len(blocks):
            blocks = np.unique(blocks)  # consecutive places, such as those of new transitions
        # A product with ones sums rows in half the time of `sum(axis=1)`.
        self._middle_values[blocks] = self._leaves.take(blocks, axis=0) @ _ONES
        blocks //= FAN
        self._top_values[blocks] = self._middle.take(blocks, axis=0) @ _ONES

    def sample(self, noise: Array, beta: float) -> tuple[Array, Array]:
        """Sample a batch: divide the sum of all priorities into equal parts and sample one place from each.

        Args:
            noise: [size] float64, 0 <= each < 1: position within the part; overwritten.
            beta: exponent of the importance weights.

        Returns:
            Places [size] int64 and weights [size] float32: (1 / priority)^beta, divided by the largest.
        """
        size = len(noise)
        if self._loops is not None:
            sampled, weights = np.empty(size, np.int64), np.empty(size, np.float32)
            arrays = self._leaves, self._middle, self._top_values
            complete, _ = self._loops.sample(noise, beta, *arrays, sampled, np.empty(size), weights)
            return sampled, weights if complete else importance_weights(self._repair(sampled), beta)
        noise += np.arange(size)
        noise *= self.total / size
        places, priorities = self.find(noise)
        return places, importance_weights(priorities, beta)

    def update(self, indices: Array, errors: Array, oldest: int, settings: PrioritySection, skip_zero: bool) -> float:
        """Set the priorities of indices ([n] int64, modulo capacity) to (|error| + epsilon)^alpha.

        Args:
            indices: indices below `oldest` are ignored; for repeated indices, the last error counts.
            errors: [n]; those that are not finite are ignored.
            oldest: index of the oldest transition.
            settings: alpha and epsilon.
            skip_zero: places of priority 0 keep it.

        Returns:
            The highest |error| + epsilon; 0: there were no valid errors.
        """
        if self._loops is not None:
            self._running = None
            arrays = self._leaves, self._middle, self._top_values
            indices, errors = np.ascontiguousarray(indices, np.int64), np.ascontiguousarray(errors, np.float64)
            exponent = settings.alpha, settings.epsilon
            highest: float = self._loops.update(indices, errors, oldest, *exponent, skip_zero, self.capacity, *arrays)
            return highest
        magnitudes = np.abs(errors).astype(np.float64)
        magnitudes += settings.epsilon
        highest = float(magnitudes.max(initial=0.0))  # the maximum is NaN if a value is NaN
        if skip_zero or indices.min(initial=oldest) < oldest or not math.isfinite(highest):
            usable = (indices >= oldest) & np.isfinite(magnitudes)
            if skip_zero:
                usable &= self.leaves[indices % self.capacity] > 0
            indices, magnitudes = indices[usable], magnitudes[usable]
            highest = float(magnitudes.max(initial=0.0))
        if len(indices):
            self.set(indices % self.capacity, magnitudes**settings.alpha)
        return highest

    def find(self, values: Array) -> tuple[Array, Array]:
        """Find for each value, 0 <= value < total, the place p with sum(leaves[:p]) <= value < sum(leaves[: p + 1]).

        Returns:
            Places [n] int64 and their priorities [n], which are above 0.
        """
        running = self._sums()
        block = running.searchsorted(values, "right")
        np.minimum(block, len(running) - 1, out=block)
        rest = values - running.take(block)
        rest += self._top_values.take(block)
        if self._descents[0] != len(values):
            self._descents = len(values), (_Descent(self._middle, len(values)), _Descent(self._leaves, len(values)))
        priorities = rest
        for down in self._descents[1]:
            block, priorities, rest = down(block, rest)
        if priorities.min(initial=np.inf) <= 0:
            priorities = self._repair(block)
        return block, priorities

    def _repair(self, places: Array) -> Array:
        """Replace places of priority 0, which rounding can lead to, by the next positive one; return priorities."""
        missed = self._leaf_values.take(places) <= 0
        possible = np.flatnonzero(self.leaves > 0)
        places[missed] = possible[np.minimum(possible.searchsorted(places[missed]), len(possible) - 1)]
        return self.leaves.take(places)


def importance_weights(priorities: Array, beta: float) -> Array:
    """Return weights [size] float32 of a batch: (1 / priority)^beta, divided by the largest."""
    # (N * P)^-beta divided by the largest: N and the sum of all priorities cancel out, and nothing can overflow.
    weights: Array = (priorities.min() / priorities) ** beta
    return weights.astype(np.float32)


def sum_tree(capacity: int) -> SumTree:
    """Return the fastest available tree: compiled if numba is installed."""
    loops = compiled()
    logger.info(
        "priorities are sampled by %s",
        "NumPy (with the extra numba in half the time)" if loops is None else "loops that numba compiles",
    )
    return SumTree(capacity, loops)
