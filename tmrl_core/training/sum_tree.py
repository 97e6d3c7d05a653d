"""Draws in proportion to priorities, a batch at a time.

A tree of sums in three levels: priorities, sums of 16 of them, sums of 256. A draw looks the block up in the running
sum of the top level, then goes down two levels, all draws of a batch together: a dozen NumPy calls, where a binary tree
over a million takes twenty levels. Sums are made anew from what is below them with every change, so that no error adds
up.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tmrl_core.training.layout import Array

FAN = 16


class SumTree:
    """Priorities of `capacity` places, all 0 at first.

    Attributes:
        leaves: [capacity] float64; change them by `set` only.
    """

    def __init__(self, capacity: int) -> None:
        top = -(-capacity // (FAN * FAN))
        self._leaves: Array = np.zeros((top * FAN, FAN))
        self._middle: Array = np.zeros((top, FAN))
        self._top: Array = np.zeros(top)
        self.leaves: Array = self._leaves.reshape(-1)[:capacity]

    @property
    def total(self) -> float:
        """Sum of all priorities."""
        return float(self._top.sum())

    def set(self, places: Array, priorities: Any) -> None:
        """Priorities of places ([n] int64), each 0 or more; where a place comes twice, the last counts."""
        self.leaves[places] = priorities
        blocks = places // FAN
        if len(blocks) > FAN and blocks[-1] - blocks[0] < len(blocks):
            blocks = np.unique(blocks)  # a run of neighbours, as new transitions are
        self._middle.reshape(-1)[blocks] = self._leaves.take(blocks, axis=0).sum(axis=1)
        blocks = blocks // FAN
        self._top[blocks] = self._middle.take(blocks, axis=0).sum(axis=1)

    def find(self, values: Array) -> Array:
        """For each value, 0 <= value < total, the place p with sum(leaves[:p]) <= value < sum(leaves[: p + 1])."""
        running = self._top.cumsum()
        block = np.minimum(running.searchsorted(values, "right"), len(running) - 1)
        rest = values - (running[block] - self._top[block])
        first = np.arange(0, len(values) * FAN, FAN)
        for level in (self._middle, self._leaves):
            # The blocks' running sums in one: a search in it for each value begins where its block does.
            sums = level.take(block, axis=0).reshape(-1)
            running = sums.cumsum()
            target = rest + (running[first] - sums[first])
            found = running.searchsorted(target, "right")
            # Rounding may lead a little past the block.
            found = np.minimum(np.maximum(found, first), first + (FAN - 1))
            rest = target - (running[found] - sums[found])
            block = block * FAN + (found - first)
        missed = np.flatnonzero(self._leaves.reshape(-1)[block] <= 0)
        if len(missed):
            possible = np.flatnonzero(self.leaves > 0)
            block[missed] = possible[np.minimum(possible.searchsorted(block[missed]), len(possible) - 1)]
        return block
