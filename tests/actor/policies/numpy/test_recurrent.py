from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

import tmrl_core.actor
from tests.actor.policies.torch.test_recurrent import BOX, FEW, OBSERVATION, make
from tmrl_core.actor import choose_actor
from tmrl_core.actor.policies.policy import CELLS
from tmrl_core.actor.policies.weights import difference
from tmrl_core.actor.rollout.runner import PolicyRunner
from tmrl_core.errors import ConfigError, WeightsError

TICKS = 12
CASES: list[tuple[str, Any, dict[str, Any]]] = [
    ("SquashedGaussianRNNActor", BOX, {"random": 0.3}),
    ("SquashedGaussianRNNActor", BOX, {"random": 0.0, "activation": "tanh"}),
    ("GaussianRNNActor", BOX, {"log_std": -0.5}),
    ("GaussianRNNActor", BOX, {"normalize_observations": True}),
    ("CategoricalRNNActor", FEW, {"activation": "relu"}),
    ("CategoricalRNNActor", FEW, {"normalize_observations": True}),
    ("QValueRNNActor", FEW, {"epsilon": 0.3}),
    ("QValueRNNActor", FEW, {"epsilon": 0.3, "dueling": True}),
]
each_case = pytest.mark.parametrize(("name", "space", "kwargs"), CASES)
each_name = pytest.mark.parametrize(("name", "space"), {case[0]: case[:2] for case in CASES}.values())
each_cell = pytest.mark.parametrize("cell", CELLS)


def pair(name: str, space: Any, cell: str, **kwargs: Any) -> tuple[Any, Any]:
    policy = make(getattr(tmrl_core.actor, name), cell, **kwargs)
    with torch.no_grad():
        for buffer, values in policy.named_buffers():
            if buffer.startswith("obs_"):
                values.add_(torch.rand(values.shape))
    numpy_cls = getattr(tmrl_core.actor, f"Numpy{name}")
    acting = numpy_cls(OBSERVATION, space, hidden_sizes=(6,), cell=cell, cell_size=5, **kwargs)
    return policy, acting.from_bytes(policy.to_bytes())


def episode(ticks: int = TICKS) -> list[Any]:
    OBSERVATION.seed(1)
    return [OBSERVATION.sample() for _ in range(ticks)]


def stacked(observations: list[Any]) -> dict[str, np.ndarray]:
    return {name: np.stack([obs[name] for obs in observations])[None] for name in ("x", "n")}


@each_case
@each_cell
@pytest.mark.parametrize("test", [False, True])
def test_both_backends_choose_equal_actions_over_an_episode(
    name: str, space: Any, kwargs: Any, cell: str, test: bool
) -> None:
    policy, acting = pair(name, space, cell, **kwargs)
    runners = [PolicyRunner(lambda actor=actor, **_: actor, OBSERVATION, space, seed=5) for actor in (policy, acting)]
    for _ in range(2):
        for runner in runners:
            runner.reset()
        for obs in episode():
            (expected, more), (found, extras) = (runner.decide(obs, test, True) for runner in runners)
            np.testing.assert_allclose(found, expected, atol=1e-5)
            assert space.contains(found)
            assert extras is not None
            assert more is not None
            declared = acting.reset_extras()
            assert {key: (v.shape, v.dtype) for key, v in extras.items()} == {
                key: (v.shape, v.dtype) for key, v in declared.items()
            }
            for key, value in more.items():
                np.testing.assert_allclose(extras[key], value, atol=1e-4)


@each_case
@each_cell
def test_both_backends_unroll_equally(name: str, space: Any, kwargs: Any, cell: str) -> None:
    policy, acting = pair(name, space, cell, **kwargs)
    obs_BT = stacked(episode())
    tensors = {key: torch.from_numpy(leaf) for key, leaf in obs_BT.items()}
    expected, last = policy.unroll(tensors, policy.initial_state(1))
    found, end = acting.unroll(obs_BT, acting.initial_state(1))
    assert found.keys() == expected.keys()
    for key, value in found.items():
        np.testing.assert_allclose(value, expected[key].detach(), atol=1e-4)
    for key in CELLS[cell]:
        np.testing.assert_allclose(end[key], last[key].detach(), atol=1e-5)


@each_name
@each_cell
def test_a_slice_of_the_whole_unroll_needs_the_state_before_it(name: str, space: Any, cell: str) -> None:
    acting = pair(name, space, cell)[1]
    observations = episode()
    whole, _ = acting.unroll(stacked(observations), acting.initial_state(1))
    _, before = acting.unroll(stacked(observations[:7]), acting.initial_state(1))
    rest, _ = acting.unroll(stacked(observations[7:]), before)
    blank, _ = acting.unroll(stacked(observations[7:]), acting.initial_state(1))
    for key, value in rest.items():
        np.testing.assert_allclose(value, whole[key][:, 7:], atol=1e-6)
        if (name, key) != ("GaussianRNNActor", "log_std"):
            assert np.abs(blank[key] - whole[key][:, 7:]).max() > 1e-3


@each_name
def test_rows_of_a_batch_are_acted_on_alone(name: str, space: Any) -> None:
    acting = pair(name, space, "lstm")[1]
    observations = episode(6)
    batch = {key: leaf[0] for key, leaf in stacked(observations).items()}
    rng = np.random.default_rng(0)
    state = {key: rng.standard_normal((6, 5)).astype(np.float32) for key in ("h", "c")}
    action_B, after_B, _ = acting.act_batch(batch, state, rng, True)
    for row in range(6):
        one = {key: leaf[row : row + 1] for key, leaf in batch.items()}
        action, after, _ = acting.act_batch(one, {key: leaf[row : row + 1] for key, leaf in state.items()}, rng, True)
        np.testing.assert_allclose(action[0], action_B[row], atol=1e-6)
        for key, value in after.items():
            np.testing.assert_allclose(value[0], after_B[key][row], atol=1e-6)


@each_name
@each_cell
def test_weights_survive_both_ways_and_steps_leave_earlier_states_alone(name: str, space: Any, cell: str) -> None:
    policy, acting = pair(name, space, cell)
    before = {key: value.clone() for key, value in policy.state_dict().items()}
    policy.from_bytes(acting.to_bytes(), "cpu")
    for key, value in policy.state_dict().items():
        assert torch.equal(value, before[key])
    state = acting.initial_state(1)
    _, state = acting.step({"x": np.ones((1, 3), np.float32), "n": np.full(1, 3)}, state, True)
    kept = {key: value.copy() for key, value in state.items()}
    acting.step({"x": np.ones((1, 3), np.float32), "n": np.full(1, 3)}, state, True)
    for key, value in state.items():
        np.testing.assert_array_equal(value, kept[key])


@each_name
def test_scripts_act_with_a_state_that_begins_with_each_episode(name: str, space: Any) -> None:
    for actor in pair(name, space, "gru"):
        runner = PolicyRunner(lambda actor=actor, **_: actor, OBSERVATION, space)
        for _ in range(2):
            actor.begin_episode()
            runner.reset()
            for obs in episode(5):
                np.testing.assert_array_equal(actor.act_(obs, test=True), runner.decide(obs, True, False)[0])


@pytest.mark.parametrize("backend", ["numpy", "torch"])
@each_name
def test_weights_of_another_recurrent_layer_are_refused(name: str, space: Any, backend: str) -> None:
    def made(backend: str = backend, **kwargs: Any) -> Any:
        return choose_actor(f"tmrl_core.actor:{name}", {"hidden_sizes": (6,), **kwargs}, backend=backend)(
            observation_space=OBSERVATION, action_space=space
        )

    def refused(actor: Any, data: bytes, message: str) -> None:
        before = actor.to_bytes()
        with pytest.raises(WeightsError, match=message):
            actor.from_bytes(data, "cpu")
        assert actor.to_bytes() == before

    refused(made(cell="gru"), made(cell="lstm").to_bytes(), f"not for {name}: cell: gru here, lstm in them. Trainer")
    refused(made(cell_size=8), made(cell_size=4).to_bytes(), f"not for {name}: cell_size: 8 here, 4 in them")
    assert difference(made(cell="lstm").architecture(), made().architecture()) == (
        "cell: lstm at the worker, gru at the trainer"
    )
    mlp = choose_actor(f"tmrl_core.actor:{name.replace('RNN', 'MLP')}", {"hidden_sizes": (6,)}, backend=backend)
    refused(made(), mlp(observation_space=OBSERVATION, action_space=space).to_bytes(), "cell: gru here, none in them")


@pytest.mark.parametrize("backend", ["numpy", "torch"])
@each_name
def test_settings_and_states_out_of_range_are_refused(name: str, space: Any, backend: str) -> None:
    make_one = choose_actor(f"tmrl_core.actor:{name}", backend=backend)
    for bad, message in (
        ({"cell": "elman"}, r"actor\.kwargs\.cell: found 'elman', allowed: gru, lstm"),
        ({"cell_size": 0}, r"actor\.kwargs\.cell_size: found 0, allowed: at least 1"),
        ({"state_interval": 0}, r"actor\.kwargs\.state_interval: found 0, allowed: at least 1"),
    ):
        with pytest.raises(ConfigError, match=message):
            make_one(observation_space=OBSERVATION, action_space=space, **bad)
    actor = make_one(observation_space=OBSERVATION, action_space=space)
    obs = {"x": np.zeros((2, 3), np.float32), "n": np.full(2, 2)}
    for state in (
        {"h": np.zeros((2, 64), np.float32)},
        {"h": np.zeros(128, np.float32)},
        {name: np.zeros((2, 128), np.float32) for name in ("h", "c")},
        {},
    ):
        with pytest.raises(ValueError, match=r"allowed for this gru: h \[batch, 128\]"):
            actor.act_batch(obs, state, np.random.default_rng(), True)


def test_a_vector_is_copied_at_once_and_other_arrays_are_flattened_alike() -> None:
    vector, matrix = (spaces.Box(-1, 1, shape, np.float64) for shape in ((6,), (2, 3)))
    first = tmrl_core.actor.NumpyQValueRNNActor(vector, FEW)
    second = tmrl_core.actor.NumpyQValueRNNActor(matrix, FEW).from_bytes(first.to_bytes())
    obs_BT = np.linspace(-1, 1, 24).reshape(2, 2, 6)
    found, _ = first.unroll(obs_BT, first.initial_state(2))
    expected, _ = second.unroll(obs_BT.reshape(2, 2, 2, 3), second.initial_state(2))
    np.testing.assert_array_equal(found["q"], expected["q"])
