"""The policies of `off_policy_policies` without torch: the same weights, a fraction of the time per action."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from tmrl_core.actor.policies.convolutions import Convolutions
from tmrl_core.actor.policies.exploration import EpsilonGreedy
from tmrl_core.actor.policies.masks import allowed_indices
from tmrl_core.actor.policies.numpy.mlp import NumpyMLPActor
from tmrl_core.actor.policies.spaces import action_bounds, discrete_actions


class NumpyQValueMLPActor(EpsilonGreedy, NumpyMLPActor):
    """Acts as `QValueMLPActor` does, on weights that it reads from the same safetensors.

    The arguments are those of `QValueMLPActor`, with `activation` and `seed` as in `NumpyMLPActor`.

    Raises:
        ConfigError: a space or an activation that this policy cannot take.
    """

    owner: ClassVar[str] = "QValueMLPActor"

    def __init__(
        self,
        observation_space: Any,
        action_space: Any,
        hidden_sizes: Sequence[int] = (256, 256),
        activation: Any = "relu",
        dueling: bool = False,
        epsilon: float = 1.0,
        seed: int | None = None,
        convolutions: Convolutions | None = None,
    ) -> None:
        self._actions = discrete_actions(self.owner, action_space)
        count = self._actions.count
        heads = {"value": 1, "advantage": count} if dueling else {"q": count}
        super().__init__(
            observation_space, action_space, heads, hidden_sizes, activation, seed, convolutions=convolutions
        )
        # The best action has the largest advantage: the value, and the advantages' mean, are the same for all.
        self._ranked = self._heads[self._columns["advantage" if dueling else "q"]]
        self.epsilon = float(epsilon)

    def act(self, obs: Any, test: bool = False) -> Any:
        """The action for one observation; `test`: the best one."""
        if self._masked:
            return self._act_masked(obs, test)
        if not test and self._rng.random() < self.epsilon:
            return self._actions.of(int(self._rng.integers(self._actions.count)))
        self._forward(obs)
        return self._actions.of(int(self._ranked.argmax()))

    def _act_masked(self, obs: Any, test: bool) -> Any:
        allowed = allowed_indices(obs, self._actions.count)
        if not test and self._rng.random() < self.epsilon:
            return self._actions.of(int(allowed[self._rng.integers(len(allowed))]))
        self._forward(obs)
        return self._actions.of(int(allowed[self._ranked[allowed].argmax()]))


class NumpyDeterministicMLPActor(NumpyMLPActor):
    """Acts as `DeterministicMLPActor` does, on weights that it reads from the same safetensors.

    The arguments are those of `DeterministicMLPActor`, with `activation` and `seed` as in `NumpyMLPActor`.

    Raises:
        ConfigError: a space or an activation that this policy cannot take.
    """

    owner: ClassVar[str] = "DeterministicMLPActor"

    def __init__(
        self,
        observation_space: Any,
        action_space: Any,
        hidden_sizes: Sequence[int] = (256, 256),
        activation: Any = "relu",
        noise: float = 0.1,
        random: float = 1.0,
        seed: int | None = None,
        convolutions: Convolutions | None = None,
    ) -> None:
        self._bounds = action_bounds(self.owner, action_space)
        super().__init__(
            observation_space,
            action_space,
            {"mu": self._bounds.size},
            hidden_sizes,
            activation,
            seed,
            convolutions=convolutions,
        )
        self.noise = float(noise)
        self.random = float(random)

    def exploration(self) -> dict[str, float]:
        """`noise` and `random`."""
        return {"noise": self.noise, "random": self.random}

    def set_exploration(self, parameters: Mapping[str, float]) -> None:
        """Take `noise` and `random` over."""
        self.noise = float(parameters.get("noise", self.noise))
        self.random = float(parameters.get("random", self.random))

    def act(self, obs: Any, test: bool = False) -> np.ndarray:
        """The action for one observation, a new array of the action space; `test`: without noise."""
        low, high = self._bounds.low, self._bounds.high
        if not test and self._rng.random() < self.random:
            action = self._rng.uniform(low, high)
        else:
            scaled = np.tanh(self._forward(obs), dtype=np.float64)
            if not test:
                scaled += self.noise * self._rng.standard_normal(self._bounds.size)
            action = np.clip(low + (scaled + 1.0) * 0.5 * (high - low), low, high)
        result: np.ndarray = action.astype(self._bounds.dtype).reshape(self._bounds.shape)
        return result
