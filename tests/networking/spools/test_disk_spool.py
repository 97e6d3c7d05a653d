"""Files in the spool's folder that no Server of ours has written: they are set aside, not believed."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path
from typing import Any

import pytest

from tmrl_core.networking.protocol.messages import MAX_SIGNATURE_BYTES
from tmrl_core.networking.spools.disk_spool import _NOTE, FORMAT, DiskSpool
from tmrl_core.networking.spools.spool import StreamInfo
from tmrl_core.storage import SegmentFile, SegmentReader

STREAM = b"s" * 16
ABOUT = {
    "stream": STREAM.hex(),
    "run": "run",
    "name": "robot7",
    "signature": "",
    "principal": "certificate worker robot7",
}


def write(folder: Path, info: dict[str, Any], *notes: bytes, name: str = STREAM.hex()) -> Path:
    path = folder / f"{name}.seg"
    file = SegmentFile.create(path, FORMAT, info)
    for note in notes:
        file.append(note, [bytes(50)])
    file.close()
    return path


def found(folder: Path) -> dict[bytes, list[int]]:
    spool = DiskSpool(folder, 1 << 20)
    streams = {stream: [message.number for message in kept.messages] for stream, kept in spool.streams.items()}
    spool.close()
    return streams


@pytest.mark.skipif(sys.platform == "win32", reason="mode bits mean nothing on Windows")
def test_the_folder_is_made_for_its_user_alone(tmp_path: Path) -> None:
    DiskSpool(tmp_path / "spool", 1 << 20).close()
    assert stat.S_IMODE((tmp_path / "spool").stat().st_mode) == 0o700


@pytest.mark.skipif(sys.platform == "win32", reason="mode bits mean nothing on Windows")
def test_a_folder_that_others_may_read_is_warned_of_and_its_files_are_private(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tmp_path.chmod(0o755)
    previous = os.umask(0)
    try:
        spool = DiskSpool(tmp_path, 1 << 20)
        spool.append(
            StreamInfo(b"t" * 16, "run", "r7", b"", ""), number=0, floor=0, position=0, samples=1, body=[b"body"]
        )
        spool.close()
    finally:
        os.umask(previous)
    assert f"chmod 700 {tmp_path}" in caplog.text
    assert [stat.S_IMODE(file.stat().st_mode) for file in tmp_path.glob("*.seg")] == [0o600]


@pytest.mark.skipif(sys.platform == "win32", reason="symbolic links and pipes need other calls there")
def test_links_and_pipes_are_set_aside_and_their_targets_unchanged(tmp_path: Path) -> None:
    elsewhere, spool = tmp_path / "elsewhere", tmp_path / "spool"
    elsewhere.mkdir()
    spool.mkdir()
    target = write(elsewhere, ABOUT, _NOTE.pack(1, 3, 0, 30, 10))
    with target.open("ab") as file:
        file.write(b"torn")
    target.chmod(0o644)
    before = target.read_bytes()
    (spool / "link.seg").symlink_to(target)
    os.mkfifo(spool / "pipe.seg")
    assert found(spool) == {}
    assert target.read_bytes() == before
    assert stat.S_IMODE(target.stat().st_mode) == 0o644
    assert {path.name for path in spool.iterdir()} == {"lock", "link.seg.damaged", "pipe.seg.damaged"}


def test_files_of_an_earlier_server_are_loaded(tmp_path: Path) -> None:
    write(tmp_path, ABOUT, _NOTE.pack(1, 3, 0, 30, 10), _NOTE.pack(1, 4, 0, 40, 10))
    assert found(tmp_path) == {STREAM: [3, 4]}


def test_the_head_names_the_stream_and_its_owner(tmp_path: Path) -> None:
    spool = DiskSpool(tmp_path, 1 << 20)
    info = StreamInfo(STREAM, "run", "robot7", b"", "certificate worker robot7")
    spool.append(info, number=0, floor=0, position=0, samples=1, body=[b"body"])
    spool.close()
    reader = SegmentReader(tmp_path / f"{STREAM.hex()}.seg")
    assert reader.format_name == FORMAT == "tmrl_core spool 1"
    assert reader.description == ABOUT
    reader.close()


def test_a_file_without_an_owner_is_set_aside(tmp_path: Path) -> None:
    """Otherwise its samples would count as those of nobody, and anyone could continue the stream."""
    path = write(tmp_path, {name: ABOUT[name] for name in ABOUT if name != "principal"}, _NOTE.pack(1, 0, 0, 0, 10))
    assert found(tmp_path) == {}
    assert path.with_name(path.name + ".damaged").exists()


@pytest.mark.parametrize(
    "change",
    [
        {"stream": "00"},
        {"stream": (b"t" * 16).hex()},
        {"stream": "no digits"},
        {"name": "x" * 201},
        {"run": "x" * 201},
        {"signature": "A" * 4 * (MAX_SIGNATURE_BYTES // 3 + 1)},
        {"signature": 3},
    ],
)
def test_a_file_with_values_beyond_the_limits_is_set_aside(tmp_path: Path, change: dict[str, Any]) -> None:
    path = write(tmp_path, {**ABOUT, **change}, _NOTE.pack(1, 0, 0, 0, 10))
    assert found(tmp_path) == {}
    assert not path.exists()
    assert path.with_name(path.name + ".damaged").exists()


def test_impossible_message_numbers_are_skipped(tmp_path: Path) -> None:
    write(
        tmp_path, ABOUT, _NOTE.pack(1, 0, 0, 0, 10), _NOTE.pack(1, 1 << 63, 0, 0, 10), _NOTE.pack(1, 1, 0, 1 << 62, 9)
    )
    assert found(tmp_path) == {STREAM: [0]}
