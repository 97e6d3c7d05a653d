from __future__ import annotations

import dataclasses
import itertools
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tmrl_core import training
from tmrl_core.errors import ConfigError, SampleRefusedError

ReplayMemory: Any = training.ReplayMemory
RAM_ONLY = pytest.mark.parametrize("storage", ["ram"], indirect=True)


@pytest.fixture(params=["ram", "disk"], autouse=True)
def storage(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Every test runs with a memory in RAM, and with one on disk."""
    if request.param == "disk":
        folders = itertools.count()

        def on_disk(*args: Any, **kwargs: Any) -> Any:
            return training.ReplayMemory(*args, **kwargs, storage="disk", folder=tmp_path / str(next(folders)))

        monkeypatch.setitem(globals(), "ReplayMemory", on_disk)
        monkeypatch.setattr("tmrl_core.training.memories.disk_rows.MIN_SEGMENT_BYTES", 1000)
        monkeypatch.setattr("tmrl_core.training.memories.disk_rows.MAX_SEGMENT_BYTES", 1000)
    return request.param


def pairs(memory: Any) -> Any:
    """All stored transitions as ((stream, episode, step), (stream, episode, step))."""
    found = []
    for item in range(len(memory)):
        prev_obs, act, rew, obs, _, _, _ = memory.get_transition(item)
        assert act[0] == rew == obs[2]
        found.append((tuple(prev_obs.astype(int).tolist()), tuple(obs.astype(int).tolist())))
    return found


def test_an_episode_gives_one_transition_per_step(make_rows: Any) -> None:
    memory = ReplayMemory(memory_size=100)
    assert memory.append_chunk(make_rows(1, 0, 0, 5, end="terminated")) == 4
    assert pairs(memory) == [((1, 0, i), (1, 0, i + 1)) for i in range(4)]
    flags = [memory.get_transition(i)[4:6] for i in range(4)]
    assert flags == [(False, False)] * 3 + [(True, False)]


def test_terminated_and_truncated_are_separate(make_rows: Any) -> None:
    memory = ReplayMemory(memory_size=100)
    memory.append_chunk(make_rows(1, 0, 0, 2, end="truncated"))
    memory.append_chunk(make_rows(1, 1, 0, 2, end="terminated"))
    assert [memory.get_transition(i)[4:6] for i in range(2)] == [(False, True), (True, False)]


def test_a_reset_is_never_joined_to_the_previous_episode(make_rows: Any) -> None:
    memory = ReplayMemory(memory_size=100)
    for episode in range(3):
        memory.append_chunk(make_rows(1, episode, 0, 3, end="terminated"))
    assert all(a[1] == b[1] and b[2] == a[2] + 1 for a, b in pairs(memory))
    assert len(memory) == 6


def test_interleaved_streams_are_joined_each_with_its_own(make_rows: Any) -> None:
    memory = ReplayMemory(memory_size=100)
    for first in (0, 3, 6):
        for stream in (1, 2, 3):
            memory.append_chunk(make_rows(stream, 7, first, 3))
    assert len(memory) == 3 * 8
    assert all(a[0] == b[0] and b[2] == a[2] + 1 for a, b in pairs(memory))


def test_a_missing_message_is_not_bridged(make_rows: Any) -> None:
    memory = ReplayMemory(memory_size=100)
    memory.append_chunk(make_rows(1, 0, 0, 3))
    memory.append_chunk(make_rows(1, 0, 5, 3))
    assert [b[2] for _, b in pairs(memory)] == [1, 2, 6, 7]


def test_a_row_without_action_ends_no_transition(make_rows: Any) -> None:
    memory = ReplayMemory(memory_size=100)
    chunk = make_rows(1, 0, 0, 4)
    chunk.action_present[2] = False
    assert memory.append_chunk(chunk) == 2


def test_a_lone_reset_is_joined_to_the_next_message(make_rows: Any) -> None:
    memory = ReplayMemory(memory_size=100)
    assert memory.append_chunk(make_rows(1, 0, 0, 1)) == 0
    assert memory.append_chunk(make_rows(1, 0, 1, 1)) == 1
    assert pairs(memory) == [((1, 0, 0), (1, 0, 1))]


def test_one_chunk_with_several_episodes(make_rows: Any) -> None:
    memory = ReplayMemory(memory_size=100)
    a, b = make_rows(1, 0, 0, 3), make_rows(1, 1, 0, 4)
    memory.append_chunk(
        dataclasses.replace(
            a,
            rows=7,
            segments=a.segments + b.segments,
            **{
                name: np.concatenate([getattr(a, name), getattr(b, name)])
                for name in ("action", "action_present", "observation", "reward", "terminated", "truncated")
            },
        )
    )
    assert pairs(memory) == [((1, 0, i), (1, 0, i + 1)) for i in range(2)] + [
        ((1, 1, i), (1, 1, i + 1)) for i in range(3)
    ]


def test_the_ring_keeps_the_newest(make_rows: Any) -> None:
    memory = ReplayMemory(memory_size=5)
    for first in range(0, 12, 3):
        memory.append_chunk(make_rows(1, 0, first, 3))
    assert len(memory) == 5
    assert memory.written == 11
    assert [b[2] for _, b in pairs(memory)] == [7, 8, 9, 10, 11]
    memory.append_chunk(make_rows(2, 0, 0, 40))
    assert [b[2] for _, b in pairs(memory)] == [35, 36, 37, 38, 39]
    assert memory.written == 50


def test_another_shape_is_refused_with_both_named_and_nothing_is_lost(make_rows: Any, make_buffer: Any) -> None:
    memory = ReplayMemory(memory_size=100)
    memory.append_chunk(make_rows(1, 0, 0, 3))
    bad = make_rows(2, 0, 0, 3, observation=lambda rows: np.zeros((rows, 4), np.float32))
    refused = memory.append(make_buffer([bad, make_rows(1, 0, 3, 3)]))
    assert [chunk.stream for chunk, _ in refused] == [bad.stream]
    assert "float32[4]" in str(refused[0][1])
    assert "float32[3]" in str(refused[0][1])
    assert len(memory) == 5


@pytest.mark.parametrize("dtype", [np.int64, np.uint8, np.float16])
def test_another_dtype_is_refused(make_rows: Any, dtype: Any) -> None:
    memory = ReplayMemory(memory_size=100)
    memory.append_chunk(make_rows(1, 0, 0, 3))
    with pytest.raises(SampleRefusedError, match=np.dtype(dtype).name):
        memory.append_chunk(make_rows(2, 0, 0, 3, dtype=dtype))


def test_rows_before_and_after_a_refusal_are_not_joined(make_rows: Any) -> None:
    memory = ReplayMemory(memory_size=100)
    memory.append_chunk(make_rows(1, 0, 0, 3))
    with pytest.raises(SampleRefusedError):
        memory.append_chunk(make_rows(1, 0, 3, 1, dtype=np.int64))
    memory.append_chunk(make_rows(1, 0, 3, 2))
    assert [b[2] for _, b in pairs(memory)] == [1, 2, 4]


def test_values_that_are_not_arrays_are_refused(make_rows: Any) -> None:
    with pytest.raises(SampleRefusedError, match="TorchMemory"):
        ReplayMemory().append_chunk(make_rows(1, 0, 0, 3, observation=lambda rows: ["text"] * rows))


def test_float64_becomes_float32_by_default(make_rows: Any) -> None:
    memory, exact = ReplayMemory(memory_size=9, seed=0), ReplayMemory(memory_size=9, seed=0, downcast_float64=False)
    for each in (memory, exact):
        each.append_chunk(make_rows(1, 0, 0, 3, dtype=np.float64))
    assert memory.sample()[0].dtype == torch.float32
    assert exact.sample()[0].dtype == torch.float64
    # The float32 reading of the same episode belongs to the first, not to the second.
    memory.append_chunk(make_rows(1, 0, 3, 3))
    with pytest.raises(SampleRefusedError):
        exact.append_chunk(make_rows(1, 0, 3, 3))


@pytest.mark.parametrize("dtype", ["b", "h", "i", "l", "q", "B", "H", "I", "L", "Q", "?", "e", "f", "d"])
def test_every_numeric_dtype_of_messages_is_accepted(make_rows: Any, dtype: str) -> None:
    memory = ReplayMemory(memory_size=9, batch_size=2)
    memory.append_chunk(make_rows(1, 0, 0, 3, observation=lambda rows: np.ones((rows, 2), np.dtype(dtype))))
    assert memory.sample()[0].shape == (2, 2)


def test_nested_observations_keep_structure_dtypes_and_shapes(make_rows: Any) -> None:
    def nested(rows: Any) -> Any:
        image = np.arange(rows * 12, dtype=np.uint8).reshape(rows, 2, 2, 3)
        return {"image": image, "pose": (np.arange(rows, dtype=np.float32), np.arange(rows, dtype=np.int64) * 2)}

    memory = ReplayMemory(memory_size=50, batch_size=8, seed=1)
    memory.append_chunk(make_rows(1, 0, 0, 10, observation=nested))
    prev_obs, act, rew, new_obs, terminated, truncated = memory.sample()
    assert prev_obs["image"].shape == (8, 2, 2, 3)
    assert prev_obs["image"].dtype == torch.uint8
    assert new_obs["pose"][0].shape == (8,)
    assert new_obs["pose"][1].dtype == torch.int64
    step = rew.long()
    assert torch.equal(new_obs["pose"][1], 2 * step)
    assert torch.equal(prev_obs["pose"][0], rew - 1)
    assert torch.equal(new_obs["image"][:, 0, 0, 0], (step * 12).to(torch.uint8))
    assert torch.equal(act[:, 0], rew)
    assert terminated.dtype == truncated.dtype == torch.float32


def test_batches_are_sampled_uniformly_over_valid_transitions(make_rows: Any) -> None:
    memory = ReplayMemory(memory_size=1000, batch_size=500, nb_steps=40, seed=3)
    for stream in range(1, 5):
        memory.append_chunk(make_rows(stream, 0, 0, 6, end="terminated"))
    counts = np.zeros((5, 6))
    for prev_obs, act, _, new_obs, _, _ in memory:
        assert torch.equal(prev_obs[:, :2], new_obs[:, :2])
        assert torch.equal(prev_obs[:, 2] + 1, act[:, 0])
        np.add.at(counts, (new_obs[:, 0].long().numpy(), new_obs[:, 2].long().numpy()), 1)
    expected = 40 * 500 / 20
    assert np.all(np.abs(counts[1:, 1:] - expected) < 6 * np.sqrt(expected))
    assert counts[:, 0].sum() == 0


def test_same_seed_same_batches(make_rows: Any) -> None:
    first, second, other = (ReplayMemory(memory_size=99, nb_steps=9, seed=seed) for seed in (5, 5, 6))
    for memory in (first, second, other):
        memory.append_chunk(make_rows(1, 0, 0, 50))
    for a, b, c in zip(first, second, other, strict=True):
        assert torch.equal(a[0], b[0])
        assert not torch.equal(a[0], c[0])


def test_appended_samples_are_sampled_from_the_next_batch_on(make_rows: Any) -> None:
    memory = ReplayMemory(memory_size=4, batch_size=64, nb_steps=20, seed=0)
    memory.append_chunk(make_rows(1, 0, 0, 5))
    for number, batch in enumerate(memory):
        assert set(batch[3][:, 0].tolist()) == {1.0 if number <= 10 else 2.0}
        if number == 10:
            memory.append_chunk(make_rows(2, 0, 0, 5))


def test_a_returned_batch_never_changes(make_rows: Any) -> None:
    memory = ReplayMemory(memory_size=4, batch_size=16, nb_steps=3, seed=0)
    memory.append_chunk(make_rows(1, 0, 0, 5))
    batches = list(memory)
    copies = [batch[3].clone() for batch in batches]
    memory.append_chunk(make_rows(2, 0, 0, 9))
    list(memory)
    assert all(torch.equal(batch[3], copy) for batch, copy in zip(batches, copies, strict=True))


def test_sampling_from_an_empty_memory_is_an_error() -> None:
    with pytest.raises(ValueError, match="no transition"):
        ReplayMemory().sample()


def test_the_preprocessor_sees_single_transitions_and_flags_become_float32_after_it(make_rows: Any) -> None:
    seen = []

    def double(prev_obs: Any, act: Any, rew: Any, obs: Any, terminated: Any, truncated: Any) -> Any:
        seen.append((prev_obs.shape, type(terminated)))
        return prev_obs * 2, act, rew, obs * 2, terminated, truncated

    memory = ReplayMemory(memory_size=50, batch_size=8, sample_preprocessor=double, seed=0)
    memory.append_chunk(make_rows(1, 0, 0, 10, end="truncated"))
    prev_obs, _, rew, new_obs, terminated, truncated = memory.sample()
    assert seen == [((3,), bool)] * 8
    assert torch.equal(new_obs[:, 2], 2 * rew)
    assert torch.equal(prev_obs[:, 2], 2 * (rew - 1))
    assert terminated.dtype == truncated.dtype == torch.float32
    assert torch.equal(truncated, (rew == 9).float())


def test_crc_debug_compares_whole_arrays(make_rows: Any) -> None:
    chunk = make_rows(1, 0, 0, 3)
    right = (chunk.observation[0], chunk.action[1], chunk.observation[1], 1.0, False, False)
    chunk.info[1] = {"crc_sample": right}
    ReplayMemory(crc_debug=True).append_chunk(chunk)
    # The same numbers in another order: sums would not see it.
    chunk.info[1] = {"crc_sample": (*right[:2], np.roll(chunk.observation[1], 1), *right[3:])}
    with pytest.raises(ValueError, match="crc_debug: obs"):
        ReplayMemory(crc_debug=True).append_chunk(chunk)


def test_policy_versions_are_kept_per_transition(make_rows: Any) -> None:
    memory = ReplayMemory(memory_size=10)
    memory.append_chunk(make_rows(1, 0, 0, 3, version=(1, 4)))
    memory.append_chunk(make_rows(1, 0, 3, 2, version=(2, 1)))
    assert memory._rows.versions_of(0, 4).tolist() == [[1, 4], [1, 4], [2, 1], [2, 1]]


@pytest.mark.parametrize("size", [0, -1, 2.5])
def test_sizes_must_be_whole_and_positive(size: Any) -> None:
    with pytest.raises(ConfigError, match="memory_size"):
        ReplayMemory(memory_size=size)


@RAM_ONLY
def test_an_impossible_capacity_is_named(make_rows: Any) -> None:
    memory = ReplayMemory(memory_size=2**50)
    with pytest.raises(ConfigError, match=r"memory\.capacity.*GB"):
        memory.append_chunk(make_rows(1, 0, 0, 3))


@RAM_ONLY
@pytest.mark.parametrize("is_early", [False, True])
def test_a_restored_memory_continues_identically(is_early: bool, make_rows: Any) -> None:
    memory = ReplayMemory(memory_size=20, batch_size=8, nb_steps=1, seed=4)
    for first in range(0, 30, 5):
        memory.append_chunk(make_rows(1, 0, first, 5))
    for _ in range(5):
        memory.sample()
    order = [(memory.written - len(memory) + i) % 20 for i in range(len(memory))]
    rows = [array[order].copy() for array in memory.row_arrays]
    restored = ReplayMemory(memory_size=20, batch_size=8, nb_steps=1, seed=99)
    state: Any = memory.state_dict()
    if is_early:  # checkpoints had a row for each stream once
        streams, *columns = state["tails"].values()
        state["tails"] = [list(row) for row in zip(map(bytes.fromhex, streams), *columns, strict=True)]
    restored.load_state_dict(state, rows)
    for step in range(30, 60, 5):
        for _ in range(7):
            assert all(torch.equal(a, b) for a, b in zip(memory.sample(), restored.sample(), strict=True))
        for each in (memory, restored):
            assert each.append_chunk(make_rows(1, 0, step, 5)) == 5


@RAM_ONLY
def test_an_append_waits_for_a_reader_of_the_rows_it_would_overwrite(make_rows: Any) -> None:
    memory = ReplayMemory(memory_size=10)
    memory.append_chunk(make_rows(1, 0, 0, 11))
    lease = memory.lease_rows(0)
    appended = threading.Event()

    def append() -> Any:
        memory.append_chunk(make_rows(1, 0, 11, 4))
        appended.set()

    thread = threading.Thread(target=append)
    thread.start()
    lease.advance(3)
    assert not appended.wait(0.05)
    lease.advance(4)
    assert appended.wait(5)
    thread.join()
    lease.release()
