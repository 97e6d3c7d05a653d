"""Files of a worker's samples: what is written comes back, damage is noticed, and nothing is left behind."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import sys
from collections import namedtuple
from collections.abc import Sequence
from pathlib import Path

import pytest

from tmrl_core.errors import StorageError
from tmrl_core.networking.protocol.delivery import HeldMessage
from tmrl_core.networking.spools.stream_files import SpooledStreamInfo, StreamFiles, default_limit, left_streams
from tmrl_core.storage import FileCalls
from tmrl_core.storage.format import Buffer

STREAM = b"s" * 16
INFO = SpooledStreamInfo(stream=STREAM.hex(), run="run", name="robot7", signature=b"signature", key=b"secret key")


def message(number: int, body: bytes) -> HeldMessage:
    half = len(body) // 2
    return HeldMessage(number, number, 10 * number, 10, [body[:half], memoryview(body)[half:]], len(body), 0)


def bodies(files: StreamFiles, places: Sequence[object]) -> list[bytes]:
    return [b"".join(files.load(place)) for place in places]  # type: ignore[arg-type]


class Full(FileCalls):
    """A disk that has room for so many bytes."""

    def __init__(self, room: int) -> None:
        self.room = room

    def write(self, descriptor: int, buffers: Sequence[Buffer]) -> int:
        if sum(map(len, buffers)) > self.room:
            raise OSError(errno.ENOSPC, "No space left on device")
        self.room -= sum(map(len, buffers))
        return super().write(descriptor, buffers)


def test_bodies_come_back_and_files_go_once_they_are_not_needed(tmp_path: Path) -> None:
    files = StreamFiles(tmp_path / "spool" / STREAM.hex(), INFO, limit_bytes=8_000)
    contents = [os.urandom(size) for size in (0, 1, 400, 700, 5_000, 300)]
    assert not (tmp_path / "spool").exists(), "nothing is made before there is something to write"
    places, error = files.write([message(number, body) for number, body in enumerate(contents)])
    assert error is None
    files.count(places)
    assert bodies(files, places) == contents
    assert len(list(files.folder.glob("*.seg"))) == 3
    for place in places[:4]:
        files.release(place)
    assert files.has_obsolete
    first = files.first_needed()
    assert first == places[4].number
    files.remove_before(first)
    assert bodies(files, places[4:]) == contents[4:]
    for place in places[4:]:
        files.release(place)
    assert files.first_needed() is None
    files.remove()
    assert list((tmp_path / "spool").iterdir()) == []
    # The next outage begins anew.
    places, error = files.write([message(6, b"more")])
    assert bodies(files, places) == [b"more"]
    files.close()


@pytest.mark.skipif(sys.platform == "win32", reason="mode bits mean nothing on Windows")
def test_only_the_user_can_read_them(tmp_path: Path) -> None:
    previous = os.umask(0)
    try:
        files = StreamFiles(tmp_path / "spool" / STREAM.hex(), INFO, limit_bytes=8_000)
        files.write([message(0, b"body")])
    finally:
        os.umask(previous)
    assert stat.S_IMODE(files.folder.parent.stat().st_mode) == 0o700
    assert stat.S_IMODE(files.folder.stat().st_mode) == 0o700
    (path,) = files.folder.glob("*.seg")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    files.close()


def test_a_full_disk_keeps_what_was_written_and_takes_more_once_there_is_room(tmp_path: Path) -> None:
    disk = Full(3_000)
    files = StreamFiles(tmp_path / STREAM.hex(), INFO, limit_bytes=1 << 20, calls=disk)
    messages = [message(number, bytes([number]) * 1_000) for number in range(5)]
    places, error = files.write(messages)
    assert "No space left on device" in str(error)
    assert bodies(files, places) == [bytes([number]) * 1_000 for number in range(2)]
    disk.room = 1 << 20
    more, error = files.write(messages[2:])
    assert error is None
    assert bodies(files, places + more) == [bytes([number]) * 1_000 for number in range(5)]
    files.close()


def test_a_folder_that_cannot_be_made_is_an_error_without_places(tmp_path: Path) -> None:
    (tmp_path / "spool").write_text("a file")
    files = StreamFiles(tmp_path / "spool" / STREAM.hex(), INFO, limit_bytes=1 << 20)
    places, error = files.write([message(0, b"body")])
    assert (places, type(error)) == ([], StorageError)
    files.remove()
    assert (tmp_path / "spool").read_text() == "a file"


@pytest.mark.parametrize("at", [-1, -30, 10])
def test_a_damaged_or_missing_body_is_an_error(tmp_path: Path, at: int) -> None:
    files = StreamFiles(tmp_path / STREAM.hex(), INFO, limit_bytes=1 << 20)
    places, _ = files.write([message(0, bytes(100)), message(1, bytes(100))])
    (path,) = files.folder.glob("*.seg")
    damaged = bytearray(path.read_bytes())
    damaged[places[1].payload_offset + (at if at > 0 else 100 + at)] ^= 1
    path.write_bytes(damaged)
    assert bodies(files, places[:1]) == [bytes(100)]
    with pytest.raises(StorageError, match="damaged"):
        files.load(places[1])
    path.unlink()
    with pytest.raises(StorageError, match="cannot be read"):
        files.load(places[0])
    files.close()


def test_the_default_limit_leaves_half_of_the_free_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Path] = []

    def usage(place: Path) -> Usage:
        asked.append(place)
        return Usage(1 << 40, 0, free)

    Usage = namedtuple("Usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", usage)
    free = 6 << 30
    assert default_limit(tmp_path / "not" / "made" / "yet") == 3 << 30
    free = 1 << 40
    assert default_limit(tmp_path) == 10 << 30
    assert asked == [tmp_path, tmp_path]


def left(folder: Path) -> list[tuple[SpooledStreamInfo, list[tuple[int, bytes]]]]:
    """Return what a later process finds. It closes the files again."""
    found = []
    for files, messages in left_streams(folder):
        found.append((files.info, [(one.number, b"".join(files.load(one.place))) for one in messages]))
        files.close()
    return found


def test_a_later_process_finds_what_was_written_and_what_describes_it(tmp_path: Path) -> None:
    files = StreamFiles(tmp_path / STREAM.hex(), INFO, limit_bytes=8_000)
    files.write([message(number, bytes([number]) * 700) for number in range(6)])
    assert left(tmp_path) == [], "its process still runs"
    files.close()
    expected = [(INFO, [(number, bytes([number]) * 700) for number in range(6)])]
    assert left(tmp_path) == left(tmp_path) == expected
    assert left(tmp_path / "missing") == []


@pytest.mark.parametrize("cut", [1, 100, 740])
def test_a_torn_end_costs_the_last_message_only(tmp_path: Path, cut: int) -> None:
    files = StreamFiles(tmp_path / STREAM.hex(), INFO, limit_bytes=1 << 20)
    files.write([message(number, bytes([number]) * 700) for number in range(3)])
    files.close()
    (path,) = files.folder.glob("*.seg")
    path.write_bytes(path.read_bytes()[:-cut])
    assert left(tmp_path) == [(INFO, [(number, bytes([number]) * 700) for number in range(2)])]


def test_files_that_describe_no_stream_are_logged_and_left(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for name, info in (("aa" * 16, INFO), (STREAM.hex(), INFO)):
        files = StreamFiles(tmp_path / name, info, limit_bytes=1 << 20)
        files.write([message(0, b"body")])
        files.close()
    (tmp_path / "empty").mkdir()
    (tmp_path / "a file").touch()
    assert [info for info, _ in left(tmp_path)] == [INFO]
    (warning,) = caplog.messages
    assert "another stream" in warning
    assert list((tmp_path / ("aa" * 16)).glob("*.seg"))


def test_the_key_is_in_no_text() -> None:
    assert "secret key" not in repr(INFO)
