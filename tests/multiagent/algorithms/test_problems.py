"""Checks of a worker's experiences refuse what an update would fail on, and change nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tmrl_core.errors import SampleRefusedError
from tmrl_core.multiagent.algorithms.a2c import A2C
from tmrl_core.multiagent.algorithms.dqn import DQN

ADAM: Any = (torch.optim.Adam, {})


def dqn() -> DQN:
    return DQN({"q": nn.Sequential(nn.BatchNorm1d(2), nn.Dropout(0.5), nn.Linear(2, 3))}, ADAM, {}, {})


def a2c() -> A2C:
    return A2C({"actor": nn.Linear(2, 3), "critic": nn.Linear(2, 1)}, ADAM, {}, {})


def batch(rows: int = 4, **changed: Any) -> dict[str, Any]:
    return {
        "state": np.ones((rows, 2), np.float32),
        "action": np.arange(rows) % 3,
        "reward": np.ones(rows, np.float32),
        "next_state": np.ones((rows, 2), np.float32),
        "discount": np.full(rows, 0.99, np.float32),
        "terminated": np.zeros(rows, bool),
        "truncated": np.zeros(rows, bool),
        **changed,
    }


@pytest.mark.parametrize("rows", [1, 4])
def test_a_check_changes_neither_statistics_nor_generators(rows: int) -> None:
    algorithm = dqn()
    before, randomness = algorithm.get_model(), torch.get_rng_state()
    algorithm.check_experiences(batch(rows))
    assert algorithm.get_model() == before
    assert torch.equal(torch.get_rng_state(), randomness)
    assert algorithm.models["q"].training


def test_a_model_stays_in_its_mode_after_a_refusal() -> None:
    algorithm = dqn()
    with pytest.raises(SampleRefusedError, match="'state' does not fit the model 'q'"):
        algorithm.check_experiences(batch(state=np.ones((4, 5), np.float32)))
    assert algorithm.models["q"].training


@pytest.mark.parametrize("make", [dqn, a2c])
@pytest.mark.parametrize("key", ["state", "next_state"])
def test_a_mask_of_another_size_is_refused(make: Any, key: str) -> None:
    sizes = {"state": 3, "next_state": 3, key: 2}
    states: dict[str, Any] = {
        name: {"observation": np.ones((4, 2), np.float32), "action_mask": np.ones((4, size), np.int8)}
        for name, size in sizes.items()
    }
    with pytest.raises(SampleRefusedError, match=rf"{key!r} does not fit .* mask has the shape \[2\], actions: 3"):
        make().check_experiences(batch(**states))
