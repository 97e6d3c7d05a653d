"""The environment written in torch of the examples: policies learn through it, and from its recorded sessions."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "torch_environment"


@pytest.fixture
def cart(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.syspath_prepend(str(EXAMPLE))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    import cart as module  # type: ignore[import-not-found, unused-ignore]

    yield module
    del sys.modules["cart"]


def test_a_policy_learns_through_the_environment_and_another_from_its_sessions(cart: Any) -> None:
    torch.manual_seed(0)
    expert, apprentice = cart.new_policy(), cart.new_policy()
    returns = cart.learn(expert, updates=25)
    assert returns[-1] > 0.5 * returns[0]
    pool = cart.record(expert)
    assert len(pool) == 32
    losses = cart.imitate(apprentice, pool, updates=60)
    assert losses[-1] < 0.2 * losses[0]


def test_the_results_follow_the_equations_of_motion(cart: Any) -> None:
    env = cart.Cart()
    states, _ = env.get_initial_results(2)
    assert states[0].tolist() == [[-1.0, 0.0], [1.0, 0.0]]
    action = [torch.tensor([[1.0], [-0.5]])]
    new_states, observations = env.checked_action_results(states, action)
    assert np.allclose(new_states[0], [[-0.96, 0.2], [0.98, -0.1]])
    assert torch.equal(observations[0], new_states[0])
    assert np.allclose(env.get_rewards(states, action, new_states), [-(0.96**2) - 0.01, -(0.98**2) - 0.0025])
