from __future__ import annotations

import gc
import shutil
import threading
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from tmrl_core.errors import ConfigError
from tmrl_core.training.agent import TrainingAgent
from tmrl_core.training.interface import LocalInterface
from tmrl_core.training.loops.training_loop import TrainingOffline
from tmrl_core.training.memories.frame_stack_memory import FrameStackMemory
from tmrl_core.training.memories.prefetch import BESIDE, Prefetch
from tmrl_core.training.memories.replay import ReplayMemory

SPACES = (gym.spaces.Box(-10, 10, (3,), np.float32), gym.spaces.Box(-1, 1, (1,), np.float32))


class Counter:
    """Prepares numbers, in whichever thread; holds the thread up while `held`."""

    def __init__(self) -> None:
        self.next = 0
        self.begun = threading.Semaphore(0)
        self.go_on = threading.Event()
        self.go_on.set()
        self.fails_at = -1

    def __call__(self) -> int:
        number, self.next = self.next, self.next + 1
        self.begun.release()
        assert self.go_on.wait(10)
        if number == self.fails_at:
            raise OSError("no room")
        return number


def test_blocks_are_taken_in_order_and_at_most_depth_are_prepared() -> None:
    counter = Counter()
    ahead: Prefetch[int] = Prefetch(3)
    for expected in range(20):
        assert ahead.take(counter) == expected
        assert counter.next <= expected + 1 + 3
    ahead.close()


def test_without_depth_there_is_no_thread() -> None:
    counter, before = Counter(), set(threading.enumerate())
    ahead: Prefetch[int] = Prefetch(0)
    assert [ahead.take(counter) for _ in range(3)] == [0, 1, 2]
    assert ahead.stop() == []
    assert set(threading.enumerate()) <= before


def test_stopping_waits_for_the_block_in_preparation_and_returns_it() -> None:
    counter = Counter()
    ahead: Prefetch[int] = Prefetch(3)
    assert ahead.take(counter) == 0
    counter.begun.acquire()
    counter.go_on.clear()
    ahead.take(counter)
    stopped: list[list[int]] = []
    thread = threading.Thread(target=lambda: stopped.append(ahead.stop()))
    for _ in range(counter.next - 1):
        counter.begun.acquire()
    thread.start()
    counter.go_on.set()
    thread.join(10)
    (numbers,) = stopped
    assert numbers == list(range(2, 2 + len(numbers)))
    at = counter.next
    assert ahead.take(counter) == at, "nothing is prepared after stopping"
    ahead.close()


def test_no_block_is_prepared_while_the_device_lock_is_held() -> None:
    counter = Counter()
    ahead: Prefetch[int] = Prefetch(1)
    with BESIDE:
        assert ahead.take(counter) == 0
        assert counter.begun.acquire(timeout=10)
        assert not counter.begun.acquire(timeout=0.1)
    assert counter.begun.acquire(timeout=10)
    assert ahead.take(counter) == 1
    ahead.close()
    assert not BESIDE.locked()


def test_an_error_is_raised_by_take_and_the_next_block_follows() -> None:
    counter = Counter()
    counter.fails_at = 2
    ahead: Prefetch[int] = Prefetch(2)
    assert [ahead.take(counter), ahead.take(counter)] == [0, 1]
    with pytest.raises(OSError, match="no room"):
        ahead.take(counter)
    assert ahead.take(counter) == 3
    ahead.close()


def prefetching() -> int:
    """Threads that prepare."""
    return sum(thread.name.startswith("prefetch") for thread in threading.enumerate())


def test_the_thread_ends_with_close_and_with_its_owner(make_rows: Any) -> None:
    before = prefetching()
    memories = [ReplayMemory(memory_size=100, batch_size=4, prefetch=1) for _ in range(2)]
    for memory in memories:
        memory.append_chunk(make_rows(1, 0, 0, 50))
        memory.sample()
    threads = [thread for thread in threading.enumerate() if thread.name.startswith("prefetch")]
    assert prefetching() == before + 2
    memories[0].close()
    assert prefetching() == before + 1
    memories.clear()
    del memory
    gc.collect()
    for thread in threads:
        thread.join(10)
    assert prefetching() == before


def images(rows: int) -> Any:
    """Stacks of four frames, each of which shows its number."""
    frames = np.arange(rows + 3, dtype=np.uint8)[:, None, None] * np.ones((1, 2, 2), np.uint8)
    return np.stack([frames[i : i + 4] for i in range(rows)])


def play(memory: Any, make_rows: Any, seed: int, begin: int = 0, stop: int = 60) -> list[Any]:
    """Draw, append, note versions, save and look, as a generator says; all batches."""
    generator = np.random.default_rng(seed)
    generator.random((begin, 4))
    stacks = isinstance(memory, FrameStackMemory)
    found = []
    for step in range(begin, stop):
        draws, look, save, version = generator.random(4)
        for _ in range(int(draws * 25)):
            batch = memory.sample()
            found.append([column.clone() for column in batch[:6]])
        if look < 0.3:
            memory.append_chunk(
                make_rows(1, step, 0, 9, version=(1, step), end="truncated", observation=images if stacks else None)
            )
        if save < 0.1:
            memory.state_dict()
        elif save < 0.2:
            memory.get_transition(0)
        if version < 0.3:
            memory.note_version(step)
    return found


def equal(left: list[Any], right: list[Any]) -> bool:
    return len(left) == len(right) and all(
        torch.equal(one, other) for a, b in zip(left, right, strict=True) for one, other in zip(a, b, strict=True)
    )


KINDS = ["ram", "disk", "recent", "frames", "frames on disk"]


def make(kind: str, folder: Path, prefetch: int) -> Any:
    settings: dict[str, Any] = {"memory_size": 150, "batch_size": 8, "seed": 5, "prefetch": prefetch}
    if kind == "frames":
        return FrameStackMemory(**settings)
    if kind == "frames on disk":
        return FrameStackMemory(**settings, storage="disk", folder=folder)
    if kind == "disk":
        return ReplayMemory(**settings, storage="disk", folder=folder)
    return ReplayMemory(**settings, max_drawn_lag=30 if kind == "recent" else None)


@pytest.mark.parametrize(
    ("kind", "depth"),
    [
        *((kind, 3) for kind in KINDS),
        ("ram", 1),
        *(pytest.param(kind, 1, marks=pytest.mark.full) for kind in KINDS if kind != "ram"),
    ],
)
def test_sampling_does_not_depend_on_prefetching(
    kind: str, depth: int, make_rows: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tmrl_core.training.memories.disk_rows.MIN_SEGMENT_BYTES", 2000)
    monkeypatch.setattr("tmrl_core.training.memories.disk_rows.MAX_SEGMENT_BYTES", 2000)
    found = []
    for prefetch in (0, depth):
        memory = make(kind, tmp_path / str(prefetch), prefetch)
        assert memory.prefetch == prefetch
        memory.append_chunk(make_rows(1, 99, 0, 40, observation=images if "frames" in kind else None))
        found.append(play(memory, make_rows, seed=depth))
        memory.close()
    assert len(found[0]) > 400
    assert equal(*found)


@pytest.mark.parametrize("kind", KINDS)
def test_a_restored_memory_samples_unused_blocks_again(kind: str, make_rows: Any, tmp_path: Path) -> None:
    memory = make(kind, tmp_path / "one", 2)
    memory.append_chunk(make_rows(1, 99, 0, 40, observation=images if "frames" in kind else None))
    play(memory, make_rows, 1, 0, 20)
    state = memory.state_dict()
    newest = np.arange(memory.written - len(memory), memory.written) % 150
    rows = [ring[newest] for ring in memory.row_arrays]
    if "disk" in kind:
        shutil.copytree(tmp_path / "one", tmp_path / "two")
    other = make(kind, tmp_path / "two", 0)
    other.load_state_dict(state, rows)
    later = play(other, make_rows, 1, 20, 40)
    other.close()
    assert equal(later, play(memory, make_rows, 1, 20, 40))
    assert len(later) > 100
    memory.close()


def test_no_batch_is_sampled_in_vain_where_samples_arrive_at_regular_intervals(make_rows: Any) -> None:
    memory = ReplayMemory(nb_steps=1, device="cpu", memory_size=500, batch_size=4, prefetch=0)
    in_vain = []
    for cycle, batches in enumerate([50, 50, 50, 80, 80, 1, 1]):
        memory.append_chunk(make_rows(cycle, cycle + 1, 0, 40))
        for _ in range(batches):
            memory.sample()
        in_vain.append(memory.prefetched)
    # At first blocks of 1, 2, 4, ...; 80 in place of 50 leave 2 of 32, and the first 1 in place of 80 leaves 31 of 32.
    assert in_vain == [13, 0, 0, 2, 0, 31, 0]


class Summing(TrainingAgent):
    """Its parameter depends on every batch, and on their order."""

    def __init__(self, observation_space: Any, action_space: Any, device: Any) -> None:
        super().__init__(observation_space, action_space, device)
        self.parameter = torch.zeros(3, dtype=torch.float64)

    def train(self, batch: Any) -> dict[str, Any]:
        self.parameter = 0.99 * self.parameter + batch[3].double().sum(0)
        return {}

    def get_actor(self) -> int:
        return 0


def training_of(prefetch: int) -> TrainingOffline:
    return TrainingOffline(
        SPACES,
        lambda nb_steps, device: ReplayMemory(
            device, nb_steps, memory_size=300, batch_size=8, seed=1, prefetch=prefetch
        ),
        Summing,
        epochs=4,
        rounds=2,
        steps=37,
        update_buffer_interval=20,
        max_training_steps_per_env_step=1e9,
    )


def test_training_resumed_from_a_checkpoint_is_bit_equal(make_rows: Any, make_buffer: Any, tmp_path: Path) -> None:
    def fed(training: TrainingOffline, interface: LocalInterface, epochs: range) -> None:
        for epoch in epochs:
            interface.put(make_buffer([make_rows(1, epoch, 0, 50, end="truncated")]))
            training.run_epoch(interface)

    outcomes = []
    for prefetch in (0, 2):
        whole = training_of(prefetch)
        fed(whole, LocalInterface(), range(4))
        first = training_of(prefetch)
        fed(first, LocalInterface(), range(2))
        first.save(tmp_path / str(prefetch))
        second = training_of(prefetch)
        second.load(tmp_path / str(prefetch))
        fed(second, LocalInterface(), range(2, 4))
        outcomes += [whole.agent.parameter, second.agent.parameter]
        for training in (whole, first, second):
            training.memory.close()
    assert outcomes[0].abs().sum() > 0
    assert all(torch.equal(outcomes[0], other) for other in outcomes[1:])


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"priority": {}}, "follow those that the batch before has changed"),
        ({"sample_preprocessor": print}, "made by Python code"),
    ],
)
def test_prefetching_is_refused_for_batches_that_cannot_be_prefetched(settings: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=rf"memory\.prefetch: 1.*{said}"):
        ReplayMemory(prefetch=1, **settings)
    assert ReplayMemory("cuda", **settings).prefetch == 0


def test_by_default_only_batches_for_a_gpu_are_prefetched() -> None:
    assert [ReplayMemory(device).prefetch for device in (None, "cpu", "cuda", "cuda:1")] == [0, 0, 2, 2]
