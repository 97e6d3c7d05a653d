"""A training object whose memory is on disk: acknowledging, full disks, checkpoints, and what the log says."""

from __future__ import annotations

import resource
import shutil
import signal
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from tests.training.disk_memory import STREAM, steps
from tmrl_core.errors import CheckpointError
from tmrl_core.networking.links import LinkSettings, TrainerLink
from tmrl_core.networking.protocol.delivery import CommittedOffset, Received
from tmrl_core.samples import Buffer
from tmrl_core.training import CheckpointStore, ReplayMemory, SacAgent
from tmrl_core.training.interface import Delivery, LocalInterface
from tmrl_core.training.loops.training_loop import TrainingOffline
from tmrl_core.training.remote.delivery_log import DeliveryLog

SPACES = (gym.spaces.Box(-10, 10, (3,), np.float32), gym.spaces.Box(-1, 1, (1,), np.float32))

pytestmark = pytest.mark.usefixtures("small_files")


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


class Kept(LocalInterface):
    """Hands over one message each time that it is asked; what is committed is written down first."""

    def __init__(self, memory: ReplayMemory, make_rows: Any) -> None:
        super().__init__()
        self.memory = memory
        self.number = 0
        self.acknowledged = 0
        self._make_rows = make_rows
        memory.deferred = True

    def receive(self) -> list[Delivery]:
        self.commit()
        buffer = Buffer(maxlen=None)
        buffer.extend([self._make_rows(1, 0, 4 * self.number, 4)], [])
        self.number += 1
        return [Delivery(buffer.chunks, buffer.episodes)]

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


def test_a_full_disk_stops_acknowledgements_with_a_log_message(
    tmp_path: Path, make_rows: Any, caplog: pytest.LogCaptureFixture
) -> None:
    training = make_training(tmp_path)
    interface = Kept(training.memory, make_rows)
    training.update_buffer(interface)
    with FullDisk(100):
        for _ in range(5):
            training.update_buffer(interface)
        assert (interface.number, interface.acknowledged) == (2, 1)
        assert caplog.text.count("samples cannot be stored") == 1
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
    for _ in range(2):
        training.run_epoch(interface)
    CheckpointStore(tmp_path / "store").save(training, wait=True)
    training.save(tmp_path / "alone")
    assert list(tmp_path.glob("*/**/rows-*")) == []
    shutil.copytree(tmp_path / "memory", tmp_path / "copy")
    number = interface.number
    expected = [row for _ in range(2) for row in training.run_epoch(interface)]

    torch.manual_seed(99)
    if through_store:
        restored = CheckpointStore(tmp_path / "store").restore(lambda: make_training(tmp_path / "copy"))
        assert restored is not None
    else:
        restored = make_training(tmp_path / "copy")
        restored.load(tmp_path / "alone")
    interface = Kept(restored.memory, make_rows)
    interface.number = interface.acknowledged = number
    rows = [row for _ in range(2) for row in restored.run_epoch(interface)]
    assert all(torch.equal(a, b) for a, b in zip(weights(training), weights(restored), strict=True))
    for a, b in zip(expected, rows, strict=True):
        assert [a[name] for name in ("loss_critic", "samples_received", "memory_len")] == [
            b[name] for name in ("loss_critic", "samples_received", "memory_len")
        ]


def test_the_log_takes_precedence_over_an_older_checkpoint(tmp_path: Path, make_rows: Any) -> None:
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


def test_without_a_checkpoint_the_offsets_come_from_the_log(tmp_path: Path, make_rows: Any) -> None:
    training = make_training(tmp_path)
    training.update_buffer(Kept(training.memory, make_rows))
    training.memory.close()
    again = make_training(tmp_path)
    assert again.delivery["marks"] == {STREAM: (1, 4)}
    assert again.total_samples == 4


def test_a_memory_with_fewer_rows_than_the_checkpoint_logs_a_warning(
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


@pytest.mark.parametrize(("saved", "now"), [("ram", "disk"), ("disk", "ram")])
def test_a_run_keeps_its_storage(tmp_path: Path, make_rows: Any, saved: str, now: str) -> None:
    training = make_training(tmp_path / saved, saved)
    training.memory.append_chunk(make_rows(1, 0, 0, 5))
    training.save(tmp_path / "c")
    with pytest.raises(CheckpointError, match=rf"memory\.storage: {saved}; keep that setting"):
        make_training(tmp_path / now, now).load(tmp_path / "c")


# --- what is written down with messages -------------------------------------------------------------------------------


def test_offsets_gaps_and_refusals_are_written_before_acknowledgement(tmp_path: Path) -> None:
    training = make_training(tmp_path)
    training.total_samples = 5
    link = TrainerLink(LinkSettings(host="127.0.0.1", port=1, transport="local"), name="t", run="r", incarnation=4)
    receiver = link.trainer.receiver(STREAM)
    log = DeliveryLog(training, training.training_memory, link)
    received = []
    # Number, samples, and the position that the worker gave it: it dropped message 1, with 10 samples.
    for number, samples, position in ((0, 2, 0), (2, 3, 12)):
        receiver.next_number = number + 1
        receiver.position = position + samples
        receiver._uncommitted.append((number, position + samples))
        received.append(Received(STREAM, number, samples, memoryview(b""), 100))
    log.keep(received)
    assert link.trainer.offsets[STREAM] == CommittedOffset(0, 0), "nothing is acknowledged yet"
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
