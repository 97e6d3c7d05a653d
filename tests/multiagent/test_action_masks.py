"""Agents in an environment with action masks, which fails at any action that is not allowed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from tests.masked_corridor import PLACES, MaskedCorridor
from tmrl_core.errors import EpisodeError
from tmrl_core.multiagent import (
    Actor,
    AgentManager,
    AgentParameters,
    Assembly,
    EventEnvironment,
    Explorer,
    KStepExperienceShaper,
    Learner,
    PolicySettings,
)
from tmrl_core.multiagent.algorithms.training_agent import TrainingAgentAlgorithm
from tmrl_core.multiagent.manager import Mode

IDS = ("a", "b")
SHORTEST = 1.0 - 0.1 * (PLACES - 2)


class Corridors(EventEnvironment):
    """Each agent walks in a corridor of its own. They decide in turn until they have arrived.

    Args:
        stuck_after: from this decision on, states allow no action.
    """

    def __init__(self, stuck_after: int = 1000) -> None:
        self.stuck_after = stuck_after
        self.resets = 0

    def set_seed(self, seed: int) -> None:
        """Do nothing: the environment has no randomness."""

    def reset(self) -> None:
        self.resets += 1

    def step(self, action: Any) -> tuple[Any, Any, bool]:
        metrics: dict[str, Any] = {"rewards": {}, "terminations": {}, "truncations": {}, "final_events": {}}
        if action is None:
            self.corridors = {agent: MaskedCorridor() for agent in IDS}
            self.states = {agent: corridor.reset()[0] for agent, corridor in self.corridors.items()}
            self.waiting = list(IDS)
            self.total = 0.0
            self.decisions = 0
        else:
            agent = self.waiting.pop(0)
            state, reward, terminated, truncated, _ = self.corridors[agent].step(action)
            self.states[agent] = state
            self.total += reward
            self.decisions += 1
            metrics["rewards"][agent] = reward
            if terminated or truncated:
                metrics["terminations" if terminated else "truncations"][agent] = True
                metrics["final_events"][agent] = {"agent": agent, "state": state}
            else:
                self.waiting.append(agent)
        if not self.waiting:
            return metrics, None, True
        state = dict(self.states[self.waiting[0]])
        if self.decisions >= self.stuck_after:
            state["action_mask"] = np.zeros_like(state["action_mask"])
        return metrics, {"agent": self.waiting[0], "state": state}, False

    @property
    def snapshot_list(self) -> tuple[()]:
        return ()

    @property
    def metrics(self) -> Any:
        return {"score": self.total / len(IDS)}


def algorithm(agent: str, **kwargs: Any) -> Callable[[], TrainingAgentAlgorithm]:
    spaces = MaskedCorridor()
    return lambda: TrainingAgentAlgorithm(
        f"tmrl_core.training:{agent}", spaces.observation_space, spaces.action_space, hidden_sizes=(32,), gamma=0.9,
        **kwargs,
    )  # fmt: skip


REPLAY = AgentParameters(batch_size=64, updates_per_episode=15)
ROUNDS = AgentParameters(on_policy=True)
LEARNERS: dict[str, tuple[Callable[[], TrainingAgentAlgorithm], AgentParameters]] = {
    "dqn": (algorithm("DQNAgent", lr=5e-3, target_interval=10), REPLAY),
    "discrete sac": (algorithm("DiscreteSacAgent", lr_actor=5e-3, lr_critic=5e-3, polyak=0.9), REPLAY),
    "ppo": (algorithm("PPOAgent", lr=5e-3, minibatch_size=32), ROUNDS),
}


def manager(mode: Mode, name: str) -> AgentManager:
    make, parameters = LEARNERS[name]
    settings = PolicySettings(algorithm=make, parameters=parameters)
    config = Assembly(agents=dict.fromkeys(IDS, "both"), policies={"both": settings})
    shaper = KStepExperienceShaper(gamma=0.9)
    return AgentManager(mode, IDS, config=config, experience_shaper=shaper, explorer=Explorer(IDS, 0.5))


@pytest.mark.parametrize("name", LEARNERS)
def test_agents_learn_the_shortest_way_without_any_forbidden_action(name: str) -> None:
    torch.manual_seed(0)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        env = Corridors()
        trained, acting = manager("training", name), manager("inference", name)
        trained.set_seed(1)
        acting.set_seed(2)
        learner = Learner(trained, Actor(env, acting))
        learner.train(10)
        (performance,) = learner.test(1)
    finally:
        torch.set_num_threads(before)
    assert performance["score"] == pytest.approx(SHORTEST)


@pytest.mark.parametrize("name", LEARNERS)
def test_a_state_without_an_allowed_action_ends_the_episode_as_a_failure_of_the_environment(name: str) -> None:
    env = Corridors(stuck_after=3)
    actor = Actor(env, manager("inference", name))
    for number in (1, 2):
        with pytest.raises(EpisodeError, match="no action is allowed by the observation's action_mask"):
            actor.roll_out()
        assert env.resets == number
    env.stuck_after = 1000
    _, experiences = actor.roll_out()
    assert set(experiences) == set(IDS)
