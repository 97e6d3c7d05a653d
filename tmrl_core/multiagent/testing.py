"""Promises of an algorithm of many agents, as tests for pytest to collect.

class TestMyAlgorithm(AlgorithmSuite):
    def make_algorithm(self):
        return MyAlgorithm({"q": make_network()}, (torch.optim.Adam, {"lr": 1e-3}), {}, {})
"""

from __future__ import annotations

import copy
from typing import Any

import gymnasium as gym
import numpy as np

from tmrl_core.actor.rollout.runner import stacked
from tmrl_core.errors import WeightsError
from tmrl_core.multiagent.agent_algorithm import AgentAlgorithm
from tmrl_core.multiagent.settings import AgentParameters
from tmrl_core.networking.protocol.messages import Blob

ROWS = 12


class AlgorithmSuite:
    """Subclass it in a test file and implement `make_algorithm`."""

    state_space: gym.Space[Any] = gym.spaces.Box(-10, 10, (3,), np.float32)
    action_space: gym.Space[Any] = gym.spaces.Discrete(3)

    sequence_length: int = 4
    """Ticks of a sequence, for algorithms whose pool holds sequences; half of them are the stride."""

    def make_algorithm(self) -> AgentAlgorithm:
        """Make an algorithm for these spaces with new weights, different each time if they are random."""
        raise NotImplementedError("implement make_algorithm")

    def states(self, count: int, seed: int = 0) -> list[Any]:
        """Return states; with an action mask, each allows the first action."""
        self.state_space.seed(seed)
        made = [self.state_space.sample() for _ in range(count)]
        for state in made:
            if isinstance(state, dict) and "action_mask" in state:
                state["action_mask"][0] = 1
        return made

    def make_batch(self, algorithm: AgentAlgorithm, seed: int = 0) -> dict[str, Any]:
        """Make the rows that a pool stores of an episode, from single steps as the default experience shaper's."""
        states = self.states(ROWS + 1, seed)
        algorithm.seed(seed)
        algorithm.carried = None
        chosen = [algorithm.choose_action_with_extras(state, 0.5) for state in states[:-1]]
        columns = {
            "state": stacked(states[:-1]),
            "action": stacked([action for action, _ in chosen]),
            "reward": np.random.default_rng(seed).standard_normal(ROWS).astype(np.float32),
            "next_state": stacked(states[1:]),
            "discount": np.full(ROWS, 0.99, np.float32),
            "terminated": np.arange(ROWS) == ROWS - 1,
            "truncated": np.zeros(ROWS, bool),
        }
        extras: dict[str, Any] = stacked([dict(more) for _, more in chosen])
        return algorithm.rows_of(columns | extras, AgentParameters(sequence_length=self.sequence_length), ROWS)

    def actions(self, algorithm: AgentAlgorithm, epsilon: float, count: int = 20) -> np.ndarray:
        """Return the actions for some states."""
        algorithm.carried = None  # an episode begins
        return np.stack([np.asarray(algorithm.choose_action(state, epsilon)) for state in self.states(count)])

    def test_actions_are_of_the_action_space(self) -> None:
        """Actions belong to the space, with any exploration, and are allowed."""
        algorithm = self.make_algorithm()
        for epsilon in (0.0, 0.5, 1.0):
            for state in self.states(20):
                action = algorithm.choose_action(state, epsilon)
                assert self.action_space.contains(action)
                if isinstance(state, dict) and "action_mask" in state:
                    assert state["action_mask"][action]

    def test_the_same_seed_gives_the_same_actions(self) -> None:
        """Exploration depends on the algorithm's own generator only."""
        algorithm = self.make_algorithm()
        found = []
        for other in (1, 2):
            _seed_everything(other)
            algorithm.seed(np.random.SeedSequence([5, 7]))
            found.append(self.actions(algorithm, 0.5))
        np.testing.assert_array_equal(found[0], found[1])

    def test_a_state_and_a_batch_are_left_as_they_were(self) -> None:
        """States become experiences, and a batch may be a view of the pool."""
        algorithm = self.make_algorithm()
        (state,) = self.states(1)
        batch = self.make_batch(algorithm)
        before = copy.deepcopy((state, batch))
        algorithm.choose_action(state, 0.5)
        algorithm.train_on_batch(batch)
        np.testing.assert_equal((state, batch), before)

    def test_metrics_are_numbers(self) -> None:
        """An update returns numbers by name, and priorities of the rows if it has them."""
        algorithm = self.make_algorithm()
        batch = self.make_batch(algorithm)
        metrics = dict(algorithm.train_on_batch(batch))
        rows = len(np.asarray(batch["reward"]))
        priorities = np.asarray(metrics.pop("priorities", np.zeros(rows)))
        assert priorities.shape == (rows,)
        assert np.isfinite(priorities).all()
        assert (priorities >= 0).all()
        assert all(isinstance(name, str) and np.isfinite(float(value)) for name, value in metrics.items())

    def test_a_model_can_be_transferred(self) -> None:
        """After an update too, an algorithm with the model of another chooses the same actions."""
        algorithm, other = self.make_algorithm(), self.make_algorithm()
        algorithm.train_on_batch(self.make_batch(algorithm))
        other.load_model(algorithm.get_model())
        assert other.get_model() == algorithm.get_model()
        for one in (algorithm, other):
            one.seed(3)
        np.testing.assert_array_equal(self.actions(algorithm, 0.1), self.actions(other, 0.1))

    def test_a_damaged_model_is_refused_and_changes_nothing(self) -> None:
        """After an invalid model, an actor keeps its own."""
        algorithm = self.make_algorithm()
        before = algorithm.get_model()
        for model in (Blob(before.format, b"damaged"), Blob("another", before.data)):
            try:
                algorithm.load_model(model)
            except WeightsError:
                continue
            raise AssertionError(f"{model} raised no WeightsError")
        assert algorithm.get_model() == before

    def test_a_checkpoint_restores_it(self) -> None:
        """The attributes hold the complete state: a restored algorithm continues to learn in the same way."""
        from tmrl_core.training.checkpoints.capture import capture_part
        from tmrl_core.training.checkpoints.restore import restore_part

        trained, resumed = self.make_algorithm(), self.make_algorithm()
        batches = [self.make_batch(trained, seed) for seed in range(3)]
        for batch in batches[:2]:
            trained.train_on_batch(batch)
        captured = capture_part(trained, "algorithm")
        assert captured.skipped == {}
        restore_part(resumed, "algorithm", captured.tree, captured.arrays, {})
        assert resumed.rng.bit_generator.state == trained.rng.bit_generator.state
        for one in (trained, resumed):
            _seed_everything(0)  # a checkpoint of a run holds the global generators too
            one.train_on_batch(batches[2])
        assert resumed.get_model() == trained.get_model()


def _seed_everything(seed: int) -> None:
    import torch

    np.random.seed(seed)  # the global generator is what nothing may depend on
    torch.manual_seed(seed)
