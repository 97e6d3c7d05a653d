"""Samples of old policies are left out; the rest is what it was."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.counted_segments import KINDS, MANY, one_row_segments
from tmrl_core.samples import Chunk, Segment
from tmrl_core.training.loops.stale_samples import without_stale


def chunk_of(make_rows: Any, counters: list[int]) -> Chunk:
    """Two rows of each version."""
    chunk: Chunk = make_rows(1, 0, 0, 2 * len(counters))
    chunk.segments = tuple(Segment(2, 0, 2 * n, 1, counter) for n, counter in enumerate(counters))
    return chunk


def found(make_rows: Any, counters: list[int], max_lag: int | None) -> tuple[list[list[float]], list[Any], int, Any]:
    chunk = chunk_of(make_rows, counters)
    lags: list[Any] = []
    kept = without_stale([chunk], 10, max_lag, lambda lag, rows: lags.append((lag, rows)))
    stale = chunk.rows - sum(part.rows for part in kept)
    return [np.asarray(part.reward).tolist() for part in kept], lags, stale, kept == [chunk]


def test_recent_samples_are_unchanged(make_rows: Any) -> None:
    assert found(make_rows, [9, 12], 1) == ([[0, 1, 2, 3]], [(1, 2), (0, 2)], 0, True)
    assert found(make_rows, [1, 2], None) == ([[0, 1, 2, 3]], [(9, 2), (8, 2)], 0, True)


def test_stale_samples_are_removed(make_rows: Any) -> None:
    assert found(make_rows, [1, 9, 2, 10], 1)[:3:2] == ([[2, 3, 6, 7]], 4)
    assert found(make_rows, [9, 2, 2, 10], 1)[:3:2] == ([[0, 1, 6, 7]], 4)
    assert found(make_rows, [9, 9, 2], 1)[:3:2] == ([[0, 1, 2, 3]], 2)


def test_a_stale_chunk_is_removed_completely(make_rows: Any) -> None:
    assert found(make_rows, [1, 2], 1)[:3:2] == ([], 4)


@pytest.mark.parametrize("kind", KINDS)
def test_the_work_for_segments_of_one_row_grows_with_their_number(kind: str, make_rows: Any) -> None:
    chunk = make_rows(1, 0, 0, MANY)
    chunk.segments = one_row_segments(kind, MANY, (1, 7))
    (part,) = without_stale([chunk], 7, 0, lambda lag, rows: None)
    assert part.rows == (MANY // 2 if kind == "alternating" else MANY)
    if part.rows < MANY:
        assert part.step.tolist() == np.asarray(part.reward).tolist() == list(range(0, MANY, 2))
        assert set(map(tuple, part.version.tolist())) == {(1, 7)}
