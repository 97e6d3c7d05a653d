"""Interface of policies with a density, for on-policy training with torch.

Shape suffixes: B batch, D elements of a flattened observation, H features.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from tmrl_core.actor.policies.torch.mlp import TorchPolicy, flatten_batch
from tmrl_core.actor.policies.torch.module import collate_one


class OnPolicyHead(TorchPolicy):
    """A stochastic policy with a density and an entropy, as PPO needs it."""

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


class OnPolicyActor(OnPolicyHead):
    """A stochastic policy without recurrence, which returns the log-density of its actions as the extra `logp`."""

    def log_prob_and_entropy(self, flat_BD: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """Return, with gradients, [B] log-density of actions in nats and [B] entropy of the policy.

        Args:
            flat_BD: [B, D] flattened observations.
            action: [B, ...] what `trained_action` makes of a batch.
        """
        return self.density(self.outputs_at(flat_BD), action)

    def act_with_extras(self, obs: Any, test: bool = False) -> tuple[Any, dict[str, Any]]:
        """Return the action, with its extras."""
        return self.act_on(flatten_batch(self.layout, collate_one(obs, self.device)), test)
