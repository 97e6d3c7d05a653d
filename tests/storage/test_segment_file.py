from __future__ import annotations

import errno
import resource
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tmrl_core.errors import StorageError, StorageFullError
from tmrl_core.storage import FileCalls, SegmentFile, SegmentReader


def notes(path: Path) -> list[bytes]:
    return [record.note for record in SegmentReader(path).records()]


class Failing(FileCalls):
    """A disk that writes `quantum` bytes a call and has room for `room` more."""

    def __init__(self, room: int, quantum: int = 1 << 30) -> None:
        self.room = room
        self.quantum = quantum
        self.truncates = True
        self.syncs = True
        self.code = errno.ENOSPC

    def write(self, descriptor: int, buffers: Sequence[Any]) -> int:
        if self.room == 0:
            raise OSError(self.code, "no room")
        piece = memoryview(buffers[0]).cast("B")[: min(self.room, self.quantum)]
        written = super().write(descriptor, [piece])
        self.room -= written
        return written

    def truncate(self, descriptor: int, length: int) -> None:
        if not self.truncates:
            raise OSError(errno.EIO, "cannot cut")
        super().truncate(descriptor, length)

    def sync(self, descriptor: int) -> None:
        if not self.syncs:
            raise OSError(errno.EIO, "not flushed")


def test_appended_records_are_read_again(tmp_path: Path) -> None:
    file = SegmentFile.create(tmp_path / "a", "kind", {"x": 1}, b"first")
    rows = np.arange(6, dtype=np.float32).reshape(2, 3)
    offset, end = file.append(b"rows", [rows.data, b"", b"tail"])
    assert file.bytes == end == (tmp_path / "a").stat().st_size
    reader = SegmentReader(tmp_path / "a")
    assert (reader.format_name, reader.description) == ("kind", {"x": 1})
    first, second = reader.records()
    assert (first.note, bytes(first.payload)) == (b"first", b"")
    assert (second.note, bytes(second.payload)) == (b"rows", rows.tobytes() + b"tail")
    assert second.payload_offset == offset
    assert np.frombuffer(second.payload, np.float32, 6).tolist() == rows.ravel().tolist()
    assert reader.torn_bytes == 0
    reader.close()
    assert bytes(second.payload[-4:]) == b"tail", "a view outlives its reader"
    file.close()


def test_an_incomplete_record_of_any_length_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "a"
    file = SegmentFile.create(path, "kind", None)
    file.append(b"one", [b"1234567"])
    good = file.bytes
    file.append(b"two", [b"abc", b"defghijk"])
    file.close()
    whole = path.read_bytes()
    for length in range(good, len(whole)):
        path.write_bytes(whole[:length])
        file = SegmentFile.open(path, good_bytes=good)
        assert (file.bytes, file.torn_bytes) == (good, length - good)
        assert path.stat().st_size == good
        file.append(b"three")
        file.close()
        assert notes(path) == [b"one", b"three"]


@pytest.mark.parametrize("quantum", [1, 7, 1 << 30])
@pytest.mark.parametrize("truncates", [True, False])
def test_a_write_that_fails_leaves_the_file_as_it_was_and_may_be_tried_again(
    tmp_path: Path, quantum: int, truncates: bool
) -> None:
    calls = Failing(10_000, quantum)
    file = SegmentFile.create(tmp_path / "a", "kind", None, calls=calls)
    file.append(b"one", [b"x" * 50])
    good = file.bytes
    calls.truncates = truncates
    for room in (0, 1, 23, 60):
        calls.room = room
        said = r"a cannot be written: no room\. Make room" if truncates else "a cannot be written"
        with pytest.raises(StorageFullError if truncates else StorageError, match=said):
            file.append(b"two", [b"y" * 50, b"z" * 50])
        assert file.bytes == good
        assert notes(tmp_path / "a") == [b"one"]
    calls.room, calls.truncates = 10_000, True
    file.append(b"two", [b"y"])
    file.close()
    assert notes(tmp_path / "a") == [b"one", b"two"]
    assert SegmentReader(tmp_path / "a").size == file.bytes


def test_a_failed_flush_removes_the_record(tmp_path: Path) -> None:
    calls = Failing(10_000)
    file = SegmentFile.create(tmp_path / "a", "kind", None, sync="fsync", calls=calls)
    calls.syncs = False
    with pytest.raises(StorageError, match="not flushed"):
        file.append(b"one")
    with pytest.raises(StorageError, match="cannot be flushed"):
        file.flush()
    calls.syncs = True
    file.append(b"two")
    file.close()
    assert notes(tmp_path / "a") == [b"two"]


def test_a_limit_on_the_size_of_files_counts_as_full(tmp_path: Path) -> None:
    file = SegmentFile.create(tmp_path / "a", "kind", None)
    file.append(b"one", [bytes(1000)])
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4000, limits[1]))
    try:
        for _ in range(2):
            with pytest.raises(StorageFullError, match="Make room"):
                file.append(b"two", [bytes(10_000)])
            assert (tmp_path / "a").stat().st_size == file.bytes
        file.append(b"three", [bytes(100)])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, before)
    file.append(b"two", [bytes(10_000)])
    file.close()
    assert notes(tmp_path / "a") == [b"one", b"three", b"two"]


def test_a_file_that_cannot_be_created_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(StorageFullError):
        SegmentFile.create(tmp_path / "a", "kind", None, b"first", calls=Failing(20))
    assert list(tmp_path.iterdir()) == []
    SegmentFile.create(tmp_path / "a", "kind", None).close()
    with pytest.raises(StorageError, match="cannot be made"):
        SegmentFile.create(tmp_path / "a", "kind", None)
    with pytest.raises(StorageError, match="cannot be made"):
        SegmentFile.create(tmp_path / "missing" / "a", "kind", None)


def test_unreadable_files_are_an_error(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    (tmp_path / "text").write_text("something else, and long enough")
    for name, said in (("empty", "cut short"), ("text", "is not a file of records"), ("missing", "cannot be read")):
        with pytest.raises(StorageError, match=said):
            SegmentReader(tmp_path / name)


def test_a_reader_keeps_to_its_limit(tmp_path: Path) -> None:
    file = SegmentFile.create(tmp_path / "a", "kind", None)
    file.append(b"one")
    limit = file.bytes
    file.append(b"two")
    file.close()
    reader = SegmentReader(tmp_path / "a", limit)
    assert [record.note for record in reader.records()] == [b"one"]
    assert (reader.torn_bytes, reader.size) == (0, limit)


def test_more_buffers_than_one_call_takes(tmp_path: Path) -> None:
    file = SegmentFile.create(tmp_path / "a", "kind", None)
    file.append(b"", [bytes([i % 256]) for i in range(3000)])
    (record,) = SegmentReader(tmp_path / "a").records()
    assert bytes(record.payload) == bytes(i % 256 for i in range(3000))
    file.close()
