"""Epsilon-greedy policies that estimate the value of each discrete action, with torch.

Shape suffixes: B batch, T ticks, H features, N discrete actions.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from tmrl_core.actor.policies.masks import ALLOWED
from tmrl_core.actor.policies.numpy.q_value import EpsilonGreedy, QValueMLP, QValueRNN
from tmrl_core.actor.policies.torch.mlp import TorchPolicy, flatten_batch
from tmrl_core.actor.policies.torch.recurrent import TorchRecurrentPolicy


def best_action(outputs: Mapping[str, Tensor]) -> Tensor:
    """Return the [...] index of the best action by [..., N] values `q`, among those `allowed` if there is a mask."""
    allowed = outputs.get(ALLOWED)
    q_BN = outputs["q"]
    return (q_BN if allowed is None else q_BN.masked_fill(~allowed, -math.inf)).argmax(dim=-1)


class TorchQValues(EpsilonGreedy, TorchPolicy):
    """The values of the actions, and the probabilities of an epsilon-greedy choice."""

    def log_prob(self, outputs_BT: Mapping[str, Tensor], action_BT: Tensor) -> Tensor:
        """Return the [...] log-probabilities of actions; with `epsilon` 0, those that are not the best have -inf."""
        index_BT = action_BT - self._actions.start
        random_BT: float | Tensor = self.epsilon / self._actions.count
        if ALLOWED in outputs_BT:
            allowed_BTN = outputs_BT[ALLOWED]
            is_allowed_BT = allowed_BTN.gather(-1, index_BT.to(torch.int64)[..., None]).squeeze(-1)
            random_BT = self.epsilon * is_allowed_BT / allowed_BTN.sum(dim=-1).clamp(min=1)
        return torch.log(random_BT + (1.0 - self.epsilon) * (best_action(outputs_BT) == index_BT))

    def index(self, action_B: Tensor) -> Tensor:
        """Return [B] int64 indices, from 0, of a batch's actions."""
        return action_B.reshape(-1).to(torch.int64) - self._actions.start


class QValueMLPActor(QValueMLP, TorchQValues):
    """Epsilon-greedy policy on a multi-layer perceptron that estimates the value of each discrete action.

    The other arguments are those of `TorchPolicy`.

    Args:
        action_space: Discrete.
        dueling: the last layer says the state's value and each action's advantage instead (Wang et al.,
            arXiv:1511.06581; both read the same features).
        epsilon: share of random actions, until the trainer sends another.

    Raises:
        ConfigError: a space that this policy cannot take.

    Source: Mnih et al., Nature 518 (2015).
    """

    def forward(self, obs: Any) -> Tensor:
        """Return [B, N] values of all actions, with gradients to the weights; an action mask changes none.

        Args:
            obs: nested as the observation space is, leaves [B, *shape] tensors.
        """
        return self.outputs_of(self.encode(flatten_batch(self.layout, obs)))["q"]


class QValueRNNActor(QValueRNN, TorchRecurrentPolicy, TorchQValues):
    """`QValueMLPActor` with a recurrent layer.

    The other arguments are those of `SquashedGaussianRNNActor`.

    Args:
        action_space: Discrete.
        dueling: as for `QValueMLPActor`.
        epsilon: likewise.

    Raises:
        ConfigError: a space or a setting that this policy cannot take.

    Source: Kapturowski et al., "Recurrent Experience Replay in Distributed Reinforcement Learning", ICLR 2019.
    """
