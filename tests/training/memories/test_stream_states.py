"""Notes of a replay memory on disk that somebody else has written are refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tmrl_core.errors import StorageError
from tmrl_core.samples import encode_value
from tmrl_core.training.memories.layout import RowLayout
from tmrl_core.training.memories.stream_states import StreamStates, decoded, encoded

TAIL = [3, 7, {"a": (np.zeros((1, 3)),)}]


def test_written_data_is_read_back() -> None:
    changes: Any = {"marks": {b"s": [1, 20]}, "tails": {b"s": TAIL, b"t": None}, "values": {"updates": 3}}
    read = decoded(encoded(changes))
    assert read["marks"] == changes["marks"]
    assert set(read["tails"]) == {b"s", b"t"}
    assert decoded(b"") == {}


def test_the_offsets_of_a_large_fleet_are_kept() -> None:
    """A trainer that was killed would take what it has again, or count what it has as dropped."""
    states = StreamStates()
    for number in range(5_000):
        states.apply({"marks": {b"%16d" % number: [1, 20]}, "tails": {b"%16d" % number: TAIL}})
    states.apply({"tails": {b"%16d" % 0: None}})
    read = decoded(encoded(states.whole()))
    assert (len(read["marks"]), len(read["tails"])) == (5_000, 4_999)


def test_rows_of_many_small_arrays_do_not_end_a_run() -> None:
    """A record holds a million values; each array and its name are some of them."""
    states = StreamStates()
    row = {f"sensor{number}": np.zeros((1, 1), np.float32) for number in range(300)}
    for number in range(3_600):
        states.apply({"marks": {b"%16d" % number: [1, 20]}, "tails": {b"%16d" % number: [5, 3, row]}})
    read = decoded(encoded(states.whole()))
    kept = [stream for stream, tail in read["tails"].items() if tail is not None]
    assert len(read["marks"]) == 3_600
    assert 300 < len(kept) < 3_600
    assert kept == list(states.tails)[-len(kept) :]


@pytest.mark.parametrize(
    "changes",
    [
        3,
        {"marks": 3},
        {"marks": {b"s": 3}},
        {"marks": {b"s": [1]}},
        {"marks": {b"s": [1, -1]}},
        {"marks": {b"s": [1, 1 << 63]}},
        {"marks": {b"s": [True, 1]}},
        {"marks": {"s": [1, 2]}},
        {"tails": {b"s": [1, 2]}},
        {"tails": {b"s": [1, 2, 3]}},
        {"tails": {b"s": [1, 2, {"a": None}]}},
        {"tails": {b"s": [1.5, 2, np.zeros(1)]}},
    ],
)
def test_impossible_states_are_refused(changes: Any) -> None:
    with pytest.raises(StorageError, match="a note of the replay memory"):
        decoded(encode_value(changes))


@pytest.mark.parametrize(
    "leaf", [["", ",f4", [3]], ["", "|O", [3]], ["", "f4,f4", [1]], ["", "<f4", [-1]], ["", "<f4", [1.5]]]
)
def test_dtypes_of_a_layout_come_from_a_table(leaf: list[Any]) -> None:
    tree = {"shape": None, "leaves": [leaf]}
    with pytest.raises((KeyError, TypeError, ValueError)):
        RowLayout.from_description({"observation": tree, "action": tree})
