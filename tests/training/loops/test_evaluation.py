from __future__ import annotations

from typing import Any

import pytest

from tmrl_core.networking.protocol.messages import Evaluation
from tmrl_core.samples import EpisodeRecord
from tmrl_core.training.loops.evaluation import EvaluationResult, Evaluator

A, B, C, D = (bytes([letter]) * 16 for letter in b"abcd")


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


class Silence:
    """Workers of which some play, and what is said about the others."""

    def __init__(self, asked: Asked, *playing: bytes, patience_s: float = 60.0) -> None:
        self.now = 0.0
        self.playing = set(playing)
        self.said: list[tuple[bytes, float]] = []
        self.evaluator = Evaluator(
            2,
            10,
            0,
            asked,
            patience_s=patience_s,
            clock=lambda: self.now,
            origin=lambda stream: "one certificate",
            plays=lambda stream: stream in self.playing,
            on_silent=lambda evaluation, stream, silent_s: self.said.append((stream, silent_s)),
        )

    def poll(self, now: float, *members: bytes) -> None:
        self.now = now
        self.evaluator.poll(0, (1, 1), members)


def test_a_worker_that_plays_is_asked_before_an_idle_one(asked: Asked) -> None:
    house = Silence(asked, B)
    house.evaluator.start(0, (1, 1), [A, B])
    house.evaluator.take(played(asked[-1][0], {10: 1.0, 11: 1.0}), B)
    house.evaluator.start(0, (1, 1), [A, B])
    house.playing = {A}  # the one that was kept is idle now
    house.evaluator.start(0, (1, 1), [A, B])
    assert [stream for _, stream in asked] == [B, B, A]


def test_idle_workers_are_asked_if_none_plays_and_the_first_stays(asked: Asked) -> None:
    house = Silence(asked)
    house.evaluator.start(0, (1, 1), [A, B])
    house.evaluator.take(played(asked[-1][0], {10: 1.0, 11: 1.0}), A)
    house.evaluator.start(0, (1, 1), [B, A])
    assert [stream for _, stream in asked] == [A, A]


def test_an_idle_worker_is_named_after_ten_seconds_and_one_that_plays_is_asked(asked: Asked) -> None:
    house = Silence(asked)
    house.evaluator.start(0, (1, 1), [A])
    house.playing = {B}
    house.poll(9.9, A, B)
    assert (len(asked), house.said) == (1, [])
    house.poll(10.0, A, B)
    assert [stream for _, stream in asked] == [A, B]
    assert house.said == [(A, 10.0)]
    house.poll(20.0, A, B)
    house.poll(30.0, A, B)
    assert house.said == [(A, 10.0), (B, 10.0)], "once each"
    assert len(asked) == 2


def test_a_worker_is_not_named_for_episodes_as_long_as_those_of_the_evaluation_before(asked: Asked) -> None:
    house = Silence(asked, A)
    for evaluation in range(3):
        start = 100.0 * evaluation
        house.now = start
        house.evaluator.start(0, (1, 1), [A, B])
        for seed, at in ((10, 15.0), (11, 30.0)):
            house.poll(start + at - 1, A, B)
            house.now = start + at
            house.evaluator.take(played(asked[-1][0], {seed: 1.0}), A)
    assert house.said == [(A, 14.0)]
    assert [stream for _, stream in asked] == [A] * 3


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
    evaluator.start(0, (1, 1), [A, B, C, D])
    for second, expected in ((59, [A]), (60, [A, B]), (179, [A, B]), (180, [A, B, C]), (359, [A, B, C])):
        now[0] = second
        evaluator.poll(0, (1, 1), [A, B, C, D])
        assert [stream for _, stream in asked] == expected
    # Episodes show that it plays.
    evaluator.take(played(asked[-1][0], {10: -1.0}), C)
    now[0] = 538
    evaluator.poll(0, (1, 1), [A, B, C, D])
    assert len(asked) == 3
    # There is nobody else to ask.
    now[0] = 1000
    evaluator.poll(0, (1, 1), [A, B, C])
    assert len(asked) == 3


class Fleet:
    """Workers that play each evaluation to its end, one after the other. Silent ones play none."""

    def __init__(self, asked: Asked, workers: int, episode_s: float, silent: int = 0, **kwargs: Any) -> None:
        self.now = 0.0
        self.asked = asked
        self.streams = [number.to_bytes(16, "big") for number in range(workers)]
        self.silent = silent
        self.episode_s = episode_s
        self.ends = dict.fromkeys(self.streams, 0.0)
        self.due: list[tuple[float, Evaluation, int, bytes]] = []
        self.evaluator = Evaluator(3, 0, 0, self.ask, patience_s=60.0, clock=lambda: self.now, **kwargs)

    def ask(self, evaluation: Evaluation, stream: bytes) -> None:
        self.asked(evaluation, stream)
        if self.streams.index(stream) >= self.silent:
            for seed in evaluation.seeds:
                self.ends[stream] = max(self.ends[stream], self.now) + self.episode_s
                self.due.append((self.ends[stream], evaluation, seed, stream))

    def evaluate(self) -> tuple[float, int]:
        """Return the seconds until an evaluation is finished, and the number of workers that were asked."""
        began, before, results = self.now, len(self.asked), len(self.evaluator.results)
        self.evaluator.start(0, (1, 1), self.streams)
        while len(self.evaluator.results) == results:
            self.now += 10.0
            for one in [one for one in self.due if one[0] <= self.now]:
                self.due.remove(one)
                self.evaluator.take(played(one[1], {one[2]: 0.0}), one[3])
            self.evaluator.poll(0, (1, 1), self.streams)
            assert self.now - began < 100_000, "no worker is waited for"
        return self.now - began, len(self.asked) - before


@pytest.mark.parametrize(("episode_s", "most"), [(50, 1), (90, 2), (300, 3), (3_000, 10)])
@pytest.mark.parametrize("workers", [1, 2, 100])
def test_long_episodes_take_their_time_and_few_workers(asked: Asked, workers: int, episode_s: float, most: int) -> None:
    fleet = Fleet(asked, workers, episode_s)
    seconds, number = fleet.evaluate()
    assert (seconds, number) == (3 * episode_s, min(workers, most))
    assert [fleet.evaluate() for _ in range(3)] == [(3 * episode_s, 1)] * 3, "later evaluations know their length"


def test_workers_that_never_play_delay_one_evaluation(asked: Asked) -> None:
    fleet = Fleet(asked, 20, 20, silent=10)
    assert fleet.evaluate() == (60 * 55 + 60, 11)
    assert [fleet.evaluate() for _ in range(3)] == [(60, 1)] * 3


def test_disconnects_do_not_prolong_the_wait_for_a_silent_worker(asked: Asked) -> None:
    now = [0.0]
    evaluator = Evaluator(1, 10, 0, asked, patience_s=60.0, clock=lambda: now[0], origin=lambda stream: "fleet")
    members = [A, B]
    for number in range(12):
        evaluator.start(0, (1, 1), members)
        members.remove(asked[-1][1])
        members.append(b"%016d" % number)
        evaluator.poll(0, (1, 1), members)
        evaluation, stream = asked[-1]
        assert evaluator.take(played(evaluation, {10: -1.0}), stream) is not None
    evaluator.start(0, (1, 1), members)
    now[0] = 60.0
    evaluator.poll(0, (1, 1), members)
    assert asked[-1][1] != asked[-2][1]


def test_workers_that_were_asked_before_cannot_delay_the_next_one_in_turn(asked: Asked) -> None:
    now = [0.0]
    evaluator = Evaluator(3, 10, 0, asked, patience_s=60.0, clock=lambda: now[0])
    evaluator.start(0, (1, 1), [A, B, C, D])
    for now[0] in (60.0, 180.0):
        evaluator.poll(0, (1, 1), [A, B, C, D])
    for now[0], (evaluation, stream) in zip((190.0, 250.0), asked[:2], strict=True):
        evaluator.take(played(evaluation, {10: -1.0}), stream)
    now[0] = 430.0
    evaluator.poll(0, (1, 1), [A, B, C, D])
    assert asked[-1][1] == D, "the second did not come further than the first"


def test_a_worker_that_left_and_returned_is_asked_again(asked: Asked) -> None:
    evaluator = Evaluator(1, 10, 0, asked)
    evaluator.start(0, (1, 1), [A])
    for members in ([], [A]):
        evaluator.poll(0, (1, 1), members)
    assert [stream for _, stream in asked] == [A, A]


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
    assert list(evaluator._open.attempts[A].records) == [10]
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
