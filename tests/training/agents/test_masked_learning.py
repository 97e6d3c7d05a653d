"""Algorithms learn with an action mask, and fail at the same task without it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from tests.masked_corridor import ACTIONS, PLACES, MaskedCorridor
from tmrl_core.training.agents.behavior_cloning import BehaviorCloningAgent
from tmrl_core.training.agents.discrete_sac import DiscreteSacAgent
from tmrl_core.training.agents.dqn import DQNAgent
from tmrl_core.training.agents.ppo import PPOAgent
from tmrl_core.training.agents.recurrent_ppo import RecurrentPPOAgent
from tmrl_core.training.value_types import Tree

SHORTEST = 1.0 - 0.1 * (PLACES - 2)
"""Return of the shortest way."""


class Collector:
    """Collects transitions of one environment with a policy."""

    def __init__(self, env: MaskedCorridor) -> None:
        self.env = env
        self.obs: Any = None

    def rows(self, actor: Any, count: int) -> list[tuple[Any, ...]]:
        found = []
        for _ in range(count):
            if self.obs is None:
                self.obs, _ = self.env.reset()
            action, extras = actor.act_with_extras(self.obs)
            after, reward, terminated, truncated, _ = self.env.step(action)
            ends = terminated or truncated
            found.append((self.obs, action, np.float32(reward), after, terminated, truncated, extras, ends))
            self.obs = None if ends else after
        return found


def tensors(values: list[Any]) -> Any:
    if isinstance(values[0], dict):
        return {key: tensors([value[key] for value in values]) for key in values[0]}
    return torch.from_numpy(np.stack([np.asarray(value) for value in values]))


def batch_of(rows: list[tuple[Any, ...]]) -> tuple[Any, ...]:
    obs, action, reward, after, terminated, truncated, _, _ = (
        tensors(list(column)) for column in zip(*rows, strict=True)
    )
    return obs, action, reward, after, terminated.float(), truncated.float()


def played(agent: Any, env: MaskedCorridor) -> float:
    """The return of an episode without exploration."""
    obs, _ = env.reset()
    total, ends = 0.0, False
    while not ends:
        obs, reward, terminated, truncated, _ = env.step(agent.get_actor().act_(obs, test=True))
        total, ends = total + reward, terminated or truncated
    return total


def off_policy(agent_cls: Any, env: MaskedCorridor, **kwargs: Any) -> float:
    torch.manual_seed(0)
    agent = agent_cls(env.observation_space, env.action_space, "cpu", gamma=0.9, hidden_sizes=(32,), **kwargs)
    agent.get_actor().seed(1)
    collector, rng, kept = Collector(env), np.random.default_rng(0), []
    for _ in range(40):
        kept += collector.rows(agent.get_actor(), 20)
        for _ in range(5):
            agent.train(batch_of([kept[at] for at in rng.integers(len(kept), size=64)]))
    return played(agent, env)


def ppo(env: MaskedCorridor) -> float:
    torch.manual_seed(0)
    agent = PPOAgent(
        env.observation_space, env.action_space, "cpu", hidden_sizes=(32,), lr=5e-3, gamma=0.9, minibatch_size=64,
        normalize_observations=True,
    )  # fmt: skip
    agent.get_actor().seed(1)
    collector = Collector(env)
    for _ in range(12):
        rows = collector.rows(agent.get_actor(), 128)
        ends = torch.tensor([float(row[-1]) for row in rows])
        ends[-1] = 1.0
        metrics = agent.train((*batch_of(rows), {"logp": tensors([row[6]["logp"] for row in rows]), "ends": ends}))
        assert np.isfinite([float(value) for value in metrics.values()]).all()
    return played(agent, env)


LEARNERS: dict[str, Any] = {
    "dqn": lambda env: off_policy(DQNAgent, env, epsilon_updates=200, target_interval=10, lr=5e-3),
    "single dqn": lambda env: off_policy(DQNAgent, env, double=False, epsilon_updates=200, target_interval=10, lr=5e-3),
    "discrete sac": lambda env: off_policy(DiscreteSacAgent, env, lr_actor=5e-3, lr_critic=5e-3, polyak=0.9),
    "ppo": ppo,
}


def each_learner(*in_each_change: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(
        "name", [name if name in in_each_change else pytest.param(name, marks=pytest.mark.full) for name in LEARNERS]
    )


@each_learner("dqn", "ppo")
def test_with_the_mask_it_finds_the_shortest_way_without_an_illegal_action(name: str) -> None:
    assert LEARNERS[name](MaskedCorridor()) == pytest.approx(SHORTEST)


@each_learner("dqn")
def test_without_the_mask_it_does_not(name: str) -> None:
    assert LEARNERS[name](MaskedCorridor(key="hint", illegal_ends=True)) < 0.0


def all_transitions(env: MaskedCorridor) -> list[tuple[Any, ...]]:
    rows = []
    for place in range(PLACES - 1):
        for index in env.choices(place):
            env.reset()
            env.place = place
            after, reward, terminated, truncated, _ = env.step(index + 2)
            rows.append((env.observation(place), np.int64(index + 2), np.float32(reward), after, terminated, truncated))
    return [(*row, {}, False) for row in rows]


class Ignoring(DQNAgent):
    """Lets every action count in its targets."""

    def allowed(self, obs: Tree) -> None:
        return None


@pytest.mark.parametrize("double", [pytest.param(False, marks=pytest.mark.full), True])
def test_targets_that_ignore_the_mask_give_wrong_values(double: bool) -> None:
    """Values of actions that are never taken stay near 0, which is more than those of any way: each step costs 1."""
    env = MaskedCorridor(step_reward=-1.0)

    def largest_error(agent_cls: type[DQNAgent]) -> float:
        torch.manual_seed(0)
        agent = agent_cls(
            env.observation_space, env.action_space, "cpu", gamma=0.9, lr=5e-3, target_interval=10, double=double,
            hidden_sizes=(32,),
        )  # fmt: skip
        batch = batch_of(all_transitions(env))
        for _ in range(250):
            agent.train(batch)
        errors, value = [], 0.0
        with torch.no_grad():
            for place in reversed(range(PLACES - 1)):
                value = 1.0 if place == PLACES - 2 else -1.0 + 0.9 * value
                obs = {key: torch.from_numpy(value)[None] for key, value in env.observation(place).items()}
                errors.append(abs(float(agent.get_actor()(obs)[0, env.choices(place)[0]]) - value))
        return max(errors)

    assert largest_error(DQNAgent) < 0.2
    assert largest_error(Ignoring) > 0.4


def test_the_entropy_target_is_that_of_the_allowed_actions() -> None:
    """With the target of all 24 actions, two could never reach it, and the temperature would grow for ever."""
    env = MaskedCorridor()
    torch.manual_seed(0)
    agent = DiscreteSacAgent(
        env.observation_space, env.action_space, "cpu", hidden_sizes=(16,), target_entropy_share=0.5
    )
    batch = batch_of(all_transitions(env))
    target = agent._target_entropy(batch[0])
    torch.testing.assert_close(target, torch.full((8,), 0.5 * float(np.log(2))))
    before = agent.log_alpha.item()
    for _ in range(20):
        agent.train(batch)
    assert agent.log_alpha.item() < before


def test_cloning_ignores_actions_that_the_mask_does_not_allow() -> None:
    env = MaskedCorridor()
    rows = all_transitions(env)[::2]
    wrong = [(row[0], np.int64(2 + (int(row[1]) - 1) % ACTIONS), *row[2:]) for row in rows]

    def trained(chosen: list[tuple[Any, ...]]) -> BehaviorCloningAgent:
        torch.manual_seed(0)
        agent = BehaviorCloningAgent(env.observation_space, env.action_space, "cpu", hidden_sizes=(16,), lr=1e-2)
        for _ in range(100):
            metrics = agent.train(batch_of(chosen))
            assert 0.0 <= float(metrics["loss_actor"]) < 1.0
        return agent

    assert played(trained(rows + wrong), env) == pytest.approx(SHORTEST)
    of_wrong_ones = trained(wrong)
    assert all(p.grad is None or not p.grad.any() for p in of_wrong_ones.model.parameters())


@pytest.mark.parametrize("agent_cls", [PPOAgent, RecurrentPPOAgent])
def test_a_round_that_is_cut_where_no_action_is_allowed_does_not_bootstrap(agent_cls: Any) -> None:
    env = MaskedCorridor()

    def loss(after: int) -> float:
        """The value function's loss, where all values are 5 and the only reward is 1."""
        agent = agent_cls(env.observation_space, env.action_space, "cpu", gamma=0.9, update_epochs=1)
        with torch.no_grad():
            agent.model.critic[-1].weight.fill_(0.0)
            agent.model.critic[-1].bias.fill_(5.0)
        obs = env.observation(0)
        action, extras = agent.get_actor().act_with_extras(obs)
        rows: list[tuple[Any, ...]] = [
            (obs, action, np.float32(1.0), env.observation(after), False, True, {}, True)
        ] * 2
        more = {name: tensors([value] * 2) for name, value in extras.items()}
        more |= {"ends": torch.ones(2), "places": torch.tensor([[0, 0, 1], [0, 1, 1]])}
        return float(agent.train((*batch_of(rows), more))["loss_critic"])

    assert loss(PLACES - 1) == pytest.approx(0.5 * (5.0 - 1.0) ** 2)
    assert loss(1) == pytest.approx(0.5 * (5.0 - 1.0 - 0.9 * 5.0) ** 2)
