"""Agents of the mode `advice` for tests, and clients that play with them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tmrl_core.config import Config, from_values
from tmrl_core.gateway.advice.agent import AdviceAgent, AdvicePlayer
from tmrl_core.gateway.advice.from_config import advice_agent

ALGORITHMS = {
    "DQNAgent": ("QValueMLPActor", 2),
    "DiscreteSacAgent": ("CategoricalMLPActor", 2),
    "SacAgent": ("SquashedGaussianMLPActor", [2, -1, 3]),
    "REDQSACAgent": ("SquashedGaussianMLPActor", [2, -1, 3]),
    "FlashSACAgent": ("SquashedGaussianResidualActor", [2, -1, 3]),
    "TD3Agent": ("DeterministicMLPActor", [2, -1, 3]),
    "DDPGAgent": ("DeterministicMLPActor", [2, -1, 3]),
}
EPISODE = 5


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Learners set it for themselves. Elsewhere, networks this small are faster with one thread too."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def advice_config(folder: Path, algorithm: str = "DQNAgent", seed: int | None = 0, **settings: Any) -> Config:
    actor, action_space = ALGORITHMS[algorithm]
    sizes = {"width": 8, "critic_width": 8} if algorithm == "FlashSACAgent" else {"hidden_sizes": [16]}
    values = {
        "mode": "advice",
        "observation_space": [2, -1, 1],
        "action_space": action_space,
        "actor": {"cls": f"tmrl_core.actor:{actor}"},
        "agent": {"cls": f"tmrl_core.training:{algorithm}", "kwargs": sizes},
        "start_training": 20,
        "batch_size": 16,
        **settings,
    }
    return from_values({"run": {"folder": str(folder), "seed": seed}, "gateway": {"agents": {"game": values}}})


MakeAgent = Callable[..., AdviceAgent]


@pytest.fixture
def make_agent(tmp_path: Path) -> MakeAgent:
    """Make an agent with the given algorithm and settings, in the same run each time."""

    def make(*args: Any, **settings: Any) -> AdviceAgent:
        return advice_agent(advice_config(tmp_path, *args, **settings), "game")

    return make


class Client:
    """A client with a game of five steps: the action should have the sign of the observation's first element.

    Args:
        player: of its session.
        seed: of its observations.

    Attributes:
        actions: received ones.
        returns: of finished episodes.
    """

    def __init__(self, player: AdvicePlayer, seed: int = 0) -> None:
        self.player = player
        self.actions: list[Any] = []
        self.returns: list[float] = []
        self._rng = np.random.default_rng(seed)

    def observe(self) -> Any:
        return self._rng.uniform(-1, 1, 2).astype(np.float32)

    async def play(self, episodes: int) -> None:
        for _ in range(episodes):
            obs, total = self.observe(), 0.0
            action = await self.player.begin(obs, {})
            for step in range(1, EPISODE + 1):
                self.actions.append(action)
                goes_right = float(np.asarray(action).ravel()[0]) > 0.5
                reward = float(goes_right == (obs[0] > 0))
                total += reward
                obs = self.observe()
                action = await self.player.step(obs, reward, step == EPISODE, False, {"left": EPISODE - step})
            assert action is None
            self.returns.append(total)
