from __future__ import annotations

from typing import Any, NamedTuple

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from tmrl_core.actor.rollout.checked_environment import CheckedEnvironment
from tmrl_core.config import environment_maker
from tmrl_core.envs import OldGym
from tmrl_core.envs.old_gym import as_space
from tmrl_core.errors import ConfigError


class OfGym:
    """A space of the package gym, as far as one needs it."""

    def __init__(self, kind: str, **attributes: Any) -> None:
        vars(self).update(attributes)
        self.__class__ = type(kind, (OfGym,), {"__module__": f"gym.spaces.{kind.lower()}"})


class Corridor:
    """The corridor of RLlib's tutorials, with the interface of the time: no base class, no `close`."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.end, self.limit = config["corridor_length"], config.get("limit", 99)
        self.action_space = OfGym("Discrete", n=2)
        self.observation_space = OfGym("Box", low=np.zeros(1), high=np.full(1, self.end), shape=(1,), dtype=np.float32)
        self.seeds: list[Any] = []

    def seed(self, seed: int | None = None) -> list[Any]:
        self.seeds.append(seed)
        return [seed]

    def reset(self) -> list[int]:
        self.place = self.steps = 0
        return [self.place]

    def step(self, action: int) -> tuple[list[int], int, bool, dict[str, Any]]:
        self.steps += 1
        self.place = max(0, self.place + (1 if action else -1))
        cut = self.steps == self.limit
        there = self.place >= self.end
        return [self.place], 1 if there else 0, there or cut, {"TimeLimit.truncated": True} if cut else {}

    def render(self, mode: str = "human") -> str:
        return f"{mode}: {self.place}"


CONFIG: dict[str, Any] = {
    "env": "tests.envs.test_old_gym:Corridor",
    "kwargs": {"config": {"corridor_length": 3, "limit": 5}},
}


def test_an_environment_of_the_old_interface_is_stepped_and_checked_as_others() -> None:
    environment = CheckedEnvironment(environment_maker("tmrl_core.envs:OldGym", CONFIG))
    obs, info = environment.reset(seed=7)
    assert (obs.tolist(), obs.dtype, info) == ([0.0], np.float32, {})
    assert environment.env.env.seeds == [7]
    results = [environment.step(1) for _ in range(3)]
    assert [(float(obs[0]), reward, *flags) for obs, reward, *flags, _ in results] == [
        (1.0, 0.0, False, False),
        (2.0, 0.0, False, False),
        (3.0, 1.0, True, False),
    ]
    environment.reset()
    assert environment.env.env.seeds == [7], "an unseeded reset goes on with the generator"
    assert [tuple(environment.step(0)[2:4]) for _ in range(5)][-2:] == [(False, False), (False, True)]
    environment.close()


def test_gymnasiums_results_pass() -> None:
    env = OldGym(gymnasium.make("CartPole-v1"))
    assert env.observation_space == gymnasium.make("CartPole-v1").observation_space
    obs, info = env.reset(seed=1)
    assert obs.shape == (4,)
    assert info == {}
    assert np.array_equal(env.reset(seed=1)[0], obs), "without `seed`, the reset takes one, as in gym 0.26"
    assert len(env.step(0)) == 5
    env.close()


def test_a_pair_of_a_tuple_space_is_an_observation() -> None:
    class Pair:
        observation_space = spaces.Tuple([spaces.Discrete(3), spaces.Dict(a=spaces.Discrete(2))])
        action_space = spaces.Discrete(2)

        def reset(self) -> Any:
            return 1, {"a": 0}

    assert OldGym(Pair()).reset() == ((1, {"a": 0}), {})


def test_the_mode_of_rendering_is_passed_on() -> None:
    env = OldGym(**CONFIG, render_mode="rgb_array")
    env.reset()
    assert env.render() == "rgb_array: 0"


BOX = OfGym("Box", low=np.array([-1.0, 0.0]), high=np.array([1.0, 9.0]), shape=(2,), dtype=np.dtype(np.float64))


class BoxSpace(NamedTuple):
    """Crafter's space where gym is not installed."""

    low: int
    high: int
    shape: tuple[Any, ...]
    dtype: Any


class DiscreteSpace(NamedTuple):
    """Likewise."""

    n: int


@pytest.mark.parametrize(
    ("space", "expected"),
    [
        (spaces.Discrete(3), spaces.Discrete(3)),
        (OfGym("Discrete", n=3), spaces.Discrete(3)),
        (OfGym("Discrete", n=3, start=-1), spaces.Discrete(3, start=-1)),
        (BOX, spaces.Box(np.array([-1.0, 0.0]), np.array([1.0, 9.0]), dtype=np.float64)),
        (BoxSpace(0, 255, (np.int64(64), np.int64(64), 3), np.uint8), spaces.Box(0, 255, (64, 64, 3), np.uint8)),
        (DiscreteSpace(17), spaces.Discrete(17)),
        (OfGym("MultiDiscrete", nvec=np.array([2, 3])), spaces.MultiDiscrete([2, 3])),
        (OfGym("MultiBinary", n=4), spaces.MultiBinary(4)),
        (OfGym("Tuple", spaces=(OfGym("Discrete", n=2),)), spaces.Tuple([spaces.Discrete(2)])),
        (
            OfGym("Dict", spaces={"b": OfGym("Discrete", n=2), "a": spaces.Discrete(3)}),
            spaces.Dict([("b", spaces.Discrete(2)), ("a", spaces.Discrete(3))]),
        ),
    ],
)
def test_old_spaces_become_gymnasiums(space: Any, expected: Any) -> None:
    found = as_space(space)
    assert found == expected
    assert not isinstance(found, spaces.Dict) or list(found) == list(expected)


def test_the_error_names_a_space_without_counterpart() -> None:
    with pytest.raises(ConfigError, match=r"found the space .* of gym\.spaces\.graph, allowed: Box, Discrete"):
        as_space(OfGym("Graph"))
