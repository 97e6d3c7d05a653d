"""The algorithms of `tmrl_core.multiagent`, and one of a user, hold to the promises of an algorithm."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import nn

from tmrl_core.multiagent.agent_algorithm import AgentAlgorithm
from tmrl_core.multiagent.algorithms.a2c import A2C
from tmrl_core.multiagent.algorithms.batches import transitions_of
from tmrl_core.multiagent.algorithms.dqn import DQN
from tmrl_core.multiagent.algorithms.rules import RandomPolicy, RulePolicy
from tmrl_core.multiagent.algorithms.torch_algorithm import Algorithm
from tmrl_core.multiagent.algorithms.training_agent import TrainingAgentAlgorithm
from tmrl_core.multiagent.testing import AlgorithmSuite
from tmrl_core.testing.random_samples import ACTIONS, OBSERVATIONS

ADAM = (torch.optim.Adam, {"lr": 1e-2})
MASKED = gym.spaces.Dict({"observation": OBSERVATIONS, "action_mask": gym.spaces.MultiBinary(3)})


def network(outputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, outputs))


class TestDQN(AlgorithmSuite):
    def make_algorithm(self) -> AgentAlgorithm:
        return DQN({"q": network(3)}, ADAM, {}, {"target_interval": 2})


class TestMaskedDQN(TestDQN):
    state_space = MASKED


class TestA2C(AlgorithmSuite):
    def make_algorithm(self) -> AgentAlgorithm:
        return A2C({"actor": network(3), "critic": network(1)}, {"actor": ADAM, "critic": ADAM}, {}, {})


class TestMaskedA2C(TestA2C):
    state_space = MASKED


class TestRandomPolicy(AlgorithmSuite):
    state_space = MASKED

    def make_algorithm(self) -> AgentAlgorithm:
        return RandomPolicy(self.action_space)


class TestRandomPolicyOfABox(AlgorithmSuite):
    action_space = ACTIONS

    def make_algorithm(self) -> AgentAlgorithm:
        return RandomPolicy([[2], -1.0, 1.0])


class TestRulePolicy(AlgorithmSuite):
    def make_algorithm(self) -> AgentAlgorithm:
        return RulePolicy(lambda state: np.int64(state[0] > 0))


class _OfAgent(AlgorithmSuite):
    agent = ""
    kwargs: dict[str, Any] = {"hidden_sizes": [8]}  # noqa: RUF012  # never changed

    def make_algorithm(self) -> AgentAlgorithm:
        return TrainingAgentAlgorithm(
            f"tmrl_core.training:{self.agent}", self.state_space, self.action_space, **self.kwargs
        )


class TestDQNAgent(_OfAgent):
    agent = "DQNAgent"
    kwargs = {"hidden_sizes": [8], "dueling": True, "target_interval": 2}  # noqa: RUF012


@pytest.mark.full
class TestMaskedDQNAgent(TestDQNAgent):
    state_space = MASKED


class TestDiscreteSacAgent(_OfAgent):
    agent = "DiscreteSacAgent"
    state_space = MASKED


class TestRecurrentDQNAgent(_OfAgent):
    agent = "RecurrentDQNAgent"
    kwargs = {"hidden_sizes": [8], "cell_size": 8, "state_interval": 2, "burn_in": 0}  # noqa: RUF012


@pytest.mark.full
class TestMaskedRecurrentDQNAgent(TestRecurrentDQNAgent):
    state_space = MASKED


class TestRecurrentPPOAgent(_OfAgent):
    agent = "RecurrentPPOAgent"
    kwargs = {"hidden_sizes": [8], "cell_size": 8, "minibatch_size": 8}  # noqa: RUF012


class TestPPOAgent(_OfAgent):
    agent = "PPOAgent"
    kwargs = {"hidden_sizes": [8], "normalize_observations": True, "minibatch_size": 8}  # noqa: RUF012


class TestMaskedPPOAgent(TestPPOAgent):
    state_space = MASKED


class TestBehaviorCloningAgent(_OfAgent):
    agent = "BehaviorCloningAgent"


class _InABox(_OfAgent):
    action_space = ACTIONS


class TestSacAgent(_InABox):
    agent = "SacAgent"


class TestRecurrentSacAgent(_InABox):
    agent = "RecurrentSacAgent"
    kwargs = {"hidden_sizes": [8], "cell_size": 8, "state_interval": 1, "burn_in": 1}  # noqa: RUF012


@pytest.mark.full
class TestREDQSACAgent(_InABox):
    agent = "REDQSACAgent"


class TestTD3Agent(_InABox):
    agent = "TD3Agent"
    kwargs = {"hidden_sizes": [8], "exploration_noise": 0.3}  # noqa: RUF012


@pytest.mark.full
class TestDDPGAgent(_InABox):
    agent = "DDPGAgent"


class TestPPOAgentInABox(_InABox):
    agent = "PPOAgent"


@pytest.mark.full
class TestBehaviorCloningAgentInABox(_InABox):
    agent = "BehaviorCloningAgent"


class Reinforce(Algorithm):
    """A policy gradient of complete returns, with their mean as the baseline."""

    default_losses = {"policy": nn.CrossEntropyLoss}  # noqa: RUF012

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.baseline = 0.0

    def choose_action(self, state: Any, epsilon: float) -> Any:
        logits_N = self.output("policy", state)
        if self.deterministic:
            return logits_N.argmax()
        return (logits_N + self.rng.gumbel(size=len(logits_N))).argmax()

    def train_on_batch(self, batch: Mapping[str, Any]) -> Mapping[str, Any]:
        t = transitions_of(dict(batch), self.device)
        logits_BN = self.models["policy"](t.obs)
        loss_B = self.loss_funcs["policy"](logits_BN, t.action) * (t.reward_B - self.baseline)
        self.baseline += self.hyper_params["rate"] * (t.reward_B.mean().item() - self.baseline)
        return {"baseline": self.baseline, **self.minimise(loss_B.mean())}


class TestAnAlgorithmOfOnesOwn(AlgorithmSuite):
    def make_algorithm(self) -> AgentAlgorithm:
        return Reinforce({"policy": network(3)}, {"policy": ADAM}, {}, {"rate": 0.1})
