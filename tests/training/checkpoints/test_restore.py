"""Metadata of a policy's weights in a checkpoint: a resume with others is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from tmrl_core.errors import CheckpointError
from tmrl_core.training import BehaviorCloningAgent, DQNAgent, PPOAgent, RecurrentPPOAgent, RecurrentSacAgent, SacAgent
from tmrl_core.training.checkpoints.capture import capture_part
from tmrl_core.training.checkpoints.restore import restore_part

CHOICES = spaces.Discrete(3)
BOX = spaces.Box(-1, 1, (2,), np.float32)
AGENTS: list[tuple[Any, Any]] = [
    (DQNAgent, CHOICES),
    (SacAgent, BOX),
    (PPOAgent, CHOICES),
    (BehaviorCloningAgent, CHOICES),
    (RecurrentPPOAgent, BOX),
    (RecurrentSacAgent, BOX),
]


def make(cls: Any, action_space: Any, high: int, **kwargs: Any) -> Any:
    return cls(spaces.Box(0, high, (4, 4, 2), np.uint8), action_space, "cpu", convolutions="none", **kwargs)


@pytest.mark.parametrize(("cls", "action_space"), AGENTS)
def test_another_layout_of_bytes_is_refused_and_changes_nothing(cls: Any, action_space: Any) -> None:
    saved = capture_part(make(cls, action_space, 1), "agent")
    same = make(cls, action_space, 1)
    restore_part(same, "agent", saved.tree, saved.arrays, {})
    other = make(cls, action_space, 255)
    before = [parameter.clone() for parameter in other.model.parameters()]
    with pytest.raises(CheckpointError, match=r"the layout of agent\.\S+ was itself values 0 to 1 and is .* 0 to 255"):
        restore_part(other, "agent", saved.tree, saved.arrays, {})
    assert all(map(torch.equal, before, other.model.parameters()))


def test_a_layout_that_has_come_or_gone_is_refused_too() -> None:
    def floats() -> Any:
        return DQNAgent(spaces.Box(0, 1, (4, 4, 2), np.float32), CHOICES, "cpu")

    for before, after, text in (
        (make(DQNAgent, CHOICES, 1), floats(), "was itself values 0 to 1 and is none"),
        (floats(), make(DQNAgent, CHOICES, 1), "was none and is itself values 0 to 1"),
    ):
        saved = capture_part(before, "agent")
        with pytest.raises(CheckpointError, match=text):
            restore_part(after, "agent", saved.tree, saved.arrays, {})


def test_another_activation_is_refused() -> None:
    saved = capture_part(make(PPOAgent, CHOICES, 1), "agent")
    with pytest.raises(CheckpointError, match=r"the activation of agent\.model\.actor was tanh and is relu"):
        restore_part(make(PPOAgent, CHOICES, 1, activation="relu"), "agent", saved.tree, saved.arrays, {})
