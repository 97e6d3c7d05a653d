"""Detection of stale samples as they arrive."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from tmrl_core.samples import Chunk


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
        rows = [segment.rows for segment in chunk.segments]
        lags = [max(0, counter - segment.counter) for segment in chunk.segments]
        for lag, count in zip(lags, rows, strict=True):
            note_lag(lag, count)
        if max_lag is None or max(lags, default=0) <= max_lag:
            kept.append(chunk)
        elif min(lags) <= max_lag:
            # One chunk, whatever the number of runs: each chunk costs a memory more than a row does.
            kept.append(chunk.where(np.repeat(np.array(lags) <= max_lag, rows)))
    return kept
