"""The Buffer: samples, episodes and versions, handing over, merging, the limit."""

from __future__ import annotations

import datetime
import enum
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tmrl_core.errors import CodecError
from tmrl_core.samples.buffer import MAX_RECORDS, Buffer
from tmrl_core.samples.segments import EpisodeRecord


def sample(number: float, *, end: bool = False, action: Any = (), info: Any = None) -> tuple[Any, ...]:
    act = np.full(1, number, np.float32) if action == () else action
    return act, np.full(3, number, np.float32), np.float64(number), end, False, info or {}


def reset(number: float) -> tuple[Any, ...]:
    return None, np.full(3, number, np.float32), 0.0, False, False, {}


def record(number: int, mode: Any = "train") -> EpisodeRecord:
    return EpisodeRecord("", float(number), number, mode, "terminated", number)


def numbers(buffer: Buffer) -> list[float]:
    return [float(entry[1][0]) for entry in buffer.memory]


def rows_of(buffer: Buffer) -> list[tuple[int, int, tuple[int, int]]]:
    """Episode, step and version of each row."""
    rows = []
    for chunk in buffer.chunks:
        for episode, step, version in zip(chunk.episode, chunk.step, chunk.version, strict=True):
            rows.append((int(episode), int(step), (int(version[0]), int(version[1]))))
    return rows


def test_samples_come_back_in_order() -> None:
    buffer = Buffer(None)
    buffer.append_sample(reset(0))
    for number in range(1, 600):
        buffer.append_sample(sample(number, info={"n": number} if number % 7 == 0 else None))
    assert len(buffer) == len(buffer.memory) == 600
    assert len(buffer.chunks) == 1
    assert numbers(buffer) == list(range(600))
    action, observation, reward, terminated, truncated, info = buffer.memory[-5]
    assert (action.tolist(), observation.tolist(), reward) == ([595.0], [595.0] * 3, 595.0)
    assert (terminated, truncated, info) == (False, False, {"n": 595})
    assert buffer.memory[0][0] is None
    assert [entry[2] for entry in buffer.memory[2:6:2]] == [2.0, 4.0]
    with pytest.raises(IndexError):
        buffer.memory[600]


def test_memory_is_a_snapshot() -> None:
    buffer = Buffer(None)
    buffer.append_sample(sample(0))
    memory = buffer.memory
    buffer.append_sample(sample(1))
    assert len(memory) == 1
    assert len(buffer.memory) == 2


def test_a_sample_that_does_not_fit_begins_another_chunk() -> None:
    buffer = Buffer(None)
    buffer.start_episode(3, (1, 1))
    buffer.append_sample((None, np.zeros(3), 0.0, False, False, {}))
    buffer.append_sample(sample(1))
    buffer.append_sample(sample(2))
    assert [chunk.rows for chunk in buffer.chunks] == [1, 2]
    assert [chunk.observation.dtype for chunk in buffer.chunks] == [np.float64, np.float32]  # type: ignore[union-attr]
    assert rows_of(buffer) == [(3, 0, (1, 1)), (3, 1, (1, 1)), (3, 2, (1, 1))]


def test_shapes_that_vary_go_to_one_list() -> None:
    buffer = Buffer(None)
    for rows in (1, 2, 3, 2, 5):
        buffer.append_sample((np.zeros(1), {"points": np.zeros((rows, 2)), "pose": np.zeros(3)}, 0.0, False, False, {}))
    assert [chunk.rows for chunk in buffer.chunks] == [1, 4]
    buffer.clear()
    for rows in (1, 2, 3):
        buffer.append_sample((np.zeros(1), {"points": np.zeros((rows, 2)), "pose": np.zeros(3)}, 0.0, False, False, {}))
    assert [chunk.rows for chunk in buffer.chunks] == [3]


def test_arrays_that_the_environment_uses_again_are_copied() -> None:
    buffer = Buffer(None)
    observation, action = np.zeros(3, np.float32), np.zeros(1, np.float32)
    for number in range(4):
        observation[:] = action[:] = number
        buffer.append_sample((action, observation, np.float64(number), False, False, {}))
    assert numbers(buffer) == [0, 1, 2, 3]
    assert [float(entry[0][0]) for entry in buffer.memory] == [0, 1, 2, 3]


class Color(enum.Enum):
    RED = 1


def test_unsupported_entries_of_infos_are_left_out_with_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    buffer = Buffer(None)
    endless: dict[str, Any] = {}
    endless["again"] = endless
    odd = {
        "seen": {1, 2},
        "nested": {"when": datetime.datetime(2024, 1, 1), "count": 3},
        "list": [Color.RED],
        Color.RED: 1,
        "kept": np.arange(2),
        "endless": endless,
    }
    infos = []
    for number in range(3):
        buffer.append_sample(sample(number, info=odd))
        infos += [entry[5] for entry in buffer.memory]
        buffer.clear()  # another chunk is no reason to say it again
    buffer.append_sample(sample(3, info={f"key{number}": object() for number in range(100)}))
    assert buffer.memory[0][5] == {}
    for info in infos:
        assert list(info) == ["nested", "kept", "endless"]
        assert info["nested"] == {"count": 3}
        assert info["kept"].tolist() == [0, 1]
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == len(set(messages)) == 20
    for words in ("info['seen'] is a set", "info['nested']['when'] is a datetime.datetime", "info['list'][0]", "a key"):
        assert sum(words in message for message in messages) == 1


def test_a_refused_sample_is_not_appended() -> None:
    buffer = Buffer(None)
    buffer.append_sample(sample(0))
    with pytest.raises(CodecError, match=r"observation\['frame'\] is a object"):
        buffer.append_sample((None, {"frame": object()}, 0.0, False, False, {}))
    with pytest.raises(CodecError, match="name of an extra"):
        buffer.append_sample(sample(1), extras={1: 2.0})  # type: ignore[dict-item]
    with pytest.raises(CodecError, match="observation"):
        buffer.append_sample((None, object(), 0.0, False, False, {}))
    buffer.append_sample(sample(2))
    assert numbers(buffer) == [0, 2]
    assert len(buffer) == 2


# Episodes and versions


def test_episodes_are_inferred_from_terminal_samples_and_resets() -> None:
    buffer = Buffer(None)
    for entry in (reset(0), sample(1), sample(2, end=True), reset(3), sample(4), reset(5), sample(6)):
        buffer.append_sample(entry)
    assert [row[:2] for row in rows_of(buffer)] == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (2, 0), (2, 1)]


def test_episodes_and_versions_that_were_given() -> None:
    buffer = Buffer(None)
    buffer.start_episode(5, (1, 1))
    buffer.append_sample(reset(0))
    buffer.append_sample(sample(1))
    buffer.set_version((1, 2))
    buffer.set_version((1, 3))
    buffer.append_sample(sample(2, end=True))
    buffer.start_episode(9, (2, 0))
    buffer.append_sample(reset(3))
    buffer.set_version((2, 0))
    buffer.append_sample(sample(4))
    assert rows_of(buffer) == [
        (5, 0, (1, 1)),
        (5, 1, (1, 1)),
        (5, 2, (1, 3)),
        (9, 0, (2, 0)),
        (9, 1, (2, 0)),
    ]
    assert len(buffer.chunks[0].segments) == 3


def test_an_open_episode_continues_after_take() -> None:
    buffer = Buffer(None)
    buffer.start_episode(5, (1, 1))
    seen = []
    for number in range(7):
        buffer.append_sample(sample(number))
        if number % 3 == 2:
            seen += rows_of(buffer)
            buffer.take()
    assert seen + rows_of(buffer) == [(5, step, (1, 1)) for step in range(7)]


def test_the_version_may_change_between_take_and_the_next_sample() -> None:
    buffer = Buffer(None)
    buffer.start_episode(5, (1, 1))
    buffer.append_sample(sample(0))
    buffer.take()
    buffer.set_version((1, 2))
    buffer.append_sample(sample(1))
    assert rows_of(buffer) == [(5, 1, (1, 2))]


@pytest.mark.parametrize("call", [lambda b: b.start_episode(-1, (0, 0)), lambda b: b.set_version((0, -1))])
def test_negative_ids_are_refused(call: Any) -> None:
    with pytest.raises(ValueError, match="at least 0"):
        call(Buffer(None))


# An environment that failed


def test_the_open_episode_is_dropped() -> None:
    buffer = Buffer(None)
    for entry in (reset(0), sample(1, end=True), reset(2), sample(3), sample(4)):
        buffer.append_sample(entry)
    assert buffer.drop_unsent() == 3
    assert numbers(buffer) == [0, 1]
    assert buffer.drop_unsent() == 0
    buffer.append_sample(reset(5))
    assert [row[:2] for row in rows_of(buffer)] == [(0, 0), (0, 1), (2, 0)]


def test_taken_samples_are_not_dropped() -> None:
    buffer = Buffer(None)
    buffer.append_sample(reset(0))
    buffer.append_sample(sample(1))
    taken, _ = buffer.take()
    buffer.append_sample(sample(2))
    assert buffer.drop_unsent() == 1
    assert len(buffer) == 0
    buffer.append_sample(reset(3))
    assert [chunk.rows for chunk in taken] == [2]
    assert taken[0].observation[1].tolist() == [1, 1, 1]  # type: ignore[union-attr]


def test_dropping_reaches_over_chunks_and_versions_but_not_into_other_episodes() -> None:
    buffer = Buffer(None)
    buffer.start_episode(1, (1, 0))
    buffer.append_sample(sample(0, end=True))
    buffer.start_episode(2, (1, 0))
    buffer.append_sample(reset(1))
    buffer.append_sample((np.zeros(2), np.zeros(4), 0.0, False, False, {}))
    buffer.set_version((1, 1))
    buffer.append_sample((np.zeros(2), np.zeros(4), 0.0, False, False, {}))
    assert buffer.drop_unsent() == 3
    assert numbers(buffer) == [0]


def test_a_finished_episode_is_not_dropped() -> None:
    buffer = Buffer(None)
    buffer.append_sample(reset(0))
    buffer.append_sample(sample(1, end=True))
    assert buffer.drop_unsent() == 0
    buffer.start_episode(7)
    assert buffer.drop_unsent() == 0
    assert len(buffer) == 2


def test_dropped_rows_stay_in_views_that_were_given_out() -> None:
    buffer = Buffer(None)
    buffer.append_sample(reset(0))
    memory = buffer.memory
    buffer.drop_unsent()
    buffer.append_sample(reset(1))
    assert memory[0][1].tolist() == [0, 0, 0]


# Handing over and merging


def test_take_returns_samples_without_copying_and_empties_the_buffer() -> None:
    buffer = Buffer(None)
    buffer.append_sample(sample(1))
    buffer.end_episode(record(1))
    before = buffer.chunks[0]
    chunks, records = buffer.take()
    assert np.shares_memory(chunks[0].reward, before.reward)
    assert records == [record(1)]
    assert len(buffer) == 0
    assert buffer.episodes == []
    assert buffer.take() == ([], [])
    buffer.append_sample(sample(2))
    assert chunks[0].reward.tolist() == [1.0]
    assert buffer.stat_train_return == 1.0


def test_merging_keeps_all_samples_and_records_in_order_and_copies_nothing() -> None:
    left, right = Buffer(None), Buffer(None)
    left.append_sample(reset(0))
    right.append_sample(reset(10))
    right.append_sample(sample(11))
    left.end_episode(record(1))
    right.end_episode(record(2))
    right.end_episode(record(3, "test"))
    left += right
    left.append_sample(sample(1))
    right.append_sample(sample(12))
    assert numbers(left) == [0, 10, 11, 1]
    assert left.episodes == [record(1), record(2), record(3, "test")]
    assert (left.stat_train_return, left.stat_train_steps) == (2.0, 2)
    assert (left.stat_test_return, left.stat_test_steps) == (3.0, 3)
    assert numbers(right) == [10, 11, 12]
    assert np.shares_memory(left.chunks[1].reward, right.chunks[0].reward)
    assert [row[:2] for row in rows_of(left)] == [(0, 0), (0, 0), (0, 1), (0, 1)]


def test_a_buffer_may_be_added_to_itself() -> None:
    buffer = Buffer(None)
    buffer.append_sample(sample(1))
    buffer.end_episode(record(1))
    buffer += buffer
    assert numbers(buffer) == [1, 1]
    assert len(buffer.episodes) == 2


def test_the_repr_of_a_buffer_describes_its_content() -> None:
    buffer = Buffer(5)
    buffer.append_sample(sample(1))
    assert repr(buffer) == "Buffer(1 samples, 0 episode records, maxlen=5)"


def test_clear_keeps_the_statistics() -> None:
    buffer = Buffer(None)
    buffer.append_sample(sample(1))
    buffer.end_episode(record(4))
    buffer.end_episode(record(5, "test"))
    buffer.clear()
    assert len(buffer) == 0
    assert list(buffer.memory) == []
    assert (buffer.stat_train_return, buffer.stat_train_steps) == (4.0, 4)
    assert (buffer.stat_test_return, buffer.stat_test_steps) == (5.0, 5)
    assert len(buffer.episodes) == 2


def test_numpy_numbers_in_a_record_become_pythons() -> None:
    buffer = Buffer(None)
    buffer.end_episode(EpisodeRecord("", np.float64(1.5), np.int64(3), "train", "terminated"))
    assert type(buffer.episodes[0].episode_return) is float
    assert type(buffer.episodes[0].length) is int


@pytest.mark.parametrize(
    "bad",
    [
        EpisodeRecord("", 1.0, -1, "train", "terminated"),
        EpisodeRecord("", 1.0, 1, "play", "terminated"),  # type: ignore[arg-type]
        EpisodeRecord("", np.zeros(2), 1, "train", "terminated"),  # type: ignore[arg-type]
        EpisodeRecord("", 1.0, 1, "train", "terminated", seed=2**70),
        EpisodeRecord("\ud800", 1.0, 1, "train", "terminated"),
        EpisodeRecord("", None, 1, "train", "terminated"),  # type: ignore[arg-type]
    ],
)
def test_a_record_that_cannot_be_sent_is_refused_immediately(bad: EpisodeRecord) -> None:
    buffer = Buffer(None)
    with pytest.raises(CodecError, match="record of an episode"):
        buffer.end_episode(bad)
    assert buffer.episodes == []


def test_untaken_records_are_bounded() -> None:
    buffer = Buffer(None)
    buffer.extend([], [record(number) for number in range(MAX_RECORDS + 5)])
    assert len(buffer.episodes) == MAX_RECORDS
    assert buffer.episodes[0] == record(5)


# The limit


@given(
    st.integers(1, 12),
    st.lists(st.sampled_from(["sample", "other", "merge", "take", "clear", "drop"]), max_size=60),
)
def test_the_oldest_samples_beyond_maxlen_are_dropped(maxlen: int, actions: list[str]) -> None:
    buffer, unbounded = Buffer(maxlen), []
    dropped, open_rows = 0, 0
    for number, action in enumerate(actions):
        if action == "merge":
            other = Buffer(None)
            for extra in range(3):
                other.append_sample(sample(number + extra / 4))
            buffer += other
            unbounded += [number, number + 0.25, number + 0.5]
            open_rows = 0  # the other's rows come after ours: what is dropped ends there
            buffer.start_episode(number + 1000)
        elif action == "take":
            buffer.take()
            unbounded, open_rows = [], 0
            buffer.start_episode(number + 1000)
        elif action == "clear":
            buffer.clear()
            unbounded, open_rows = [], 0
            buffer.start_episode(number + 1000)
        elif action == "drop":
            gone = min(open_rows, len(unbounded))
            assert buffer.drop_unsent() == gone
            unbounded, open_rows = unbounded[: len(unbounded) - gone], 0
            buffer.start_episode(number + 1000)
        else:
            wide = np.full(4 if action == "other" else 3, number, np.float32)
            buffer.append_sample((np.zeros(1), wide, 0.0, False, False, {}))
            unbounded.append(number)
            open_rows += 1
        dropped += max(0, len(unbounded) - maxlen)
        unbounded = unbounded[-maxlen:]
        assert len(buffer) == len(unbounded)
        assert numbers(buffer) == unbounded
        assert buffer.dropped == dropped
        assert all(chunk.rows for chunk in buffer.chunks)


def test_memory_of_rows_beyond_maxlen_is_released() -> None:
    buffer = Buffer(300)
    for number in range(5000):
        buffer.append_sample(sample(number))
    assert numbers(buffer) == list(range(4700, 5000))
    assert rows_of(buffer)[0][:2] == (0, 4700)
    assert buffer.dropped == 4700
    held = sum(chunk.reward.base.nbytes for chunk in buffer.chunks if chunk.reward.base is not None)
    assert held <= 8 * 4096


@pytest.mark.parametrize(("maxlen", "is_limit"), [(None, None), (math.inf, None), (1e6, 1_000_000), (3, 3)])
def test_maxlen_may_be_none_or_a_float(maxlen: float | None, is_limit: int | None) -> None:
    assert Buffer(maxlen).maxlen == is_limit


@pytest.mark.parametrize("maxlen", [0, -1, 0.5, math.nan])
def test_a_limit_below_one_is_refused(maxlen: float) -> None:
    with pytest.raises(ValueError, match="maxlen"):
        Buffer(maxlen)


def test_maxlen_left_out_means_no_limit() -> None:
    assert Buffer().maxlen is None
