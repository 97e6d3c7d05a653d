"""The band of samples per insert in the training loop, with a replay memory and an agent that only counts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from tmrl_core.errors import ConfigError
from tmrl_core.training.agent import TrainingAgent
from tmrl_core.training.interface import LocalInterface
from tmrl_core.training.loops.training_loop import TrainingOffline
from tmrl_core.training.memories.replay import ReplayMemory

SPACES = (gym.spaces.Box(-10, 10, (3,), np.float32), gym.spaces.Box(-1, 1, (1,), np.float32))
BATCH = 4


class Counting(TrainingAgent):
    """Learns nothing."""

    def train(self, batch: Any) -> dict[str, Any]:
        return {}

    def get_actor(self) -> int:
        return 0


class Worker(LocalInterface):
    """Brings an episode of `rows` samples each time that it is waited for, and with every look at once if `eager`."""

    def __init__(self, make_rows: Any, make_buffer: Any, rows: int = 5, eager: bool = False) -> None:
        super().__init__()
        self.eager = eager
        self.episodes = 0
        self._make: Callable[[], Any] = lambda: make_buffer([make_rows(1, self.episodes, 0, rows, end="truncated")])
        self.lacks: list[str] = []
        self.looks: list[int] = []

    def _bring(self) -> None:
        self.put(self._make())
        self.episodes += 1

    def receive(self) -> Any:
        if self.eager:
            self._bring()
        return super().receive()

    def wait(self, timeout_s: float) -> bool:
        if timeout_s == 0:
            self.looks.append(self.episodes)
            return False
        self.lacks.append(self.progress.lack)
        self._bring()
        return True


def make(**settings: Any) -> TrainingOffline:
    defaults: dict[str, Any] = {
        "epochs": 4,
        "rounds": 1,
        "steps": 100,
        "start_training": 20,
        "update_buffer_interval": 1,
        "max_training_steps_per_env_step": 1e9,
    }
    return TrainingOffline(
        SPACES,
        lambda nb_steps, device: ReplayMemory(device, nb_steps, memory_size=10_000, batch_size=BATCH, seed=0),
        Counting,
        **{**defaults, **settings},
    )


def off(training: TrainingOffline, ratio: float, stored: int = 20, sampled: int = 0) -> float:
    """By how many draws it is beside the middle of the band."""
    return (training.sampled - sampled) - ratio * (training.total_samples - stored)


def test_training_waits_above_the_band_and_reports_the_reason(make_rows: Any, make_buffer: Any) -> None:
    interface = Worker(make_rows, make_buffer)
    training = make(samples_per_insert=2.0, error_buffer=16.0)
    training.run_epoch(interface)
    assert training.sampled == 100 * BATCH
    assert 0 < off(training, 2.0) <= 16
    assert training.limiter.updates_left(training.total_samples + 5, training.total_updates)
    assert interface.lacks[-1].endswith(
        "is above 2 for each (trainer.limiter.samples_per_insert) after the first 20, and 16 over"
    )


def test_samples_wait_below_the_band(make_rows: Any, make_buffer: Any) -> None:
    interface = Worker(make_rows, make_buffer, eager=True)
    training = make(samples_per_insert=2.0, error_buffer=16.0)
    training.run_epoch(interface)
    # A look brings 5 samples, of which the first may be just within the band.
    assert -16 - 2 * 5 <= off(training, 2.0) <= -16 + 2 * 5
    assert interface.looks, "where it took none, it did what else is due"
    assert interface.samples_committed <= training.total_samples


def test_without_the_band_all_samples_are_inserted(make_rows: Any, make_buffer: Any) -> None:
    interface = Worker(make_rows, make_buffer, eager=True)
    training = make()
    training.run_epoch(interface)
    assert (interface.lacks[4:], interface.looks) == ([], [])
    assert training.total_samples >= 500


def test_an_impossible_band_is_refused() -> None:
    with pytest.raises(ConfigError, match="error_buffer must be at least 4"):
        make(samples_per_insert=2.0, error_buffer=1.0)
