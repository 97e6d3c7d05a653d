"""Deterministic policies with Gaussian noise, squashed by tanh into bounds: the actions, and NumPy's backend.

Shape suffixes: B batch, A action elements.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tmrl_core.actor.policies.convolutions import Convolutions
from tmrl_core.actor.policies.numpy.mlp import NumpyMLPPolicy
from tmrl_core.actor.policies.policy import Policy
from tmrl_core.actor.policies.spaces import action_bounds


class Deterministic(Policy):
    """The actions: one for each observation, Gaussian noise around it, and a share `random` of uniform ones."""

    explored_by = ("noise", "random")
    noise: float
    random: float

    def set_actions(self, noise: float, random: float) -> None:
        """Set bounds, the head and the exploration.

        Raises:
            ConfigError: the action space has no finite bounds, or it is another kind of space.
        """
        self._bounds = action_bounds(self.name, self.action_space)
        self.heads = {"mu": self._bounds.size}
        self.noise, self.random = float(noise), float(random)

    def outputs_of_heads(self, heads: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return `action` [B, *action shape] without noise."""
        action_BA = self._bounds.scaled(np.tanh(heads["mu"], dtype=np.float64))
        return {"action": action_BA.reshape(-1, *self._bounds.shape)}

    def choose(
        self, outputs_B: Mapping[str, np.ndarray], rng: np.random.Generator, deterministic: bool
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Return actions without extras."""
        bounds = self._bounds
        action_BA = outputs_B["action"].reshape(-1, bounds.size).astype(np.float64)
        if not deterministic:
            action_BA += self.noise * rng.standard_normal(action_BA.shape) * (bounds.high - bounds.low) / 2.0
            bounds.mixed(action_BA, self.random, rng)
        return bounds.clipped(action_BA), {}


class DeterministicMLP(Deterministic):
    """Constructor of `DeterministicMLPActor` on each backend."""

    def __init__(
        self,
        observation_space: Any,
        action_space: Any,
        hidden_sizes: Sequence[int] = (256, 256),
        activation: Any = "relu",
        noise: float = 0.1,
        random: float = 1.0,
        convolutions: Convolutions | None = None,
        seed: int | None = None,
    ) -> None:
        super().__init__(
            observation_space, action_space, hidden_sizes=hidden_sizes, activation=activation,
            convolutions=convolutions, seed=seed, noise=noise, random=random,
        )  # fmt: skip


class NumpyDeterministicMLPActor(DeterministicMLP, NumpyMLPPolicy):
    """Acts as `DeterministicMLPActor` does, on weights that it reads from the same safetensors.

    The arguments are those of `DeterministicMLPActor`, with `activation` and `seed` as in `NumpyPolicy`.

    Raises:
        ConfigError: a space or an activation that this policy cannot take.
    """

    def act(self, obs: Any, test: bool = False) -> np.ndarray:
        """The action for one observation, a new array of the action space; `test`: without noise."""
        bounds = self._bounds
        if not test and self._rng.random() < self.random:
            action = self._rng.uniform(bounds.low, bounds.high)
        else:
            unit = np.tanh(self._forward(obs), dtype=np.float64)
            if not test:
                unit += self.noise * self._rng.standard_normal(bounds.size)
            action = bounds.scaled(unit)
        return bounds.clipped(action)
