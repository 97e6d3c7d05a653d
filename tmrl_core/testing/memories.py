"""Promises of a memory, as tests for pytest to collect.

class TestMyMemory(MemorySuite):
    def make_memory(self):
        return MyMemory(batch_size=4)
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from tmrl_core.errors import SampleRefusedError
from tmrl_core.samples import Chunk, EpisodeRecord
from tmrl_core.testing.random_samples import ACTIONS, OBSERVATIONS, buffer_of, random_chunk
from tmrl_core.training.contracts import MemoryLike, as_memory


class MemorySuite:
    """Subclass it in a test file and implement `make_memory`."""

    observation_space: gym.Space[Any] = OBSERVATIONS
    action_space: gym.Space[Any] = ACTIONS

    def make_memory(self) -> MemoryLike:
        """Make an empty memory for at least 100 samples, with batches of at most 8."""
        raise NotImplementedError("implement make_memory")

    def make_chunk(self, **kwargs: Any) -> Chunk:
        """Make samples of one episode. The arguments are those of `random_chunk`."""
        return random_chunk(self.observation_space, self.action_space, **kwargs)

    def test_a_new_memory_is_empty(self) -> None:
        """An empty memory has length 0, so that a loop waits for transitions."""
        assert len(self.make_memory()) == 0

    def test_an_episode_makes_transitions(self) -> None:
        """Samples of the memory's spaces are not refused."""
        memory = self.make_memory()
        assert not memory.append(buffer_of(self.make_chunk()))
        assert 0 < len(memory) <= 10

    def test_a_message_without_samples_changes_nothing(self) -> None:
        """Messages may contain only episode records."""
        memory = self.make_memory()
        record = EpisodeRecord("", 1.0, 3, "train", "truncated")
        assert not memory.append(buffer_of(records=(record,)))
        assert len(memory) == 0

    def test_statistics_are_those_of_the_latest_episode(self) -> None:
        """Training and test episodes count separately. Episodes of an evaluation do not count."""
        memory = as_memory(self.make_memory())
        first, second = (EpisodeRecord("", value, 3, "train", "truncated") for value in (1.0, 2.0))
        memory.append(buffer_of(records=(first, second)))
        memory.append(buffer_of(records=(EpisodeRecord("", 9.0, 3, "test", "truncated", evaluation=1),)))
        assert memory.stat_train_return == 2.0
        assert np.isnan(memory.stat_test_return)

    def test_each_iteration_yields_batches(self) -> None:
        """A memory can be iterated repeatedly, because a loop iterates again when it needs more batches."""
        memory = self.make_memory()
        memory.append(buffer_of(self.make_chunk(rows=30)))
        for _ in range(2):
            assert next(iter(memory), None) is not None

    def test_new_samples_can_come_between_batches(self) -> None:
        """Samples may be appended during an iteration."""
        memory = self.make_memory()
        memory.append(buffer_of(self.make_chunk(rows=30)))
        batches = iter(memory)
        next(batches)
        memory.append(buffer_of(self.make_chunk(rows=30, episode=1)))
        assert next(batches, None) is not None or next(iter(memory), None) is not None

    def test_refusals_name_chunks_and_reasons(self) -> None:
        """Samples of another shape are refused or stored. Earlier samples stay."""
        memory = self.make_memory()
        memory.append(buffer_of(self.make_chunk()))
        before = len(memory)
        other = random_chunk(gym.spaces.Box(0, 1, (7, 2), np.float64), self.action_space, stream=2)
        for chunk, reason in memory.append(buffer_of(other)) or ():
            assert chunk.rows == other.rows
            assert isinstance(reason, SampleRefusedError)
            assert len(memory) == before
            assert next(iter(memory), None) is not None

    def test_capabilities_fit_each_other(self) -> None:
        """Declared capabilities return values in bounds, before and after samples arrive."""
        memory = as_memory(self.make_memory())
        for rows in (0, 30):
            if rows:
                memory.append(buffer_of(self.make_chunk(rows=rows)))
                memory.note_version(1)
                batch = next(iter(memory))
                if isinstance(batch, tuple) and len(batch) > 6 and "indices" in batch[6]:
                    memory.update_priorities(batch[6]["indices"], np.ones(len(batch[2])))
            assert 0 <= memory.sampleable <= len(memory)
            assert memory.prefetched >= 0
            assert memory.batch_size >= 1
            lag = memory.pop_sampled_lag()
            assert lag is None or 0 <= lag[0] <= lag[1]
        memory.close()
        memory.close()

    def test_a_checkpoint_restores_the_transitions(self, tmp_path: Path) -> None:
        """The memory's attributes, or its `state_dict`, hold the complete state."""
        from tmrl_core.training.loops.training_loop import TrainingOffline

        def make() -> TrainingOffline:
            spaces = (self.observation_space, self.action_space)
            return TrainingOffline(spaces, lambda **_: self.make_memory(), _NoAgent, device="cpu")

        training = make()
        training.memory.append(buffer_of(self.make_chunk(rows=30)))
        training.save(tmp_path / "checkpoint")
        as_memory(training.memory).close()
        resumed = make()
        resumed.load(tmp_path / "checkpoint")
        assert len(resumed.memory) == len(training.memory)
        assert next(iter(resumed.memory), None) is not None
        as_memory(resumed.memory).close()


class _NoAgent:
    """An agent that learns nothing."""

    def __init__(self, **kwargs: Any) -> None:
        pass

    def train(self, batch: Any) -> dict[str, Any]:
        return {}

    def get_actor(self) -> None:
        return None
