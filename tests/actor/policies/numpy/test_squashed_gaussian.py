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
def test_both_backends_choose_equal_actions_with_the_same_weights(
    observations: Any, actions: Any, hidden_sizes: tuple[int, ...], activation: str
) -> None:
    torch.manual_seed(1)
    with_torch = SquashedGaussianMLPActor(observations, actions, hidden_sizes=hidden_sizes, activation=activation)
    numpy_actor = NumpySquashedGaussianMLPActor(observations, actions, hidden_sizes=hidden_sizes, activation=activation)
    numpy_actor.from_blob(*with_torch.to_blob(), device="cpu")
    observations.seed(2)
    for _ in range(20):
        obs = observations.sample()
        expected = with_torch.act_(obs, test=True)
        action = numpy_actor.act(obs, test=True)
        assert action.shape == expected.shape
        assert action.dtype == expected.dtype
        np.testing.assert_allclose(action, expected, atol=1e-5)
        assert actions.contains(numpy_actor.act(obs))


@pytest.mark.parametrize("actions", [PENDULUM, SIX])
def test_exploration_has_the_spread_of_the_weights(actions: Any) -> None:
    numpy_actor = NumpySquashedGaussianMLPActor(VECTOR, actions, hidden_sizes=(8,), seed=3)
    with_torch = SquashedGaussianMLPActor(VECTOR, actions, hidden_sizes=(8,))
    with torch.no_grad():
        with_torch.log_std.bias.fill_(-1.0)
        with_torch.log_std.weight.zero_()
    numpy_actor.from_bytes(with_torch.to_bytes())
    obs = np.array([0.3, -0.1, 0.5], np.float32)
    drawn = np.array([numpy_actor.act(obs) for _ in range(4000)], np.float64)
    low, high = actions.low.astype(np.float64), actions.high.astype(np.float64)
    u = np.arctanh(2 * (drawn - low) / (high - low) - 1)
    assert u.std(axis=0) == pytest.approx(np.full(actions.shape, np.exp(-1.0)), rel=0.06)
    np.testing.assert_allclose(u.mean(axis=0), with_torch.mu(with_torch.net(torch.as_tensor(obs))).detach(), atol=0.03)


@pytest.mark.parametrize("size", [1, 6], ids=["one by one", "together"])
def test_the_spread_has_bounds(size: int) -> None:
    """Of the standard deviation exp(2), 10.8 % are within 1; of exp(-20), all are, but few are equal."""
    actions = spaces.Box(-1, 1, (size,), np.float64)
    numpy_actor = NumpySquashedGaussianMLPActor(VECTOR, actions, hidden_sizes=(), seed=3)
    with_torch = SquashedGaussianMLPActor(VECTOR, actions, hidden_sizes=())

    def drawn(log_std: float) -> np.ndarray:
        with torch.no_grad():
            for layer in (with_torch.mu, with_torch.log_std):
                layer.weight.zero_()
                layer.bias.zero_()
            with_torch.log_std.bias.fill_(log_std)
        numpy_actor.from_bytes(with_torch.to_bytes())
        return np.arctanh([numpy_actor.act(np.zeros(3, np.float32)) for _ in range(2000)])

    with np.errstate(divide="ignore"):
        assert (np.abs(drawn(10.0)) < 1).mean() == pytest.approx(0.108, abs=0.03)
    assert drawn(-50.0).std() == pytest.approx(np.exp(-20.0), rel=0.1)


@pytest.mark.parametrize("actions", [PENDULUM, SIX, spaces.Box(-1, 1, (2, 2), np.float64)])
def test_actions_are_uniform_before_the_first_weights(actions: Any) -> None:
    numpy_actor = NumpySquashedGaussianMLPActor(VECTOR, actions, hidden_sizes=(8,), seed=3)
    obs = np.array([0.3, -0.1, 0.5], np.float32)
    best = numpy_actor.act(obs, test=True)

    def unit() -> np.ndarray:
        drawn = np.array([numpy_actor.act(obs) for _ in range(1500)])
        assert drawn.dtype == actions.dtype
        assert all(actions.contains(action) for action in drawn)
        share: np.ndarray = (drawn - actions.low) / (actions.high - actions.low)
        return share

    assert numpy_actor.exploration() == {"random": 1.0}
    assert unit().mean(axis=0) == pytest.approx(np.full(actions.shape, 0.5), abs=0.04)
    assert unit().std(axis=0) == pytest.approx(np.full(actions.shape, 1 / np.sqrt(12)), rel=0.06)
    assert all(np.array_equal(numpy_actor.act(obs, test=True), best) for _ in range(20))

    sharp = SquashedGaussianMLPActor(VECTOR, actions, hidden_sizes=(8,))
    with torch.no_grad():
        sharp.log_std.bias.fill_(-20.0)
        sharp.log_std.weight.zero_()
    numpy_actor.from_bytes(sharp.to_bytes())
    assert numpy_actor.exploration() == {"random": 0.0}
    np.testing.assert_allclose(numpy_actor.act(obs), numpy_actor.act(obs, test=True), atol=1e-5)


def test_the_trainers_share_of_random_actions_applies_to_any_weights() -> None:
    numpy_actor = NumpySquashedGaussianMLPActor(VECTOR, PENDULUM, hidden_sizes=(8,), seed=3)
    original = SquashedGaussianMLPActor(VECTOR, PENDULUM, hidden_sizes=(8,))
    with torch.no_grad():
        original.log_std.bias.fill_(-20.0)
        original.log_std.weight.zero_()
    obs = np.zeros(3, np.float32)
    for share in (1.0, 0.25, 0.0, 1.0):
        numpy_actor.from_bytes(original.to_bytes())
        numpy_actor.set_exploration({"random": share})
        assert numpy_actor.exploration() == {"random": share}
        best = numpy_actor.act(obs, test=True)
        random = [abs(float((numpy_actor.act(obs) - best).item())) > 1e-4 for _ in range(1000)]
        assert np.mean(random) == pytest.approx(share, abs=0.05)
    numpy_actor.set_exploration({"noise": 0.1})  # of another policy
    assert numpy_actor.exploration() == {"random": 1.0}


@pytest.mark.parametrize(
    "actions", [PENDULUM, SIX, spaces.Box(-0.1, 0.3, (1,), np.float64), spaces.Box(-0.1, 0.3, (6,), np.float64)]
)
def test_saturated_actions_stay_inside_the_bounds(actions: Any) -> None:
    numpy_actor = NumpySquashedGaussianMLPActor(VECTOR, actions, hidden_sizes=())
    with_torch = SquashedGaussianMLPActor(VECTOR, actions, hidden_sizes=())
    for sign in (50.0, -50.0):
        with torch.no_grad():
            with_torch.mu.bias.fill_(sign)
        numpy_actor.from_bytes(with_torch.to_bytes())
        obs = np.zeros(3, np.float32)
        assert actions.contains(numpy_actor.act(obs, test=True))
        assert actions.contains(with_torch.act_(obs, test=True))


def test_each_action_is_an_array_of_its_own() -> None:
    numpy_actor = NumpySquashedGaussianMLPActor(VECTOR, PENDULUM)
    first = numpy_actor.act(np.zeros(3, np.float32))
    kept = first.copy()
    numpy_actor.act(np.ones(3, np.float32))
    assert np.array_equal(first, kept)


def test_the_weights_go_back_to_torch(tmp_path: Path) -> None:
    numpy_actor = NumpySquashedGaussianMLPActor(NESTED, SIX, hidden_sizes=(8, 4), seed=5)
    numpy_actor.save(tmp_path / "weights")
    with_torch = SquashedGaussianMLPActor(NESTED, SIX, hidden_sizes=(8, 4)).load(tmp_path / "weights", "cpu")
    obs = NESTED.sample()
    np.testing.assert_allclose(with_torch.act_(obs, test=True), numpy_actor.act(obs, test=True), atol=1e-5)
    other = NumpySquashedGaussianMLPActor(NESTED, SIX, hidden_sizes=(8, 4), seed=6).load(tmp_path / "weights")
    assert np.array_equal(other.act(obs, test=True), numpy_actor.act(obs, test=True))


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
        ({"hidden_sizes": (8, 16)}, r"hidden_sizes: \[8, 8\] here, \[8, 16\] in them"),
        ({"hidden_sizes": (8, 8, 8)}, r"hidden_sizes: \[8, 8\] here, \[8, 8, 8\] in them"),
        ({"hidden_sizes": (8,)}, r"hidden_sizes: \[8, 8\] here, \[8\] in them"),
        ({"hidden_sizes": (8, 8), "activation": "tanh"}, "their activation is tanh, not relu"),
    ],
)
def test_weights_of_another_architecture_are_refused_whole(kwargs: dict[str, Any], message: str) -> None:
    numpy_actor = NumpySquashedGaussianMLPActor(VECTOR, PENDULUM, hidden_sizes=(8, 8))
    before = numpy_actor.to_bytes()
    with pytest.raises(WeightsError, match=message):
        numpy_actor.from_bytes(SquashedGaussianMLPActor(VECTOR, PENDULUM, **kwargs).to_bytes())
    assert numpy_actor.to_bytes() == before


def test_garbage_is_refused_whole() -> None:
    numpy_actor = NumpySquashedGaussianMLPActor(VECTOR, PENDULUM)
    before = numpy_actor.to_bytes()
    with pytest.raises(WeightsError, match="not in the safetensors format"):
        numpy_actor.from_bytes(b"\x00" * 64)
    assert numpy_actor.to_bytes() == before


def test_an_unknown_activation_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"'elu'.*relu and tanh"):
        NumpySquashedGaussianMLPActor(VECTOR, PENDULUM, activation=torch.nn.ELU)
