"""The project's memories, and one that derives from nothing, hold to the promises of a memory."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from tests.training.test_contracts import Rewards
from tmrl_core.samples import Chunk
from tmrl_core.testing.memories import MemorySuite
from tmrl_core.training import GenericTorchMemory, ReplayMemory
from tmrl_core.training.memories.frame_stack_memory import FrameStackMemory
from tmrl_core.training.memories.sequences import SequenceMemory

KINDS: dict[str, dict[str, Any]] = {
    "uniform": {},
    "prioritized": {"priority": {}},
    "n_step": {"n_step": 3},
    "recent": {"max_drawn_lag": 4},
    "prefetched": {"prefetch": 2},
    "disk": {"storage": "disk"},
}
QUICK = ("uniform", "prioritized", "disk")
"""Those of memories that inherit what the others need from the replay memory."""


def each(kinds: Iterable[str]) -> list[Any]:
    return [kind if kind in QUICK else pytest.param(kind, marks=pytest.mark.full) for kind in kinds]


def settings_of(kind: str, folder: Path) -> dict[str, Any]:
    return {**KINDS[kind], "folder": folder / "memory"} if kind == "disk" else KINDS[kind]


class TestReplayMemory(MemorySuite):
    @pytest.fixture(autouse=True, params=KINDS)
    def choose(self, request: pytest.FixtureRequest, tmp_path: Path) -> None:
        self.settings = settings_of(request.param, tmp_path)

    def make_memory(self) -> ReplayMemory:
        return ReplayMemory(memory_size=100, batch_size=4, seed=0, nb_steps=3, **self.settings)


class TestFrameStackMemory(TestReplayMemory):
    observation_space = gym.spaces.Box(0, 255, (4, 3, 3), np.uint8)

    @pytest.fixture(autouse=True, params=each(KINDS))
    def choose(self, request: pytest.FixtureRequest, tmp_path: Path) -> None:
        self.settings = settings_of(request.param, tmp_path)

    def make_chunk(self, **kwargs: Any) -> Chunk:
        """Stack each frame on those before it."""
        chunk = super().make_chunk(**kwargs)
        assert isinstance(chunk.observation, np.ndarray)
        frames = np.concatenate([chunk.observation[:1, 0].repeat(3, axis=0), chunk.observation[:, 0]])
        return replace(chunk, observation=np.stack([frames[i : i + 4] for i in range(chunk.rows)]))

    def make_memory(self) -> FrameStackMemory:
        return FrameStackMemory(memory_size=100, batch_size=4, seed=0, nb_steps=3, **self.settings)


class TestSequenceMemory(TestReplayMemory):
    @pytest.fixture(autouse=True, params=each(kind for kind in KINDS if kind != "n_step"))
    def choose(self, request: pytest.FixtureRequest, tmp_path: Path) -> None:
        self.settings = settings_of(request.param, tmp_path)

    def make_memory(self) -> SequenceMemory:
        return SequenceMemory(memory_size=100, batch_size=4, seed=0, nb_steps=3, length=4, **self.settings)


class TestGenericTorchMemory(MemorySuite):
    def make_memory(self) -> GenericTorchMemory:
        return GenericTorchMemory(memory_size=100, batch_size=4, nb_steps=3)


class TestAMemoryOfOnesOwn(MemorySuite):
    def make_memory(self) -> Rewards:
        return Rewards(3, None)
