"""Masks of actions stay with their observations in every kind of memory."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from tests.actor.rollout.composing import compose
from tests.masked_corridor import ACTIONS, PLACES, MaskedCorridor
from tmrl_core.actor import NumpyQValueMLPActor
from tmrl_core.errors import ConfigError
from tmrl_core.training.agents.dqn import DQNAgent
from tmrl_core.training.memories.frame_stack_memory import FrameStackMemory
from tmrl_core.training.memories.replay import ReplayMemory

STACK = 4


class Stacked(MaskedCorridor):
    """The corridor, whose observation stacks the latest places beside the mask of the present one."""

    def __init__(self) -> None:
        super().__init__()
        of_places = gymnasium.spaces.Box(0, 1, (STACK, PLACES), np.float32)
        mask = gymnasium.spaces.Box(0, 1, (ACTIONS,), np.int8)
        self.observation_space = gymnasium.spaces.Dict({"place": of_places, "action_mask": mask})

    def observation(self, place: int | None = None) -> dict[str, np.ndarray]:
        seen = super().observation(place)
        if not self.steps:
            self.seen = [seen["place"]] * STACK
        self.seen = [*self.seen[1:], seen["place"]] if place is None else self.seen
        return {**seen, "place": np.stack(self.seen)}


@pytest.mark.parametrize("kwargs", [{}, {"n_step": 3}, {"storage": "disk"}], ids=["one step", "three steps", "disk"])
def test_stacks_of_frames_have_the_mask_of_their_last_frame(kwargs: dict[str, Any], tmp_path: Path) -> None:
    worker = compose(Stacked, partial(NumpyQValueMLPActor, hidden_sizes=(8,)))
    for _ in range(10):
        worker.collect_train_episode()
    folder: dict[str, Any] = {"folder": tmp_path} if "storage" in kwargs else {}
    memory = FrameStackMemory(batch_size=64, device="cpu", memory_size=10_000, frame_stack=STACK, **kwargs, **folder)
    memory.append(worker.buffer)
    env = Stacked()
    env.reset()
    agent = DQNAgent(env.observation_space, env.action_space, "cpu", hidden_sizes=[8])
    for _ in range(5):
        batch = memory.sample()
        for seen in (batch[0], batch[3]):
            assert seen["place"].shape == (64, STACK, PLACES)
            places = seen["place"][:, -1].argmax(-1)
            expected = np.stack([MaskedCorridor.observation(env, int(place))["action_mask"] for place in places])
            assert torch.equal(seen["action_mask"], torch.from_numpy(expected))
        assert np.isfinite(float(agent.train(batch)["loss_critic"]))


def test_a_mask_that_is_stacked_too_is_refused_with_advice() -> None:
    env = gymnasium.wrappers.FrameStackObservation(MaskedCorridor(), STACK)
    with pytest.raises(ConfigError, match=r"action_mask is of the space .* Stack the other entries only"):
        NumpyQValueMLPActor(env.observation_space, env.action_space)


@pytest.mark.parametrize("kwargs", [{}, {"n_step": 3}, {"storage": "disk"}], ids=["one step", "three steps", "disk"])
def test_each_state_of_a_batch_has_its_own_mask(kwargs: dict[str, Any], tmp_path: Path) -> None:
    worker = compose(MaskedCorridor, partial(NumpyQValueMLPActor, hidden_sizes=(8,)))
    for _ in range(10):
        worker.collect_train_episode()
    folder: dict[str, Any] = {"folder": tmp_path} if "storage" in kwargs else {}
    memory = ReplayMemory(batch_size=64, nb_steps=1, device="cpu", memory_size=10_000, **kwargs, **folder)
    memory.append(worker.buffer)
    env = MaskedCorridor()
    for _ in range(5):
        obs, action, _, after, *_ = memory.sample()
        for seen in (obs, after):
            expected = np.stack([env.observation(int(place))["action_mask"] for place in seen["place"].argmax(-1)])
            assert torch.equal(seen["action_mask"], torch.from_numpy(expected))
        assert (obs["action_mask"].gather(1, action[:, None].long() - 2) == 1).all()
