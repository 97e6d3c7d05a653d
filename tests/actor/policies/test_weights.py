"""Architectures of policies, held against each other."""

from __future__ import annotations

from typing import Any

import pytest

from tmrl_core.actor import NumpySquashedGaussianMLPActor, SquashedGaussianMLPActor
from tmrl_core.actor.policies.weights import difference
from tmrl_core.envs import GenericGymEnv


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
