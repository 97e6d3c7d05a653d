"""Bounds of the numbers that policies compute with, at both ends and on each backend."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from tmrl_core.actor import DeterministicMLPActor, SquashedGaussianMLPActor
from tmrl_core.actor.policies.numpy.lookup import choose_actor

OBS = spaces.Box(-1, 1, (3,), np.float32)
ZERO = np.zeros(3, np.float32)
SQUASHED = ["SquashedGaussianMLPActor", "SquashedGaussianRNNActor"]


def made(name: str, space: Any, **kwargs: Any) -> tuple[Any, Any]:
    """The torch and the NumPy backend of a policy without hidden layers."""
    with_torch, with_numpy = (
        choose_actor(f"tmrl_core.actor:{name}", {"hidden_sizes": [], **kwargs}, backend=backend)(OBS, space)
        for backend in ("torch", "numpy")
    )
    return with_torch, with_numpy


def filled(policy: Any, **biases: float) -> Any:
    """The policy with last layers that return these numbers for any observation."""
    with torch.no_grad():
        for name, bias in biases.items():
            layer = getattr(policy, name)
            layer.weight.zero_()
            layer.bias.fill_(bias)
    return policy


@pytest.mark.parametrize("name", ["GaussianMLPActor", "GaussianRNNActor"])
def test_normalized_observations_are_cut_at_ten_at_both_ends(name: str) -> None:
    with_torch, with_numpy = made(name, spaces.Box(-np.inf, np.inf, (3,), np.float32), normalize_observations=True)
    with torch.no_grad():
        with_torch.obs_mean.fill_(0.5)
        with_torch.obs_std.fill_(0.01)
    with_numpy.from_bytes(with_torch.to_bytes(), "cpu")

    def output(policy: Any, obs: Any) -> Any:
        policy.begin_episode()
        return policy.act_(np.asarray(obs, np.float32), test=True)

    for policy in (with_torch, with_numpy):
        # Ten standard deviations from the mean, and beyond.
        at_limit = output(policy, [0.6, 0.4, 0.5])
        np.testing.assert_allclose(output(policy, [1e6, -1e6, 0.5]), at_limit, rtol=1e-4)
        assert not np.allclose(output(policy, [0.59, 0.4, 0.5]), at_limit, rtol=1e-4)
        assert not np.allclose(output(policy, [0.6, 0.41, 0.5]), at_limit, rtol=1e-4)
        np.testing.assert_allclose(at_limit, output(with_torch, [0.6, 0.4, 0.5]), rtol=1e-4)


@pytest.mark.parametrize(("bias", "bound"), [(100.0, 2.0), (2.1, 2.0), (1.9, 1.9), (-100.0, -20.0), (-19.9, -19.9)])
@pytest.mark.parametrize("name", SQUASHED)
def test_the_logarithm_of_the_spread_is_between_minus_twenty_and_two(name: str, bias: float, bound: float) -> None:
    with_torch, with_numpy = made(name, spaces.Box(-1, 1, (2,), np.float32))
    filled(with_torch, mu=0.0, log_std=bias)
    obs = torch.zeros(1, 1, 3)
    outputs, _ = with_torch.unroll(obs, with_torch.initial_state(1))
    np.testing.assert_allclose(outputs["log_std"].detach().numpy(), np.full((1, 1, 2), bound), rtol=1e-6)
    if name == "SquashedGaussianRNNActor":
        with_numpy.from_bytes(with_torch.to_bytes(), "cpu")
        found, _ = with_numpy.unroll(obs.numpy(), with_numpy.initial_state(1))
        np.testing.assert_allclose(found["log_std"], np.full((1, 1, 2), bound), rtol=1e-6)


def rounding_bounds() -> Any:
    """Bounds of float32 of which some are left by one bit when the span is added to the lowest value."""
    low, high = np.sort(np.random.default_rng(0).uniform(-3, 3, (2, 200)).astype(np.float32), axis=0)
    assert (low + (high - low) > high).any()
    return spaces.Box(low, high, dtype=np.float32)


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("cls", [SquashedGaussianMLPActor, DeterministicMLPActor])
def test_saturated_actions_of_a_batch_stay_inside_their_bounds(cls: Any, sign: float) -> None:
    space = rounding_bounds()
    policy = filled(cls(OBS, space, hidden_sizes=(), random=0.0), mu=50.0 * sign)
    with torch.no_grad():
        outputs_B = policy.outputs_at(torch.zeros(1, 3))
        learned = policy(torch.zeros(1, 3))
        for action_B in (policy.action_of(outputs_B, True), learned[0] if isinstance(learned, tuple) else learned):
            assert space.contains(action_B[0].numpy())


def test_noise_does_not_leave_the_bounds_in_batches_and_sessions() -> None:
    space = spaces.Box(-2, 3, (2,), np.float32)
    with_torch, with_numpy = made("DeterministicMLPActor", space, noise=5.0, random=0.0)
    drawn = with_torch.step(torch.zeros(200, 3), {})[0].detach().numpy()
    for actions in (drawn, [with_torch.act_(ZERO) for _ in range(200)], [with_numpy.act(ZERO) for _ in range(200)]):
        stacked = np.stack(list(actions))
        assert (stacked.min(), stacked.max()) == (-2, 3)


def test_the_density_at_a_bound_is_that_of_an_action_just_inside() -> None:
    policy = filled(
        SquashedGaussianMLPActor(OBS, spaces.Box(-1, 1, (1,), np.float32), hidden_sizes=()), mu=0.5, log_std=0.0
    )
    with torch.no_grad():
        outputs = policy.outputs_at(torch.zeros(1, 3))
        for sign in (1.0, -1.0):
            # In float32, as the policy computes it: the nearest numbers to 1 are far apart there.
            u = math.atanh(float(np.float32(1.0) - np.float32(1e-6))) * sign
            expected = -0.5 * (u - 0.5) ** 2 - 0.5 * math.log(2 * math.pi) - math.log1p(-(math.tanh(u) ** 2))
            for value in (sign, 2.0 * sign):
                found = policy.log_prob(outputs, torch.full((1, 1), value))
                assert found.item() == pytest.approx(expected, abs=1e-2)
            inside = policy.log_prob(outputs, torch.full((1, 1), 0.999 * sign)).item()
            assert inside != pytest.approx(expected, abs=0.5)


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("name", [*SQUASHED, "DeterministicMLPActor"])
def test_a_share_of_the_actions_of_a_batch_is_uniform(name: str, share: float) -> None:
    with_torch, with_numpy = made(name, spaces.Box(-1, 1, (1,), np.float32), random=share)
    filled(with_torch, mu=50.0)
    if "log_std" in dict(with_torch.named_children()):
        filled(with_torch, log_std=-20.0)
    with_numpy.from_bytes(with_torch.to_bytes(), "cpu")
    with_torch.seed(0)
    batches = [with_torch.step(torch.zeros(1000, 3), with_torch.initial_state(1000))[0].detach().numpy()]
    if "RNN" in name:
        rng, obs_B = np.random.default_rng(0), np.zeros((1000, 3), np.float32)
        batches.append(with_numpy.act_batch(obs_B, with_numpy.initial_state(1000), rng, False)[0])
    for action_B in batches:
        # The policy itself takes an action near the upper bound each time, a uniform one is elsewhere.
        assert (action_B < 0.5).mean() == pytest.approx(0.75 * share, abs=0.06)
