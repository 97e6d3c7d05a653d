"""Gaussian policies with a state-independent spread, clipped to bounds: the distribution, and NumPy's backend.

Shape suffixes: B batch, A action elements.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tmrl_core.actor.policies.convolutions import Convolutions
from tmrl_core.actor.policies.numpy.mlp import NumpyMLPPolicy
from tmrl_core.actor.policies.numpy.recurrent import NumpyRecurrentPolicy
from tmrl_core.actor.policies.policy import Policy
from tmrl_core.actor.policies.spaces import box_bounds


class Gaussian(Policy):
    """The distribution. The extra `drawn` is the action before clipping, which the density `logp` refers to."""

    on_policy = True

    def set_actions(self, log_std: float) -> None:
        """Set bounds, the head, the spread and the extras.

        Raises:
            ConfigError: the action space is not a Box of floats.
        """
        self._bounds = box_bounds(self.name, self.action_space)
        size = self._bounds.size
        self.heads = {"mu": size}
        self.arrays = {"log_std": np.full(size, log_std, np.float32)}
        self.extras = {"logp": np.float32(0.0), "drawn": np.zeros(size, np.float32)}

    def outputs_of_heads(self, heads: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return `mu` and `log_std`."""
        return {"mu": heads["mu"], "log_std": np.tile(self.arrays["log_std"], (len(heads["mu"]), 1))}

    def choose(
        self, outputs_B: Mapping[str, np.ndarray], rng: np.random.Generator, deterministic: bool
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Return actions, the unclipped ones as `drawn`, and the log-densities of these, `logp`."""
        log_std_BA = outputs_B["log_std"].astype(np.float64)
        drawn_BA = outputs_B["mu"].astype(np.float64)
        negative_logp_BA = log_std_BA + 0.5 * math.log(2.0 * math.pi)
        if not deterministic:
            noise_BA = rng.standard_normal(drawn_BA.shape)
            drawn_BA += np.exp(log_std_BA) * noise_BA
            negative_logp_BA += 0.5 * noise_BA * noise_BA
        logp_B = -np.add.reduce(negative_logp_BA, axis=1)
        extras = {"logp": logp_B.astype(np.float32), "drawn": drawn_BA.astype(np.float32)}
        return self._bounds.clipped(drawn_BA), extras


class GaussianMLP(Gaussian):
    """Constructor of `GaussianMLPActor` on each backend."""

    def __init__(
        self,
        observation_space: Any,
        action_space: Any,
        hidden_sizes: Sequence[int] = (64, 64),
        activation: Any = "tanh",
        log_std: float = 0.0,
        normalize_observations: bool = False,
        convolutions: Convolutions | None = None,
        seed: int | None = None,
    ) -> None:
        super().__init__(
            observation_space, action_space, hidden_sizes=hidden_sizes, activation=activation,
            convolutions=convolutions, seed=seed, log_std=log_std, normalize_observations=normalize_observations,
        )  # fmt: skip


class NumpyGaussianMLPActor(GaussianMLP, NumpyMLPPolicy):
    """Acts as `GaussianMLPActor` does, on weights that it reads from the same safetensors.

    The arguments are those of `GaussianMLPActor`, with `activation` and `seed` as in `NumpyPolicy`.

    Raises:
        ConfigError: a space or an activation that this policy cannot take.
    """

    def _take_over(self) -> None:
        super()._take_over()
        log_std = self.arrays["log_std"].astype(np.float64)
        self._std = np.exp(log_std)
        self._constant = float(log_std.sum() + 0.5 * log_std.size * math.log(2.0 * math.pi))

    def act(self, obs: Any, test: bool = False) -> np.ndarray:
        """The action for one observation; `test`: the most likely one."""
        action: np.ndarray = self.act_with_extras(obs, test)[0]
        return action

    def act_with_extras(self, obs: Any, test: bool = False) -> tuple[Any, dict[str, Any]]:
        """Return the action within the bounds, and the log-density `logp` of the unclipped one, the extra `drawn`."""
        sampled = self._forward(obs).astype(np.float64)
        logp = -self._constant
        if not test:
            noise = self._rng.standard_normal(sampled.size)
            sampled = sampled + self._std * noise
            logp -= 0.5 * float(noise @ noise)
        return self._bounds.clipped(sampled), {"logp": np.float32(logp), "drawn": sampled.astype(np.float32)}


class GaussianRNN(Gaussian):
    """Constructor of `GaussianRNNActor` on each backend."""

    def __init__(
        self,
        observation_space: Any,
        action_space: Any,
        hidden_sizes: Sequence[int] = (64,),
        activation: Any = "tanh",
        cell: str = "gru",
        cell_size: int = 128,
        state_interval: int = 20,
        log_std: float = 0.0,
        normalize_observations: bool = False,
        convolutions: Convolutions | None = None,
        seed: int | None = None,
    ) -> None:
        super().__init__(
            observation_space, action_space, hidden_sizes=hidden_sizes, activation=activation,
            convolutions=convolutions, seed=seed, cell=cell, cell_size=cell_size, state_interval=state_interval,
            log_std=log_std, normalize_observations=normalize_observations,
        )  # fmt: skip


class NumpyGaussianRNNActor(GaussianRNN, NumpyRecurrentPolicy):
    """Acts as `GaussianRNNActor` does.

    The arguments are those of `GaussianRNNActor`, with `activation` and `seed` as in `NumpyPolicy`.

    Raises:
        ConfigError: a space or a setting that this policy cannot take.
    """
