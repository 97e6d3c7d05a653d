"""Promises of an environment, as tests for pytest to collect.

class TestMyEnvironment(EnvironmentSuite):
    def make_environment(self):
        return MyEnvironment()
"""

from __future__ import annotations

import copy
from typing import Any

import gymnasium as gym
import numpy as np


class EnvironmentSuite:
    """Subclass it in a test file and implement `make_environment`."""

    repeats = True
    """True: episodes of the same seed and actions are equal. False for a robot."""
    steps = 20
    """Number of steps of a test."""

    def make_environment(self) -> gym.Env[Any, Any]:
        """Make the environment as `environment.cls` and its kwargs do."""
        raise NotImplementedError("implement make_environment")

    def play(self, seed: int = 0) -> list[tuple[Any, ...]]:
        """Play random actions; return copies of what `reset` and `step` returned."""
        env = self.make_environment()
        try:
            env.action_space.seed(seed)
            played: list[tuple[Any, ...]] = [copy.deepcopy(env.reset(seed=seed))]
            for _ in range(self.steps):
                played.append(copy.deepcopy(env.step(env.action_space.sample())))
                if played[-1][2] or played[-1][3]:
                    break
            return played
        finally:
            env.close()

    def test_observations_are_of_the_space(self) -> None:
        """Observations match the space, from which networks and memories are made, in dtype, shape and bounds."""
        env = self.make_environment()
        env.close()
        for returned in self.play():
            assert env.observation_space.contains(returned[0])

    def test_a_step_returns_five_values(self) -> None:
        """A step returns observation, finite reward, terminated, truncated, and a dict."""
        reset, *steps = self.play()
        assert isinstance(reset[1], dict)
        for _, reward, terminated, truncated, info in steps:
            assert np.isfinite(float(reward))
            assert {bool(terminated), bool(truncated)} <= {True, False}
            assert isinstance(info, dict)

    def test_a_seed_repeats_an_episode(self) -> None:
        """The same seed gives the same episode, so that runs are repeatable and evaluations comparable."""
        if self.repeats:
            for first, second in zip(self.play(3), self.play(3), strict=True):
                np.testing.assert_equal(first[:4], second[:4])

    def test_an_observation_is_not_reused(self) -> None:
        """A returned observation stays unchanged, because a worker sends it after later steps."""
        env = self.make_environment()
        try:
            observation, _ = env.reset(seed=0)
            before = copy.deepcopy(observation)
            env.step(env.action_space.sample())
            np.testing.assert_equal(observation, before)
        finally:
            env.close()

    def test_a_reset_follows_any_step(self) -> None:
        """A reset within an episode begins a new one, because a worker may end an episode early."""
        env = self.make_environment()
        try:
            for _ in range(2):
                env.reset()
                env.step(env.action_space.sample())
        finally:
            env.close()
