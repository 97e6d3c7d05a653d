"""Policies of off-policy algorithms with random exploration, made with torch.

`numpy_off_policy` acts on the same weights without it. Shape suffixes: B batch, H features, N discrete actions,
A action elements.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tmrl_core.actor.policies.convolutions import Convolutions
from tmrl_core.actor.policies.exploration import EpsilonGreedy
from tmrl_core.actor.policies.masks import ACTION_MASK, ALLOWED, allowed_indices
from tmrl_core.actor.policies.spaces import action_bounds, discrete_actions
from tmrl_core.actor.policies.torch.mlp import TorchMLPActor, flatten_batch


def best_action(outputs: Mapping[str, Tensor]) -> Tensor:
    """Return the [...] index of the best action by [..., N] values `q`, among those `allowed` if there is a mask."""
    allowed = outputs.get(ALLOWED)
    q_BN = outputs["q"]
    return (q_BN if allowed is None else q_BN.masked_fill(~allowed, -math.inf)).argmax(dim=-1)


def dueling_q(value_B1: Tensor, advantage_BN: Tensor) -> Tensor:
    """Return [B, N] values of actions from the state's value and each action's advantage.

    Source: Wang et al., arXiv:1511.06581, eq. 9.
    """
    return value_B1 + advantage_BN - advantage_BN.mean(dim=-1, keepdim=True)


class QValueHead(EpsilonGreedy, TorchMLPActor):
    """Last layers of an epsilon-greedy policy that estimates the value of each discrete action."""

    def make_head(self, owner: str, dueling: bool, epsilon: float) -> None:
        """Make the layers, on features of the size `features`.

        Raises:
            ConfigError: the action space is not Discrete.
        """
        self._actions = discrete_actions(owner, self.action_space)
        self.dueling = dueling
        self.epsilon = float(epsilon)
        if dueling:
            self.value = nn.Linear(self.features, 1)
            self.advantage = nn.Linear(self.features, self._actions.count)
        else:
            self.q = nn.Linear(self.features, self._actions.count)

    def outputs_of(self, features_BH: Tensor) -> dict[str, Tensor]:
        """Return [..., N] values `q` of the actions, of [..., H] features."""
        if self.dueling:
            return {"q": dueling_q(self.value(features_BH), self.advantage(features_BH))}
        return {"q": self.q(features_BH)}

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


class QValueMLPActor(QValueHead):
    """Epsilon-greedy policy on a multi-layer perceptron that estimates the value of each discrete action.

    The other arguments are those of `TorchMLPActor`.

    Args:
        action_space: Discrete.
        dueling: the last layer says the state's value and each action's advantage instead (Wang et al.,
            arXiv:1511.06581; both read the same features).
        epsilon: share of random actions, until the trainer sends another.

    Raises:
        ConfigError: a space that this policy cannot take.

    Source: Mnih et al., Nature 518 (2015).
    """

    def __init__(
        self,
        observation_space: Any,
        action_space: Any,
        hidden_sizes: Sequence[int] = (256, 256),
        activation: str | Callable[[], nn.Module] = nn.ReLU,
        dueling: bool = False,
        epsilon: float = 1.0,
        convolutions: Convolutions | None = None,
    ) -> None:
        super().__init__(observation_space, action_space, hidden_sizes, activation, convolutions=convolutions)
        self.make_head("QValueMLPActor", dueling, epsilon)

    def forward(self, obs: Any) -> Tensor:
        """Return [B, N] values of all actions, with gradients to the weights; an action mask changes none.

        Args:
            obs: nested as the observation space is, leaves [B, *shape] tensors.
        """
        return self.outputs_of(self.encode(flatten_batch(self.layout, obs)))["q"]

    def action_of(self, outputs_B: Mapping[str, Tensor], deterministic: bool) -> Tensor:
        """Return actions [B], a share `epsilon` of them random."""
        index_B = best_action(outputs_B)
        if not deterministic:
            if ALLOWED in outputs_B:
                allowed_BN = outputs_B[ALLOWED]
                rank_B = (self._uniform(index_B.shape) * allowed_BN.sum(dim=-1)).floor()
                random_B = (allowed_BN.cumsum(dim=-1) > rank_B[:, None]).to(torch.int8).argmax(dim=-1)
            else:
                random_B = (self._uniform(index_B.shape) * self._actions.count).to(torch.int64)
            index_B = torch.where(self._uniform(index_B.shape) < self.epsilon, random_B, index_B)
        return index_B + self._actions.start

    def act(self, obs: Any, test: bool = False) -> Any:
        """Return the action for one observation, collated with a batch dimension of one."""
        allowed = None
        if self.masked:
            allowed = allowed_indices({ACTION_MASK: obs[ACTION_MASK][0].cpu()}, self._actions.count)
        if not test and self._uniform().item() < self.epsilon:
            count = self._actions.count if allowed is None else len(allowed)
            index = int(torch.randint(count, (), generator=self._generator, device=self._own_device).item())
        else:
            with torch.no_grad():
                q_N = self(obs)[0]
                index = int((q_N if allowed is None else q_N[allowed]).argmax().item())
        return self._actions.of(index if allowed is None else int(allowed[index]))


class DeterministicMLPActor(TorchMLPActor):
    """Multi-layer perceptron squashed by tanh into each action element's bounds, with Gaussian exploration noise.

    The other arguments are those of `TorchMLPActor`.

    Args:
        action_space: a Box of floats with finite bounds.
        noise: standard deviation of the Gaussian noise where actions are scaled to [-1, 1], until the trainer sends
            another.
        random: share of actions sampled uniformly from the action space, until the trainer sends another.

    Raises:
        ConfigError: a space that this policy cannot take.

    Source: Fujimoto et al., arXiv:1802.09477, algorithm 1 and section 6.1.
    """

    low: Tensor
    high: Tensor

    def __init__(
        self,
        observation_space: Any,
        action_space: Any,
        hidden_sizes: Sequence[int] = (256, 256),
        activation: str | Callable[[], nn.Module] = nn.ReLU,
        noise: float = 0.1,
        random: float = 1.0,
        convolutions: Convolutions | None = None,
    ) -> None:
        super().__init__(observation_space, action_space, hidden_sizes, activation, convolutions=convolutions)
        bounds = action_bounds("DeterministicMLPActor", action_space)
        self._bounds = bounds
        self.noise = float(noise)
        self.random = float(random)
        self.mu = nn.Linear(self.features, bounds.size)
        # They come from the environment and are not learned, so weights do not hold them.
        low, high = (torch.as_tensor(b, dtype=torch.float32).reshape(bounds.shape) for b in (bounds.low, bounds.high))
        self.register_buffer("low", low, persistent=False)
        self.register_buffer("high", high, persistent=False)

    def forward(self, obs: Any) -> Tensor:
        """Return [B, *action shape] actions within the bounds, with gradients to the weights.

        Args:
            obs: nested as the observation space is, leaves [B, *shape] tensors.
        """
        return self.outputs_of(self.encode(flatten_batch(self.layout, obs)))["action"]

    def outputs_of(self, features_BH: Tensor) -> dict[str, Tensor]:
        """Return `action` [..., *action shape] without noise, within the bounds, of [..., H] features."""
        u_BA = self.mu(features_BH).reshape(*features_BH.shape[:-1], *self._bounds.shape)
        action_BA = self.low + (torch.tanh(u_BA) + 1.0) / 2.0 * (self.high - self.low)
        # Rounding may leave the bounds by one bit, and an environment may check them.
        return {"action": torch.clamp(action_BA, self.low, self.high)}

    def action_of(self, outputs_B: Mapping[str, Tensor], deterministic: bool) -> Tensor:
        """Return actions [B, *action shape] with Gaussian noise; a share `random` of them is uniform."""
        action_B = outputs_B["action"]
        if deterministic:
            return action_B
        noise_B = torch.randn(action_B.shape, generator=self._generator, device=action_B.device)
        noisy_B = action_B + self.noise * noise_B * (self.high - self.low) / 2.0
        return self._mixed(torch.clamp(noisy_B, self.low, self.high), self.low, self.high, self.random)

    def exploration(self) -> dict[str, float]:
        """Return `noise` and `random`."""
        return {"noise": self.noise, "random": self.random}

    def set_exploration(self, parameters: Mapping[str, float]) -> None:
        """Set `noise` and `random`."""
        self.noise = float(parameters.get("noise", self.noise))
        self.random = float(parameters.get("random", self.random))

    def act(self, obs: Any, test: bool = False) -> np.ndarray:
        """Return the action for one observation with a batch dimension of one, as an array of the action space."""
        with torch.no_grad():
            if not test and self._uniform().item() < self.random:
                action = self.low + self._uniform(self.low.shape) * (self.high - self.low)
            else:
                action = self(obs)[0]
                if not test:
                    noise = torch.randn(self.low.shape, generator=self._generator, device=self.low.device)
                    action = action + self.noise * noise * (self.high - self.low) / 2.0
            array: np.ndarray = action.cpu().numpy()
        # In float64, a bound of float32 may lie outside the space.
        return self._bounds.clipped(array.ravel())
