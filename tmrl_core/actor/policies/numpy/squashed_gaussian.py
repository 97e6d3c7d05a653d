"""The project's own policy without torch: the same weights, a third of the time per action."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np

from tmrl_core.actor.policies.convolutions import Convolutions
from tmrl_core.actor.policies.exploration import RandomUntilTrained
from tmrl_core.actor.policies.numpy.mlp import SUPPORTED_ACTIVATIONS as SUPPORTED_ACTIVATIONS
from tmrl_core.actor.policies.numpy.mlp import NumpyMLPActor
from tmrl_core.actor.policies.spaces import action_bounds

LOG_STD_MIN = -20.0
LOG_STD_MAX = 2.0

_NOISE_BLOCK = 4096
"""Gaussian numbers sampled per call: one call per action would cost more than the last layer."""

_UNIFORM_BLOCK = 256
"""Random actions sampled per call: one by one, they would cost more than the policy's own."""

_SCALAR_ACTIONS = 4
"""Number of action elements up to which Python's floats are faster than calls to NumPy."""


class NumpySquashedGaussianMLPActor(RandomUntilTrained, NumpyMLPActor):
    """Acts as `SquashedGaussianMLPActor` does, on weights that it reads from the same safetensors.

    The arguments are those of `SquashedGaussianMLPActor`, with `activation` and `seed` as in `NumpyMLPActor`.

    Raises:
        ConfigError: a space or an activation that this policy cannot take.
    """

    owner: ClassVar[str] = "SquashedGaussianMLPActor"

    def __init__(
        self,
        observation_space: Any,
        action_space: Any,
        hidden_sizes: Sequence[int] = (256, 256),
        activation: Any = "relu",
        random: float | None = None,
        seed: int | None = None,
        convolutions: Convolutions | None = None,
    ) -> None:
        self._bounds = action_bounds(self.owner, action_space)
        heads = {"mu": self._bounds.size, "log_std": self._bounds.size}
        super().__init__(
            observation_space, action_space, heads, hidden_sizes, activation, seed, convolutions=convolutions
        )
        self._noise: list[float] = []
        self._uniform: list[np.ndarray] = []
        self._act_by_policy = self._make_act()
        self.begin_exploration(random)

    def seed(self, seed: int) -> None:
        """Seed the exploration and discard numbers sampled before."""
        super().seed(seed)
        self._noise.clear()
        self._uniform.clear()

    def _explore_with(self, random: float) -> None:
        self.random = random
        # So that a policy which has learned something pays nothing for the question.
        self._act = self._act_by_policy if random <= 0.0 else self._act_by_chance

    def _act_by_chance(self, obs: Any, test: bool) -> np.ndarray:
        if test or (self.random < 1.0 and self._rng.random() >= self.random):
            return self._act_by_policy(obs, test)
        if not self._uniform:
            bounds = self._bounds
            sampled = self._rng.uniform(bounds.low, bounds.high, (_UNIFORM_BLOCK, bounds.size)).astype(bounds.dtype)
            self._uniform.extend(sampled)
        return self._uniform.pop().reshape(self._bounds.shape)

    def act(self, obs: Any, test: bool = False) -> np.ndarray:
        """The action for one observation, a new array of the action space; `test`: the most likely one."""
        return self._act(obs, test)

    def _make_act(self) -> Callable[..., np.ndarray]:
        """The function that `act` is: everything that it touches in local variables."""
        forward, add_noise = self._forward, self._noise
        size, shape, dtype = self._bounds.size, self._bounds.shape, self._bounds.dtype
        low, high = self._bounds.low, self._bounds.high
        # low + (high - low) may exceed high by one bit, and an environment may check its bounds.
        span = high - low
        empty = np.empty

        def draw() -> float:
            add_noise.extend(self._rng.standard_normal(_NOISE_BLOCK).tolist())
            return add_noise.pop()

        if size <= _SCALAR_ACTIONS:
            tanh, exp, pop = math.tanh, math.exp, add_noise.pop
            elements = [
                (index, size + index, low[index].item(), high[index].item(), span[index].item())
                for index in range(size)
            ]

            def act_scalars(obs: Any, test: bool = False) -> np.ndarray:
                values = forward(obs).tolist()
                action = empty(size, dtype)
                for mu_at, log_std_at, lowest, highest, width in elements:
                    u = values[mu_at]
                    if not test:
                        log_std = values[log_std_at]
                        if log_std < LOG_STD_MIN:
                            log_std = LOG_STD_MIN
                        elif log_std > LOG_STD_MAX:
                            log_std = LOG_STD_MAX
                        u += exp(log_std) * (pop() if add_noise else draw())
                    value = lowest + (tanh(u) + 1.0) * 0.5 * width
                    action[mu_at] = highest if value > highest else value  # NaN stays
                return action if len(shape) == 1 else action.reshape(shape)

            return act_scalars

        def act_vector(obs: Any, test: bool = False) -> np.ndarray:
            heads = forward(obs)
            u = heads[:size].astype(np.float64)
            if not test:
                u += np.exp(np.clip(heads[size:], LOG_STD_MIN, LOG_STD_MAX)) * self._rng.standard_normal(size)
            action: np.ndarray = np.minimum(low + (np.tanh(u) + 1.0) * 0.5 * span, high)
            return action.astype(dtype).reshape(shape)

        return act_vector
