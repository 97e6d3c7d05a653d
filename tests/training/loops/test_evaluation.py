from __future__ import annotations

from typing import Any

import pytest

from tmrl_core.networking.protocol.messages import Evaluation
from tmrl_core.samples import EpisodeRecord
from tmrl_core.training.loops.evaluation import EvaluationResult, Evaluator

A, B = b"a" * 16, b"b" * 16


class Asked(list[tuple[Evaluation, bytes]]):
    def __call__(self, evaluation: Evaluation, stream: bytes) -> None:
        self.append((evaluation, stream))


def played(evaluation: Evaluation, returns: dict[int, float], end: Any = "truncated") -> list[EpisodeRecord]:
    return [
        EpisodeRecord("", value, 200, "test", end, seed=seed, evaluation=evaluation.id, worker="w")
        for seed, value in returns.items()
    ]


@pytest.fixture
def asked() -> Asked:
    return Asked()


def test_an_evaluation_is_due_after_each_interval_of_updates(asked: Asked) -> None:
    evaluator = Evaluator(2, 1000, 100, asked)
    evaluator.poll(99, (1, 1), [A])
    assert asked == []
    evaluator.poll(250, (1, 3), [A])
    ((evaluation, stream),) = asked
    assert (evaluation.seeds, evaluation.version, stream) == ((1000, 1001), (1, 3), A)
    evaluator.take(played(evaluation, {1000: 0, 1001: 0}), A)
    evaluator.poll(299, (1, 4), [A])
    assert len(asked) == 1
    evaluator.poll(300, (1, 4), [A])
    assert len(asked) == 2


def test_no_evaluation_is_requested_before_a_policy_is_published(asked: Asked) -> None:
    Evaluator(2, 0, 100, asked).poll(100, (0, 0), [A])
    assert asked == []


def test_the_result_is_the_mean_over_all_seeds(asked: Asked) -> None:
    evaluator = Evaluator(3, 10, 0, asked)
    evaluator.start(7, (2, 5), [A])
    evaluation = asked[0][0]
    assert evaluator.take(played(evaluation, {12: -3.0}), A) is None
    result = evaluator.take(played(evaluation, {10: -1.0, 11: -2.0}), A)
    assert result is not None
    assert (result.returns, result.mean, result.updates, result.version) == ((-1.0, -2.0, -3.0), -2.0, 7, (2, 5))
    assert result.spread == pytest.approx((2 / 3) ** 0.5)
    assert evaluator.latest is result
    assert not evaluator.is_open


def test_other_episodes_do_not_count(asked: Asked) -> None:
    evaluator = Evaluator(1, 10, 0, asked)
    evaluator.start(0, (1, 1), [A])
    evaluation = asked[0][0]
    assert evaluator.take([EpisodeRecord("", 5.0, 3, "test", "truncated", seed=10)], A) is None
    assert evaluator.take(played(Evaluation(evaluation.id + 1, (10,)), {10: 5.0}), A) is None
    assert evaluator.take(played(evaluation, {10: 5.0}, end="aborted"), A) is None
    assert evaluator.take(played(evaluation, {11: 5.0}), A) is None
    assert evaluator.is_open


def test_episodes_of_a_worker_that_was_not_asked_do_not_count(asked: Asked) -> None:
    now = [0.0]
    evaluator = Evaluator(1, 10, 0, asked, patience_s=60.0, clock=lambda: now[0])
    evaluator.start(0, (1, 1), [A, B])
    now[0] = 59.0
    assert evaluator.take(played(asked[0][0], {10: 1e9}), B) is None
    now[0] = 60.0
    evaluator.poll(0, (1, 1), [A, B])
    assert [stream for _, stream in asked] == [A, B], "nor do they show that the evaluation is played"
    assert evaluator.take(played(asked[1][0], {10: 1e9}), A) is None
    result = evaluator.take(played(asked[1][0], {10: -1.0}), B)
    assert result is not None
    assert result.returns == (-1.0,)


def test_the_same_worker_is_requested_while_connected(asked: Asked) -> None:
    evaluator = Evaluator(1, 10, 0, asked)
    for members in ([B], [A, B], [A, B]):
        evaluator.start(0, (1, 1), members)
    assert [stream for _, stream in asked] == [B, B, B]


def test_another_worker_runs_the_complete_evaluation_when_the_first_leaves(asked: Asked) -> None:
    evaluator = Evaluator(2, 10, 0, asked)
    evaluator.start(0, (1, 1), [A, B])
    first = asked[0][0]
    evaluator.take(played(first, {10: -1.0}), A)
    evaluator.poll(0, (1, 2), [B])
    second, stream = asked[1]
    assert stream == B
    assert second.id != first.id
    assert second.version == first.version
    assert evaluator.take(played(first, {11: -1.0}), A) is None
    assert evaluator.take(played(second, {10: -5.0}), B) is None
    result = evaluator.take(played(second, {11: -5.0}), B)
    assert result is not None
    assert result.returns == (-5.0, -5.0)


def test_without_workers_it_waits_for_one(asked: Asked) -> None:
    evaluator = Evaluator(1, 10, 0, asked)
    evaluator.start(0, (1, 1), [])
    assert evaluator.is_open
    evaluator.poll(0, (1, 1), [])
    assert asked == []
    evaluator.poll(0, (1, 1), [A])
    assert [stream for _, stream in asked] == [A]


def test_an_idle_worker_is_replaced_and_patience_grows(asked: Asked) -> None:
    now = [0.0]
    evaluator = Evaluator(2, 10, 0, asked, patience_s=60.0, clock=lambda: now[0])
    evaluator.start(0, (1, 1), [A, B])
    for second, expected in ((59, [A]), (60, [A, B]), (119, [A, B]), (120, [A, B, A]), (239, [A, B, A])):
        now[0] = second
        evaluator.poll(0, (1, 1), [A, B])
        assert [stream for _, stream in asked] == expected
    # Episodes show that it plays.
    now[0] = 400
    evaluator.take(played(asked[-1][0], {10: -1.0}), A)
    now[0] = 519
    evaluator.poll(0, (1, 1), [A, B])
    assert len(asked) == 3
    # There is nobody else to ask.
    now[0] = 1000
    evaluator.poll(0, (1, 1), [A])
    assert len(asked) == 3


@pytest.mark.parametrize("leaves", [False, True])
def test_one_origin_with_many_streams_does_not_hold_up_evaluations(asked: Asked, leaves: bool) -> None:
    now = [0.0]
    evaluator = Evaluator(
        1, 10, 0, asked, patience_s=60.0, clock=lambda: now[0], origin=lambda stream: stream[:1].decode()
    )
    hostile = [b"h%d" % number for number in range(1_000)]
    for number in range(3):
        evaluator.start(0, (1, 1), [*hostile, A])
        if number == 0:
            assert asked[-1][1] == hostile[0]
            if leaves:
                hostile.remove(hostile[0])
            now[0] += 60.0
            evaluator.poll(0, (1, 1), [*hostile, A])
        evaluation, stream = asked[-1]
        assert stream == A
        assert evaluator.take(played(evaluation, {10: -1.0}), A) is not None
    assert len(evaluator._failures) <= len(hostile) + 3


def test_repeated_and_invented_episodes_do_not_delay_the_next_worker(asked: Asked) -> None:
    now = [0.0]
    evaluator = Evaluator(2, 10, 0, asked, patience_s=60.0, clock=lambda: now[0])
    evaluator.start(0, (1, 1), [A, B])
    for second in range(60):
        now[0] = second
        evaluator.take(played(asked[0][0], dict.fromkeys([10, *range(12, 99)], -1.0)), A)
        evaluator.poll(0, (1, 1), [A, B])
    assert evaluator._open is not None
    assert list(evaluator._open.records) == [10]
    now[0] = 60
    evaluator.poll(0, (1, 1), [A, B])
    assert asked[-1][1] == B


def test_a_worker_is_asked_although_an_expert_has_the_same_certificate(asked: Asked) -> None:
    now = [0.0]
    evaluator = Evaluator(1, 10, 0, asked, patience_s=60.0, clock=lambda: now[0], origin=lambda stream: "robot7")
    evaluator.start(0, (1, 1), [A, B])
    now[0] = 60
    evaluator.poll(0, (1, 1), [A, B])
    assert [stream for _, stream in asked] == [A, B]


def test_the_only_worker_is_asked_again_after_a_loss(asked: Asked) -> None:
    now = [0.0]
    evaluator = Evaluator(2, 10, 0, asked, patience_s=60.0, clock=lambda: now[0])
    evaluator.start(0, (1, 1), [A])
    evaluator.take(played(asked[0][0], {10: -1.0}), A)
    evaluator.lost(B)
    now[0] = 60
    evaluator.poll(0, (1, 1), [A])
    assert len(asked) == 1, "it has lost nothing, and its episodes may be long"
    evaluator.lost(A)
    for second, requests in ((119, 1), (120, 2), (239, 2), (240, 2), (10_000, 2)):
        now[0] = second
        evaluator.poll(0, (1, 1), [A])
        assert len(asked) == requests
    result = evaluator.take(played(asked[1][0], {10: -1.0, 11: -3.0}), A)
    assert result is not None
    assert result.mean == -2.0


@pytest.mark.parametrize(
    ("returns", "mean", "spread"),
    [
        ((1.0, 3.0), 2.0, 1.0),
        ((1e308, 1e308), float("inf"), 0.0),
        ((float("inf"), 1.0), float("inf"), float("nan")),
        ((float("inf"), float("-inf")), float("nan"), float("nan")),
        ((float("nan"), 1.0), float("nan"), float("nan")),
        ((1e308, -1e308), 0.0, 1e308),
    ],
)
def test_returns_may_be_any_numbers(returns: tuple[float, ...], mean: float, spread: float) -> None:
    result = EvaluationResult(1, (1, 1), 10, returns, (1, 1), "arm")
    assert (result.mean, result.spread) == pytest.approx((mean, spread), nan_ok=True)
