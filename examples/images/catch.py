"""An environment with image observations, and a convolutional network of one's own for it (own_network.yaml)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from tmrl_core.actor import TorchActorModule


class Catch(gymnasium.Env[Any, Any]):
    """A ball falls, and a paddle moves left, stays or moves right. Reward: 1 for a caught ball, else -1."""

    SIZE = 10
    observation_space = spaces.Box(0, 255, (SIZE, SIZE), np.uint8)
    action_space = spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.row, self.column = 0, int(self.np_random.integers(self.SIZE))
        self.paddle = self.SIZE // 2
        return self.image(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.paddle = min(max(self.paddle + int(action) - 1, 0), self.SIZE - 1)
        self.row += 1
        down = self.row == self.SIZE - 1
        caught = abs(self.paddle - self.column) <= 1  # the paddle is three wide
        reward = (1.0 if caught else -1.0) if down else 0.0
        return self.image(), reward, down, False, {}

    def image(self) -> np.ndarray:
        image = np.zeros((self.SIZE, self.SIZE), np.uint8)
        image[-1, max(self.paddle - 1, 0) : self.paddle + 2] = 128
        image[self.row, self.column] = 255
        return image


class ConvQActor(TorchActorModule):
    """Estimate the value of each action from an image [H, W] of bytes. Workers create this class too and need torch.

    Args:
        observation_space: a Box of bytes [H, W].
        action_space: Discrete.
        channels: number of channels of the convolutions.
        width: width of the hidden layer after them.
    """

    def __init__(self, observation_space: Any, action_space: Any, channels: int = 16, width: int = 128) -> None:
        super().__init__(observation_space, action_space)
        self.first, self.count = int(action_space.start), int(action_space.n)
        self.epsilon = 1.0
        height, breadth = observation_space.shape
        self.net = nn.Sequential(
            nn.Conv2d(1, channels, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(channels, channels, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(channels * ((height + 1) // 2) * ((breadth + 1) // 2), width),
            nn.ReLU(),
            nn.Linear(width, self.count),
        )

    def forward(self, obs: Tensor) -> Tensor:
        """Return the values of the actions [B, N] for images [B, H, W] of bytes."""
        values: Tensor = self.net(obs.unsqueeze(1).to(torch.float32) / 255.0)
        return values

    def index(self, action_B: Tensor) -> Tensor:
        """Return the index of each action [B] for DQNAgent."""
        return action_B.reshape(-1).to(torch.int64) - self.first

    def act(self, obs: Tensor, test: bool = False) -> Any:
        """Return the action for one image [1, H, W]."""
        if not test and torch.rand(()).item() < self.epsilon:
            return np.int64(self.first + torch.randint(self.count, ()).item())
        return np.int64(self.first + self(obs)[0].argmax().item())

    def exploration(self) -> dict[str, float]:
        """Return the exploration parameters that the trainer sends with each version of the weights."""
        return {"epsilon": self.epsilon}

    def set_exploration(self, parameters: Mapping[str, float]) -> None:
        """Set the exploration parameters that a worker has received."""
        self.epsilon = float(parameters.get("epsilon", self.epsilon))


class ConvQNetwork(nn.Module):
    """The model that DQNAgent trains. Its `actor` is the network."""

    def __init__(self, observation_space: Any, action_space: Any, **settings: Any) -> None:
        super().__init__()
        self.actor = ConvQActor(observation_space, action_space, **settings)
