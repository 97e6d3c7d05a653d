"""Squashed Gaussian policies of residual blocks, whose noise is held for several steps, with torch.

Shape suffixes: B batch, H features, A action elements.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from tmrl_core.actor.policies.convolutions import Convolutions
from tmrl_core.actor.policies.numpy.residual import EXPANSION, LOG_STD_HALF_RANGE, LOG_STD_LOW, RMS_EPS, HeldNoise
from tmrl_core.actor.policies.torch.mlp import in_float32
from tmrl_core.actor.policies.torch.squashed_gaussian import SquashedGaussianMLPActor


class ResidualBlock(nn.Module):
    """A block that widens its input, narrows it, and adds it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.wide, self.narrow = nn.Linear(width, EXPANSION * width), nn.Linear(EXPANSION * width, width)

    def forward(self, x_BH: Tensor) -> Tensor:
        """Return the block's output."""
        return x_BH + functional.relu(self.narrow(functional.relu(self.wide(x_BH))))


class RootMeanSquare(nn.Module):
    """Division of each row by the root of its mean square."""

    def forward(self, x_BH: Tensor) -> Tensor:
        """Return the divided rows."""
        return x_BH * torch.rsqrt(x_BH.square().mean(dim=-1, keepdim=True) + RMS_EPS)


class SquashedGaussianResidualActor(HeldNoise, SquashedGaussianMLPActor):
    """Gaussian policy of residual blocks, squashed by tanh into the bounds, with noise that is held for several steps.

    It normalizes the values of observations by a mean and a deviation of its weights.

    Args:
        observation_space: flattened as `tmrl_core.actor.policies.flattening` says.
        action_space: a Box of floats with finite bounds.
        width: of the residual blocks.
        blocks: number of residual blocks.
        random: as for `SquashedGaussianMLPActor`.
        convolutions: layers for images, see `tmrl_core.actor.policies.convolutions`; None: the default ones.

    Raises:
        ConfigError: a space that this policy cannot take.

    Source: arXiv:2604.04539.
    """

    behind_batch_norm = True

    def __init__(
        self,
        observation_space: Any,
        action_space: Any,
        width: int = 128,
        blocks: int = 2,
        random: float | None = 0.0,
        convolutions: Convolutions | None = None,
    ) -> None:
        self._sizes = int(width), int(blocks)
        super().__init__(observation_space, action_space, (), nn.ReLU, random, convolutions)

    def _make_hidden_layers(
        self, sizes: Sequence[int], activation: str | Callable[[], nn.Module], linear: Callable[[int, int], nn.Module]
    ) -> tuple[nn.Sequential, int]:
        width, blocks = self._sizes
        layers = [ResidualBlock(width) for _ in range(blocks)]
        return nn.Sequential(nn.Linear(self.encoder.features, width), *layers, RootMeanSquare()), width

    def outputs_of(self, features_BH: Tensor) -> dict[str, Tensor]:
        """Return [..., A] `mu` and `log_std` before squashing, of [..., H] features."""
        mu_BA, log_std_BA = (in_float32(head, features_BH) for head in (self.mu, self.log_std))
        return {"mu": mu_BA, "log_std": LOG_STD_LOW + LOG_STD_HALF_RANGE * (1.0 + torch.tanh(log_std_BA))}
