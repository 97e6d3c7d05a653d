from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch

from tests.training.agents.test_recurrent import GAMMA, T, make_batch, make_dqn
from tmrl_core.envs import DelayedCue
from tmrl_core.errors import ConfigError
from tmrl_core.samples import Chunk, Segment
from tmrl_core.training.agents.losses import chosen_value, double_value, huber_loss, td_target
from tmrl_core.training.agents.recurrent import rescaled, unrescaled
from tmrl_core.training.agents.recurrent_dqn import RecurrentDQNAgent
from tmrl_core.training.memories.sequences import SequenceMemory


def slowly(agent: RecurrentDQNAgent, batch: list[Any], ticks: list[int]) -> torch.Tensor:
    """The loss of the functions for single transitions, over sequences without padding, one after the other."""
    online, target_network = agent.model.actor, agent.target_network
    values, targets, weights = [], [], []
    for b, count in enumerate(ticks):
        obs = torch.cat([batch[0][b, None], batch[3][b, :count]])[None]
        state = {"h": batch[6]["state.h"][b, None]}
        q = online.unroll(obs, state)[0]["q"][0]
        with torch.no_grad():
            next_q = target_network.unroll(obs, state)[0]["q"][0, 1:]
            next_value = double_value(q[1:], next_q) if agent.settings.double else next_q.amax(-1)
            if agent.settings.rescale_values:
                next_value = unrescaled(next_value)
            target = td_target(batch[2][b, :count], batch[4][b, :count], next_value, GAMMA)
            targets.append(rescaled(target) if agent.settings.rescale_values else target)
        values.append(chosen_value(q[:-1], batch[1][b, :count] - 5))
        weights.append(batch[6]["weights"][b].expand(count))
    return huber_loss(torch.cat(values), torch.cat(targets), torch.cat(weights))


@pytest.mark.parametrize("ticks", [(T, 4, 1, T), (1, 1, 1, 1)], ids=["padded", "one tick"])
@pytest.mark.parametrize("settings", [{}, {"double": False}, {"rescale_values": True}, {"dueling": True}])
def test_one_update_equals_the_slow_one(ticks: Any, settings: Any) -> None:
    torch.manual_seed(0)
    agent = make_dqn(**settings, max_grad_norm=None)
    torch.manual_seed(7)
    agent.target_network.load_state_dict(make_dqn(**settings).target_network.state_dict())
    batch = make_batch(agent, ticks=ticks)
    batch[4][0, ticks[0] - 1] = 1.0
    slow = copy.deepcopy(agent)
    metrics = agent.train(tuple(batch))
    loss = slowly(slow, batch, list(ticks))
    loss.backward()  # type: ignore[no-untyped-call]
    torch.testing.assert_close(metrics["loss_critic"], loss.detach(), rtol=1e-4, atol=1e-6)
    for found, expected in zip(agent.model.parameters(), slow.model.parameters(), strict=True):
        torch.testing.assert_close(found.grad, expected.grad, rtol=1e-3, atol=1e-6)


def test_targets_over_several_ticks_change_the_update() -> None:
    torch.manual_seed(0)
    one = make_dqn()
    three = copy.deepcopy(one)
    three.settings.n_step = 3
    batch = tuple(make_batch(one))
    assert float(one.train(batch)["loss_critic"]) != float(three.train(batch)["loss_critic"])


def test_the_target_network_follows_at_its_interval() -> None:
    agent = make_dqn(target_interval=2)
    batch = tuple(make_batch(agent))
    agent.train(batch)
    differ = [not torch.equal(a, b) for a, b in zip(*_parameters(agent), strict=True)]
    assert all(differ)
    agent.train(batch)
    assert all(torch.equal(a, b) for a, b in zip(*_parameters(agent), strict=True))


def _parameters(agent: RecurrentDQNAgent) -> tuple[Any, Any]:
    return agent.target_network.parameters(), agent.model.actor.parameters()


def test_it_learns_to_remember() -> None:
    env = DelayedCue(length=4)
    env.reset(seed=0)
    rng = np.random.default_rng(0)
    memory = SequenceMemory(memory_size=200, batch_size=32, length=4, stride=4, seed=0)
    for episode in range(100):
        played = [env.reset()[0]]
        actions = [0, *rng.integers(2, size=4).tolist()]
        rewards = [0.0]
        for action in actions[1:]:
            obs, reward, *_ = env.step(action)
            played.append(obs)
            rewards.append(reward)
        last = np.arange(5) == 4
        memory.append_chunk(
            Chunk(
                rows=5,
                action=np.array(actions),
                action_present=np.arange(5) > 0,
                observation=np.array(played),
                reward=np.array(rewards),
                terminated=last,
                truncated=last & False,
                segments=(Segment(5, episode, 0, 1, 1),),
            )
        )
    torch.manual_seed(0)
    agent = RecurrentDQNAgent(
        env.observation_space, env.action_space, "cpu", hidden_sizes=(16,), cell_size=16, burn_in=0, lr=5e-3,
        polyak=0.95, target_interval=1,
    )  # fmt: skip
    for _ in range(150):
        agent.train(memory.sample())
    actor = agent.get_actor()
    for cue in (0, 1):
        state = actor.initial_state(1)
        for obs in (cue + 1, 0, 0, 3):
            action, state, _ = actor.act_batch(np.array([obs]), state, rng, True)
        assert action == [cue]


def test_a_target_over_no_tick_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"agent\.kwargs\.n_step: found 0, allowed: at least 1"):
        make_dqn(n_step=0)
