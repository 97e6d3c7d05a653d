"""Experiences of whole episodes as runs of consecutive steps, for rounds and for recurrent policies.

Rows continue each other until one is terminated or truncated, so that each is a single step: k = 1.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from tmrl_core.errors import SampleRefusedError
from tmrl_core.multiagent.trajectory import Columns
from tmrl_core.samples.columns import Tree, map_leaves
from tmrl_core.training.batches import FIRST_TICK, TICKS
from tmrl_core.training.memories.sequences import padded_runs

OF_EACH_TICK = ("action", "reward", "next_state", "terminated", "truncated")
"""Columns of which a sequence holds the values of all ticks."""
IN_SEQUENCES = frozenset({"state", TICKS, FIRST_TICK, *OF_EACH_TICK})


def ends_of(columns: Columns) -> NDArray[np.bool_]:
    """Return [n] True where the next row does not continue this one."""
    ends: NDArray[np.bool_] = np.asarray(columns["terminated"], bool) | np.asarray(columns["truncated"], bool)
    ends[-1:] = True
    return ends


def places_of(ends: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return [n, 3] stream 0, number of the run, and number of the step in it from 1: see `PLACES`."""
    stop = np.flatnonzero(ends) + 1
    start = np.concatenate([[0], stop[:-1]])
    run = np.repeat(np.arange(len(stop)), stop - start)
    return np.stack([np.zeros_like(run), run, np.arange(len(run)) - start[run] + 1], axis=1)


def check_steps(columns: Columns) -> None:
    """Refuse rows that do not continue each other.

    Raises:
        SampleRefusedError: the next state of a row is not the state of the row after it.
    """
    goes_on = np.flatnonzero(~ends_of(columns))
    for before, after in _pairs(columns["next_state"], columns["state"]):
        differ = np.asarray(before)[goes_on] != np.asarray(after)[goes_on + 1]
        if differ.any():
            row = goes_on[np.argwhere(differ)[0][0]]
            raise SampleRefusedError(
                f"the next state of experience {row} is not the state of experience {row + 1}, and a recurrent policy "
                "learns from consecutive steps. Make the experiences with k = 1, such as KStepExperienceShaper does"
            )


def _pairs(one: Tree, other: Tree) -> Iterator[tuple[Tree, Tree]]:
    if isinstance(one, dict) and isinstance(other, dict):
        for key in one:
            yield from _pairs(one[key], other[key])
    else:
        yield one, other


def sequences_of(columns: Columns, length: int, stride: int, most: int) -> Columns:
    """Return padded sequences of the runs, as `SequenceMemory` has them.

    Args:
        columns: experiences of single steps, whole runs.
        length: ticks of a sequence.
        stride: ticks from the beginning of a sequence to that of the next one in its run.
        most: maximum number of sequences; of more, the last ones are returned.

    Returns:
        With leaves [n, ...]: `state` before the first tick; action, reward, next state and flags [n, length, ...] of
        all ticks; `ticks` and `first_tick`; and all other columns, such as recurrent states, at the first tick. The
        discount is left out: agents on sequences have their own.
    """
    stop = np.flatnonzero(ends_of(columns)) + 1
    start = np.concatenate([[0], stop[:-1]])
    steps = stop - start
    # The last sequence of a run is the first one that reaches its end.
    counts = 1 + np.maximum(0, -((length - steps) // stride))
    run = np.repeat(np.arange(len(stop)), counts)[-most:]
    tick = stride * (np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts))[-most:]
    first = start[run] + tick
    ticks = np.minimum(steps[run] - tick, length)
    taken = padded_runs(first, ticks, length)
    at_first = {key: map_leaves(lambda leaf: leaf[first], tree) for key, tree in columns.items() if key != "discount"}
    of_all = {key: map_leaves(taken, columns[key]) for key in OF_EACH_TICK}
    return {**at_first, **of_all, TICKS: ticks.astype(np.float32), FIRST_TICK: tick.astype(np.float32)}
