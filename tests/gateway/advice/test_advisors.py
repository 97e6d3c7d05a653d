from __future__ import annotations

import numpy as np

from tmrl_core.gateway.advice.advisors import Advisor, Board
from tmrl_core.gateway.advice.combine import Choice


def advisor(number: int) -> Advisor[Choice]:
    return lambda obs: np.array([float(number)])


def asked(board: Board[Choice], session_id: str, limit: int) -> list[int]:
    return [int(each(None)[0]) for each in board.advisors(session_id, limit)]


def test_the_most_trained_others_advise() -> None:
    board: Board[Choice] = Board()
    for number in (3, 1, 4, 2):
        board.publish(f"s{number}", number * 100, advisor(number))
    assert asked(board, "s4", 2) == [3, 2]
    assert asked(board, "new", 10) == [4, 3, 2, 1]
    assert asked(board, "new", 0) == []


def test_a_session_has_one_policy_until_it_ends() -> None:
    board: Board[Choice] = Board()
    board.publish("a", 10, advisor(1))
    before = board.advisors("b", 1)
    board.publish("a", 20, advisor(2))
    assert asked(board, "b", 4) == [2]
    assert int(before[0](None)[0]) == 1
    board.withdraw("a")
    board.withdraw("a")
    assert asked(board, "b", 4) == []
