"""Every agent resumes from a checkpoint of any memory as if it had not been interrupted."""

from __future__ import annotations

import functools
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.training.test_parameters import (
    ACTIONS,
    AGENTS,
    BATCH,
    FRAMES,
    MEMORIES,
    NAMES,
    NORMALIZED,
    PPO,
    VECTOR,
    Feed,
    parameters_of,
)
from tmrl_core.training import (
    FrameStackMemory,
    GenericTorchMemory,
    PPOAgent,
    SpinupSacAgent,
    TrainingLockstep,
    TrainingOffline,
)
from tmrl_core.training.interface import Delivery


class Asked(Feed):
    """Hands over one message each time that it is asked; a resumed trainer publishes once more."""

    def __init__(self, actions: str, stacked: bool) -> None:
        super().__init__(actions, stacked, lockstep=False)
        self._on_publish = None

    def receive(self) -> list[Delivery]:
        self._feed(None, (1, 2))
        deliveries: list[Delivery] = super().receive()
        return deliveries

    def wait(self, timeout_s: float) -> bool:
        return True  # there is always another one


KINDS = {**MEMORIES, "row_by_row": (GenericTorchMemory, {})}
STORED = {"uniform": "disk", "frames_n_step_prioritized": "disk"}
"""Memories on disk; the others are in RAM."""


class Off:
    """Training of one agent from one kind of memory, in a folder of its own."""

    def __init__(self, agent: str, kind: str) -> None:
        self.actions, self._agent, self._settings = AGENTS.get(agent, ("box", SpinupSacAgent, AGENTS["sac"][2]))
        self._memory, self._arguments = KINDS[kind]
        self._storage = {} if self._memory is GenericTorchMemory else {"storage": STORED.get(kind, "ram"), "seed": 3}
        self.stacked = self._memory is FrameStackMemory

    def make(self, folder: Path) -> Any:
        where = {"folder": folder / "memory"} if self._storage.get("storage") == "disk" else {}
        arguments = {**self._arguments, **self._storage, **where}
        return TrainingOffline(
            (FRAMES if self.stacked else VECTOR, ACTIONS[self.actions]),
            functools.partial(self._memory, memory_size=60, batch_size=BATCH, **arguments),
            functools.partial(self._agent, **self._settings),
            epochs=2,
            rounds=1,
            steps=20,
            update_model_interval=10,
            update_buffer_interval=5,
            start_training=30,
            device="cpu",
            threads=1,
        )

    def feed(self) -> Feed:
        return Asked(self.actions, self.stacked)

    def next_feed(self, training: Any, feed: Feed) -> Feed:
        """Return the source of the next epoch's samples: they continue the open episodes."""
        return feed


class Rounds:
    """Training of PPO in lockstep."""

    def __init__(self, actions: str, **settings: Any) -> None:
        self.actions, self._settings = actions, settings

    def make(self, folder: Path) -> Any:
        return TrainingLockstep(
            (VECTOR, ACTIONS[self.actions]),
            training_agent_cls=functools.partial(PPOAgent, **{**PPO, **self._settings}),
            epochs=2,
            rounds=2,
            min_workers=len(NAMES),
            steps_per_round=32,
            device="cpu",
            threads=1,
        )

    def feed(self) -> Feed:
        return Feed(self.actions, stacked=False, lockstep=True)

    def next_feed(self, training: Any, feed: Feed) -> Feed:
        """Return the source of the next epoch's samples, whose versions continue those of the training object."""
        return Feed(self.actions, stacked=False, lockstep=True, counter=training.versions_before)


CASES: dict[str, Off | Rounds] = {
    "sac-uniform": Off("sac", "uniform"),
    "sac-row_by_row": Off("sac", "row_by_row"),
    "spinup_sac-n_step": Off("spinup_sac", "n_step"),
    "td3-prioritized": Off("td3", "prioritized"),
    "redq-n_step": Off("redq", "n_step"),
    "dqn-frames": Off("dqn", "frames"),
    "dqn-frames_n_step_prioritized": Off("dqn", "frames_n_step_prioritized"),
    "discrete_sac-frames": Off("discrete_sac", "frames"),
    "discrete_sac-row_by_row": Off("discrete_sac", "row_by_row"),
    "ppo-box": Rounds("box", **NORMALIZED),
    "ppo-discrete": Rounds("discrete"),
}


def learned(training: Any) -> list[bytes]:
    return [array.tobytes() for array in parameters_of(training.agent)]


QUICK = (
    "sac-uniform",
    "td3-prioritized",
    "redq-n_step",
    "dqn-frames_n_step_prioritized",
    "discrete_sac-row_by_row",
    "ppo-box",
)
"""Each memory and each family of agents once."""


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.full) for name in CASES]
)
def test_training_resumes_bit_for_bit_and_the_loaded_state_can_be_saved(name: str, tmp_path: Path) -> None:
    case = CASES[name]

    def begun(folder: Path) -> tuple[Any, Feed]:
        """The training object after its first epoch, and the source of the samples of the second one."""
        torch.manual_seed(7)
        training, feed = case.make(folder), case.feed()
        training.run_epoch(feed)
        return training, feed

    training, feed = begun(tmp_path / "whole")
    training.save(tmp_path / "saved")
    first = learned(training)
    training.run_epoch(case.next_feed(training, feed))
    expected = learned(training)
    assert expected != first
    training.memory.close()

    interrupted, feed = begun(tmp_path / "resumed")
    assert learned(interrupted) == first
    interrupted.memory.close()
    for seed, (before, after) in enumerate((("saved", "again"), ("again", "last"))):
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed)
        resumed = case.make(tmp_path / "resumed")
        resumed.load(tmp_path / before)
        assert learned(resumed) == first
        resumed.save(tmp_path / after)
        if after == "last":
            resumed.run_epoch(case.next_feed(resumed, feed))
            assert learned(resumed) == expected
            assert (resumed.epoch, resumed.total_updates) == (training.epoch, training.total_updates)
        resumed.memory.close()
