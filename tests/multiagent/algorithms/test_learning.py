"""Learner and Actor in one process improve a scenario with each kind of algorithm."""

from __future__ import annotations

from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import nn

from tmrl_core.multiagent.actor import Actor
from tmrl_core.multiagent.agent_algorithm import AgentAlgorithm
from tmrl_core.multiagent.algorithms.a2c import A2C
from tmrl_core.multiagent.algorithms.acting_policy import ActingPolicy
from tmrl_core.multiagent.algorithms.dqn import DQN
from tmrl_core.multiagent.algorithms.training_agent import TrainingAgentAlgorithm
from tmrl_core.multiagent.assembly import Assembly, PolicySettings
from tmrl_core.multiagent.environment import EventEnvironment
from tmrl_core.multiagent.exploration import LinearExplorer
from tmrl_core.multiagent.learner import Learner, episode_seeds
from tmrl_core.multiagent.manager import AgentManager, Mode
from tmrl_core.multiagent.settings import AgentParameters
from tmrl_core.multiagent.shapers import KStepExperienceShaper

GOAL = 5
TURNS = 40
ENOUGH = 7.0
"""Of the 8 goals that two agents can reach in 20 turns each, from places 1 and 2."""
STATES = gym.spaces.Dict({"place": gym.spaces.Box(0, 1, (GOAL,)), "action_mask": gym.spaces.MultiBinary(2)})


class Walks(EventEnvironment):
    """Two agents walk in turns, left (0) or right (1); the goal pays 1 and leads back. At place 0 none can go left."""

    def set_seed(self, seed: int) -> None:
        """Nothing is random."""

    def reset(self) -> None:
        """Nothing is left open."""

    def step(self, action: Any) -> tuple[Any, Any, bool]:
        if action is None:
            self.places, self.turn, self.goals = [1, 2], 0, 0.0
            return {}, self._event(), False
        walker = self.turn % 2
        self.places[walker] += 2 * int(action) - 1
        reward = float(self.places[walker] == GOAL)
        self.places[walker] %= GOAL
        self.goals += reward
        self.turn += 1
        done = self.turn == TURNS
        return {"rewards": {"ab"[walker]: reward}, "truncated": done}, self._event(), done

    def _event(self) -> dict[str, Any]:
        place = self.places[self.turn % 2]
        mask = np.array([place > 0, 1], np.int8)
        state = {"place": np.eye(GOAL, dtype=np.float32)[place], "action_mask": mask}
        return {"agent": "ab"[self.turn % 2], "state": state}

    @property
    def snapshot_list(self) -> Any:
        return None

    @property
    def metrics(self) -> Any:
        return self.goals


def network(outputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(GOAL, 32), nn.Tanh(), nn.Linear(32, outputs))


def algorithm(kind: str, mode: Mode) -> AgentAlgorithm:
    adam: Any = (torch.optim.Adam, {"lr": 5e-3})
    if kind == "DQN":
        return DQN({"q": network(2)}, adam, {}, {"target_interval": 20})
    if kind == "A2C":
        return A2C({"actor": network(2), "critic": network(1)}, adam, {}, {})
    make = ActingPolicy if mode == "inference" else TrainingAgentAlgorithm
    own: Any = {"target_interval": 20} if kind == "DQNAgent" else {}
    return make(f"tmrl_core.training:{kind}", STATES, gym.spaces.Discrete(2), hidden_sizes=[32], lr=5e-3, **own)


def manager(kind: str, mode: Mode) -> AgentManager:
    on_policy = kind in ("A2C", "PPOAgent")
    parameters = AgentParameters(on_policy=on_policy, updates_per_episode=10)
    policies = {"walker": PolicySettings(algorithm=partial(algorithm, kind, mode), parameters=parameters)}
    epsilon = 0.0 if on_policy else 0.5
    return AgentManager(
        mode,
        ("a", "b"),
        config=Assembly(agents={"a": "walker", "b": "walker"}, policies=policies),
        experience_shaper=KStepExperienceShaper(gamma=0.99, k=1 if kind == "PPOAgent" else 3),
        explorer=LinearExplorer(("a", "b"), initial=epsilon, final=min(epsilon, 0.1), episodes=20),
    )


# With these seeds, the agents do not reach the goal often after one episode.
@pytest.mark.parametrize(("kind", "seed"), [("DQN", 1), ("A2C", 1), ("DQNAgent", 1), ("PPOAgent", 0)])
def test_agents_that_share_a_policy_learn_to_reach_the_goal(kind: str, seed: int) -> None:
    torch.manual_seed(seed)
    learner = Learner(manager(kind, "training"), Actor(Walks(), manager(kind, "inference")), episode_seeds(0))
    learner.train(10)
    assert learner.test(1)[0] >= ENOUGH
