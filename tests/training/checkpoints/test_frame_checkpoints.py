"""A training object whose memory holds each frame once: checkpoints, in RAM and on disk."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from tests.training import stacked_writer as writer
from tmrl_core.errors import CheckpointError
from tmrl_core.samples import Buffer
from tmrl_core.training import CheckpointStore, ReplayMemory, TrainingOffline
from tmrl_core.training.agent import TrainingAgent
from tmrl_core.training.interface import Delivery, LocalInterface


@pytest.fixture(autouse=True)
def small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new file every few records."""
    monkeypatch.setattr("tmrl_core.training.memories.disk_rows.MIN_SEGMENT_BYTES", writer.FILE_BYTES["frames"])
    monkeypatch.setattr("tmrl_core.training.memories.disk_rows.MAX_SEGMENT_BYTES", writer.FILE_BYTES["frames"])


class Watching(TrainingAgent):
    """Keeps all that it is trained on, and is surprised by what it sees."""

    wants_extras: ClassVar[bool] = True
    transient: ClassVar[frozenset[str]] = frozenset({"seen"})

    def __init__(self, observation_space: Any, action_space: Any, device: Any) -> None:
        super().__init__(observation_space, action_space, device)
        self.seen: list[Any] = []
        self.mean = torch.zeros(())
        self.td_error_B: torch.Tensor | None = None

    def train(self, batch: Any) -> dict[str, Any]:
        self.seen.append(batch)
        images = batch[3]["image"].float()
        self.mean = 0.9 * self.mean + 0.1 * images.mean()
        self.td_error_B = (images.mean(dim=(1, 2, 3)) - self.mean).abs()
        return {}

    def get_actor(self) -> Any:
        return None


class Sent(LocalInterface):
    """Hands over the messages one by one; on disk, each is committed before the next is asked for."""

    def __init__(self, memory: ReplayMemory, number: int = 0) -> None:
        super().__init__()
        self.memory = memory
        self.number = number
        memory.deferred = memory.disk is not None

    def receive(self) -> list[Delivery]:
        buffer = Buffer(maxlen=None)
        buffer.extend([writer.message(self.number)], [])
        self.number += 1
        return [Delivery(buffer.chunks, buffer.episodes)]

    def commit(self) -> None:
        self.memory.commit(writer.offsets_after(self.number), samples=writer.ROWS * self.number)


def make_training(folder: Path | None, seed: int, priority: Any) -> TrainingOffline:
    return TrainingOffline(
        writer.SPACES,
        lambda nb_steps, device: writer.make_memory(folder, nb_steps=nb_steps, seed=seed, priority=priority),
        Watching,
        epochs=9,
        rounds=2,
        steps=15,
        update_buffer_interval=2,
        device="cpu",
    )


def same(left: Any, right: Any) -> bool:
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    if isinstance(left, tuple):
        return len(left) == len(right) and all(map(same, left, right))
    return left.dtype == right.dtype and torch.equal(left, right)


@pytest.mark.parametrize(
    ("priority", "storage"),
    [
        pytest.param(None, "disk", id="uniform-disk"),
        pytest.param({}, "ram", id="prioritized-ram"),
        pytest.param(None, "ram", id="uniform-ram", marks=pytest.mark.full),
        pytest.param({}, "disk", id="prioritized-disk"),
    ],
)
def test_a_restored_trainer_samples_the_same_transitions(tmp_path: Path, storage: str, priority: Any) -> None:
    def folder(name: str) -> Path | None:
        return tmp_path / name if storage == "disk" else None

    training = make_training(folder("memory"), seed=4, priority=priority)
    interface = Sent(training.memory)
    for _ in range(2):
        training.run_epoch(interface)
    assert training.memory.written > writer.CAPACITY, "the oldest have not gone yet"
    CheckpointStore(tmp_path / "store").save(training, wait=True)
    if storage == "disk":
        shutil.copytree(tmp_path / "memory", tmp_path / "copy")
    number, before = interface.number, len(training.agent.seen)
    for _ in range(2):
        training.run_epoch(interface)

    restored = CheckpointStore(tmp_path / "store").restore(lambda: make_training(folder("copy"), 99, priority))
    assert restored is not None
    assert restored.epoch == 2
    assert restored.memory.written - len(restored.memory) > 0
    interface = Sent(restored.memory, number)
    for _ in range(2):
        restored.run_epoch(interface)
    drawn = training.agent.seen[before:]
    assert len(drawn) == len(restored.agent.seen) == 60
    assert all(map(same, drawn, restored.agent.seen))
    assert torch.equal(training.agent.mean, restored.agent.mean)
    for batch in restored.agent.seen[::7]:
        for row in range(restored.memory.batch_size):
            writer.check_transition(*({name: part[row] for name, part in batch[i].items()} for i in (0, 3)))
    for memory in (training.memory, restored.memory):
        memory.close()


def test_a_trainer_continues_with_frames_stored_after_its_checkpoint(tmp_path: Path) -> None:
    training = make_training(tmp_path / "memory", 4, None)
    interface = Sent(training.memory)
    training.run_epoch(interface)
    CheckpointStore(tmp_path / "store").save(training, wait=True)
    training.run_epoch(interface)  # and dies
    interface.commit()
    expected = [training.memory.get_transition(item) for item in range(len(training.memory))]
    training.memory.close()
    restored = CheckpointStore(tmp_path / "store").restore(lambda: make_training(tmp_path / "memory", 99, None))
    assert restored is not None
    assert restored.epoch == 1
    assert restored.delivery["marks"] == writer.offsets_after(interface.number)
    found = [restored.memory.get_transition(item) for item in range(len(restored.memory))]
    assert len(found) == len(expected)
    for left, right in zip(found, expected, strict=True):
        assert all(np.array_equal(left[i][name], right[i][name]) for i in (0, 3) for name in ("image", "sound"))
    restored.memory.close()


def in_ram(epochs: int) -> tuple[TrainingOffline, Sent]:
    training = make_training(None, seed=4, priority={})
    interface = Sent(training.memory)
    for _ in range(epochs):
        training.run_epoch(interface)
    return training, interface


def test_checkpoints_of_a_memory_in_ram_write_each_frame_once(tmp_path: Path) -> None:
    training, interface = in_ram(1)
    memory, store = training.memory, CheckpointStore(tmp_path)
    frame_bytes = writer.SHAPE[0] * writer.SHAPE[1]
    before = written = 0
    for _ in range(3):
        number = store.save(training, wait=True)
        assert sum(file.stat().st_size for file in (tmp_path / str(number)).iterdir()) < 50_000
        shared = sum(file.stat().st_size for file in (tmp_path / "replay").iterdir())
        frames = dict(memory.state_dict()["frames"])[0]["held"].written
        if before:
            assert (frames - written) * frame_bytes < shared - before < 1.2 * (frames - written) * frame_bytes
            assert frames - written < 20 < len(memory)
        before, written = shared, frames
        for _ in range(2):
            memory.append_chunk(writer.message(interface.number))
            interface.number += 1


def test_transitions_whose_frames_are_damaged_are_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tmrl_core.training.memories.row_files.RECORD_BYTES", 20_000)
    training, _ = in_ram(2)
    CheckpointStore(tmp_path).save(training, wait=True)
    largest = max((tmp_path / "replay").glob("rows-*.seg"), key=lambda file: file.stat().st_size)
    damaged = bytearray(largest.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    largest.write_bytes(damaged)
    make = partial(make_training, None, 99, {})
    with pytest.raises(CheckpointError, match=r"set checkpoint\.drop_damaged: true\.$"):
        CheckpointStore(tmp_path).restore(make)
    restored = CheckpointStore(tmp_path).restore(make, drop_damaged=True)
    assert restored is not None
    memory = restored.memory
    assert 0 < len(memory) < len(training.memory)
    for item in range(len(memory)):
        obs, _, _, next_obs, *_ = memory.get_transition(item)
        writer.check_transition(obs, next_obs)
    for _ in range(20):
        for batch in memory:
            for row in range(memory.batch_size):
                writer.check_transition(*({name: part[row] for name, part in batch[i].items()} for i in (0, 3)))
    interface = Sent(memory, number=500)
    restored.run_epoch(interface)
    CheckpointStore(tmp_path).save(restored, wait=True)
