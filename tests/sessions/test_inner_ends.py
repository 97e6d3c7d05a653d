"""Sequences with ends inside: pieces by a slow loop, and the counts."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

from tmrl_core.sessions import Session
from tmrl_core.sessions.inner_ends import InnerEnds


def sequence(ticks: int) -> Session:
    return Session(
        observations={"x": np.arange(ticks + 1)},
        actions=(np.arange(ticks),),
        rewards=np.arange(ticks),
        extras={"v": np.arange(ticks)},
        infos={row: {"row": row} for row in range(ticks + 1)},
        seed=5,
        first_step=3,
        source="arm",
    )


def expected(flags: list[str], last_known: bool) -> tuple[list[Any], int]:
    """Return (observations, actions, terminated, truncated) of each piece, and the steps that are left out."""
    pieces, steps, left_out = [], [], 0
    for step, flag in enumerate(flags):
        if flag and step and flags[step - 1]:
            left_out += 1
            continue
        steps.append(step)
        if flag:
            if last_known and step == len(flags) - 1:
                pieces.append(([*steps, step + 1], steps, flag == "terminated", flag == "truncated"))
            elif flag == "terminated":
                pieces.append(([*steps, step], steps, True, False))
            else:
                left_out += 1
                if len(steps) > 1:
                    pieces.append((steps, steps[:-1], False, True))
            steps = []
    if steps:
        pieces.append(([*steps, steps[-1] + 1], steps, False, False))
    return pieces, left_out


@pytest.mark.parametrize("last_known", [True, False])
def test_all_flags_of_four_steps_give_the_pieces_of_a_slow_loop(last_known: bool) -> None:
    for flags in product(["", "terminated", "truncated"], repeat=4):
        ends = InnerEnds()
        terminated, truncated = (np.array([flag == name for flag in flags]) for name in ("terminated", "truncated"))
        found: list[Any] = list(ends.split(sequence(4), terminated, truncated, last_known=last_known))
        pieces, left_out = expected(list(flags), last_known)
        assert [
            (piece.observations["x"].tolist(), piece.actions[0].tolist(), piece.terminated, piece.truncated)
            for piece in found
        ] == pieces, flags
        assert ends.left_out == left_out, flags
        for piece in found:
            assert piece.rewards.tolist() == piece.extras["v"].tolist() == piece.actions[0].tolist()
            begin = int(piece.rewards[0])
            assert (piece.seed, piece.first_step, piece.source) == ((5, 3) if begin == 0 else (None, 0)) + ("arm",)
            assert all(info == {"row": begin + row} for row, info in piece.infos.items())


def test_a_sequence_without_inner_ends_is_the_same_object_s_columns() -> None:
    whole, ends = sequence(4), InnerEnds()
    last = np.array([False, False, False, True])
    (found,) = ends.split(whole, last, np.zeros(4, bool), last_known=True)
    assert found.observations is whole.observations
    assert (found.terminated, found.truncated, ends) == (True, False, InnerEnds())
