"""Detection of stale samples as they arrive."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from tmrl_core.samples import Chunk
from tmrl_core.samples.columns import MANY_SEGMENTS


def without_stale(
    chunks: Sequence[Chunk], counter: int, max_lag: int | None, note_lag: Callable[[int, int], None]
) -> list[Chunk]:
    """Return the samples that are not stale.

    Args:
        chunks: arrived samples.
        counter: number of the latest version.
        max_lag: maximum policy lag of a sample, in versions; None: no limit.
        note_lag: called with the lag of each run of samples of one policy, and their number.
    """
    kept: list[Chunk] = []
    for chunk in chunks:
        runs: list[tuple[int, int]] = []
        start = row = 0
        for segment in chunk.segments:
            lag = max(0, counter - segment.counter)
            note_lag(lag, segment.rows)
            if max_lag is not None and lag > max_lag:
                if row > start:
                    runs.append((start, row))
                start = row + segment.rows
            row += segment.rows
        if row > start or start == 0:
            runs.append((start, row))
        if len(runs) <= MANY_SEGMENTS:
            kept += [chunk.slice(start, stop) for start, stop in runs]
        else:  # each chunk costs a memory more than a row does
            mask = np.zeros(chunk.rows, np.bool_)
            for start, stop in runs:
                mask[start:stop] = True
            kept.append(chunk.where(mask))
    return kept
