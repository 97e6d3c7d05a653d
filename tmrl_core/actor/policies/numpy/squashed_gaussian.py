"""Gaussian policies that are squashed by tanh into bounds: the distribution, and NumPy's backend.

Shape suffixes: B batch, A action elements.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tmrl_core.actor.policies.convolutions import Convolutions
from tmrl_core.actor.policies.numpy.mlp import NumpyMLPPolicy
from tmrl_core.actor.policies.numpy.recurrent import NumpyRecurrentPolicy
from tmrl_core.actor.policies.policy import Policy
from tmrl_core.actor.policies.spaces import action_bounds

if TYPE_CHECKING:
    from typing_extensions import Self

LOG_STD_MIN = -20.0
LOG_STD_MAX = 2.0

_NOISE_BLOCK = 4096
"""Gaussian numbers sampled per call: one call per action would cost more than the last layer."""

_UNIFORM_BLOCK = 256
"""Random actions sampled per call: one by one, they would cost more than the policy's own."""

_SCALAR_ACTIONS = 4
"""Number of action elements up to which Python's floats are faster than calls to NumPy."""


class SquashedGaussian(Policy):
    """The distribution. A share `random` of the actions is uniform, until the first weights if nobody set it."""

    explored_by = ("random",)
    random: float

    def set_actions(self, random: float | None) -> None:
        """Set bounds, heads and the share of random actions; None: all, until weights arrive without a share.

        Raises:
            ConfigError: the action space has no finite bounds, or it is another kind of space.
        """
        self._bounds = action_bounds(self.name, self.action_space)
        self.heads = {"mu": self._bounds.size, "log_std": self._bounds.size}
        self._told = random is not None
        self.random = 1.0 if random is None else float(random)

    def set_exploration(self, parameters: Mapping[str, float]) -> None:
        """Set `random`."""
        super().set_exploration(parameters)
        self._told = self._told or "random" in parameters

    def from_bytes(self, data: bytes, device: Any = None) -> Self:
        """Load the weights as the backend does, and use them from now on, unless `random` was set explicitly."""
        actor: Self = super().from_bytes(data, device)  # type: ignore[assignment]  # each backend returns itself
        if not self._told:
            self.random = 0.0
        return actor

    def outputs_of_heads(self, heads: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return `mu` and `log_std` before squashing."""
        return {"mu": heads["mu"], "log_std": np.minimum(np.maximum(heads["log_std"], LOG_STD_MIN), LOG_STD_MAX)}

    def choose(
        self, outputs_B: Mapping[str, np.ndarray], rng: np.random.Generator, deterministic: bool
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Return actions without extras."""
        noise_BA = None if deterministic else rng.standard_normal(outputs_B["mu"].shape)
        return self.action_with(outputs_B, noise_BA, rng), {}

    def action_with(
        self, outputs_B: Mapping[str, np.ndarray], noise_BA: np.ndarray | None, rng: np.random.Generator
    ) -> np.ndarray:
        """Return actions with this noise, or uniform ones; None: the most likely actions."""
        bounds = self._bounds
        u_BA = outputs_B["mu"].astype(np.float64)
        if noise_BA is not None:
            u_BA += np.exp(outputs_B["log_std"]) * noise_BA
        action_BA = bounds.scaled(np.tanh(u_BA))
        return bounds.clipped(action_BA if noise_BA is None else bounds.mixed(action_BA, self.random, rng))


class NumpySquashedGaussianMLPActor(SquashedGaussian, NumpyMLPPolicy):
    """Acts as `SquashedGaussianMLPActor` does, on weights that it reads from the same safetensors.

    The arguments are those of `SquashedGaussianMLPActor`, with `activation` and `seed` as in `NumpyPolicy`.

    Raises:
        ConfigError: a space or an activation that this policy cannot take.
    """

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
        super().__init__(observation_space, action_space, hidden_sizes, activation, seed, convolutions, random=random)
        self._noise: list[float] = []
        self._uniform: list[np.ndarray] = []
        self._act = self._make_act()

    def seed(self, seed: int) -> None:
        """Seed the exploration and discard numbers sampled before."""
        super().seed(seed)
        self._noise.clear()
        self._uniform.clear()

    def act(self, obs: Any, test: bool = False) -> np.ndarray:
        """The action for one observation, a new array of the action space; `test`: the most likely one."""
        if self.random > 0.0 and not test and (self.random >= 1.0 or self._rng.random() < self.random):
            if not self._uniform:
                bounds = self._bounds
                sampled = self._rng.uniform(bounds.low, bounds.high, (_UNIFORM_BLOCK, bounds.size)).astype(bounds.dtype)
                self._uniform.extend(sampled)
            return self._uniform.pop().reshape(self._bounds.shape)
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


class NumpyNormalizedSquashedGaussianMLPActor(NumpySquashedGaussianMLPActor):
    """Acts as `NormalizedSquashedGaussianMLPActor` does, on weights that it reads from the same safetensors.

    The arguments are those of `NumpySquashedGaussianMLPActor`.
    """

    behind_batch_norm = True


class NumpySquashedGaussianRNNActor(SquashedGaussian, NumpyRecurrentPolicy):
    """Acts as `SquashedGaussianRNNActor` does, on weights that it reads from the same safetensors.

    The arguments are those of `SquashedGaussianRNNActor`, with `activation` and `seed` as in `NumpyPolicy`.

    Raises:
        ConfigError: a space or a setting that this policy cannot take.
    """

    def __init__(
        self,
        observation_space: Any,
        action_space: Any,
        hidden_sizes: Sequence[int] = (128,),
        activation: Any = "relu",
        cell: str = "gru",
        cell_size: int = 128,
        state_interval: int = 20,
        random: float | None = None,
        seed: int | None = None,
        convolutions: Convolutions | None = None,
    ) -> None:
        super().__init__(
            observation_space, action_space, hidden_sizes, activation, seed, convolutions,
            cell=cell, cell_size=cell_size, state_interval=state_interval, random=random,
        )  # fmt: skip
