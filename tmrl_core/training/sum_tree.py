"""Draws in proportion to priorities, a batch at a time.

A tree of sums in three levels: priorities, sums of 32 of them, sums of 1024. A draw looks the block up in the running
sum of the top level, then goes down two levels, all draws of a batch together: a dozen NumPy and torch calls, whichever
has the faster one, where a binary tree over a million takes twenty levels. Sums are made anew from what is below them
with every change, so that no error adds up.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from tmrl_core.training.layout import Array

FAN = 32
_ONES = np.ones(FAN)


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
        self._running: Array | None = None
        """Running sums of the top level; None: something has changed since."""
        self.leaves: Array = self._leaves.reshape(-1)[:capacity]

    @property
    def total(self) -> float:
        """Sum of all priorities."""
        return float(self._sums()[-1])

    def _sums(self) -> Array:
        if self._running is None:
            self._running = self._top.cumsum()
        return self._running

    def set(self, places: Array, priorities: Any) -> None:
        """Priorities of places ([n] int64), each 0 or more; where a place comes twice, the last counts."""
        self._running = None
        self.leaves[places] = priorities
        blocks = places // FAN
        if len(blocks) > FAN and blocks[-1] - blocks[0] < len(blocks):
            blocks = np.unique(blocks)  # a run of neighbours, as new transitions are
        # A product with ones sums rows in half the time of `sum(axis=1)`.
        self._middle.reshape(-1)[blocks] = self._leaves.take(blocks, axis=0) @ _ONES
        blocks = blocks // FAN
        self._top[blocks] = self._middle.take(blocks, axis=0) @ _ONES

    def find(self, values: Array) -> Array:
        """For each value, 0 <= value < total, the place p with sum(leaves[:p]) <= value < sum(leaves[: p + 1])."""
        running = self._sums()
        block = np.minimum(running.searchsorted(values, "right"), len(running) - 1)
        rest = values - (running.take(block) - self._top.take(block))
        first = np.arange(0, len(values) * FAN, FAN)
        for level in (self._middle, self._leaves):
            sums = level.take(block, axis=0)
            inside = torch.from_numpy(sums).cumsum(1)
            found = torch.searchsorted(inside, torch.from_numpy(rest).unsqueeze(1), right=True).numpy().reshape(-1)
            np.minimum(found, FAN - 1, out=found)  # rounding may lead past the block
            block = block * FAN + found
            if level is self._leaves:
                break
            at = first + found
            rest = rest - (inside.numpy().reshape(-1).take(at) - sums.reshape(-1).take(at))
        missed = self._leaves.reshape(-1).take(block) <= 0
        if missed.any():
            # Rounding has led to a place that is never drawn: the next one that is.
            possible = np.flatnonzero(self.leaves > 0)
            block[missed] = possible[np.minimum(possible.searchsorted(block[missed]), len(possible) - 1)]
        return block
