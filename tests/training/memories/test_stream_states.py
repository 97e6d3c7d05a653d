"""Notes of a replay memory on disk that somebody else has written are refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tmrl_core.errors import StorageError
from tmrl_core.samples import encode_value
from tmrl_core.training.memories.layout import RowLayout
from tmrl_core.training.memories.stream_states import decoded, encoded

TAIL = [3, 7, {"a": (np.zeros((1, 3)),)}]


def test_written_data_is_read_back() -> None:
    changes: Any = {"marks": {b"s": [1, 20]}, "tails": {b"s": TAIL, b"t": None}, "values": {"updates": 3}}
    read = decoded(encoded(changes))
    assert read["marks"] == changes["marks"]
    assert set(read["tails"]) == {b"s", b"t"}
    assert decoded(b"") == {}


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
