"""Tic-tac-toe of PettingZoo, learned by self-play: both players share one policy.

    python examples/tictactoe/tictactoe.py

`tictactoe.yaml` learns it with workers over TLS. Needs the extras `trainer`, `marl` and `render` (pygame-ce, which
PettingZoo's board games import).
"""

from __future__ import annotations

import argparse
import time
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from tmrl_core.multiagent import (
    DQN,
    Actor,
    AgentManager,
    AgentParameters,
    Assembly,
    KStepExperienceShaper,
    Learner,
    LinearExplorer,
    PettingZooEnvironment,
    PolicySettings,
    episode_seeds,
)
from tmrl_core.multiagent.pettingzoo import Turn
from tmrl_core.networking.protocol.messages import Blob

PLAYERS = ("player_1", "player_2")
EPISODES = 5_000


class Values(nn.Module):
    """The value of each square for the player whose turn it is. Its own marks are plane 0, the opponent's plane 1."""

    def __init__(self, hidden: int = 128) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(18, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, 9)
        )

    def forward(self, board_B: Tensor) -> Tensor:
        """Return [B, 9] values of boards [B, 3, 3, 2]."""
        values_BN: Tensor = self.layers(board_B.flatten(1).float())
        return values_BN


def dqn(lr: float = 1e-3, target_interval: int = 200) -> DQN:
    """Return the algorithm of the shared policy; a configuration names this function."""
    return DQN({"q": Values()}, (torch.optim.Adam, {"lr": lr}), {}, {"target_interval": target_interval})


class Players(AgentManager):
    """The players' manager, with the discount of this game."""

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, experience_shaper=KStepExperienceShaper(gamma=0.95), **keywords)


def self_play(mode: Literal["inference", "training"], episodes: int = EPISODES) -> Players:
    """Return a manager whose players share one policy and one memory."""
    parameters = AgentParameters(capacity=50_000, batch_size=128, min_experiences=300, updates_per_episode=3)
    assembly = Assembly(
        agents=dict.fromkeys(PLAYERS, "player"),
        policies={"player": PolicySettings(algorithm=dqn, parameters=parameters)},
    )
    explorer = LinearExplorer(PLAYERS, initial=1.0, final=0.1, episodes=0.6 * episodes)
    return Players(mode, PLAYERS, config=assembly, explorer=explorer)


class AgainstRandom(PettingZooEnvironment):
    """A game against a random player, for tests.

    An even seed gives the learned player the first seat. Games without a new seed alternate the seats.

    The performance has the `score` 1 for a win and 0.5 for a draw.
    """

    def __init__(self) -> None:
        super().__init__("classic/tictactoe-v3")
        self._rng, self._seat, self._seeded = np.random.default_rng(), PLAYERS[1], False

    def set_seed(self, seed: int) -> None:
        """Seed the random player, and choose the seats."""
        super().set_seed(seed)
        self._rng, self._seat, self._seeded = np.random.default_rng(seed), PLAYERS[seed % 2], True

    def step(self, action: Any) -> tuple[dict[str, Any], Turn | None, bool]:
        """Execute an action and go on to the learned player's next turn."""
        if action is None:
            if not self._seeded:
                self._seat = PLAYERS[1 - PLAYERS.index(self._seat)]
            self._seeded = False
        metrics, turn, done = super().step(action)
        while turn is not None and turn.agent != self._seat:
            allowed = np.flatnonzero(turn.state["action_mask"])
            metrics, turn, done = super().step(self._rng.choice(allowed))
        return metrics, turn, done

    @property
    def metrics(self) -> dict[str, Any]:
        """The game's result."""
        found = super().metrics
        return {**found, "score": 0.5 + found["returns"].get(self._seat, 0.0) / 2}


def against_random(model: Blob, games: int, seed: int) -> list[float]:
    """Return the scores of games against a random player. The seats alternate."""
    actor = Actor(AgainstRandom(), self_play("inference"))
    actor.agents.load_models({"player": model})
    played = (actor.roll_out(seed=seed + game, test=True)[0] for game in range(games))
    return [performance["local"]["score"] for performance in played]


def train(episodes: int, seed: int) -> Blob:
    """Return the model after a number of games of self-play."""
    torch.manual_seed(seed)
    actor = Actor(PettingZooEnvironment("classic/tictactoe-v3"), self_play("inference"))
    learner = Learner(self_play("training", episodes), actor, seed=episode_seeds(seed))
    learner.train(episodes)
    return learner.agents.get_models()["player"]


def main() -> None:
    """Train, and play against a random player."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--episodes", type=int, default=EPISODES, help="games of training")
    parser.add_argument("--games", type=int, default=1_000, help="games against a random player")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    began = time.process_time()
    model = train(arguments.episodes, arguments.seed)
    seconds = time.process_time() - began
    scores = against_random(model, arguments.games, seed=1_000_000)
    won, drawn, lost = (scores.count(score) for score in (1.0, 0.5, 0.0))
    print(
        f"seed {arguments.seed}: {won} won, {drawn} drawn, {lost} lost against a random player: "
        f"{sum(scores) / len(scores):.1%} ({arguments.episodes} games of training, {seconds:.0f} s of processor time)"
    )


if __name__ == "__main__":
    main()
