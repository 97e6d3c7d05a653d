"""What every off-policy agent promises."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tmrl_core.config import resolve
from tmrl_core.config.algorithms import algorithms
from tmrl_core.errors import ConfigError
from tmrl_core.training.agents.behavior_cloning import BehaviorCloningAgent
from tmrl_core.training.agents.crossq import CrossQAgent
from tmrl_core.training.agents.ddpg import DDPGAgent
from tmrl_core.training.agents.discrete_sac import DiscreteSacAgent
from tmrl_core.training.agents.dqn import DQNAgent
from tmrl_core.training.agents.flashsac import FlashSACAgent
from tmrl_core.training.agents.off_policy import OffPolicyAgent
from tmrl_core.training.agents.redq import REDQSACAgent
from tmrl_core.training.agents.sac import SacAgent
from tmrl_core.training.agents.td3 import TD3Agent
from tmrl_core.training.agents.tqc import TQCAgent
from tmrl_core.training.checkpoints.capture import capture
from tmrl_core.training.checkpoints.restore import restore

OBSERVATIONS = gym.spaces.Box(-1, 1, (3,), np.float32)
BOX = gym.spaces.Box(-2, 2, (2,), np.float32)
DISCRETE = gym.spaces.Discrete(3, start=4)
AGENTS: list[tuple[Any, Any, dict[str, Any]]] = [
    (SacAgent, BOX, {}),
    (REDQSACAgent, BOX, {"n": 3, "q_updates_per_policy_update": 2}),
    (TQCAgent, BOX, {"quantiles": 5}),
    (CrossQAgent, BOX, {"critic_sizes": (16,), "policy_delay": 2}),
    (FlashSACAgent, BOX, {"bins": 21}),
    (TD3Agent, BOX, {}),
    (DQNAgent, DISCRETE, {"target_interval": 2}),
    (DQNAgent, DISCRETE, {"target_interval": 2, "dueling": True, "double": False}),
    (DiscreteSacAgent, DISCRETE, {}),
]
every_agent = pytest.mark.parametrize(("cls", "space", "settings"), AGENTS)


def widths(cls: Any, width: int) -> dict[str, Any]:
    return {"width": width, "critic_width": width} if cls is FlashSACAgent else {"hidden_sizes": (width, width)}


def make(cls: Any, space: Any, settings: dict[str, Any], seed: int = 0) -> OffPolicyAgent:
    torch.manual_seed(seed)
    agent: OffPolicyAgent = cls(OBSERVATIONS, space, "cpu", **widths(cls, 16), **settings)
    return agent


def batch(space: Any, seed: int = 0, **flags: float) -> tuple[Any, ...]:
    size = 32
    generator = torch.Generator().manual_seed(seed)
    terminated = (torch.rand(size, generator=generator) < 0.3).float()
    if space is DISCRETE:
        action = torch.randint(4, 7, (size,), generator=generator)
    else:
        action = torch.rand(size, 2, generator=generator) * 4 - 2
    return (
        torch.randn(size, 3, generator=generator),
        action,
        torch.randn(size, generator=generator),
        torch.randn(size, 3, generator=generator),
        torch.full((size,), flags["terminated"]) if "terminated" in flags else terminated,
        torch.full((size,), flags["truncated"]) if "truncated" in flags else 1 - terminated,
    )


def parameters(agent: Any) -> Tensor:
    slow = [target for target, _ in agent.target_pairs()]
    tensors = [p for module in (agent.model, *slow) for p in module.parameters()]
    return torch.cat([p.detach().flatten() for p in [*tensors, getattr(agent, "log_alpha", torch.zeros(1))]])


def trained(agent: OffPolicyAgent, *batches: Any) -> Tensor:
    torch.manual_seed(9)
    for one in batches:
        agent.train(one)
    return parameters(agent)


@every_agent
def test_same_seed_same_parameters(cls: Any, space: Any, settings: Any) -> None:
    batches = [batch(space, seed) for seed in range(5)]
    first, again, other = (trained(make(cls, space, settings, seed), *batches) for seed in (3, 3, 4))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@every_agent
def test_truncation_does_not_change_an_update_and_termination_does(cls: Any, space: Any, settings: Any) -> None:
    def after(**flags: float) -> Tensor:
        return trained(make(cls, space, settings), *[batch(space, seed, **flags) for seed in range(2)])

    assert torch.equal(after(terminated=0.0, truncated=1.0), after(terminated=0.0, truncated=0.0))
    assert not torch.equal(after(terminated=1.0, truncated=0.0), after(terminated=0.0, truncated=0.0))


@every_agent
def test_a_discount_in_the_batch_replaces_gamma(cls: Any, space: Any, settings: Any) -> None:
    one = batch(space)
    by_gamma = trained(make(cls, space, {**settings, "gamma": 0.5}), one)
    by_batch = trained(make(cls, space, {**settings, "gamma": 0.99}), (*one, {"discount": torch.full((32,), 0.5)}))
    assert torch.allclose(by_gamma, by_batch, atol=1e-7)
    assert not torch.allclose(by_batch, trained(make(cls, space, {**settings, "gamma": 0.99}), one), atol=1e-7)


@every_agent
def test_weights_scale_the_loss_but_not_the_td_errors(cls: Any, space: Any, settings: Any) -> None:
    one = batch(space)
    agent = make(cls, space, settings)
    plain = trained(agent, one)
    assert agent.td_error_B is None
    equal = make(cls, space, settings)
    assert torch.allclose(plain, trained(equal, (*one, {"weights": torch.ones(32)})), atol=1e-7)
    assert equal.td_error_B is not None
    assert equal.td_error_B.shape == (32,)
    assert float(equal.td_error_B.min()) >= 0.0
    assert not equal.td_error_B.requires_grad
    half = make(cls, space, {**settings, **({"optimizer": "sgd"} if cls is DQNAgent else {"optimizer_critic": "sgd"})})
    full = make(cls, space, {**settings, **({"optimizer": "sgd"} if cls is DQNAgent else {"optimizer_critic": "sgd"})})
    assert not torch.equal(trained(half, (*one, {"weights": torch.full((32,), 0.5)})), trained(full, one))


@every_agent
def test_metrics_are_detached_scalars(cls: Any, space: Any, settings: Any) -> None:
    agent = make(cls, space, settings)
    for seed in range(2):
        metrics = agent.train(batch(space, seed))
        assert "loss_critic" in metrics
        assert all(isinstance(v, Tensor) and v.ndim == 0 and not v.requires_grad for v in metrics.values())


@every_agent
def test_it_publishes_the_weights_that_are_trained(cls: Any, space: Any, settings: Any) -> None:
    agent = make(cls, space, settings)
    before = agent.get_actor().to_blob()
    for seed in range(2):
        agent.train(batch(space, seed))
    assert agent.get_actor().to_blob() != before
    assert space.contains(agent.get_actor().act_(np.zeros(3, np.float32)))


@every_agent
def test_a_restored_agent_continues_identically(cls: Any, space: Any, settings: Any) -> None:
    agent = make(cls, space, settings)
    trained(agent, *[batch(space, seed) for seed in range(3)])
    saved = capture(agent)
    expected = trained(agent, *[batch(space, seed) for seed in range(3, 6)])
    other = make(cls, space, settings, seed=5)
    restore(other, saved.tree, saved.arrays)
    assert torch.equal(trained(other, *[batch(space, seed) for seed in range(3, 6)]), expected)
    assert other.get_actor().exploration() == agent.get_actor().exploration()


@every_agent
def test_its_critics_and_policy_have_their_gradients_again_after_an_update(cls: Any, space: Any, settings: Any) -> None:
    agent = make(cls, space, settings)
    for seed in range(2):
        agent.train(batch(space, seed))
    assert all(p.requires_grad for p in agent.model.parameters())
    assert not any(p.requires_grad for target, _ in agent.target_pairs() for p in target.parameters())


@every_agent
def test_the_other_kind_of_action_space_is_refused(cls: Any, space: Any, settings: Any) -> None:
    with pytest.raises(ConfigError, match="action space"):
        make(cls, DISCRETE if space is BOX else BOX, settings)


def test_each_algorithm_with_a_replay_memory_compiles_its_updates_if_asked() -> None:
    # A class whose base declares kinds of updates is not compiled unless it declares its own.
    rows = [row for row in algorithms().values() if "ReplayMemory" in row.memories]
    assert len(rows) > 7
    for row in rows:
        space, cls = BOX if "box" in row.action_spaces else DISCRETE, resolve(row.cls)
        agent = cls(OBSERVATIONS, space, "cpu", compile=True, **widths(cls, 8))
        assert agent._compiles, row.name


@pytest.mark.parametrize("shape", [(), (1,), (2, 3)], ids=str)
@pytest.mark.parametrize(
    "cls", [SacAgent, REDQSACAgent, TQCAgent, CrossQAgent, FlashSACAgent, TD3Agent, DDPGAgent, BehaviorCloningAgent]
)
def test_updates_take_actions_of_boxes_of_any_shape(cls: Any, shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    observations, actions = gym.spaces.Box(-1, 1, (3,), np.float32), gym.spaces.Box(-2, 3, shape, np.float32)
    agent = cls(observations, actions, "cpu", **widths(cls, 8))
    before = nn.utils.parameters_to_vector(agent.get_actor().parameters()).detach()
    obs, zeros = torch.rand(4, 3), torch.zeros(4)
    taken = torch.rand(4, *shape)
    for _ in range(3):  # TD3 moves its policy every second time, CrossQ every third
        agent.train((obs, taken, zeros, obs, zeros, zeros))
    after = nn.utils.parameters_to_vector(agent.get_actor().parameters()).detach()
    assert bool(torch.isfinite(after).all())
    assert cls is REDQSACAgent or not torch.equal(before, after)
    assert actions.contains(agent.get_actor().act_(obs[0].numpy()))
