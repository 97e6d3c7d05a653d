from __future__ import annotations

from tmrl_core.gateway.evaluations import PATIENCE_S, Assignment, Evaluations
from tmrl_core.networking.protocol.messages import Evaluation

ASKED = Evaluation(7, (100, 101), (1, 3))


def test_each_seed_is_one_episode_and_the_next_ones_are_ordinary() -> None:
    evaluations = Evaluations()
    assert evaluations.take(None, (1, 3), 0.0) is None
    assert [evaluations.take(ASKED, (1, 3), 0.0) for _ in range(3)] == [Assignment(7, 100), Assignment(7, 101), None]


def test_the_policy_has_at_least_the_version_of_the_same_trainer() -> None:
    evaluations = Evaluations()
    assert evaluations.take(ASKED, (1, 2), 0.0) is None
    assert evaluations.take(ASKED, (2, 9), 0.0) is None
    assert evaluations.take(ASKED, (1, 4), 0.0) is not None


def test_an_episode_whose_client_has_left_is_played_again() -> None:
    evaluations = Evaluations()
    first, second = (evaluations.take(ASKED, (1, 3), 0.0) for _ in range(2))
    assert first is not None
    assert second is not None
    evaluations.finished(second)
    evaluations.give_back(first)
    evaluations.give_back(second)
    assert evaluations.take(ASKED, (1, 3), 0.0) == first
    assert evaluations.take(ASKED, (1, 3), 0.0) is None


def test_an_episode_that_lasts_too_long_is_played_by_another_session_too() -> None:
    evaluations = Evaluations()
    first, second = (evaluations.take(ASKED, (1, 3), 0.0) for _ in range(2))
    assert second is not None
    evaluations.finished(second)
    assert evaluations.take(ASKED, (1, 3), PATIENCE_S - 1) is None
    assert evaluations.take(ASKED, (1, 3), PATIENCE_S) == first
    assert evaluations.take(ASKED, (1, 3), PATIENCE_S) is None


def test_another_evaluation_takes_the_place_of_one_that_is_not_finished() -> None:
    evaluations = Evaluations()
    old = evaluations.take(ASKED, (1, 3), 0.0)
    assert old is not None
    asked = Evaluation(8, (100,), (1, 4))
    assert evaluations.take(asked, (1, 4), 0.0) == Assignment(8, 100)
    evaluations.give_back(old)
    assert evaluations.take(asked, (1, 4), 0.0) is None
