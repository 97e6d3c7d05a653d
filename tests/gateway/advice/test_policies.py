"""The project's policies with and without advice."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from tmrl_core.actor.policies.torch.categorical import CategoricalMLPActor
from tmrl_core.actor.policies.torch.deterministic import DeterministicMLPActor
from tmrl_core.actor.policies.torch.gaussian import GaussianMLPActor
from tmrl_core.actor.policies.torch.module import TorchActorModule
from tmrl_core.actor.policies.torch.q_value import QValueMLPActor
from tmrl_core.actor.policies.torch.squashed_gaussian import SquashedGaussianMLPActor
from tmrl_core.errors import ConfigError, ObservationError
from tmrl_core.gateway.advice.combine import Gaussian
from tmrl_core.gateway.advice.policies import advised_policy

OBS = np.array([0.3, -0.4], np.float32)
OBSERVATIONS = spaces.Box(-1, 1, (2,))
BOX = spaces.Box(np.array([-1.0, 10.0], np.float32), np.array([3.0, 20.0], np.float32))


def drawn(actor: Any, advice: list[Any], count: int = 2000) -> np.ndarray:
    policy, rng = advised_policy(actor, 1.0), np.random.default_rng(0)
    advisors = [lambda obs, one=one: one for one in advice]
    return np.array([policy.act(OBS, advisors, rng) for _ in range(count)], dtype=np.float64)


def make(kind: Any, space: Any, **kwargs: Any) -> Any:
    torch.manual_seed(0)
    return kind(OBSERVATIONS, space, hidden_sizes=(8,), **kwargs)


def test_q_values_act_epsilon_greedily_and_advise_by_their_softmax() -> None:
    space = spaces.Discrete(3, start=5)
    actor = make(QValueMLPActor, space, epsilon=0.3)
    q_N = actor(torch.from_numpy(OBS)[None])[0].detach().numpy().astype(np.float64)
    best = int(q_N.argmax())
    shares = np.bincount(drawn(actor, []).astype(int) - 5, minlength=3) / 2000
    expected = np.full(3, 0.1)
    expected[best] = 0.8
    assert np.allclose(shares, expected, atol=0.03)
    advice = advised_policy(actor, 2.0).snapshot()(OBS)
    assert np.allclose(advice, np.exp(q_N / 2) / np.exp(q_N / 2).sum())
    assert set(drawn(actor, [np.eye(3)[(best + 1) % 3]], 50)) == {5.0 + (best + 1) % 3}


def test_a_categorical_policy_acts_and_advises_by_its_probabilities() -> None:
    actor = make(CategoricalMLPActor, spaces.Discrete(2))
    with torch.no_grad():
        actor.logits.bias[:] = torch.tensor([0.0, 1.0])
    advice = advised_policy(actor, 1.0).snapshot()(OBS)
    assert np.allclose(drawn(actor, []).mean(), advice[1], atol=0.03)
    twice = advice**2 / (advice**2).sum()
    assert np.allclose(drawn(actor, [advice]).mean(), twice[1], atol=0.03)


@pytest.mark.parametrize("kind", [QValueMLPActor, CategoricalMLPActor])
def test_an_action_mask_limits_actions_and_advice(kind: Any) -> None:
    torch.manual_seed(0)
    observation_space = spaces.Dict({"x": OBSERVATIONS, "action_mask": spaces.MultiBinary(4)})
    policy = advised_policy(kind(observation_space, spaces.Discrete(4), hidden_sizes=(8,)), 1.0)
    obs = {"x": OBS, "action_mask": np.array([0, 1, 0, 1], np.int8)}
    advice = policy.snapshot()(obs)
    assert advice[[0, 2]].tolist() == [0.0, 0.0]
    assert advice.sum() == pytest.approx(1.0)
    rng = np.random.default_rng(0)
    uniform = np.full(4, 0.25)
    assert {int(policy.act(obs, [lambda _: uniform], rng)) for _ in range(200)} == {1, 3}
    with pytest.raises(ObservationError, match="no action is allowed"):
        policy.act({**obs, "action_mask": np.zeros(4, np.int8)}, [], rng)


def test_a_squashed_gaussian_acts_by_itself_as_without_advice() -> None:
    actor = make(SquashedGaussianMLPActor, BOX, random=0.0)
    found = drawn(actor, [])
    direct = np.array([actor.act_(OBS) for _ in range(2000)])
    assert np.allclose(found.mean(axis=0), direct.mean(axis=0), atol=0.15)
    assert np.allclose(found.std(axis=0), direct.std(axis=0), rtol=0.1)
    assert all(BOX.contains(action.astype(np.float32)) for action in found[:100])


def test_a_squashed_gaussian_is_combined_before_the_squashing() -> None:
    actor = make(SquashedGaussianMLPActor, BOX, random=0.0)
    own = advised_policy(actor, 1.0).snapshot()(OBS)
    assert isinstance(own, Gaussian)
    certain = Gaussian(np.array([0.5, -0.5]), np.full(2, 1e-6))
    expected = np.array([-1.0, 10.0]) + (np.tanh(certain.mean_A) + 1) / 2 * np.array([4.0, 10.0])
    assert np.allclose(drawn(actor, [certain], 20), expected, atol=1e-3)


@pytest.mark.parametrize("kind", [SquashedGaussianMLPActor, DeterministicMLPActor])
def test_before_the_first_update_advisors_alone_decide(kind: type[TorchActorModule]) -> None:
    actor = make(kind, BOX, random=1.0)
    alone = drawn(actor, [])
    assert np.allclose(alone.mean(axis=0), [1.0, 15.0], atol=0.2)
    assert np.allclose(alone.std(axis=0), np.array([4.0, 10.0]) / np.sqrt(12), rtol=0.05)
    certain = Gaussian(np.zeros(2), np.full(2, 1e-6))
    assert np.allclose(drawn(actor, [certain], 20), [1.0, 15.0], atol=1e-3)


def test_a_deterministic_policy_is_a_gaussian_of_its_noise() -> None:
    actor = make(DeterministicMLPActor, BOX, noise=0.05, random=0.0)
    found = drawn(actor, [])
    assert np.allclose(found.mean(axis=0), actor.act_(OBS, test=True), atol=0.02)
    assert np.allclose(found.std(axis=0), 0.05 * np.array([2.0, 5.0]), rtol=0.05)
    mean_A, std_A = advised_policy(actor, 1.0).snapshot()(OBS)
    other = Gaussian(mean_A + 0.2, std_A)
    expected = (actor.act_(OBS, test=True) + 0.1 * np.array([2.0, 5.0])).astype(np.float64)
    assert np.allclose(drawn(actor, [other]).mean(axis=0), expected, atol=0.02)


def test_later_updates_do_not_change_a_snapshot() -> None:
    actor = make(QValueMLPActor, spaces.Discrete(2))
    snapshot = advised_policy(actor, 1.0).snapshot()
    before = snapshot(OBS)
    with torch.no_grad():
        actor.q.bias[:] = torch.tensor([5.0, -5.0])
    assert (snapshot(OBS) == before).all()


def test_a_policy_of_unknown_distribution_is_refused() -> None:
    with pytest.raises(ConfigError, match="GaussianMLPActor, whose distribution is unknown"):
        advised_policy(make(GaussianMLPActor, BOX), 1.0)


@pytest.mark.parametrize(("bias", "log_std"), [(100.0, 2.0), (-100.0, -20.0)])
def test_the_spread_of_advice_has_the_bounds_of_the_policy(bias: float, log_std: float) -> None:
    actor = make(SquashedGaussianMLPActor, BOX)
    with torch.no_grad():
        actor.log_std.weight.zero_()
        actor.log_std.bias.fill_(bias)
    assert np.allclose(advised_policy(actor, 1.0).snapshot()(OBS).std_A, np.exp(log_std))


def test_a_policy_without_noise_can_still_be_advised() -> None:
    actor = make(DeterministicMLPActor, BOX, noise=0.0, random=0.0)
    assert np.allclose(advised_policy(actor, 1.0).snapshot()(OBS).std_A, 1e-3)
    # Advice as sharp as its own draws it half of the way.
    own = drawn(actor, [], 50).mean(axis=0)
    other = Gaussian(np.array([1.0, 1.0]), np.full(2, 1e-3))
    assert np.allclose(drawn(actor, [other], 50).mean(axis=0), (own + np.array([3.0, 20.0])) / 2, atol=0.05)
