from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from tests.actor.rollout.composing import compose
from tmrl_core.actor import ActorModule
from tmrl_core.networking.protocol.messages import Evaluation


class Places(gymnasium.Env[Any, Any]):
    """Episodes of one step, which begin at a place of the generator that reset seeds, or of another one."""

    observation_space = spaces.Dict(place=spaces.Box(0, 1, (2,), np.float64), task=spaces.Discrete(3))
    action_space = spaces.Discrete(2)

    def __init__(self, follows: bool) -> None:
        self.other = None if follows else np.random.default_rng(7)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.observation = {"place": (self.other or self.np_random).random(2), "task": 1}
        return self.observation, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self.observation, 0.0, True, False, {}


class Zero(ActorModule):
    """Takes the action 0."""

    def act(self, obs: Any, test: bool = False) -> Any:
        return np.int64(0)


@pytest.mark.parametrize(("follows", "lines"), [(True, 0), (False, 1)])
def test_an_environment_that_ignores_the_seeds_of_evaluations_is_named_once(
    follows: bool, lines: int, caplog: pytest.LogCaptureFixture
) -> None:
    loop = compose(lambda: Places(follows), Zero).loop
    for id_ in range(3):
        for index in range(2):
            loop.evaluate(Evaluation(id=id_, seeds=(1000, 1001)), index)
        loop.play(collect=False, test=True)
    assert caplog.text.count("does not follow reset(seed=...)") == lines
    assert caplog.text.count("before with the seed 1000") == lines
