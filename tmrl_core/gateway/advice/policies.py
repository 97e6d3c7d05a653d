"""The project's off-policy policies as distributions that can be combined with the advice of others.

Shape suffixes: B batch, N discrete actions, A action elements.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Generic

import numpy as np
import torch

from tmrl_core.actor import ActorModule
from tmrl_core.actor.policies.masks import allowed_indices
from tmrl_core.actor.policies.numpy.squashed_gaussian import LOG_STD_MAX, LOG_STD_MIN
from tmrl_core.actor.policies.spaces import action_bounds, discrete_actions
from tmrl_core.actor.policies.torch.categorical import CategoricalMLPActor
from tmrl_core.actor.policies.torch.deterministic import DeterministicMLPActor
from tmrl_core.actor.policies.torch.mlp import flatten_batch
from tmrl_core.actor.policies.torch.module import collate_one
from tmrl_core.actor.policies.torch.q_value import QValueMLPActor
from tmrl_core.actor.policies.torch.squashed_gaussian import SquashedGaussianMLPActor
from tmrl_core.errors import ConfigError
from tmrl_core.gateway.advice.advisors import Advice, Advisor
from tmrl_core.gateway.advice.combine import (
    Choice,
    Gaussian,
    choice_product,
    epsilon_greedy,
    gaussian_product,
    sample_choice,
    sample_gaussian,
    softmax,
)


class AdvisedPolicy(ABC, Generic[Advice]):
    """The policy of a session, which acts with the advice of others and advises them."""

    @abstractmethod
    def act(self, obs: Any, advisors: Sequence[Advisor[Advice]], rng: np.random.Generator) -> Any:
        """Return an action of the product of the behaviour policy, exploration included, and the advisors' policies."""

    @abstractmethod
    def snapshot(self) -> Advisor[Advice]:
        """Return the present policy without exploration as an advisor, which later updates do not change."""


class _QValues(AdvisedPolicy[Choice]):
    def __init__(self, actor: QValueMLPActor, temperature: float) -> None:
        self._actor = actor
        self._temperature = temperature
        self._actions = discrete_actions("QValueMLPActor", actor.action_space)

    def act(self, obs: Any, advisors: Sequence[Advisor[Choice]], rng: np.random.Generator) -> Any:
        own_N = epsilon_greedy(_values(self._actor, obs), self._actor.epsilon)
        return self._actions.of(sample_choice(choice_product(own_N, [each(obs) for each in advisors]), rng))

    def snapshot(self) -> Advisor[Choice]:
        actor, temperature = _frozen(self._actor), self._temperature
        return lambda obs: softmax(_values(actor, obs), temperature)


class _Categorical(AdvisedPolicy[Choice]):
    def __init__(self, actor: CategoricalMLPActor) -> None:
        self._actor = actor
        self._actions = discrete_actions("CategoricalMLPActor", actor.action_space)

    def act(self, obs: Any, advisors: Sequence[Advisor[Choice]], rng: np.random.Generator) -> Any:
        own_N = _probabilities(self._actor, obs)
        return self._actions.of(sample_choice(choice_product(own_N, [each(obs) for each in advisors]), rng))

    def snapshot(self) -> Advisor[Choice]:
        actor = _frozen(self._actor)
        return lambda obs: _probabilities(actor, obs)


class _Continuous(AdvisedPolicy[Gaussian]):
    """A policy over a Box. Before its first update its exploration is uniform, so advisors alone decide."""

    def __init__(self, actor: SquashedGaussianMLPActor | DeterministicMLPActor) -> None:
        self._actor = actor
        self._bounds = action_bounds(type(actor).__name__, actor.action_space)

    def act(self, obs: Any, advisors: Sequence[Advisor[Gaussian]], rng: np.random.Generator) -> Any:
        advice = [each(obs) for each in advisors]
        explores = self._actor.random > 0.0 and rng.random() < self._actor.random
        policy = gaussian_product(advice if explores else [self.gaussian(obs), *advice])
        if policy is None:
            return self._scaled(rng.uniform(-1.0, 1.0, self._bounds.size))
        return self._scaled(self.limited(sample_gaussian(policy, rng)))

    def _scaled(self, action_A: np.ndarray) -> np.ndarray:
        """Return an action scaled to [-1, 1] as one of the action space."""
        bounds = self._bounds
        return bounds.clipped(bounds.low + (action_A + 1.0) * 0.5 * (bounds.high - bounds.low))

    @abstractmethod
    def gaussian(self, obs: Any) -> Gaussian:
        """Return the behaviour policy."""

    @staticmethod
    @abstractmethod
    def limited(action_A: np.ndarray) -> np.ndarray:
        """Return a sample of the Gaussian within [-1, 1]."""


class _Squashed(_Continuous):
    _actor: SquashedGaussianMLPActor

    def gaussian(self, obs: Any) -> Gaussian:
        return _moments(self._actor, obs)

    @staticmethod
    def limited(action_A: np.ndarray) -> np.ndarray:
        squashed_A: np.ndarray = np.tanh(action_A)
        return squashed_A

    def snapshot(self) -> Advisor[Gaussian]:
        actor = _frozen(self._actor)
        return lambda obs: _moments(actor, obs)


class _Noisy(_Continuous):
    """A deterministic policy with Gaussian noise, where actions are scaled to [-1, 1]."""

    _actor: DeterministicMLPActor

    def gaussian(self, obs: Any) -> Gaussian:
        return self._around(self._actor, obs)

    def _around(self, actor: DeterministicMLPActor, obs: Any) -> Gaussian:
        low, high = self._bounds.low, self._bounds.high
        mean_A = (_row(actor, obs).ravel().astype(np.float64) - low) / (high - low) * 2.0 - 1.0
        # Without noise a policy would have infinite precision, and no advice could change it.
        return Gaussian(mean_A, np.full(mean_A.shape, max(actor.noise, 1e-3)))

    @staticmethod
    def limited(action_A: np.ndarray) -> np.ndarray:
        return action_A.clip(-1.0, 1.0)

    def snapshot(self) -> Advisor[Gaussian]:
        actor = _frozen(self._actor)
        return lambda obs: self._around(actor, obs)


def advised_policy(actor: ActorModule, temperature: float) -> AdvisedPolicy[Any]:
    """Return the policy of an agent as one that takes and gives advice.

    Args:
        actor: of the agent, which goes on training it.
        temperature: of advice by values of actions.

    Raises:
        ConfigError: its distribution is unknown.
    """
    match actor:
        case QValueMLPActor():
            return _QValues(actor, temperature)
        case CategoricalMLPActor():
            return _Categorical(actor)
        case SquashedGaussianMLPActor():
            return _Squashed(actor)
        case DeterministicMLPActor():
            return _Noisy(actor)
    raise ConfigError(
        f"a session cannot be advised with a {type(actor).__name__}, whose distribution is unknown; allowed: "
        "QValueMLPActor, CategoricalMLPActor, SquashedGaussianMLPActor, DeterministicMLPActor and subclasses. Use "
        "mode: central for other policies."
    )


def _frozen(actor: Any) -> Any:
    return copy.deepcopy(actor).requires_grad_(False)


def _row(actor: Any, obs: Any) -> np.ndarray:
    """Return the first row of the actor's output for a batch of one."""
    with torch.no_grad():
        row: np.ndarray = actor(collate_one(obs, "cpu"))[0].numpy()
    return row


def _values(actor: QValueMLPActor, obs: Any) -> np.ndarray:
    """Return [N] values of actions, minus infinity for those that are not allowed."""
    q_N = _row(actor, obs)
    if not actor.masked:
        return q_N
    limited_N = np.full_like(q_N, -np.inf)
    allowed = allowed_indices(obs, len(q_N))
    limited_N[allowed] = q_N[allowed]
    return limited_N


def _probabilities(actor: CategoricalMLPActor, obs: Any) -> Choice:
    if actor.masked:
        allowed_indices(obs, int(actor.action_space.n))  # refuses to act where there are none
    with torch.no_grad():
        log_probs_BN = actor.log_probs(flatten_batch(actor.layout, collate_one(obs, "cpu")))
    return np.exp(log_probs_BN[0].numpy().astype(np.float64))


def _moments(actor: SquashedGaussianMLPActor, obs: Any) -> Gaussian:
    with torch.no_grad():
        features_BH = actor.encode(flatten_batch(actor.layout, collate_one(obs, "cpu")))
        mean_A, log_std_A = actor.mu(features_BH)[0], actor.log_std(features_BH)[0].clamp(LOG_STD_MIN, LOG_STD_MAX)
    return Gaussian(mean_A.numpy().astype(np.float64), np.exp(log_std_A.numpy().astype(np.float64)))
