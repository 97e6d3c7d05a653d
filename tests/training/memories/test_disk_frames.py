"""Frames in the files of a memory on disk: what must hold beyond what `test_frame_stack_memory.py` says of both."""

from __future__ import annotations

import os
import resource
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.training.disk_memory import damage_some, size_of, whole
from tmrl_core.errors import ConfigError, StorageError, StorageFullError
from tmrl_core.training import FrameStackMemory, ReplayMemory
from tmrl_core.training.memories.disk_frames import FramesNote

K, SHAPE = 4, (5, 3)
"""15 bytes a frame: no multiple of 8."""
FILE_BYTES = 4000
STREAM = bytes([1]) * 16


@pytest.fixture(autouse=True)
def small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new file every few records."""
    monkeypatch.setattr("tmrl_core.training.memories.disk_rows.MIN_SEGMENT_BYTES", FILE_BYTES)
    monkeypatch.setattr("tmrl_core.training.memories.disk_rows.MAX_SEGMENT_BYTES", FILE_BYTES)


def make(folder: Path | None, **kwargs: Any) -> FrameStackMemory:
    on_disk: Any = {} if folder is None else {"storage": "disk", "folder": folder}
    return FrameStackMemory(**{"memory_size": 100, "batch_size": 8, "seed": 4, "frame_stack": K, **kwargs}, **on_disk)


def stacks(episode: int, first: int, rows: int) -> Any:
    """An episode's observations: frames that say which they are, padded as after a reset."""
    numbers = np.maximum(np.arange(first, first + rows)[:, None] + np.arange(1 - K, 1), 0)
    frames = np.zeros((rows, K, *SHAPE), np.uint8)
    frames[..., 0, 0], frames[..., 0, 1], frames[..., 4, 2] = episode, numbers, 7
    return {"image": frames, "sound": frames[..., 0].astype(np.float32), "speed": np.ones((rows, 2), np.float32)}


def chunk(make_rows: Any, stream: int, episode: int, first: int, rows: int, end: str | None = None) -> Any:
    return make_rows(stream, episode, first, rows, end=end, observation=lambda _: stacks(episode, first, rows))


def play(memory: FrameStackMemory, make_rows: Any, episodes: range, length: int = 30, streams: int = 2) -> None:
    for episode in episodes:
        for first in range(0, length, 5):
            for stream in range(1, streams + 1):
                end = "truncated" if first + 5 >= length else None
                memory.append_chunk(chunk(make_rows, stream, episode, first, 5, end))


def steps(memory: FrameStackMemory) -> list[tuple[int, int]]:
    """(episode, step) of every transition's end, oldest first; all of its frames must be the right ones."""
    found = []
    for item in range(len(memory)):
        prev_obs, _, rew, obs, _, _, _ = memory.get_transition(item)
        episode, step = int(obs["image"][-1, 0, 0]), int(rew)
        for seen, expected in ((prev_obs, stacks(episode, step - 1, 1)), (obs, stacks(episode, step, 1))):
            for name, values in expected.items():
                assert seen[name].dtype == values.dtype
                assert np.array_equal(seen[name], values[0]), f"{name} of step {step} of episode {episode}"
        found.append((episode, step))
    return found


def files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.seg"))


def same(left: Any, right: Any) -> bool:
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    if isinstance(left, tuple | list):
        return len(left) == len(right) and all(map(same, left, right))
    return bool(np.array_equal(np.asarray(left), np.asarray(right)))


@pytest.mark.parametrize(
    ("priority", "length"),
    [
        (None, 30),
        ({}, 5),
        pytest.param(None, 5, marks=pytest.mark.full),
        pytest.param({}, 30, marks=pytest.mark.full),
    ],
)
def test_the_same_seed_samples_the_same_from_disk_and_ram_also_after_reopening(
    tmp_path: Path, make_rows: Any, priority: Any, length: int
) -> None:
    ram, disk = make(None, priority=priority), make(tmp_path, priority=priority)

    def alike() -> bool:
        return same(ram.sample(), disk.sample())

    for episodes in range(0, 150, 30):
        for memory in (ram, disk):
            play(memory, make_rows, range(episodes // length, (episodes + 30) // length), length)
        assert (len(disk), disk.written, steps(disk)) == (len(ram), ram.written, steps(ram))
        assert alike()
    for memory in (ram, disk):  # an open episode
        memory.append_chunk(chunk(make_rows, 2, 200, 0, 3))
    assert len(files(tmp_path)) > 3
    state, expected = disk.state_dict(), steps(disk)
    disk.close()
    disk = make(tmp_path, seed=77, priority=priority)
    assert steps(disk) == expected == steps(ram)
    disk.load_state_dict(state)
    assert all(alike() for _ in range(10))
    for memory in (ram, disk):
        assert memory.append_chunk(chunk(make_rows, 2, 200, 3, 3)) == 3
        play(memory, make_rows, range(201, 201 + 60 // length), length)
    assert steps(disk) == steps(ram)
    assert all(alike() for _ in range(10))
    assert disk.disk is not None
    assert whole(disk.disk.folder)
    disk.close()


def test_a_transition_takes_about_one_frame_and_old_files_go(
    tmp_path: Path, make_rows: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As at full size: the head of a file and of a record are little against what they hold.
    monkeypatch.setattr("tmrl_core.training.memories.disk_rows.MIN_SEGMENT_BYTES", 1 << 18)
    monkeypatch.setattr("tmrl_core.training.memories.disk_rows.MAX_SEGMENT_BYTES", 1 << 18)
    memory = make(tmp_path, memory_size=1000)
    generator = np.random.default_rng(0)
    for episode in range(15):
        frames = generator.integers(0, 256, (201 + K - 1, 64, 64)).astype(np.uint8)
        frames[: K - 1] = frames[K - 1]
        whole = np.stack([frames[i : i + K] for i in range(201)])
        for first in range(0, 201, 67):
            part = whole[first : first + 67]
            end = "terminated" if first == 134 else None
            memory.append_chunk(make_rows(1, episode, first, 67, end=end, observation=lambda _, part=part: part))
    assert len(memory) == 1000
    assert memory.disk is not None
    # A record more than what is held, of about fifteen: of a full-sized memory it is a file, of sixty-four.
    assert size_of(memory.disk.folder) / 1000 <= (1.1 + 1 / 15) * 64 * 64
    assert int(files(tmp_path)[0].stem) > 10
    memory.close()


def test_frames_of_resets_alone_leave_with_their_files(tmp_path: Path, make_rows: Any) -> None:
    """Without a first transition, no row would ever let a file go."""
    memory = make(tmp_path, memory_size=40)
    for episode in range(300):
        memory.append_chunk(chunk(make_rows, 1, episode % 250, 0, 1))
    assert len(memory) == 0
    assert len(files(tmp_path)) < 50, "of 150"
    memory.append_chunk(chunk(make_rows, 2, 0, 0, 5))
    memory.close()
    memory = make(tmp_path, memory_size=40)
    assert len(memory) == 4
    assert same(memory.get_transition(3)[3], {name: leaf[4] for name, leaf in stacks(0, 0, 5).items()})
    memory.close()


def test_a_truncated_record_has_no_effect(tmp_path: Path, make_rows: Any, caplog: pytest.LogCaptureFixture) -> None:
    memory = make(tmp_path / "whole")
    memory.deferred = True
    for i in range(3):
        memory.append_chunk(chunk(make_rows, 1, 0, 3 * i, 3))
        memory.commit({STREAM: (i + 1, 3 * i + 3)}, samples=3 * i + 3)
        if i == 1:
            good = files(tmp_path / "whole")[-1].stat().st_size
    memory.close()
    last = files(tmp_path / "whole")[-1]
    for length in range(good, last.stat().st_size, 13):
        folder = tmp_path / "cut"
        shutil.copytree(tmp_path / "whole", folder)
        with (folder / last.name).open("r+b") as file:
            file.truncate(length)
        memory = make(folder)
        assert memory.recorded == ({STREAM: (2, 6)}, {"samples": 6})
        assert steps(memory) == [(0, i) for i in range(1, 6)]
        assert memory.disk is not None
        assert memory.disk.torn_bytes == length - good
        assert ("were cut off" in caplog.text) == (length > good)
        assert memory.append_chunk(chunk(make_rows, 1, 0, 6, 3)) == 3, "the worker sends the message again"
        assert steps(memory) == [(0, i) for i in range(1, 9)]
        memory.close()
        shutil.rmtree(folder)
        caplog.clear()


def test_a_single_first_observation_is_restored(tmp_path: Path, make_rows: Any) -> None:
    memory = make(tmp_path)
    assert memory.append_chunk(chunk(make_rows, 1, 3, 0, 1)) == 0
    memory.close()
    memory = make(tmp_path)
    assert len(memory) == 0
    assert memory.append_chunk(chunk(make_rows, 1, 3, 1, 2)) == 2
    assert steps(memory) == [(3, 1), (3, 2)]
    memory.close()


def test_damage_in_an_older_file_removes_the_transitions_of_its_frames(
    tmp_path: Path, make_rows: Any, caplog: pytest.LogCaptureFixture
) -> None:
    memory = make(tmp_path / "whole", memory_size=1000)
    play(memory, make_rows, range(12))
    whole = steps(memory)
    memory.close()
    names = [path.name for path in files(tmp_path / "whole")]
    assert len(names) > 6
    for kind in ("flipped", "headless", "missing"):
        folder = tmp_path / kind
        shutil.copytree(tmp_path / "whole", folder)
        damaged = folder / names[len(names) // 2]
        data = bytearray(damaged.read_bytes())
        data[data.index(b"REC1", len(data) // 2) if kind == "flipped" else 0] ^= 1
        if kind == "missing":
            damaged.unlink()
        else:
            damaged.write_bytes(data)
        memory = make(folder, memory_size=1000)
        kept = steps(memory)
        assert 0 < len(kept) < len(whole)
        assert kept == whole[-len(kept) :]
        memory.sample()
        play(memory, make_rows, range(20, 21))
        assert steps(memory)[: len(kept)] == kept
        memory.close()


@contextmanager
def full_disk(size: int) -> Iterator[None]:
    """While it is entered, no file may grow past `size`."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)


@pytest.mark.parametrize("deferred", [False, True])
def test_a_full_disk_leaves_the_memory_as_it_was(tmp_path: Path, make_rows: Any, deferred: bool) -> None:
    memory = make(tmp_path)
    memory.append_chunk(chunk(make_rows, 1, 0, 0, 3))
    memory.deferred = deferred
    if deferred:
        memory.append_chunk(chunk(make_rows, 1, 0, 3, 3))
        with full_disk(100), pytest.raises(StorageFullError):
            memory.commit()
        assert steps(memory) == [(0, 1), (0, 2)]
        memory.commit()
    else:
        with full_disk(100):
            for _ in range(2):
                with pytest.raises(StorageFullError):
                    memory.append_chunk(chunk(make_rows, 1, 0, 3, 3))
                with pytest.raises(StorageFullError):
                    memory.append_chunk(chunk(make_rows, 2, 1, 0, 3))
                assert steps(memory) == [(0, 1), (0, 2)]
        assert memory.append_chunk(chunk(make_rows, 1, 0, 3, 3)) == 3
    assert steps(memory) == [(0, i) for i in range(1, 6)]
    memory.close()
    memory = make(tmp_path)
    assert steps(memory) == [(0, i) for i in range(1, 6)]
    memory.close()


def test_a_disk_that_is_full_after_any_byte_keeps_committed_rows(
    tmp_path: Path, make_rows: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("MIN_SEGMENT_BYTES", "MAX_SEGMENT_BYTES"):  # one file
        monkeypatch.setattr(f"tmrl_core.training.memories.disk_rows.{name}", 1 << 16)
    memory = make(tmp_path)
    memory.deferred = True
    memory.append_chunk(chunk(make_rows, 1, 0, 0, 3))
    memory.commit({STREAM: (1, 3)}, samples=3)
    (file,) = files(tmp_path)
    committed = file.read_bytes()
    memory.append_chunk(chunk(make_rows, 1, 0, 3, 3))
    with full_disk(1 << 30):
        for room in range(0, 10_000, 29):
            resource.setrlimit(resource.RLIMIT_FSIZE, (len(committed) + room, resource.RLIM_INFINITY))
            try:
                memory.commit({STREAM: (2, 6)}, samples=6)
                break
            except StorageFullError:
                assert file.read_bytes() == committed
                assert memory.recorded == ({STREAM: (1, 3)}, {"samples": 3})
                assert steps(memory) == [(0, 1), (0, 2)]
                memory.sample()
    assert room - 29 < file.stat().st_size - len(committed) <= room
    assert steps(memory) == [(0, i) for i in range(1, 6)]
    memory.close()
    memory = make(tmp_path)
    assert memory.recorded == ({STREAM: (2, 6)}, {"samples": 6})
    assert steps(memory) == [(0, i) for i in range(1, 6)]
    memory.close()


def test_a_folder_of_frame_stacks_stays_one(tmp_path: Path, make_rows: Any) -> None:
    memory = make(tmp_path / "stacks")
    play(memory, make_rows, range(1))
    memory.close()
    with pytest.raises(ConfigError, match=r"stacks of 4 frames, and memory\.frame_stack is 2"):
        make(tmp_path / "stacks", frame_stack=2)
    with pytest.raises(ConfigError, match="FrameStackMemory"):
        ReplayMemory(memory_size=100, storage="disk", folder=tmp_path / "stacks")
    plain = ReplayMemory(memory_size=100, storage="disk", folder=tmp_path / "plain")
    plain.append_chunk(make_rows(1, 0, 0, 5))
    plain.close()
    with pytest.raises(ConfigError, match="without stacks"):
        make(tmp_path / "plain")


@pytest.mark.parametrize(
    "note",
    [
        None,
        {},
        {"put": [[0, 1]], "needs": []},
        {"put": [[0, 1], [0, 1]], "needs": []},
        {"put": [[0, 1], [0, -1]], "needs": [[3, 0, 0]]},
        {"put": [[0, 1], [0, 1]], "needs": [[3, 0]]},
        {"put": [[0, 1], [0, 1]], "needs": [[3, 0, 0.5]]},
        {"put": 7, "needs": []},
    ],
)
def test_invalid_metadata_is_refused(note: Any) -> None:
    with pytest.raises(StorageError, match="invalid numbers of frames"):
        FramesNote.parse(note, 2, 3)


@settings(
    max_examples=30 if os.environ.get("FULL_TESTS") == "1" else 10,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(st.data())
def test_files_of_any_bytes_open_or_are_the_documented_error(
    tmp_path_factory: pytest.TempPathFactory, make_rows: Any, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("fuzzed")
    memory = make(folder)
    play(memory, make_rows, range(2), streams=1)
    memory.close()
    damage_some(folder, data)
    try:
        memory = make(folder)
    except StorageError:
        return
    if len(memory):
        memory.sample()
    play(memory, make_rows, range(50, 51), length=5, streams=1)
    memory.close()


def test_rows_of_a_damaged_older_file_are_still_read(tmp_path: Path, make_rows: Any) -> None:
    memory = make(tmp_path)
    play(memory, make_rows, range(2), streams=1)
    memory.close()
    path = files(tmp_path)[1]
    content = bytearray(path.read_bytes())
    content[1180:1182] = bytes(3)  # what follows is a byte further, numbers of frames too
    path.write_bytes(content)
    memory = make(tmp_path)
    for _ in range(10):
        memory.sample()
    memory.close()


def test_a_file_without_frames_is_removed_like_others(
    tmp_path: Path, make_rows: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Marks are written before there are frames where the first message was refused, or held episodes only."""
    monkeypatch.setattr("tmrl_core.training.memories.disk_rows.MAX_SEGMENT_BYTES", 2000)

    def make() -> FrameStackMemory:
        return FrameStackMemory(memory_size=20, frame_stack=2, storage="disk", folder=tmp_path)

    def stacks(rows: int) -> Any:
        return np.arange(rows * 6, dtype=np.uint8).reshape(rows, 2, 3)

    memory = make()
    memory.commit({bytes([1]) * 16: (1, 5)}, samples=0)
    memory.append_chunk(make_rows(1, 0, 0, 5, observation=stacks))
    memory.close()
    memory = make()
    for episode in range(1, 12):
        memory.append_chunk(make_rows(1, episode, 0, 9, observation=stacks))
    assert memory.written == 4 + 11 * 8
    assert 0 < len(memory) <= 20
    assert memory.recorded == ({bytes([1]) * 16: (1, 5)}, {"samples": 0})
    memory.close()
