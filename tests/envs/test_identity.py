from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from tmrl_core.envs import GenericGymEnv
from tmrl_core.envs.identity import differences, identity_of

PENDULUM = {
    "environment_id": "Pendulum-v1",
    "observation_space": "Box([-1. -1. -8.], [1. 1. 8.], (3,), float32)",
    "action_space": "Box(-2.0, 2.0, (1,), float32)",
}


class Robot(gymnasium.Env[Any, Any]):
    """An environment that is not registered."""

    observation_space = spaces.Box(-1, 1, (2,), np.float32)
    action_space = spaces.Discrete(3)


class NoGymEnv:
    """The fewest attributes of an environment."""

    observation_space = Robot.observation_space
    action_space = Robot.action_space


def test_an_environment_with_a_gymnasium_id_has_it_through_wrappers() -> None:
    assert identity_of(GenericGymEnv("Pendulum-v1")) == PENDULUM
    module = GenericGymEnv("tmrl_core.envs:example-v0")
    assert identity_of(module)["environment_id"] == "example-v0"


@pytest.mark.parametrize("make", [Robot, NoGymEnv])
def test_an_environment_created_by_its_class_has_no_id(make: Any) -> None:
    found = identity_of(make())
    assert found == {"observation_space": "Box(-1.0, 1.0, (2,), float32)", "action_space": "Discrete(3)"}
    simulated = {**found, "environment_id": "Robot-v0"}
    assert differences(found, simulated) == differences(simulated, found) == ""


def test_the_same_identity_has_no_differences() -> None:
    assert differences(PENDULUM, dict(PENDULUM)) == ""
    custom = {"observation_space": "<robots.Space object at 0x7f00aa>"}
    assert differences(custom, {"observation_space": "<robots.Space object at 0x7f11bb>"}) == ""


def test_spaces_are_the_same_text_with_any_print_options() -> None:
    with np.printoptions(precision=2, suppress=True, linewidth=20, sign="+", formatter={"float": "{:.1f}".format}):
        found = identity_of(GenericGymEnv("MountainCarContinuous-v0"))
    assert differences(found, identity_of(GenericGymEnv("MountainCarContinuous-v0"))) == ""


def test_both_sides_of_each_difference_are_named() -> None:
    theirs = {**PENDULUM, "environment_id": "Robot-v0", "action_space": "Discrete(3)"}
    assert differences(theirs, PENDULUM) == (
        "environment_id Robot-v0 at the worker, Pendulum-v1 at the trainer; "
        "action_space Discrete(3) at the worker, Box(-2.0, 2.0, (1,), float32) at the trainer"
    )


def test_long_spaces_are_shown_where_they_differ() -> None:
    parts: dict[str, spaces.Space[Any]] = {f"sensor {number}": spaces.Discrete(2) for number in range(40)}
    ours = repr(spaces.Dict(parts))
    theirs = repr(spaces.Dict({**parts, "sensor 30": spaces.Discrete(7)}))
    found = differences({"observation_space": theirs}, {"observation_space": ours})
    assert "Discrete(7)" in found
    assert len(found) < 250


@pytest.mark.parametrize("value", [None, np.zeros(2), [np.zeros(2)], 1 << 200, float("nan"), b"Pendulum"])
def test_a_worker_may_send_any_value(value: Any) -> None:
    assert differences(dict.fromkeys(PENDULUM, value), PENDULUM) == ""
