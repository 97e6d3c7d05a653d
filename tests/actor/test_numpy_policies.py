from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from tmrl_core.actor import NumpySquashedGaussianMLPActor, SquashedGaussianMLPActor
from tmrl_core.errors import ConfigError, WeightsError

VECTOR = spaces.Box(-1, 1, (3,), np.float32)
NESTED = spaces.Dict({"b": spaces.Box(-1, 1, (2, 2), np.float64), "a": spaces.Tuple((spaces.Discrete(3), VECTOR))})
PENDULUM = spaces.Box(-2, 2, (1,), np.float32)
SIX = spaces.Box(np.array([-3.0, 0, -1, 5, -2, -0.3], np.float32), np.array([3.0, 1, 1, 9, -1, 0.1], np.float32))

PAIRS = [
    (VECTOR, PENDULUM, (256, 256), "relu"),
    (VECTOR, SIX, (32,), "tanh"),
    (NESTED, SIX, (64, 32, 16), "tanh"),
    (NESTED, PENDULUM, (), "relu"),
    (VECTOR, spaces.Box(-1, 1, (2, 2), np.float64), (32, 32), "relu"),
]


@pytest.mark.parametrize(("observations", "actions", "hidden_sizes", "activation"), PAIRS)
def test_both_twins_act_alike_on_the_same_weights(
    observations: Any, actions: Any, hidden_sizes: tuple[int, ...], activation: str
) -> None:
    torch.manual_seed(1)
    with_torch = SquashedGaussianMLPActor(observations, actions, hidden_sizes=hidden_sizes, activation=activation)
    twin = NumpySquashedGaussianMLPActor(observations, actions, hidden_sizes=hidden_sizes, activation=activation)
    twin.from_blob(*with_torch.to_blob(), device="cpu")
    observations.seed(2)
    for _ in range(20):
        obs = observations.sample()
        expected = with_torch.act_(obs, test=True)
        action = twin.act(obs, test=True)
        assert action.shape == expected.shape
        assert action.dtype == expected.dtype
        np.testing.assert_allclose(action, expected, atol=1e-5)
        assert actions.contains(twin.act(obs))


@pytest.mark.parametrize("actions", [PENDULUM, SIX])
def test_exploration_has_the_spread_of_the_weights(actions: Any) -> None:
    twin = NumpySquashedGaussianMLPActor(VECTOR, actions, hidden_sizes=(8,), seed=3)
    with_torch = SquashedGaussianMLPActor(VECTOR, actions, hidden_sizes=(8,))
    with torch.no_grad():
        with_torch.log_std.bias.fill_(-1.0)
        with_torch.log_std.weight.zero_()
    twin.from_bytes(with_torch.to_bytes())
    obs = np.array([0.3, -0.1, 0.5], np.float32)
    drawn = np.array([twin.act(obs) for _ in range(4000)], np.float64)
    low, high = actions.low.astype(np.float64), actions.high.astype(np.float64)
    u = np.arctanh(2 * (drawn - low) / (high - low) - 1)
    assert u.std(axis=0) == pytest.approx(np.full(actions.shape, np.exp(-1.0)), rel=0.06)
    np.testing.assert_allclose(u.mean(axis=0), with_torch.mu(with_torch.net(torch.as_tensor(obs))).detach(), atol=0.03)


def test_saturated_actions_stay_inside_the_bounds() -> None:
    twin = NumpySquashedGaussianMLPActor(VECTOR, SIX, hidden_sizes=())
    with_torch = SquashedGaussianMLPActor(VECTOR, SIX, hidden_sizes=())
    for sign in (50.0, -50.0):
        with torch.no_grad():
            with_torch.mu.bias.fill_(sign)
        twin.from_bytes(with_torch.to_bytes())
        obs = np.zeros(3, np.float32)
        assert SIX.contains(twin.act(obs, test=True))
        assert SIX.contains(with_torch.act_(obs, test=True))


def test_each_action_is_an_array_of_its_own() -> None:
    twin = NumpySquashedGaussianMLPActor(VECTOR, PENDULUM)
    first = twin.act(np.zeros(3, np.float32))
    kept = first.copy()
    twin.act(np.ones(3, np.float32))
    assert np.array_equal(first, kept)


def test_the_weights_go_back_to_torch(tmp_path: Path) -> None:
    twin = NumpySquashedGaussianMLPActor(NESTED, SIX, hidden_sizes=(8, 4), seed=5)
    twin.save(tmp_path / "weights")
    with_torch = SquashedGaussianMLPActor(NESTED, SIX, hidden_sizes=(8, 4)).load(tmp_path / "weights", "cpu")
    obs = NESTED.sample()
    np.testing.assert_allclose(with_torch.act_(obs, test=True), twin.act(obs, test=True), atol=1e-5)
    other = NumpySquashedGaussianMLPActor(NESTED, SIX, hidden_sizes=(8, 4), seed=6).load(tmp_path / "weights")
    assert np.array_equal(other.act(obs, test=True), twin.act(obs, test=True))


def test_a_seed_repeats_weights_and_exploration() -> None:
    obs = np.zeros(3, np.float32)
    one, two = (NumpySquashedGaussianMLPActor(VECTOR, SIX, seed=9) for _ in range(2))
    assert np.array_equal([one.act(obs) for _ in range(3)], [two.act(obs) for _ in range(3)])
    one.act(obs)
    one.seed(4)
    two.seed(4)
    assert np.array_equal(one.act(obs), two.act(obs))


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"hidden_sizes": (8, 16)}, r"net\.2\.weight has the shape \(16, 8\), the policy's has \(8, 8\)"),
        ({"hidden_sizes": (8, 8, 8)}, r"with net\.4\.bias, net\.4\.weight"),
        ({"hidden_sizes": (8,)}, r"without net\.2\.weight, net\.2\.bias"),
        ({"hidden_sizes": (8, 8), "activation": "tanh"}, "their activation is tanh, not relu"),
    ],
)
def test_weights_of_another_architecture_are_refused_whole(kwargs: dict[str, Any], message: str) -> None:
    twin = NumpySquashedGaussianMLPActor(VECTOR, PENDULUM, hidden_sizes=(8, 8))
    before = twin.to_bytes()
    with pytest.raises(WeightsError, match=message):
        twin.from_bytes(SquashedGaussianMLPActor(VECTOR, PENDULUM, **kwargs).to_bytes())
    assert twin.to_bytes() == before


def test_garbage_is_refused_whole() -> None:
    twin = NumpySquashedGaussianMLPActor(VECTOR, PENDULUM)
    before = twin.to_bytes()
    with pytest.raises(WeightsError, match="no weights"):
        twin.from_bytes(b"\x00" * 64)
    assert twin.to_bytes() == before


def test_an_unknown_activation_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"'elu'.*relu and tanh"):
        NumpySquashedGaussianMLPActor(VECTOR, PENDULUM, activation=torch.nn.ELU)
