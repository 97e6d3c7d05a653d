"""The project's training loop, and one that derives from nothing, hold to the promises of a loop."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.training.test_contracts import Loop as OwnLoop
from tmrl_core.testing.training_loops import LoopSuite
from tmrl_core.training import ReplayMemory, SacAgent, TrainingOffline
from tmrl_core.training.interface import TrainingInterface


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
