"""Promises of an actor, as tests for pytest to collect.

class TestMyActor(ActorSuite):
    def make_actor(self):
        return MyActor(self.observation_space, self.action_space)
"""

from __future__ import annotations

import copy
from typing import Any

import gymnasium as gym
import numpy as np

from tmrl_core.actor.module import ActorModule
from tmrl_core.errors import WeightsError
from tmrl_core.testing.random_samples import ACTIONS, OBSERVATIONS


class ActorSuite:
    """Subclass it in a test file and implement `make_actor`."""

    observation_space: gym.Space[Any] = OBSERVATIONS
    action_space: gym.Space[Any] = ACTIONS

    def make_actor(self) -> ActorModule:
        """Make an actor with new weights, different each time if they are random."""
        raise NotImplementedError("implement make_actor")

    def observe(self, seed: int = 0) -> Any:
        """Make an observation."""
        self.observation_space.seed(seed)
        return self.observation_space.sample()

    def test_actions_are_of_the_action_space(self) -> None:
        """Actions belong to the space, with and without exploration."""
        actor = self.make_actor()
        actor.begin_episode()
        for test in (False, True):
            assert self.action_space.contains(actor.act_(self.observe(), test=test))

    def test_without_exploration_actions_repeat(self) -> None:
        """Evaluations need the same action for the same observation."""
        actor = self.make_actor()
        actions = []
        for _ in range(2):
            actor.begin_episode()
            actions.append(np.asarray(actor.act_(self.observe(), test=True)))
        first, second = actions
        np.testing.assert_array_equal(first, second)

    def test_an_observation_is_left_as_it_was(self) -> None:
        """The actor must not change its observation, because the same arrays are sent to the trainer."""
        observation = self.observe()
        before = copy.deepcopy(observation)
        self.make_actor().act_(observation)
        np.testing.assert_equal(observation, before)

    def test_extras_of_a_reset_and_of_a_step_have_the_same_columns(self) -> None:
        """Extras of resets and steps fill the same columns."""
        actor = self.make_actor()
        _, extras = actor.act_with_extras(self.observe())
        of_reset = actor.reset_extras()
        assert extras.keys() == of_reset.keys()
        for name, value in extras.items():
            found, expected = np.asarray(value), np.asarray(of_reset[name])
            assert (found.shape, found.dtype) == (expected.shape, expected.dtype)

    def test_weights_can_be_transferred(self) -> None:
        """An actor with another actor's weights chooses the same actions."""
        actor = self.make_actor()
        tag, data = actor.to_blob()
        other = self.make_actor().from_blob(tag, data, "cpu")
        for seed in range(5):
            observation = self.observe(seed)
            expected, found = (np.asarray(one.act_(observation, test=True)) for one in (actor, other))
            np.testing.assert_allclose(found, expected, rtol=1e-6)

    def test_weights_of_another_format_are_refused(self) -> None:
        """The error for weights of another format names both formats."""
        _assert_refused(self.make_actor(), f"not {self.make_actor().weights_format}", b"")

    def test_damaged_weights_are_refused_and_change_nothing(self) -> None:
        """After invalid weights, a worker keeps its policy."""
        actor = self.make_actor()
        before = actor.to_blob()
        _assert_refused(actor, before[0], b"damaged")
        assert actor.to_blob() == before


def _assert_refused(actor: ActorModule, tag: str, data: bytes) -> None:
    try:
        actor.from_blob(tag, data, "cpu")
    except WeightsError:
        return
    raise AssertionError(f"weights {data!r} of the format {tag!r} raised no WeightsError")
