"""A replay memory on disk after a torn record, after damage, and with two who want it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fuzzing.files import mend
from tests.training.disk_memory import STREAM, damage_some, make, segments, steps
from tmrl_core.errors import ConfigError, FolderLockedError, StorageError
from tmrl_core.training import ReplayMemory
from tmrl_core.training.memories.row_files import rows_note

SPACES = (gym.spaces.Box(-10, 10, (3,), np.float32), gym.spaces.Box(-1, 1, (1,), np.float32))

pytestmark = pytest.mark.usefixtures("small_files")


# --- after a crash ----------------------------------------------------------------------------------------------------


def test_a_truncated_record_has_no_effect(tmp_path: Path, make_rows: Any, caplog: pytest.LogCaptureFixture) -> None:
    memory = make(tmp_path / "whole")
    memory.deferred = True
    for i in range(3):
        memory.append_chunk(make_rows(1, 0, 3 * i, 3))
        memory.commit({STREAM: (i + 1, 3 * i + 3)}, samples=3 * i + 3)
        if i == 1:
            good = segments(tmp_path / "whole")[-1].stat().st_size
    memory.close()
    last = segments(tmp_path / "whole")[-1]
    for length in range(good, last.stat().st_size):
        folder = tmp_path / "cut"
        shutil.copytree(tmp_path / "whole", folder)
        with (folder / last.name).open("r+b") as file:
            file.truncate(length)
        memory = make(folder)
        assert memory.recorded == ({STREAM: (2, 6)}, {"samples": 6})
        assert steps(memory) == [(1, 0, i) for i in range(1, 6)]
        assert memory.disk is not None
        assert memory.disk.torn_bytes == length - good
        assert ("were cut off" in caplog.text) == (length > good)
        assert memory.append_chunk(make_rows(1, 0, 6, 3)) == 3, "the worker sends the message again"
        memory.close()
        shutil.rmtree(folder)
        caplog.clear()


def test_damage_in_an_older_file_removes_the_rows_up_to_it_with_a_warning(
    tmp_path: Path, make_rows: Any, caplog: pytest.LogCaptureFixture
) -> None:
    memory = make(tmp_path / "whole", memory_size=1000)
    memory.deferred = True
    for i in range(20):
        memory.append_chunk(make_rows(1, i, 0, 11, end="truncated"))
        memory.commit({STREAM: (i + 1, 11 * (i + 1))})
    whole = steps(memory)
    memory.close()
    files = segments(tmp_path / "whole")
    assert len(files) > 3
    for kind in ("flipped", "headless", "missing", "empty"):
        folder = tmp_path / kind
        shutil.copytree(tmp_path / "whole", folder)
        damaged = folder / files[1].name
        data = bytearray(damaged.read_bytes())
        data[data.index(b"REC1", len(data) // 2) if kind == "flipped" else 0] ^= 1
        if kind == "missing":
            damaged.unlink()
        else:
            damaged.write_bytes(b"" if kind == "empty" else data)
        memory = make(folder, memory_size=1000)
        kept = steps(memory)
        assert 0 < len(kept) < len(whole)
        assert kept == whole[-len(kept) :]
        assert memory.disk is not None
        assert memory.disk.lost_rows == len(whole) - len(kept)
        assert f"{len(whole) - len(kept)} fewer than before" in caplog.text
        assert memory.recorded is not None
        assert memory.recorded[0] == {STREAM: (20, 220)}
        memory.sample()
        memory.append_chunk(make_rows(1, 20, 0, 11))
        assert steps(memory) == [*kept, *((1, 20, i) for i in range(1, 11))]
        memory.close()
        caplog.clear()


def test_a_checkpoint_continues_without_the_rows_of_a_missing_file(tmp_path: Path, make_rows: Any) -> None:
    """The newest rows are those that the checkpoint was written with; older ones are missing."""
    memory = make(tmp_path, memory_size=1000, batch_size=64, priority={})
    for i in range(20):
        memory.append_chunk(make_rows(1, i, 0, 11, end="truncated"))
    memory.sample()
    state = memory.state_dict()
    memory.close()
    segments(tmp_path)[1].unlink()
    memory = make(tmp_path, memory_size=1000, batch_size=64, priority={})
    memory.load_state_dict(state)
    first = memory.written - len(memory)
    assert 0 < first < memory.written
    for _ in range(20):
        assert memory.sample()[6]["indices"].min() >= first
    memory.close()


@settings(
    max_examples=60 if os.environ.get("FULL_TESTS") == "1" else 20,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(st.data())
def test_files_of_any_bytes_open_or_are_the_documented_error(
    tmp_path_factory: pytest.TempPathFactory, make_rows: Any, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("fuzzed")
    memory = make(folder)
    for i in range(12):
        memory.append_chunk(make_rows(1, i, 0, 8))
    memory.close()
    damage_some(folder, data)
    try:
        memory = make(folder)
    except StorageError:
        return
    if len(memory):
        memory.sample()
    memory.append_chunk(make_rows(1, 50, 0, 3))
    memory.close()


def one_file(folder: Path, make_rows: Any) -> Path:
    """The only file of a memory that was closed with 20 transitions."""
    memory = make(folder)
    memory.append_chunk(make_rows(1, 0, 0, 21))
    memory.commit({})
    memory.close()
    (path,) = segments(folder)
    return path


def test_an_impossible_row_number_is_the_documented_error(tmp_path: Path, make_rows: Any) -> None:
    path = one_file(tmp_path, make_rows)
    data = path.read_bytes()
    assert data.count(rows_note(0, 20, b"")) == 1
    path.write_bytes(mend(data.replace(rows_note(0, 20, b""), rows_note(1 << 61, 20, b""))))
    with pytest.raises(StorageError, match=r"replay row 2305843009213693952, which is too large for a memory"):
        make(tmp_path)


@pytest.mark.parametrize("steps", [b"\x81\x00", b"\x92\xc0"], ids=["a mapping", "no number"])
def test_impossible_steps_are_the_documented_error(tmp_path: Path, make_rows: Any, steps: bytes) -> None:
    path = one_file(tmp_path, make_rows)
    data = path.read_bytes()
    assert b"\xa5steps\x92\x01" in data
    path.write_bytes(mend(data.replace(b"\xa5steps\x92\x01", b"\xa5steps" + steps)))
    with pytest.raises(StorageError, match="transitions of impossible steps"):
        make(tmp_path)


def test_rows_without_a_description_are_the_documented_error(tmp_path: Path) -> None:
    memory = make(tmp_path)
    memory.commit({b"s" * 16: (1, 20)})
    memory.close()
    (path,) = segments(tmp_path)
    data = path.read_bytes()
    assert data.count(rows_note(0, 0, b"")) >= 1
    at = data.rindex(rows_note(0, 0, b""))
    path.write_bytes(mend(data[:at] + rows_note(0, 7, b"") + data[at + 12 :]))
    with pytest.raises(StorageError, match="holds 7 rows, and its head does not describe them"):
        make(tmp_path)


def test_a_folder_has_one_trainer(tmp_path: Path) -> None:
    memory = make(tmp_path)
    with pytest.raises(FolderLockedError, match=r"the replay memory.* is in use by process"):
        make(tmp_path)
    memory.close()
    with pytest.raises(StorageError, match="closed"):
        memory.commit({STREAM: (1, 1)})
    make(tmp_path).close()


def test_disk_needs_a_folder() -> None:
    with pytest.raises(ConfigError, match=r"memory\.folder"):
        ReplayMemory(storage="disk")
