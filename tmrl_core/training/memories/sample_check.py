"""The check of arriving samples: of their declared format, and for numbers that would spoil each update."""

from __future__ import annotations

import math

import numpy as np

from tmrl_core.errors import SampleRefusedError
from tmrl_core.samples import Chunk
from tmrl_core.samples.finite import is_finite
from tmrl_core.training.memories.sample_schema import DeclaredSamples
from tmrl_core.training.memories.trees import flatten
from tmrl_core.training.value_types import Tree

_FLOAT32_MAX = float(np.finfo(np.float32).max)


def check_samples(chunk: Chunk, declared: DeclaredSamples | None = None, *, as_float32: bool = False) -> None:
    """Refuse samples that cannot be trained on.

    They differ from the declaration, or hold NaN or infinity in an observation, action, reward or extra.

    Args:
        chunk: the samples. Of those that are `finite`, only the numbers that will be narrowed are looked at.
        declared: format that environment and policy declare; None: any.
        as_float32: float64 observations and actions will be stored as float32, like rewards and extras. Numbers beyond
            float32 are then infinite.

    Raises:
        SampleRefusedError: the message names what differs, or the first such field and the number of its rows.
    """
    if declared is not None:
        declared.check(chunk)
    if chunk.finite and not as_float32:
        return
    fields = {"observation": chunk.observation, "action": chunk.action}
    if not chunk.finite:
        fields |= {"reward": chunk.reward, **{f"extra {name}": tree for name, tree in chunk.extras.items()}}
    for name, tree in fields.items():
        for path, column in flatten(tree, name):
            if chunk.finite and not (isinstance(column, np.ndarray) and column.dtype.itemsize > 4):
                continue
            if bad := _bad_rows(column, as_float32 or name not in ("observation", "action")):
                raise SampleRefusedError(
                    f"the {path} holds NaN or an infinite number in {bad} of {chunk.rows} samples, which would spoil "
                    "each update that samples it. Fix the environment, preprocessor or compressor that produces it."
                )


def _bad_rows(column: Tree, as_float32: bool) -> int:
    if not isinstance(column, np.ndarray):
        return sum(not is_finite(value) for value in column)
    if column.dtype.kind not in "fc" or not column.size:
        return 0
    narrowed = as_float32 and column.dtype.itemsize > 4
    if narrowed:
        if np.abs(column).max() <= _FLOAT32_MAX:  # false for NaN
            return 0
    else:
        # Compare one sum instead of each number: it is finite only if all terms are. If a sum overflows, compare each
        # number.
        with np.errstate(all="ignore"):
            total = column.sum()
        if math.isfinite(total.real) and math.isfinite(total.imag):
            return 0
    finite = np.abs(column) <= _FLOAT32_MAX if narrowed else np.isfinite(column)
    return int(np.count_nonzero(~finite.reshape(len(column), -1).all(axis=1)))
