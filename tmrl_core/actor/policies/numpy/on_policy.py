"""The on-policy policies without torch: the same weights, a fraction of the time per action."""

from __future__ import annotations

import itertools
import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from tmrl_core.actor.policies.convolutions import Convolutions
from tmrl_core.actor.policies.masks import allowed_values
from tmrl_core.actor.policies.numpy.mlp import NumpyMLPActor
from tmrl_core.actor.policies.spaces import box_bounds, categorical_actions

_BLOCK = 1024
"""Random numbers sampled per call."""


class NumpyOnPolicyActor(NumpyMLPActor):
    """A `NumpyMLPActor` with one head, which returns the log-density of its actions.

    The other arguments are those of `NumpyMLPActor`.

    Args:
        outputs: number of outputs of the head.
        normalize_observations: True: normalize by the mean and the standard deviation that are sent with the weights.

    Raises:
        ConfigError: a space or an activation is not supported.
    """

    head: ClassVar[str]
    """Name of the last layer."""

    def __init__(
        self,
        observation_space: Any,
        action_space: Any,
        hidden_sizes: Sequence[int] = (64, 64),
        activation: Any = "tanh",
        seed: int | None = None,
        *,
        outputs: int,
        normalize_observations: bool = False,
        parameters: dict[str, np.ndarray] | None = None,
        convolutions: Convolutions | None = None,
    ) -> None:
        heads = {self.head: outputs}
        super().__init__(
            observation_space,
            action_space,
            heads,
            hidden_sizes,
            activation,
            seed,
            parameters,
            normalize_observations,
            convolutions=convolutions,
        )

    @abstractmethod
    def act_with_extras(self, obs: Any, test: bool = False) -> tuple[Any, dict[str, Any]]:
        """The action, with its log-density `logp`."""

    def act(self, obs: Any, test: bool = False) -> Any:
        """The action for one observation; `test`: the most likely one."""
        return self.act_with_extras(obs, test)[0]

    def reset_extras(self) -> dict[str, Any]:
        """Zeros."""
        return {"logp": np.float32(0.0)}


class NumpyCategoricalMLPActor(NumpyOnPolicyActor):
    """Acts as `CategoricalMLPActor` does.

    The other arguments are those of `NumpyOnPolicyActor`.

    Args:
        action_space: Discrete, MultiDiscrete or MultiBinary.

    Raises:
        ConfigError: a space or an activation that this policy cannot take.
    """

    owner = "CategoricalMLPActor"
    head = "logits"

    def __init__(
        self,
        observation_space: Any,
        action_space: Any,
        hidden_sizes: Sequence[int] = (64, 64),
        activation: Any = "tanh",
        seed: int | None = None,
        normalize_observations: bool = False,
        convolutions: Convolutions | None = None,
    ) -> None:
        self._actions = categorical_actions(self.owner, action_space)
        stops = itertools.accumulate(self._actions.counts)
        self._choices = [slice(stop - count, stop) for stop, count in zip(stops, self._actions.counts, strict=True)]
        self._all_allowed = [None] * len(self._choices)
        self._first = int(self._actions.first) if self._actions.first.ndim == 0 else None
        self._uniform: list[float] = []
        super().__init__(
            observation_space,
            action_space,
            hidden_sizes,
            activation,
            seed,
            outputs=self._actions.size,
            normalize_observations=normalize_observations,
            convolutions=convolutions,
        )

    def seed(self, seed: int) -> None:
        """Seed the exploration and discard numbers sampled before."""
        super().seed(seed)
        self._uniform.clear()

    def act_with_extras(self, obs: Any, test: bool = False) -> tuple[Any, dict[str, Any]]:
        """The action, with its log-probability `logp`; `test`: the most likely one."""
        allowed = allowed_values(obs, self._actions.counts) if self._masked else self._all_allowed
        outputs = self._forward(obs)
        if self._first is not None:  # Discrete
            index, logp = self._choose(outputs, allowed[0], test)
            return np.int64(index + self._first), {"logp": np.float32(logp)}
        chosen = [self._choose(outputs[at], values, test) for at, values in zip(self._choices, allowed, strict=True)]
        action = self._actions.of(np.array([index for index, _ in chosen]))
        return action, {"logp": np.float32(sum(logp for _, logp in chosen))}

    def _choose(self, logits_N: np.ndarray, allowed: np.ndarray | None, test: bool) -> tuple[int, float]:
        """Return the index of a value of one choice, and its log-probability.

        Args:
            logits_N: of all values.
            allowed: indices of the values that are allowed; None: all are.
            test: take the most likely one.
        """
        logits = (logits_N if allowed is None else logits_N[allowed]).tolist()
        top = max(logits)
        # A few numbers: Python's floats are faster than calls to NumPy, and have more digits.
        weights = [math.exp(logit - top) for logit in logits]
        total = sum(weights)
        if test:
            index = logits.index(top)
        else:
            if not self._uniform:
                self._uniform = self._rng.random(_BLOCK).tolist()
            left = self._uniform.pop() * total
            index = 0
            while index < len(weights) - 1 and left >= weights[index]:
                left -= weights[index]
                index += 1
        logp = logits[index] - top - math.log(total)
        return index if allowed is None else int(allowed[index]), logp


class NumpyGaussianMLPActor(NumpyOnPolicyActor):
    """Acts as `GaussianMLPActor` does.

    The other arguments are those of `NumpyOnPolicyActor`.

    Args:
        action_space: a Box of floats; infinite bounds clip nothing.
        log_std: logarithm of the initial standard deviation of each element.

    Raises:
        ConfigError: a space or an activation that this policy cannot take.
    """

    owner = "GaussianMLPActor"
    head = "mu"

    def __init__(
        self,
        observation_space: Any,
        action_space: Any,
        hidden_sizes: Sequence[int] = (64, 64),
        activation: Any = "tanh",
        log_std: float = 0.0,
        seed: int | None = None,
        normalize_observations: bool = False,
        convolutions: Convolutions | None = None,
    ) -> None:
        self._bounds = box_bounds(self.owner, action_space)
        size = self._bounds.size
        super().__init__(
            observation_space,
            action_space,
            hidden_sizes,
            activation,
            seed,
            outputs=size,
            normalize_observations=normalize_observations,
            parameters={"log_std": np.full(size, log_std, np.float32)},
            convolutions=convolutions,
        )

    def _take_over(self, weights: Mapping[str, np.ndarray]) -> None:
        super()._take_over(weights)
        log_std = weights["log_std"].astype(np.float64)
        self._std = np.exp(log_std)
        self._constant = float(log_std.sum() + 0.5 * log_std.size * math.log(2.0 * math.pi))

    def act_with_extras(self, obs: Any, test: bool = False) -> tuple[Any, dict[str, Any]]:
        """Return the action within the bounds, and the log-density `logp` of the unclipped one, the extra `drawn`."""
        sampled = self._forward(obs).astype(np.float64)
        logp = -self._constant
        if not test:
            noise = self._rng.standard_normal(sampled.size)
            sampled = sampled + self._std * noise
            logp -= 0.5 * float(noise @ noise)
        return self._bounds.clipped(sampled), {"logp": np.float32(logp), "drawn": sampled.astype(np.float32)}

    def reset_extras(self) -> dict[str, Any]:
        """Zeros."""
        return {**super().reset_extras(), "drawn": np.zeros(self._bounds.size, np.float32)}
