from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tmrl_core.errors import CheckpointError
from tmrl_core.training.segments import RowFormat, append_rows, gather_rows, head, read_segment


def rings(capacity: int = 7) -> list[Any]:
    floats = np.arange(capacity * 3, dtype=np.float32).reshape(capacity, 3)
    return [floats, np.arange(capacity, dtype=np.uint8)[:, None]]


def written(start: int, stop: int, note: Any = None) -> bytes:
    file = io.BytesIO()
    file.write(head(RowFormat.of(rings())))
    append_rows(file, rings(), start, stop, note)
    return file.getvalue()


def test_rows_come_back_in_order_over_the_ring_s_end(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(written(5, 10, {"marks": {"ab": [1, 2]}}))
    segment = read_segment(path)
    assert segment.torn_bytes == 0
    assert segment.records[-1].note == {"marks": {"ab": [1, 2]}}
    floats, bytes_ = gather_rows([segment], segment.row_format, 6, 10)
    expected = [index % 7 for index in range(6, 10)]
    assert bytes_[:, 0].tolist() == expected
    assert floats.tolist() == rings()[0][expected].tolist()


def test_a_torn_tail_is_cut_at_every_byte_and_reported(tmp_path: Path) -> None:
    whole = written(5, 10)  # two records: rows 5 and 6, then 7 to 9
    start = len(head(RowFormat.of(rings())))
    path = tmp_path / "a"
    path.write_bytes(whole)
    first = read_segment(path).records[0]
    first_end = start + (len(whole) - start) - (len(written(7, 10)) - start)
    for length in range(start, len(whole)):
        path.write_bytes(whole[:length])
        segment = read_segment(path)
        kept = [first.rows] if length >= first_end else []
        assert [record.rows for record in segment.records] == kept
        assert segment.good_bytes + segment.torn_bytes == length
        assert segment.good_bytes == (first_end if kept else start)
        with pytest.raises(CheckpointError, match="missing"):
            gather_rows([segment], segment.row_format, 5, 10)


def test_a_head_cut_anywhere_is_an_error(tmp_path: Path) -> None:
    whole = head(RowFormat.of(rings()))
    path = tmp_path / "a"
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(CheckpointError, match="head"):
            read_segment(path)


def test_rows_are_gathered_from_several_files(tmp_path: Path) -> None:
    segments = []
    for start, stop in ((0, 4), (4, 6), (6, 7)):
        path = tmp_path / str(start)
        path.write_bytes(written(start, stop))
        segments.append(read_segment(path))
    _, numbers = gather_rows(segments, segments[0].row_format, 2, 7)
    assert numbers[:, 0].tolist() == [2, 3, 4, 5, 6]
    with pytest.raises(CheckpointError, match="rows 4 to 7 are missing"):
        gather_rows([segments[0], segments[2]], segments[0].row_format, 2, 7)


def test_rows_of_another_format_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(written(0, 4))
    with pytest.raises(CheckpointError, match="replay rows are"):
        gather_rows([read_segment(path)], RowFormat(("<f4",), (3,)), 0, 4)
