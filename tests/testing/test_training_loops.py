"""The project's training loop, and one that derives from nothing, hold to the promises of a loop."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from tests.training.test_contracts import Loop as OwnLoop
from tmrl_core.networking.protocol.messages import Collect
from tmrl_core.samples import Segment
from tmrl_core.testing.random_samples import EndlessInterface, buffer_of, random_chunk
from tmrl_core.testing.training_loops import LoopSuite
from tmrl_core.training import ReplayMemory, SacAgent, TrainingOffline
from tmrl_core.training.agents.ppo import PPOAgent
from tmrl_core.training.interface import Delivery, LocalInterface, TrainingInterface
from tmrl_core.training.loops.lockstep import TrainingLockstep


class TestTrainingOffline(LoopSuite):
    def make_loop(self) -> TrainingOffline:
        return TrainingOffline(
            (self.observation_space, self.action_space),
            lambda nb_steps, device: ReplayMemory(device, nb_steps, memory_size=1000, batch_size=4),
            lambda **spaces: SacAgent(**spaces, hidden_sizes=(8, 8), compile=False),
            epochs=3,
            rounds=2,
            steps=4,
            device="cpu",
        )


class OneWorker(EndlessInterface):
    """A worker that collects the assignments of lockstep, an episode at a time."""

    assignment: Collect | None = None
    episodes = 0

    def workers(self) -> list[tuple[bytes, str]]:
        return [(bytes([1]) * 16, "worker")]

    def collect(self, what: Collect | None, stream: bytes) -> None:
        self.assignment = what

    def receive(self) -> list[Delivery]:
        if self.assignment is not None:
            chunk = random_chunk(episode=self.episodes)
            segments = (Segment(chunk.rows, self.episodes, 0, *self.assignment.version),)
            extras: Any = {"logp": np.zeros(chunk.rows, np.float32), "drawn": chunk.action}
            self.put(buffer_of(replace(chunk, segments=segments, extras=extras)))
            self.delivered += chunk.rows
            self.episodes += 1
        return LocalInterface.receive(self)


class TestTrainingLockstep(LoopSuite):
    def make_loop(self) -> TrainingLockstep:
        return TrainingLockstep(
            (self.observation_space, self.action_space),
            training_agent_cls=lambda **spaces: PPOAgent(**spaces, hidden_sizes=(8, 8), minibatch_size=8),
            epochs=3,
            rounds=2,
            episodes_per_round=2,
            sleep_between_buffer_retrieval_attempts=0.001,
            device="cpu",
        )

    def make_interface(self) -> OneWorker:
        return OneWorker()


class Loop(OwnLoop):
    """Publishes its policy, stops when asked, and writes its counters."""

    def run_epoch(self, interface: TrainingInterface) -> list[dict[str, Any]]:
        interface.broadcast_model(self.agent.get_actor())
        return [] if interface.stopping else super().run_epoch(interface)

    def save(self, path: Path) -> None:
        offsets = [[stream.hex(), offset] for stream, offset in self.delivery.get("marks", {}).items()]
        counts = [self.epoch, self.total_updates, self.total_samples, self.elapsed_s]
        path.write_text(json.dumps([counts, offsets]))

    def load(self, path: Path) -> None:
        counts, offsets = json.loads(path.read_text())
        self.epoch, self.total_updates, self.total_samples, self.elapsed_s = counts
        self.delivery = {"marks": {bytes.fromhex(stream): tuple(offset) for stream, offset in offsets}}


class TestALoopOfOnesOwn(LoopSuite):
    def make_loop(self) -> Any:
        return Loop()
