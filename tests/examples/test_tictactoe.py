"""The tic-tac-toe example: learned by self-play, and its results counted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pytest
import torch

from tmrl_core.config import load
from tmrl_core.multiagent import PettingZooEnvironment
from tmrl_core.multiagent.from_config import environment_maker, make_manager

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "tictactoe"


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.syspath_prepend(str(EXAMPLE))
    import tictactoe  # type: ignore[import-not-found,unused-ignore]

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield tictactoe
    torch.set_num_threads(threads)


def test_a_few_games_of_self_play_improve_the_play(example: Any) -> None:
    torch.manual_seed(0)
    before = fmean(example.against_random(example.dqn().get_model(), 100, seed=5))
    after = fmean(example.against_random(example.train(120, seed=0), 100, seed=5))
    assert after > max(0.65, before + 0.05)


@pytest.mark.timeout(600)  # 90 s of processor time, on a machine that does other things too
@pytest.mark.full
def test_self_play_beats_a_random_player(example: Any) -> None:
    assert fmean(example.against_random(example.train(example.EPISODES, seed=3), 1_000, seed=5_000_000)) >= 0.9


def test_the_score_is_the_result_of_the_seat_that_the_seed_gives(example: Any) -> None:
    env, game = example.AgainstRandom(), PettingZooEnvironment("classic/tictactoe-v3")
    scores = set()
    for seed in range(60):
        env.set_seed(seed)
        seat, actions = example.PLAYERS[seed % 2], []
        _, turn, done = env.step(None)
        while not done:
            assert turn.agent == seat
            actions.append(int(turn.state["action_mask"].argmax()))
            _, turn, done = env.step(actions[-1])
        # The same game without the class: the same draws are the opponent's moves.
        rng, own = np.random.default_rng(seed), iter(actions)
        _, other, done = game.step(None)
        while not done:
            assert other is not None
            mine = other.agent == seat
            _, other, done = game.step(next(own) if mine else rng.choice(np.flatnonzero(other.state["action_mask"])))
        assert env.metrics["score"] == {1.0: 1.0, 0.0: 0.5, -1.0: 0.0}[game.metrics["returns"][seat]]
        scores.add(env.metrics["score"])
    assert scores == {0.0, 0.5, 1.0}


def test_without_seeds_the_seats_alternate(example: Any) -> None:
    env = example.AgainstRandom()
    env.set_seed(1)
    assert [env.step(None)[1].agent for _ in range(4)] == ["player_2", "player_1", "player_2", "player_1"]


def test_the_configuration_makes_environment_and_managers(example: Any) -> None:
    config = load(EXAMPLE / "tictactoe.yaml")
    env = environment_maker(config)()
    trained, acting = make_manager(config, "training"), make_manager(config, "inference")
    assert isinstance(env, PettingZooEnvironment)
    assert [*trained.agents] == [*acting.agents] == [*example.PLAYERS] == [*env.agents]
    assert [*trained.policies] == ["player"]
    acting.load_models(trained.get_models())
