from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from tmrl_core.errors import ConfigError
from tmrl_core.multiagent.exploration import Explorer, LinearExplorer, TwoPhaseLinearExplorer


def course(explorer: Explorer, updates: int, agent: str = "a", score: float = 0.0) -> list[float]:
    """The share of an agent before the first update and after each."""
    shares = [explorer.epsilons[agent]]
    for _ in range(updates):
        explorer.update(score)
        shares.append(explorer.epsilons[agent])
    return shares


def test_a_plain_explorer_changes_nothing_by_itself() -> None:
    explorer = Explorer(["a", "b"], {"a": 0.3, "b": 0.4})
    assert course(explorer, 2) == [0.3] * 3
    assert Explorer(["a"]).epsilons == {"a": 0.0}


def test_assigned_shares_replace_those_that_they_name() -> None:
    explorer = Explorer(["a", "b"], 0.5)
    before = explorer.epsilons
    explorer.epsilons = {"b": np.float32(0.25)}
    assert dict(explorer.epsilons) == {"a": 0.5, "b": 0.25}
    assert type(explorer.epsilons["b"]) is float
    assert dict(before) == {"a": 0.5, "b": 0.5}, "what was read stays as it was"


@pytest.mark.parametrize("value", [-0.01, 1.01, math.nan, math.inf, None, "0.5", True])
def test_shares_that_are_no_numbers_from_0_to_1_are_refused(value: Any) -> None:
    explorer = Explorer(["a", "b"], 0.5)
    with pytest.raises(ConfigError, match=r"epsilons\['b'\] must be a number from 0 to 1, got"):
        explorer.epsilons = {"a": 0.1, "b": value}
    assert dict(explorer.epsilons) == {"a": 0.5, "b": 0.5}
    with pytest.raises(ConfigError, match="epsilon must be a number from 0 to 1"):
        Explorer(["a"], value)


def test_unknown_agents_are_refused() -> None:
    explorer = Explorer(["a", "b"], 0.5)
    with pytest.raises(ConfigError, match=r"no agents of this explorer: \['c'\]; its agents are \['a', 'b'\]"):
        explorer.epsilons = {"a": 0.1, "c": 0.1}
    assert explorer.epsilons["a"] == 0.5
    with pytest.raises(ConfigError, match=r"no agents of this explorer: \['c'\]"):
        Explorer(["a"], {"a": 0.1, "c": 0.1})
    with pytest.raises(ConfigError, match=r"epsilon has no value for \['b'\]"):
        Explorer(["a", "b"], {"a": 0.1})


def test_shares_fall_linearly_and_stay() -> None:
    explorer = LinearExplorer(["a", "b"], initial={"a": 1.0, "b": 0.5}, final=0.2, episodes={"a": 4, "b": 1})
    assert course(explorer, 6) == pytest.approx([1.0, 0.8, 0.6, 0.4, 0.2, 0.2, 0.2])
    explorer = LinearExplorer(["a", "b"], initial={"a": 1.0, "b": 0.5}, final=0.2, episodes={"a": 4, "b": 1})
    assert course(explorer, 2, "b") == pytest.approx([0.5, 0.2, 0.2])


def test_shares_follow_two_lines() -> None:
    explorer = TwoPhaseLinearExplorer(
        ["a", "b"],
        initial=1.0,
        middle={"a": 0.4, "b": 0.5},
        final=0.0,
        first_episodes=2,
        second_episodes={"a": 4, "b": 1},
    )
    assert course(explorer, 7) == pytest.approx([1.0, 0.7, 0.4, 0.3, 0.2, 0.1, 0.0, 0.0])
    assert explorer.epsilons["b"] == 0.0


def test_an_assigned_share_holds_until_the_next_update() -> None:
    explorer = LinearExplorer(["a"], initial=1.0, final=0.0, episodes=4)
    explorer.update(0.0)
    explorer.epsilons = {"a": 0.1}
    assert course(explorer, 1) == pytest.approx([0.1, 0.5])


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"episodes": 0}, "episodes must be a number from 1"),
        ({"episodes": math.nan}, "episodes must be a number from 1"),
        ({"episodes": 4, "final": 2.0}, "final must be a number from 0 to 1"),
        ({"episodes": 4, "initial": {"b": 1.0}}, r"initial has no value for \['a'\]"),
    ],
)
def test_impossible_linear_settings_are_refused(kwargs: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        LinearExplorer(["a"], **kwargs)


def make(kind: str) -> Explorer:
    if kind == "constant":
        return Explorer(["a", "b"], 0.5)
    if kind == "linear":
        return LinearExplorer(["a", "b"], episodes=5)
    return TwoPhaseLinearExplorer(["a", "b"], first_episodes=2, second_episodes=4)


@pytest.mark.parametrize("kind", ["constant", "linear", "two phases"])
def test_a_checkpoint_restores_any_explorer(kind: str) -> None:
    from tmrl_core.training.checkpoints.capture import capture_part
    from tmrl_core.training.checkpoints.restore import restore_part

    explorer, other = make(kind), make(kind)
    explorer.epsilons = {"b": 0.9}
    for score in (1.0, 2.0, 3.0):
        explorer.update(score)
    captured = capture_part({"explorer": explorer}, "")
    restore_part({"explorer": other}, "", captured.tree, captured.arrays, {})
    assert not captured.skipped
    assert dict(other.epsilons) == dict(explorer.epsilons)
    for agent in "ab":
        assert course(other, 3, agent, 2.5) == course(explorer, 3, agent, 2.5)
