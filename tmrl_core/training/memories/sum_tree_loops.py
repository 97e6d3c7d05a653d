"""The sum tree's innermost loops. numba compiles them if it is installed.

These functions are a slow and simple Python form of `SumTree`'s computations with NumPy and torch. Tests compare both.
numba compiles them in each process (about a second, at the first batch), because its cache on disk holds pickles.
"""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from tmrl_core.training.memories.layout import Array
from tmrl_core.training.value_types import Maker

logger = logging.getLogger(__name__)


FAN = 32
"""Number of values in a block of a level. The constant lets the compiler divide by shifting."""


def descend(level: Array, places: Array, rest: Array) -> float:
    """Step from blocks of a level to the places in them where the running sum passes `rest`.

    Args:
        level: [blocks, FAN].
        places: [n] int64 blocks; overwritten with the places found.
        rest: [n]; overwritten with `rest` less the sums before the place.

    Returns:
        A meaningless number, which keeps the compiler from omitting the prefetch.
    """
    touched = 0.0
    # Touch all blocks before searching the first, so that their memory is fetched in parallel.
    for k in range(len(places)):
        for j in range(0, FAN, 8):  # a cache line holds 8 values
            touched += level[places[k], j]
    for k in range(len(places)):
        block, value = places[k], rest[k]
        running, found = 0.0, FAN - 1
        for j in range(FAN - 1):
            here = level[block, j]
            if running + here > value:
                found = j
                break
            running += here
        places[k] = block * FAN + found
        rest[k] = value - running
    return touched


def sample(
    noise: Array, beta: float, leaves: Array, middle: Array, top: Array, places: Array, rest: Array, weights: Array
) -> tuple[bool, float]:
    """Sample a batch.

    Args:
        noise: [size] position of each sample in its part of the sum.
        beta: exponent of the importance weights.
        leaves, middle, top: levels of the tree, [blocks, FAN], [top, FAN], [top].
        places, weights: [size] int64, float32: the result.
        rest: [size] float64, overwritten.

    Returns:
        False if rounding has led to a place of priority 0, so that weights are missing; and a meaningless number.
    """
    size = len(noise)
    total = 0.0
    for i in range(len(top)):
        total += top[i]
    block, before, after = 0, 0.0, top[0]
    for k in range(size):
        value = (k + noise[k]) * (total / size)
        while block < len(top) - 1 and after <= value:
            block += 1
            before = after
            after += top[block]
        places[k] = block
        rest[k] = value - before
    touched = descend(middle, places, rest) + descend(leaves, places, rest)
    priorities = leaves.reshape(-1)
    least = np.inf
    for place in places:
        least = min(least, priorities[place])
    if least <= 0:
        return False, touched
    for k in range(size):
        weights[k] = (least / priorities[places[k]]) ** beta
    return True, touched


def update(
    indices: Array,
    errors: Array,
    oldest: int,
    alpha: float,
    epsilon: float,
    skip_zero: bool,
    capacity: int,
    leaves: Array,
    middle: Array,
    top: Array,
) -> float:
    """Set priorities as `SumTree.update` does; for the levels, see `sample`."""
    values = leaves.reshape(-1)
    places = np.empty(len(indices), np.int64)
    count, highest = 0, 0.0
    for k in range(len(indices)):
        place, magnitude = indices[k] % capacity, abs(errors[k]) + epsilon
        if indices[k] < oldest or not math.isfinite(magnitude) or (skip_zero and values[place] <= 0):
            continue
        highest = max(highest, magnitude)
        values[place] = magnitude**alpha
        places[count] = place
        count += 1
    sum_up(places[:count], leaves, middle, top)
    return highest


def sum_up(places: Array, leaves: Array, middle: Array, top: Array) -> None:
    """Recompute the sums above some places ([n] int64) of the leaves; for the levels, see `sample`."""
    sum_blocks(places, FAN, leaves, middle.reshape(-1))
    sum_blocks(places, FAN * FAN, middle, top)


def sum_blocks(places: Array, size: int, level: Array, above: Array) -> None:
    """Recompute the sums of a level's blocks, each above `size` places."""
    last = -1
    for k in range(len(places)):
        block = places[k] // size
        if block != last:
            last = block
            total = 0.0
            for j in range(FAN):
                total += level[block, j]
            above[block] = total


class Loops(NamedTuple):
    """The functions above, compiled or not; uncompiled they are very slow."""

    sample: Callable[..., tuple[bool, float]] = sample
    update: Callable[..., float] = update
    sum_up: Callable[..., None] = sum_up


@functools.cache
def compiled() -> Loops | None:
    """Return the loops, which numba compiles at their first call; None: numba is not available."""
    try:
        from numba import njit
        from numba.extending import register_jitable
    except ModuleNotFoundError:
        return None
    except ImportError as exc:
        logger.warning("numba cannot be used (%s); priorities are sampled by NumPy, at half the speed", exc)
        return None
    register_jitable(descend)
    register_jitable(sum_blocks)
    register_jitable(sum_up)
    make: Maker = njit(nogil=True)
    return Loops(*map(make, Loops()))
