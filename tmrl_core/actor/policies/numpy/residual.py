"""Squashed Gaussian policies of residual blocks, whose noise is held for several steps: the noise, and NumPy's backend.

Shape suffixes: B batch, H features, A action elements.
"""

# Theory of operation
#
# The policy of FlashSAC as it acts. It differs from the other squashed Gaussian policies in three ways.
#
# The network: a linear layer, blocks that add relu(narrow(relu(wide(x)))) to x, a division of each row by the root of
# its mean square, and the heads. Batch normalizations and scales of the trained network are inside these linear layers
# (`publish` of the agent's policy); sums and the division cannot be.
#
# The spread: log-std = -10 + 6 (1 + tanh), which has a gradient everywhere, where a cut has none.
#
# The noise: one Gaussian vector is held for k steps, with probability of k proportional to 1 / k^2, k at most 16: 63 %
# of the vectors last one step, 16 % two, 0.2 % sixteen. An arm that is pushed for several steps arrives somewhere; one
# that shakes does not. The vector and its remaining steps are acting state, which the runner keeps for each row, so an
# episode goes on with them under new weights, and each episode begins with new noise. The state is not stored with
# samples: learning does not need it. Numbers are drawn in one order, vectors of all rows that need one and then their
# durations, by code that both backends share.

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tmrl_core.actor.module import State
from tmrl_core.actor.policies.convolutions import Convolutions
from tmrl_core.actor.policies.numpy.mlp import NumpyPolicy
from tmrl_core.actor.policies.numpy.squashed_gaussian import SquashedGaussian
from tmrl_core.actor.policies.policy import StatefulPolicy

LOG_STD_LOW, LOG_STD_HALF_RANGE = -10.0, 6.0
EXPANSION = 4
"""Width of a block's inner layer, in widths of the block."""
RMS_EPS = 1e-6
MOST_STEPS = 16
"""Longest time that noise is held, in steps."""
_SHARES = 1.0 / np.arange(1, MOST_STEPS + 1) ** 2
_UP_TO = np.cumsum(_SHARES)[:-1] / _SHARES.sum()
"""Probabilities of at most 1, 2, ... 15 steps."""


class HeldNoise(StatefulPolicy, SquashedGaussian):
    """The distribution. Its noise is held for a random number of steps, as acting state."""

    def initial_state(self, batch: int) -> State:
        """Return noise `noise` [B, A] of which no step is left, `left` [B]."""
        return {"noise": np.zeros((batch, self._bounds.size)), "left": np.zeros(batch, np.int64)}

    def act_batch(
        self, obs_B: Any, state_B: State, rng: np.random.Generator, deterministic: bool
    ) -> tuple[Any, State, dict[str, Any]]:
        """Act on a batch of NumPy observations, with the random numbers of `rng` on every backend.

        Without exploration, the state stays. The arguments and results are those of `BatchActor.act_batch`.
        """
        outputs_B, _ = self.infer(obs_B, {})
        if deterministic:
            return self.action_with(outputs_B, None, rng), state_B, {}
        noise_BA, left_B = state_B["noise"], state_B["left"]
        ended = left_B <= 0
        if ended.any():
            # Copies: states are replaced and never changed, see the runner.
            noise_BA, left_B, count = noise_BA.copy(), left_B.copy(), int(ended.sum())
            noise_BA[ended] = rng.standard_normal((count, self._bounds.size))
            left_B[ended] = 1 + np.searchsorted(_UP_TO, rng.random(count), side="right")
        return self.action_with(outputs_B, noise_BA, rng), {"noise": noise_BA, "left": left_B - 1}, {}

    def outputs_of_heads(self, heads: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return `mu` and `log_std` before squashing."""
        log_std_BA = LOG_STD_LOW + LOG_STD_HALF_RANGE * (1.0 + np.tanh(heads["log_std"]))
        return {"mu": heads["mu"], "log_std": log_std_BA}


class NumpySquashedGaussianResidualActor(HeldNoise, NumpyPolicy):
    """Acts as `SquashedGaussianResidualActor` does, on weights that it reads from the same safetensors.

    The arguments are those of `SquashedGaussianResidualActor`, with `seed` as in `NumpyPolicy`.

    Raises:
        ConfigError: a space that this policy cannot take.
    """

    behind_batch_norm = True

    def __init__(
        self,
        observation_space: Any,
        action_space: Any,
        width: int = 128,
        blocks: int = 2,
        random: float | None = None,
        seed: int | None = None,
        convolutions: Convolutions | None = None,
    ) -> None:
        self._width, self._blocks = int(width), int(blocks)
        super().__init__(observation_space, action_space, (), "relu", seed, convolutions, random=random)

    def _add_layer(self, width: int) -> int:
        inner = EXPANSION * self._width
        sizes = {"net.0": (width, self._width)}
        for block in range(1, 1 + self._blocks):
            sizes |= {f"net.{block}.wide": (self._width, inner), f"net.{block}.narrow": (inner, self._width)}
        rng = self._rng.spawn(1)[0]  # as in a recurrent layer
        for name, (fan_in, fan_out) in sizes.items():
            bound = 1.0 / math.sqrt(fan_in)
            for kind, shape in (("weight", (fan_out, fan_in)), ("bias", (fan_out,))):
                self.arrays[f"{name}.{kind}"] = rng.uniform(-bound, bound, shape).astype(np.float32)
        return self._width

    def _take_over(self) -> None:
        super()._take_over()

        def layer(name: str) -> tuple[np.ndarray, np.ndarray]:
            return np.ascontiguousarray(self.arrays[f"{name}.weight"].T), self.arrays[f"{name}.bias"]

        self._first = layer("net.0")
        blocks = range(1, 1 + self._blocks)
        self._pairs: Sequence[Any] = [(*layer(f"net.{at}.wide"), *layer(f"net.{at}.narrow")) for at in blocks]

    def _make_buffers(self, batch: int) -> None:
        super()._make_buffers(batch)
        self._sum_BH, self._narrow_BH = np.empty((2, batch, self._width), np.float32)
        self._wide_BH = np.empty((batch, EXPANSION * self._width), np.float32)

    def _next_state(self, x_BH: np.ndarray, state_B: Mapping[str, Any]) -> tuple[np.ndarray, State]:
        sum_BH, wide_BH, narrow_BH = self._sum_BH, self._wide_BH, self._narrow_BH
        weight, bias = self._first
        np.dot(x_BH, weight, out=sum_BH)
        sum_BH += bias
        for wide, wide_bias, narrow, narrow_bias in self._pairs:
            np.dot(sum_BH, wide, out=wide_BH)
            wide_BH += wide_bias
            np.maximum(wide_BH, 0.0, out=wide_BH)
            np.dot(wide_BH, narrow, out=narrow_BH)
            narrow_BH += narrow_bias
            np.maximum(narrow_BH, 0.0, out=narrow_BH)
            sum_BH += narrow_BH
        np.multiply(sum_BH, sum_BH, out=narrow_BH)
        sum_BH /= np.sqrt(narrow_BH.mean(axis=-1, keepdims=True) + np.float32(RMS_EPS))
        return sum_BH, {}
