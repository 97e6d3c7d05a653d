"""Dict and Tuple spaces as trees: their leaves in order, and other leaves in their places."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium import Space, spaces

from tmrl_core.space_tree import Path, space_leaves, widest, with_leaves

BOX, TEXT = spaces.Box(-1, 1, (2,), np.float32), spaces.Text(3)
SPACE = spaces.Dict([("z", BOX), ("a", spaces.Tuple([spaces.Discrete(3), TEXT])), ("said", spaces.Dict(of=TEXT))])


def test_leaves_come_in_the_order_of_the_space() -> None:
    assert [path for path, _ in space_leaves(SPACE)] == [("z",), ("a", 0), ("a", 1), ("said", "of")]
    assert list(space_leaves(BOX)) == [((), BOX)]


def test_leaves_are_replaced_and_left_out() -> None:
    def change(path: Path, leaf: Space[object]) -> Space[object] | None:
        return None if leaf == TEXT else spaces.MultiBinary(len(path))

    changed = with_leaves(SPACE, change)
    ones = spaces.MultiBinary(1), spaces.MultiBinary(2)
    assert changed == spaces.Dict([("z", ones[0]), ("a", spaces.Tuple([ones[1]]))])
    assert isinstance(changed, spaces.Dict)
    assert list(changed) == ["z", "a"]
    assert with_leaves(TEXT, change) is None


@pytest.mark.parametrize(("dtype", "low", "high"), [("int8", -128, 127), ("float32", -np.inf, np.inf), ("bool", 0, 1)])
def test_the_widest_space_has_all_numbers(dtype: str, low: float, high: float) -> None:
    space = widest((2,), np.dtype(dtype))
    assert (space.dtype, space.shape) == (np.dtype(dtype), (2,))
    assert (space.low == low).all()
    assert (space.high == high).all()
