"""A replay memory on disk: what must hold beyond what every memory does (`test_replay.py`)."""

from __future__ import annotations

import random
import resource
import shutil
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tmrl_core.errors import CheckpointError, ConfigError, FolderLockedError, StorageError, StorageFullError
from tmrl_core.networking.delivery import Mark, Received
from tmrl_core.networking.links import LinkSettings, TrainerLink
from tmrl_core.samples import Buffer, EpisodeRecord
from tmrl_core.training import CheckpointStore, ReplayMemory, SacAgent
from tmrl_core.training.delivery_log import DeliveryLog
from tmrl_core.training.interface import LocalInterface
from tmrl_core.training.offline import TrainingOffline

SPACES = (gym.spaces.Box(-10, 10, (3,), np.float32), gym.spaces.Box(-1, 1, (1,), np.float32))
STREAM = bytes([1]) * 16


@pytest.fixture(autouse=True)
def small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new file every few records."""
    monkeypatch.setattr("tmrl_core.training.disk_rows.MIN_SEGMENT_BYTES", 2000)
    monkeypatch.setattr("tmrl_core.training.disk_rows.MAX_SEGMENT_BYTES", 2000)


def make(folder: Path, **kwargs: Any) -> ReplayMemory:
    return ReplayMemory(**{"memory_size": 100, "batch_size": 8, "seed": 4, **kwargs}, storage="disk", folder=folder)


def steps(memory: ReplayMemory) -> list[tuple[int, ...]]:
    """(stream, episode, step) of every transition's end, oldest first; each must belong to what came before it."""
    found = []
    for item in range(len(memory)):
        prev_obs, _, _, obs, _, _, _ = memory.get_transition(item)
        assert prev_obs[:2].tolist() == obs[:2].tolist()
        assert prev_obs[2] + 1 == obs[2]
        found.append(tuple(obs.astype(int).tolist()))
    return found


def segments(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.seg"))


# --- the same as in RAM, and again after opening ----------------------------------------------------------------------


def test_the_same_seed_draws_the_same_from_disk_and_ram_also_after_opening_again(
    tmp_path: Path, make_rows: Any
) -> None:
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
    assert disk.disk.verify() == []


def test_files_whose_rows_have_left_the_memory_are_removed(tmp_path: Path, make_rows: Any) -> None:
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


def test_a_larger_capacity_finds_what_the_disk_has(tmp_path: Path, make_rows: Any) -> None:
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


def test_a_memory_without_a_transition_keeps_what_it_was_told(tmp_path: Path, make_rows: Any) -> None:
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


# --- commits ----------------------------------------------------------------------------------------------------------


def test_deferred_samples_count_with_the_commit_and_their_marks_with_them(tmp_path: Path, make_rows: Any) -> None:
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


def test_statistics_come_back(tmp_path: Path, make_rows: Any, make_buffer: Any) -> None:
    memory = make(tmp_path)
    memory.append(make_buffer([make_rows(1, 0, 0, 4)], [EpisodeRecord("", -7.5, 4, "train", "truncated")]))
    memory.close()
    assert make(tmp_path).stat_train_return == -7.5


def test_the_state_of_every_stream_stands_in_every_file(tmp_path: Path, make_rows: Any) -> None:
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


# --- after a crash ----------------------------------------------------------------------------------------------------


def test_a_record_that_is_cut_anywhere_is_as_if_it_had_never_been(
    tmp_path: Path, make_rows: Any, caplog: pytest.LogCaptureFixture
) -> None:
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


WRITER = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
import numpy as np
from test_disk_memory_child import run
run(Path(sys.argv[1]))
"""

CHILD = '''
"""A trainer that says what it has acknowledged. Its rows are numbered."""
import gymnasium as gym
import numpy as np
from tmrl_core.samples import Chunk, Segment
from tmrl_core.training import CheckpointStore, ReplayMemory, TrainingOffline, disk_rows
from tmrl_core.training.agent import TrainingAgent

disk_rows.MIN_SEGMENT_BYTES = disk_rows.MAX_SEGMENT_BYTES = 20_000
STREAM = bytes([1]) * 16
SPACES = (gym.spaces.Box(-10, 10, (3,), np.float32), gym.spaces.Box(-1, 1, (1,), np.float32))

class Agent(TrainingAgent):
    def train(self, batch): return {}
    def get_actor(self): return None

def rows(first, count):
    steps = np.arange(first, first + count)
    columns = np.stack([np.ones(count), np.zeros(count), steps], 1).astype(np.float32)
    flags = np.zeros(count, bool)
    return Chunk(rows=count, action=steps[:, None].astype(np.float32), action_present=steps > 0, observation=columns,
                 reward=steps.astype(np.float64), terminated=flags, truncated=flags,
                 segments=(Segment(count, 0, first, 1, 1),), stream=STREAM)

def run(folder):
    def memory(nb_steps, device):
        return ReplayMemory(nb_steps=nb_steps, memory_size=1000, storage="disk", folder=folder / "memory")
    def make():
        return TrainingOffline(SPACES, memory, Agent)
    store = CheckpointStore(folder / "checkpoint")
    training = store.restore(make) or make()
    marks = training.delivery["marks"]
    number, position = marks.get(STREAM, (0, 0))
    assert training.total_samples == position, (training.total_samples, position)
    training.memory.deferred = True
    print("open", number, flush=True)
    while True:
        count = 1 + number * 7 % 40
        training.memory.append_chunk(rows(position, count))
        number, position = number + 1, position + count
        training.memory.commit({STREAM: (number, position)}, samples=position)
        training.total_samples = position
        training.delivery = {"incarnation": 0, "counter": 0, "marks": {STREAM: (number, position)}}
        print(number, flush=True)
        if number % 50 == 0:
            store.save(training)
'''


def test_a_killed_trainer_has_lost_and_doubled_nothing_that_it_acknowledged(tmp_path: Path, full: bool) -> None:
    (tmp_path / "test_disk_memory_child.py").write_text(CHILD)
    generator = random.Random(0)
    said = 0
    for _ in range(20 if full else 3):
        command = [sys.executable, "-c", WRITER, str(tmp_path / "run"), str(tmp_path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None
            opened = child.stdout.readline().split()
            assert opened, child.stderr and child.stderr.read()
            assert int(opened[1]) >= said, "an acknowledged message is not there"
            for _ in range(generator.randrange(20, 300)):
                said = int(child.stdout.readline())
            child.send_signal(signal.SIGKILL)
            rest = child.stdout.read().splitlines(keepends=True)
            said = max([said, *(int(line) for line in rest if line.endswith("\n"))])
        memory = make(tmp_path / "run" / "memory", memory_size=1000)
        assert memory.recorded is not None
        (number, position) = memory.recorded[0][STREAM]
        assert number in (said, said + 1)
        assert memory.recorded[1]["samples"] == position == sum(1 + i * 7 % 40 for i in range(number))
        # All that the marks speak of is there once, in order: the newest thousand of it, to be exact.
        assert memory.written == position - 1
        assert steps(memory) == [(1, 0, i) for i in range(position - len(memory), position)]
        memory.close()


def test_damage_in_an_older_file_costs_the_rows_up_to_it_and_is_said(
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
        data[data.index(b"REC2", len(data) // 2) if kind == "flipped" else 0] ^= 1
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


def test_a_changed_row_in_an_older_file_is_found_by_verify(tmp_path: Path, make_rows: Any) -> None:
    memory = make(tmp_path, memory_size=1000)
    for i in range(20):
        memory.append_chunk(make_rows(1, i, 0, 11, end="truncated"))
    memory.close()
    first = segments(tmp_path)[0]
    data = bytearray(first.read_bytes())
    data[-20] ^= 1
    first.write_bytes(data)
    memory = make(tmp_path, memory_size=1000)
    assert len(memory) == 200
    assert memory.disk is not None
    (found,) = memory.disk.verify()
    assert first.name in found


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_files_of_any_bytes_open_or_are_the_documented_error(
    tmp_path_factory: pytest.TempPathFactory, make_rows: Any, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("fuzzed")
    memory = make(folder)
    for i in range(12):
        memory.append_chunk(make_rows(1, i, 0, 8))
    memory.close()
    for path in data.draw(st.lists(st.sampled_from(segments(folder)), max_size=3)):
        content = bytearray(path.read_bytes())
        for _ in range(data.draw(st.integers(1, 3))):
            at = data.draw(st.integers(0, len(content) - 1))
            content[at : at + 2] = data.draw(st.binary(max_size=4))
        path.write_bytes(content)
    try:
        memory = make(folder)
    except StorageError:
        return
    if len(memory):
        memory.sample()
    memory.append_chunk(make_rows(1, 50, 0, 3))
    memory.close()


def test_older_files_are_checked_with_the_appends_that_follow_and_damaged_rows_let_go(
    tmp_path: Path, make_rows: Any, caplog: pytest.LogCaptureFixture
) -> None:
    memory = make(tmp_path, memory_size=1000)
    for i in range(20):
        memory.append_chunk(make_rows(1, i, 0, 11, end="truncated"))
    whole = steps(memory)
    memory.close()
    second = segments(tmp_path)[1]
    data = bytearray(second.read_bytes())
    data[-20] ^= 1
    second.write_bytes(data)
    memory = make(tmp_path, memory_size=1000)
    for i in range(20, 23):
        memory.append_chunk(make_rows(1, i, 0, 2, end="truncated"))
    kept = steps(memory)
    assert kept[-3:] == [(1, i, 1) for i in range(20, 23)]
    assert kept[:-3] == whole[-len(kept[:-3]) :]
    assert 0 < len(kept) - 3 < 180
    assert f"{second} is damaged" in caplog.text
    assert memory.disk is not None
    assert memory.disk.lost_rows == 203 - len(kept)
    assert caplog.text.count("is damaged") == 1


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


class Kept(LocalInterface):
    """Hands over one message each time that it is asked; what is committed is written down first."""

    def __init__(self, memory: ReplayMemory, make_rows: Any) -> None:
        super().__init__()
        self.memory = memory
        self.number = 0
        self.acknowledged = 0
        self._make_rows = make_rows
        memory.deferred = True

    def retrieve_buffer(self) -> Buffer:
        self.commit()
        buffer = Buffer(maxlen=None)
        buffer.extend([self._make_rows(1, 0, 4 * self.number, 4)], [])
        self.number += 1
        return buffer

    def commit(self) -> None:
        if self.number > self.acknowledged:
            self.memory.commit({STREAM: (self.number, 4 * self.number)}, samples=4 * self.number)
        self.acknowledged = self.number


def make_training(folder: Path, storage: Any = "disk", agent: Any = SacAgent) -> TrainingOffline:
    def make_memory(nb_steps: int, device: Any) -> ReplayMemory:
        where = {"storage": "disk", "folder": folder} if storage == "disk" else {}
        return ReplayMemory(nb_steps=nb_steps, device=device, memory_size=60, batch_size=16, **where)

    return TrainingOffline(
        SPACES,
        make_memory,
        partial(agent, model_kwargs={"hidden_sizes": (8, 8)}),
        epochs=6,
        rounds=2,
        steps=5,
        update_model_interval=3,
        update_buffer_interval=2,
        device="cpu",
    )


def test_while_the_disk_is_full_nothing_is_acknowledged_nor_taken_and_it_is_said(
    tmp_path: Path, make_rows: Any, caplog: pytest.LogCaptureFixture
) -> None:
    training = make_training(tmp_path)
    interface = Kept(training.memory, make_rows)
    training.update_buffer(interface)
    with FullDisk(100):
        for _ in range(5):
            training.update_buffer(interface)
        assert (interface.number, interface.acknowledged) == (2, 1)
        assert caplog.text.count("samples cannot be kept") == 1
        assert "Make room" in caplog.text
        assert len(training.memory) == 3
    training.start_training = 1000
    training.update_buffer(interface)
    assert "can be written again" in caplog.text
    assert (interface.number, interface.acknowledged) == (3, 3)
    assert steps(training.memory) == [(1, 0, i) for i in range(1, 12)]
    assert training.total_samples == 12


# --- checkpoints ------------------------------------------------------------------------------------------------------


def weights(training: TrainingOffline) -> list[torch.Tensor]:
    return [*training.agent.model.state_dict().values(), *training.agent.target_critics.state_dict().values()]


@pytest.mark.parametrize("through_store", [True, False])
def test_resuming_equals_the_uninterrupted_run_bit_for_bit_and_copies_no_row(
    tmp_path: Path, make_rows: Any, through_store: bool
) -> None:
    torch.manual_seed(1)
    training = make_training(tmp_path / "memory")
    interface = Kept(training.memory, make_rows)
    for _ in range(3):
        training.run_epoch(interface)
    CheckpointStore(tmp_path / "store").save(training, wait=True)
    training.save(tmp_path / "alone")
    assert list(tmp_path.glob("*/**/rows-*")) == []
    shutil.copytree(tmp_path / "memory", tmp_path / "copy")
    number = interface.number
    expected = [row for _ in range(3) for row in training.run_epoch(interface)]

    torch.manual_seed(99)
    if through_store:
        restored = CheckpointStore(tmp_path / "store").restore(lambda: make_training(tmp_path / "copy"))
        assert restored is not None
    else:
        restored = make_training(tmp_path / "copy")
        restored.load(tmp_path / "alone")
    interface = Kept(restored.memory, make_rows)
    interface.number = interface.acknowledged = number
    rows = [row for _ in range(3) for row in restored.run_epoch(interface)]
    assert all(torch.equal(a, b) for a, b in zip(weights(training), weights(restored), strict=True))
    for a, b in zip(expected, rows, strict=True):
        assert [a[name] for name in ("loss_critic", "samples_received", "memory_len")] == [
            b[name] for name in ("loss_critic", "samples_received", "memory_len")
        ]


def test_the_log_wins_over_an_older_checkpoint(tmp_path: Path, make_rows: Any) -> None:
    training = make_training(tmp_path / "memory")
    interface = Kept(training.memory, make_rows)
    training.run_epoch(interface)
    store = CheckpointStore(tmp_path / "store")
    training.delivery["marks"] = {STREAM: (interface.acknowledged, 0), b"o" * 16: (3, 4)}
    store.save(training, wait=True)
    saved = weights(training)[0].clone()
    training.run_epoch(interface)  # not saved
    expected = steps(training.memory)
    training.memory.close()
    restored = CheckpointStore(tmp_path / "store").restore(lambda: make_training(tmp_path / "memory"))
    assert restored is not None
    assert restored.epoch == 1
    assert torch.equal(weights(restored)[0], saved)
    assert steps(restored.memory) == expected
    assert restored.total_samples == 4 * interface.acknowledged
    assert restored.delivery["marks"] == {
        STREAM: (interface.acknowledged, 4 * interface.acknowledged),
        b"o" * 16: (3, 4),
    }
    restored.run_epoch(LocalInterface())


def test_without_a_checkpoint_the_marks_come_from_the_log(tmp_path: Path, make_rows: Any) -> None:
    training = make_training(tmp_path)
    training.update_buffer(Kept(training.memory, make_rows))
    training.memory.close()
    again = make_training(tmp_path)
    assert again.delivery["marks"] == {STREAM: (1, 4)}
    assert again.total_samples == 4


def test_a_memory_that_lacks_what_the_checkpoint_knew_says_so(
    tmp_path: Path, make_rows: Any, caplog: pytest.LogCaptureFixture
) -> None:
    training = make_training(tmp_path / "memory")
    training.memory.append_chunk(make_rows(1, 0, 0, 30))
    training.save(tmp_path / "c")
    training.memory.close()
    shutil.rmtree(tmp_path / "memory")
    other = make_training(tmp_path / "memory")
    other.load(tmp_path / "c")
    assert "holds 0 transitions of all that were ever written, the checkpoint knew of 29" in caplog.text
    assert len(other.memory) == 0
    assert other.memory.append_chunk(make_rows(1, 0, 0, 5)) == 4


def test_a_run_in_ram_goes_on_on_disk_but_not_the_other_way(tmp_path: Path, make_rows: Any) -> None:
    torch.manual_seed(0)
    training = make_training(tmp_path / "memory", "ram")
    for i in range(30):
        training.memory.append_chunk(make_rows(1, i // 10, i % 10 * 3, 3))
    training.delivery["marks"] = {STREAM: (7, 8)}
    training.memory.sample()
    training.save(tmp_path / "ram")
    moved = make_training(tmp_path / "memory")
    moved.load(tmp_path / "ram")
    for _ in range(40):
        a, b = training.memory.sample(), moved.memory.sample()
        assert all(torch.equal(x, y) for x, y in zip(a, b, strict=True))
    assert moved.delivery["marks"] == {STREAM: (7, 8)}
    expected = steps(training.memory)
    moved.memory.close()
    memory = make(tmp_path / "memory", memory_size=60)
    assert steps(memory) == expected
    memory.close()
    moved = make_training(tmp_path / "memory")
    moved.save(tmp_path / "disk")
    with pytest.raises(CheckpointError, match=r"memory\.storage: disk"):
        make_training(tmp_path / "memory", "ram").load(tmp_path / "disk")


# --- what is written down with messages -------------------------------------------------------------------------------


def test_marks_gaps_and_refusals_are_written_before_they_are_acknowledged(tmp_path: Path) -> None:
    training = make_training(tmp_path)
    training.total_samples = 5
    link = TrainerLink(LinkSettings(host="127.0.0.1", port=1, transport="local"), name="t", run="r", incarnation=4)
    receiver = link._trainer.receiver(STREAM)
    log = DeliveryLog(training, link)
    received = []
    # Number, samples, and the position that the worker gave it: it dropped message 1, with 10 samples.
    for number, samples, position in ((0, 2, 0), (2, 3, 12)):
        receiver.next_number = number + 1
        receiver._position = position + samples
        receiver._uncommitted.append((number, position + samples))
        received.append(Received(STREAM, number, samples, memoryview(b""), 100))
    log.keep(received)
    assert link.marks[STREAM] == Mark(0, 0), "nothing is acknowledged yet"
    training.memory.close()
    again = make_training(tmp_path)
    assert again.delivery == {
        "incarnation": 4,
        "counter": 0,
        "marks": {STREAM: (3, 15)},
        "gap_messages": 1,
        "gap_samples": 10,
    }
    assert again.total_samples == 5
