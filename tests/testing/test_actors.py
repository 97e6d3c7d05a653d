"""The project's actors, of torch and of NumPy, hold to the promises of an actor."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import pytest

import tmrl_core.actor as actors
from tmrl_core.testing.actors import ActorSuite


class TestContinuousActors(ActorSuite):
    names = (
        "DeterministicMLPActor",
        "GaussianMLPActor",
        "SquashedGaussianMLPActor",
        "NumpyDeterministicMLPActor",
        "NumpyGaussianMLPActor",
        "NumpySquashedGaussianMLPActor",
        "GaussianRNNActor",
        "SquashedGaussianRNNActor",
        "NumpyGaussianRNNActor",
        "NumpySquashedGaussianRNNActor",
    )

    @pytest.fixture(autouse=True, params=names)
    def choose(self, request: pytest.FixtureRequest) -> None:
        self.name = request.param

    def make_actor(self) -> Any:
        return getattr(actors, self.name)(self.observation_space, self.action_space, hidden_sizes=(8, 8))


class TestDiscreteActors(TestContinuousActors):
    action_space = gym.spaces.Discrete(3)

    @pytest.fixture(
        autouse=True,
        params=[
            f"{backend}{kind}{network}Actor"
            for backend in ("", "Numpy")
            for kind in ("QValue", "Categorical")
            for network in ("MLP", "RNN")
        ],
    )
    def choose(self, request: pytest.FixtureRequest) -> None:
        self.name = request.param
