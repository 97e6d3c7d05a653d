from __future__ import annotations

from typing import Any

import numpy as np
import torch
from gymnasium.spaces import Box

from tmrl_core.training import LocalInterface, ReplayMemory, TrainingOffline
from tmrl_core.training.agent import TrainingAgent
from tmrl_core.training.memories.layout import Array


class Surprised(TrainingAgent):
    """Is surprised by each reward as it is."""

    wants_extras = True

    def __init__(self, observation_space: Any, action_space: Any, device: Any) -> None:
        super().__init__(observation_space, action_space, device)
        self.seen: list[Array] = []
        self.td_error_B: torch.Tensor | None = None

    def train(self, batch: Any) -> dict[str, Any]:
        self.seen.append(batch[6]["indices"].numpy().copy())
        self.td_error_B = batch[2]
        return {}

    def get_actor(self) -> Any:
        return None


def test_the_loop_passes_td_errors_to_the_memory(make_rows: Any, make_buffer: Any) -> None:
    interface = LocalInterface()
    interface.put(make_buffer([make_rows(1, 0, 0, 11, end="terminated")]))
    training = TrainingOffline(
        (Box(-1, 1, (3,)), Box(-1, 1, (1,))),
        lambda nb_steps, device: ReplayMemory(
            device, nb_steps, memory_size=50, batch_size=8, seed=0, priority={"alpha": 1.0}
        ),
        Surprised,
        epochs=1,
        rounds=1,
        steps=30,
        max_training_steps_per_env_step=100,
    )
    training.run_epoch(interface)
    drawn = np.unique(np.concatenate(training.agent.seen))
    priorities = training.memory.sampler.priorities.of(drawn)
    np.testing.assert_allclose(priorities, drawn + 1, rtol=1e-5)
