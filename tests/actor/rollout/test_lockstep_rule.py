from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.actor.rollout.composing import compose
from tmrl_core.actor.module import ActorModule
from tmrl_core.actor.rollout.recording import Recording
from tmrl_core.actor.rollout.worker import Worker
from tmrl_core.errors import StarvedError
from tmrl_core.networking.protocol.messages import NEXT_ROUND, Collect, Directive, Evaluation, encode_body
from tmrl_core.sessions import SessionWriter, read_sessions
from tmrl_core.sessions.session import sessions_of


@pytest.fixture
def make(counting_env: Any, constant_actor: Any, link: Any) -> Any:
    def make(length: int = 3, linked: bool = True, actor: Any = None, **kwargs: Any) -> Worker:
        return compose(
            lambda: counting_env(length=length),
            actor or constant_actor,
            link=link if linked else None,
            **kwargs,
        )

    return make


class Trainer:
    """Does one thing after the other, each time the worker waits; then it finishes. Notes what had arrived by then."""

    def __init__(self, link: Any, *acts: Callable[[Trainer], None]) -> None:
        self.link = link
        self.acts = list(acts)
        self.arrived: list[int] = []
        self.said: list[str] = []
        self.revision = 0
        link.on_wait = self

    def __call__(self, link: Any) -> None:
        self.arrived.append(len(link))
        self.said.append(link.waits_for)
        if self.acts:
            self.acts.pop(0)(self)
        else:
            self.direct(finish=True)

    def direct(self, collect: Collect | None = None, **kwargs: Any) -> None:
        self.revision += 1
        body = None if collect is None else encode_body(collect)
        self.link.directive = Directive(self.revision, collect=body, **kwargs)


def asks(collect: Collect, publishes: bool = True, **kwargs: Any) -> Callable[[Trainer], None]:
    def act(trainer: Trainer) -> None:
        trainer.direct(collect, **kwargs)
        if publishes:
            trainer.link.publish(float(collect.version[1]))

    return act


def steps(link: Any) -> list[tuple[tuple[int, int], int, int]]:
    """(version, episode, step) of each sample that was sent."""
    return [
        (tuple(version), episode, step)
        for chunk in link.chunks
        for version, episode, step in zip(
            chunk.version.tolist(), chunk.episode.tolist(), chunk.step.tolist(), strict=True
        )
    ]


def test_an_assignment_has_the_exact_number_of_steps_of_the_exact_version(make: Any, link: Any) -> None:
    trainer = Trainer(link, asks(Collect(1, (1, 1), 4)), asks(Collect(2, (1, 2), 5)))
    make(length=3).run_lockstep()
    # A reset is no step, and an episode goes on in the next round.
    assert steps(link) == [
        ((1, 1), 0, 0), ((1, 1), 0, 1), ((1, 1), 0, 2), ((1, 1), 0, 3), ((1, 1), 1, 0), ((1, 1), 1, 1),
        ((1, 2), 1, 2), ((1, 2), 1, 3), ((1, 2), 2, 0), ((1, 2), 2, 1), ((1, 2), 2, 2), ((1, 2), 2, 3),
    ]  # fmt: skip
    # All of it had been sent before it waited, and the actions are those of the versions.
    assert trainer.arrived == [0, 6, 12]
    assert [float(sample[0][0]) for sample in link.samples if sample[0] is not None] == [1.0] * 4 + [2.0] * 5
    assert trainer.said == [
        "the trainer's next round",
        "the round after 1, of which 4 steps with version 1.1 are done",
        "the round after 2, of which 5 steps with version 1.2 are done",
    ]


def test_a_recording_holds_what_was_sent(make: Any, link: Any, tmp_path: Path, counting_env: Any) -> None:
    recording = Recording(SessionWriter(tmp_path, counting_env.observation_space, counting_env.action_space))
    Trainer(link, asks(Collect(1, (1, 1), 4)), asks(Collect(2, (1, 2), episodes=2)), asks(Collect(3, (1, 3), 5)))
    worker = make(length=3, recording=recording)
    worker.run_lockstep()
    worker.close()
    recorded: list[Any] = list(read_sessions(tmp_path))
    sent: list[Any] = list(sessions_of(link.chunks))
    assert sorted((one.version, len(one), one.truncated) for one in recorded) == [
        ((1, 1), 1, False), ((1, 1), 3, True),
        ((1, 2), 3, True), ((1, 2), 3, True),
        ((1, 3), 2, False), ((1, 3), 3, True),
    ]  # fmt: skip
    by_episode = [sorted(found, key=lambda one: one.observations[0, 0]) for found in (recorded, sent)]
    for one, other in zip(*by_episode, strict=True):
        np.testing.assert_array_equal(one.observations, other.observations)
        np.testing.assert_array_equal(one.actions, other.actions)
        np.testing.assert_array_equal(one.rewards, other.rewards)


def test_collection_waits_for_the_requested_version(make: Any, link: Any) -> None:
    trainer = Trainer(
        link,
        asks(Collect(1, (1, 2), 3), publishes=False),
        lambda trainer: link.publish(1.0),  # version 1.1
        lambda trainer: link.publish(2.0),  # version 1.2
    )
    make().run_lockstep()
    assert trainer.arrived == [0, 0, 0, 4]
    assert {version for version, _, _ in steps(link)} == {(1, 2)}
    assert "version 1.2 of the policy, to collect round 1 with; it has 1.1" in trainer.said


def test_nothing_is_collected_with_a_newer_version_than_requested(make: Any, link: Any) -> None:
    link.publish(1.0)
    trainer = Trainer(link, asks(Collect(1, (1, 1), 3)), asks(Collect(1, (1, 2), 3), publishes=False))
    make().run_lockstep()
    assert trainer.arrived == [0, 0, 4]
    assert {version for version, _, _ in steps(link)} == {(1, 2)}


def test_an_increased_amount_continues_and_a_reduced_amount_ends_the_assignment(make: Any, link: Any) -> None:
    trainer = Trainer(
        link,
        asks(Collect(1, (1, 1), 2)),
        asks(Collect(1, (1, 1), 5), publishes=False),
        asks(Collect(1, (1, 1), 4), publishes=False),
    )
    make(length=10).run_lockstep()
    assert trainer.arrived == [0, 3, 6, 6]


def test_a_cancelled_assignment_ends_within_a_slice(make: Any, link: Any) -> None:
    worker = make(length=1000)
    trainer = Trainer(link, asks(Collect(1, (1, 1), 900)), asks(Collect(2, (1, 2), 2)))
    worker.env.on_step = lambda: trainer.direct() if worker.env.steps == 100 else None
    worker.run_lockstep()
    versions = [version for version, _, _ in steps(link)]
    assert 100 < versions.count((1, 1)) < 900
    assert versions.count((1, 2)) == 2
    # The episode goes on: nothing of it was thrown away.
    assert [step for _, _, step in steps(link)] == list(range(len(versions)))


def test_assignments_of_episodes_begin_with_a_reset_and_send_complete_episodes(make: Any, link: Any) -> None:
    trainer = Trainer(
        link, asks(Collect(1, (1, 1), 2)), asks(Collect(2, (1, 2), episodes=2)), asks(Collect(3, (1, 3), episodes=1))
    )
    make(length=3).run_lockstep()
    assert trainer.arrived == [0, 3, 11, 15]
    assert link.sends == [3, 4, 4, 4]
    assert [record.end for record in link.records] == ["aborted", "truncated", "truncated", "truncated"]


def test_an_episode_given_up_does_not_count_for_the_next_assignment(make: Any, link: Any) -> None:
    worker = make(length=1000)
    trainer = Trainer(link, asks(Collect(1, (1, 1), episodes=1)), asks(Collect(2, (1, 2), episodes=1)))
    worker.env.on_step = lambda: trainer.direct() if worker.env.steps == 100 else None
    worker.run_lockstep()
    assert [(version, step) for version, _, step in steps(link)] == [((1, 2), step) for step in range(1001)]


def test_a_seed_begins_an_episode_with_it(make: Any, link: Any) -> None:
    worker = make(length=10, seed=1)
    Trainer(link, asks(Collect(1, (1, 1), 2)), asks(Collect(2, (1, 2), 2, seed=77)), asks(Collect(3, (1, 3), 2)))
    worker.run_lockstep()
    assert worker.env.seeds == [1, 77]


def test_a_new_incarnation_begins_a_new_episode(make: Any, link: Any) -> None:
    Trainer(
        link,
        asks(Collect(1, (1, 1), 2)),
        lambda trainer: (trainer.direct(Collect(1, (2, 2), 2)), link.publish(2.0, incarnation=2)),  # type: ignore[arg-type, func-returns-value]
    )
    make(length=10).run_lockstep()
    assert steps(link)[3:] == [((2, 2), 1, 0), ((2, 2), 1, 1), ((2, 2), 1, 2)]


def test_an_evaluation_precedes_the_assignment_and_ends_the_open_episode(make: Any, link: Any) -> None:
    trainer = Trainer(
        link,
        asks(Collect(1, (1, 1), 2)),
        asks(Collect(2, (1, 2), 2), evaluation=Evaluation(5, (50,), (1, 2))),
    )
    make(length=4).run_lockstep()
    assert [(record.evaluation, record.seed, record.end) for record in link.records[:2]] == [
        (None, None, "aborted"),
        (5, 50, "truncated"),
    ]
    assert [(version, step) for version, _, step in steps(link)[3:]] == [((1, 2), 0), ((1, 2), 1), ((1, 2), 2)]
    assert trainer.arrived == [0, 3, 6]


def test_a_worker_that_plays_an_evaluation_does_not_wait(make: Any, link: Any) -> None:
    saying: list[str] = []
    link.on_send = lambda link: saying.append(link.waits_for)
    Trainer(link, lambda trainer: (link.publish(1.0), trainer.direct(evaluation=Evaluation(5, (50, 51), (1, 1)))))  # type: ignore[arg-type, func-returns-value]
    make().run_lockstep()
    assert [record.evaluation for record in link.records] == [5, 5]
    assert saying[:2] == ["", ""]


def test_a_worker_whose_round_has_ended_without_it_waits_for_the_next_one(make: Any, link: Any) -> None:
    """It has a newer policy than the one that its last assignment names, for example after an evaluation."""
    trainer = Trainer(
        link,
        lambda trainer: link.publish(1.0),
        lambda trainer: link.publish(2.0),
        asks(Collect(1, (1, 1), 0), publishes=False),
    )
    make().run_lockstep()
    assert (len(link), trainer.said[-1]) == (0, NEXT_ROUND)


def test_steps_of_a_failed_episode_are_collected_again(make: Any, link: Any) -> None:
    worker = make(length=5)
    worker.env.script[(1, 3)] = RuntimeError("x")
    Trainer(link, asks(Collect(1, (1, 1), 12)))
    worker.run_lockstep()
    assert sum(step > 0 for _, _, step in steps(link)) == 12
    assert worker.loop.failures == 1


def test_extras_have_columns_also_where_an_episode_begins(make: Any, link: Any, constant_actor: Any) -> None:
    class Dense(constant_actor):  # type: ignore[misc]
        def act_with_extras(self, obs: Any, test: bool = False) -> Any:
            return self.act(obs, test), {"logp": np.float32(-0.5)}

        def reset_extras(self) -> Any:
            return {"logp": np.float32(0.0)}

    assert Dense.act_with_extras is not ActorModule.act_with_extras
    for kwargs in ({}, {"obs_preprocessor": lambda obs: obs}):  # the fast way, and that by single steps
        link.chunks.clear()
        link.directive = Directive()
        link.versions_published = 0
        Trainer(link, asks(Collect(1, (1, 1), 5)))
        make(actor=Dense, **kwargs).run_lockstep()
        assert [len(chunk) for chunk in link.chunks] == [7]
        assert link.chunks[0].extras["logp"].tolist() == pytest.approx([0, -0.5, -0.5, -0.5, 0, -0.5, -0.5])


def test_unreadable_assignments_are_ignored(make: Any, link: Any) -> None:
    trainer = Trainer(link, lambda trainer: setattr(link, "directive", Directive(1, collect=b"nonsense")))
    make().run_lockstep()
    assert len(link) == 0
    assert trainer.said[-1] == "the trainer's next round"


def test_a_pause_delays_the_next_assignment(make: Any, link: Any) -> None:
    trainer = Trainer(
        link, asks(Collect(1, (1, 1), 2), pause=True), asks(Collect(1, (1, 1), 2), publishes=False)
    )  # fmt: skip
    make().run_lockstep()
    assert trainer.arrived == [0, 0, 3]


def test_lockstep_without_a_server_is_an_error(make: Any) -> None:
    with pytest.raises(StarvedError, match="there is none: the worker is standalone"):
        make(linked=False).run_lockstep()
