"""The policies with torch; tests of both backends are in `numpy/test_off_policy.py`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from tmrl_core.actor.policies.numpy.q_value import dueling_q
from tmrl_core.actor.policies.torch.deterministic import DeterministicMLPActor
from tmrl_core.actor.policies.torch.q_value import QValueMLPActor
from tmrl_core.errors import ConfigError, WeightsError

VECTOR = spaces.Box(-1, 1, (3,), np.float32)
THREE = spaces.Discrete(3, start=5)
BOX = spaces.Box(np.array([-2.0, 0.0], np.float32), np.array([2.0, 1.0], np.float32))


def test_dueling_values_equal_the_slow_loop() -> None:
    value, advantage = torch.randn(5, 1), torch.randn(5, 4)
    found = dueling_q(value, advantage)
    for i in range(5):
        mean = sum(float(advantage[i, n]) for n in range(4)) / 4
        for n in range(4):
            assert float(found[i, n]) == pytest.approx(float(value[i, 0]) + float(advantage[i, n]) - mean, abs=1e-5)


@pytest.mark.parametrize("dueling", [False, True])
def test_values_have_a_column_for_each_action_and_indices_begin_at_the_space_s_start(dueling: bool) -> None:
    actor = QValueMLPActor(VECTOR, THREE, (8,), dueling=dueling)
    assert actor(torch.zeros(4, 3)).shape == (4, 3)
    assert actor.index(torch.tensor([5, 7, 6])).tolist() == [0, 2, 1]


def test_a_deterministic_action_has_the_space_s_shape_and_bounds() -> None:
    actor = DeterministicMLPActor(VECTOR, BOX, (8,))
    with torch.no_grad():
        actor.mu.bias.copy_(torch.tensor([50.0, -50.0]))
    assert actor(torch.zeros(4, 3)).tolist() == [[2.0, 0.0]] * 4
    shaped = DeterministicMLPActor(VECTOR, spaces.Box(-1, 1, (2, 2), np.float64), (8,))
    assert shaped(torch.zeros(4, 3)).shape == (4, 2, 2)
    assert shaped.act_(np.zeros(3, np.float32)).dtype == np.float64


@pytest.mark.parametrize(
    ("cls", "space", "message"),
    [
        (QValueMLPActor, BOX, "QValueMLPActor chooses from a Discrete space.*SquashedGaussianMLPActor"),
        (QValueMLPActor, spaces.MultiDiscrete([3, 2]), "MultiDiscrete.*For it take actor.cls: CategoricalMLPActor"),
        (DeterministicMLPActor, THREE, "DeterministicMLPActor acts in a Box of floats.*QValueMLPActor"),
        (DeterministicMLPActor, spaces.Box(0, 9, (1,), np.int64), "No policy here acts in it.*actor.cls"),
        (DeterministicMLPActor, spaces.Box(-np.inf, np.inf, (1,)), "DeterministicMLPActor needs finite bounds"),
    ],
)
def test_a_space_that_it_cannot_take_is_refused(cls: Any, space: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        cls(VECTOR, space)


def test_weights_of_the_other_kind_of_head_are_refused() -> None:
    with pytest.raises(WeightsError, match="without value"):
        QValueMLPActor(VECTOR, THREE, (8,), dueling=True).from_bytes(
            QValueMLPActor(VECTOR, THREE, (8,)).to_bytes(), "cpu"
        )
