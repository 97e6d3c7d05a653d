"""Policies with a softmax over the values of each choice of an action: the distribution, and NumPy's backend.

Shape suffixes: B batch, M choices, K values of the choice with the most, N values of all choices, R = B * M.
"""

# Theory of operation
#
# An action of several choices (MultiDiscrete; MultiBinary as two values each) has one head with a logit for each value
# of each choice, and one mask as long. Only where a softmax is taken, the vector becomes a table of choices and values,
# padded with forbidden values. A Discrete action is the case of one choice and takes the same path, with equal numbers.

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tmrl_core.actor.policies.convolutions import Convolutions
from tmrl_core.actor.policies.masks import ALLOWED, FORBIDDEN, allowed_values
from tmrl_core.actor.policies.numpy.mlp import NumpyMLPPolicy
from tmrl_core.actor.policies.numpy.recurrent import NumpyRecurrentPolicy
from tmrl_core.actor.policies.policy import Policy
from tmrl_core.actor.policies.spaces import categorical_actions

_BLOCK = 1024
"""Random numbers sampled per call."""


class Categorical(Policy):
    """The distribution. One vector has the logits of all choices."""

    on_policy = True

    def set_actions(self) -> None:
        """Set the choices, the head and the extra `logp`.

        Raises:
            ConfigError: the action space is not Discrete, MultiDiscrete or MultiBinary.
        """
        self._actions = categorical_actions(self.name, self.action_space)
        self.heads = {"logits": self._actions.size}
        self.extras = {"logp": np.float32(0.0)}

    def outputs_of_heads(self, heads: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return `logits`."""
        return heads

    def choose(
        self, outputs_B: Mapping[str, np.ndarray], rng: np.random.Generator, deterministic: bool
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Return actions and their log-probabilities, `logp`."""
        logits_BN, places_MK = outputs_B["logits"].astype(np.float64), self._actions.places
        batch, choices = len(logits_BN), len(self._actions.counts)
        if places_MK is not None:
            logits_BN = np.pad(logits_BN, ((0, 0), (0, 1)), constant_values=FORBIDDEN)[:, places_MK]
        # One row for each choice.
        logits_RK = logits_BN.reshape(batch * choices, -1)
        logits_RK -= logits_RK.max(axis=1, keepdims=True)
        sums_RK = np.exp(logits_RK).cumsum(axis=1)
        if deterministic:
            index_R = logits_RK.argmax(axis=1)
        else:
            # Below the last sum, which rounding may otherwise let it reach.
            index_R = (rng.random((len(sums_RK), 1)) * sums_RK[:, -1:] >= sums_RK[:, :-1]).sum(axis=1)
            if ALLOWED in outputs_B or places_MK is not None:  # the last sum may be that of an earlier value
                index_R = np.minimum(index_R, (sums_RK == sums_RK[:, -1:]).argmax(axis=1))
        logp_R = logits_RK[np.arange(len(index_R)), index_R] - np.log(sums_RK[:, -1])
        logp_B = logp_R.reshape(batch, choices).sum(axis=1)
        return self._actions.of(index_R.reshape(batch, choices)), {"logp": logp_B.astype(np.float32)}


class CategoricalMLP(Categorical):
    """Constructor of `CategoricalMLPActor` on each backend."""

    def __init__(
        self,
        observation_space: Any,
        action_space: Any,
        hidden_sizes: Sequence[int] = (64, 64),
        activation: Any = "tanh",
        normalize_observations: bool = False,
        convolutions: Convolutions | None = None,
        seed: int | None = None,
    ) -> None:
        super().__init__(
            observation_space, action_space, hidden_sizes=hidden_sizes, activation=activation,
            convolutions=convolutions, seed=seed, normalize_observations=normalize_observations,
        )  # fmt: skip


class NumpyCategoricalMLPActor(CategoricalMLP, NumpyMLPPolicy):
    """Acts as `CategoricalMLPActor` does, on weights that it reads from the same safetensors.

    The arguments are those of `CategoricalMLPActor`, with `activation` and `seed` as in `NumpyPolicy`.

    Raises:
        ConfigError: a space or an activation that this policy cannot take.
    """

    def _prepare_act(self) -> None:
        stops = itertools.accumulate(self._actions.counts)
        self._choices = [slice(stop - count, stop) for stop, count in zip(stops, self._actions.counts, strict=True)]
        self._all_allowed = [None] * len(self._choices)
        self._first = int(self._actions.first) if self._actions.first.ndim == 0 else None
        self._uniform: list[float] = []

    def seed(self, seed: int) -> None:
        """Seed the exploration and discard numbers sampled before."""
        super().seed(seed)
        self._uniform.clear()

    def act(self, obs: Any, test: bool = False) -> Any:
        """The action for one observation; `test`: the most likely one."""
        return self.act_with_extras(obs, test)[0]

    def act_with_extras(self, obs: Any, test: bool = False) -> tuple[Any, dict[str, Any]]:
        """The action, with its log-probability `logp`; `test`: the most likely one."""
        allowed = allowed_values(obs, self._actions.counts) if self.masked else self._all_allowed
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


class CategoricalRNN(Categorical):
    """Constructor of `CategoricalRNNActor` on each backend."""

    def __init__(
        self,
        observation_space: Any,
        action_space: Any,
        hidden_sizes: Sequence[int] = (64,),
        activation: Any = "tanh",
        cell: str = "gru",
        cell_size: int = 128,
        state_interval: int = 20,
        normalize_observations: bool = False,
        convolutions: Convolutions | None = None,
        seed: int | None = None,
    ) -> None:
        super().__init__(
            observation_space, action_space, hidden_sizes=hidden_sizes, activation=activation,
            convolutions=convolutions, seed=seed, cell=cell, cell_size=cell_size, state_interval=state_interval,
            normalize_observations=normalize_observations,
        )  # fmt: skip


class NumpyCategoricalRNNActor(CategoricalRNN, NumpyRecurrentPolicy):
    """Acts as `CategoricalRNNActor` does.

    The arguments are those of `CategoricalRNNActor`, with `activation` and `seed` as in `NumpyPolicy`.

    Raises:
        ConfigError: a space or a setting that this policy cannot take.
    """
