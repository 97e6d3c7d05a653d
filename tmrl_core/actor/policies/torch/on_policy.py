"""Policies with log-densities for on-policy training, in torch; `numpy/on_policy.py` acts on the same weights.

The extra `logp` of an action is its log-density. Flattened observations are [B, D].

Shape suffixes: B batch, T ticks, D elements of a flattened observation, H features, A action elements, M choices of a
discrete action, K values of the choice with the most, N values of all choices, R = B * M.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from tmrl_core.actor.policies.convolutions import Convolutions
from tmrl_core.actor.policies.masks import FORBIDDEN, check_allowed
from tmrl_core.actor.policies.numpy.mlp import OBSERVATION_LIMIT
from tmrl_core.actor.policies.spaces import box_bounds, categorical_actions
from tmrl_core.actor.policies.torch.mlp import TorchMLPActor, constant, flatten_batch
from tmrl_core.actor.policies.torch.module import collate_one


def orthogonal_linear(inputs: int, outputs: int) -> torch.nn.Linear:
    """Return a hidden layer with orthogonal weights and no bias.

    Source: what matters of PPO's initial weights: Andrychowicz et al., arXiv:2006.05990, section 3.2.
    """
    return orthogonal(torch.nn.Linear(inputs, outputs), math.sqrt(2.0))


def orthogonal(layer: torch.nn.Linear, gain: float) -> torch.nn.Linear:
    """Initialize a layer with orthogonal weights of this gain and no bias; return it."""
    torch.nn.init.orthogonal_(layer.weight, gain)
    torch.nn.init.zeros_(layer.bias)
    return layer


class OnPolicyHead(TorchMLPActor):
    """Features and last layer of a stochastic policy with a density, as PPO needs it.

    The other arguments are those of `TorchMLPActor`.

    Args:
        normalize_observations: to mean 0 and standard deviation 1, by what training has seen of them so far, which
            travels with the weights; elements beyond 10 are cut there. Images are left as they are.

    Raises:
        ConfigError: a space that this policy cannot take.
    """

    obs_mean: Tensor
    obs_std: Tensor

    def __init__(
        self,
        observation_space: Any,
        action_space: Any,
        hidden_sizes: Sequence[int] = (64, 64),
        activation: str | Callable[[], torch.nn.Module] = "tanh",
        normalize_observations: bool = False,
        convolutions: Convolutions | None = None,
    ) -> None:
        super().__init__(observation_space, action_space, hidden_sizes, activation, orthogonal_linear, convolutions)
        self.normalizes = normalize_observations
        if normalize_observations:
            self.register_buffer("obs_mean", torch.zeros(self.encoder.values))
            self.register_buffer("obs_std", torch.ones(self.encoder.values))

    def normalized(self, flat_BD: Tensor) -> Tensor:
        """Return [B, D] flattened observations without the action mask, normalized if that is enabled."""
        flat_BD = self.inputs_of(flat_BD)
        if not self.normalizes:
            return flat_BD
        count = self.encoder.values
        values = ((flat_BD[..., :count] - self.obs_mean) / self.obs_std).clamp(-OBSERVATION_LIMIT, OBSERVATION_LIMIT)
        return values if count == self.inputs else torch.cat([values, flat_BD[..., count:]], dim=-1)

    def encode(self, flat_BD: Tensor) -> Tensor:
        """Return [B, H] features of flattened observations [B, D]."""
        return super().encode(self.normalized(flat_BD))

    @abstractmethod
    def outputs_of(self, features_BH: Tensor) -> dict[str, Tensor]:
        """Return the [..., N] parameters of the distribution, by name, of [..., H] features."""

    @abstractmethod
    def density(self, outputs: Mapping[str, Tensor], action: Tensor) -> tuple[Tensor, Tensor]:
        """Return, with gradients, [B] log-density of actions in nats and [B] entropy of the policy.

        Args:
            outputs: result of `outputs_of` for [B, H] features.
            action: [B, ...] what `trained_action` makes of a batch.
        """

    @abstractmethod
    def trained_action(self, action: Tensor, extras: dict[str, Tensor]) -> Tensor:
        """Return the actions whose density the policy computes, from a batch's actions and extras."""

    def reset_extras(self) -> dict[str, Any]:
        """Return zeros."""
        return {**super().reset_extras(), "logp": np.float32(0.0)}


class OnPolicyActor(OnPolicyHead):
    """Stochastic policy of a multi-layer perceptron with a density.

    The arguments are those of `OnPolicyHead`.
    """

    def log_prob_and_entropy(self, flat_BD: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """Return, with gradients, [B] log-density of actions in nats and [B] entropy of the policy.

        Args:
            flat_BD: [B, D] flattened observations.
            action: [B, ...] what `trained_action` makes of a batch.
        """
        return self.density(self.outputs_at(flat_BD), action)

    @abstractmethod
    def sample(self, flat_BD: Tensor, test: bool) -> tuple[Tensor, Tensor]:
        """Sample actions, or return the most likely ones with `test`, and [B] their log-density in nats."""

    def act(self, obs: Any, test: bool = False) -> Any:
        """Return the action for one observation, collated with a batch dimension of one."""
        with torch.no_grad():
            return self._of_space(self.sample(self._flat(obs), test)[0])

    def act_with_extras(self, obs: Any, test: bool = False) -> tuple[Any, dict[str, Any]]:
        """Return the action, with its log-density `logp`."""
        with torch.no_grad():
            known, logp_B = self.sample(self._flat(collate_one(obs, self.device)), test)
            return self._of_space(known), {"logp": np.float32(logp_B[0].item()), **self._more(known)}

    def _flat(self, obs: Any) -> Tensor:
        flat_BD = flatten_batch(self.layout, obs)
        if (can_act_B := self.can_act(flat_BD)) is not None:
            check_allowed(bool(can_act_B.all()))
        return flat_BD

    @abstractmethod
    def _of_space(self, known: Tensor) -> Any:
        """Return the first of these actions as an action of the action space."""

    def _more(self, known: Tensor) -> dict[str, Any]:
        return {}


class CategoricalHead(OnPolicyHead):
    """Last layer of a policy with a softmax over discrete actions, or over the values of each of several choices.

    One vector [..., N] has the logits of all choices.
    """

    def make_head(self, owner: str) -> None:
        """Make the layer, on features of the size `features`.

        Raises:
            ConfigError: the action space is not Discrete, MultiDiscrete or MultiBinary.
        """
        self._actions = actions = categorical_actions(owner, self.action_space)
        self.logits = orthogonal(torch.nn.Linear(self.features, actions.size), 0.01)

    def of_choices(self, values: Tensor, padding: float = FORBIDDEN) -> Tensor:
        """Return [..., M, K] logits, or other numbers, of each choice, of [..., N] ones of all."""
        counts = self._actions.counts
        if len(set(counts)) == 1:
            return values.reshape(*values.shape[:-1], len(counts), -1)
        parts = zip(torch.split(values, list(counts), dim=-1), counts, strict=True)
        return torch.stack([pad(part, (0, max(counts) - count), value=padding) for part, count in parts], dim=-2)

    def log_probs_of(self, outputs: Mapping[str, Tensor]) -> Tensor:
        """Return [..., M, K] log-probabilities of the values of each choice, in nats."""
        return torch.log_softmax(self.of_choices(outputs["logits"]), dim=-1)

    def outputs_of(self, features_BH: Tensor) -> dict[str, Tensor]:
        """Return [..., N] `logits`."""
        return {"logits": self.logits(features_BH)}

    def density(self, outputs: Mapping[str, Tensor], action: Tensor) -> tuple[Tensor, Tensor]:
        """Return, with gradients, [B] log-probability of indices [B, M] (or [B]) int64 and [B] entropy, in nats."""
        log_probs_BMK = self.log_probs_of(outputs)
        entropy_BM = -(log_probs_BMK.exp() * log_probs_BMK).sum(dim=-1)
        return _chosen(log_probs_BMK, action), entropy_BM.sum(dim=-1)

    def log_prob(self, outputs_BT: Mapping[str, Tensor], action_BT: Tensor) -> Tensor:
        """Return, with gradients, the [...] log-probabilities of actions."""
        log_probs_BTMK = self.log_probs_of(outputs_BT)
        return _chosen(log_probs_BTMK, self._index(action_BT))

    def trained_action(self, action: Tensor, extras: dict[str, Tensor]) -> Tensor:
        """Return [B, M] int64 indices of each action, from 0."""
        return self._index(action).reshape(-1, len(self._actions.counts))

    def _index(self, action: Tensor) -> Tensor:
        """Return int64 indices of actions [..., *action shape], from 0."""
        index = action.to(torch.int64)
        return index - constant(self._actions.first, index)


def _chosen(log_probs_BMK: Tensor, index_BM: Tensor) -> Tensor:
    """Return [...] the sum of the log-probabilities of one value of each choice."""
    index_BM1 = index_BM.reshape(*log_probs_BMK.shape[:-1], 1)
    return log_probs_BMK.gather(-1, index_BM1).squeeze(-1).sum(dim=-1)


class GaussianHead(OnPolicyHead):
    """Last layer of a Gaussian policy with a state-independent spread, clipped to the bounds."""

    def make_head(self, owner: str, log_std: float) -> None:
        """Make the layer, on features of the size `features`, and the spread.

        Raises:
            ConfigError: the action space is not a Box of floats.
        """
        self._bounds = box_bounds(owner, self.action_space)
        self.mu = orthogonal(torch.nn.Linear(self.features, self._bounds.size), 0.01)
        self.log_std = torch.nn.Parameter(torch.full((self._bounds.size,), float(log_std)))

    def outputs_of(self, features_BH: Tensor) -> dict[str, Tensor]:
        """Return [..., A] `mu` and `log_std`."""
        mu_BA = self.mu(features_BH)
        return {"mu": mu_BA, "log_std": self.log_std.expand(mu_BA.shape)}

    def density(self, outputs: Mapping[str, Tensor], action: Tensor) -> tuple[Tensor, Tensor]:
        """Return, with gradients, [B] log-density of the unclipped actions [B, A] and [B] entropy, in nats."""
        entropy = (self.log_std + 0.5 * math.log(2.0 * math.pi * math.e)).sum()
        return self._density(outputs["mu"], action), entropy.expand(len(outputs["mu"]))

    def log_prob(self, outputs_BT: Mapping[str, Tensor], action_BT: Tensor) -> Tensor:
        """Return, with gradients, the [...] log-densities of actions; clipped ones have the density at the bounds."""
        mu_BTA = outputs_BT["mu"]
        return self._density(mu_BTA, action_BT.reshape(mu_BTA.shape))

    def _density(self, mu_BA: Tensor, sampled_action_BA: Tensor) -> Tensor:
        z_BA = (sampled_action_BA - mu_BA) * torch.exp(-self.log_std)
        return (-0.5 * z_BA.square() - self.log_std - 0.5 * math.log(2.0 * math.pi)).sum(dim=-1)

    def trained_action(self, action: Tensor, extras: dict[str, Tensor]) -> Tensor:
        """Return [B, A] float32 sampled actions before clipping."""
        return extras["drawn"].reshape(-1, self._bounds.size).to(torch.float32)

    def reset_extras(self) -> dict[str, Any]:
        """Return zeros."""
        return {**super().reset_extras(), "drawn": np.zeros(self._bounds.size, np.float32)}


class CategoricalMLPActor(CategoricalHead, OnPolicyActor):
    """Categorical policy: a multi-layer perceptron with a softmax over discrete actions.

    An action of MultiDiscrete or MultiBinary consists of several choices, each with a softmax over its values: their
    log-probabilities and entropies add up.

    The other arguments are those of `OnPolicyActor`.

    Args:
        action_space: Discrete, MultiDiscrete or MultiBinary.

    Raises:
        ConfigError: a space that this policy cannot take.
    """

    def __init__(
        self,
        observation_space: Any,
        action_space: Any,
        hidden_sizes: Sequence[int] = (64, 64),
        activation: str | Callable[[], torch.nn.Module] = "tanh",
        normalize_observations: bool = False,
        convolutions: Convolutions | None = None,
    ) -> None:
        super().__init__(
            observation_space, action_space, hidden_sizes, activation, normalize_observations, convolutions
        )
        self.make_head("CategoricalMLPActor")

    def log_probs(self, flat_BD: Tensor) -> Tensor:
        """Return [B, N] log-probability of each Discrete action, in nats."""
        return torch.log_softmax(self.outputs_at(flat_BD)["logits"], dim=-1)

    def sample(self, flat_BD: Tensor, test: bool) -> tuple[Tensor, Tensor]:
        """Sample [B, M] int64 indices, or return the most likely ones with `test`, and [B] their log-probability."""
        log_probs_BMK = self.log_probs_of(self.outputs_at(flat_BD))
        index_BM = log_probs_BMK.argmax(dim=-1) if test else self._sampled(log_probs_BMK.exp())
        return index_BM, _chosen(log_probs_BMK, index_BM)

    def action_of(self, outputs_B: Mapping[str, Tensor], deterministic: bool) -> Tensor:
        """Return actions [B, *action shape]."""
        logits_BMK = self.of_choices(outputs_B["logits"].detach())
        index_BM = logits_BMK.argmax(dim=-1) if deterministic else self._sampled(logits_BMK.softmax(dim=-1))
        index_B = index_BM.reshape(-1, *self._actions.first.shape)
        return index_B + constant(self._actions.first, index_B)

    def _sampled(self, probability_BMK: Tensor) -> Tensor:
        """Return [B, M] indices of values with these probabilities."""
        rows_RK = probability_BMK.reshape(-1, probability_BMK.shape[-1])
        return torch.multinomial(rows_RK, 1, generator=self._generator).reshape(probability_BMK.shape[:-1])

    def _of_space(self, known: Tensor) -> Any:
        return self._actions.of(known[0].cpu().numpy())


class GaussianMLPActor(GaussianHead, OnPolicyActor):
    """Gaussian policy with a multi-layer perceptron's mean and a state-independent spread; clipped to the bounds.

    The extra `drawn` holds the action before clipping, which the density refers to.

    The other arguments are those of `OnPolicyActor`.

    Args:
        action_space: a Box of floats; infinite bounds clip nothing.
        log_std: logarithm of the initial standard deviation of each element.

    Raises:
        ConfigError: a space that this policy cannot take.
    """

    def __init__(
        self,
        observation_space: Any,
        action_space: Any,
        hidden_sizes: Sequence[int] = (64, 64),
        activation: str | Callable[[], torch.nn.Module] = "tanh",
        log_std: float = 0.0,
        normalize_observations: bool = False,
        convolutions: Convolutions | None = None,
    ) -> None:
        super().__init__(
            observation_space, action_space, hidden_sizes, activation, normalize_observations, convolutions
        )
        self.make_head("GaussianMLPActor", log_std)

    def sample(self, flat_BD: Tensor, test: bool) -> tuple[Tensor, Tensor]:
        """Sample [B, A] unclipped actions, or return the most likely ones with `test`, and [B] their log-density."""
        mu_BA = self.mu(self.encode(flat_BD))
        sampled_action_BA = mu_BA
        if not test:
            noise_BA = torch.randn(mu_BA.shape, generator=self._generator, device=mu_BA.device, dtype=mu_BA.dtype)
            sampled_action_BA = mu_BA + torch.exp(self.log_std) * noise_BA
        return sampled_action_BA, self._density(mu_BA, sampled_action_BA)

    def action_of(self, outputs_B: Mapping[str, Tensor], deterministic: bool) -> Tensor:
        """Return actions [B, *action shape], clipped to the bounds."""
        action_BA = outputs_B["mu"]
        if not deterministic:
            noise_BA = torch.randn(action_BA.shape, generator=self._generator, device=action_BA.device)
            action_BA = action_BA + torch.exp(outputs_B["log_std"]) * noise_BA
        low, high = (torch.as_tensor(bound).to(action_BA) for bound in (self._bounds.low, self._bounds.high))
        return action_BA.clamp(low, high).reshape(-1, *self._bounds.shape)

    def _of_space(self, known: Tensor) -> Any:
        return self._bounds.clipped(known[0].cpu().numpy())

    def _more(self, known: Tensor) -> dict[str, Any]:
        return {"drawn": known[0].cpu().numpy()}
