"""A replay memory on disk: what must hold beyond what every memory does (`test_replay.py`)."""

from __future__ import annotations

import resource
import shutil
import signal
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.training.disk_memory import STREAM, make, segments, size_of, steps, whole
from tmrl_core.errors import StorageError, StorageFullError
from tmrl_core.samples import Chunk, EpisodeRecord, Segment
from tmrl_core.storage import RecordLog
from tmrl_core.training import ReplayMemory

pytestmark = pytest.mark.usefixtures("small_files")


# --- the same as in RAM, and again after opening ----------------------------------------------------------------------


def test_the_same_seed_samples_the_same_from_disk_and_ram_also_after_reopening(tmp_path: Path, make_rows: Any) -> None:
    ram, disk = ReplayMemory(memory_size=100, batch_size=8, seed=4), make(tmp_path)

    def alike() -> bool:
        return all(torch.equal(a, b) for a, b in zip(ram.sample(), disk.sample(), strict=True))

    for i in range(80):
        for stream in (1, 2):
            chunk = make_rows(stream, i // 10, i % 10 * 3, 3)
            assert ram.append_chunk(chunk) == disk.append_chunk(chunk)
        assert alike()
    assert len(segments(tmp_path)) > 3
    assert (len(disk), disk.written, steps(disk)) == (len(ram), ram.written, steps(ram))
    state, expected = disk.state_dict(), steps(disk)
    disk.close()
    disk = make(tmp_path, seed=77)
    assert steps(disk) == expected
    disk.load_state_dict(state)
    assert all(alike() for _ in range(40))
    # Both know the last row of each stream, so that an open episode goes on.
    for memory in (ram, disk):
        assert memory.append_chunk(make_rows(2, 7, 30, 3)) == 3
    assert all(alike() for _ in range(40))
    assert disk.disk is not None
    assert whole(disk.disk.folder)


def test_files_without_needed_rows_are_removed(tmp_path: Path, make_rows: Any) -> None:
    memory = make(tmp_path, memory_size=50)
    for episode in range(100):
        memory.append_chunk(make_rows(1, episode, 0, 6, end="truncated"))
        assert len(segments(tmp_path)) < 7
    assert steps(memory) == [(1, episode, step) for episode in range(90, 100) for step in range(1, 6)]
    memory.close()
    memory = make(tmp_path, memory_size=50)
    assert steps(memory)[0] == (1, 90, 1)
    assert (memory.written, len(memory)) == (500, 50)
    assert memory.disk is not None
    assert memory.disk.lost_rows == 0


def test_a_larger_capacity_loads_all_rows_on_disk(tmp_path: Path, make_rows: Any) -> None:
    memory = make(tmp_path, memory_size=1000)
    memory.append_chunk(make_rows(1, 0, 0, 51))
    memory.close()
    for size, length in ((20, 20), (1000, 50)):
        memory = make(tmp_path, memory_size=size)
        assert len(memory) == length
        memory.close()


def test_nested_observations_come_back(tmp_path: Path, make_rows: Any) -> None:
    def nested(rows: int) -> Any:
        return {"image": np.arange(rows * 4, dtype=np.uint8).reshape(rows, 2, 2), "pose": (np.arange(rows) * 2.0,)}

    memory = make(tmp_path)
    memory.append_chunk(make_rows(1, 0, 0, 5, observation=nested))
    memory.close()
    memory = make(tmp_path)
    prev_obs, _, _, obs, _, _, _ = memory.get_transition(2)
    assert obs["image"].tolist() == [[12, 13], [14, 15]]
    assert (prev_obs["pose"][0], obs["pose"][0]) == (4.0, 6.0)
    assert memory.sample()[0]["image"].dtype == torch.uint8
    with pytest.raises(ValueError, match="this memory holds"):
        memory.append_chunk(make_rows(1, 0, 5, 5))
    memory.close()


def test_batches_that_were_used_take_no_memory(tmp_path: Path, make_rows: Any) -> None:
    memory = make(tmp_path, batch_size=32)
    memory.append_chunk(make_rows(1, 0, 0, 5, observation=lambda rows: np.zeros((rows, 10_000), np.float32)))
    memory.sample()
    tracemalloc.start()
    for _ in range(20):
        memory.sample()  # 2.6 MB
    try:
        assert tracemalloc.get_traced_memory()[0] < 6e6
    finally:
        tracemalloc.stop()


def test_a_memory_without_transitions_keeps_offsets_and_values(tmp_path: Path, make_rows: Any) -> None:
    memory = make(tmp_path)
    memory.deferred = True
    memory.append_chunk(make_rows(1, 0, 0, 1))
    memory.commit({STREAM: (1, 1)}, samples=1)
    memory.close()
    memory = make(tmp_path)
    assert memory.recorded == ({STREAM: (1, 1)}, {"samples": 1})
    assert len(memory) == 0
    with pytest.raises(ValueError, match="no transition"):
        memory.sample()
    assert memory.append_chunk(make_rows(1, 0, 1, 2)) == 2
    assert steps(memory) == [(1, 0, 1), (1, 0, 2)]
    memory.close()
    assert len(make(tmp_path)) == 2


def test_a_memory_of_another_version_is_refused_with_both_versions(tmp_path: Path) -> None:
    log = RecordLog(tmp_path, "replay memory 2")
    log.append(b"note")
    log.close()
    with pytest.raises(StorageError, match="of the kind 'replay memory 2', not 'replay memory 1'"):
        make(tmp_path)


# --- commits ----------------------------------------------------------------------------------------------------------


def test_the_highest_numbers_that_a_worker_may_claim_come_back(tmp_path: Path, make_rows: Any) -> None:
    """They would make the folder unreadable for the next trainer."""

    def append(stream: int, episode: int, step: int) -> int:
        chunk: Chunk = make_rows(stream, 0, 1, 3)
        chunk.segments = (Segment(3, episode, step),)
        made: int = memory.append_chunk(chunk)
        return made

    highest, samples = 1 << 62, (1 << 32) - 1
    offset = highest, highest - 1 + samples  # after message 2^62 - 1
    memory = make(tmp_path)
    assert append(1, highest, 0) == append(2, 0, highest) == 2
    memory.commit({STREAM: offset})
    memory.close()
    memory = make(tmp_path)
    assert memory.recorded is not None
    assert memory.recorded[0] == {STREAM: offset}
    assert append(1, highest, 3) == 3, "joined to the row before it"
    assert len(memory) == 7
    memory.close()


def test_deferred_samples_and_offsets_count_from_the_commit_on(tmp_path: Path, make_rows: Any) -> None:
    memory = make(tmp_path)
    memory.deferred = True
    memory.append_chunk(make_rows(1, 0, 0, 4))
    assert (len(memory), memory.recorded) == (0, None)
    shutil.copytree(tmp_path, tmp_path / "before")
    memory.commit({STREAM: (1, 4)}, samples=4)
    memory.append_chunk(make_rows(1, 0, 4, 2))
    memory.commit({STREAM: (2, 6)}, samples=6)
    memory.commit({bytes(16): (9, 9)})  # a message that was refused: a mark without samples
    assert len(memory) == 5
    memory.close()
    assert make(tmp_path / "before").recorded is None
    memory = make(tmp_path)
    assert memory.recorded == ({STREAM: (2, 6), bytes(16): (9, 9)}, {"samples": 6})
    assert len(memory) == 5


def test_rows_without_transitions_do_not_fill_the_disk(
    tmp_path: Path, make_rows: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They let no file go. Compressed, one large observation takes 139 bytes on the wire."""
    monkeypatch.setattr("tmrl_core.training.memories.disk_rows.MAX_STATE_BYTES", 50_000)

    def append(stream: int, episode: int, step: int, rows: int, end: str | None = None) -> int:
        chunk: Chunk = make_rows(stream, episode, step, rows, end=end)
        chunk.observation = np.zeros((rows, 1_000), np.uint8)
        made: int = memory.append_chunk(chunk)
        return made

    memory = make(tmp_path, memory_size=40)
    assert append(1, 0, 0, 2) == 1
    assert sum(append(1, episode, 0, 1) for episode in range(1, 500)) == 0
    assert memory.disk is not None
    assert size_of(memory.disk.folder) < 300_000, "of 500 last rows of 1,000 bytes"
    for episode in range(100):
        assert append(2, episode, 0, 2, "truncated") == 1
    append(1, 500, 0, 1)
    memory.close()
    memory = make(tmp_path, memory_size=40)
    assert append(1, 500, 1, 1) == 1, "last rows are written again once files have gone"
    memory.close()


def test_statistics_come_back(tmp_path: Path, make_rows: Any, make_buffer: Any) -> None:
    memory = make(tmp_path)
    memory.append(make_buffer([make_rows(1, 0, 0, 4)], [EpisodeRecord("", -7.5, 4, "train", "truncated")]))
    memory.close()
    assert make(tmp_path).stat_train_return == -7.5


def test_every_file_holds_the_state_of_every_stream(tmp_path: Path, make_rows: Any) -> None:
    memory = make(tmp_path, memory_size=50)
    memory.deferred = True
    for stream in range(1, 6):
        memory.append_chunk(make_rows(stream, 0, 0, 2))
        memory.commit({bytes([stream]) * 16: (stream, 2)}, samples=2 * stream)
    for i in range(40):  # the first files go
        memory.append_chunk(make_rows(9, i, 0, 9, end="terminated"))
        memory.commit({bytes([9]) * 16: (i, i)}, samples=i)
    assert segments(tmp_path)[0].stem != "000000000001"
    memory.close()
    memory = make(tmp_path, memory_size=50)
    assert memory.recorded is not None
    assert [memory.recorded[0][bytes([stream]) * 16] for stream in range(1, 6)] == [(i, 2) for i in range(1, 6)]
    for stream in range(1, 6):
        assert memory.append_chunk(make_rows(stream, 0, 2, 1)) == 1


# --- a full disk ------------------------------------------------------------------------------------------------------


class FullDisk:
    """While it is entered, no file may grow past `size`."""

    def __init__(self, size: int) -> None:
        self._size = size

    def __enter__(self) -> None:
        self._limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        self._handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (self._size, self._limits[1]))

    def __exit__(self, *_: object) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, self._limits)
        signal.signal(signal.SIGXFSZ, self._handler)


def test_a_full_disk_leaves_the_memory_as_it_was(tmp_path: Path, make_rows: Any) -> None:
    memory = make(tmp_path)
    memory.append_chunk(make_rows(1, 0, 0, 3))
    with FullDisk(100):
        for _ in range(2):
            with pytest.raises(StorageFullError, match="Make room"):
                memory.append_chunk(make_rows(1, 0, 3, 3))
            assert (len(memory), memory.written) == (2, 2)
            memory.sample()
    assert memory.append_chunk(make_rows(1, 0, 3, 3)) == 3
    assert steps(memory) == [(1, 0, i) for i in range(1, 6)]
