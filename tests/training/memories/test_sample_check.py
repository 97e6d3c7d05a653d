"""Samples that are not finite: refused before they are stored."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from tmrl_core.errors import SampleRefusedError
from tmrl_core.samples import Buffer, Chunk
from tmrl_core.training import ReplayMemory
from tmrl_core.training.loops.round_memory import RoundMemory
from tmrl_core.training.memories.sample_check import check_samples
from tmrl_core.training.memories.sample_schema import DeclaredSamples

BAD = (math.nan, math.inf, -math.inf)


def buffer(*chunks: Chunk) -> Buffer:
    made = Buffer(maxlen=None)
    made.extend(list(chunks), [])
    return made


def declared(chunk: Chunk) -> DeclaredSamples:
    def space(column: Any) -> spaces.Box:
        return spaces.Box(-1e9, 1e9, column.shape[1:], column.dtype)

    return DeclaredSamples(space(chunk.observation), space(chunk.action), {"observation", "action"})


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("where", ["observation", "action", "reward", "extra logp"])
def test_the_field_that_is_not_finite_is_named(make_rows: Any, where: str, bad: float) -> None:
    chunk = dataclasses.replace(make_rows(1, 0, 0, 40), extras={"logp": np.zeros(40, np.float32)})
    check_samples(chunk)
    column = chunk.extras["logp"] if where == "extra logp" else getattr(chunk, where)
    column[3] = column[7] = bad
    with pytest.raises(SampleRefusedError, match=rf"the {where} holds NaN or an infinite number in 2 of 40 samples"):
        check_samples(chunk)


def test_large_float64_numbers_are_refused_only_if_stored_as_float32(make_rows: Any) -> None:
    chunk = dataclasses.replace(make_rows(1, 0, 0, 4), reward=np.full(4, 3e38, np.float32))
    check_samples(chunk)
    nested = {"a": np.full((4, 2), 1e300), "b": (np.zeros(4, np.uint8),)}
    chunk = dataclasses.replace(make_rows(1, 0, 0, 4), observation=nested)
    check_samples(chunk)
    with pytest.raises(SampleRefusedError, match="the observation/a holds"):
        check_samples(chunk, as_float32=True)


def test_rewards_and_extras_that_float32_cannot_hold_are_refused(make_rows: Any) -> None:
    chunk = make_rows(1, 0, 0, 4)
    for name, changed in (
        ("reward", dataclasses.replace(chunk, reward=np.full(4, 1e300))),
        ("extra logp", dataclasses.replace(chunk, extras={"logp": np.full(4, -1e300)})),
    ):
        with pytest.raises(SampleRefusedError, match=f"the {name} holds"):
            check_samples(changed)


def test_numbers_that_become_infinite_in_a_round_are_refused(make_rows: Any) -> None:
    """Agents skip the whole round otherwise, with the samples of all workers."""
    memory, chunk = RoundMemory(), make_rows(1, 0, 0, 5, dtype=np.float64)
    memory.declared = declared(chunk)
    chunk.observation[3] = 1e300
    ((_, why),) = memory.append(buffer(chunk))
    assert "the observation holds NaN or an infinite number in 1 of 5 samples" in str(why)


@pytest.mark.parametrize("storage", ["disk", "declared", "lockstep"])
def test_rows_that_are_not_finite_never_reach_the_store(make_rows: Any, tmp_path: Path, storage: str) -> None:
    memory: Any
    if storage == "lockstep":
        memory = RoundMemory()
    elif storage == "disk":
        memory = ReplayMemory(memory_size=100, batch_size=8, seed=0, storage="disk", folder=tmp_path)
    else:
        memory = ReplayMemory(memory_size=100, batch_size=8, seed=0)
    good, bad = make_rows(1, 0, 0, 20), make_rows(2, 0, 0, 20)
    if storage != "disk":
        memory.declared = declared(good)
    bad.reward[5] = math.nan
    assert memory.append(buffer(good)) == []
    ((refused, why),) = memory.append(buffer(bad))
    assert refused is bad
    assert "the reward holds NaN" in str(why)
    if storage != "lockstep":
        assert len(memory) == 19
        assert memory.append(buffer(make_rows(2, 0, 20, 5))) == []
        assert len(memory) == 23, "not joined across what was refused"
        memory.close()
