from __future__ import annotations

import errno
import shutil
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tmrl_core.errors import StorageError, StorageFullError
from tmrl_core.storage import FileCalls, RecordLog
from tmrl_core.storage import log as log_module


def make(folder: Path, **kwargs: Any) -> RecordLog:
    return RecordLog(folder, "kind", {"v": 1}, **kwargs)


def notes(log: RecordLog) -> list[bytes]:
    return [record.note for _, record in log.records()]


def test_records_come_back_over_files_and_openings(tmp_path: Path) -> None:
    log = make(tmp_path, segment_bytes=200)
    assert list(tmp_path.iterdir()) == [], "nothing is written before the first record"
    places = [log.append(b"%d" % i, [b"x" * 40]) for i in range(10)]
    assert log.numbers == sorted({place.number for place in places})
    assert len(log.numbers) > 2
    assert log.bytes == sum(file.stat().st_size for file in tmp_path.iterdir())
    log.close()
    with pytest.raises(StorageError, match="closed"):
        log.append(b"more")
    log = make(tmp_path, segment_bytes=200)
    assert log.torn_bytes == 0
    assert notes(log) == [b"%d" % i for i in range(10)]
    for (number, record), place in zip(log.records(), places, strict=True):
        assert (number, record.payload_offset, record.end) == (place.number, place.payload_offset, place.end)
    log.append(b"10")
    assert notes(log)[-1] == b"10"
    log.close()


def test_old_files_are_removed_and_the_last_stays(tmp_path: Path) -> None:
    log = make(tmp_path, segment_bytes=1, first_note=lambda: b"state")
    for i in range(5):
        log.append(b"%d" % i)
    assert log.remove_before(3) == 2
    assert log.numbers == [3, 4, 5]
    assert notes(log) == [b"state", b"2", b"state", b"3", b"state", b"4"]
    assert log.remove_before(99) == 2
    log.append(b"5")
    log.close()
    log = make(tmp_path)
    assert log.numbers == [5, 6]
    log.close()


def test_the_description_of_the_next_file_may_change(tmp_path: Path) -> None:
    log = make(tmp_path)
    log.append(b"one")
    log.description = {"v": 2}
    log.seal()
    log.append(b"two")
    log.append(b"three")
    assert [log.reader(number).description for number in log.numbers] == [{"v": 1}, {"v": 2}]
    log.close()


def test_an_incomplete_last_record_is_removed_at_every_length(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    log = make(tmp_path / "whole", first_note=lambda: b"state")
    log.append(b"one", [b"payload"])
    good = log.append(b"two", [b"payload"]).end
    end = log.append(b"three", [b"more payload", b"and more"]).end
    log.close()
    (file,) = (tmp_path / "whole").glob("*.seg")
    for length in range(good, end):
        folder = tmp_path / str(length)
        shutil.copytree(tmp_path / "whole", folder)
        with (folder / file.name).open("r+b") as torn:
            torn.truncate(length)
        log = make(folder, first_note=lambda: b"state")
        assert log.torn_bytes == length - good
        assert (str(log.torn_bytes) in caplog.text) == (length > good)
        log.append(b"four")
        assert notes(log) == [b"state", b"one", b"two", b"four"]
        log.close()
        caplog.clear()


def test_a_file_of_another_version_is_refused_and_stays(tmp_path: Path) -> None:
    log = make(tmp_path)
    log.append(b"one")
    log.close()
    file = tmp_path / "000000000001.seg"
    content = file.read_bytes().replace(b"TMRLREC1", b"TMRLREC9")
    file.write_bytes(content)
    with pytest.raises(StorageError, match="version 9; this release reads version 1"):
        make(tmp_path)
    assert file.read_bytes() == content


def test_a_file_that_was_only_begun_is_set_aside(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    log = make(tmp_path / "whole", first_note=lambda: b"state")
    log.append(b"one")
    log.seal()
    log.append(b"two")
    log.close()
    newest = tmp_path / "whole" / "000000000002.seg"
    reader = log.reader(2)
    begun = next(reader.records()).end
    for length in range(begun):
        folder = tmp_path / str(length)
        shutil.copytree(tmp_path / "whole", folder)
        with (folder / newest.name).open("r+b") as torn:
            torn.truncate(length)
        log = make(folder, first_note=lambda: b"state")
        assert (notes(log), log.torn_bytes) == ([b"state", b"one"], length)
        assert (folder / "000000000002.seg.damaged").exists()
        assert "is now 000000000002.seg.damaged" in caplog.text
        log.seal()
        assert log.append(b"three").number == 3, "no number is used twice"
        log.close()
        caplog.clear()


def test_another_kind_of_records_is_refused(tmp_path: Path) -> None:
    log = make(tmp_path)
    log.append(b"one")
    log.close()
    with pytest.raises(StorageError, match=r"kind 'kind', not 'other'\. Choose another folder"):
        RecordLog(tmp_path, "other")


def test_damage_in_an_older_file_ends_it_with_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    log = make(tmp_path, segment_bytes=300)
    for i in range(8):
        log.append(b"%d" % i, [bytes(50)])
    log.close()
    log_files = sorted(tmp_path.glob("*.seg"))
    assert len(log_files) > 1
    data = bytearray(log_files[0].read_bytes())
    data[-30] ^= 1  # in the payload of its last record
    log_files[0].write_bytes(data)
    log = make(tmp_path, segment_bytes=300)
    found = notes(log)
    assert "is damaged after byte" in caplog.text
    lost = {b"%d" % i for i in range(8)} - set(found)
    assert len(lost) == 1
    assert [record.note for _, record in log.records(check_payloads=False)] == [b"%d" % i for i in range(8)]
    log.close()


class Full(FileCalls):
    def __init__(self) -> None:
        self.room = 1 << 20

    def write(self, descriptor: int, buffers: Sequence[Any]) -> int:
        if sum(len(buffer) for buffer in buffers) > self.room:
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().write(descriptor, buffers)


def test_a_full_disk_is_an_error_at_a_file_s_end_too_and_nothing_is_lost(tmp_path: Path) -> None:
    calls = Full()
    log = make(tmp_path, segment_bytes=100, first_note=lambda: b"state", calls=calls)
    log.append(b"one", [bytes(200)])
    calls.room = 0
    for _ in range(3):
        with pytest.raises(StorageFullError, match="No space left"):
            log.append(b"two")
    assert log.numbers == [1]
    calls.room = 1 << 20
    log.append(b"two")
    assert notes(log) == [b"state", b"one", b"state", b"two"]
    log.close()


def test_a_nearly_full_disk_is_not_filled_with_empty_files(tmp_path: Path) -> None:
    calls = Full()
    log = make(tmp_path, segment_bytes=200, first_note=lambda: bytes(300), calls=calls)
    for i in range(4):
        log.append(b"%d" % i, [bytes(90)])
    assert log.numbers == [1, 2], "a long first note leaves no less room for what is appended"
    calls.room = 1000
    for _ in range(20):
        with pytest.raises(StorageFullError):
            log.append(b"long", [bytes(2000)])
    log.close()
    log = make(tmp_path, segment_bytes=200, first_note=lambda: bytes(300), calls=calls)
    with pytest.raises(StorageFullError):
        log.append(b"long", [bytes(2000)])
    calls.room = 1 << 20
    log.append(b"long", [bytes(2000)])
    assert log.numbers == [1, 2, 3]
    assert [note for note in notes(log) if len(note) < 300] == [b"0", b"1", b"2", b"3", b"long"]
    log.close()


@given(st.data())
def test_a_folder_of_any_bytes_opens_or_is_the_documented_error(tmp_path_factory: Any, data: st.DataObject) -> None:
    folder = tmp_path_factory.mktemp("fuzzed")
    log = make(folder, segment_bytes=200, first_note=lambda: b"state")
    for i in range(6):
        log.append(b"%d" % i, [bytes([i]) * 40])
    log.close()
    for file in folder.glob("*.seg"):
        content = bytearray(file.read_bytes())
        for _ in range(data.draw(st.integers(0, 3))):
            at = data.draw(st.integers(0, len(content) - 1))
            content[at : at + 2] = data.draw(st.binary(max_size=4))
        file.write_bytes(content)
    try:
        log = make(folder, first_note=lambda: b"state")
        found = [bytes(record.payload) for _, record in log.records()]
        log.append(b"new", [b"row"])
    except StorageError:
        return
    assert set(found) <= {b"", *(bytes([i]) * 40 for i in range(6))}
    log.close()


class Syncs(FileCalls):
    def __init__(self) -> None:
        self.threads: list[str] = []
        self.fails = False
        self.begun = threading.Event()
        self.may_end = threading.Event()

    def sync(self, descriptor: int) -> None:
        name = threading.current_thread().name
        self.threads.append(name)
        if name == "tmrl-flush":
            self.begun.set()
            assert self.may_end.wait(10)
            if self.fails:
                raise OSError(errno.EIO, "it was not written")


def test_a_growing_file_is_flushed_in_the_background(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_module, "FLUSHED_AT_ONCE", 200)
    calls = Syncs()
    log = make(tmp_path, segment_bytes=2000, calls=calls)
    while not calls.threads:
        log.append(b"a", [bytes(100)])
        if log.bytes >= 200:
            assert calls.begun.wait(10)
    for _ in range(3):
        log.append(b"b", [bytes(100)])
    assert calls.threads == ["tmrl-flush"], "one at a time, and no append waits for it"
    calls.may_end.set()
    log.close()
    assert not any(thread.name == "tmrl-flush" for thread in threading.enumerate())


def test_a_failed_background_flush_is_raised_before_the_next_file_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_module, "FLUSHED_AT_ONCE", 100)
    calls = Syncs()
    calls.fails = True
    calls.may_end.set()
    log = make(tmp_path, segment_bytes=500, calls=calls)
    while log.bytes < 500:
        log.append(b"a", [bytes(100)])
    with pytest.raises(StorageError, match="cannot be flushed"):
        log.append(b"b")
    assert log.numbers == [1]
    log.append(b"b")
    assert log.numbers == [1, 2], "it was said once"
    log.close()


def test_with_fsync_there_is_no_background_flush(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_module, "FLUSHED_AT_ONCE", 100)
    calls = Syncs()
    log = make(tmp_path, sync="fsync", calls=calls)
    for _ in range(4):
        log.append(b"a", [bytes(100)])
    assert set(calls.threads) == {threading.current_thread().name}
    log.close()


def test_without_flushes_no_call_waits_for_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_module, "FLUSHED_AT_ONCE", 100)
    calls = Syncs()
    log = make(tmp_path, sync="never", segment_bytes=300, calls=calls)
    for _ in range(10):
        log.append(b"a", [bytes(100)])
    log.close()
    assert len(list(tmp_path.glob("*.seg"))) > 2
    assert calls.threads == []
