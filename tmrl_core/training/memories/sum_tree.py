"""Draws in proportion to priorities, a batch at a time.

A tree of sums in three levels: priorities, sums of 32 of them, sums of 1024. A draw looks the block up in the running
sum of the top level, then goes down two levels, all draws of a batch together: two dozen NumPy and torch calls,
whichever has the faster one, where a binary tree over a million takes twenty levels. Sums are made anew from what is
below them with every change, so that no error adds up. Where numba is installed, compiled loops draw batches and make
the sums, in about half the time (sum_tree_loops.py).

What such calls cost is their overhead, the memory that they touch first, and branches that cannot be predicted, so
arrays in between are kept from batch to batch, and a place within a block is found by comparing all of its running sums
instead of searching them.
"""

from __future__ import annotations

import logging
import math
from typing import Any, Protocol

import numpy as np
import torch

from tmrl_core.training.memories.layout import Array
from tmrl_core.training.memories.sum_tree_loops import Loops, compiled

logger = logging.getLogger(__name__)

FAN = 32
_ONES = np.ones(FAN)


class Exponent(Protocol):
    """Exponent that turns an error into a priority."""

    @property
    def alpha(self) -> float:
        """It is raised to this power..."""

    @property
    def epsilon(self) -> float:
        """...after this has been added."""


class _Descent:
    """One step down, from blocks of a level to places in it, for `size` draws at a time.

    Args:
        level: [blocks, FAN].
        size: draws.
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
        self._first -= rest  # so that all running sums are compared with 0: one row after another costs much more
        torch.cumsum(self._sums_tensor, 1, out=self._inside)
        np.greater(self._beyond, 0.0, out=self._above)
        self._last.fill(True)  # rounding may lead past the block
        found = self._above.argmax(axis=1)
        block *= FAN
        block += found
        found += self._starts
        values = self._values.take(block)
        return block, values, values - self._beyond_values.take(found)


class SumTree:
    """Priorities of `capacity` places, all 0 at first.

    Args:
        capacity: places.
        loops: draw batches and make the sums; None: NumPy and torch do.

    Attributes:
        capacity: see above.
        leaves: [capacity] float64; change them by `set` only.
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
        """Running sums of the top level; None: something has changed since."""
        self._descents: tuple[int, tuple[_Descent, ...]] = (0, ())
        """For so many draws."""
        self.leaves: Array = self._leaf_values[:capacity]

    @property
    def total(self) -> float:
        """Sum of all priorities."""
        return float(self._sums()[-1])

    def _sums(self) -> Array:
        if self._running is None:
            self._running = self._top.cumsum(0).numpy()
        return self._running

    def set(self, places: Array, priorities: Any) -> None:
        """Priorities of places ([n] int64), each 0 or more; where a place comes twice, the last counts."""
        self._running = None
        self.leaves[places] = priorities
        if self._loops is not None:
            self._loops.sum_up(places, self._leaves, self._middle_values)
            self._loops.sum_up(places // FAN, self._middle, self._top_values)
            return
        blocks = places // FAN
        if len(blocks) > FAN and blocks[-1] - blocks[0] < len(blocks):
            blocks = np.unique(blocks)  # a run of neighbours, as new transitions are
        # A product with ones sums rows in half the time of `sum(axis=1)`.
        self._middle_values[blocks] = self._leaves.take(blocks, axis=0) @ _ONES
        blocks //= FAN
        self._top_values[blocks] = self._middle.take(blocks, axis=0) @ _ONES

    def draw(self, noise: Array, beta: float) -> tuple[Array, Array]:
        """For each batch one place out of each of equal shares of the sum of all priorities.

        Args:
            noise: [count, size] float64, 0 <= each < 1: where in its share; overwritten.
            beta: exponent of the importance weights.

        Returns:
            Places [count * size] int64 and weights [count * size] float32: (1 / priority)^beta, divided by the largest
            of the batch.
        """
        count, size = noise.shape
        if self._loops is not None:
            drawn, weights = np.empty(noise.size, np.int64), np.empty(noise.size, np.float32)
            arrays = self._leaves, self._middle, self._top_values
            complete, _ = self._loops.draw(noise, beta, *arrays, drawn, np.empty(noise.size), weights)
            return drawn, weights if complete else importance_weights(self._repair(drawn), count, beta)
        noise += np.arange(size)
        noise *= self.total / size
        places, priorities = self.find(noise.reshape(-1))
        return places, importance_weights(priorities, count, beta)

    def update(self, indices: Array, errors: Array, oldest: int, settings: Exponent, skip_zero: bool) -> float:
        """Priorities (|error| + epsilon)^alpha of indices ([n] int64), each at its index modulo capacity.

        Args:
            indices: those before `oldest` are passed over; where one comes twice, the last counts.
            errors: [n]; those that are not finite are passed over.
            oldest: see above.
            settings: alpha and epsilon.
            skip_zero: places of priority 0 keep it.

        Returns:
            The highest |error| + epsilon; 0 where there is none.
        """
        surprises = np.abs(errors).astype(np.float64)
        surprises += settings.epsilon
        highest = float(surprises.max(initial=0.0))  # not a number where one of them is not
        if skip_zero or indices.min(initial=oldest) < oldest or not math.isfinite(highest):
            usable = (indices >= oldest) & np.isfinite(surprises)
            if skip_zero:
                usable &= self.leaves[indices % self.capacity] > 0
            indices, surprises = indices[usable], surprises[usable]
            highest = float(surprises.max(initial=0.0))
        if len(indices):
            self.set(indices % self.capacity, surprises**settings.alpha)
        return highest

    def find(self, values: Array) -> tuple[Array, Array]:
        """For each value, 0 <= value < total, the place p with sum(leaves[:p]) <= value < sum(leaves[: p + 1]).

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


def importance_weights(priorities: Array, count: int, beta: float) -> Array:
    """Of `count` batches [count * size] float32: (1 / priority)^beta, divided by the largest of the batch."""
    # (N * P)^-beta divided by the largest: N and the sum of all priorities cancel out, and nothing can overflow.
    batches = priorities.reshape(count, -1)
    weights: Array = (batches.min(axis=1, keepdims=True) / batches) ** beta
    return weights.reshape(-1).astype(np.float32)


def sum_tree(capacity: int) -> SumTree:
    """The fastest tree that there is here: compiled where numba is installed."""
    loops = compiled()
    logger.info(
        "priorities are drawn by %s",
        "NumPy (with the extra numba in half the time)" if loops is None else "loops that numba compiles",
    )
    return SumTree(capacity, loops)
