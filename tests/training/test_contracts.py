"""Classes of a user's own that derive from nothing of the package, and train."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from tmrl_core.errors import ConfigError, SampleRefusedError
from tmrl_core.samples import Buffer, EpisodeRecord
from tmrl_core.training import ReplayMemory, TrainingOffline
from tmrl_core.training.contracts import TrainingLoop, as_agent, as_loop, as_memory
from tmrl_core.training.interface import LocalInterface, TrainingInterface

SPACES = (gym.spaces.Box(-10, 10, (3,), np.float32), gym.spaces.Box(-1, 1, (1,), np.float32))


class Policy:
    """An actor of the fewest methods."""

    def act(self, obs: Any, test: bool = False) -> Any:
        return np.zeros(1, np.float32)


class Agent:
    def __init__(self, observation_space: Any, action_space: Any, device: Any) -> None:
        self.seen: list[int] = []

    def train(self, batch: Any) -> dict[str, float]:
        self.seen.append(len(batch))
        return {"loss": 1.0 / len(self.seen)}

    def get_actor(self) -> Policy:
        return Policy()


class Rewards:
    """A memory that keeps rewards only, and takes no integers."""

    batch_size = 2

    def __init__(self, nb_steps: int, device: Any) -> None:
        self.nb_steps = nb_steps
        self.rewards: list[float] = []

    def append(self, buffer: Buffer) -> list[Any]:
        refused = []
        for chunk in buffer.chunks:
            if np.asarray(chunk.observation).dtype.kind == "i":
                refused.append((chunk, SampleRefusedError("integers")))
            else:
                self.rewards += chunk.reward.tolist()
        return refused

    def __iter__(self) -> Iterator[list[float]]:
        return iter([self.rewards[-self.batch_size :]] * self.nb_steps)

    def __len__(self) -> int:
        return len(self.rewards)


class Loop:
    """A training loop that trains once per epoch on what has arrived."""

    def __init__(self) -> None:
        self.epoch = 0
        self.epochs = 3
        self.total_updates = 0
        self.total_samples = 0
        self.elapsed_s = 0.0
        self.delivery: dict[str, Any] = {}
        self.agent = Agent(*SPACES, "cpu")

    def run_epoch(self, interface: TrainingInterface) -> list[dict[str, Any]]:
        for delivery in interface.receive():
            self.total_samples += len(delivery.buffer)
            delivery.accept()
        interface.commit()
        self.agent.train([0.0])
        self.total_updates += 1
        self.epoch += 1
        return [{"updates": self.total_updates}]

    def save(self, path: Path) -> None:
        Path(path).write_text(str(self.epoch))

    def load(self, path: Path) -> None:
        self.epoch = int(Path(path).read_text())


def fed(make_rows: Any, *dtypes: Any) -> LocalInterface:
    interface, buffer = LocalInterface(), Buffer(maxlen=None)
    records = [EpisodeRecord("", 7.0, 5, "train", "truncated")]
    buffer.extend([make_rows(stream, 0, 0, 5, dtype=dtype) for stream, dtype in enumerate(dtypes)], records)
    interface.put(buffer)
    return interface


@pytest.mark.parametrize("memory_cls", [Rewards, ReplayMemory])
def test_a_custom_agent_and_memory_train(make_rows: Any, memory_cls: Any) -> None:
    training = TrainingOffline(SPACES, memory_cls, Agent, 1, 2, 4, max_training_steps_per_env_step=100.0)
    interface = fed(make_rows, np.float32)
    rows = training.run_epoch(interface)
    assert (training.total_updates, training.total_samples) == (8, 5)
    assert interface.samples_committed == 5
    assert isinstance(interface.actor, Policy)
    assert len(training.agent.seen) == 8
    assert rows[-1]["return_train"] == 7.0
    assert not math.isnan(rows[-1]["loss"])


def test_refusals_of_a_custom_memory_are_reported(make_rows: Any) -> None:
    training = TrainingOffline(SPACES, Rewards, Agent, 1, 1, 2, max_training_steps_per_env_step=100.0)
    interface = fed(make_rows, np.float32, np.int32)
    training.run_epoch(interface)
    assert [reason for _, reason in interface.refused] == ["integers"]
    assert training.total_samples == interface.samples_committed == 5


def test_a_custom_training_loop_trains(make_rows: Any) -> None:
    loop = as_loop(own := Loop())
    interface = fed(make_rows, np.float32)
    while loop.epoch < loop.epochs:
        loop.run_epoch(interface)
    assert (loop.total_updates, loop.total_samples, interface.samples_committed) == (3, 5, 5)
    assert loop.own is own
    assert loop.own_format
    assert loop.training_memory is None
    with pytest.raises(ConfigError, match="Loop trains in epochs only"):
        loop.run_iteration(interface)


def test_a_replaced_agent_or_memory_is_used(make_rows: Any) -> None:
    """As an `updater_fn` may replace them in a training object that was loaded."""
    training = TrainingOffline(SPACES, Rewards, Agent, 2, 1, 2, max_training_steps_per_env_step=100.0)
    training.run_epoch(fed(make_rows, np.float32))
    training.agent, training.memory = Agent(*SPACES, "cpu"), Rewards(2, "cpu")
    training.run_epoch(fed(make_rows, np.float32))
    assert len(training.agent.seen) == 2
    assert len(training.memory) == 5


def test_parts_that_derive_from_the_bases_are_used_as_they_are() -> None:
    training = TrainingOffline(SPACES, ReplayMemory, Agent)
    assert as_memory(training.memory) is training.memory
    assert as_loop(training) is training
    assert isinstance(training, TrainingLoop)
    assert as_agent(training.agent).own is training.agent
