from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tmrl_core.metrics.reading import follow, iter_records, read_records
from tmrl_core.metrics.records import encode_line, record


def line(step: int) -> bytes:
    return encode_line(record("round", {"x": step}, step=step, elapsed_s=1.0, time_s=1.0))


def append(path: Path, data: bytes) -> None:
    with path.open("ab") as file:
        file.write(data)


def test_a_missing_file_has_no_records(tmp_path: Path) -> None:
    reader = follow(tmp_path / "metrics.jsonl")
    assert reader.read() == []
    append(tmp_path / "metrics.jsonl", line(1))
    assert [record.step for record in reader.read()] == [1]


def test_each_record_is_read_once(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    reader = follow(path)
    for step in range(3):
        append(path, line(step))
        assert [record.step for record in reader.read()] == [step]
        assert reader.read() == []


def test_an_incomplete_line_is_read_once_complete(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    reader = follow(path)
    got = []
    for index in range(len(data := line(1) + line(2))):
        append(path, data[index : index + 1])
        got.append([record.step for record in reader.read()])
    assert [(index + 1, steps) for index, steps in enumerate(got) if steps] == [
        (len(line(1)), [1]),
        (len(data), [2]),
    ]


def test_invalid_lines_are_counted_and_skipped(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    append(path, line(1) + line(2)[:30] + b"\n" + b"\n" + b"\xff\n" + line(3))
    reader = follow(path)
    assert [record.step for record in reader.read()] == [1, 3]
    assert reader.bad_lines == 2


def test_a_truncated_file_is_read_from_its_start(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    reader = follow(path)
    append(path, line(1) + line(2) + line(3)[:10])
    reader.read()
    path.write_bytes(line(7))
    assert [record.step for record in reader.read()] == [7]


def test_another_file_under_the_same_name_is_read_from_its_start(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    reader = follow(path)
    append(path, line(1))
    reader.read()
    append(tmp_path / "new", line(8) + line(9))
    (tmp_path / "new").replace(path)
    assert [record.step for record in reader.read()] == [8, 9]


@pytest.mark.parametrize("rest", [b"", line(2)[:30]])
def test_records_that_are_there_can_be_skipped_unread(tmp_path: Path, rest: bytes) -> None:
    path = tmp_path / "metrics.jsonl"
    reader = follow(path)
    reader.skip()
    append(path, line(1) + b"no record\n" + rest)
    reader.skip()
    assert reader.read() == []
    append(path, line(2)[len(rest) :] + line(3))
    assert [record.step for record in reader.read()] == [2, 3]
    assert reader.bad_lines == 0


def test_a_file_that_was_replaced_after_a_skip_is_read_from_its_start(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    append(path, line(1) + line(2))
    reader = follow(path)
    reader.skip()
    path.write_bytes(line(7))
    assert [record.step for record in reader.read()] == [7]


def test_kinds_are_left_out_undecoded(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    evaluation = record("evaluation", {"return_evaluation": 1.0}, step=2, elapsed_s=1.0)
    append(path, line(1) + encode_line(evaluation) + line(3))
    assert [found.step for found in iter_records(path, without=("round", "network"))] == [2]


def test_read_records_skips_an_incomplete_end(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    append(path, line(1) + line(2)[:-1])
    assert [record.step for record in read_records(path)] == [1]


def test_read_records_needs_the_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"metrics\.jsonl"):
        read_records(tmp_path / "metrics.jsonl")


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such files")
def test_a_pipe_in_place_of_the_file_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "metrics.jsonl")
    with pytest.raises(OSError, match="not a regular file"):
        follow(tmp_path / "metrics.jsonl").read()
