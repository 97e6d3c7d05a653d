"""The project's off-policy policies as distributions that can be combined with the advice of others.

Shape suffixes: B batch, N discrete actions, A action elements.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch

from tmrl_core.actor import ActorModule
from tmrl_core.actor.policies.masks import allowed_indices
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


class AdvisedPolicy(Protocol[Advice]):
    """The policy of a session, which acts with the advice of others and advises them."""

    def act(self, obs: Any, advisors: Sequence[Advisor[Advice]], rng: np.random.Generator) -> Any:
        """Return an action of the product of the behaviour policy, exploration included, and the advisors' policies."""

    def snapshot(self) -> Advisor[Advice]:
        """Return the present policy without exploration as an advisor, which later updates do not change."""


class _Discrete:
    """A policy over numbered actions.

    Args:
        actor: of the agent.
        own: `(actor, obs)` returns the behaviour policy.
        advice: `(actor, obs)` returns the policy without exploration.
    """

    def __init__(self, actor: Any, own: Callable[[Any, Any], Choice], advice: Callable[[Any, Any], Choice]) -> None:
        self._actor = actor
        self._own = own
        self._advice = advice
        self._actions = discrete_actions(type(actor).__name__, actor.action_space)

    def act(self, obs: Any, advisors: Sequence[Advisor[Choice]], rng: np.random.Generator) -> Any:
        own_N = self._own(self._actor, obs)
        return self._actions.of(sample_choice(choice_product(own_N, [each(obs) for each in advisors]), rng))

    def snapshot(self) -> Advisor[Choice]:
        return partial(self._advice, _frozen(self._actor))


class _Continuous:
    """A policy over a Box. Before its first update its exploration is uniform, so advisors alone decide.

    Args:
        actor: of the agent.
        gaussian: `(actor, obs)` returns the behaviour policy, as a Gaussian.
        limited: returns a sample of the Gaussian within [-1, 1].
    """

    def __init__(
        self,
        actor: SquashedGaussianMLPActor | DeterministicMLPActor,
        gaussian: Callable[[Any, Any], Gaussian],
        limited: Callable[[np.ndarray], np.ndarray],
    ) -> None:
        self._actor = actor
        self._gaussian = gaussian
        self._limited = limited
        self._bounds = action_bounds(type(actor).__name__, actor.action_space)

    def act(self, obs: Any, advisors: Sequence[Advisor[Gaussian]], rng: np.random.Generator) -> Any:
        advice = [each(obs) for each in advisors]
        explores = self._actor.random > 0.0 and rng.random() < self._actor.random
        policy = gaussian_product(advice if explores else [self._gaussian(self._actor, obs), *advice])
        if policy is None:
            action_A = rng.uniform(-1.0, 1.0, self._bounds.size)
        else:
            action_A = self._limited(sample_gaussian(policy, rng))
        return self._bounds.clipped(self._bounds.scaled(action_A))

    def snapshot(self) -> Advisor[Gaussian]:
        return partial(self._gaussian, _frozen(self._actor))


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
            return _Discrete(
                actor,
                lambda actor, obs: epsilon_greedy(_values(actor, obs), actor.epsilon),
                lambda actor, obs: softmax(_values(actor, obs), temperature),
            )
        case CategoricalMLPActor():
            return _Discrete(actor, _probabilities, _probabilities)
        case SquashedGaussianMLPActor():
            return _Continuous(actor, _moments, np.tanh)
        case DeterministicMLPActor():
            return _Continuous(actor, _noisy, lambda action_A: action_A.clip(-1.0, 1.0))
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
        outputs_B = actor.outputs_at(flatten_batch(actor.layout, collate_one(obs, "cpu")))
        mean_A, log_std_A = outputs_B["mu"][0], outputs_B["log_std"][0]
    return Gaussian(mean_A.numpy().astype(np.float64), np.exp(log_std_A.numpy().astype(np.float64)))


def _noisy(actor: DeterministicMLPActor, obs: Any) -> Gaussian:
    """Return the policy with its noise, where actions are scaled to [-1, 1]."""
    bounds = action_bounds(type(actor).__name__, actor.action_space)
    mean_A = (_row(actor, obs).ravel().astype(np.float64) - bounds.low) / (bounds.high - bounds.low) * 2.0 - 1.0
    # Without noise a policy would have infinite precision, and no advice could change it.
    return Gaussian(mean_A, np.full(mean_A.shape, max(actor.noise, 1e-3)))
