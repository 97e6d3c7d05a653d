"""Actions of each policy in Boxes of any shape."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from tmrl_core.actor.policies.numpy.lookup import choose_actor
from tmrl_core.actor.rollout.runner import PolicyRunner
from tmrl_core.config.algorithms import ACTORS

OBS = spaces.Box(-1, 1, (3,), np.float32)
SHAPES: list[tuple[int, ...]] = [(), (1,), (2, 3)]
BOX_POLICIES = sorted(name for name, kind in ACTORS.items() if kind == "box")


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("backend", ["numpy", "torch"])
@pytest.mark.parametrize("name", BOX_POLICIES)
def test_an_action_has_the_shape_and_dtype_of_its_box(name: str, backend: str, shape: tuple[int, ...]) -> None:
    for dtype in (np.float32, np.float64):
        space = spaces.Box(-2, 3, shape, dtype)
        runner = PolicyRunner(choose_actor(f"tmrl_core.actor:{name}", backend=backend), OBS, space, seed=0)
        for exploration in ({"random": 0.0}, {"random": 1.0}):
            runner.actor.set_exploration(exploration)
            for test in (False, True):
                runner.reset()
                obs = OBS.sample()
                for action in (runner.decide(obs, test, True)[0], runner.act(obs, test)):
                    assert isinstance(action, np.ndarray)
                    assert space.contains(action)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", BOX_POLICIES)
def test_a_batch_of_actions_has_the_shape_of_its_box(name: str, shape: tuple[int, ...]) -> None:
    policy: Any = choose_actor(f"tmrl_core.actor:{name}", backend="torch")(OBS, spaces.Box(-2, 3, shape, np.float32))
    obs_B = torch.zeros(5, *OBS.shape)
    for deterministic in (False, True):
        action_B, _ = policy.step(obs_B, policy.initial_state(5), deterministic)
        assert action_B.shape == (5, *shape)
        assert bool(((action_B >= -2) & (action_B <= 3)).all())
    outputs_BT, _ = policy.unroll(obs_B[:, None], policy.initial_state(5))
    if (log_prob_BT := policy.log_prob(outputs_BT, action_B[:, None])) is not None:
        assert log_prob_BT.shape == (5, 1)
