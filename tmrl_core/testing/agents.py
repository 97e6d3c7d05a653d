"""Promises of an agent, as tests for pytest to collect.

class TestMyAgent(AgentSuite):
    def make_agent(self):
        return MyAgent(self.observation_space, self.action_space, "cpu")
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from tmrl_core.testing.random_samples import ACTIONS, OBSERVATIONS, random_batch
from tmrl_core.training.contracts import AgentLike, as_agent


class AgentSuite:
    """Subclass it in a test file and implement `make_agent`."""

    observation_space: gym.Space[Any] = OBSERVATIONS
    action_space: gym.Space[Any] = ACTIONS

    def make_agent(self) -> AgentLike:
        """Make an agent for these spaces, on the CPU."""
        raise NotImplementedError("implement make_agent")

    def make_batch(self, seed: int) -> Any:
        """Make a batch as the agent's memory yields it."""
        return random_batch(self.observation_space, self.action_space, 16, seed)

    def test_metrics_are_numbers(self) -> None:
        """An update returns numbers or scalar tensors by name, without gradients."""
        for name, value in self.make_agent().train(self.make_batch(0)).items():
            assert isinstance(name, str)
            float(value)

    def test_a_batch_is_left_as_it_was(self) -> None:
        """Batches must not be changed, because memories may return views of stored data."""
        batch = self.make_batch(0)
        before = copy.deepcopy(batch)
        self.make_agent().train(batch)
        _assert_equal(batch, before)

    def test_several_updates_return_metrics_of_each(self) -> None:
        """`train_steps` makes one update for each batch."""
        made = as_agent(self.make_agent()).train_steps([self.make_batch(0), self.make_batch(1)])
        assert len(made) == 2

    def test_the_policy_acts_in_the_action_space(self) -> None:
        """The policy acts in the spaces before and after an update."""
        agent = self.make_agent()
        observation = self.observation_space.sample()
        for _ in range(2):
            for test in (False, True):
                assert self.action_space.contains(agent.get_actor().act_(observation, test=test))
            agent.train(self.make_batch(0))

    def test_the_policy_can_be_published(self) -> None:
        """Weights are bytes with a format tag. They are read before the next update."""
        tag, data = self.make_agent().get_actor().to_blob()
        assert isinstance(tag, str)
        assert isinstance(data, bytes)

    def test_a_checkpoint_restores_the_policy(self, tmp_path: Path) -> None:
        """The agent's attributes, or its `state_dict`, hold the complete state."""
        from tmrl_core.training.loops.training_loop import TrainingOffline
        from tmrl_core.training.memories.replay import ReplayMemory

        spaces = (self.observation_space, self.action_space)

        def make() -> TrainingOffline:
            return TrainingOffline(spaces, ReplayMemory, lambda **_: self.make_agent(), device="cpu")

        trained = make()
        for seed in range(3):
            trained.agent.train(self.make_batch(seed))
        trained.save(tmp_path / "checkpoint")
        resumed = make()
        resumed.load(tmp_path / "checkpoint")
        assert resumed.agent.get_actor().to_blob() == trained.agent.get_actor().to_blob()


def _assert_equal(found: Any, expected: Any) -> None:
    if isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for key in expected:
            _assert_equal(found[key], expected[key])
    elif isinstance(expected, (tuple, list)):
        assert len(found) == len(expected)
        for left, right in zip(found, expected, strict=True):
            _assert_equal(left, right)
    else:
        np.testing.assert_array_equal(np.asarray(found), np.asarray(expected))
