"""Rows into chunks: the short way and the long way, growth, and rows that fail."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tmrl_core.errors import CodecError
from tmrl_core.samples.writer import FIRST_ROWS, MAX_CHUNK_BYTES, MAX_CHUNK_ROWS, ChunkWriter

OBSERVATION = np.arange(3, dtype=np.float32)
ACTION = np.ones(1, np.float32)
NOTHING, ONE = np.float64(0), np.float64(1)


def writer_for(observation: Any = OBSERVATION, reward: Any = NOTHING, rows_hint: int = FIRST_ROWS) -> ChunkWriter:
    writer = ChunkWriter(observation, reward, None, set(), rows_hint)
    writer.begin_run(0, 0, (0, 0))
    return writer


def append(
    writer: ChunkWriter,
    *,
    action: Any = ACTION,
    observation: Any = OBSERVATION,
    reward: Any = ONE,
    terminated: Any = False,
    truncated: Any = False,
    info: Any = None,
    extras: dict[str, Any] | None = None,
) -> bool:
    return writer.append(action, observation, reward, terminated, truncated, info or {}, extras)


def test_rows_keep_their_values_while_columns_grow() -> None:
    writer = writer_for(rows_hint=1)
    for row in range(1000):
        assert append(writer, action=ACTION * row, observation=OBSERVATION + row, reward=np.float64(row))
    chunk = writer.view()
    numbers = np.arange(1000)
    assert isinstance(chunk.action, np.ndarray)
    assert isinstance(chunk.observation, np.ndarray)
    assert (chunk.reward == numbers).all()
    assert (chunk.action[:, 0] == numbers).all()
    assert (chunk.observation == OBSERVATION + numbers[:, None]).all()


def test_columns_stop_growing_at_the_limits() -> None:
    large = np.zeros(MAX_CHUNK_BYTES // 10, np.uint8)
    writer = writer_for(large)
    rows = 0
    while append(writer, observation=large):
        rows += 1
    assert rows in (9, 10)
    small = np.zeros(1, np.uint8)
    writer = writer_for(small, reward=np.uint8(0))
    while append(writer, observation=small, action=small, reward=np.uint8(0)):
        pass
    assert writer.rows == MAX_CHUNK_ROWS


def test_a_row_larger_than_the_limit_is_a_chunk() -> None:
    large = np.zeros(MAX_CHUNK_BYTES + 1, np.uint8)
    writer = writer_for(large)
    assert append(writer, observation=large)
    assert not append(writer, observation=large)
    assert writer.view().rows == 1


def test_the_flags_may_be_of_any_boolean_kind() -> None:
    writer = writer_for()
    append(writer, terminated=np.True_, truncated=1)
    append(writer, terminated=False, truncated=np.bool_(True))
    append(writer)
    chunk = writer.view()
    assert chunk.terminated.tolist() == [True, False, False]
    assert chunk.truncated.tolist() == [True, True, False]


def test_actions_may_begin_late() -> None:
    writer = writer_for()
    append(writer, action=None)
    assert writer.view().action == ()
    append(writer, action=None)
    append(writer, action=(ACTION, "go"))
    append(writer, action=None)
    chunk = writer.view()
    assert isinstance(chunk.action, tuple)
    assert isinstance(chunk.action[0], np.ndarray)
    assert chunk.action[0].tolist() == [[0], [0], [1], [0]]
    assert chunk.action[1] == [None, None, "go", None]
    assert chunk.action_present.tolist() == [False, False, True, False]


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        ({"info": [1]}, "info is a list"),
        ({"action": [object()]}, "action[0]"),
    ],
)
def test_a_row_that_fails_leaves_nothing_behind(bad: dict[str, Any], words: str) -> None:
    writer = writer_for(reward=0.0)
    append(writer, action=[1], reward=0.0)
    bad = {"action": [2], "terminated": True, **bad}
    with pytest.raises(CodecError) as caught:
        append(writer, **bad)
    assert words in str(caught.value)
    append(writer, action=[3], reward=0.5)
    chunk = writer.view()
    assert chunk.rows == 2
    assert chunk.action == [[1], [3]]
    assert chunk.info == {}
    assert chunk.terminated.tolist() == [False, False]
    assert chunk.reward.tolist() == [0.0, 0.5]


def test_invalid_flags_fail_before_any_change() -> None:
    writer = writer_for()
    with pytest.raises(ValueError, match="ambiguous"):
        append(writer, truncated=np.array([True, False]), info={"a": 1})
    append(writer)
    chunk = writer.view()
    assert chunk.rows == 1
    assert chunk.info == {}
    assert not chunk.truncated.any()


@pytest.mark.parametrize("reward", [None, "1.0", (1.0,), {"a": 1.0}, 2**63])
def test_rewards_are_numbers(reward: Any) -> None:
    with pytest.raises(CodecError, match="reward is a"):
        writer_for(reward=reward)


def test_a_reward_of_none_is_refused_in_an_open_chunk() -> None:
    writer = writer_for(reward=np.array(1.0))
    append(writer, reward=np.array(1.0))
    assert not append(writer, reward=None)


def test_extras_are_columns_of_their_own() -> None:
    writer = ChunkWriter(OBSERVATION, 0.0, {"logp": np.float32(0), "hidden": (np.zeros(2),)}, set(), FIRST_ROWS)
    writer.begin_run(0, 0, (0, 0))
    append(writer, extras={"logp": np.float32(-1), "hidden": (np.ones(2),)})
    append(writer, extras={"hidden": (np.ones(2),), "logp": np.float32(-2)})
    assert not append(writer, extras={"logp": np.float32(-1)})
    assert not append(writer)
    chunk = writer.view()
    assert list(chunk.extras) == ["logp", "hidden"]
    assert chunk.extras["logp"].tolist() == [-1, -2]  # type: ignore[union-attr]
    assert chunk.extras["hidden"][0][1].tolist() == [1, 1]  # type: ignore[union-attr]


def test_an_extra_that_changes_its_shape_does_not_fit() -> None:
    writer = ChunkWriter(OBSERVATION, 0.0, {"hidden": np.zeros(2)}, set(), FIRST_ROWS)
    assert append(writer, extras={"hidden": np.zeros(2)})
    assert not append(writer, extras={"hidden": np.zeros(3)})


def test_extras_that_begin_later_do_not_fit() -> None:
    writer = writer_for()
    append(writer)
    assert not append(writer, extras={"logp": 1.0})
    assert append(writer, extras={})


def test_append_plain_refuses_other_dtypes_and_shapes() -> None:
    writer = writer_for()
    assert append(writer)
    assert append(writer)
    for other in (
        {"observation": OBSERVATION.astype(np.float64)},
        {"observation": OBSERVATION.astype(">f4")},
        {"observation": OBSERVATION[:1]},
        {"observation": np.float32(1)},
        {"action": ACTION.astype(np.float64)},
        {"action": np.float32(1)},
        {"reward": np.float32(1.5)},
        {"reward": "1"},
    ):
        assert not append(writer, **other)
    assert append(writer, reward=0.25)
    chunk = writer.view()
    assert chunk.reward.tolist() == [1.0, 1.0, 0.25]
    assert chunk.reward.dtype == np.float64


def test_append_plain_uses_a_replaced_column() -> None:
    writer = writer_for(reward=0.0)
    for reward in (0.0, 0.5, np.float32(0.1), np.float32(0.2), 0.25):
        assert append(writer, reward=reward)
    chunk = writer.view()
    assert chunk.reward.dtype == np.float32
    assert chunk.reward.tolist() == [0.0, 0.5, np.float32(0.1), np.float32(0.2), 0.25]


def test_a_view_does_not_see_later_rows() -> None:
    writer = writer_for(observation="word", reward=0.0)
    append(writer, observation="a", reward=0.0, info={"a": 1})
    view = writer.view()
    append(writer, observation="b", reward=np.float32(0.1), info={"b": 1}, terminated=True)
    assert view.observation == ["a"]
    assert view.info == {0: {"a": 1}}
    assert view.reward.dtype == np.float64
    assert view.segments[0].rows == 1


def test_infos_are_copied_and_empty_ones_take_no_space() -> None:
    writer = writer_for()
    info = {"frame": np.zeros(2)}
    append(writer)
    append(writer, info=info)
    info["frame"][:] = 1
    chunk = writer.view()
    assert list(chunk.info) == [1]
    assert chunk.info[1]["frame"].tolist() == [0, 0]
