"""Policies with a softmax over discrete actions, or over the values of each of several choices, with torch.

Shape suffixes: B batch, T ticks, D elements of a flattened observation, H features, M choices of an action, K values of
the choice with the most, N values of all choices.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from tmrl_core.actor.policies.masks import FORBIDDEN
from tmrl_core.actor.policies.numpy.categorical import Categorical, CategoricalMLP, CategoricalRNN
from tmrl_core.actor.policies.torch.mlp import constant
from tmrl_core.actor.policies.torch.on_policy import OnPolicyActor, OnPolicyHead
from tmrl_core.actor.policies.torch.recurrent import TorchRecurrentPolicy


class TorchCategorical(Categorical, OnPolicyHead):
    """The distribution's log-probabilities."""

    logits: nn.Linear

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


class CategoricalMLPActor(CategoricalMLP, TorchCategorical, OnPolicyActor):
    """Categorical policy: a multi-layer perceptron with a softmax over discrete actions.

    An action of MultiDiscrete or MultiBinary consists of several choices, each with a softmax over its values: their
    log-probabilities and entropies add up.

    The other arguments are those of `TorchPolicy`.

    Args:
        action_space: Discrete, MultiDiscrete or MultiBinary.

    Raises:
        ConfigError: a space that this policy cannot take.
    """

    def log_probs(self, flat_BD: Tensor) -> Tensor:
        """Return [B, N] log-probability of each Discrete action, in nats."""
        return torch.log_softmax(self.outputs_at(flat_BD)["logits"], dim=-1)


class CategoricalRNNActor(CategoricalRNN, TorchRecurrentPolicy, TorchCategorical):
    """`CategoricalMLPActor` with a recurrent layer.

    The other arguments are those of `SquashedGaussianRNNActor`.

    Args:
        action_space: Discrete, MultiDiscrete or MultiBinary.
        normalize_observations: as for `CategoricalMLPActor`.

    Raises:
        ConfigError: a space or a setting that this policy cannot take.
    """
