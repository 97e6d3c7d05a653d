from __future__ import annotations

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
from tmrl_core.training.memories.replay import ReplayMemory
from tmrl_core.training.memories.staleness import FreshRows, SampledLag

SPACES = (gym.spaces.Box(-10, 10, (3,), np.float32), gym.spaces.Box(-1, 1, (1,), np.float32))


def test_recent_rows_equal_those_of_a_simple_list() -> None:
    generator = np.random.default_rng(0)
    fresh, capacity = FreshRows(3), 60
    versions: list[int] = []
    for step in range(200):
        new = np.maximum(0, fresh.counter - generator.integers(0, 5, generator.integers(0, 9)))
        fresh.add(len(versions), np.sort(new))
        versions += np.sort(new).tolist()
        readable, first = len(versions), max(0, len(versions) - capacity)
        if step % 3 == 0:
            fresh.counter += 1
        allowed = [i for i in range(first, readable) if versions[i] >= fresh.counter - 3]
        fresh.expire(first, readable)
        assert fresh.count(first, readable) == len(allowed)
        if allowed:
            drawn = fresh.sample(generator, 400, first, readable)
            assert set(drawn.tolist()) <= set(allowed)
            assert len(set(drawn.tolist())) > 0.9 * len(allowed)


def test_recent_rows_are_equally_likely() -> None:
    fresh = FreshRows(1)
    fresh.add(0, np.array([5, 5, 5, 2, 6, 4, 5]))
    fresh.counter = 6
    fresh.expire(0, 7)
    drawn = fresh.sample(np.random.default_rng(0), 50_000, 1, 7)
    places, counts = np.unique(drawn, return_counts=True)
    assert places.tolist() == [1, 2, 4, 6]
    np.testing.assert_allclose(counts / 50_000, 0.25, atol=0.01)


def test_rows_that_cannot_be_read_yet_do_not_expire() -> None:
    fresh = FreshRows(0)
    fresh.add(0, np.array([1, 1]))
    fresh.add(2, np.array([1, 1, 1]))
    fresh.counter = 2
    assert fresh.expire(0, 2) == [(0, 2)]
    assert fresh.expire(0, 5) == [(2, 5)]
    fresh.add(5, np.array([2, 2, 2]))
    assert fresh.count(0, 6) == 1


def test_an_addition_does_not_copy_the_runs_of_the_whole_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that sends rows of two versions in turn would make each message of the others cost as much."""
    fresh, rows = FreshRows(3), 10_000
    fresh.follow(9)
    fresh.add(0, np.resize([8, 9], rows))
    fresh.expire(0, rows)
    copied, concatenate = 0, np.concatenate

    def counted(arrays: Any) -> Any:
        nonlocal copied
        made = concatenate(arrays)
        copied += len(made)
        return made

    monkeypatch.setattr(np, "concatenate", counted)
    for stop in range(rows + 2, rows + 202, 2):
        fresh.add(stop - 2, np.array([8, 9]))
        assert fresh.expire(0, stop) == []
    assert copied < rows
    assert fresh.count(0, rows + 200) == rows + 200


def test_lags_cover_the_rows_sampled_since_the_last_call() -> None:
    lag = SampledLag()
    assert lag.take() is None
    lag.counter = 5
    lag.note(np.array([5, 4, 6]))
    lag.note(np.array([1]))
    assert lag.take() == (1.25, 4)
    assert lag.take() is None


@pytest.fixture(params=["ram", "disk"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    def made(name: str = "memory", **kwargs: Any) -> Any:
        on_disk: Any = {"storage": "disk", "folder": tmp_path / name} if request.param == "disk" else {}
        settings = {"memory_size": 40, "batch_size": 64, "seed": 3, "max_drawn_lag": 2, **kwargs}
        return ReplayMemory(**settings, **on_disk)

    return made


PRIORITIES = pytest.mark.parametrize("priority", [None, {"alpha": 0.5}], ids=["uniform", "prioritized"])


def seen(memory: Any) -> set[int]:
    """The episodes in some batches; priorities are changed in between."""
    found = set()
    for _ in range(4):
        batch = memory.sample()
        found |= set(batch[3][:, 1].int().tolist())
        if len(batch) > 6 and "indices" in batch[6]:
            memory.update_priorities(batch[6]["indices"], batch[2] + 1)
    return found


@PRIORITIES
def test_rows_of_invented_versions_expire_like_those_of_the_latest(make: Any, make_rows: Any, priority: Any) -> None:
    memory = make(priority=priority)
    memory.note_version(1)
    memory.append_chunk(make_rows(1, 0, 0, 6, version=(1, 1 << 61), end="truncated"))
    memory.append_chunk(make_rows(2, 1, 0, 6, version=(1, 3), end="truncated"))  # of an interrupted trainer
    for counter in (2, 3, 4):
        memory.note_version(counter)
        assert memory.sampleable == 10, "no row of a worker that is ahead is lost"
    memory.note_version(5)
    assert memory.sampleable == 0


@PRIORITIES
def test_rows_that_are_newer_than_the_checkpoint_keep_their_version(make: Any, make_rows: Any, priority: Any) -> None:
    memory = make(priority=priority)
    memory.note_version(1)
    memory.append_chunk(make_rows(1, 0, 0, 6, version=(1, 4), end="truncated"))
    state, rows = memory.state_dict(), [np.array(ring[:5]) for ring in memory.row_arrays]
    if memory.row_arrays:
        memory = make("restored", priority=priority)
    memory.load_state_dict(state, rows)
    memory.note_version(6)
    assert memory.sampleable == 5


@PRIORITIES
def test_stale_rows_are_no_longer_sampled(make: Any, make_rows: Any, priority: Any) -> None:
    memory = make(priority=priority)
    for episode in range(4):
        memory.append_chunk(make_rows(1, episode, 0, 6, version=(1, episode + 1), end="truncated"))
    assert seen(memory) == {0, 1, 2, 3}
    batch = memory.sample()
    memory.note_version(4)
    assert memory.sampleable == 15
    assert seen(memory) == {1, 2, 3}
    memory.note_version(5)
    if priority is not None:
        # What was drawn before is heard of after; it stays out.
        memory.update_priorities(batch[6]["indices"], batch[2] + 100)
    assert seen(memory) == {2, 3}
    # An expert's samples, or a straggler's, may be too old when they come.
    memory.append_chunk(make_rows(2, 9, 0, 6, version=(1, 1), end="truncated"))
    assert seen(memory) == {2, 3}
    memory.note_version(7)
    assert (memory.sampleable, len(memory)) == (0, 25)
    with pytest.raises(ValueError, match="at most 2 versions behind"):
        memory.sample()
    memory.append_chunk(make_rows(1, 5, 0, 6, version=(1, 6), end="truncated"))
    assert seen(memory) == {5}
    memory.close()


@PRIORITIES
def test_a_restored_memory_samples_identically(make: Any, make_rows: Any, priority: Any) -> None:
    memory = make("one", priority=priority)
    for episode in range(9):
        memory.append_chunk(make_rows(1, episode, 0, 8, version=(1, episode + 1), end="truncated"))
        memory.note_version(episode + 1)
    memory.sample()
    state = memory.state_dict()
    rows = [np.roll(ring, -(memory.written % 40), axis=0).copy() for ring in memory.row_arrays]
    after = [memory.sample() for _ in range(3)]
    memory.close()
    other = make("one", priority=priority)
    other.load_state_dict(state, rows)
    for expected in after:
        batch = other.sample()
        assert all(torch.equal(left, right) for left, right in zip(batch[:6], expected[:6], strict=True))
        assert set(batch[3][:, 1].int().tolist()) == {6, 7, 8}
    other.close()


def test_every_preprocessed_sample_is_recent_too(make: Any, make_rows: Any) -> None:
    memory = make(sample_preprocessor=lambda *values: values, n_step=2)
    for episode in range(4):
        memory.append_chunk(make_rows(1, episode, 0, 6, version=(1, episode + 1), end="truncated"))
    memory.note_version(5)
    assert seen(memory) == {2, 3}
    memory.close()


def test_a_negative_age_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"memory\.max_drawn_lag must be 0 or more, got -1"):
        ReplayMemory(max_drawn_lag=-1)


class Watching(TrainingAgent):
    """Notes the oldest version in each batch; a row's reward is its version here."""

    def __init__(self, observation_space: Any, action_space: Any, device: Any) -> None:
        super().__init__(observation_space, action_space, device)
        self.oldest: list[int] = []

    def train(self, batch: Any) -> dict[str, Any]:
        self.oldest.append(int(batch[3][:, 1].min()))
        return {}

    def get_actor(self) -> int:
        return 0


def test_the_loop_reports_versions_and_waits_for_recent_samples(make_rows: Any, make_buffer: Any) -> None:
    lacks = []

    class Worker(LocalInterface):
        """Brings an episode of the latest version when it is waited for; the episode's number is the version."""

        def wait(self, timeout_s: float) -> bool:
            lacks.append(self.progress.lack)
            self.put(make_buffer([make_rows(1, self.version[1], 0, 5, version=self.version, end="truncated")]))
            return True

    interface = Worker()
    training = TrainingOffline(
        SPACES,
        lambda nb_steps, device: ReplayMemory(
            device, nb_steps, memory_size=100, batch_size=16, max_drawn_lag=1, seed=0
        ),
        Watching,
        epochs=1,
        rounds=2,
        steps=20,
        update_model_interval=5,
        update_buffer_interval=1000,
        max_training_steps_per_env_step=1e9,
    )
    rows = training.run_epoch(interface)
    # Versions come with updates 0, 5, 10, ...; every second one the samples have become too old.
    assert training.agent.oldest == [1] * 10 + [3] * 10 + [5] * 10 + [7] * 10
    said = "transitions is as recent as memory.max_drawn_lag asks"
    assert [lack.split(" (")[0] for lack in lacks[1:]] == [f"none of {n} {said}" for n in (4, 8, 12, 16)]
    assert [row["drawn_lag_max"] for row in rows] == [1, 1]
    assert 0 < rows[0]["drawn_lag_mean"] < 1
