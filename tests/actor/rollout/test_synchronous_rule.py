from __future__ import annotations

import itertools
import math
from typing import Any

import pytest

from tests.actor.rollout.composing import compose
from tmrl_core.actor.rollout import schedule
from tmrl_core.actor.rollout import synchronous_rule as synchronous
from tmrl_core.actor.rollout.starvation import StarvationWatch
from tmrl_core.actor.rollout.worker import Worker
from tmrl_core.errors import StarvedError
from tmrl_core.networking.protocol.messages import Directive, Evaluation, Progress


@pytest.fixture
def make(counting_env: Any, constant_actor: Any, link: Any) -> Any:
    def make(length: int = 3, linked: bool = True, **kwargs: Any) -> Worker:
        return compose(
            lambda: counting_env(length=length),
            constant_actor,
            link=link if linked else None,
            **kwargs,
        )

    return make


class Trace:
    """Publishes one model per wait and notes how many samples had arrived by then."""

    def __init__(self, link: Any, limit: int = 1000) -> None:
        self.arrived: list[int] = []
        self.limit = limit
        link.on_wait = self

    def __call__(self, link: Any) -> None:
        self.arrived.append(len(link))
        if len(self.arrived) > self.limit:
            link.directive = Directive(1, finish=True)
        else:
            link.publish()


@pytest.mark.parametrize("maximum", [1.0, 2.5, 7.0, 0.5])
def test_steps_are_taken_exactly_as_the_ratio_allows(maximum: float, make: Any, link: Any) -> None:
    worker = make(length=4)
    trace = Trace(link)
    worker.run_synchronous(nb_steps=20, initial_steps=3, max_steps_per_update=maximum, end_episodes=False)
    # a slow, obvious loop over the same rule
    steps, models, arrived, total = 3, 0, [], 3
    while (steps + 1) / (1 + models) > maximum:
        arrived.append(total)
        models += 1
    steps = 0
    while steps < 20:
        while (steps + 1) / (1 + models) > maximum:
            arrived.append(total)
            models += 1
        steps += 1
        total += 1
    assert trace.arrived == arrived
    assert len(link) == 23


@pytest.mark.parametrize("maximum", [0.0, -1.0, math.nan])
def test_an_impossible_ratio_is_refused(maximum: float, make: Any) -> None:
    with pytest.raises(ValueError, match="max_steps_per_update must be above 0"):
        make().run_synchronous(max_steps_per_update=maximum)


def test_with_whole_episodes_the_ratio_holds_between_them(make: Any, link: Any) -> None:
    worker = make(length=3)  # four steps each, the reset included
    trace = Trace(link)
    worker.run_synchronous(nb_steps=10, initial_steps=5, max_steps_per_update=2.0)
    # initial: 8 steps, (8+1)/(1+m) <= 2 -> m = 4. Then 0, 4, 8: (4+1)/5 and (8+1)/5 <= 2. 12 >= 10.
    # After the last episode: nothing more is asked for.
    assert trace.arrived[:4] == [8] * 4
    assert len(link) == 8 + 12
    assert link.versions_published == len(trace.arrived)


@pytest.mark.parametrize("end_episodes", [True, False])
def test_all_samples_are_sent_before_a_wait(end_episodes: bool, make: Any, link: Any) -> None:
    worker = make(length=5)
    waiting: list[int] = []

    def note_and_publish(link: Any) -> None:
        waiting.append(worker.steps_collected - len(link))
        link.publish()

    link.on_wait = note_and_publish
    worker.run_synchronous(nb_steps=30, initial_steps=2, max_steps_per_update=1.5, end_episodes=end_episodes)
    assert waiting
    assert set(waiting) == {0}


def test_an_episode_continues_after_a_wait(make: Any, link: Any) -> None:
    worker = make(length=7)
    Trace(link)
    worker.run_synchronous(nb_steps=14, initial_steps=2, max_steps_per_update=1.0, end_episodes=False)
    assert [step for chunk in link.chunks for step in chunk.step.tolist()] == [*range(8)] * 2
    assert [record.end for record in link.records] == ["truncated"] * 2


def test_skipped_versions_count_as_models(make: Any, link: Any) -> None:
    worker = make(length=10**6)
    waits: list[int] = []

    def publish_three(link: Any) -> None:
        waits.append(len(link))
        for _ in range(3):
            link.publish()

    link.on_wait = publish_three
    worker.run_synchronous(nb_steps=12, initial_steps=1, max_steps_per_update=2.0, end_episodes=False)
    assert waits == [3, 9]


def test_without_a_limit_it_never_waits_but_takes_weights(make: Any, link: Any) -> None:
    worker = make()
    link.on_send = lambda link: link.publish(0.5)
    worker.run_synchronous(nb_steps=8, max_steps_per_update=math.inf)
    assert link.waits == 0
    assert worker.actor.value == 0.5
    assert len(link) == 12


def test_tests_are_played_with_whole_episodes_only(make: Any, link: Any) -> None:
    make().run_synchronous(test_episode_interval=2, nb_steps=12, initial_steps=1)
    assert [record.mode for record in link.records] == ["train", "test", "train", "train", "test", "train"]
    link.records.clear()
    make().run_synchronous(test_episode_interval=1, nb_steps=12, initial_steps=1, end_episodes=False)
    assert {record.mode for record in link.records} == {"train"}


def test_lost_samples_are_subtracted_from_the_count(make: Any, link: Any) -> None:
    worker = make(length=10**6)
    trace = Trace(link)

    def lose_the_first(link: Any) -> None:
        if len(link.sends) == 2:
            link.counts = link.counts._replace(samples_dropped=1, samples_refused=1)

    link.on_send = lose_the_first
    worker.run_synchronous(nb_steps=6, initial_steps=1, max_steps_per_update=2.0, end_episodes=False)
    # 3 models' worth of steps, and two more for the two that were lost
    assert len(link) == 1 + 6 + 2
    assert worker.uplink.steps_that_count() == 7
    assert trace.arrived


@pytest.mark.parametrize("end", ["finish", "stop"])
def test_the_end_of_the_run_ends_the_wait(end: str, make: Any, link: Any) -> None:
    worker = make()
    link.on_wait = lambda link: (
        worker.stop() if end == "stop" else setattr(link, "directive", Directive(1, finish=True))
    )
    worker.run_synchronous(max_steps_per_update=1.0)
    assert link.waits == 1


def test_an_evaluation_is_played_while_waiting_even_within_an_episode(make: Any, link: Any) -> None:
    worker = make(length=8)

    def evaluate(link: Any) -> None:
        if link.waits == 2:
            link.directive = Directive(1, Evaluation(1, (50,)))
        else:
            link.publish()

    link.on_wait = evaluate
    worker.run_synchronous(nb_steps=10, initial_steps=3, max_steps_per_update=2.0, end_episodes=False)
    assert [(record.evaluation, record.end, record.seed) for record in link.records[:2]] == [
        (None, "aborted", None),
        (1, "truncated", 50),
    ]
    assert link.records[1].length == 8


def test_a_pause_waits_between_episodes(make: Any, link: Any) -> None:
    worker = make()
    link.directive = Directive(1, pause=True)
    link.on_wait = lambda link: setattr(link, "directive", Directive(2))
    worker.run_synchronous(nb_steps=4)
    assert link.waits == 1


def test_the_starvation_error_names_the_numbers(make: Any, link: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(0, 10**6, 4))
    monkeypatch.setattr(
        schedule, "StarvationWatch", lambda longest: StarvationWatch(longest, clock=lambda: float(next(clock)))
    )
    worker = make()
    link.progress = Progress(samples=4, updates=4, lack="1 sample more for update 6")
    with pytest.raises(
        StarvedError,
        match=r"\(4 steps \+ 1\) / \(1 \+ 0 models.*max_steps_per_update = 2.*4 samples and 4 updates: 1 sample more",
    ):
        worker.run_synchronous(max_steps_per_update=2.0)


def test_the_wait_reason_is_sent_once_all_samples_are_acknowledged(make: Any, link: Any) -> None:
    worker = make()

    def arrive_then_publish(link: Any) -> None:
        if link.counts.queued_samples:
            link.counts = link.counts._replace(queued_samples=0)
        else:
            link.publish()

    link.counts = link.counts._replace(queued_samples=4)
    link.on_wait = arrive_then_publish
    worker.run_synchronous(nb_steps=4, max_steps_per_update=3.0)
    assert link.said == [
        "(4 steps + 1) / (1 + 0 models received) is above worker.max_steps_per_update = 3",
        "",
    ]


def test_a_ratio_without_a_server_is_an_error(make: Any) -> None:
    worker = make(linked=False)
    with pytest.raises(StarvedError, match="standalone"):
        worker.run_synchronous(max_steps_per_update=1.0)
    worker.run_synchronous(nb_steps=4)


def test_zero_initial_steps_and_zero_steps_return_immediately(make: Any, link: Any) -> None:
    worker = make()
    worker.run_synchronous(nb_steps=0, initial_steps=0)
    assert worker.steps_collected == 0


def test_send_every_sends_within_an_episode(make: Any, link: Any) -> None:
    worker = make(length=9, send_every=4)
    worker.run_synchronous(nb_steps=10, initial_steps=0)
    assert link.sends == [4, 4, 2]


def test_failed_episodes_do_not_count(make: Any, link: Any) -> None:
    worker = make(length=3)
    worker.env.script[(1, 2)] = RuntimeError("x")
    Trace(link)
    worker.run_synchronous(nb_steps=8, initial_steps=1, max_steps_per_update=4.0)
    assert len(link) == 12
    assert worker.uplink.steps_that_count() == 12
    assert worker.recorder.samples_dropped == 2


def test_a_worker_with_a_seed_collects_in_its_turns_only(make: Any, link: Any) -> None:
    """A policy alone is no turn: the trainer may still be training, and publish another at any moment."""
    steps: list[tuple[str, int]] = []

    def on_wait(link: Any) -> None:
        steps.append((link.waits_for.partition(":")[0], len(link)))
        turn, version = link.progress.turn, (1, link.versions_published)
        if (link.waits_for.startswith("with version") and turn == version) or not link.versions_published:
            link.publish()
        else:
            link.progress = Progress(turn=version)

    link.on_wait = on_wait
    worker = make(seed=3, length=4)
    worker.run_synchronous(nb_steps=8, initial_steps=2, max_steps_per_update=2.0, end_episodes=False)
    assert [collected for text, collected in steps if text == "with version 0.0"] == [0, 0]
    # With version 1 its ratio allows the 2 initial steps and one more, then two with each version.
    exhausted = [steps[0]] + [now for before, now in itertools.pairwise(steps) if now[0] != before[0]]
    assert [text for text, _ in exhausted] == [f"with version {'1.' if n else '0.'}{n}" for n in range(len(exhausted))]
    waits = [collected for _, collected in steps]
    assert waits == sorted(waits)
    for before, now in itertools.pairwise(steps):
        assert before[0] != now[0] or before[1] == now[1], "it collected without a turn"


def test_the_wait_for_a_trainer_without_turns_ends(
    make: Any, link: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(synchronous, "TURNLESS_S", 0.0)
    link.on_wait = lambda link: link.publish()
    make(seed=3).run_synchronous(nb_steps=8, initial_steps=2, max_steps_per_update=2.0)
    assert "this trainer takes no turns" in caplog.text
