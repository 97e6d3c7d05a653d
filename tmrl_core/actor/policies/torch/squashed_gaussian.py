"""Gaussian policies that are squashed by tanh into each action element's bounds, with torch.

Shape suffixes: B batch, T ticks, H features, A action elements.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from tmrl_core.actor.policies.convolutions import Convolutions
from tmrl_core.actor.policies.numpy.squashed_gaussian import LOG_STD_MAX, LOG_STD_MIN, SquashedGaussian
from tmrl_core.actor.policies.torch.mlp import TorchPolicy, flatten_batch, in_float32
from tmrl_core.actor.policies.torch.recurrent import TorchRecurrentPolicy

_UNIT_MARGIN = 1e-6
"""Distance of the scaled actions to -1 and 1, where the inverse of tanh is infinite."""


class TorchSquashedGaussian(SquashedGaussian, TorchPolicy):
    """The distribution's densities and differentiable samples."""

    mu: nn.Linear
    log_std: nn.Linear

    def set_actions(self, random: float | None) -> None:
        """Set bounds, as tensors too, heads and the share of random actions."""
        super().set_actions(random)
        self.keep_bounds(self._bounds, (self._bounds.size,))

    def outputs_of(self, features_BH: Tensor) -> dict[str, Tensor]:
        """Return [..., A] `mu` and `log_std` before squashing, of [..., H] features."""
        mu_BA, log_std_BA = (in_float32(head, features_BH).float() for head in (self.mu, self.log_std))
        return {"mu": mu_BA, "log_std": torch.clamp(log_std_BA, LOG_STD_MIN, LOG_STD_MAX)}

    def squashed(
        self,
        outputs: Mapping[str, Tensor],
        test: bool = False,
        compute_logprob: bool = True,
        generator: torch.Generator | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Return actions [..., *action shape] and their log-densities [...], as `SquashedGaussianMLPActor` does.

        Args:
            outputs: result of `outputs_of`.
            test, compute_logprob, generator: as for `SquashedGaussianMLPActor.forward`.
        """
        mu_BA, log_std_BA = outputs["mu"], outputs["log_std"]
        if test:
            u_BA = mu_BA
        else:
            noise_BA = torch.randn(mu_BA.shape, generator=generator, device=mu_BA.device, dtype=mu_BA.dtype)
            u_BA = mu_BA + torch.exp(log_std_BA) * noise_BA
        logp_B: Tensor | None = None
        if compute_logprob:
            logp_B = _log_density(u_BA, mu_BA, log_std_BA)
        return self.squash(u_BA), logp_B

    def log_prob(self, outputs_BT: Mapping[str, Tensor], action_BT: Tensor) -> Tensor:
        """Return, with gradients, the [...] log-densities of actions, as `squashed` does of the actions it samples.

        Actions at their bounds have the density of actions just inside them.
        """
        mu_BTA, log_std_BTA = outputs_BT["mu"], outputs_BT["log_std"]
        unit_BTA = 2.0 * (action_BT.reshape(mu_BTA.shape) - self.low) / (self.high - self.low) - 1.0
        u_BTA = torch.atanh(unit_BTA.float().clamp(-1.0 + _UNIT_MARGIN, 1.0 - _UNIT_MARGIN))
        return _log_density(u_BTA, mu_BTA, log_std_BTA)

    def squash(self, u_BA: Tensor) -> Tensor:
        """Return actions [..., *action shape] of [..., A] values before squashing."""
        action_BA = self.low + (torch.tanh(u_BA) + 1.0) / 2.0 * (self.high - self.low)
        # Rounding may leave the bounds by one bit, and an environment may check them.
        action_BA = torch.clamp(action_BA, self.low, self.high)
        return action_BA.reshape(*u_BA.shape[:-1], *self._bounds.shape)


def _log_density(u_BA: Tensor, mu_BA: Tensor, log_std_BA: Tensor) -> Tensor:
    """Return the [...] log-densities of squashed actions, scaled to [-1, 1], of [..., A] values before squashing."""
    gaussian_BA = -0.5 * ((u_BA - mu_BA) * torch.exp(-log_std_BA)).square() - log_std_BA
    # log(1 - tanh(u)^2), in the form that does not lose its digits for large u (appendix C).
    squashing_BA = 2.0 * (math.log(2.0) - u_BA - functional.softplus(-2.0 * u_BA))
    return (gaussian_BA - 0.5 * math.log(2.0 * math.pi) - squashing_BA).sum(dim=-1)


class SquashedGaussianMLPActor(TorchSquashedGaussian):
    """Gaussian policy of a multi-layer perceptron, squashed by tanh into each action element's bounds.

    The other arguments are those of `TorchPolicy`.

    Args:
        action_space: a Box of floats with finite bounds.
        random: share of actions sampled uniformly from the action space, until the trainer says another; None, which
            workers begin with: all, until weights arrive that it says nothing about.

    Raises:
        ConfigError: a space that this policy cannot take.

    Source: Haarnoja et al., arXiv:1812.05905, appendix C.
    """

    def __init__(
        self,
        observation_space: Any,
        action_space: Any,
        hidden_sizes: Sequence[int] = (256, 256),
        activation: str | Callable[[], nn.Module] = nn.ReLU,
        random: float | None = 0.0,
        convolutions: Convolutions | None = None,
    ) -> None:
        super().__init__(observation_space, action_space, hidden_sizes, activation, convolutions, random=random)

    def forward(
        self, obs: Any, test: bool = False, compute_logprob: bool = True, generator: torch.Generator | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Return actions for a batch of observations, with gradients to the weights.

        Args:
            obs: nested as the observation space is, leaves [B, *shape] tensors.
            test: True: the most likely action instead of a sample.
            compute_logprob: False spares the density.
            generator: of the noise; None: torch's global one.

        Returns:
            action: [B, *action shape] float32, within the bounds.
            logp: [B] float32, log-density in nats of the action scaled to [-1, 1] per element, so that an entropy
                target does not depend on the actuators' units; None without `compute_logprob`.
        """
        features_BH = self.encode(flatten_batch(self.layout, obs))
        if test and not compute_logprob:
            return self.squash(in_float32(self.mu, features_BH).float()), None
        return self.squashed(self.outputs_of(features_BH), test, compute_logprob, generator)

    def action_of(self, outputs_B: Mapping[str, Tensor], deterministic: bool) -> Tensor:
        """Return actions [B, *action shape], with gradients; a share `random` of them is uniform."""
        u_BA = outputs_B["mu"]
        if deterministic:
            return self.squash(u_BA)
        action_B = self.squash(u_BA + torch.exp(outputs_B["log_std"]) * self.noise_like(u_BA))
        low, high = (bound.reshape(self._bounds.shape) for bound in (self.low, self.high))
        return self.mixed(action_B, low, high, self.random)


class NormalizedSquashedGaussianMLPActor(SquashedGaussianMLPActor):
    """`SquashedGaussianMLPActor` that normalizes the values of observations by a mean and a deviation of its weights.

    A policy that is trained with batch normalization is published in this form, see
    `tmrl_core.training.agents.batch_renorm`.

    The arguments are those of `SquashedGaussianMLPActor`.
    """

    behind_batch_norm = True


class SquashedGaussianRNNActor(TorchRecurrentPolicy, TorchSquashedGaussian):
    """`SquashedGaussianMLPActor` with a recurrent layer.

    Args:
        observation_space: flattened as `tmrl_core.actor.policies.flattening` says.
        action_space: a Box of floats with finite bounds.
        hidden_sizes: width of each hidden layer before the recurrent one.
        activation: class of the hidden layers' activation, or its name.
        cell: `gru` or `lstm`.
        cell_size: units of the recurrent layer.
        state_interval: number of ticks between two stored states.
        random: as for `SquashedGaussianMLPActor`.

    Raises:
        ConfigError: a space or a setting that this policy cannot take.

    Source: Ni et al., arXiv:2110.05038.
    """

    def __init__(
        self,
        observation_space: Any,
        action_space: Any,
        hidden_sizes: Sequence[int] = (128,),
        activation: str | Callable[[], nn.Module] = nn.ReLU,
        cell: str = "gru",
        cell_size: int = 128,
        state_interval: int = 20,
        random: float | None = 0.0,
        convolutions: Convolutions | None = None,
    ) -> None:
        super().__init__(
            observation_space, action_space, hidden_sizes, activation, convolutions,
            cell=cell, cell_size=cell_size, state_interval=state_interval, random=random,
        )  # fmt: skip
