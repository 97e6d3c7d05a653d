from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from tmrl_core.config.environment_contract import as_environment
from tmrl_core.envs.identity import identity_of
from tmrl_core.errors import ConfigError, ContractError, EnvironmentFailedError

BOX, TWO = spaces.Box(-1, 1, (4,), np.float32), spaces.Discrete(2)


class Robot(gymnasium.Env[Any, Any]):
    """A gymnasium.Env with attributes of its own."""

    def __init__(self, **attributes: Any) -> None:
        self.observation_space, self.action_space = BOX, TWO
        vars(self).update(attributes)


class Pool(Robot):
    spec = SimpleNamespace(config={"num_envs": 1})  # type: ignore[assignment]


class Adapter(Robot):
    """An adapter for another interface, as Jumanji's, whose `unwrapped` is an object of that one."""

    @property
    def unwrapped(self) -> Any:
        return object()


class OldDiscrete:
    """A space of the package that came before Gymnasium."""

    def __repr__(self) -> str:
        return "Discrete(256)"


OldDiscrete.__module__, OldDiscrete.__qualname__ = "gym.spaces.discrete", "Discrete"
OldDiscrete.__name__ = "Discrete"


class Steps(gymnasium.Wrapper[Any, Any, Any, Any]):
    """A user's wrapper, which may make one number of several rewards."""


def vector() -> Any:
    return gymnasium.make_vec("CartPole-v1", num_envs=2, vectorization_mode="sync")


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (vector, r"vector environment, a batch of 2 environments\. Workers .* worker\.envs: 2\. Else make it"),
        (lambda: Robot(num_envs=16), "vector environment, a batch of 16 environments"),
        (Pool, r"its `spec` is a types\.SimpleNamespace, .*EnvPool's environments have their own: they are batches"),
        (lambda: gymnasium.wrappers.TimeLimit(Pool(), 9), "its `spec` is a"),
        (lambda: Robot(spec="robot-7"), r"its `spec` is a builtins\.str"),
        (
            lambda: Robot(action_space=OldDiscrete()),
            r"Discrete\(256\), is a gym\.spaces\.discrete\.Discrete of the old",
        ),
        (lambda: Robot(observation_space=7), r"observation_space, 7, is a builtins\.int, and a space of gymnasium"),
        (lambda: Robot(observation_space=lambda agent: BOX), "a method, as PettingZoo's .* section .*: multiagent"),
        (
            lambda: Robot(action_space=spaces.Box(-1, 1, (0,))),
            r"its action_space .* has no element \(its size is zero\)",
        ),
        (lambda: Robot(observation_space=spaces.Box(-1, 1, (3, 0))), r"its observation_space .* \(its size is zero"),
        (lambda: Robot(reward_space=spaces.Box(-1, 1, (3,))), "its rewards are vectors .*LinearReward"),
        (lambda: gymnasium.wrappers.TimeLimit(Robot(reward_space=BOX), 9), "its rewards are vectors"),
    ],
)
def test_the_error_names_the_breach_in_one_line(make: Any, said: str) -> None:
    with pytest.raises(ContractError, match=said) as caught:
        as_environment(make(), "environment.cls: 'robots:make'")
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith("environment.cls: 'robots:make' made a ")


def test_a_breach_is_a_wrong_configuration_and_a_failure_of_the_environment() -> None:
    assert issubclass(ContractError, ConfigError)
    assert issubclass(ContractError, EnvironmentFailedError)


@pytest.mark.parametrize(
    "make",
    [
        Robot,
        Adapter,
        lambda: gymnasium.wrappers.TimeLimit(Adapter(), 9),
        lambda: gymnasium.make("CartPole-v1"),
        lambda: Robot(num_envs=1),
        lambda: Robot(reward_space=spaces.Box(-1, 1, (1,))),
        lambda: Steps(Robot(reward_space=BOX)),
        lambda: gymnasium.wrappers.TransformReward(Robot(reward_space=BOX), lambda reward: reward),
        lambda: Robot(observation_space=spaces.Dict(pose=BOX, none=spaces.Box(-1, 1, (0,)))),
    ],
)
def test_one_environment_is_accepted(make: Any) -> None:
    env = make()
    assert as_environment(env, "here") is env


def test_an_identity_needs_no_spec_of_gymnasium() -> None:
    for env in (Pool(), Adapter()):
        assert identity_of(env).keys() == {"observation_space", "action_space"}
