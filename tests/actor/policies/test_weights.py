"""Architectures of policies, held against each other, and files of weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from tmrl_core.actor import NumpySquashedGaussianMLPActor, SquashedGaussianMLPActor
from tmrl_core.actor.policies.numpy.lookup import choose_actor
from tmrl_core.actor.policies.weights import (
    decode_arrays,
    difference,
    encode_arrays,
    exploration_in,
    with_bfloat16_matrices,
    with_exploration,
    with_sorted_metadata,
)
from tmrl_core.actor.rollout.runner import PolicyRunner
from tmrl_core.config.algorithms import ACTORS
from tmrl_core.envs import GenericGymEnv
from tmrl_core.errors import WeightsError
from tmrl_core.networking.protocol.messages import Blob


def architecture(cls: Any = NumpySquashedGaussianMLPActor, **kwargs: Any) -> dict[str, Any]:
    env = GenericGymEnv("Pendulum-v1", to_float32=True)
    made: dict[str, Any] = cls(env.observation_space, env.action_space, **kwargs).architecture()
    return made


@pytest.mark.parametrize(
    ("worker", "text"),
    [
        ({"hidden_sizes": (8, 8)}, ""),
        ({"hidden_sizes": (64,)}, "hidden_sizes: [64] at the worker, [8, 8] at the trainer"),
        ({"hidden_sizes": (8, 8), "activation": "tanh"}, "activation: tanh at the worker, relu at the trainer"),
    ],
)
@pytest.mark.parametrize("cls", [NumpySquashedGaussianMLPActor, SquashedGaussianMLPActor])
def test_the_first_difference_is_named(cls: Any, worker: dict[str, Any], text: str) -> None:
    assert difference(architecture(cls, **worker), architecture(hidden_sizes=(8, 8))) == text


def test_other_weights_are_named() -> None:
    trainer = architecture()
    trainer["shapes"]["head.bias"] = [3]
    assert difference(architecture(), trainer) == "head.bias: none at the worker, [3] at the trainer"


def test_a_class_with_a_custom_format_has_no_architecture() -> None:
    class Own(SquashedGaussianMLPActor):
        def save(self, path: Any) -> None:
            raise NotImplementedError

    assert architecture(Own) == {}


@pytest.mark.parametrize(
    "found",
    [
        None,
        "x",
        [],
        {},
        {"metadata": 3},
        {"metadata": {1: "x"}},
        {"metadata": {}, "shapes": {"a": [[1]]}},
        {"metadata": {}, "shapes": {"net.0.weight": [1 << 20_000, 3]}},
    ],
)
def test_invalid_architectures_are_not_compared(found: Any) -> None:
    assert difference(found, architecture()) == ""
    assert difference(architecture(), {}) == ""


EXPLORATION = {"epsilon": 0.05, "noise": 0.3, "random": 0.25}


@pytest.mark.parametrize("loaded", ["numpy", "torch"])
@pytest.mark.parametrize("saved", ["numpy", "torch"])
@pytest.mark.parametrize("name", sorted(ACTORS))
def test_a_file_holds_the_exploration_of_its_policy(name: str, saved: str, loaded: str, tmp_path: Path) -> None:
    space = spaces.Discrete(3) if "discrete" in ACTORS[name] else spaces.Box(-1, 1, (2,), np.float32)
    spaces_of = {"observation_space": spaces.Box(-1, 1, (3,), np.float32), "action_space": space}
    policy, other, received = (
        choose_actor(f"tmrl_core.actor:{name}", backend=backend)(**spaces_of) for backend in (saved, loaded, loaded)
    )
    begun = received.exploration()
    policy.set_exploration(EXPLORATION)
    policy.save(tmp_path / "policy.tmod")
    other = other.load(tmp_path / "policy.tmod", "cpu")
    assert other.exploration() == policy.exploration() == {key: EXPLORATION[key] for key in begun}
    # In a message they travel beside the weights.
    received = received.from_bytes(policy.to_bytes(), "cpu")
    assert received.exploration() == ({"random": 0.0} if begun == {"random": 1.0} else begun)


@pytest.mark.parametrize("backend", ["numpy", "torch"])
def test_the_copy_that_a_worker_keeps_holds_the_exploration_too(backend: str, tmp_path: Path) -> None:
    make = choose_actor("tmrl_core.actor:QValueMLPActor", backend=backend)
    obs, act = spaces.Box(-1, 1, (3,), np.float32), spaces.Discrete(3)
    policies = {"policy": Blob(*make(obs, act).to_blob())}
    path = tmp_path / "policy.tmod"
    path.write_bytes(PolicyRunner(make, obs, act).file_content(policies, {"epsilon": 0.05}))
    runner = PolicyRunner(make, obs, act)
    runner.load_file(path)
    assert runner.actor.exploration() == {"epsilon": 0.05}
    runner.actor.set_exploration({"epsilon": 0.5})
    path.write_bytes(runner.file_content(policies, {}))
    runner.load_file(path)
    assert runner.actor.exploration() == {"epsilon": 0.5}, "the trainer says nothing about it"


def test_weights_in_another_format_are_kept_as_they_are() -> None:
    for data in (b"", b"weights", b"\x02" + bytes(7) + b"[]", b"\x09" + bytes(7) + b"{}", bytes(20)):
        assert with_exploration(data, EXPLORATION) == data
        assert exploration_in(data) == {}


@pytest.mark.parametrize("text", ["", "[1]", '{"epsilon": "much"}', '{"epsilon": NaN}'])
def test_a_damaged_exploration_changes_nothing(text: str, tmp_path: Path) -> None:
    policy = choose_actor("tmrl_core.actor:QValueMLPActor")(spaces.Box(-1, 1, (3,), np.float32), spaces.Discrete(3))
    before = policy.to_bytes()
    other = type(policy)(policy.observation_space, policy.action_space)
    (tmp_path / "policy.tmod").write_bytes(with_sorted_metadata(other.to_bytes(), {"exploration": text}))
    with pytest.raises(WeightsError, match=r"^the exploration parameters beside the weights are "):
        policy.load(tmp_path / "policy.tmod", "cpu")
    assert policy.to_bytes() == before


def test_matrices_are_rounded_to_the_nearest_bfloat16_and_vectors_stay() -> None:
    torch = pytest.importorskip("torch")
    generator = np.random.default_rng(0)
    matrix = generator.standard_normal((64, 33)).astype(np.float32)
    matrix[0, :6] = (0.0, -0.0, 3.4e38, -np.inf, np.nan, 1e-40)
    bits = matrix.view(np.uint32)
    bits[1, :4] = (0x3F808000, 0x3F818000, 0x3F807FFF, 0x3F808001)  # ties, to even, and their neighbours
    vector = generator.standard_normal(33).astype(np.float32)
    arrays: dict[str, Any] = {
        "norm.mean": vector,
        "net.0.weight": matrix,
        "half": vector.reshape(11, 3).astype(np.float16),
        "whole": matrix.view("i4"),
    }
    data = encode_arrays(arrays, {"activation": "relu"})
    rounded = with_bfloat16_matrices(data)
    found, metadata = decode_arrays(rounded)
    assert (len(rounded), metadata, found.keys()) == (len(data), {"activation": "relu"}, arrays.keys())
    expected = torch.from_numpy(matrix.copy()).bfloat16().float().numpy()
    expected[0, 2] = matrix[0, 2]  # torch makes it infinite, and a worker refuses that
    assert np.array_equal(found["net.0.weight"][0], expected[0], equal_nan=True)
    assert np.array_equal(found["net.0.weight"][1:].view("u4"), expected[1:].view("u4"))
    for name in ("norm.mean", "half", "whole"):
        assert found[name].tobytes() == arrays[name].tobytes()
    assert with_bfloat16_matrices(rounded) == rounded


def test_weights_in_another_format_are_not_rounded() -> None:
    assert with_bfloat16_matrices(b"anything") == b"anything"
    assert with_bfloat16_matrices(b"") == b""
