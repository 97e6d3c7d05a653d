"""The project's agents, and one that derives from nothing, hold to the promises of an agent."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from tests.training.test_contracts import Agent as OwnAgent
from tmrl_core.actor.module import ActorModule
from tmrl_core.config import resolve
from tmrl_core.config.algorithms import algorithms
from tmrl_core.testing.agents import AgentSuite
from tmrl_core.testing.random_samples import random_chunk
from tmrl_core.training.agents.ppo import PPOAgent
from tmrl_core.training.agents.recurrent_dqn import RecurrentDQNAgent
from tmrl_core.training.agents.recurrent_sac import RecurrentSacAgent
from tmrl_core.training.batches import ENDS
from tmrl_core.training.memories.sequences import SequenceMemory


def agents_in(kind: str) -> list[Any]:
    """Agents with a replay memory; those that derive from another one belong to the full suite."""
    rows = [row for row in algorithms().values() if kind in row.action_spaces and "ReplayMemory" in row.memories]
    derived = [
        row for row in rows if any(other is not row for other in rows if issubclass(row.settings, other.settings))
    ]
    return [pytest.param(resolve(row.cls), marks=[pytest.mark.full] if row in derived else []) for row in rows]


class TestContinuousAgents(AgentSuite):
    @pytest.fixture(autouse=True, params=agents_in("box"))
    def choose(self, request: pytest.FixtureRequest) -> None:
        self.cls = request.param

    def make_agent(self) -> Any:
        return self.cls(self.observation_space, self.action_space, "cpu", hidden_sizes=(8, 8), compile=False)


class TestDiscreteAgents(TestContinuousAgents):
    action_space = gym.spaces.Discrete(3)

    @pytest.fixture(autouse=True, params=agents_in("discrete"))
    def choose(self, request: pytest.FixtureRequest) -> None:
        self.cls = request.param


class TestRecurrentContinuousAgents(AgentSuite):
    cls: Any = RecurrentSacAgent

    def make_agent(self) -> Any:
        return self.cls(self.observation_space, self.action_space, "cpu", hidden_sizes=(8,), cell_size=8, burn_in=2)

    def make_batch(self, seed: int) -> Any:
        """Sequences of five ticks."""
        memory = SequenceMemory(batch_size=4, length=5, stride=5, seed=seed, priority={})
        memory.append_chunk(random_chunk(self.observation_space, self.action_space, rows=30, episode=seed))
        return memory.sample()

    def test_the_policy_acts_in_the_action_space(self) -> None:
        """Before and after an update, with a state."""
        agent = self.make_agent()
        observation_B = self.observation_space.sample()[None]
        for _ in range(2):
            for deterministic in (False, True):
                actor, rng = agent.get_actor(), np.random.default_rng(0)
                action_B, _, _ = actor.act_batch(observation_B, actor.initial_state(1), rng, deterministic)
                assert self.action_space.contains(action_B[0])
            agent.train(self.make_batch(0))


class TestRecurrentDiscreteAgents(TestRecurrentContinuousAgents):
    action_space = gym.spaces.Discrete(3)
    cls = RecurrentDQNAgent


class TestPPO(AgentSuite):
    def make_agent(self) -> PPOAgent:
        return PPOAgent(self.observation_space, self.action_space, hidden_sizes=(8, 8), minibatch_size=8)

    def make_batch(self, seed: int) -> Any:
        """A round of one episode, with the extras of its policy."""
        obs, action, *others = super().make_batch(seed)
        actor = self.make_agent().get_actor()
        extras = [actor.act_with_extras(one)[1] for one in obs.numpy()]
        found = {name: torch.from_numpy(np.stack([np.asarray(one[name]) for one in extras])) for name in extras[0]}
        ends = torch.zeros(len(obs))
        ends[-1] = 1
        return obs, action, *others, {**found, ENDS: ends}


class TestDiscretePPO(TestPPO):
    action_space = gym.spaces.Discrete(3)


class StillPolicy(ActorModule):
    def act(self, obs: Any, test: bool = False) -> Any:
        return 0 * self.action_space.sample()

    def to_bytes(self) -> bytes:
        return b"still"


class TestAnAgentOfOnesOwn(AgentSuite):
    def make_agent(self) -> Any:
        spaces = self.observation_space, self.action_space

        class Agent(OwnAgent):
            def get_actor(self) -> Any:
                return StillPolicy(*spaces)

        return Agent(*spaces, "cpu")
