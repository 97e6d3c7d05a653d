from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tmrl_core.errors import ConfigError
from tmrl_core.training import ReplayMemory

GAMMA = 0.9


def held(memory: Any) -> list[tuple[Any, ...]]:
    """(stream, episode, step before, step after, reward, terminated, truncated, discount) of all transitions."""
    found = []
    for item in range(len(memory)):
        before, act, rew, after, terminated, truncated, extras = memory.get_transition(item)
        assert tuple(before[:2]) == tuple(after[:2])
        assert act[0] == before[2] + 1, "the first action"
        place = (int(before[0]), int(before[1]), int(before[2]), int(after[2]))
        found.append((*place, round(float(rew), 3), terminated, truncated, round(float(extras["discount"]), 5)))
    return found


def slowly(chunks: list[Any], n: int) -> set[tuple[Any, ...]]:
    """The same by an obvious loop, of chunks of one stream whose last episode has ended."""
    runs: list[list[Any]] = []
    for chunk in chunks:
        for row in range(chunk.rows):
            last = runs[-1][-1] if runs else None
            follows = (
                last is not None
                and last[0].episode[last[1]] == chunk.episode[row]
                and last[0].step[last[1]] + 1 == chunk.step[row]
                and not (last[0].terminated[last[1]] or last[0].truncated[last[1]])
            )
            if not follows:
                runs.append([])
            runs[-1].append((chunk, row))
    found = set()
    for run in runs:
        for start in range(len(run) - 1):
            end = min(start + n, len(run) - 1)
            rew = sum(GAMMA**k * chunk.reward[row] for k, (chunk, row) in enumerate(run[start + 1 : end + 1]))
            (first, i), (stop, j) = run[start], run[end]
            found.add(
                (
                    *(int(x) for x in first.observation[i]),
                    int(stop.observation[j][2]),
                    round(float(np.float32(rew)), 3),
                    bool(stop.terminated[j]),
                    bool(stop.truncated[j]),
                    round(float(np.float32(GAMMA ** (end - start))), 5),
                )
            )
    return found


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_split_into_messages_equals_a_slow_loop(data: st.DataObject, make_rows: Any) -> None:
    n = data.draw(st.integers(2, 5))
    memory = ReplayMemory(memory_size=1000, n_step=n, gamma=GAMMA)
    chunks = []
    for episode in range(data.draw(st.integers(1, 3))):
        length, at = data.draw(st.integers(1, 12)), 0
        end = data.draw(st.sampled_from(["terminated", "truncated"]))
        while at < length:
            rows = data.draw(st.integers(1, length - at))
            last = at + rows == length
            if last or data.draw(st.integers(0, 4)):  # else: a message is missing
                chunks.append(make_rows(1, episode, at, rows, end=end if last else None))
            at += rows
    for chunk in chunks:
        memory.append_chunk(chunk)
    found = held(memory)
    assert set(found) == slowly(chunks, n)
    assert len(found) == len(set(found)), "each once"


def test_truncation_bootstraps_and_termination_does_not(make_rows: Any) -> None:
    memory = ReplayMemory(memory_size=100, n_step=3, gamma=GAMMA)
    memory.append_chunk(make_rows(1, 0, 0, 3, end="truncated"))
    memory.append_chunk(make_rows(1, 1, 0, 2, end="terminated"))
    assert held(memory) == [
        (1, 0, 0, 2, 2.8, False, True, 0.81),
        (1, 0, 1, 2, 2.0, False, True, 0.9),
        (1, 1, 0, 1, 1.0, True, False, 0.9),
    ]


def test_streams_are_not_mixed_and_incomplete_transitions_wait(make_rows: Any) -> None:
    memory = ReplayMemory(memory_size=100, n_step=3, gamma=GAMMA)
    for first in (0, 2, 4):
        for stream in (1, 2):
            memory.append_chunk(make_rows(stream, 7, first, 2))
    assert {(one[0], one[2], one[3]) for one in held(memory)} == {(s, i, i + 3) for s in (1, 2) for i in range(3)}


def test_a_missing_message_is_never_joined_across(make_rows: Any) -> None:
    memory = ReplayMemory(memory_size=100, n_step=3, gamma=GAMMA)
    memory.append_chunk(make_rows(1, 0, 0, 3))
    assert len(memory) == 0
    memory.append_chunk(make_rows(1, 0, 5, 2))
    assert [(one[2], one[3], one[7]) for one in held(memory)] == [(0, 2, 0.81), (1, 2, 0.9)]


@pytest.mark.parametrize("storage", ["ram", "disk"])
def test_a_restored_memory_continues_open_episodes(make_rows: Any, tmp_path: Path, storage: Any) -> None:
    def make(name: str) -> Any:
        kwargs: Any = {"storage": "disk", "folder": tmp_path / name} if storage == "disk" else {}
        return ReplayMemory(memory_size=50, n_step=3, gamma=GAMMA, batch_size=8, seed=1, **kwargs)

    chunks = [make_rows(1, 0, 0, 5), make_rows(1, 0, 5, 4), make_rows(1, 0, 9, 3, end="terminated")]
    whole = make("whole")
    for chunk in chunks:
        whole.append_chunk(chunk)
    half = make("half")
    half.append_chunk(chunks[0])
    half.append_chunk(chunks[1])
    state, rows = half.state_dict(), [ring[: len(half)].copy() for ring in half.row_arrays]
    half.close()
    other = make("half")
    other.load_state_dict(state, rows)
    other.append_chunk(chunks[2])
    assert held(other) == held(whole)
    batch = other.sample()
    assert set(batch[6]) == {"discount"}
    assert batch[6]["discount"].shape == batch[2].shape
    other.close()
    whole.close()
    if storage == "disk":
        with pytest.raises(ConfigError, match=r"holds transitions of 3 steps .*memory\.n_step is 2"):
            ReplayMemory(memory_size=50, n_step=2, gamma=GAMMA, storage="disk", folder=tmp_path / "half")
    else:
        with pytest.raises(ValueError, match="3 steps"):
            ReplayMemory(memory_size=50, n_step=2, gamma=GAMMA).load_state_dict(state, rows)


def test_more_than_the_memory_holds_keeps_the_newest(make_rows: Any) -> None:
    memory = ReplayMemory(memory_size=4, n_step=2, gamma=GAMMA)
    memory.append_chunk(make_rows(1, 0, 0, 20, end="terminated"))
    assert (len(memory), memory.written) == (4, 19)
    assert [one[2] for one in held(memory)] == [15, 16, 17, 18]
