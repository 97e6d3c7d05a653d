"""Rows of a batch act as single observations do, for each policy, backend and kind of action space."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from tmrl_core import actor as actors
from tmrl_core.actor.policies.masks import ACTION_MASK
from tmrl_core.config.algorithms import ACTORS
from tmrl_core.samples.columns import map_leaves

VECTOR = spaces.Box(-1, 1, (3,), np.float32)
OBSERVATIONS: dict[str, Any] = {
    "vector": VECTOR,
    "nested": spaces.Dict({"x": spaces.Box(-1, 1, (2, 2), np.float64), "n": spaces.Discrete(4, start=2)}),
    "image": spaces.Dict({"camera": spaces.Box(0, 255, (9, 8, 3), np.uint8), "x": VECTOR}),
}
ACTIONS: dict[str, list[Any]] = {
    "box": [
        spaces.Box(np.array([-2.0, 0.0], np.float32), np.array([2.0, 1.0], np.float32)),
        spaces.Box(-1, 1, (2, 3), np.float64),
        spaces.Box(-1, 1, (), np.float32),
    ],
    "discrete": [spaces.Discrete(3, start=5)],
    "multi_discrete": [spaces.MultiDiscrete([3, 2, 4]), spaces.MultiBinary([2, 2])],
}
CASES = [
    pytest.param(name, space, seen, id=f"{name}-{space}-{label}")
    for name, kinds in ACTORS.items()
    for kind in sorted(kinds)
    for space in ACTIONS[kind]
    for label, seen in OBSERVATIONS.items()
]
MASKED = [
    pytest.param(
        name, space, spaces.Dict({"x": VECTOR, ACTION_MASK: spaces.MultiBinary(count)}), id=f"{name}-{space}-masked"
    )
    for name, kinds in ACTORS.items()
    for kind, space, count in (
        ("discrete", spaces.Discrete(3, start=5), 3),
        ("multi_discrete", spaces.MultiDiscrete([2, 2]), 4),
    )
    if kind in kinds
]
BATCH = 5
each_backend = pytest.mark.parametrize("backend", ["Numpy", ""], ids=["numpy", "torch"])


def made(name: str, backend: str, observation_space: Any, action_space: Any) -> Any:
    """A policy with weights that let observations decide."""
    torch.manual_seed(1)
    sizes: dict[str, Any] = {"width": 8} if "Residual" in name else {"hidden_sizes": (16, 8)}
    with_torch = getattr(actors, name)(observation_space, action_space, **sizes)
    with torch.no_grad():
        for parameter in with_torch.parameters():
            if parameter.ndim <= 2:  # large features of images would lose digits
                parameter.add_(0.1 * torch.randn(parameter.shape))
    if not backend:
        return with_torch
    policy = getattr(actors, backend + name)(observation_space, action_space, **sizes, seed=0)
    return policy.from_bytes(with_torch.to_bytes())


def batch_of(observation_space: Any) -> Any:
    observation_space.seed(2)
    seen = [observation_space.sample() for _ in range(BATCH)]
    if not isinstance(observation_space, spaces.Dict):
        return np.stack(seen)
    for obs in seen:
        if ACTION_MASK in obs:
            obs[ACTION_MASK][::2] = 1  # each choice has a value that is allowed
    return {key: np.stack([obs[key] for obs in seen]) for key in seen[0]}


def row_of(tree: Any, row: Any) -> Any:
    return map_leaves(lambda leaf: leaf[row], tree)


def silent(policy: Any) -> Any:
    policy.set_exploration({"random": 0.0, "noise": 0.0, "epsilon": 0.0})
    return policy


@each_backend
@pytest.mark.parametrize(("name", "space", "seen"), CASES + MASKED)
def test_rows_of_a_batch_act_as_single_observations_do(name: str, space: Any, seen: Any, backend: str) -> None:
    policy, obs_B = silent(made(name, backend, seen, space)), batch_of(seen)
    rng = np.random.default_rng(0)
    zeros_B = policy.initial_state(BATCH)
    state_B = {key: rng.standard_normal(value.shape).astype(np.float32) for key, value in zeros_B.items()}
    action_B, after_B, extras_B = policy.act_batch(obs_B, state_B, rng, True)
    assert {key: (value.shape[1:], value.dtype) for key, value in extras_B.items()} == {
        key: (value.shape, value.dtype) for key, value in policy.extras.items()
    }
    for row in range(BATCH):
        assert space.contains(action_B[(row, ...) if isinstance(space, spaces.Box) else row])
        action_1, after_1, extras_1 = policy.act_batch(
            row_of(obs_B, slice(row, row + 1)), row_of(state_B, slice(row, row + 1)), rng, True
        )
        np.testing.assert_allclose(action_1[0], action_B[row], rtol=0, atol=1e-6)
        for found, expected in ((after_1, after_B), (extras_1, extras_B)):
            assert found.keys() == expected.keys()
            for key, value in found.items():
                np.testing.assert_allclose(value[0], expected[key][row], rtol=0, atol=1e-6)
        if not state_B:
            alone, extras = policy.act_with_extras(row_of(obs_B, row), True)
            assert np.asarray(alone).dtype == action_B.dtype
            np.testing.assert_allclose(alone, action_B[row], rtol=0, atol=1e-6)
            for key, value in extras.items():
                np.testing.assert_allclose(value, extras_B[key][row], rtol=0, atol=1e-6)


@pytest.mark.parametrize(("name", "space", "seen"), CASES[::3] + MASKED)
def test_backends_explore_alike_in_batches(name: str, space: Any, seen: Any) -> None:
    obs_B = batch_of(seen)
    found = []
    for backend in ("Numpy", ""):
        policy = made(name, backend, seen, space)
        policy.set_exploration({"random": 0.3, "noise": 0.2, "epsilon": 0.5})
        rng = np.random.default_rng(7)
        state_B = policy.initial_state(BATCH)
        found.append([policy.act_batch(obs_B, state_B, rng, False)[0] for _ in range(4)])
    np.testing.assert_allclose(found[0], found[1], atol=1e-5)


@pytest.mark.parametrize("name", ACTORS)
def test_scripts_use_both_backends_alike(name: str, tmp_path: Path) -> None:
    """Arrays in `act`, and no device in `load`."""
    observations, actions = OBSERVATIONS["nested"], ACTIONS["box" if "box" in ACTORS[name] else "discrete"][0]
    getattr(actors, name)(observations, actions).save(tmp_path / "policy.tmod")
    obs = observations.sample()
    with_torch, with_numpy = (
        getattr(actors, each)(observations, actions).load(tmp_path / "policy.tmod").act(obs, test=True)
        for each in (name, f"Numpy{name}")
    )
    np.testing.assert_allclose(with_torch, with_numpy, atol=1e-5)
    assert np.asarray(with_torch).dtype == np.asarray(with_numpy).dtype
