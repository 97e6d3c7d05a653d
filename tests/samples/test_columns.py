"""Chunks: their rows, slices and per-row columns."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.counted_segments import counted
from tmrl_core.errors import CodecError
from tmrl_core.samples.columns import (
    MANY_SEGMENTS,
    STREAM_ID_BYTES,
    Chunk,
    by_lane,
    cut_segments,
    leaves,
    map_leaves,
    worker_stream,
)
from tmrl_core.samples.segments import LANE_BITS, MAX_LANES, Segment

SEGMENTS = (Segment(3, 7, 0, 1, 2), Segment(2, 7, 3, 1, 3), Segment(4, 8, 0, 1, 3))
ROWS = 9


def make_chunk() -> Chunk:
    present = np.ones(ROWS, np.bool_)
    present[[0, 5]] = False
    return Chunk(
        rows=ROWS,
        action=np.arange(ROWS, dtype=np.float32)[:, None],
        action_present=present,
        observation={"image": np.arange(ROWS * 4, dtype=np.uint8).reshape(ROWS, 2, 2), "word": (list("abcdefghi"),)},
        reward=np.arange(ROWS, dtype=np.float64),
        terminated=np.arange(ROWS) == 4,
        truncated=np.arange(ROWS) == 8,
        info={2: {"x": 1}, 6: {"y": 2}},
        extras={"flag": np.arange(ROWS) % 2, "zero": np.arange(ROWS) * 2.0},
        segments=SEGMENTS,
        kinds=("", "", "", "float", "bool", "0-d"),
        stream=b"s",
    )


def test_a_sample_has_the_rows_values_and_kinds() -> None:
    chunk = make_chunk()
    action, observation, reward, terminated, truncated, info = chunk.sample(2)
    assert action.tolist() == [2.0]
    assert list(observation) == ["image", "word"]
    assert observation["image"].tolist() == [[8, 9], [10, 11]]
    assert observation["word"] == ("c",)
    assert type(reward) is float
    assert (reward, terminated, truncated, info) == (2.0, False, False, {"x": 1})
    assert chunk.sample(5)[0] is None
    assert chunk.sample(4)[3:] == (True, False, {})
    assert chunk.sample(8)[4] is True


def test_per_row_columns_of_the_segments() -> None:
    chunk = make_chunk()
    assert chunk.episode.tolist() == [7] * 5 + [8] * 4
    assert chunk.step.tolist() == [0, 1, 2, 3, 4, 0, 1, 2, 3]
    assert chunk.version.tolist() == [[1, 2]] * 3 + [[1, 3]] * 6
    for column in (chunk.episode, chunk.step, chunk.version):
        assert column.dtype == np.int64


def test_an_empty_chunk_has_empty_columns() -> None:
    empty = make_chunk().slice(4, 4)
    assert empty.rows == 0
    assert empty.segments == ()
    assert empty.step.shape == (0,)
    assert empty.version.shape == (0, 2)


@given(st.integers(0, ROWS), st.integers(0, ROWS))
def test_a_slice_has_the_same_rows_as_views(a: int, b: int) -> None:
    start, stop = sorted((a, b))
    whole = make_chunk()
    part = whole.slice(start, stop)
    assert part.rows == len(part) == stop - start
    for row in range(part.rows):
        ours, theirs = part.sample(row), whole.sample(start + row)
        assert repr(ours) == repr(theirs)
    for name in ("episode", "step", "version"):
        assert getattr(part, name).tolist() == getattr(whole, name)[start:stop].tolist()
    assert part.stream == whole.stream
    if part.rows:
        assert np.shares_memory(part.reward, whole.reward)


def many_segments(lengths: list[int]) -> Chunk:
    chunk = make_chunk()
    rows = sum(lengths)
    index = np.arange(rows) % ROWS
    return dataclasses.replace(
        chunk,
        rows=rows,
        action=np.arange(rows, dtype=np.float32)[:, None],
        action_present=chunk.action_present[index],
        observation={"image": np.arange(rows * 4).reshape(rows, 2, 2), "word": ([str(row) for row in range(rows)],)},
        reward=np.arange(rows, dtype=np.float64),
        terminated=chunk.terminated[index],
        truncated=chunk.truncated[index],
        info={row: {"x": row} for row in range(rows) if row % 3 == 0},
        extras={"flag": index % 2, "zero": index * 2.0},
        segments=tuple(
            Segment(length, number // 2, number * 7, 1, number // 3) for number, length in enumerate(lengths)
        ),
    )


LENGTHS = st.lists(st.integers(0, 3), min_size=1, max_size=3 * MANY_SEGMENTS)


def check_same_rows(part: Chunk, whole: Chunk, rows: list[int]) -> None:
    assert part.rows == len(rows) == sum(segment.rows for segment in part.segments)
    assert all(segment.rows for segment in part.segments)
    assert [repr(part.sample(row)) for row in range(part.rows)] == [repr(whole.sample(row)) for row in rows]
    for name in ("episode", "step", "version"):
        assert getattr(part, name).tolist() == getattr(whole, name)[rows].tolist()
    assert (part.stream, part.kinds) == (whole.stream, whole.kinds)


@given(LENGTHS, st.data())
def test_a_slice_of_many_segments_has_the_same_rows(lengths: list[int], data: st.DataObject) -> None:
    whole = many_segments(lengths)
    for _ in range(3):
        start, stop = sorted((data.draw(st.integers(0, whole.rows)), data.draw(st.integers(0, whole.rows))))
        part = whole.slice(start, stop)
        if part is not whole:
            assert part.segments == cut_segments(whole.segments, start, stop)
            check_same_rows(part, whole, list(range(start, stop)))
    if whole.rows:  # other segments than before
        whole.segments = tuple(Segment(1, 9, row) for row in range(whole.rows))
        assert whole.slice(1, whole.rows).segments == whole.segments[1:]


@given(LENGTHS, st.randoms(use_true_random=False))
def test_chosen_rows_are_copies(lengths: list[int], random: Any) -> None:
    whole = many_segments(lengths)
    mask = np.array([random.random() < 0.6 for _ in range(whole.rows)], np.bool_)
    part = whole.where(mask)
    check_same_rows(part, whole, np.flatnonzero(mask).tolist())
    for ours, theirs in zip(part.fields, whole.fields, strict=True):
        for one, other in zip(leaves(ours), leaves(theirs), strict=True):
            assert one is not other
            assert not isinstance(one, np.ndarray) or not np.shares_memory(one, other)


class CountedInfos(dict[int, Any]):
    looks = 0

    def items(self) -> Any:
        self.looks += len(self)
        return super().items()

    def __contains__(self, key: object) -> bool:
        self.looks += 1
        return super().__contains__(key)


def test_the_cost_of_a_slice_depends_on_what_it_returns() -> None:
    whole = many_segments([1] * 1_000)
    segments = counted(list(whole.segments), times=4)
    infos = CountedInfos({row: {"x": row} for row in range(1_000)})
    whole.segments, whole.info = segments, infos
    for row in range(1_000):
        assert whole.slice(row, row + 1).info == {0: {"x": row}}
    assert infos.looks <= 4_000


def test_rows_that_are_not_there_raise() -> None:
    chunk = make_chunk()
    for row in (-1, ROWS):
        with pytest.raises(IndexError):
            chunk.sample(row)
    for start, stop in ((-1, 2), (3, 2), (0, ROWS + 1)):
        with pytest.raises(IndexError):
            chunk.slice(start, stop)


def test_segments_are_cut_with_their_first_steps() -> None:
    assert cut_segments(SEGMENTS, 1, 4) == (Segment(2, 7, 1, 1, 2), Segment(1, 7, 3, 1, 3))
    assert cut_segments(SEGMENTS, 0, ROWS) == SEGMENTS


def test_nbytes_counts_columns_lists_and_infos() -> None:
    chunk = make_chunk()
    arrays = sum(column.nbytes for column in leaves(chunk.fields) if isinstance(column, np.ndarray))
    assert arrays + ROWS * 8 < chunk.nbytes < arrays + 2000
    chunk.info[0] = {"frame": np.zeros(10_000), "text": "x" * 1000, "list": [b"y" * 1000]}
    assert chunk.nbytes > 82_000


def test_map_leaves_keeps_the_structure() -> None:
    tree: Any = {"a": (np.zeros(2), [1, 2]), "b": {}}
    assert map_leaves(len, tree) == {"a": (2, 2), "b": {}}
    assert [len(column) for column in leaves(tree)] == [2, 2]


@pytest.mark.parametrize("hand_overs", [1, 3])
def test_rows_of_lanes_become_parts_with_streams_of_their_own(hand_overs: int) -> None:
    stream, lanes = b"s" * STREAM_ID_BYTES, 3
    segments = tuple(
        Segment(2, lane << LANE_BITS | 5, 2 * number) for number in range(hand_overs) for lane in range(lanes)
    )
    chunk = numbered(2 * lanes * hand_overs, segments)
    parts = by_lane(chunk, stream)
    assert [worker_stream(part.stream) for part in parts] == [stream] * lanes
    assert parts[0].stream == stream
    assert len({part.stream for part in parts}) == lanes
    for lane, part in enumerate(parts):
        assert part.step.tolist() == list(range(2 * hand_overs))
        assert set(part.episode.tolist()) == {lane << LANE_BITS | 5}
        assert part.reward.tolist() == [
            2.0 * (lanes * number + lane) + row for number in range(hand_overs) for row in range(2)
        ]


def test_rows_of_one_lane_are_not_copied() -> None:
    chunk = numbered(4, (Segment(4, 7, 0),))
    (part,) = by_lane(chunk, b"s" * STREAM_ID_BYTES)
    assert part is chunk


def test_more_lanes_than_a_worker_may_have_are_refused() -> None:
    count = MAX_LANES + 1
    segments = tuple(Segment(1, lane << LANE_BITS, 0) for lane in range(count))
    with pytest.raises(CodecError, match="257 environments"):
        by_lane(numbered(count, segments), b"s" * STREAM_ID_BYTES)


def numbered(rows: int, segments: tuple[Segment, ...]) -> Chunk:
    none = np.zeros(rows, np.bool_)
    return Chunk(
        rows=rows,
        action=np.zeros(rows),
        action_present=~none,
        observation=np.zeros(rows),
        reward=np.arange(rows, dtype=np.float64),
        terminated=none,
        truncated=none,
        segments=segments,
    )
