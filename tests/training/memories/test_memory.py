from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tmrl_core.errors import ConfigError, SampleRefusedError
from tmrl_core.samples import Buffer, Chunk, EpisodeRecord
from tmrl_core.samples.segments import Segment
from tmrl_core.training import GenericTorchMemory, ReplayMemory
from tmrl_core.training.memories.memory import (
    LastRow,
    TorchMemory,
    collate_to_torch,
    compare_with_original,
    last_row_of,
    rows_that_follow,
    whole_number,
)


def pairs(memory: GenericTorchMemory) -> list[tuple[Any, Any]]:
    found = []
    for item in range(len(memory)):
        prev_obs, act, rew, obs, _, _, _ = memory.get_transition(item)
        assert act[0] == rew == obs[2]
        found.append((tuple(prev_obs.astype(int).tolist()), tuple(obs.astype(int).tolist())))
    return found


def test_both_memories_make_the_same_transitions(make_rows: Any, make_buffer: Any) -> None:
    generator = np.random.default_rng(0)
    generic, columnar = GenericTorchMemory(memory_size=10_000), ReplayMemory(memory_size=10_000)
    state = {stream: [0, 0] for stream in (1, 2, 3)}
    for _ in range(300):
        stream, rows = int(generator.integers(1, 4)), int(generator.integers(1, 6))
        episode, step = state[stream]
        end = "terminated" if generator.random() < 0.2 else None
        chunk = make_rows(stream, episode, step, rows, end=end)
        state[stream] = [episode + 1, 0] if end or generator.random() < 0.1 else [episode, step + rows]
        if generator.random() < 0.1:
            continue  # lost on the way
        for memory in (generic, columnar):
            memory.append(make_buffer([chunk]))
    expected = [
        tuple(tuple(part.astype(int).tolist()) for part in (prev_obs, obs))
        for prev_obs, _, _, obs, _, _, _ in map(columnar.get_transition, range(len(columnar)))
    ]
    assert len(expected) > 400
    assert sorted(pairs(generic)) == sorted(expected)
    assert all(a[:2] == b[:2] and b[2] == a[2] + 1 for a, b in expected)


def test_a_tmrl_style_buffer_works_without_any_networking() -> None:
    buffer = Buffer(maxlen=100)
    for episode in range(2):
        buffer.append_sample((None, np.array([episode, 0.0], np.float32), 0.0, False, False, {}))
        for step in range(1, 4):
            obs = np.array([episode, step], np.float32)
            buffer.append_sample((np.array([step], np.float32), obs, float(step), step == 3, False, {"s": step}))
    memory = GenericTorchMemory(memory_size=1e3, batch_size=4, nb_steps=2, device="cpu")
    memory.append(buffer)
    assert len(memory) == 6
    assert memory.get_transition(2)[4] is True
    assert memory.get_transition(2)[6] == {"s": 3}
    batches = list(memory)
    assert len(batches) == 2
    prev_obs, act, rew, obs, terminated, truncated = batches[0]
    assert prev_obs.shape == obs.shape == (4, 2)
    assert torch.equal(act[:, 0], rew)
    assert torch.equal(terminated, (rew == 3).float())
    assert (terminated.dtype, truncated.dtype, rew.dtype) == (torch.float32,) * 3


def test_the_oldest_samples_go(make_rows: Any, make_buffer: Any) -> None:
    memory = GenericTorchMemory(memory_size=20)
    for first in range(0, 100, 5):
        memory.append(make_buffer([make_rows(1, 0, first, 5)]))
        assert len(memory) <= 20
        assert len(memory.data[0]) <= 21
    assert [b[2] for _, b in pairs(memory)][-3:] == [97, 98, 99]
    assert pairs(memory)[0][1][2] >= 79


def test_the_preprocessor_runs_before_flags_become_float32(make_rows: Any, make_buffer: Any) -> None:
    def flip(prev_obs: Any, act: Any, rew: Any, obs: Any, terminated: Any, truncated: Any) -> Any:
        assert isinstance(terminated, bool)
        return -prev_obs, act, rew, -obs, terminated, truncated

    memory = GenericTorchMemory(sample_preprocessor=flip, memory_size=20)
    memory.append(make_buffer([make_rows(1, 0, 0, 3, end="truncated")]))
    *_, obs, terminated, truncated = memory[1]
    assert obs.tolist() == [-1, 0, -2]
    assert (terminated, truncated) == (0.0, 1.0)
    assert truncated.dtype == np.float32


def test_crc_debug_names_the_difference(make_rows: Any, make_buffer: Any) -> None:
    chunk = make_rows(1, 0, 0, 3)
    chunk.info[2] = {"crc_sample": (chunk.observation[1], chunk.action[2], chunk.observation[2], 9.0, False, False)}
    memory = GenericTorchMemory(crc_debug=True)
    memory.append(make_buffer([chunk]))
    memory[0]
    with pytest.raises(ValueError, match="crc_debug: rew"):
        memory[1]


def test_nested_values_are_compared_leaf_by_leaf() -> None:
    obs = {"a": (np.arange(3), 1.5)}
    rebuilt = (obs, np.ones(1), 0.5, {"a": (np.arange(3), 1.5)}, True, False)
    compare_with_original((obs, np.ones(1), {"a": [np.arange(3), 1.5]}, 0.5, True, False), rebuilt)
    with pytest.raises(ValueError, match="obs/a/0"):
        compare_with_original((obs, np.ones(1), {"a": [np.arange(3)[::-1], 1.5]}, 0.5, True, False), rebuilt)
    with pytest.raises(ValueError, match="another structure"):
        compare_with_original((obs, np.ones(1), {"b": 1}, 0.5, True, False), rebuilt)


def test_statistics_are_the_latest_episodes(make_rows: Any, make_buffer: Any) -> None:
    records = [
        EpisodeRecord("", -3.0, 7, "train", "truncated"),
        EpisodeRecord("", -1.0, 5, "train", "terminated"),
        EpisodeRecord("", -9.0, 6, "test", "truncated"),
    ]
    for memory in (GenericTorchMemory(), ReplayMemory()):
        memory.append(make_buffer([], records))
        assert (memory.stat_train_return, memory.stat_train_steps) == (-1.0, 5)
        assert (memory.stat_test_return, memory.stat_test_steps) == (-9.0, 6)


def test_the_return_is_nan_before_the_first_episode() -> None:
    for memory in (GenericTorchMemory(), ReplayMemory()):
        assert np.isnan([memory.stat_train_return, memory.stat_test_return]).all()
        assert (memory.stat_train_steps, memory.stat_test_steps) == (0, 0)


def test_the_return_of_an_aborted_episode_is_left_out(make_buffer: Any) -> None:
    records = [EpisodeRecord("", -1.0, 5, "train", "terminated"), EpisodeRecord("", -0.5, 2, "train", "aborted")]
    for memory in (GenericTorchMemory(), ReplayMemory()):
        memory.append(make_buffer([], records))
        assert (memory.stat_train_return, memory.stat_train_steps) == (-1.0, 5)


def test_episodes_of_an_evaluation_are_not_test_episodes(make_buffer: Any) -> None:
    for memory in (GenericTorchMemory(), ReplayMemory()):
        memory.append(make_buffer([], [EpisodeRecord("", -9.0, 6, "test", "truncated", evaluation=3)]))
        assert np.isnan(memory.stat_test_return)
        assert memory.stat_test_steps == 0


class Picky(TorchMemory):
    """A memory of one's own that takes two rows at a time."""

    def append_buffer(self, buffer: Buffer) -> None:
        if len(buffer) != 2:
            raise SampleRefusedError("two rows, please")
        self.data.append(buffer)

    def __len__(self) -> int:
        return len(self.data)

    def get_transition(self, item: int) -> Any:
        sample = self.data[item].memory[1]
        return sample[1], sample[0], sample[2], sample[1], sample[3], sample[4], sample[5]


def test_a_custom_memory_refuses_complete_buffers(make_rows: Any, make_buffer: Any) -> None:
    memory = Picky("cpu", 1, batch_size=3)
    assert memory.append(make_buffer([make_rows(1, 0, 0, 2)])) == []
    ((chunk, reason),) = memory.append(make_buffer([make_rows(1, 0, 2, 3)]))
    assert chunk.rows == 3
    assert "two rows" in str(reason)
    assert next(iter(memory))[0].shape == (3, 3)


def test_collating_keeps_the_nesting() -> None:
    rows = [{"a": (np.ones(2, np.float32) * i, i), "b": float(i)} for i in range(3)]
    batch = collate_to_torch(rows, "cpu")
    assert batch["a"][0].tolist() == [[0, 0], [1, 1], [2, 2]]
    assert batch["a"][1].dtype == torch.int64
    assert batch["b"].dtype == torch.float32


def test_sampling_from_an_empty_memory_is_an_error() -> None:
    with pytest.raises(ValueError, match="no transition"):
        GenericTorchMemory().sample()


def test_sizes_may_be_floats_and_must_be_whole() -> None:
    assert GenericTorchMemory(memory_size=1e6).memory_size == 1_000_000
    with pytest.raises(ConfigError, match="batch_size"):
        GenericTorchMemory(batch_size=0.5)


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_rows_that_follow_equals_a_slow_loop(data: st.DataObject) -> None:
    segments, episode, step = [], 1, 0
    for _ in range(data.draw(st.integers(1, 4))):
        rows = data.draw(st.integers(0, 3))
        segments.append(Segment(rows, episode, step, 1, 1))
        step += rows + data.draw(st.sampled_from([0, 0, 1]))
        if data.draw(st.booleans()):
            episode, step = episode + 1, data.draw(st.integers(0, 1))
    count = sum(segment.rows for segment in segments)
    if not count:
        return

    def flags() -> Any:
        return np.array(data.draw(st.lists(st.booleans(), min_size=count, max_size=count)))

    chunk = Chunk(
        rows=count,
        action=np.zeros(count, np.float32),
        action_present=flags(),
        observation=np.zeros(count, np.float32),
        reward=np.zeros(count),
        terminated=flags(),
        truncated=flags(),
        segments=tuple(segments),
    )
    first = LastRow(data.draw(st.integers(1, 2)), data.draw(st.integers(-1, 1)))
    for last in (None, first):
        expected, place = [], None if last is None else (last.episode, last.step)
        for row in range(count):
            now = int(chunk.episode[row]), int(chunk.step[row])
            joined = place is not None and place[0] == now[0] and place[1] + 1 == now[1]
            ended = row > 0 and (chunk.terminated[row - 1] or chunk.truncated[row - 1])
            expected.append(bool(joined and not ended and chunk.action_present[row]))
            place = now
        assert rows_that_follow(chunk, last).tolist() == expected
    assert last_row_of(chunk) == LastRow(int(chunk.episode[-1]), int(chunk.step[-1]))


@pytest.mark.parametrize("size", [0, -1, 0.5, math.nan, math.inf, 1e30, True, None, "10", [10]])
def test_invalid_sizes_are_refused(size: Any) -> None:
    with pytest.raises(ConfigError, match="memory_size must be a whole number of at least 1"):
        whole_number(size, "memory_size")


def test_a_size_may_be_a_whole_float() -> None:
    assert [whole_number(size, "n") for size in (1, 1e6, np.int64(3), np.float32(4))] == [1, 1_000_000, 3, 4]
