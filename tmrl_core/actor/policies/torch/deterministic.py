"""Policies that are squashed by tanh into each action element's bounds, with Gaussian noise, with torch.

Shape suffixes: B batch, H features, A action elements.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from tmrl_core.actor.policies.numpy.deterministic import DeterministicMLP
from tmrl_core.actor.policies.torch.mlp import TorchPolicy, flatten_batch, in_float32


class DeterministicMLPActor(DeterministicMLP, TorchPolicy):
    """Multi-layer perceptron squashed by tanh into each action element's bounds, with Gaussian exploration noise.

    The other arguments are those of `TorchPolicy`.

    Args:
        action_space: a Box of floats with finite bounds.
        noise: standard deviation of the Gaussian noise where actions are scaled to [-1, 1], until the trainer sends
            another.
        random: share of actions sampled uniformly from the action space, until the trainer sends another.

    Raises:
        ConfigError: a space that this policy cannot take.

    Source: Fujimoto et al., arXiv:1802.09477, algorithm 1 and section 6.1.
    """

    mu: nn.Linear

    def set_actions(self, noise: float, random: float) -> None:
        """Set bounds, as tensors too, the head and the exploration."""
        super().set_actions(noise, random)
        self.keep_bounds(self._bounds, self._bounds.shape)

    def forward(self, obs: Any) -> Tensor:
        """Return [B, *action shape] actions within the bounds, with gradients to the weights.

        Args:
            obs: nested as the observation space is, leaves [B, *shape] tensors.
        """
        return self.outputs_of(self.encode(flatten_batch(self.layout, obs)))["action"]

    def outputs_of(self, features_BH: Tensor) -> dict[str, Tensor]:
        """Return `action` [..., *action shape] without noise, within the bounds, of [..., H] features."""
        u_BA = in_float32(self.mu, features_BH).reshape(*features_BH.shape[:-1], *self._bounds.shape)
        action_BA = self.low + (torch.tanh(u_BA) + 1.0) / 2.0 * (self.high - self.low)
        # Rounding may leave the bounds by one bit, and an environment may check them.
        return {"action": torch.clamp(action_BA, self.low, self.high)}

    def action_of(self, outputs_B: Mapping[str, Tensor], deterministic: bool) -> Tensor:
        """Return actions [B, *action shape] with noise, with gradients; a share `random` of them is uniform."""
        action_B = outputs_B["action"]
        if deterministic:
            return action_B
        noisy_B = action_B + self.noise * self.noise_like(action_B) * (self.high - self.low) / 2.0
        return self.mixed(torch.clamp(noisy_B, self.low, self.high), self.low, self.high, self.random)
