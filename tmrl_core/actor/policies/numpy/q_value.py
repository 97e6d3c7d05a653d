"""Epsilon-greedy policies that estimate the value of each discrete action: the distribution, and NumPy's backend.

Shape suffixes: B batch, N discrete actions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tmrl_core.actor.policies.convolutions import Convolutions
from tmrl_core.actor.policies.masks import ALLOWED, allowed_indices, limited_choice
from tmrl_core.actor.policies.numpy.mlp import NumpyMLPPolicy
from tmrl_core.actor.policies.numpy.recurrent import NumpyRecurrentPolicy
from tmrl_core.actor.policies.policy import Policy
from tmrl_core.actor.policies.spaces import discrete_actions


def dueling_q(value_B1: Any, advantage_BN: Any) -> Any:
    """Return [..., N] values of actions from the state's value and each action's advantage, arrays or tensors.

    Source: Wang et al., arXiv:1511.06581, eq. 9.
    """
    return value_B1 + advantage_BN - advantage_BN.mean(-1)[..., None]


class EpsilonGreedy(Policy):
    """The actions: the best one, and a share `epsilon` of random ones."""

    explored_by = ("epsilon",)
    epsilon: float

    def set_actions(self, dueling: bool, epsilon: float) -> None:
        """Set the actions, heads and the exploration.

        Raises:
            ConfigError: the action space is not Discrete.
        """
        self._actions = discrete_actions(self.name, self.action_space)
        count = self._actions.count
        self.heads = {"value": 1, "advantage": count} if dueling else {"q": count}
        self.dueling = dueling
        self.epsilon = float(epsilon)

    def outputs_of_heads(self, heads: dict[str, Any]) -> dict[str, Any]:
        """Return values `q` of the actions."""
        return {"q": dueling_q(heads["value"], heads["advantage"])} if self.dueling else heads

    def choose(
        self, outputs_B: Mapping[str, np.ndarray], rng: np.random.Generator, deterministic: bool
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Return actions without extras."""
        allowed_BN = outputs_B.get(ALLOWED)
        q_BN = outputs_B["q"]
        index_B = (q_BN if allowed_BN is None else np.where(allowed_BN, q_BN, -np.inf)).argmax(axis=1)
        if not deterministic:
            at = rng.random(len(index_B)) < self.epsilon
            if allowed_BN is None:
                index_B[at] = rng.integers(self._actions.count, size=int(at.sum()))
            else:
                index_B[at] = limited_choice(allowed_BN[at], rng)
        return index_B + self._actions.start, {}


class QValueMLP(EpsilonGreedy):
    """Constructor of `QValueMLPActor` on each backend."""

    def __init__(
        self,
        observation_space: Any,
        action_space: Any,
        hidden_sizes: Sequence[int] = (256, 256),
        activation: Any = "relu",
        dueling: bool = False,
        epsilon: float = 1.0,
        convolutions: Convolutions | None = None,
        seed: int | None = None,
    ) -> None:
        super().__init__(
            observation_space, action_space, hidden_sizes=hidden_sizes, activation=activation,
            convolutions=convolutions, seed=seed, dueling=dueling, epsilon=epsilon,
        )  # fmt: skip


class NumpyQValueMLPActor(QValueMLP, NumpyMLPPolicy):
    """Acts as `QValueMLPActor` does, on weights that it reads from the same safetensors.

    The arguments are those of `QValueMLPActor`, with `activation` and `seed` as in `NumpyPolicy`.

    Raises:
        ConfigError: a space or an activation that this policy cannot take.
    """

    def _prepare_act(self) -> None:
        # The best action has the largest advantage: the value, and the advantages' mean, are the same for all.
        self._ranked = self._heads[self._columns["advantage" if self.dueling else "q"]]

    def act(self, obs: Any, test: bool = False) -> Any:
        """The action for one observation; `test`: the best one."""
        allowed = allowed_indices(obs, self._actions.count) if self.masked else None
        if not test and self._rng.random() < self.epsilon:
            index = int(self._rng.integers(self._actions.count if allowed is None else len(allowed)))
        else:
            self._forward(obs)
            index = int((self._ranked if allowed is None else self._ranked[allowed]).argmax())
        return self._actions.of(index if allowed is None else int(allowed[index]))


class QValueRNN(EpsilonGreedy):
    """Constructor of `QValueRNNActor` on each backend."""

    def __init__(
        self,
        observation_space: Any,
        action_space: Any,
        hidden_sizes: Sequence[int] = (128,),
        activation: Any = "relu",
        cell: str = "gru",
        cell_size: int = 128,
        state_interval: int = 20,
        dueling: bool = False,
        epsilon: float = 1.0,
        convolutions: Convolutions | None = None,
        seed: int | None = None,
    ) -> None:
        super().__init__(
            observation_space, action_space, hidden_sizes=hidden_sizes, activation=activation,
            convolutions=convolutions, seed=seed, cell=cell, cell_size=cell_size, state_interval=state_interval,
            dueling=dueling, epsilon=epsilon,
        )  # fmt: skip


class NumpyQValueRNNActor(QValueRNN, NumpyRecurrentPolicy):
    """Acts as `QValueRNNActor` does.

    The arguments are those of `QValueRNNActor`, with `activation` and `seed` as in `NumpyPolicy`.

    Raises:
        ConfigError: a space or a setting that this policy cannot take.
    """
