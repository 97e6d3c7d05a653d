"""The sum tree's work as plain loops, which numba compiles where it is installed.

NumPy's and torch's calls for a batch take several times as long as the work in them: each touches little, and by the
time it comes round again its code has left the processor's caches. Compiled, a batch is drawn in one call and its
priorities are changed in one. A loop touches all blocks that it needs before it looks into the first, so that the
memory is asked for all of them at once.

Functions here are ordinary Python, a slow and obvious form of `SumTree`'s; tests compare both. numba compiles them anew
in each process (1 to 3 s, with the first batch): its cache on disk holds pickles.
"""

from __future__ import annotations

import functools
import logging
import math
from typing import Any, NamedTuple

import numpy as np

from tmrl_core.training.memories.layout import Array
from tmrl_core.training.memories.sum_tree import FAN, Exponent, SumTree, importance_weights

logger = logging.getLogger(__name__)


def draw(
    noise: Array, beta: float, leaves: Array, middle: Array, top: Array, places: Array, rest: Array, weights: Array
) -> tuple[bool, float]:
    """Draw batches.

    Args:
        noise: [count, size] where in its share each draw lies.
        beta: exponent of the importance weights.
        leaves, middle, top: of the tree, [blocks, FAN], [top, FAN], [top].
        places, weights: [count * size] int64, float32: the result.
        rest: [count * size] float64, overwritten.

    Returns:
        Whether rounding has led to a place that is never drawn, so that weights are missing; and a number without
        meaning, without which a compiler would not touch memory ahead.
    """
    count, size = noise.shape
    total = 0.0
    for i in range(len(top)):
        total += top[i]
    for c in range(count):
        block, before, after = 0, 0.0, top[0]
        for k in range(size):
            value = (k + noise[c, k]) * (total / size)
            while block < len(top) - 1 and after <= value:
                block += 1
                before = after
                after += top[block]
            places[c * size + k] = block
            rest[c * size + k] = value - before
    for k in range(count * size):
        block, value = places[k], rest[k]
        running, found = 0.0, FAN - 1
        for j in range(FAN - 1):
            here = middle[block, j]
            if running + here > value:
                found = j
                break
            running += here
        places[k] = block * FAN + found
        rest[k] = value - running
    touched = 0.0
    for k in range(count * size):
        for j in range(0, FAN, 8):  # 8 of them are a line of the cache
            touched += leaves[places[k], j]
    missed = False
    for c in range(count):
        least = np.inf
        for k in range(c * size, (c + 1) * size):
            block, value = places[k], rest[k]
            running, found = 0.0, FAN - 1
            for j in range(FAN - 1):
                here = leaves[block, j]
                if running + here > value:
                    found = j
                    break
                running += here
            places[k] = block * FAN + found
            rest[k] = leaves[block, found]
            least = min(least, rest[k])
        if least <= 0:
            missed = True
        else:
            for k in range(c * size, (c + 1) * size):
                weights[k] = (least / rest[k]) ** beta
    return missed, touched


def update(
    indices: Array,
    errors: Array,
    oldest: int,
    capacity: int,
    alpha: float,
    epsilon: float,
    skip_zero: bool,
    leaves: Array,
    middle: Array,
    top: Array,
) -> float:
    """Change priorities; see `SumTree.update`."""
    values, middle_values = leaves.reshape(-1), middle.reshape(-1)
    highest = 0.0
    for k in range(len(indices)):
        surprise = abs(errors[k]) + epsilon
        if indices[k] < oldest or not math.isfinite(surprise):
            continue
        place = indices[k] % capacity
        if skip_zero and values[place] <= 0:
            continue
        highest = max(highest, surprise)
        values[place] = surprise**alpha
    for k in range(len(indices)):
        block = indices[k] % capacity // FAN
        total = 0.0
        for j in range(FAN):
            total += leaves[block, j]
        middle_values[block] = total
    for k in range(len(indices)):
        block = indices[k] % capacity // (FAN * FAN)
        total = 0.0
        for j in range(FAN):
            total += middle[block, j]
        top[block] = total
    return highest


def sum_up(places: Array, leaves: Array, middle: Array, top: Array) -> None:
    """Make the sums above some places anew."""
    middle_values = middle.reshape(-1)
    last = -1
    for k in range(len(places)):
        block = places[k] // FAN
        if block != last:
            last = block
            total = 0.0
            for j in range(FAN):
                total += leaves[block, j]
            middle_values[block] = total
    last = -1
    for k in range(len(places)):
        block = places[k] // (FAN * FAN)
        if block != last:
            last = block
            total = 0.0
            for j in range(FAN):
                total += middle[block, j]
            top[block] = total


class Loops(NamedTuple):
    """The functions above, compiled or not."""

    draw: Any = draw
    update: Any = update
    sum_up: Any = sum_up


class LoopSumTree(SumTree):
    """`SumTree` over these loops.

    Args:
        capacity: places.
        loops: the functions above; as they stand they are very slow.
    """

    def __init__(self, capacity: int, loops: Loops) -> None:
        super().__init__(capacity)
        self._loops = loops

    def draw(self, noise: Array, beta: float) -> tuple[Array, Array]:
        """One call."""
        size = noise.size
        places, rest, weights = np.empty(size, np.int64), np.empty(size), np.empty(size, np.float32)
        arrays = self._leaves, self._middle, self._top_values
        missed, _ = self._loops.draw(noise, beta, *arrays, places, rest, weights)
        if missed:
            return places, importance_weights(self._mend(places), len(noise), beta)
        return places, weights

    def update(self, indices: Array, errors: Array, oldest: int, settings: Exponent, skip_zero: bool) -> float:
        """One call."""
        self._running = None
        highest: float = self._loops.update(
            np.ascontiguousarray(indices, np.int64),
            np.ascontiguousarray(errors, np.float64),
            oldest,
            self.capacity,
            settings.alpha,
            settings.epsilon,
            skip_zero,
            self._leaves,
            self._middle,
            self._top_values,
        )
        return highest

    def set(self, places: Array, priorities: Any) -> None:
        """As `SumTree`, with sums of the same order of addition as `update`, so that they do not depend on the past."""
        self._running = None
        self.leaves[places] = priorities
        self._loops.sum_up(places, self._leaves, self._middle, self._top_values)


@functools.cache
def compiled() -> Loops | None:
    """The loops, to be compiled when they are first called; None: numba is not there, or not for this Python."""
    try:
        from numba import njit
    except ModuleNotFoundError:
        return None
    except ImportError as exc:
        logger.warning("numba cannot be used (%s); priorities are drawn by NumPy, at half the speed", exc)
        return None
    compile_it = njit(nogil=True)
    return Loops(compile_it(draw), compile_it(update), compile_it(sum_up))


def sum_tree(capacity: int) -> SumTree:
    """The fastest tree that there is here: compiled where numba is installed."""
    loops = compiled()
    logger.info(
        "priorities are drawn by %s",
        "NumPy (with the extra numba in half the time)" if loops is None else "loops that numba compiles",
    )
    return SumTree(capacity) if loops is None else LoopSumTree(capacity, loops)
