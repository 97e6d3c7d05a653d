from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tmrl_core.metrics import names
from tmrl_core.metrics.branch import CUT_NAME, cut_after, position_in
from tmrl_core.metrics.reading import follow, read_records
from tmrl_core.metrics.recorder import Recorder
from tmrl_core.metrics.records import MetricRecord, encode_line, record
from tmrl_core.metrics.sinks import JsonLinesSink, MemorySink


def at(step: int) -> MetricRecord:
    return record("round", {"samples_received": 4 * step}, step=step, elapsed_s=step / 10)


def event(name: str, step: int) -> MetricRecord:
    return record("event", {"event": name}, step=step, elapsed_s=step / 10)


def append(path: Path, *records: MetricRecord) -> None:
    with path.open("ab") as file:
        file.write(b"".join(map(encode_line, records)))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "metrics.jsonl"
    append(path, event("start", 0), *map(at, range(100, 1100, 100)))
    return path


def steps(path: Path) -> list[int]:
    return [made.step for made in read_records(path)]


@pytest.mark.parametrize("torn", [b"", b'{"time_s": 5'])
def test_the_lost_branch_moves_to_a_file_of_its_own(path: Path, torn: bytes) -> None:
    kept = path.read_bytes()
    position = position_in(path)
    append(path, event("checkpoint", 1000), *map(at, range(1100, 1700, 100)))
    with path.open("ab") as file:
        file.write(torn)
    lost = path.read_bytes()[len(kept) :]
    cut = cut_after(path, position, updates=1000, elapsed_s=100.0)
    assert cut is not None
    assert cut.event is not None
    assert path.read_bytes() == kept + encode_line(cut.event)
    assert path.with_name(CUT_NAME).read_bytes() == lost
    assert cut.event.number(names.CUT_RECORDS) == 7
    assert (cut.event.step, cut.event.env_steps, cut.event.elapsed_s) == (1000, 4000, 100.0)
    assert [cut.next_step(axis) for axis in ("env_steps", "updates", "wall_time")] == [4001, 1001, 101]


def test_several_cuts_add_to_one_file(path: Path) -> None:
    position = position_in(path)
    for _ in range(2):
        append(path, at(1100))
        cut_after(path, position, updates=1000, elapsed_s=100.0)
    assert steps(path) == [0, *range(100, 1100, 100), 1000]
    assert [step for step in steps(path.with_name(CUT_NAME)) if step > 1000] == [1100, 1100]


def test_nothing_is_cut_after_a_trainer_that_ended_in_order(path: Path) -> None:
    position = position_in(path)
    append(path, event("checkpoint", 1000), event("end", 1100))
    before = path.read_bytes()
    cut = cut_after(path, position, updates=1000, elapsed_s=100.0)
    assert cut is not None
    assert cut.event is None
    assert cut.elapsed_s == 110.0
    assert path.read_bytes() == before
    assert not path.with_name(CUT_NAME).exists()


def test_the_file_of_another_run_is_left_alone(path: Path, tmp_path: Path) -> None:
    position = position_in(path)
    other = tmp_path / "other" / "metrics.jsonl"
    other.parent.mkdir()
    shutil.copy(path, other)
    other.write_bytes(other.read_bytes().replace(b'"step":1000', b'"step":2000'))
    append(other, at(1100))
    before = other.read_bytes()
    assert cut_after(other, position, updates=1000, elapsed_s=100.0) is None
    assert cut_after(tmp_path / "none.jsonl", position, updates=1000, elapsed_s=100.0) is None
    path.write_bytes(b"")
    assert cut_after(path, position, updates=1000, elapsed_s=100.0) is None
    assert cut_after(other, None, updates=1000, elapsed_s=100.0) is None
    assert other.read_bytes() == before


def test_a_file_without_a_line_has_no_position(tmp_path: Path) -> None:
    assert position_in(tmp_path / "metrics.jsonl") is None
    (tmp_path / "metrics.jsonl").write_bytes(b"torn")
    assert position_in(tmp_path / "metrics.jsonl") is None


@pytest.mark.parametrize("more", [0, 2, 40])
def test_a_reader_that_follows_the_file_gets_new_records_only(path: Path, more: int) -> None:
    position = position_in(path)
    append(path, *map(at, range(1100, 1700, 100)))
    reader = follow(path)
    reader.read()
    cut = cut_after(path, position, updates=1000, elapsed_s=100.0)
    again = [at(1000 + 7 * index) for index in range(more)]
    append(path, *again)
    assert cut is not None
    assert reader.read() == [cut.event, *again]
    append(path, at(9000))
    assert [made.step for made in reader.read()] == [9000]


def test_a_recorder_knows_the_position_of_its_records(tmp_path: Path) -> None:
    path, other = tmp_path / "metrics.jsonl", MemorySink()
    with Recorder([other, JsonLinesSink(path)]) as recorder:
        for step in range(50):
            recorder.record("round", {}, step=step)
        position = recorder.position(30.0)
        assert position == position_in(path)
        recorder.record("round", {}, step=50)
    assert position is not None
    assert len(path.read_bytes()[: position[0]].splitlines()) == 50
    with Recorder([other]) as recorder:
        assert recorder.position() is None


def test_the_record_of_a_cut_is_written_to_the_other_sinks(tmp_path: Path) -> None:
    path, other = tmp_path / "metrics.jsonl", MemorySink()
    with Recorder([JsonLinesSink(path), other]) as recorder:
        recorder.write(event("cut", 5), in_file=True)
    assert path.read_bytes() == b""
    assert [made.step for made in other.records] == [5]
