"""The agents of tmrl: order, attributes and metrics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from tmrl_core.compat.custom import custom_algorithms as algorithms
from tmrl_core.compat.custom.custom_models import MLPActorCritic, REDQMLPActorCritic
from tmrl_core.functional import partial
from tmrl_core.training import MLPActorCritic as Native
from tmrl_core.training import SacAgent
from tmrl_core.training.checkpointable import saved_attributes

OBS = gym.spaces.Box(-1, 1, (3,), np.float32)
ACT = gym.spaces.Box(-2, 2, (2,), np.float32)
SMALL = partial(MLPActorCritic, hidden_sizes=(8,))
ENSEMBLE = partial(REDQMLPActorCritic, hidden_sizes=(8,))


def batch(rows: int = 16) -> tuple[torch.Tensor, ...]:
    flags = torch.zeros(rows)
    return torch.randn(rows, 3), torch.rand(rows, 2), torch.randn(rows), torch.randn(rows, 3), flags, flags


def test_sac_takes_tmrls_order() -> None:
    agent = algorithms.SpinupSacAgent(
        OBS,
        ACT,
        "cpu",
        SMALL,
        0.9,
        0.99,
        0.3,
        1e-4,
        2e-4,
        3e-4,
        True,
        -1.5,
        "adamw",
        "sgd",
        (0.8, 0.9),
        None,
        0.1,
        None,
    )
    assert (agent.gamma, agent.polyak, agent.alpha, agent.target_entropy) == (0.9, 0.99, 0.3, -1.5)
    assert (agent.lr_actor, agent.lr_critic, agent.lr_entropy) == (1e-4, 2e-4, 3e-4)
    assert (agent.betas_actor, agent.betas_critic, agent.l2_actor, agent.l2_critic) == ((0.8, 0.9), None, 0.1, None)
    assert agent.model_cls is SMALL
    assert isinstance(agent.pi_optimizer, torch.optim.AdamW)
    assert agent.pi_optimizer.param_groups[0]["betas"] == (0.8, 0.9)
    assert agent.pi_optimizer.param_groups[0]["weight_decay"] == 0.1
    assert isinstance(agent.q_optimizer, torch.optim.SGD)
    assert agent.alpha_optimizer is not None
    assert agent.alpha_optimizer.param_groups[0]["lr"] == 3e-4


def test_redq_takes_tmrls_order() -> None:
    agent = algorithms.REDQSACAgent(OBS, ACT, "cpu", ENSEMBLE, 0.9, 0.99, 0.3, 1e-4, 2e-4, 3e-4, True, None, 4, 3, 2)
    assert (agent.gamma, agent.n, agent.m, agent.q_updates_per_policy_update) == (0.9, 4, 3, 2)
    assert len(agent.model.qs) == 4
    assert [one.param_groups[0]["lr"] for one in agent.q_optimizer_list] == [2e-4]


def test_a_script_may_change_what_updates_read() -> None:
    agent = algorithms.REDQSACAgent(OBS, ACT, "cpu", ENSEMBLE)
    agent.gamma, agent.m = 0.5, 1
    assert (agent.settings.gamma, agent.settings.m) == (0.5, 1)


@pytest.mark.parametrize("kind", ["sac", "redq"])
def test_metrics_have_tmrls_names(kind: str) -> None:
    agent: Any = (
        algorithms.SpinupSacAgent(OBS, ACT, "cpu", SMALL)
        if kind == "sac"
        else algorithms.REDQSACAgent(OBS, ACT, "cpu", ENSEMBLE, n=3)
    )
    metrics = agent.train(batch())
    assert {"loss_actor", "loss_critic", "loss_entropy_coef", "entropy_coef"} <= metrics.keys()
    assert "loss_entropy" not in metrics


def test_redq_counts_its_updates() -> None:
    agent = algorithms.REDQSACAgent(OBS, ACT, "cpu", ENSEMBLE, n=3, q_updates_per_policy_update=2)
    assert [len(agent.train(batch())) for _ in range(2)] == [2, 5]
    assert agent.i_update == 2


def test_the_model_without_gradients_shares_its_weights() -> None:
    agent = algorithms.SpinupSacAgent(OBS, ACT, "cpu", SMALL)
    acting, trained = agent.model_nograd.actor, agent.model.actor
    assert not any(parameter.requires_grad for parameter in acting.parameters())
    before = acting.mu.weight.clone()
    agent.train(batch())
    assert not torch.equal(acting.mu.weight, before)
    assert torch.equal(acting.mu.weight, trained.mu.weight)


@pytest.mark.parametrize("model", [SMALL, partial(Native, hidden_sizes=(8,))])
def test_the_target_model_has_the_target_critics(model: Any) -> None:
    agent = algorithms.SpinupSacAgent(OBS, ACT, "cpu", model)
    agent.train(batch())
    obs, action = batch()[:2]
    target = agent.model_target
    expected = agent.target_critics(obs, action)
    found = (
        target.critics(obs, action)
        if model is not SMALL
        else torch.stack([target.q1(obs, action), target.q2(obs, action)])
    )
    assert torch.equal(found, expected)
    assert agent.model is not target
    assert not any(parameter.requires_grad for parameter in agent.target_critics.parameters())


def test_the_target_ensemble_has_the_target_critics() -> None:
    agent = algorithms.REDQSACAgent(OBS, ACT, "cpu", ENSEMBLE, n=3)
    obs, action = batch()[:2]
    found = torch.stack([q(obs, action) for q in agent.model_target.qs])
    assert torch.equal(found, agent.target_critics(obs, action))


def test_optimizers_may_be_replaced() -> None:
    agent = algorithms.SpinupSacAgent(OBS, ACT, "cpu", SMALL)
    agent.train(batch())
    agent.pi_optimizer = torch.optim.Adam(agent.model.actor.parameters(), lr=0.0)
    agent.q_optimizer = torch.optim.Adam([*agent.model.q1.parameters(), *agent.model.q2.parameters()], lr=0.0)
    agent.alpha_optimizer = torch.optim.Adam([agent.log_alpha], lr=0.0)
    before = [parameter.clone() for parameter in agent.model.parameters()]
    agent.train(batch())
    assert all(torch.equal(a, b) for a, b in zip(before, agent.model.parameters(), strict=True))


def test_a_data_class_may_be_derived_from_an_agent() -> None:
    @dataclass(eq=False)
    class Mine(algorithms.SpinupSacAgent):
        clip: float = 1.0

    agent = Mine(OBS, ACT, "cpu", SMALL, clip=2.0)
    assert (agent.clip, len(agent.train(batch()))) == (2.0, 5)


def test_checkpoints_hold_its_state_and_none_of_the_views() -> None:
    agent = algorithms.SpinupSacAgent(OBS, ACT, "cpu", SMALL)
    agent.train(batch())
    agent.model_nograd  # noqa: B018
    state = set(saved_attributes(agent))
    assert {"model", "target_critics", "optimizer_actor", "log_alpha"} <= state
    assert state.isdisjoint({"model_nograd", "model_cls", "lr_actor", "alpha", "l2_actor"})


def test_its_updates_equal_those_of_the_projects_sac() -> None:
    agents: list[Any] = []
    for cls in (algorithms.SpinupSacAgent, SacAgent):
        torch.manual_seed(0)
        agents.append(cls(OBS, ACT, "cpu", SMALL))
    for seed in range(3):
        for agent in agents:
            torch.manual_seed(seed)
            agent.train(batch())
    ours, native = (list(agent.model.parameters()) for agent in agents)
    assert all(torch.equal(a, b) for a, b in zip(ours, native, strict=True))
