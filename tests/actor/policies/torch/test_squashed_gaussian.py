from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from tmrl_core.actor import SquashedGaussianMLPActor
from tmrl_core.errors import ConfigError, WeightsError

OBS = spaces.Box(-1, 1, (3,), np.float32)
ACT = spaces.Box(np.array([-2.0, 0.0], np.float32), np.array([2.0, 0.1], np.float32))


def policy(**kwargs: Any) -> SquashedGaussianMLPActor:
    torch.manual_seed(0)
    return SquashedGaussianMLPActor(OBS, ACT, **{"hidden_sizes": (16, 16), **kwargs})


def test_each_action_element_fills_its_own_bounds_and_never_leaves_them() -> None:
    actor = policy()
    with torch.no_grad():
        actor.log_std.bias.fill_(2.0)
        actions, _ = actor(torch.zeros(4000, 3))
    assert actions.shape == (4000, 2)
    low, high = torch.as_tensor(ACT.low), torch.as_tensor(ACT.high)
    assert bool(((actions >= low) & (actions <= high)).all())
    assert bool((actions.amin(0) < low + 0.01 * (high - low)).all())
    assert bool((actions.amax(0) > high - 0.01 * (high - low)).all())


def test_the_log_density_equals_a_simple_computation() -> None:
    actor = policy()
    obs = torch.rand(6, 3)
    with torch.no_grad():
        action, logp = actor(obs)
        hidden = actor.net(obs)
        mu, log_std = actor.mu(hidden), actor.log_std(hidden).clamp(-20, 2)
    assert logp is not None
    assert logp.shape == (6,)
    unit = (2 * (action - actor.low) / (actor.high - actor.low) - 1).double()
    u = torch.atanh(unit)
    for row in range(6):
        expected = 0.0
        for element in range(2):
            std = math.exp(float(log_std[row, element]))
            z = (float(u[row, element]) - float(mu[row, element])) / std
            gaussian = -0.5 * z * z - math.log(std) - 0.5 * math.log(2 * math.pi)
            expected += gaussian - math.log(1 - float(unit[row, element]) ** 2)
        assert float(logp[row]) == pytest.approx(expected, abs=2e-3)


def test_test_is_deterministic_and_exploration_is_not() -> None:
    actor = policy()
    obs = np.array([0.1, -0.2, 0.3], np.float32)
    assert np.array_equal(actor.act_(obs, test=True), actor.act_(obs, test=True))
    assert not np.array_equal(actor.act_(obs), actor.act_(obs))


def test_random_actions_fill_the_space_only_while_requested() -> None:
    actor = policy()
    actor.seed(0)
    obs = np.array([0.1, -0.2, 0.3], np.float32)
    assert actor.exploration() == {"random": 0.0}
    with torch.no_grad():
        actor.log_std.bias.fill_(-20.0)
        actor.log_std.weight.zero_()
    best = actor.act_(obs, test=True)
    np.testing.assert_allclose(actor.act_(obs), best, atol=1e-5)
    actor.set_exploration({"random": 1.0})
    drawn = np.array([actor.act_(obs) for _ in range(1500)])
    assert all(ACT.contains(action) for action in drawn)
    assert drawn.mean(axis=0) == pytest.approx([0.0, 0.05], abs=0.1)
    assert drawn.std(axis=0) == pytest.approx([4 / np.sqrt(12), 0.1 / np.sqrt(12)], rel=0.06)
    assert all(np.array_equal(actor.act_(obs, test=True), best) for _ in range(5))
    actor.set_exploration({"random": 0.25})
    random = [np.abs(actor.act_(obs) - best).max() > 1e-4 for _ in range(1000)]
    assert np.mean(random) == pytest.approx(0.25, abs=0.05)


def test_a_seeded_actor_repeats_itself_without_touching_the_global_generator() -> None:
    actor = policy()
    obs = np.zeros(3, np.float32)
    actor.seed(7)
    state = torch.random.get_rng_state()
    actor.set_exploration({"random": 0.5})
    first = [actor.act_(obs) for _ in range(3)]
    assert torch.equal(torch.random.get_rng_state(), state)
    actor.seed(7)
    np.testing.assert_array_equal(first, [actor.act_(obs) for _ in range(3)])


def test_an_action_is_one_of_the_space() -> None:
    space = spaces.Box(-1, 1, (2, 2), np.float64)
    actor = SquashedGaussianMLPActor(OBS, space, hidden_sizes=())
    action = actor.act_(np.zeros(3, np.float32))
    assert action.shape == (2, 2)
    assert action.dtype == np.float64


def test_gradients_reach_every_weight() -> None:
    actor = policy()
    action, logp = actor(torch.rand(8, 3))
    (action.sum() + logp.sum()).backward()
    assert all(bool(parameter.grad.abs().sum() > 0) for parameter in actor.parameters() if parameter.grad is not None)
    assert all(parameter.grad is not None for parameter in actor.parameters())


def test_a_test_action_has_a_density_on_request_only() -> None:
    actor = policy()
    assert actor(torch.zeros(1, 3), test=True, compute_logprob=False)[1] is None
    assert actor(torch.zeros(1, 3), test=True)[1].shape == (1,)


def test_the_weights_have_the_agreed_names() -> None:
    assert list(policy().state_dict()) == [
        "net.0.weight",
        "net.0.bias",
        "net.2.weight",
        "net.2.bias",
        "mu.weight",
        "mu.bias",
        "log_std.weight",
        "log_std.bias",
    ]


def test_weights_with_another_activation_are_refused() -> None:
    with pytest.raises(WeightsError, match="their activation is tanh, not relu"):
        policy().from_bytes(policy(activation=torch.nn.Tanh).to_bytes(), "cpu")


def test_an_activation_may_be_named() -> None:
    assert isinstance(policy(activation="tanh").net[1], torch.nn.Tanh)
    assert isinstance(policy(activation="ELU").net[1], torch.nn.ELU)
    with pytest.raises(ConfigError, match="'nonsense'"):
        policy(activation="nonsense")
