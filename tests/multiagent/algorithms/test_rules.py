from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from tmrl_core.errors import ConfigError, ObservationError, WeightsError
from tmrl_core.multiagent.algorithms.rules import RandomPolicy, RulePolicy
from tmrl_core.networking.protocol.messages import Blob


@pytest.mark.parametrize(
    "space",
    [
        gym.spaces.Discrete(3, start=2),
        gym.spaces.Box(-2, 1, (2,), np.float32),
        gym.spaces.MultiDiscrete([2, 3]),
        gym.spaces.Dict({"a": gym.spaces.Discrete(2), "b": gym.spaces.Box(0, 1, (1,))}),
    ],
    ids=lambda space: type(space).__name__,
)
def test_random_actions_are_of_the_space_and_depend_on_the_seed(space: Any) -> None:
    policy = RandomPolicy(space)
    runs = []
    for seed in (1, 1, 2):
        space.seed(0)
        policy.seed(seed)
        runs.append([policy.choose_action(None, 0.0) for _ in range(10)])
    assert all(space.contains(action) for action in runs[0])
    assert str(runs[0]) == str(runs[1]) != str(runs[2])


def test_random_actions_are_allowed() -> None:
    policy = RandomPolicy(4)
    state = {"observation": 0, "action_mask": np.array([0, 1, 0, 1], np.int8)}
    assert {int(policy.choose_action(state, 0.0)) for _ in range(50)} == {1, 3}
    with pytest.raises(ObservationError, match="no action is allowed"):
        policy.choose_action({"action_mask": np.zeros(4, np.int8)}, 0.0)


def test_the_callers_space_is_left_alone() -> None:
    space = gym.spaces.Box(0, 1, (1,))
    space.seed(1)
    expected = space.sample()
    space.seed(1)
    RandomPolicy(space).choose_action(None, 0.0)
    assert space.sample() == expected


def double(state: int) -> int:
    return 2 * state


def test_a_rule_is_a_function_or_its_reference() -> None:
    assert RulePolicy(double).choose_action(3, 1.0) == 6
    assert RulePolicy("math:floor").choose_action(3.5, 1.0) == 3
    with pytest.raises(ConfigError, match=r"rule: found 3.14.*, allowed: a function \(state\)"):
        RulePolicy("math:pi")


def test_they_learn_nothing_and_have_no_weights() -> None:
    policy = RulePolicy(double)
    assert policy.train_on_batch({}) == {}
    policy.load_model(policy.get_model())
    with pytest.raises(WeightsError, match=r"\(1 bytes of the format 'safetensors'\) are not for RulePolicy"):
        policy.load_model(Blob("safetensors", b"1"))
