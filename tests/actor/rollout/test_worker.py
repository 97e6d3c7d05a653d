from __future__ import annotations

import itertools
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest

from tests.actor.rollout.composing import compose
from tmrl_core.actor.rollout import loop, schedule
from tmrl_core.actor.rollout.starvation import StarvationWatch
from tmrl_core.actor.rollout.worker import Worker
from tmrl_core.errors import EnvironmentFailedError, RefusedError, StarvedError
from tmrl_core.long_calls import remarks
from tmrl_core.networking.protocol.messages import MAX_WAITS_CHARACTERS, Directive, Evaluation, Progress, starves


@pytest.fixture
def make(counting_env: Any, constant_actor: Any, link: Any) -> Any:
    def make(length: int = 3, linked: bool = True, **kwargs: Any) -> Worker:
        env = kwargs.pop("env", None) or counting_env(length=length)
        kwargs = {"send_pause_s": 0.0, **kwargs}
        return compose(lambda: env, constant_actor, link=link if linked else None, **kwargs)

    return make


def kinds(link: Any) -> list[tuple[str, str]]:
    return [(record.mode, record.end) for record in link.records]


def test_run_tests_collects_sends_and_loads_weights_in_this_order(make: Any, link: Any) -> None:
    worker = make()
    link.on_send = lambda link: link.publish(0.5 + 0.1 * len(link.sends))
    worker.run(test_episode_interval=2, nb_episodes=3, verbose=False)
    assert kinds(link) == [(mode, "truncated") for mode in ("test", "train", "train", "test", "train")]
    assert link.sends == [4, 4, 4]
    # tested with half the weight; the weight of each episode was published at the send before
    expected = [0.125] * 3 + [0.25] * 3 + [0.6] * 3 + [0.35] * 3 + [0.7] * 3
    assert worker.env.actions == pytest.approx(expected)
    assert [record.version for record in link.records] == [(0, 0), (0, 0), (1, 1), (1, 2), (1, 2)]
    assert worker.policy_version == (1, 3)


def test_samples_carry_the_acting_version(make: Any, link: Any) -> None:
    worker = make()
    link.on_send = lambda link: link.publish()
    worker.run(nb_episodes=2, verbose=False)
    assert [chunk.version.tolist() for chunk in link.chunks] == [[[0, 0]] * 4, [[1, 1]] * 4]


def test_experts_neither_load_weights_nor_test(make: Any, link: Any) -> None:
    worker = make()
    link.publish(0.9)
    link.directive = Directive(revision=1, evaluation=Evaluation(1, (5,)))
    worker.run(test_episode_interval=1, nb_episodes=2, verbose=False, expert=True)
    assert kinds(link) == [("train", "truncated")] * 2
    assert worker.env.actions == [0.25] * 6
    assert link.policy is None


def test_a_worker_without_a_server_runs_and_stores_nothing(make: Any) -> None:
    worker = make(linked=False)
    worker.run(nb_episodes=2, test_episode_interval=1, verbose=False)
    assert len(worker.buffer) == 0
    assert worker.buffer.stat_train_return == worker.buffer.stat_test_return == 6.0
    assert worker.update_actor_weights(blocking=True) == worker.ignore_actor_weights() == 0
    worker.run_episodes(nb_episodes=3)
    assert worker.env.episode == 6
    assert worker.close() is None


def test_send_every_sends_within_an_episode(make: Any, link: Any) -> None:
    worker = make(length=10, send_every=4)
    worker.run(nb_episodes=2, verbose=False)
    assert link.sends == [4, 4, 3] * 2
    assert [step for chunk in link.chunks for step in chunk.step.tolist()] == [*range(11)] * 2


def test_short_episodes_are_sent_together_and_all_before_the_end(make: Any, link: Any) -> None:
    worker = make(send_pause_s=3600.0)
    worker.run(nb_episodes=3, verbose=False)
    assert link.sends == [4, 8]
    assert link.chunks[1].episode.tolist() == [1] * 4 + [2] * 4
    worker.run(nb_episodes=2, verbose=False, expert=True)
    assert link.sends == [4, 8, 8]


def test_everything_is_sent_before_the_rate_limit_waits(make: Any, link: Any) -> None:
    worker = make(send_pause_s=3600.0, max_env_steps_per_update=1.0)
    link.progress = Progress(start_training=9)
    unsent: list[int] = []

    def train(link: Any) -> None:
        unsent.append(len(worker.buffer))
        link.progress = Progress(samples=len(link), updates=100, start_training=9)

    link.on_wait = train
    worker.run(nb_episodes=4, verbose=False)
    assert link.sends == [4, 12]
    assert unsent == [0]


def test_everything_is_sent_before_a_pause(make: Any, link: Any) -> None:
    worker = make(send_pause_s=3600.0)
    worker.run(nb_episodes=1, verbose=False)
    link.directive = Directive(1, pause=True)
    link.on_wait = lambda link: setattr(link, "directive", Directive(2))
    worker.run(nb_episodes=1, verbose=False)
    assert link.sends == [4, 4]
    assert link.waits == 1


def test_weights_are_loaded_at_each_step_if_configured(make: Any, link: Any) -> None:
    worker = make(length=4, update_weights="step")

    def publish_at_step_2() -> None:
        if worker.env.steps == 2:
            link.publish(0.75)

    worker.env.on_step = publish_at_step_2
    worker.run(nb_episodes=1, verbose=False)
    assert worker.env.actions == [0.25, 0.25, 0.75, 0.75]
    assert [segment.version for segment in link.chunks[0].segments] == [(0, 0), (1, 1)]
    assert link.chunks[0].step.tolist() == [0, 1, 2, 3, 4]


def test_the_run_ends_when_the_trainer_finishes(make: Any, link: Any) -> None:
    worker = make()

    def finish(link: Any) -> None:
        link.directive = Directive(revision=1, finish=True)

    link.on_send = finish
    worker.run(verbose=False)
    assert link.sends == [4]


def test_finish_is_noticed_within_an_endless_episode(make: Any, link: Any) -> None:
    worker = make(length=10**9)

    def finish_at_100() -> None:
        if worker.env.steps == 100:
            link.directive = Directive(revision=1, finish=True)

    worker.env.on_step = finish_at_100
    worker.run(verbose=False)
    assert 100 <= worker.env.steps < 10_000
    assert kinds(link) == [("train", "aborted")]
    assert len(link) == worker.env.steps + 1


@pytest.mark.parametrize("mode", ["asynchronous", "synchronous"])
@pytest.mark.parametrize("send_every", [0, 5])
def test_an_endless_unsent_episode_is_logged_once_and_shown(
    mode: str, send_every: int, make: Any, link: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(loop, "LONG_EPISODE_S", 0.0)
    worker = make(length=10**9, max_samples_per_episode=2000, send_every=send_every)
    if mode == "asynchronous":
        worker.run(nb_episodes=2, verbose=False)
    else:
        worker.run_synchronous(nb_steps=1, initial_steps=2000)
    on_display = remarks.pop(f"unsent samples of {worker.name}", "")
    assert bool(on_display) == (not send_every)
    for_trainer = [text for text in link.said if text.startswith("the end of its episode, ")]
    assert len(for_trainer) == (0 if send_every else 1)
    assert all(len(text) <= MAX_WAITS_CHARACTERS and not starves(text) for text in for_trainer)
    told = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(told) == (0 if send_every else 1)
    assert all("worker.send_every" in text and "worker.max_samples_per_episode" in text for text in told)


def test_stop_ends_the_run_after_the_step(make: Any, link: Any) -> None:
    worker = make(length=10**9)
    worker.env.on_step = lambda: worker.stop() if worker.env.steps == 50 else None
    worker.run(verbose=False)
    assert worker.env.steps == 50
    assert len(link) == 51
    worker.run(verbose=False)
    assert worker.env.steps == 50


def test_a_permanently_failed_link_ends_the_run_with_its_error(make: Any, link: Any) -> None:
    worker = make()

    def fail(link: Any) -> None:
        link.failure = RefusedError("token", "wrong token")

    link.on_send = fail
    with pytest.raises(RefusedError, match="wrong token"):
        worker.run(verbose=False)


def test_the_rate_limit_waits_for_updates_after_sending(make: Any, link: Any) -> None:
    worker = make(max_env_steps_per_update=2.0)
    link.progress = Progress(start_training=4)
    waited_at: list[int] = []

    def train(link: Any) -> None:
        waited_at.append(len(link))
        link.progress = Progress(samples=len(link), updates=link.progress.updates + 1, start_training=4)

    def receive(link: Any) -> None:
        link.progress = Progress(samples=len(link), updates=link.progress.updates, start_training=4)

    link.on_wait, link.on_send = train, receive
    worker.run(nb_episodes=4, verbose=False)
    # 4 samples pass freely; then 2 for each update, the next one included
    assert waited_at == [8, 12, 12, 16, 16]


def test_the_rate_limit_counts_unacknowledged_samples(make: Any, link: Any) -> None:
    worker = make(max_env_steps_per_update=1.0)
    link.counts = link.counts._replace(queued_samples=100)
    link.on_wait = lambda link: setattr(link, "counts", link.counts._replace(queued_samples=0))
    worker.run(nb_episodes=1, verbose=False)
    assert link.waits == 1


def test_starvation_by_the_rate_limit_ends_the_run_with_the_numbers(
    make: Any, link: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = itertools.count()
    monkeypatch.setattr(
        schedule, "StarvationWatch", lambda longest: StarvationWatch(longest, clock=lambda: float(next(clock)))
    )
    worker = make(max_env_steps_per_update=0.5)
    link.progress = Progress(samples=4, updates=2, start_training=1, lack="2 updates / 4 samples received is too many")
    with pytest.raises(
        StarvedError,
        match=r"4 samples .*start_training = 1 .*max_env_steps_per_update = 0\.5 .*2 updates / 4 samples received",
    ):
        worker.run(verbose=False)
    assert link.said[0].startswith("4 samples are above")
    assert link.waits_for == ""


def test_a_wait_for_the_rate_limit_is_not_logged_while_training_continues(make: Any, link: Any) -> None:
    worker = make(max_env_steps_per_update=1.0)
    link.progress = Progress(samples=4, updates=1)
    link.on_wait = lambda link: setattr(link, "progress", Progress(samples=4, updates=100))
    worker.run(nb_episodes=1, verbose=False)
    assert link.waits == 1
    assert link.said == []


@pytest.mark.parametrize("end", ["finish", "stop"])
def test_the_end_of_the_run_releases_the_rate_limit(end: str, make: Any, link: Any) -> None:
    worker = make(max_env_steps_per_update=1.0)
    link.progress = Progress(samples=10)

    def release(link: Any) -> None:
        if end == "finish":
            link.directive = Directive(revision=1, finish=True)
        else:
            worker.stop()

    link.on_wait = release
    worker.run(verbose=False)
    assert link.waits == 1


def test_an_evaluation_is_played_between_episodes_once_its_policy_is_here(make: Any, link: Any) -> None:
    worker = make(max_samples_per_episode=2)
    link.directive = Directive(revision=1, evaluation=Evaluation(7, (100, 101), (1, 2)))
    link.on_send = lambda link: link.publish() if link.versions_published < 3 else None
    worker.run(nb_episodes=4, verbose=False)
    found = [(r.mode, r.evaluation, r.seed, r.version, r.length) for r in link.records]
    train = ("train", None, None)
    assert found == [
        (*train, (0, 0), 2),
        (*train, (1, 1), 2),
        ("test", 7, 100, (1, 2), 2),
        ("test", 7, 101, (1, 2), 2),
        ("train", None, found[4][2], (1, 2), 2),
        (*train, (1, 3), 2),
    ]
    assert worker.env.seeds[2:4] == [100, 101]
    # each record left at once, without samples
    assert link.sends == [3, 3, 0, 0, 3, 3]
    # training does not go on from the last seed's generator
    assert worker.env.seeds[4] not in (None, 100, 101)
    assert worker.env.seeds[5] is None


def test_an_evaluation_is_played_once_and_the_next_one_too(make: Any, link: Any) -> None:
    worker = make()
    directives = iter(
        [
            Directive(1, Evaluation(1, (0,))),
            Directive(2, Evaluation(1, (0,))),
            Directive(3, Evaluation(2, (0,))),
        ]
    )
    link.on_send = lambda link: setattr(link, "directive", next(directives, link.directive))
    worker.run(nb_episodes=4, verbose=False)
    assert [record.evaluation for record in link.records if record.mode == "test"] == [1, 2]


def test_an_evaluation_that_fails_is_played_again_with_its_seed(make: Any, link: Any, counting_env: Any) -> None:
    env = counting_env(length=3, script={(1, 2): RuntimeError("x")})
    worker = make(env=env)
    link.directive = Directive(1, Evaluation(1, (100, 101)))
    worker.run(nb_episodes=1, verbose=False)
    assert env.seeds == [None, 100, 100, 101]
    assert [(r.seed, r.length, r.end) for r in link.records if r.evaluation] == [
        (100, 3, "truncated"),
        (101, 3, "truncated"),
    ]


def test_an_evaluation_runs_while_the_rate_limit_waits(make: Any, link: Any) -> None:
    worker = make(max_env_steps_per_update=1.0)

    def evaluate_then_free(link: Any) -> None:
        if link.directive.evaluation is None:
            link.directive = Directive(1, Evaluation(1, (3,)))
        elif link.records[-1].evaluation == 1:
            link.counts = link.counts._replace(queued_samples=0)

    link.counts = link.counts._replace(queued_samples=4)
    link.on_wait = evaluate_then_free
    worker.run(nb_episodes=1, verbose=False)
    assert [record.evaluation for record in link.records] == [None, 1]


def test_an_expert_runs_no_evaluation_while_the_rate_limit_waits(make: Any, link: Any) -> None:
    worker = make(max_env_steps_per_update=1.0)

    def request_then_free(link: Any) -> None:
        if link.directive.evaluation is None:
            link.directive = Directive(1, Evaluation(1, (3,), (1, 1)))
            link.publish(0.75)
        else:
            link.counts = link.counts._replace(queued_samples=0)

    link.counts = link.counts._replace(queued_samples=4)
    link.on_wait = request_then_free
    worker.run(nb_episodes=1, verbose=False, expert=True)
    assert [record.evaluation for record in link.records] == [None]
    assert worker.actor.value == 0.25
    assert worker.policy_version == (0, 0)


def test_pause_rests_between_episodes_and_evaluates_meanwhile(make: Any, link: Any) -> None:
    worker = make()
    script = iter(
        [
            Directive(2, pause=True),
            Directive(3, pause=True, evaluation=Evaluation(1, (4,))),
            Directive(4, evaluation=Evaluation(1, (4,))),
        ]
    )
    link.directive = Directive(1, pause=True)
    link.on_wait = lambda link: setattr(link, "directive", next(script))
    worker.run(nb_episodes=2, verbose=False)
    assert [record.evaluation for record in link.records] == [None, 1, None]
    assert link.waits == 3


def test_too_many_failures_end_the_run(make: Any, counting_env: Any) -> None:
    env = counting_env(script={(episode, 1): RuntimeError("broken") for episode in range(5)})
    with pytest.raises(EnvironmentFailedError, match="2 times in a row"):
        make(env=env, max_failures=1).run(verbose=False)


def test_one_run_at_a_time(make: Any) -> None:
    worker = make()
    errors: list[str] = []

    def run_again() -> None:
        try:
            worker.run()
        except RuntimeError as exc:
            errors.append(str(exc))

    worker.env.on_step = run_again
    worker.run_episodes(nb_episodes=1)
    assert errors == ["this worker is running already, in another thread"] * 3


def test_the_benchmark_reports_three_rates_and_leaves_no_trace(make: Any, link: Any) -> None:
    worker = make()
    rates = worker.run_env_benchmark(10, verbose=False)
    assert set(rates) == {"steps_per_s", "env_steps_per_s", "inferences_per_s"}
    assert all(rate > 0 for rate in rates.values())
    assert rates["steps_per_s"] <= min(rates["env_steps_per_s"], rates["inferences_per_s"])
    assert len(worker.env.actions) == 10
    assert len(worker.buffer) == 0
    assert worker.buffer.episodes == []
    worker.run_env_benchmark(1, test=True)
    assert worker.env.actions[-1] == 0.125


def test_the_benchmark_measures_the_policy_and_no_random_actions(make: Any, constant_actor: Any) -> None:
    asked = []

    class Exploring(constant_actor):  # type: ignore[misc]
        parameters: ClassVar[dict[str, float]] = {"random": 1.0, "epsilon": 0.5, "noise": 0.1}

        def exploration(self) -> dict[str, float]:
            return dict(self.parameters)

        def set_exploration(self, parameters: Mapping[str, float]) -> None:
            self.parameters.update(parameters)

        def act(self, obs: Any, test: bool = False) -> Any:
            asked.append(self.exploration())
            return super().act(obs, test=test)

    worker = make()
    worker.actor = Exploring(worker.env.observation_space, worker.env.action_space)
    worker.run_env_benchmark(3, verbose=False)
    assert asked == [{"random": 0.0, "epsilon": 0.0, "noise": 0.1}] * 3
    assert worker.actor.exploration() == {"random": 1.0, "epsilon": 0.5, "noise": 0.1}


def test_the_benchmark_is_the_environments_own_where_it_has_one(make: Any) -> None:
    worker = make()
    worker.env.benchmarks = lambda: {"time_step": 0.05}
    assert "steps_per_s" in worker.run_env_benchmark(2, verbose=False)
    worker.env.benchmark = True
    assert worker.run_env_benchmark(2, verbose=False) == {"time_step": 0.05}


def test_the_benchmark_takes_an_environment_that_does_not_derive_from_gymnasiums(
    counting_env: Any, constant_actor: Any
) -> None:
    inner = counting_env()
    parts = {name: getattr(inner, name) for name in ("observation_space", "action_space", "reset", "step", "close")}
    worker = compose(lambda: SimpleNamespace(**parts), constant_actor)
    assert worker.run_env_benchmark(2, verbose=False)["steps_per_s"] > 0


@pytest.mark.parametrize("steps", [0, -1, float("inf")])
def test_a_benchmark_needs_a_number_of_steps(steps: float, make: Any) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        make().run_env_benchmark(steps)


def test_compressed_samples_are_sent(make: Any, link: Any) -> None:
    worker = make(
        sample_compressor=lambda act, obs, rew, terminated, truncated, info: (
            act,
            obs[1:2].astype(np.int8),
            rew,
            terminated,
            truncated,
            {},
        )
    )
    worker.run(nb_episodes=1, verbose=False)
    assert [sample[1].tolist() for sample in link.samples] == [[0], [1], [2], [3]]
    assert link.chunks[0].observation.dtype == np.int8
