"""Bounds near the largest numbers: actions are scaled in float32 without overflow, or not scaled at all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from tmrl_core.training import (
    CrossQAgent,
    DDPGAgent,
    FlashSACAgent,
    PPOAgent,
    REDQSACAgent,
    SacAgent,
    TD3Agent,
    TQCAgent,
)
from tmrl_core.training.agents.networks import ActionCritic

OBS = spaces.Box(-1, 1, (3,), np.float32)


def batch(action: np.ndarray) -> Any:
    rows = len(action)
    obs = torch.zeros(rows, 3)
    return obs, torch.as_tensor(action), torch.ones(rows), obs, torch.zeros(rows), torch.zeros(rows)


@pytest.mark.parametrize("agent", [SacAgent, REDQSACAgent, TQCAgent, CrossQAgent, FlashSACAgent, TD3Agent, DDPGAgent])
@pytest.mark.parametrize("bound", [1.0, 1e30, 4e37])
def test_accepted_bounds_give_finite_updates(agent: Callable[..., Any], bound: float) -> None:
    space = spaces.Box(-bound, bound, (2,), np.float32)
    sizes: dict[str, Any] = {"width": 8} if agent is FlashSACAgent else {"hidden_sizes": (8,)}
    made = agent(observation_space=OBS, action_space=space, device="cpu", **sizes)
    low_and_high = np.stack([space.low, space.high, np.zeros(2, np.float32)])
    for _ in range(3):
        metrics = made.train(batch(low_and_high))
        assert all(np.isfinite(float(value)) for value in metrics.values())
    act = made.get_actor().act_(np.zeros(3, np.float32))
    assert np.isfinite(act).all()


def test_elements_with_huge_bounds_are_not_scaled() -> None:
    huge = float(np.finfo(np.float32).max)
    critic = ActionCritic(spaces.Box(np.array([-huge, -4.0], np.float32), np.array([huge, 4.0], np.float32)))
    assert critic.scaled(torch.tensor([[5.0, 2.0]])).tolist() == [[5.0, 0.5]]


def test_a_policy_that_clips_only_takes_huge_bounds() -> None:
    huge = float(np.finfo(np.float32).max)
    space = spaces.Box(-huge, huge, (2,), np.float32)
    agent = PPOAgent(observation_space=OBS, action_space=space, device="cpu", hidden_sizes=(8,))
    assert np.isfinite(agent.get_actor().act_(np.zeros(3, np.float32))).all()
