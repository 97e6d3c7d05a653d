"""Rounds with a clock of the test's own, and a seeded crowd of workers that are slow, die, lose samples and return."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from tmrl_core.networking.protocol.messages import Collect
from tmrl_core.samples import Chunk, Segment
from tmrl_core.training.loops.lockstep_round import LONGEST, SLOW, Assignment, LastRows, Round

A, B, C = (bytes([number]) * 16 for number in (1, 2, 3))
HERE = [(B, "b"), (A, "a")]

Rows = Callable[..., Chunk]


def never(stream: bytes, what: Collect) -> bool:
    return False


def make(amount: int = 10, **kwargs: Any) -> Round:
    return Round(4, (1, 7), **{"amount": amount, "grace_s": 5.0, **kwargs})


def take(round_: Round, rows: LastRows, chunk: Chunk, now: float = 0.0) -> None:
    round_.take(rows.join(chunk), now)


def versions(round_: Round) -> set[tuple[int, int]]:
    return {run.version for segment in round_.segments for run in segment.chunk.segments}


def steps(round_: Round) -> int:
    return sum(sum(segment.follows) for segment in round_.segments)


def test_the_amount_is_divided_into_assignments_by_name() -> None:
    round_ = make(11)
    assert round_.poll([], 0.0, never) == []
    asked = dict(round_.poll(HERE, 0.0, never))
    assert {stream: (what.steps, what.version, what.round) for stream, what in asked.items()} == {
        A: (6, (1, 7), 4),
        B: (5, (1, 7), 4),
    }
    assert round_.poll([*HERE, (C, "c")], 1.0, never) == []  # who joins waits for the next round


def test_a_small_round_sends_no_empty_requests() -> None:
    round_ = make(1)
    assert [stream for stream, _ in round_.poll(HERE, 0.0, never)] == [A]


def test_counted_rows_are_of_the_version_within_the_assignment_and_no_resets(make_rows: Rows) -> None:
    round_, rows = make(10), LastRows()
    round_.poll(HERE, 0.0, never)
    take(round_, rows, make_rows(1, 0, 0, 3, version=(1, 6)))  # late: a reset and two steps
    take(round_, rows, make_rows(1, 0, 3, 4, version=(1, 7)))  # four steps that follow them
    take(round_, rows, make_rows(1, 1, 0, 4, version=(1, 7)))  # a reset, a step, and two too many
    take(round_, rows, make_rows(3, 0, 0, 4, version=(1, 7)))  # of somebody who was not asked
    assert (round_.late, round_.surplus, round_.collected) == (3, 2 + 4, 5)
    assert not round_.complete
    take(round_, rows, make_rows(2, 0, 0, 6, version=(1, 7)))
    complete: bool = round_.complete
    assert complete
    assert versions(round_) == {(1, 7)}
    assert steps(round_) == 10


@pytest.mark.parametrize("episodes", [False, True])
def test_rows_that_do_not_count_are_passed_over_at_once(
    make_rows: Rows, monkeypatch: pytest.MonkeyPatch, episodes: bool
) -> None:
    """A message of 500 bytes may hold millions of them; a look at each took two seconds."""
    looks = 0

    def missing(assignment: Assignment) -> int:
        nonlocal looks
        looks += 1
        return assignment.wanted - assignment.collected

    monkeypatch.setattr(Assignment, "missing", property(missing))
    round_, rows = make(10, episodes=episodes), LastRows()
    round_.poll(HERE, 0.0, never)
    chunk = make_rows(1, 0, 1, 1_000, version=(1, 7), end="terminated")
    chunk.action_present[:-2] = False
    take(round_, rows, chunk)
    assert round_.collected == (1 if episodes else 2)
    assert looks < 20


def test_the_order_is_by_name_and_not_by_arrival(make_rows: Rows) -> None:
    orders = []
    for streams in ((1, 2), (2, 1)):
        round_, rows = make(10), LastRows()
        round_.poll(HERE, 0.0, never)
        for stream in streams:
            take(round_, rows, make_rows(stream, 0, 0, 6, version=(1, 7)))
        orders.append([segment.chunk.stream for segment in round_.segments])
    assert orders == [[A, B]] * 2


def test_a_row_after_a_gap_does_not_count_as_step(make_rows: Rows) -> None:
    round_, rows = make(10), LastRows()
    round_.poll(HERE, 0.0, never)
    take(round_, rows, make_rows(1, 0, 0, 3, version=(1, 7)))
    take(round_, rows, make_rows(1, 0, 5, 2, version=(1, 7)))
    assert round_.collected == 2 + 1


def test_a_worker_that_finishes_too_early_collects_lost_samples_again(make_rows: Rows) -> None:
    round_, rows = make(10), LastRows()
    round_.poll(HERE, 0.0, never)
    take(round_, rows, make_rows(1, 0, 0, 3, version=(1, 7)))
    said = Collect(4, (1, 7), 5).done

    def says(stream: bytes, what: Collect) -> bool:
        return stream == A and what.done == said

    assert round_.poll(HERE, 0.1, says) == [(A, Collect(4, (1, 7), 8))]
    assert round_.poll(HERE, 0.2, says) == []
    assert round_.repeated == 3
    take(round_, rows, make_rows(1, 0, 3, 9, version=(1, 7)))
    assert round_.collected == 5
    assert round_.surplus == 6


def test_the_missing_part_of_a_disconnected_worker_is_reassigned(make_rows: Rows) -> None:
    round_, rows = make(10), LastRows()
    round_.poll(HERE, 0.0, never)
    take(round_, rows, make_rows(1, 0, 0, 3, version=(1, 7)), 1.0)
    take(round_, rows, make_rows(2, 0, 0, 3, version=(1, 7)), 4.0)
    assert round_.poll(HERE[:1], 5.9, never) == []
    assert round_.poll(HERE[:1], 6.0, never) == [(A, Collect(4, (1, 7), 2)), (B, Collect(4, (1, 7), 8))]
    assert (round_.redistributed, round_.stalled) == (3, ["a"])
    take(round_, rows, make_rows(1, 0, 3, 5, version=(1, 7)), 6.5)  # it was only away
    assert round_.surplus == 5
    take(round_, rows, make_rows(2, 0, 3, 6, version=(1, 7)), 7.0)
    assert round_.complete
    assert steps(round_) == 10


def test_a_late_worker_has_the_grace_period_after_the_first_finished_one(make_rows: Rows) -> None:
    round_, rows = make(10), LastRows()
    round_.poll(HERE, 0.0, never)
    take(round_, rows, make_rows(2, 0, 0, 6, version=(1, 7)), 3.0)
    for second in range(4, 8):
        take(round_, rows, make_rows(1, 0, second - 4, 1, version=(1, 7)), float(second))
        assert round_.poll(HERE, float(second), never) == []
    assert round_.poll(HERE, 8.0, never) == [(A, Collect(4, (1, 7), 3)), (B, Collect(4, (1, 7), 7))]
    # It does not go back and forth.
    assert round_.poll(HERE, 8.1, never) == []


def test_one_worker_alone_may_take_as_long_as_it_likes(make_rows: Rows) -> None:
    round_ = make(10)
    round_.poll(HERE[:1], 0.0, never)
    assert round_.poll(HERE[:1], 1e6, never) == []


def test_a_restarted_worker_gets_the_missing_part_if_alone(make_rows: Rows) -> None:
    round_, rows = make(10), LastRows()
    round_.poll(HERE[:1], 0.0, never)
    take(round_, rows, make_rows(2, 0, 0, 4, version=(1, 7)), 1.0)
    assert round_.poll([(C, "c")], 5.0, never) == []
    assert round_.poll([(C, "c")], 6.0, never) == [(B, Collect(4, (1, 7), 3)), (C, Collect(4, (1, 7), 7))]
    take(round_, rows, make_rows(3, 0, 0, 8, version=(1, 7)), 7.0)
    assert round_.complete


def test_a_restarted_worker_takes_its_missing_part_at_once_and_once(make_rows: Rows) -> None:
    origins = {C: "other"}
    round_, rows = make(10, origin_of=lambda stream: origins.get(stream, "fleet")), LastRows()
    round_.poll(HERE, 0.0, never)
    take(round_, rows, make_rows(2, 0, 0, 4, version=(1, 7)), 1.0)
    second, third = bytes([8]) * 16, bytes([9]) * 16
    assert round_.poll([(A, "a"), (C, "b")], 1.5, never) == [], "a name is no proof: it is of another origin"
    assert round_.poll([(A, "a"), (C, "b"), (second, "b")], 2.0, never) == [(second, Collect(4, (1, 7), 2))]
    assert (round_.redistributed, round_.stalled) == (0, [])
    take(round_, rows, make_rows(2, 0, 4, 2, version=(1, 7)), 2.5)  # its earlier process was only away
    assert round_.surplus == 2
    assert round_.poll([(A, "a"), (third, "b")], 3.0, never) == [], "or it could hold a part for ever"
    take(round_, rows, make_rows(1, 0, 0, 6, version=(1, 7)), 4.0)
    asked = dict(round_.poll([(A, "a"), (third, "b")], 7.0, never))
    assert asked.keys() == {second, A}
    take(round_, rows, make_rows(1, 0, 6, 2, version=(1, 7)), 8.0)
    assert round_.complete
    assert steps(round_) == 10


def test_an_open_episode_of_a_restarted_worker_is_dropped(make_rows: Rows) -> None:
    round_, rows = make(2, episodes=True, origin_of=lambda stream: "fleet"), LastRows()
    round_.poll(HERE, 0.0, never)
    take(round_, rows, make_rows(2, 0, 0, 3, version=(1, 7)), 1.0)
    assert round_.poll([(A, "a"), (C, "b")], 2.0, never) == [(C, Collect(4, (1, 7), None, 1))]
    assert round_.surplus == 3
    take(round_, rows, make_rows(3, 0, 0, 4, version=(1, 7), end="terminated"), 3.0)
    take(round_, rows, make_rows(1, 0, 0, 4, version=(1, 7), end="terminated"), 3.0)
    assert round_.complete
    assert sorted(length for _, length in round_.episodes) == [3, 3]


def test_a_stalled_worker_gets_no_assignment_until_it_has_sent_something(make_rows: Rows) -> None:
    suspended: set[bytes] = set()
    rows = LastRows()
    first = make(10, suspended=suspended)
    first.poll(HERE, 0.0, never)
    take(first, rows, make_rows(2, 0, 0, 6, version=(1, 7)), 0.0)
    first.poll(HERE, 5.0, never)
    assert suspended == {A}
    second = make(10, suspended=suspended)
    assert [stream for stream, _ in second.poll(HERE, 6.0, never)] == [B]
    take(second, rows, make_rows(1, 0, 0, 2, version=(1, 6)), 6.0)
    assert suspended == set()
    # With nobody else it is asked all the same.
    assert [stream for stream, _ in make(3, suspended={A}).poll(HERE[1:], 0.0, never)] == [A]


def test_a_stalled_worker_that_waits_without_rows_is_asked_in_the_next_round(make_rows: Rows) -> None:
    """It played an evaluation, or its link was away."""
    suspended: set[bytes] = set()
    first, rows = make(10, suspended=suspended), LastRows()
    first.poll(HERE, 0.0, never)
    take(first, rows, make_rows(2, 0, 0, 6, version=(1, 7)), 1.0)
    assert dict(first.poll(HERE, 6.0, never, lambda stream: False)).keys() == {A, B}
    take(first, rows, make_rows(2, 0, 6, 5, version=(1, 7)), 7.0)
    assert first.complete
    second = make(10, suspended=suspended)
    assert dict(second.poll(HERE, 8.0, never, lambda stream: False)).keys() == {B}
    take(second, rows, make_rows(2, 0, 11, 10, version=(1, 7)), 9.0)
    third = make(10, suspended=suspended)
    assert dict(third.poll(HERE, 40.0, never, lambda stream: stream == A)).keys() == {A, B}
    assert suspended == set()
    # One that is away is not asked.
    assert dict(make(10, suspended={A}).poll(HERE[:1], 41.0, never, lambda stream: True)).keys() == {B}


def test_one_origin_with_many_streams_delays_a_round_by_a_few_grace_periods(make_rows: Rows) -> None:
    """Half of its workers finish their first part. Those that have lost one send a row, so that they get another."""
    hostile = [bytes([number]) * 16 for number in range(10, 210)]
    here = [(A, "a"), (B, "b"), *((stream, "thief") for stream in hostile)]
    round_, rows = make(800, origin_of=lambda stream: stream if stream in (A, B) else "thief"), LastRows()
    sent: dict[bytes, int] = dict.fromkeys((A, B, *hostile), 0)
    now = 0.0
    while not round_.complete and now < 300:
        round_.poll(here, now, never)
        for stream in sent:
            assignment = round_.assignments[stream]
            works = stream in (A, B) or (now == 0 and stream[0] % 2)
            count = assignment.missing + (sent[stream] == 0) if works else int(not assignment.missing)
            if count:
                take(round_, rows, make_rows(stream[0], 0, sent[stream], count, version=(1, 7)), now)
                sent[stream] += count
        now += 1.0
    assert round_.complete
    assert now <= 2 * round_.grace_s + 1


THIEVES = [(bytes([number]) * 16, f"!{number}") for number in range(10, 30)]


def origin(stream: bytes) -> bytes:
    return b"thief" if any(stream == thief for thief, _ in THIEVES) else stream


def test_each_origin_gets_a_part_before_any_gets_two() -> None:
    round_ = make(4, episodes=True, origin_of=origin)
    asked = dict(round_.poll([*HERE, *THIEVES, (C, "c")], 0.0, never))
    assert list(asked) == [THIEVES[0][0], A, B, C]
    assert {what.episodes for what in asked.values()} == {1}
    # With one stream of each origin, names decide; with enough parts, each stream gets an equal one.
    assert [stream for stream, _ in make(1).poll([(C, "c"), *HERE], 0.0, never)] == [A]
    many = make(23 * 5, origin_of=origin)
    assert {what.steps for _, what in many.poll([*HERE, *THIEVES, (C, "c")], 0.0, never)} == {5}


@pytest.mark.parametrize("counts", [True, False])
def test_rows_that_end_no_episode_do_not_hold_a_part_while_others_wait(counts: bool, make_rows: Rows) -> None:
    suspended: set[bytes] = set()
    stalled_origins: dict[Any, int] = {}

    def again() -> Round:
        return make(1, episodes=True, origin_of=origin, suspended=suspended, stalled_origins=stalled_origins)

    round_, rows = again(), LastRows()
    here = [*THIEVES, (A, "a")]
    now = 0.0
    round_.poll(here, now, never)
    while A not in round_.assignments and now < 1000:
        now += 1.0
        for stream in [stream for stream in round_.assignments if stream != A]:
            take(round_, rows, make_rows(stream[0], int(0 if counts else now), int(now), 1, version=(1, 7)), now)
        round_.poll(here, now, never)
    assert now <= 2 * SLOW * round_.grace_s
    take(round_, rows, make_rows(1, 0, 0, 3, version=(1, 7), end="terminated"), now)
    assert round_.complete
    if not counts:
        assert len(round_.segments) == 1
    # In the next rounds, its origin comes last.
    assert [stream for stream, _ in again().poll(here, now, never)] == [A]


def test_rows_that_count_no_step_are_no_sign_of_life_and_are_not_kept(make_rows: Rows) -> None:
    round_, rows = make(10), LastRows()
    round_.poll(HERE, 0.0, never)
    for second in range(1, 6):
        take(round_, rows, make_rows(1, second, 0, 1, version=(1, 7)), float(second))
        take(round_, rows, make_rows(2, 0, second, 1, version=(1, 7)), float(second))
    assert round_.poll(HERE, 5.0, never) == [(A, Collect(4, (1, 7), 0)), (B, Collect(4, (1, 7), 10))]
    assert [segment.chunk.stream for segment in round_.segments] == [B] * 4


def test_rows_after_the_end_of_a_part_set_no_period_for_others(make_rows: Rows) -> None:
    round_, rows = make(1, episodes=True), LastRows()
    round_.poll([(A, "a")], 0.0, never)
    here = [(A, "a"), (B, "b")]
    assert dict(round_.poll(here, 5.0, never)).keys() == {A, B}
    take(round_, rows, make_rows(1, 0, 0, 2, version=(1, 7)), 5.0)
    take(round_, rows, make_rows(2, 0, 0, 2, version=(1, 7)), 9.0)
    assert round_.poll(here, 10.0, never) == []


def test_a_part_given_late_in_a_period_is_not_taken_at_its_end(make_rows: Rows) -> None:
    round_, rows = make(15), LastRows()
    here = [*HERE, (C, "c")]
    round_.poll(here, 0.0, never)
    take(round_, rows, make_rows(1, 0, 0, 6, version=(1, 7)), 1.0)
    take(round_, rows, make_rows(2, 0, 0, 2, version=(1, 7)), 4.0)
    assert dict(round_.poll(here, 5.0, never)) == {C: Collect(4, (1, 7), 0), A: Collect(4, (1, 7), 10)}
    assert dict(round_.poll(here, 6.0, never)) == {B: Collect(4, (1, 7), 1), A: Collect(4, (1, 7), 14)}
    assert round_.stalled == ["c", "b"]


@pytest.mark.parametrize("length", [4, 12, 80])
def test_long_episodes_end_although_workers_take_them_from_each_other(length: int, make_rows: Rows) -> None:
    """A worker sends an episode at its end, also if its part was taken, and then begins the next one if asked to."""
    round_, rows = make(1, episodes=True), LastRows()
    here = [*HERE, (C, "c")]
    ends = dict.fromkeys((A, B, C), 0.0)
    number = dict.fromkeys((A, B, C), 0)
    now = 0.0
    while not round_.complete and now < 20 * length + 100:
        round_.poll(here, now, lambda stream, what: ends[stream] == 0.0)
        for stream in ends:
            if ends[stream] and now >= ends[stream]:
                take(round_, rows, make_rows(stream[0], number[stream], 0, 3, version=(1, 7), end="truncated"), now)
                ends[stream] = 0.0
                number[stream] += 1
            elif not ends[stream] and stream in round_.assignments and round_.assignments[stream].missing:
                ends[stream] = now + length
        now += 1.0
    assert round_.complete
    assert now <= 6 * length


class Players:
    """Workers that begin an episode when asked, send its rows each second or at its end, and end it in any case."""

    def __init__(self, make_rows: Rows, workers: int, amount: int, length: int, in_pieces: bool, **kwargs: Any) -> None:
        self.make_rows, self.amount, self.length, self.in_pieces = make_rows, amount, length, in_pieces
        self.here = [(bytes([number]) * 16, f"w{number:03}") for number in range(1, workers + 1)]
        self.kwargs = {"needed": {}, "stalled_origins": {}, "suspended": set(), **kwargs}
        self.begun: dict[bytes, int] = {}
        self.rows, self.now = LastRows(), 0

    def play(self) -> tuple[int, int]:
        """Return the seconds of a round, and the number of requests."""
        round_ = make(self.amount, episodes=True, **self.kwargs)
        started, requests = self.now, 0
        while not round_.complete:
            requests += len(round_.poll(self.here, self.now, lambda stream, what: stream not in self.begun))
            for stream, assignment in round_.assignments.items():
                if assignment.missing:
                    self.begun.setdefault(stream, self.now)
            self.now += 1
            assert self.now - started < 1_000
            for stream, begun in list(self.begun.items()):
                played = self.now - begun
                first, number = (played - 1, 1) if self.in_pieces else (0, 2)
                end = "terminated" if played == self.length else None
                if self.in_pieces or end:
                    chunk = self.make_rows(stream[0], begun, first, number, version=(1, 7), end=end)
                    take(round_, self.rows, chunk, self.now)
                if end:
                    del self.begun[stream]
        return self.now - started, requests


@pytest.mark.parametrize("one_origin", [True, False])
@pytest.mark.parametrize(("length", "in_pieces"), [(25, True), (90, True), (8, False), (50, False)])
def test_later_rounds_know_that_episodes_are_long(
    length: int, in_pieces: bool, one_origin: bool, make_rows: Rows
) -> None:
    players = Players(make_rows, 20, 4, length, in_pieces, origin_of=(lambda stream: "farm") if one_origin else bytes)
    assert players.play()[1] > 4
    assert [players.play() for _ in range(4)] == [(length, 4)] * 4


def test_an_origin_among_others_does_not_prolong_the_rounds() -> None:
    for needed in ({A: (3, 16.0), B: (3, 1.0)}, {A: (3, 1.0), B: (3, 2.0), C: (3, 1.0)}):
        round_ = make(1, episodes=True, needed=dict(needed))
        round_.poll(HERE, 0.0, never)
        assert len(round_.poll(HERE, 5.0, never)) == 2


def test_episodes_that_end_as_late_as_they_may_do_not_make_rounds_longer_and_longer(make_rows: Rows) -> None:
    needed: dict[Any, tuple[int, float]] = {}
    limit = SLOW * 5
    for number in range(20):
        round_, rows = make(1, episodes=True, needed=needed), LastRows()
        for second in range(limit):
            assert len(round_.poll(HERE, second, never)) == (second == 0)
            end = "terminated" if second == limit - 1 and number < 19 else None
            take(round_, rows, make_rows(1, 0, second, 1, version=(1, 7), end=end), second)
    assert dict(round_.poll(HERE, limit, never)).keys() == {A, B}


def test_idle_time_after_an_episode_whose_part_was_taken_does_not_count(make_rows: Rows) -> None:
    needed: dict[Any, tuple[int, float]] = {}
    round_, rows = make(3, episodes=True, needed=needed), LastRows()
    round_.poll(HERE, 0.0, never)
    for episode in range(2):
        take(round_, rows, make_rows(2, episode, 0, 5, version=(1, 7), end="terminated"), 0.0)
    for now in (1, 2, 3, 4, 5, 6):
        end = "terminated" if now == 6 else None
        take(round_, rows, make_rows(1, 0, now - 1, 1, version=(1, 7), end=end), now)
        assert bool(round_.poll(HERE, now, never)) == (now == 5)
    given = 6
    while not round_.assignments[A].missing:  # B does not play the part that was taken from A
        given += 1
        assert given < 100
        round_.poll(HERE, given, never)
    take(round_, rows, make_rows(1, 1, 0, 5, version=(1, 7), end="terminated"), given + 1)
    assert needed[A] == (4, 1.0)


def test_the_patience_that_rounds_begin_with_is_bounded(make_rows: Rows) -> None:
    needed: dict[Any, tuple[int, float]] = {}
    round_, rows = make(1, episodes=True, needed=needed), LastRows()
    round_.poll([(A, "a")], 0.0, never)
    take(round_, rows, make_rows(1, 0, 0, 2, version=(1, 7), end="terminated"), 1e6)
    assert needed == {A: (4, LONGEST)}
    later = make(1, episodes=True, needed=needed)
    later.poll([(A, "a")], 0.0, never)
    assert later.poll(HERE, LONGEST * 5.0 - 1, never) == []
    assert len(later.poll(HERE, LONGEST * 5.0, never)) == 2


def test_a_worker_that_waits_gets_a_share_of_a_slow_workers_part(make_rows: Rows) -> None:
    round_, rows = make(101), LastRows()
    round_.poll([(A, "a")], 0.0, never)
    here = [(A, "a"), (B, "b")]
    for second in range(1, 20):
        take(round_, rows, make_rows(1, 0, second - 1, 1, version=(1, 7)), float(second))
        assert round_.poll(here, float(second), never) == []
    asked = dict(round_.poll(here, 20.0, never))
    assert (round_.stalled, sum(what.steps or 0 for what in asked.values())) == ([], 101)
    assert abs((asked[A].steps or 0) - round_.collected - (asked[B].steps or 0)) <= 2
    assert round_.redistributed == asked[B].steps
    assert round_.poll(here, 21.0, never) == []


def test_workers_of_one_speed_keep_their_parts_in_long_rounds(make_rows: Rows) -> None:
    speeds = random.Random(1)
    round_, rows = make(4_000, grace_s=30.0), LastRows()
    round_.poll(HERE, 0.0, never)
    done = {A: 0, B: 0}
    now = 0.0
    while not round_.complete:
        now += 1.0
        for stream, first in done.items():
            missing = round_.assignments[stream].missing
            count = min(speeds.choice((9, 10, 11)), missing) + (first == 0)
            if missing:
                take(round_, rows, make_rows(stream[0], 0, first, count, version=(1, 7)), now)
                done[stream] += count
        assert round_.poll(HERE, now, never) == []
    assert now > SLOW * round_.grace_s
    assert (round_.redistributed, round_.stalled) == (0, [])


def test_a_worker_that_has_just_joined_gets_no_share(make_rows: Rows) -> None:
    round_, rows = make(101), LastRows()
    round_.poll([(A, "a")], 0.0, never)
    for second in range(1, 30):
        take(round_, rows, make_rows(1, 0, second - 1, 1, version=(1, 7)), float(second))
        here = [(A, "a"), *[(B, "b")] * (second > 22)]
        assert bool(round_.poll(here, float(second), never)) == (second == 28)


def test_the_parts_of_thousands_of_stalled_workers_are_given_to_others_at_once() -> None:
    stalled = [(number.to_bytes(16, "big"), "thief") for number in range(5_000)]
    round_ = make(5_001)
    assert len(round_.poll(stalled, 0.0, never)) == 5_000
    requests = dict(round_.poll([*stalled, (C, "c")], 5.0, never))
    assert requests[C].steps == round_.redistributed == 5_001
    assert {what.steps for stream, what in requests.items() if stream != C} == {0}


def test_an_origin_whose_streams_have_stalled_gets_more_if_there_is_no_other(make_rows: Rows) -> None:
    round_, rows = make(12, origin_of=lambda stream: "farm"), LastRows()
    here = [(A, "a"), (B, "b"), (C, "c")]
    round_.poll(here, 0.0, never)
    take(round_, rows, make_rows(1, 0, 0, 5, version=(1, 7)), 1.0)
    assert dict(round_.poll(here[:2], 6.0, never)).keys() == {A, B, C}
    take(round_, rows, make_rows(1, 0, 5, 8, version=(1, 7)), 7.0)
    for second in range(8, 30):
        round_.poll([(A, "a")], float(second), never)
        take(round_, rows, make_rows(1, 0, second + 5, 2, version=(1, 7)), float(second))
    assert round_.complete


def test_whole_episodes_are_counted_by_their_ends(make_rows: Rows) -> None:
    round_, rows = make(3, episodes=True), LastRows()
    asked = dict(round_.poll(HERE, 0.0, never))
    assert (asked[A].episodes, asked[A].steps, asked[B].episodes) == (2, None, 1)
    for episode in range(3):
        take(round_, rows, make_rows(1, episode, 0, 4, version=(1, 7), end="terminated"))
    take(round_, rows, make_rows(2, 0, 0, 6, version=(1, 7), end="truncated"))
    assert round_.complete
    assert steps(round_) == 2 * 3 + 5
    assert round_.surplus == 4


def test_the_last_row_of_a_stream_keeps_no_chunk_alive(make_rows: Rows) -> None:
    rows = LastRows()
    first = make_rows(1, 0, 0, 5)
    rows.join(first)
    segment = rows.join(make_rows(1, 0, 5, 2))
    assert segment.follows == [True, True]
    assert segment.before is not None
    kept: Any = segment.before.observation
    sent: Any = first.observation
    assert kept.tolist() == sent[-1:].tolist()
    assert kept.base is None


def test_an_empty_round_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        make(0)


class Crowd:
    """Workers that do what they are asked, seeded: at their own speeds; now and then they die, return, lose samples.

    `thieves` do what they like.
    """

    def __init__(self, seed: int, make_rows: Rows, thieves: int = 0, troubles: float = 1.0) -> None:
        self.random = random.Random(seed)
        self.claims = random.Random(seed)
        self.make_rows = make_rows
        self.now = 0.0
        self.workers: dict[int, dict[str, Any]] = {}
        self.number = 0
        self.episodes = self.random.random() < 0.3
        self.rows = LastRows()
        self.troubles = troubles
        for _ in range(self.random.randint(1, 4)):
            self.join()
        for _ in range(thieves):
            self.join(thief=True)

    def join(self, thief: bool = False) -> None:
        self.number += 1
        self.workers[self.number] = {
            "speed": self.random.choice([1, 3, 10]), "asked": None, "done": 0, "lost": False,
            "episode": 0, "step": 0, "left": 1, "stuck": 0.0, "here": True,
            "thief": thief, "mood": self.random.choice(["drips", "resets", "steps"]),
        }  # fmt: skip

    @property
    def present(self) -> list[tuple[bytes, str]]:
        return [
            (bytes([number]) * 16, f"!{number % 3}" if worker["thief"] else f"w{number % 4}")
            for number, worker in self.workers.items()
            if worker["here"]
        ]

    def origin(self, stream: bytes) -> int:
        return -1 if self.workers[stream[0]]["thief"] else stream[0]

    def says_done(self, stream: bytes, what: Collect) -> bool:
        worker = self.workers[stream[0]]
        if worker["thief"] and self.random.random() < 0.05:
            return True
        return bool(worker["asked"] == what and worker["done"] >= what.amount)

    def says_idle(self, stream: bytes) -> bool:
        worker = self.workers[stream[0]]
        asked = worker["asked"]
        idle = asked is None or worker["done"] >= asked.amount
        return bool(self.claims.random() < 0.5 if worker["thief"] else idle and worker["stuck"] < self.now)

    def ask(self, stream: bytes, what: Collect) -> None:
        worker = self.workers[stream[0]]
        before = worker["asked"]
        if before is None or (before.round, before.version) != (what.round, what.version):
            worker["done"] = 0
            if self.episodes:
                worker["step"] = 0
        worker["asked"] = what

    def row(self, number: int, worker: dict[str, Any]) -> Chunk:
        if worker["step"] == 0:
            worker["episode"] += 1
            worker["left"] = self.random.randint(1, 6)
        ends = worker["step"] == worker["left"]
        chunk = self.make_rows(
            number, worker["episode"], worker["step"], 1, version=worker["asked"].version,
            end=self.random.choice(["terminated", "truncated"]) if ends else None,
        )  # fmt: skip
        worker["done"] += ends if self.episodes else worker["step"] > 0
        worker["step"] = 0 if ends else worker["step"] + 1
        return chunk

    def play(self, round_: Round, number: int, worker: dict[str, Any]) -> None:
        """Let a thief change its mind, leave or return, and send what it likes."""
        if self.random.random() < (0.1 if number % 2 else 0.01):
            worker["mood"] = self.random.choice(["works", "drips", "resets", "steps", "sleeps", "leaves"])
        worker["here"] = worker["mood"] != "leaves"
        asked = worker["asked"]
        rows = {"works": 10, "drips": int(self.random.random() < 0.3)}.get(worker["mood"], 1)
        if asked is None or worker["mood"] in ("sleeps", "leaves"):
            return
        for _ in range(rows):
            if worker["mood"] in ("works", "drips"):
                if worker["done"] >= asked.amount:
                    break
                chunk = self.row(number, worker)
            else:
                worker["episode"] += worker["mood"] == "resets"
                worker["step"] = 0 if worker["mood"] == "resets" else worker["step"] + 1
                chunk = self.make_rows(number, worker["episode"], worker["step"], 1, version=asked.version)
                worker["left"] = worker["step"] + 1
            round_.take(self.rows.join(chunk), self.now)

    def tick(self, round_: Round) -> None:
        self.now += 1.0
        for number, worker in list(self.workers.items()):
            if worker["thief"]:
                self.play(round_, number, worker)
                continue
            if self.random.random() < 0.01 * self.troubles:
                worker["here"] = False
            if worker["stuck"] < self.now and self.random.random() < 0.01 * self.troubles:
                worker["stuck"] = self.now + self.random.choice([3, 30])
            if not worker["here"]:
                if self.random.random() < 0.05:
                    self.workers[number]["here"] = True
                continue
            if worker["stuck"] >= self.now:
                continue
            for _ in range(worker["speed"]):
                asked = worker["asked"]
                if asked is None or worker["done"] >= asked.amount:
                    break
                chunk = self.row(number, worker)
                if self.random.random() >= 0.02 * self.troubles:  # else it is lost on its way
                    round_.take(self.rows.join(chunk), self.now)
        honest = any(worker["here"] and not worker["thief"] for worker in self.workers.values())
        if not honest or self.random.random() < 0.005 * self.troubles:
            self.join()


def test_every_round_ends_with_exactly_its_amount_of_exactly_its_version(full: bool, make_rows: Rows) -> None:
    for seed in range(120 if full else 24):
        collect_rounds(seed, make_rows)


def collect_rounds(seed: int, make_rows: Rows) -> None:
    crowd = Crowd(seed, make_rows, thieves=(seed % 3 == 0) * (1 + seed % 5))
    suspended: set[bytes] = set()
    stalled_origins: dict[Any, int] = {}
    needed: dict[Any, tuple[int, float]] = {}
    for number in range(1, 6):
        amount = crowd.random.randint(1, 60) if seed % 4 else crowd.random.randint(1, 3)
        round_ = Round(
            number, (1, number), amount=amount, episodes=crowd.episodes, grace_s=6.0, suspended=suspended,
            origin_of=(lambda stream: stream[0] % 3) if seed % 2 else crowd.origin, stalled_origins=stalled_origins,
            needed=needed,
        )  # fmt: skip
        began = crowd.now
        while not round_.complete:
            for stream, what in round_.poll(crowd.present, crowd.now, crowd.says_done, crowd.says_idle):
                crowd.ask(stream, what)
            crowd.tick(round_)
            assert crowd.now - began < 3000, f"a round of seed {seed} stands still"
        assert versions(round_) == {(1, number)}, f"seed {seed}"
        if crowd.episodes:
            ends = sum(
                int(((segment.chunk.terminated | segment.chunk.truncated) & segment.follows).sum())
                for segment in round_.segments
            )
            assert ends == amount, f"seed {seed}"
        else:
            assert steps(round_) == amount, f"seed {seed}"
        seen = [
            (segment.chunk.stream, int(episode), int(step))
            for segment in round_.segments
            for episode, step in zip(segment.chunk.episode, segment.chunk.step, strict=True)
            if not crowd.workers[segment.chunk.stream[0]]["thief"]
        ]
        assert len(seen) == len(set(seen)), f"seed {seed}"


def test_an_origin_that_does_what_it_likes_delays_a_round_by_a_few_grace_periods(full: bool, make_rows: Rows) -> None:
    for seed in range(120 if full else 24):
        collect_beside_thieves(seed, make_rows)


def collect_beside_thieves(seed: int, make_rows: Rows) -> None:
    crowd = Crowd(seed, make_rows, thieves=1 + seed % 6, troubles=0.0)
    suspended: set[bytes] = set()
    stalled_origins: dict[Any, int] = {}
    needed: dict[Any, tuple[int, float]] = {}
    for number in range(1, 6):
        amount = crowd.random.choice([1, 2, 5, 60])
        round_ = Round(
            number, (1, number), amount=amount, episodes=crowd.episodes, grace_s=8.0, suspended=suspended,
            origin_of=crowd.origin, stalled_origins=stalled_origins, needed=needed,
        )  # fmt: skip
        ends = crowd.now + 7.0 * amount + 10 * round_.grace_s
        while not round_.complete:
            for stream, what in round_.poll(crowd.present, crowd.now, crowd.says_done, crowd.says_idle):
                crowd.ask(stream, what)
            crowd.tick(round_)
            assert crowd.now < ends, f"seed {seed}"


def test_segments_of_several_versions_in_one_chunk_are_distinguished(make_rows: Rows) -> None:
    chunk = make_rows(1, 0, 0, 6)
    chunk.segments = (Segment(2, 0, 0, 1, 6), Segment(3, 0, 2, 1, 7), Segment(1, 0, 5, 1, 8))
    round_, rows = make(10), LastRows()
    round_.poll(HERE, 0.0, never)
    take(round_, rows, chunk)
    assert (round_.collected, round_.late) == (3, 3)
    assert [segment.before is not None for segment in round_.segments] == [True]


def test_an_episode_without_received_transitions_is_collected_again(make_rows: Rows) -> None:
    round_, rows = make(2, episodes=True), LastRows()
    round_.poll(HERE, 0.0, never)
    take(round_, rows, make_rows(1, 0, 7, 1, version=(1, 7), end="terminated"))  # the rest was lost
    take(round_, rows, make_rows(2, 0, 0, 1, version=(1, 7), end="truncated"))  # a reset that ends at once
    assert (round_.collected, round_.complete) == (0, False)
    said = Collect(4, (1, 7), episodes=1).done
    asked = dict(round_.poll(HERE, 0.1, lambda stream, what: what.done == said))
    assert asked == {stream: Collect(4, (1, 7), episodes=2) for stream in (A, B)}
    for stream in (1, 2):
        take(round_, rows, make_rows(stream, 1, 0, 2, version=(1, 7), end="terminated"))
    complete: bool = round_.complete
    assert complete
    assert sum(sum(segment.follows) for segment in round_.segments) == 2
