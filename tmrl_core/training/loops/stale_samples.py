"""Detection of stale samples as they arrive."""

from __future__ import annotations

from collections.abc import Callable

from tmrl_core.samples import Buffer, Chunk


def without_stale(
    buffer: Buffer, counter: int, max_lag: int | None, note_lag: Callable[[int, int], None]
) -> tuple[Buffer, int]:
    """Return a buffer without stale samples.

    Args:
        buffer: buffer of arrived samples.
        counter: number of the latest version.
        max_lag: maximum policy lag of a sample, in versions; None: no limit.
        note_lag: called with the lag of each run of samples of one policy, and their number.

    Returns:
        The buffer, or one with the remaining samples; and the number of samples left out.
    """
    stale = 0
    kept: list[Chunk] = []
    for chunk in buffer.chunks:
        start = row = 0
        for segment in chunk.segments:
            lag = max(0, counter - segment.counter)
            note_lag(lag, segment.rows)
            if max_lag is not None and lag > max_lag:
                stale += segment.rows
                if row > start:
                    kept.append(chunk.slice(start, row))
                start = row + segment.rows
            row += segment.rows
        if start == 0:
            kept.append(chunk)
        elif row > start:
            kept.append(chunk.slice(start, row))
    if not stale:
        return buffer, 0
    remaining = Buffer(maxlen=None)
    remaining.extend(kept, buffer.episodes)
    return remaining, stale
