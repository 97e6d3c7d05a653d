from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tmrl_core.errors import CheckpointError, StorageError
from tmrl_core.storage import SegmentFile
from tmrl_core.training.memories.row_files import (
    FORMAT_NAME,
    RowFormat,
    append_rows,
    gather_rows,
    parse_rows_note,
    read_segment,
    rows_note,
)


def rings(capacity: int = 7) -> list[Any]:
    floats = np.arange(capacity * 3, dtype=np.float32).reshape(capacity, 3)
    return [floats, np.arange(capacity, dtype=np.uint8)[:, None], np.arange(2 * capacity).reshape(capacity, 2)]


def write(path: Path, start: int, stop: int, note: bytes = b"") -> Path:
    file = SegmentFile.create(path, FORMAT_NAME, RowFormat.of(rings()).describe())
    append_rows(file, rings(), start, stop, note)
    file.close()
    return path


def test_a_row_s_columns_are_aligned_and_its_length_is_a_multiple_of_eight() -> None:
    row_format = RowFormat.of(rings())
    assert row_format.offsets == (16, 28, 0)
    assert row_format.row_bytes == 32
    rows = row_format.empty(2)
    for column, ring in zip(row_format.columns(rows), rings(), strict=True):
        column[:] = ring[3:5]
    assert [column.tolist() for column in row_format.columns(rows)] == [ring[3:5].tolist() for ring in rings()]
    assert RowFormat.from_description(row_format.describe(), "here") == row_format


@pytest.mark.parametrize(
    "description",
    [
        None,
        {},
        {"dtypes": ["rubbish"], "widths": [1]},
        {"dtypes": 1, "widths": 2},
        {"dtypes": ["<f4"], "widths": []},
        {"dtypes": ["|O"], "widths": [1]},
        {"dtypes": ["f4,f4"], "widths": [1]},
        {"dtypes": ["<f4"], "widths": [-1]},
        {"dtypes": ["<f4"], "widths": [1 << 60]},
        {"dtypes": [{}], "widths": [1]},
    ],
)
def test_a_description_of_something_else_is_refused(description: Any) -> None:
    with pytest.raises(CheckpointError, match="here describes no replay rows"):
        RowFormat.from_description(description, "here")


def test_rows_are_read_in_order_across_the_end_of_the_ring(tmp_path: Path) -> None:
    segment = read_segment(write(tmp_path / "a", 5, 10, b"marks"))
    assert segment.torn_bytes == 0
    assert [record.note for record in segment.records] == [b"", b"marks"]
    floats, bytes_, _ = gather_rows([segment], segment.row_format, 6, 10)
    expected = [index % 7 for index in range(6, 10)]
    assert bytes_[:, 0].tolist() == expected
    assert floats.tolist() == rings()[0][expected].tolist()


def test_an_incomplete_record_of_any_length_is_reported(tmp_path: Path) -> None:
    whole = write(tmp_path / "whole", 5, 10).read_bytes()  # two records: rows 5 and 6, then 7 to 9
    first_end = len(write(tmp_path / "first", 5, 7).read_bytes())
    start = len(write(tmp_path / "none", 5, 5).read_bytes())
    path = tmp_path / "a"
    for length in range(start, len(whole)):
        path.write_bytes(whole[:length])
        segment = read_segment(path)
        assert [record.rows for record in segment.records] == ([2] if length >= first_end else [])
        assert segment.good_bytes == (first_end if length >= first_end else start)
        assert segment.good_bytes + segment.torn_bytes == length
        with pytest.raises(CheckpointError, match="missing"):
            gather_rows([segment], segment.row_format, 5, 10)


def test_rows_are_gathered_from_several_files(tmp_path: Path) -> None:
    segments = [read_segment(write(tmp_path / str(start), start, stop)) for start, stop in ((0, 4), (4, 6), (6, 7))]
    _, numbers, _ = gather_rows(segments, segments[0].row_format, 2, 7)
    assert numbers[:, 0].tolist() == [2, 3, 4, 5, 6]
    with pytest.raises(CheckpointError, match="rows 4 to 7 are missing"):
        gather_rows([segments[0], segments[2]], segments[0].row_format, 2, 7)


def test_files_of_other_kinds_are_refused(tmp_path: Path) -> None:
    segment = read_segment(write(tmp_path / "a", 0, 4))
    with pytest.raises(CheckpointError, match="replay rows are"):
        gather_rows([segment], RowFormat(("<f4",), (3,)), 0, 4)
    SegmentFile.create(tmp_path / "b", "replay rows 2", None).close()
    with pytest.raises(CheckpointError, match="of the kind 'replay rows 2', not 'replay rows 1'"):
        read_segment(tmp_path / "b")
    with pytest.raises(CheckpointError, match="cannot be read"):
        read_segment(tmp_path / "missing")


def test_a_record_without_rows_counts_as_damage(tmp_path: Path) -> None:
    file = SegmentFile.create(tmp_path / "a", FORMAT_NAME, RowFormat.of(rings()).describe())
    append_rows(file, rings(), 0, 2)
    good = file.bytes
    file.append(b"short", [b"x"])
    append_rows(file, rings(), 2, 3)
    file.close()
    segment = read_segment(tmp_path / "a")
    assert (len(segment.records), segment.good_bytes) == (1, good)
    with pytest.raises(StorageError, match="note of 5 bytes"):
        parse_rows_note(b"short")


def test_an_impossible_row_number_is_refused() -> None:
    assert parse_rows_note(rows_note(1 << 62, 3)) == (1 << 62, 3, b"")
    with pytest.raises(StorageError, match="too large for a memory"):
        parse_rows_note(rows_note((1 << 62) + 1, 3))
