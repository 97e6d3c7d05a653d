"""Ranges of recorded actions: found, kept across processes, compared with the space, and clipped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from tmrl_core.errors import StorageError
from tmrl_core.sessions import Session, SessionWriter
from tmrl_core.sessions.action_ranges import ActionRanges
from tmrl_core.sessions.session_files import read_action_ranges

OBSERVATIONS = spaces.Box(-1, 1, (1,), np.float32)
ARM = spaces.Box(np.array([-1, 0], np.float32), np.array([1, 100], np.float32))


def session(actions: Any, ticks: int = 2) -> Session:
    return Session(observations=np.zeros((ticks + 1, 1), np.float32), actions=actions, rewards=np.zeros(ticks))


def rows(*values: Any) -> np.ndarray:
    return np.array(values, np.float32)


@pytest.mark.parametrize(
    ("space", "actions", "problem"),
    [
        (ARM, rows([-1, 0], [1, 100]), ""),
        (ARM, rows([-1.001, -0.09], [1.001, 100.09]), ""),
        (ARM, rows([0, 0], [0, 100.2]), "action[1] is 0 to 100.2, allowed: 0 to 100"),
        (ARM, rows([5, -1], [0, 0]), "action[0] is 0 to 5, allowed: -1 to 1; action[1] is -1 to 0, allowed: 0 to 100"),
        (spaces.Box(-np.inf, np.inf, (1,), np.float32), rows([-1e30], [1e30]), ""),
        (spaces.Box(0, np.inf, (1,), np.float32), rows([-0.0005], [1e30]), ""),
        (spaces.Box(0, np.inf, (1,), np.float32), rows([-2], [1]), "action[0] is -2 to 1, allowed: 0 to inf"),
        (spaces.Box(-3.4e38, 3.4e38, (1,), np.float32), rows([-3e38], [3e38]), ""),
        (spaces.Box(-1, 1, (), np.float32), rows(0, 9), "action is 0 to 9, allowed: -1 to 1"),
        (spaces.Box(0, 9, (1,), np.int64), np.array([[0], [10]]), "action[0] is 0 to 10, allowed: 0 to 9"),
        (spaces.Box(-1, 1, (1, 2), np.float32), rows([[0, 0]], [[0, 7]]), "action[0, 1] is 0 to 7, allowed: -1 to 1"),
        (spaces.Box(-1, 1, (1,), np.float32), rows([np.nan], [7]), "action[0] is 7 to 7, allowed: -1 to 1"),
        (spaces.Dict(a=ARM, b=spaces.Discrete(2)), {"b": np.array([9, 9]), "a": rows([0, 0], [2, 0])},
         "action/a[0] is 0 to 2, allowed: -1 to 1"),
        (spaces.Tuple([spaces.Discrete(2), ARM]), (np.array([0, 1]), rows([0, 0], [2, 0])),
         "action/1[0] is 0 to 2, allowed: -1 to 1"),
        (spaces.Discrete(2), np.array([0, 1]), ""),
    ],
)  # fmt: skip
def test_dimensions_beyond_their_bounds_are_named(space: Any, actions: Any, problem: str) -> None:
    ranges = ActionRanges(space)
    ranges.add(actions)
    assert ranges.problem() == problem


def test_a_message_names_a_few_of_many_dimensions() -> None:
    ranges = ActionRanges(spaces.Box(-1, 1, (9,), np.float32))
    ranges.add(np.full((1, 9), 2, np.float32))
    assert ranges.problem().endswith("; and 5 further dimensions")
    assert len(ranges.lines()) == 9


@pytest.mark.parametrize("other", [(), ["up", "down"], np.zeros((2, 3)), {"a": np.zeros((2, 2))}])
def test_actions_of_another_form_are_left_out(other: Any) -> None:
    ranges = ActionRanges(ARM)
    assert not ranges.add(other)
    assert ranges.lines() == []
    assert ranges.clipped(other)[1] == 0


def test_clipped_actions_keep_dtype_and_structure() -> None:
    ranges = ActionRanges(spaces.Tuple([spaces.Discrete(9), ARM]))
    given = np.array([7, 8]), np.array([[-5, 50], [0, 50]], np.float64)
    (number, arm), changed = ranges.clipped(given)
    assert number is given[0]
    assert (arm.dtype, arm.tolist(), changed) == (np.float64, [[-1, 50], [0, 50]], 1)
    assert given[1][0, 0] == -5


def test_ranges_of_a_recording_grow_and_outlive_its_writer(tmp_path: Path) -> None:
    assert read_after(tmp_path / "a" / "one", [rows([0, 5], [0.5, 6])]) == ["action[0] 0 to 0.5", "action[1] 5 to 6"]
    expected = ["action[0] -1 to 0.5", "action[1] 5 to 7"]
    assert read_after(tmp_path / "a" / "one", [rows([-1, 5], [0, 7]), rows([0, 6], [0, 6])]) == expected
    read_after(tmp_path / "a" / "two", [rows([9, 9], [9, 9])])
    assert read_action_ranges(tmp_path / "a").lines() == ["action[0] -1 to 9", "action[1] 5 to 9"]


def read_after(folder: Path, given: list[np.ndarray]) -> list[str]:
    """Write sessions; return the ranges, read while the writer is open, as after its death."""
    with SessionWriter(folder, OBSERVATIONS, ARM) as writer:
        for actions in given:
            writer.write(session(actions))
        return read_action_ranges(folder).lines()


def test_the_reset_has_no_action(tmp_path: Path) -> None:
    assert read_after(tmp_path / "one", [rows([0.5, 5], [0.5, 5])]) == ["action[0] 0.5 to 0.5", "action[1] 5 to 5"]


@pytest.mark.parametrize("text", ["", "[]", '{"version": 1, "ranges": [[[7], 0, 1]]}', '{"version": 9}'])
def test_damaged_ranges_are_named(tmp_path: Path, text: str) -> None:
    read_after(tmp_path / "one", [rows([0, 0], [0, 0])])
    (tmp_path / "one" / "actions.json").write_text(text)
    with pytest.raises(StorageError, match=r"actions\.json"):
        read_action_ranges(tmp_path / "one")
    with pytest.raises(StorageError, match=r"actions\.json"):
        SessionWriter(tmp_path / "one", OBSERVATIONS, ARM)
