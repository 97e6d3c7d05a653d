"""Masks of actions stay with their observations in every kind of memory."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.actor.rollout.composing import compose
from tests.masked_corridor import MaskedCorridor
from tmrl_core.actor import NumpyQValueMLPActor
from tmrl_core.training.memories.replay import ReplayMemory


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
