"""Runs of experiences as sequences: the same as those of a `SequenceMemory`, for any lengths of episodes."""

from __future__ import annotations

from functools import partial
from operator import itemgetter
from typing import Any

import numpy as np
import pytest

from tmrl_core.multiagent.algorithms.runs import check_steps, ends_of, places_of, sequences_of
from tmrl_core.samples import Chunk, Segment
from tmrl_core.samples.columns import map_leaves
from tmrl_core.training import SequenceMemory


def episodes(*lengths: int, truncated: bool = False) -> dict[str, Any]:
    """Return experiences of single steps whose states are numbers of their own."""
    number = np.concatenate([100 * i + np.arange(n) for i, n in enumerate(lengths)]).astype(np.float32)
    at_end = np.concatenate([np.arange(n) == n - 1 for n in lengths])
    return {
        "state": {"x": number[:, None]},
        "action": number.astype(np.int64),
        "reward": number / 10,
        "next_state": {"x": number[:, None] + 1},
        "discount": np.full(len(number), 0.99, np.float32),
        "terminated": at_end & (not truncated),
        "truncated": at_end & truncated,
        "state.h": np.stack([number, -number], axis=1),
    }


def memory_of(columns: dict[str, Any], length: int, stride: int) -> SequenceMemory:
    """Return a `SequenceMemory` that got the same episodes."""
    memory = SequenceMemory("cpu", 1, length=length, stride=stride)
    starts = np.flatnonzero(np.concatenate([[True], ends_of(columns)[:-1]]))
    for number, (start, stop) in enumerate(zip(starts, [*starts[1:], len(columns["reward"])], strict=True)):
        own = slice(start, stop)
        rows = stop - start + 1

        def with_reset(column: np.ndarray, own: slice = own) -> np.ndarray:
            return np.concatenate([np.zeros_like(column[:1]), column[own]])

        chunk = Chunk(
            rows=rows,
            action=with_reset(columns["action"]),
            action_present=np.arange(rows) > 0,
            observation={"x": np.concatenate([columns["state"]["x"][own][:1], columns["next_state"]["x"][own]])},
            reward=with_reset(columns["reward"]),
            terminated=with_reset(columns["terminated"]),
            truncated=with_reset(columns["truncated"]),
            extras={"state.h": with_reset(columns["state.h"])},
            segments=(Segment(rows, number, 0, 1, 1),),
            stream=b"s" * 16,
        )
        memory.append_chunk(chunk)
    return memory


@pytest.mark.parametrize("truncated", [False, True])
@pytest.mark.parametrize(("length", "stride"), [(4, 2), (4, 4), (5, 3), (3, 1), (1, 1)])
def test_sequences_are_those_of_a_sequence_memory(length: int, stride: int, truncated: bool) -> None:
    lengths = [1, 3, 4, 5, 9, 2, 12]
    columns = episodes(*lengths, truncated=truncated)
    found = sequences_of(columns, length, stride, most=1000)
    memory = memory_of(columns, length, stride)
    assert len(found["ticks"]) == len(memory)
    for number in range(len(memory)):
        row: Any = memory.get_transition(number)
        names = ("state", "action", "reward", "next_state", "terminated", "truncated")
        expected = {**dict(zip(names, row[:6], strict=True)), **row[6]}
        assert found.keys() == expected.keys()
        row_of = partial(map_leaves, itemgetter(number))
        for name, value in expected.items():
            np.testing.assert_equal(row_of(found[name]), value, name)


def test_of_too_many_sequences_the_last_ones_stay() -> None:
    columns = episodes(9, 5)
    everything, last = (sequences_of(columns, 4, 2, most) for most in (1000, 3))
    assert len(last["ticks"]) == 3
    for name in ("reward", "ticks", "first_tick", "state.h"):
        np.testing.assert_array_equal(last[name], np.asarray(everything[name])[-3:])


def test_places_number_runs_and_steps() -> None:
    assert places_of(ends_of(episodes(2, 1, 3))).tolist() == [
        [0, 0, 1],
        [0, 0, 2],
        [0, 1, 1],
        [0, 2, 1],
        [0, 2, 2],
        [0, 2, 3],
    ]


def test_rows_that_do_not_continue_each_other_are_refused() -> None:
    columns = episodes(3, 4)
    check_steps(columns)
    columns["next_state"]["x"][4] += 1
    with pytest.raises(ValueError, match=r"the next state of experience 4 is not the state of experience 5, .*k = 1"):
        check_steps(columns)
