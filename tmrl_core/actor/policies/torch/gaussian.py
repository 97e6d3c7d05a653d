"""Gaussian policies with a spread that does not depend on the state, clipped to the bounds, with torch.

Shape suffixes: B batch, T ticks, H features, A action elements.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from tmrl_core.actor.policies.numpy.gaussian import Gaussian, GaussianMLP, GaussianRNN
from tmrl_core.actor.policies.torch.on_policy import OnPolicyActor, OnPolicyHead
from tmrl_core.actor.policies.torch.recurrent import TorchRecurrentPolicy


class TorchGaussian(Gaussian, OnPolicyHead):
    """The distribution's densities."""

    mu: nn.Linear
    log_std: nn.Parameter

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


class GaussianMLPActor(GaussianMLP, TorchGaussian, OnPolicyActor):
    """Gaussian policy with a multi-layer perceptron's mean and a state-independent spread; clipped to the bounds.

    The extra `drawn` holds the action before clipping, which the density refers to.

    The other arguments are those of `TorchPolicy`.

    Args:
        action_space: a Box of floats; infinite bounds clip nothing.
        log_std: logarithm of the initial standard deviation of each element.

    Raises:
        ConfigError: a space that this policy cannot take.
    """

    def action_of(self, outputs_B: Mapping[str, Tensor], deterministic: bool) -> Tensor:
        """Return actions [B, *action shape], with gradients, clipped to the bounds."""
        action_BA = outputs_B["mu"]
        if not deterministic:
            action_BA = action_BA + torch.exp(outputs_B["log_std"]) * self.noise_like(action_BA)
        low, high = (torch.as_tensor(bound).to(action_BA) for bound in (self._bounds.low, self._bounds.high))
        return action_BA.clamp(low, high).reshape(-1, *self._bounds.shape)


class GaussianRNNActor(GaussianRNN, TorchRecurrentPolicy, TorchGaussian):
    """`GaussianMLPActor` with a recurrent layer.

    The other arguments are those of `SquashedGaussianRNNActor`.

    Args:
        action_space: a Box of floats; infinite bounds clip nothing.
        log_std: as for `GaussianMLPActor`.
        normalize_observations: likewise.

    Raises:
        ConfigError: a space or a setting that this policy cannot take.
    """
