"""Concatenation of chunks into one message, because ten small messages cost more than a large one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from tmrl_core.samples.columns import Chunk
from tmrl_core.samples.segments import Segment


def same_layout(first: Chunk, second: Chunk) -> bool:
    """Return True if both have the same structure, dtypes, shapes and kinds, so that they can become one chunk."""
    return (
        first.kinds == second.kinds
        and first.stream == second.stream
        and list(first.extras) == list(second.extras)
        and same_structure(first.action, second.action)
        and same_structure(first.observation, second.observation)
        and same_structure(first.reward, second.reward)
        and all(same_structure(tree, second.extras[name]) for name, tree in first.extras.items())
    )


def join_segments(chunks: Sequence[Chunk]) -> tuple[Segment, ...]:
    """Return the segments of all rows in order. Consecutive segments of one episode and version are joined."""
    if len(chunks) == 1:
        return chunks[0].segments
    return continued_segments(segment for chunk in chunks for segment in chunk.segments)


def continued_segments(segments: Iterable[Segment]) -> tuple[Segment, ...]:
    """Return segments in order, with neighbours as one if the second continues the first."""
    joined: list[Segment] = []
    for segment in segments:
        before = joined[-1] if joined else None
        if (
            before is not None
            and (before.episode, before.version) == (segment.episode, segment.version)
            and before.first_step + before.rows == segment.first_step
        ):
            joined[-1] = Segment(
                before.rows + segment.rows, before.episode, before.first_step, before.incarnation, before.counter
            )
        else:
            joined.append(segment)
    return tuple(joined)


def join_infos(chunks: Sequence[Chunk]) -> Iterator[tuple[int, dict[Any, Any]]]:
    """Yield the infos of all rows in order, each with the number of its row among all."""
    rows = 0
    for chunk in chunks:
        for row, info in chunk.info.items():
            yield rows + row, info
        rows += chunk.rows


def same_structure(first: Any, second: Any) -> bool:
    """Return True if two trees have the same structure, dtypes and shapes of rows."""
    if type(first) is not type(second):
        return False
    if isinstance(first, np.ndarray):
        return bool(first.dtype == second.dtype and first.shape[1:] == second.shape[1:])
    if isinstance(first, tuple):
        return len(first) == len(second) and all(map(same_structure, first, second))
    if isinstance(first, dict):
        # A dict treats 1, 1.0 and True as one key, but they differ for readers of the observation.
        keys = [(type(key), key) for key in first]
        return keys == [(type(key), key) for key in second] and all(
            map(same_structure, first.values(), second.values())
        )
    return True
