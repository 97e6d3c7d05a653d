from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from tmrl_core.envs import GenericGymEnv
from tmrl_core.errors import ConfigError


class Nested(gymnasium.Env[Any, Any]):
    """Float64 in a dict in a tuple, beside what must stay as it is."""

    observation_space = spaces.Tuple(
        (
            spaces.Dict({"x": spaces.Box(-2.0, np.finfo(np.float64).max, (2,), np.float64)}),
            spaces.Discrete(3),
            spaces.Box(0, 255, (2, 2), np.uint8),
        )
    )
    action_space = spaces.Discrete(2)
    default_action = 1

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        return self._obs(), {"start": True}

    def step(self, action: Any) -> Any:
        return self._obs(), 0.5, False, True, {}

    def _obs(self) -> Any:
        return ({"x": np.array([0.5, -2.0])}, np.int64(2), np.full((2, 2), 7, np.uint8))


@pytest.fixture(autouse=True)
def _nested() -> Any:
    gymnasium.register("Nested-v0", entry_point=lambda **_: Nested())
    yield
    del gymnasium.registry["Nested-v0"]


def test_the_default_is_the_unchanged_pendulum() -> None:
    env = GenericGymEnv()
    plain = gymnasium.make("Pendulum-v1")
    assert env.observation_space == plain.observation_space
    obs, _ = env.reset(seed=4)
    expected, _ = plain.reset(seed=4)
    assert np.array_equal(obs, expected)
    action = np.array([0.5], np.float32)
    assert np.array_equal(env.step(action)[0], plain.step(action)[0])


def test_gym_kwargs_reach_the_environment() -> None:
    env = GenericGymEnv("Pendulum-v1", {"g": 3.0, "max_episode_steps": 2})
    assert env.unwrapped.g == 3.0  # type: ignore[attr-defined]
    env.reset()
    flags = [env.step(np.zeros(1, np.float32))[3] for _ in range(2)]
    assert flags == [False, True]


def test_float64_becomes_float32_in_observation_and_space() -> None:
    env = GenericGymEnv("Nested-v0", to_float32=True)
    assert env.observation_space[0]["x"].dtype == np.float32  # type: ignore[index]
    for obs in (env.reset()[0], env.step(0)[0]):
        assert obs[0]["x"].dtype == np.float32
        assert obs[0]["x"].tolist() == [0.5, -2.0]
        assert isinstance(obs[1], np.int64)
        assert obs[2].dtype == np.uint8
        assert env.observation_space.contains(obs)


@pytest.mark.parametrize(("scale", "bounds"), [(0.5, (-1.0, None)), (-0.5, (None, 1.0))])
def test_scale_multiplies_floats_and_their_bounds(scale: float, bounds: tuple[float | None, float | None]) -> None:
    env = GenericGymEnv("Nested-v0", obs_scale=scale)
    space: Any = env.observation_space
    obs, _ = env.reset()
    assert obs[0]["x"].dtype == np.float64
    assert obs[0]["x"].tolist() == [0.5 * scale, -2.0 * scale]
    assert space.contains(obs)
    for found, expected in zip((space[0]["x"].low, space[0]["x"].high), bounds, strict=True):
        assert expected is None or found.tolist() == [expected] * 2


def test_a_scale_with_nothing_to_scale_is_refused() -> None:
    with pytest.raises(ConfigError, match="no Box of floats"):
        GenericGymEnv("FrozenLake-v1", obs_scale=2.0)


def test_the_inner_environment_stays_reachable() -> None:
    assert GenericGymEnv("Nested-v0", to_float32=True).unwrapped.default_action == 1  # type: ignore[attr-defined]


def test_hidden_elements_are_neither_in_the_space_nor_in_observations() -> None:
    whole, partly = GenericGymEnv(to_float32=True), GenericGymEnv(to_float32=True, observed=[2, 0])
    assert partly.observation_space == spaces.Box(np.array([-8, -1], np.float32), np.array([8, 1], np.float32))
    for seen, hidden in ((whole.reset(seed=3)[0], partly.reset(seed=3)[0]), (whole.step([1])[0], partly.step([1])[0])):
        assert hidden.tolist() == [seen[2], seen[0]]
        assert partly.observation_space.contains(hidden)


@pytest.mark.parametrize("observed", [[], [0, 0], [3], [-1]])
def test_elements_that_are_not_there_are_refused(observed: list[int]) -> None:
    with pytest.raises(ConfigError, match=r"environment\.kwargs\.observed: found .* of Pendulum-v1, a vector"):
        GenericGymEnv(observed=observed)


def test_elements_of_what_is_no_vector_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"found \[0\], allowed: different numbers of elements"):
        GenericGymEnv("Nested-v0", observed=[0])
