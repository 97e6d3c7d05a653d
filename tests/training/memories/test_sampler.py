"""A sampling rule of one's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tmrl_core.errors import ConfigError
from tmrl_core.training import FrameStackMemory, ReplayMemory
from tmrl_core.training.memories.rows import Rows
from tmrl_core.training.memories.sampler import Sampler


class NewestHalf(Sampler):
    """Sample uniformly from the newer half of the transitions."""

    def sample(
        self, rows: Rows, generator: np.random.Generator, batch_size: int, batches: int
    ) -> tuple[Any, dict[str, Any]]:
        oldest = rows.readable - (len(rows) + 1) // 2
        indices = generator.integers(oldest, rows.readable, batch_size * batches)
        return rows.positions_of(indices), {"age": (rows.readable - indices).astype(np.float32)}


@pytest.fixture(params=["ram", "disk"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    def made(name: str = "one", **settings: Any) -> ReplayMemory:
        where: Any = {"storage": "disk", "folder": tmp_path / name} if request.param == "disk" else {}
        return ReplayMemory(memory_size=40, batch_size=16, seed=1, sampler=NewestHalf(), **where, **settings)

    return made


def test_a_custom_sampler_chooses_the_transitions(make: Any, make_rows: Any) -> None:
    memory = make(nb_steps=20)
    for episode in range(5):
        memory.append_chunk(make_rows(1, episode, 0, 13, end="terminated"))
    found: set[int] = set()
    for batch in memory:
        _, episode, step = batch[3].T[:3].int()
        indices = 12 * episode + step - 1
        torch.testing.assert_close(batch[6]["age"], 60.0 - indices)
        found |= set(indices.tolist())
    assert found == set(range(40, 60))
    assert memory.sampleable == 40
    memory.close()


def test_batches_of_a_custom_sampler_resume_and_do_not_depend_on_prefetching(make: Any, make_rows: Any) -> None:
    memories = [make("one"), make("two", prefetch=2)]
    for memory in memories:
        memory.append_chunk(make_rows(1, 0, 0, 30))
        for _ in range(5):
            memory.sample()
    state = memories[0].state_dict()
    rows = [ring[: memories[0].written].copy() for ring in memories[0].row_arrays]
    expected = [memories[0].sample() for _ in range(9)]
    memories[0].close()
    memories.append(make("one"))
    memories[2].load_state_dict(state, rows)
    for memory in memories[1:]:
        for one in expected:
            other = memory.sample()
            assert all(torch.equal(left, right) for left, right in zip(one[:6], other[:6], strict=True))
        memory.close()


def test_a_custom_sampler_samples_frame_stacks() -> None:
    memory = FrameStackMemory(memory_size=10, sampler=NewestHalf())
    assert isinstance(memory.sampler, NewestHalf)


def test_two_rules_are_refused() -> None:
    others: list[dict[str, Any]] = [{"priority": {}}, {"max_drawn_lag": 3}]
    for other in others:
        with pytest.raises(ConfigError, match="either a sampler, or priority and max_drawn_lag"):
            ReplayMemory(sampler=NewestHalf(), **other)
