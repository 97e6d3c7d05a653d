from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from tmrl_core.actor.policies.numpy.deterministic import NumpyDeterministicMLPActor
from tmrl_core.actor.policies.numpy.q_value import NumpyQValueMLPActor
from tmrl_core.actor.policies.torch.deterministic import DeterministicMLPActor
from tmrl_core.actor.policies.torch.q_value import QValueMLPActor
from tmrl_core.errors import ConfigError

VECTOR = spaces.Box(-1, 1, (3,), np.float32)
NESTED = spaces.Dict({"mode": spaces.Discrete(3), "speed": spaces.Box(-1, 1, (2, 2), np.float64)})
THREE = spaces.Discrete(3, start=5)
BOX = spaces.Box(np.array([-2.0, 0.0], np.float32), np.array([2.0, 1.0], np.float32))
SQUARE = spaces.Box(-1, 1, (2, 2), np.float64)

BACKENDS: list[Any] = [
    (QValueMLPActor, NumpyQValueMLPActor, VECTOR, THREE, {"hidden_sizes": (16, 8)}),
    (
        QValueMLPActor,
        NumpyQValueMLPActor,
        NESTED,
        THREE,
        {"hidden_sizes": (16,), "activation": "tanh", "dueling": True},
    ),
    (QValueMLPActor, NumpyQValueMLPActor, VECTOR, THREE, {"hidden_sizes": (), "dueling": True}),
    (DeterministicMLPActor, NumpyDeterministicMLPActor, VECTOR, BOX, {"hidden_sizes": (16, 8)}),
    (DeterministicMLPActor, NumpyDeterministicMLPActor, NESTED, SQUARE, {"hidden_sizes": (16,), "activation": "tanh"}),
]
BOTH = [(cls, *rest) for one, two, *rest in BACKENDS for cls in (one, two)]


@pytest.mark.parametrize(("cls", "numpy_cls", "observations", "actions", "kwargs"), BACKENDS)
def test_both_backends_choose_equal_actions_with_the_same_weights(
    cls: Any, numpy_cls: Any, observations: Any, actions: Any, kwargs: Any
) -> None:
    torch.manual_seed(1)
    with_torch = cls(observations, actions, **kwargs)
    with torch.no_grad():
        for parameter in with_torch.parameters():  # far enough apart for more than one best action
            parameter.mul_(1.0 if parameter.ndim == 1 else 4.0)
    numpy_actor = numpy_cls(observations, actions, **kwargs)
    numpy_actor.from_blob(*with_torch.to_blob(), device="cpu")
    observations.seed(2)
    seen = []
    for _ in range(30):
        obs = observations.sample()
        expected, action = with_torch.act_(obs, test=True), numpy_actor.act(obs, test=True)
        assert np.asarray(action).dtype == np.asarray(expected).dtype
        assert np.shape(action) == np.shape(expected)
        np.testing.assert_allclose(action, expected, atol=1e-5)
        assert actions.contains(action)
        assert actions.contains(numpy_actor.act(obs))
        assert actions.contains(with_torch.act_(obs))
        seen.append(np.sum(action))
    assert len(set(seen)) > 1
    # And back.
    other = cls(observations, actions, **kwargs).from_blob(*numpy_actor.to_blob(), device="cpu")
    np.testing.assert_allclose(other.act_(obs, test=True), with_torch.act_(obs, test=True), atol=1e-6)


@pytest.mark.parametrize(("cls", "observations", "actions", "kwargs"), BOTH)
def test_a_seed_repeats_the_exploration(cls: Any, observations: Any, actions: Any, kwargs: Any) -> None:
    actor = cls(observations, actions, **kwargs)
    actor.set_exploration({"epsilon": 0.5, "noise": 0.3, "random": 0.5})
    observations.seed(0)
    obs = observations.sample()

    def drawn(seed: int) -> list[Any]:
        actor.seed(seed)
        return [np.asarray(actor.act_(obs)).tolist() for _ in range(20)]

    assert drawn(3) == drawn(3)
    assert drawn(3) != drawn(4)


@pytest.mark.parametrize("cls", [QValueMLPActor, NumpyQValueMLPActor])
def test_epsilon_is_the_share_of_random_actions(cls: Any) -> None:
    actor = cls(VECTOR, THREE, (8,))
    actor.seed(0)
    obs = np.array([0.1, -0.2, 0.3], np.float32)
    assert actor.exploration() == {"epsilon": 1.0}
    best = actor.act_(obs, test=True)
    actor.set_exploration({"epsilon": 0.0})
    assert {actor.act_(obs) for _ in range(20)} == {best}
    actor.set_exploration({"epsilon": 0.3})
    assert actor.exploration() == {"epsilon": 0.3}
    drawn = [actor.act_(obs) for _ in range(3000)]
    # A third of the actions by chance is the best one.
    assert sum(action != best for action in drawn) / 3000 == pytest.approx(0.2, abs=0.03)
    assert set(drawn) == {5, 6, 7}
    assert {actor.act_(obs, test=True) for _ in range(20)} == {best}


@pytest.mark.parametrize("cls", [DeterministicMLPActor, NumpyDeterministicMLPActor])
def test_noise_has_its_spread_in_the_actuators_units_and_random_actions_fill_the_space(cls: Any) -> None:
    actor = cls(VECTOR, BOX, (8,))
    actor.seed(0)
    obs = np.array([0.1, -0.2, 0.3], np.float32)
    assert actor.exploration() == {"noise": 0.1, "random": 1.0}
    uniform = np.array([actor.act_(obs) for _ in range(1500)], np.float64)
    assert uniform.mean(axis=0) == pytest.approx([0.0, 0.5], abs=0.1)
    assert uniform.std(axis=0) == pytest.approx([4 / np.sqrt(12), 1 / np.sqrt(12)], rel=0.06)
    actor.set_exploration({"noise": 0.05, "random": 0.0})
    noisy = np.array([actor.act_(obs) for _ in range(1500)], np.float64)
    assert noisy.mean(axis=0) == pytest.approx(actor.act_(obs, test=True), abs=0.02)
    assert noisy.std(axis=0) == pytest.approx([0.1, 0.025], rel=0.08)


@pytest.mark.parametrize("cls", [NumpyQValueMLPActor, NumpyDeterministicMLPActor])
def test_an_unknown_activation_is_refused(cls: Any) -> None:
    actions = THREE if cls is NumpyQValueMLPActor else BOX
    with pytest.raises(ConfigError, match=r"'elu'.*relu and tanh"):
        cls(VECTOR, actions, activation=torch.nn.ELU)


@pytest.mark.parametrize("shape", [(1,), (2, 3)])
@pytest.mark.parametrize("random", [0.0, 1.0])
def test_actions_stay_inside_bounds_that_float32_rounds_outwards(shape: tuple[int, ...], random: float) -> None:
    actions = spaces.Box(-0.1, 0.3, shape, np.float64)
    with_torch = DeterministicMLPActor(VECTOR, actions, hidden_sizes=(), random=random)
    with_numpy = NumpyDeterministicMLPActor(VECTOR, actions, hidden_sizes=(), random=random)
    for sign in (50.0, -50.0):
        with torch.no_grad():
            with_torch.mu.bias.fill_(sign)
        with_numpy.from_bytes(with_torch.to_bytes())
        for _ in range(20):
            assert actions.contains(with_torch.act_(np.zeros(3, np.float32)))
            assert actions.contains(with_numpy.act(np.zeros(3, np.float32)))
