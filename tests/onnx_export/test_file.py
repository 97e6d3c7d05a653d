"""Exported policies against the NumPy policies, in ONNX Runtime: every policy, space, mask, state and activation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from gymnasium import spaces
from gymnasium.vector.utils import batch_space

import tmrl_core
import tmrl_core.actor
from tmrl_core.actor.policies.policy import RecurrentPolicy
from tmrl_core.config.algorithms import POLICIES
from tmrl_core.errors import ConfigError, MissingExtraError, TmrlError
from tmrl_core.onnx_export import write_onnx
from tmrl_core.onnx_export.file import model_of
from tmrl_core.onnx_export.inputs import observation_arrays
from tmrl_core.sessions.spaces import space_of_json

VECTOR = spaces.Box(-1.0, 1.0, (3,), np.float32)
EVERYTHING = spaces.Dict(
    board=spaces.Box(1, 4, (3, 4), np.uint8),
    camera=spaces.Box(0, 255, (12, 10, 3), np.uint8),
    far=spaces.Box(-5.0, 5.0, (2, 2), np.float64),
    gear=spaces.Discrete(3, start=-1),
    keys=spaces.MultiBinary(3),
    modes=spaces.MultiDiscrete([2, 3], start=[0, 5]),
    robot=spaces.Tuple((spaces.Box(-1.0, 1.0, (), np.float32), spaces.Dict(view=spaces.Box(0, 255, (6, 7), np.uint8)))),
)
OBSERVATIONS = {"vector": VECTOR, "everything": EVERYTHING}
BOXES = (
    spaces.Box(np.array([-2, 0, -1], np.float32), np.array([1, 0.1, 5], np.float32)),
    spaces.Box(-0.1, 0.3, (2, 2), np.float64),
)
ACTIONS: dict[str, tuple[spaces.Space[Any], ...]] = {
    "box": BOXES,
    "discrete": (spaces.Discrete(4, start=1),),
    "multi_discrete": (spaces.MultiDiscrete([2, 4, 3], start=[0, 1, -5]), spaces.MultiBinary((2, 2))),
}


OF_EACH = spaces.Tuple((spaces.MultiBinary(2), spaces.MultiBinary(3)))


def trained(name: str, observations: Any, actions: Any, **kwargs: Any) -> Any:
    """Return a policy whose outputs differ between observations, and its statistics from 0 and 1."""
    rng = np.random.default_rng(2)
    policy = getattr(tmrl_core.actor, f"Numpy{name}")(observations, actions, seed=5, **kwargs)
    other = getattr(tmrl_core.actor, f"Numpy{name}")(observations, actions, seed=5, **kwargs)
    for key, array in other._weights.items():
        array[...] = rng.uniform(0.5, 2.0, array.shape) if key == "obs_std" else array * 1.3 + 0.02
    policy.from_bytes(other.to_bytes())
    return policy


def session_of(policy: Any) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    data = model_of(policy).SerializeToString()
    return onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])


def check_acts_alike(policy: Any, rows: int = 3, ticks: int = 4) -> dict[str, np.ndarray]:
    """Compare the file's actions and states with those of the policy, tick by tick; return the last outputs."""
    session = session_of(policy)
    names = [one.name for one in session.get_outputs()]
    batches = batch_space(policy.observation_space, rows)
    batches.seed(1)
    state_B = policy.initial_state(rows) if isinstance(policy, RecurrentPolicy) else {}
    states = {f"state.{name}": value_B for name, value_B in state_B.items()}
    found: dict[str, np.ndarray] = {}
    for _ in range(ticks):
        obs_B = batches.sample()
        found = dict(zip(names, session.run(None, observation_arrays(obs_B) | states), strict=True))
        states = {f"state.{name}": found[f"next_state.{name}"] for name in state_B}
        action_B, after_B, _ = policy.act_batch(obs_B, state_B, np.random.default_rng(0), True)
        outputs_B, _ = policy.infer(obs_B, state_B)
        state_B = after_B if state_B else {}
        assert found["action"].dtype == action_B.dtype == policy.action_space.dtype
        np.testing.assert_allclose(found["action"], action_B, atol=1e-5, rtol=1e-5)
        for theirs, ours in {"mean": "mu", "log_std": "log_std", "logits": "logits", "q": "q"}.items():
            assert (theirs in found) == (ours in outputs_B)
            if theirs in found:
                np.testing.assert_allclose(found[theirs], outputs_B[ours], atol=1e-5, rtol=1e-5)
        for name, value_B in state_B.items():
            np.testing.assert_allclose(found[f"next_state.{name}"], value_B, atol=1e-5)
        assert all(policy.action_space.contains(each) for each in action_in(found["action"], policy.action_space))
    return found


def action_in(action_B: np.ndarray, space: Any) -> list[Any]:
    return [np.asarray(each) if isinstance(space, spaces.Box) else each for each in action_B]


@pytest.mark.parametrize("observations", OBSERVATIONS)
@pytest.mark.parametrize("policy", POLICIES, ids=lambda one: one.name)
def test_every_policy_acts_as_with_numpy(policy: Any, observations: str) -> None:
    sizes: dict[str, Any] = {"width": 8} if "Residual" in policy.name else {"hidden_sizes": (8, 6)}
    for kind in sorted(policy.action_spaces):
        for actions in ACTIONS[kind][: 1 if observations == "everything" else None]:
            check_acts_alike(trained(policy.name, OBSERVATIONS[observations], actions, **sizes))


@pytest.mark.parametrize(
    ("name", "actions", "kwargs"),
    [
        ("GaussianMLPActor", spaces.Box(-np.inf, np.inf, (2,), np.float32), {"normalize_observations": True}),
        ("GaussianRNNActor", BOXES[0], {"normalize_observations": True, "cell": "lstm", "cell_size": 5}),
        ("QValueRNNActor", spaces.Discrete(3), {"dueling": True, "cell": "lstm", "cell_size": 4}),
        ("QValueMLPActor", spaces.Discrete(3, start=2), {"dueling": True}),
        ("SquashedGaussianMLPActor", spaces.Box(-1e6, 1e6, (2,), np.float32), {"activation": "tanh"}),
        ("DeterministicMLPActor", spaces.Box(-1.0, 1.0, (), np.float32), {"hidden_sizes": ()}),
        ("DeterministicMLPActor", spaces.Box(-1.0, 1.0, (2,), np.float16), {}),
    ],
)
def test_settings_of_policies_are_in_the_file(name: str, actions: Any, kwargs: dict[str, Any]) -> None:
    policy = trained(name, VECTOR, actions, **kwargs)
    if actions.dtype == np.float16:
        session = session_of(policy)
        (action_B,) = session.run(None, {"observation": np.zeros((1, 3), np.float32)})
        assert action_B.dtype == np.float16
    else:
        check_acts_alike(policy)


@pytest.mark.parametrize("convolutions", ["large", [[4, 3, 2]], "none"])
def test_convolutions_are_those_of_the_setting(convolutions: Any) -> None:
    space = spaces.Box(0, 255, (2, 14, 11, 3), np.uint8)
    check_acts_alike(trained("QValueMLPActor", space, spaces.Discrete(3), convolutions=convolutions), rows=2, ticks=1)


def test_floats_are_images_where_convolutions_are_set() -> None:
    space = spaces.Box(0.0, 1.0, (2, 9, 9), np.float32)
    policy = trained("SquashedGaussianMLPActor", space, BOXES[0], convolutions=[[4, 3, 2]])
    assert [node.op_type for node in model_of(policy).graph.node].count("Conv") == 1
    check_acts_alike(policy, rows=2, ticks=1)


@pytest.mark.parametrize(
    ("name", "actions", "mask"),
    [
        ("QValueMLPActor", spaces.Discrete(3), spaces.MultiBinary(3)),
        ("CategoricalRNNActor", spaces.Discrete(3, start=1), spaces.Box(0, 1, (3,), np.int8)),
        ("CategoricalMLPActor", spaces.MultiDiscrete([2, 3]), OF_EACH),
    ],
)
def test_forbidden_actions_are_never_the_files(name: str, actions: Any, mask: Any) -> None:
    policy = trained(name, spaces.Dict(action_mask=mask, x=VECTOR), actions)
    session = session_of(policy)
    seen = []
    for allowed in ([0, 1], [1, 0]) if isinstance(actions, spaces.MultiDiscrete) else ([0, 0, 1], [0, 1, 0]):
        part = np.array([allowed], np.int8)
        one = (part, np.array([[0, 0, 1]], np.int8)) if isinstance(mask, spaces.Tuple) else part
        obs_B = {"action_mask": one, "x": np.zeros((1, 3), np.float32)}
        states = {f"state.{name}": each for name, each in policy.initial_state(1).items()}
        found = session.run(["action"], observation_arrays(obs_B) | states)[0]
        wanted = policy.act_batch(obs_B, policy.initial_state(1), np.random.default_rng(0), True)[0]
        np.testing.assert_array_equal(found, wanted)
        seen.append(found.tolist())
    assert seen[0] != seen[1]


@pytest.mark.parametrize("activation", ["ELU", "GELU", "SiLU", "LeakyReLU", "Sigmoid", "SELU", "Softplus", "Softsign"])
def test_activations_of_torch_are_those_of_torch(activation: str) -> None:
    policy = tmrl_core.actor.SquashedGaussianMLPActor(VECTOR, BOXES[0], hidden_sizes=(8,), activation=activation)
    check_acts_alike(policy, ticks=1)


def test_a_policy_of_torch_gives_the_file_of_its_numpy_backend(tmp_path: Path) -> None:
    kwargs: dict[str, Any] = {"hidden_sizes": (8,), "cell_size": 4}
    space = spaces.Dict(action_mask=spaces.MultiBinary(3), x=VECTOR)
    theirs = tmrl_core.actor.CategoricalRNNActor(space, spaces.Discrete(3), **kwargs)
    ours = tmrl_core.actor.NumpyCategoricalRNNActor(space, spaces.Discrete(3), **kwargs).from_bytes(theirs.to_bytes())
    for name, policy in (("torch", theirs), ("numpy", ours)):
        assert write_onnx(policy, tmp_path / name).difference < 1e-5
    assert (tmp_path / "torch").read_bytes() == (tmp_path / "numpy").read_bytes()


def test_the_file_describes_itself(tmp_path: Path) -> None:
    policy = trained("SquashedGaussianRNNActor", EVERYTHING, BOXES[1], hidden_sizes=(8,), cell_size=4)
    written = write_onnx(policy, tmp_path / "new" / "policy.onnx", {"mine": "yes"})
    made = onnx.load(tmp_path / "new" / "policy.onnx")
    onnx.checker.check_model(made, full_check=True)
    assert written.inputs[:3] == (
        "observation.board uint8[batch, 3, 4]",
        "observation.far float64[batch, 2, 2]",
        "observation.gear int64[batch]",
    )
    assert written.inputs[-1] == "state.h float32[batch, 4]"
    assert written.outputs == (
        "next_state.h float32[batch, 4]",
        "mean float32[batch, 4]",
        "log_std float32[batch, 4]",
        "action float64[batch, 2, 2]",
    )
    told = {each.key: each.value for each in made.metadata_props}
    assert (told["tmrl_core.format"], told["tmrl_core.version"], told["mine"]) == ("1", tmrl_core.__version__, "yes")
    assert told["tmrl_core.policy"] == "SquashedGaussianRNNActor"
    assert space_of_json(json.loads(told["tmrl_core.observation_space"])) == EVERYTHING
    assert space_of_json(json.loads(told["tmrl_core.action_space"])) == BOXES[1]
    assert "random" not in told


class Mine(tmrl_core.actor.NumpySquashedGaussianMLPActor):
    """A policy of a user."""


def test_a_policy_of_ones_own_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"actor.cls: Mine is not a policy of this package.*Allowed for an export: Cat"
    ):
        model_of(Mine(VECTOR, BOXES[0]))


def test_an_activation_without_a_form_in_the_file_is_refused() -> None:
    policy = tmrl_core.actor.SquashedGaussianMLPActor(VECTOR, BOXES[0], activation="Hardtanh")
    with pytest.raises(
        ConfigError, match=r"actor.kwargs.activation: found hardtanh, allowed for an export: relu, tanh"
    ):
        model_of(policy)


def test_two_entries_of_one_name_are_refused() -> None:
    space = spaces.Dict({"a.b": VECTOR, "a": spaces.Dict(b=VECTOR)})
    with pytest.raises(ConfigError, match=r"two entries that would be the input 'observation.a.b'"):
        model_of(trained("SquashedGaussianMLPActor", space, BOXES[0]))


def test_a_file_that_would_differ_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tmrl_core.onnx_export import outputs

    monkeypatch.setattr(outputs, "LOG_STD_MAX", -30.0)
    with pytest.raises(TmrlError, match=r"would differ from the policy by .* so it was not written"):
        write_onnx(trained("SquashedGaussianMLPActor", VECTOR, BOXES[0]), tmp_path / "policy.onnx")
    assert list(tmp_path.iterdir()) == []


def test_without_onnx_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"tmrl_core\[onnx\]"):
        model_of(trained("SquashedGaussianMLPActor", VECTOR, BOXES[0]))
