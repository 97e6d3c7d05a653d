"""Ends of agents' runs, as the reserved keys of the metrics report them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tmrl_core.errors import EpisodeError
from tmrl_core.multiagent import Decision, Trajectory


def trajectory(*decisions: tuple[str, Any]) -> Trajectory:
    return Trajectory(Decision(agent, np.zeros(1), 0, None, metrics) for agent, metrics in decisions)


def test_an_episode_without_reserved_keys_terminates() -> None:
    for metrics in (None, {}, {"truncated": False}, 7):
        assert trajectory(("a", metrics)).ended("a") == "terminated"


def test_a_truncated_episode_truncates_all_agents_that_are_not_named() -> None:
    ends = trajectory(
        ("a", {"terminations": {"a": True, "b": False}}),
        ("b", {"truncations": {"c": np.True_}}),
        ("b", {"truncated": True, "terminations": {}}),
    )
    assert [ends.ended(agent) for agent in "abcd"] == ["terminated", "truncated", "truncated", "truncated"]


def test_an_agent_may_be_cut_off_in_an_episode_that_terminates() -> None:
    ends = trajectory(("a", {"truncations": {"a": True}}), ("b", {}))
    assert (ends.ended("a"), ends.ended("b")) == ("truncated", "terminated")


def test_an_agent_that_both_terminates_and_is_truncated_terminates() -> None:
    assert trajectory(("a", {"truncations": {"a": True}, "terminations": {"a": True}})).ended("a") == "terminated"


def test_flags_must_be_by_agent() -> None:
    with pytest.raises(EpisodeError, match=r"metrics\['terminations'\] must map agent ids to bools, got True"):
        trajectory(("a", {"terminations": True})).ended("a")


def test_a_decision_after_the_end_is_an_error() -> None:
    with pytest.raises(EpisodeError, match="decision 1 is by the agent 'a', whose run had truncated"):
        trajectory(("a", {"truncations": {"a": True}}), ("a", {})).ended("b")
