from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from tmrl_core.errors import FolderLockedError, StorageError
from tmrl_core.storage import FolderLock
from tmrl_core.storage.lock import LOCKED_BYTE, is_locked, lock_file

HOLD = """
import sys, time
from pathlib import Path
from tmrl_core.storage import FolderLock
lock = FolderLock(Path(sys.argv[1]), "the spool")
print("held", flush=True)
sys.stdin.read()
"""


def test_another_process_is_refused_until_the_named_holder_is_dead(tmp_path: Path) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(FolderLockedError, match=rf"\(the spool\) is in use by process {holder.pid} on .*Stop that"):
            FolderLock(tmp_path, "the spool")
        holder.kill()
        holder.wait()
    FolderLock(tmp_path, "the spool").close()


def test_it_is_released_by_close_and_refused_within_a_process_too(tmp_path: Path) -> None:
    with FolderLock(tmp_path / "new" / "folder", "the memory") as lock:
        with pytest.raises(FolderLockedError, match=f"process {os.getpid()} "):
            FolderLock(lock.folder, "the memory")
        assert json.loads((lock.folder / "lock").read_text())["pid"] == os.getpid()
    lock.close()
    FolderLock(lock.folder, "the memory").close()


def test_a_folder_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="the memory"):
        FolderLock(tmp_path / "file" / "folder", "the memory")


@pytest.mark.parametrize("said", [b"rubbish", b"[" * 4_000])
def test_a_lock_without_a_process_id_still_locks(tmp_path: Path, said: bytes) -> None:
    with FolderLock(tmp_path, "the memory"):
        (tmp_path / "lock").write_bytes(said)
        with pytest.raises(FolderLockedError, match="another process"):
            FolderLock(tmp_path, "the memory")


@pytest.mark.parametrize("wait", [False, True])
def test_on_windows_a_lock_that_is_held_for_a_moment_is_tried_again_soon(
    wait: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    positions: list[int] = []

    def locking(descriptor: int, mode: int, size: int) -> None:
        positions.append(os.lseek(descriptor, 0, os.SEEK_CUR))
        if len(positions) < 3:
            raise PermissionError(13, "held")

    with open(tmp_path / "file", "w+") as file, monkeypatch.context() as windows:
        windows.setitem(sys.modules, "msvcrt", SimpleNamespace(locking=locking, LK_NBLCK=2))
        windows.setattr(os, "name", "nt")
        if wait:
            lock_file(file.fileno(), wait_s=10.0)
        else:
            with pytest.raises(BlockingIOError, match="held"):
                lock_file(file.fileno())
    assert positions == [LOCKED_BYTE] * (3 if wait else 1)


def test_a_test_sees_the_lock_of_another_open_file_and_no_other_test(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.touch()
    with path.open("rb") as first, path.open("rb") as second:
        assert not is_locked(first.fileno())
        assert os.name != "posix" or not is_locked(second.fileno())
    with path.open("rb+") as holder, path.open("rb") as reader:
        lock_file(holder.fileno())
        assert is_locked(reader.fileno())
        holder.close()
        assert not is_locked(reader.fileno())
