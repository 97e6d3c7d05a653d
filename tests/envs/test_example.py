from __future__ import annotations

import functools
import subprocess
import sys
import warnings
from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.utils.env_checker import check_env

from tmrl_core.envs import ExampleEnv

STARTS = (1, 2, 3, 4, 6, 7, 8, 9)
LEFT, RIGHT = ExampleEnv.MOVE_LF, ExampleEnv.MOVE_RT


def at(position: int, *, legacy: bool = False) -> ExampleEnv:
    """An environment whose episode has begun on that place."""
    env = ExampleEnv(legacy=legacy)
    env.reset(seed=0)
    env.position = position
    return env


def play(env: ExampleEnv, actions: Sequence[int]) -> list[tuple[Any, ...]]:
    """`(position, reward, terminated, truncated, dist)` of each step."""
    return [(*found[:4], found[4]["dist"]) for found in (env.step(action) for action in actions)]


def test_constants_and_spaces() -> None:
    env = ExampleEnv()
    found = (env.LF_MIN, env.RT_MAX, env.MOVE_LF, env.MOVE_RT, env.MAX_STEPS)
    assert found == (1, 10, 0, 1, 10)
    assert (env.REWARD_AWAY, env.REWARD_STEP, env.REWARD_GOAL) == (-2, -1, 10)
    assert (env.goal, env.starts) == (5, STARTS)
    assert env.observation_space == spaces.Discrete(11)
    assert env.action_space == spaces.Discrete(2)


def test_rewards_towards_and_at_the_goal() -> None:
    assert play(at(2), [RIGHT, RIGHT, RIGHT]) == [
        (3, -1, False, False, 2),
        (4, -1, False, False, 1),
        (5, 10, True, False, 0),
    ]
    assert play(at(7), [LEFT, LEFT]) == [(6, -1, False, False, -1), (5, 10, True, False, 0)]


def test_away_from_the_goal_and_into_the_walls() -> None:
    assert play(at(2), [LEFT, LEFT]) == [(1, -2, False, False, 4), (1, -2, False, False, 4)]
    assert play(at(9), [RIGHT, RIGHT]) == [(10, -2, False, False, -5), (10, -2, False, False, -5)]


def test_the_tenth_move_truncates() -> None:
    steps = play(at(9), [RIGHT, LEFT] * 5)
    assert [step[3] for step in steps] == [False] * 9 + [True]
    assert not any(step[2] for step in steps)


def test_the_goal_on_the_tenth_move_terminates_and_does_not_truncate() -> None:
    steps = play(at(3), [LEFT, LEFT, LEFT, LEFT, LEFT, LEFT, RIGHT, RIGHT, RIGHT, RIGHT])
    assert steps[-1] == (5, 10, True, False, 0)


@pytest.mark.parametrize("last", [LEFT, RIGHT])
def test_legacy_ends_with_an_eleventh_call_and_a_stale_reward(last: int) -> None:
    steps = play(at(9, legacy=True), [*([RIGHT, LEFT] * 5), last])
    assert [step[3] for step in steps] == [False] * 10 + [True]
    assert steps[-1][:3] == (9, -1, False)  # where the tenth move has led, and its reward once more


def test_legacy_still_terminates_on_the_goal() -> None:
    assert play(at(4, legacy=True), [RIGHT]) == [(5, 10, True, False, 0)]


def test_every_start_occurs_and_a_seed_reproduces_it() -> None:
    def starts(seed: int) -> list[int]:
        env = ExampleEnv()
        first, info = env.reset(seed=seed)
        assert info == {"dist": 5 - first}
        return [first, *(env.reset()[0] for _ in range(199))]

    assert set(starts(3)) == set(STARTS)
    assert starts(3) == starts(3)
    assert starts(3) != starts(4)


def test_steps_outside_an_episode_and_other_actions_are_refused() -> None:
    env = ExampleEnv()
    with pytest.raises(gymnasium.error.ResetNeeded, match="reset"):
        env.step(LEFT)
    env.reset(seed=0)
    with pytest.raises(ValueError, match=r"found 2, allowed: 0 \(left\) and 1 \(right\)"):
        env.step(2)
    env = at(4)
    env.step(RIGHT)
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.step(RIGHT)


def test_render_prints_or_returns_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    env = at(9)
    env.step(RIGHT)
    env.render()
    assert capsys.readouterr().out == "position: 10 reward: -2 info: {'dist': -5}\n"
    env.render_mode = "ansi"
    env.step(LEFT)
    assert env.render() == "position:  9 reward: -1 info: {'dist': -4}"
    assert capsys.readouterr().out == ""
    with pytest.raises(ValueError, match="render_mode: found 'rgb_array'"):
        ExampleEnv(render_mode="rgb_array")


@pytest.mark.parametrize("name", ["example-v0", "Example-v0", "tmrl_core.envs:example-v0"])
@pytest.mark.parametrize("legacy", [False, True])
def test_it_passes_gymnasiums_checker(name: str, legacy: bool, capsys: pytest.CaptureFixture[str]) -> None:
    made = gymnasium.make(name, legacy=legacy)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(made.unwrapped)
    assert isinstance(made.unwrapped, ExampleEnv)
    assert made.unwrapped.legacy is legacy


def test_importing_registers_the_ids_and_nothing_else() -> None:
    code = """
import gymnasium
before = dict(gymnasium.registry)
import tmrl_core.envs
assert {name: spec for name, spec in gymnasium.registry.items() if name in before} == before
print(sorted(set(gymnasium.registry) - set(before)))
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert ended.stdout.strip() == "['Example-v0', 'ShepherdEnv-v0', 'delayed-cue-v0', 'example-v0']"


def expected_return(legacy: bool) -> float:
    """Of moves by a fair coin, over all starts: each position, move and reward weighted, not sampled."""

    @functools.cache
    def ahead(position: int, moves: int, last: float) -> float:
        if legacy and moves == 10:
            return last
        total = 0.0
        for move in (-1, 1):
            place = min(max(position + move, 1), 10)
            if place == 5:
                total += 10.0
                continue
            reward = -1.0 if abs(place - 5) < abs(position - 5) else -2.0
            total += reward
            if legacy or moves < 9:
                total += ahead(place, moves + 1, reward)
        return total / 2

    return sum(ahead(start, 0, 0.0) for start in STARTS) / len(STARTS)


@pytest.mark.parametrize(("legacy", "published"), [(False, -5.163), (True, -5.929)])
def test_random_moves_have_the_expected_return(legacy: bool, published: float) -> None:
    exact = expected_return(legacy)
    assert round(exact, 3) == published
    env = ExampleEnv(legacy=legacy)
    rng = np.random.default_rng(1)
    env.reset(seed=1)
    returns = []
    for _ in range(10_000):
        total, over = 0.0, False
        while not over:
            _, reward, terminated, truncated, _ = env.step(int(rng.integers(2)))
            total += reward
            over = terminated or truncated
        returns.append(total)
        env.reset()
    assert abs(np.mean(returns) - exact) < 4 * np.std(returns) / 100.0


def test_the_shortest_path_has_a_return_of_eight_and_a_half() -> None:
    returns = [
        sum(step[1] for step in play(at(start), [RIGHT if start < 5 else LEFT] * abs(5 - start))) for start in STARTS
    ]
    assert np.mean(returns) == 8.5
