from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch

from tmrl_core.errors import ConfigError
from tmrl_core.samples import Buffer
from tmrl_core.training import ReplayMemory
from tmrl_core.training.memories.mixed import MixedMemory

LIVE, RECORDED = 1, 2
"""First number of the observations of each kind."""


def make(batch_size: int = 8, share: float = 0.5, live: Any = ReplayMemory, **kwargs: Any) -> MixedMemory:
    return MixedMemory(
        partial(live, memory_size=50, seed=0),
        partial(ReplayMemory, memory_size=50, seed=1, **kwargs),
        batch_size=batch_size,
        shares={"online": 1 - share, "demonstrations": share},
        nb_steps=20,
    )


def filled(make_rows: Any, make_buffer: Any, **settings: Any) -> MixedMemory:
    memory = make(**settings)
    memory.for_sessions.append(make_buffer([make_rows(RECORDED, 0, 0, 11)]))
    memory.append(make_buffer([make_rows(LIVE, 0, 0, 11)]))
    return memory


@pytest.mark.parametrize(("batch_size", "share", "recorded"), [(8, 0.5, 4), (10, 0.25, 2), (4, 0.8, 3), (3, 0.5, 1)])
def test_each_batch_has_the_share_of_recorded_rows(
    make_rows: Any, make_buffer: Any, batch_size: int, share: float, recorded: int
) -> None:
    memory = filled(make_rows, make_buffer, batch_size=batch_size, share=share)
    count = 0
    for batch in memory:
        assert batch[0][:, 0].tolist() == [LIVE] * (batch_size - recorded) + [RECORDED] * recorded
        assert [len(column) for column in batch] == [batch_size] * 6
        count += 1
    assert count == 20


def test_a_share_of_less_than_a_row_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"memory.shares: .* of memory.batch_size = 8 rows are .*at least 1"):
        make(share=0.01)


def test_a_share_needs_a_memory_and_a_memory_a_share() -> None:
    with pytest.raises(ConfigError, match=r"memory.shares.demonstrations: 0 of a batch, but there is a memory"):
        make(share=0.0)
    with pytest.raises(ConfigError, match=r"memory.shares.interventions: 0.5 of a batch, and there is no memory"):
        MixedMemory(ReplayMemory, shares={"online": 0.5, "interventions": 0.5})


def test_live_samples_replace_no_recorded_ones(make_rows: Any, make_buffer: Any) -> None:
    memory = filled(make_rows, make_buffer)
    for episode in range(1, 30):
        memory.append(make_buffer([make_rows(LIVE, episode, 0, 11)]))
    assert (len(memory.live), len(memory.for_sessions), len(memory)) == (50, 10, 60)
    assert memory.memory_size == 100


def test_nothing_can_be_sampled_before_live_samples(make_rows: Any, make_buffer: Any) -> None:
    memory = make()
    memory.for_sessions.append(make_buffer([make_rows(RECORDED, 0, 0, 11)]))
    assert len(memory) == memory.sampleable == 0
    memory.append(make_buffer([make_rows(LIVE, 0, 0, 3)]))
    assert len(memory) == memory.sampleable == 12


def test_priorities_reach_the_memory_of_each_row(make_rows: Any, make_buffer: Any) -> None:
    memory = filled(make_rows, make_buffer, live=partial(ReplayMemory, priority={}), priority={})
    for number, batch in enumerate(memory):
        indices = batch[6]["indices"]
        assert batch[6]["weights"].shape == (8,)
        # Only transition 3 of live and transition 7 of recorded samples have errors.
        errors = torch.cat([(indices[:4] == 3).float(), (indices[4:] == 7).float()])
        memory.update_priorities(indices, 1000 * errors)
        if number > 15:
            assert (indices[:4] == 3).any()
            assert (indices[4:] == 7).any()


def test_extras_that_one_kind_lacks_are_zeros(make_rows: Any) -> None:
    memory = make(live=partial(ReplayMemory, keep_extras=True), keep_extras=True)
    live, recorded = make_rows(LIVE, 0, 0, 11), make_rows(RECORDED, 0, 0, 11)
    live.extras["logp"] = live.reward.copy() + 1
    for target, chunk in ((memory.live, live), (memory.for_sessions, recorded)):
        buffer = Buffer(maxlen=None)
        buffer.extend([chunk])
        target.append(buffer)
    for batch in memory:
        logp = batch[6]["logp"]
        assert (logp[:4] > 0).all()
        assert logp[4:].tolist() == [0] * 4
