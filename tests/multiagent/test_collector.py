"""The worker's collector against a scripted link, in one thread."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.actor.conftest import ScriptedLink
from tests.multiagent.remote_scenario import AGENTS, STEPS, Stocks, Weights, manager
from tests.multiagent.test_experiences import read, same
from tmrl_core.actor.policies.bundle import PolicyBundle
from tmrl_core.actor.policies.weights import SAFETENSORS_FORMAT, encode_arrays
from tmrl_core.actor.rollout.policy_files import PolicyFiles
from tmrl_core.actor.rollout.uplink import Uplink
from tmrl_core.errors import EnvironmentFailedError, LinkClosedError, NetworkError, StarvedError
from tmrl_core.multiagent import Actor
from tmrl_core.multiagent.collector import MultiAgentCollector, MultiAgentWorker, Stage, metrics_of
from tmrl_core.multiagent.experiences import PlayedEpisode
from tmrl_core.networking.protocol.messages import Blob, Collect, Directive, Evaluation, PolicyUpdate, encode_body

EPSILONS = {"north": 0.6, "south": 0.25}


def blob(*weights: float) -> Blob:
    return Blob(SAFETENSORS_FORMAT, encode_arrays({"weights": np.array(weights)}, {}))


MODELS = {"a": blob(0.1, 0.2), "b": blob(-0.3, 0.05)}


class Trainer:
    """Does one thing after the other, each time the worker waits, then finishes."""

    def __init__(self, link: ScriptedLink, *acts: Callable[[Trainer], object]) -> None:
        self.link = link
        self.acts = list(acts)
        self.revision = 0
        self.said: list[str] = []
        link.on_wait = self

    def __call__(self, link: ScriptedLink) -> None:
        self.said.append(link.waits_for)
        if self.acts:
            self.acts.pop(0)(self)
        else:
            self.direct(finish=True)

    def direct(self, collect: Collect | None = None, **kwargs: Any) -> None:
        self.revision += 1
        self.link.directive = Directive(
            self.revision, collect=None if collect is None else encode_body(collect), **kwargs
        )

    def publish(self, models: Mapping[str, Blob] = MODELS, epsilons: Mapping[str, float] = EPSILONS) -> None:
        self.link.versions_published += 1
        self.link.policy = PolicyUpdate((1, self.link.versions_published), dict(models), dict(epsilons))


def asks(
    episodes: int, seed: int | None = None, *, models: Mapping[str, Blob] = MODELS, **kwargs: Any
) -> Callable[[Trainer], object]:
    def act(trainer: Trainer) -> None:
        version = (1, trainer.link.versions_published + 1)
        trainer.direct(Collect(version[1], version, episodes=episodes, seed=seed), **kwargs)
        trainer.publish(models)

    return act


class Scripted(Stocks):
    """`Stocks` that calls a function before each step; `log` notes the calls of all instances in order."""

    on_step: Callable[[Scripted], object]

    def __init__(self, log: list[str], on_step: Callable[[Scripted], object] = lambda env: None) -> None:
        self.log = log
        self.on_step = on_step
        self.log.append("make")
        super().__init__()

    def step(self, action: Any) -> tuple[Any, Any, bool]:
        self.on_step(self)
        return super().step(action)

    def close(self) -> None:
        self.log.append("close")


class Made:
    """A worker over a scripted link, and what it has sent."""

    def __init__(
        self,
        make_env: Callable[[], Any] = Stocks,
        make_test_env: Callable[[], Any] = Stocks,
        *,
        linked: bool = True,
        path: Path | None = None,
        max_decisions: int = 100,
        make_manager: Callable[[Any], Any] = manager,
        **kwargs: Any,
    ) -> None:
        self.link = ScriptedLink()

        def make_stage(test: bool) -> Stage:
            return Stage(make_manager("inference"), make_test_env if test else make_env, max_decisions)

        self.collector = MultiAgentCollector(make_stage, name="one", **kwargs)
        link: Any = self.link if linked else None
        self.collector.uplink = Uplink(
            link,
            self.collector.recorder,
            self.collector,
            files=PolicyFiles(path),
            needs_policy=not linked,
        )
        self.worker = MultiAgentWorker(self.collector)

    @property
    def env(self) -> Any:
        return self.collector.stage.env.env

    @property
    def decisions(self) -> int:
        episode = self.collector.recorder.episode
        return 0 if episode is None else episode.steps

    @property
    def played(self) -> list[PlayedEpisode]:
        episodes, reasons = read(self.link.chunks)
        assert not reasons
        return episodes

    @property
    def ends(self) -> list[str]:
        return [record.end for record in self.link.records]


def fail(times: list[int]) -> Callable[[Scripted], object]:
    """Return a function that raises in the given steps of an episode, each once."""

    def on_step(env: Scripted) -> None:
        if times and len(env._history) == times[0]:
            times.pop(0)
            raise ValueError("the crane is stuck")

    return on_step


def test_assignments_are_played_exactly() -> None:
    made = Made()
    trainer = Trainer(made.link, asks(2, seed=5), asks(1))
    made.worker.run()
    assert all(list(episode.experiences) == list(AGENTS) for episode in made.played)
    assert [episode.version for episode in made.played] == [(1, 1), (1, 1), (1, 2)]
    assert [episode.seed for episode in made.played] == [5, None, None]
    assert made.ends == ["truncated"] * 3
    assert any("the round after 1, of which 2 episodes with version 1.1 are done" in text for text in trainer.said)


@pytest.mark.parametrize(("place", "asked", "seeds"), [(0, None, [70, None]), (3, None, [73, None]), (3, 5, [5, None])])
def test_a_namesake_has_a_seed_of_its_own_unless_the_trainer_gives_one(
    place: int, asked: int | None, seeds: list[int | None]
) -> None:
    made = Made(seed_of=lambda number: 70 + (number if number > 1 else 0))
    made.link.place = place
    Trainer(made.link, asks(2, seed=asked))
    made.worker.run()
    assert [episode.seed for episode in made.played] == seeds


def test_the_same_seed_and_weights_give_what_an_actor_plays_in_this_process() -> None:
    made = Made()
    Trainer(made.link, asks(1, seed=2**40))
    made.worker.run()
    actor = Actor(Stocks(), manager("inference"))
    performances, experiences = actor.roll_out(MODELS, EPSILONS, 2**40)
    (played,) = made.played
    assert same(played.experiences, experiences)
    assert played.performance == performances["local"]
    assert made.link.records[0].episode_return == performances["local"]["score"]


def test_epsilons_are_those_of_the_version() -> None:
    made = Made()
    Trainer(made.link, asks(1))
    made.worker.run()
    (played,) = made.played
    assert played.epsilons == EPSILONS
    for agent, epsilon in EPSILONS.items():
        assert (np.asarray(played.experiences[agent]["epsilon"]) == epsilon).all()


def test_records_have_numbers_of_the_performance() -> None:
    made = Made()
    Trainer(made.link, asks(1))
    made.worker.run()
    (record,) = made.link.records
    assert (record.length, record.mode, record.worker) == (STEPS, "train", "one")
    assert record.metrics == {"score": record.episode_return}


def test_metrics_are_bounded() -> None:
    many = {f"m{number}": number for number in range(100)}
    assert list(
        metrics_of({"text": "x", "nan": np.nan, "long" * 30: 1.0, 3: 4.0, "one": np.float32(1), "yes": True})
    ) == [
        "one",
        "yes",
    ]
    assert len(metrics_of(many)) == 32
    assert metrics_of([1, 2]) == {}


# --- cancelled, stopped, failed ---------------------------------------------------------------------------------------


def test_a_cancelled_episode_is_dropped_and_the_next_assignment_is_whole() -> None:
    made = Made(lambda: Scripted([]), max_decisions=10**6)
    trainer = Trainer(made.link, asks(1, seed=5), asks(1))

    def cancel(env: Scripted) -> None:
        if made.worker.recorder.version == (1, 1):
            env._history.clear()  # this episode has no end
            if made.decisions == 300:
                trainer.direct()

    made.env.on_step = cancel
    made.worker.run()
    assert [(episode.version, episode.seed) for episode in made.played] == [((1, 2), None)]
    assert made.ends == ["aborted", "truncated"]
    assert made.link.records[0].length >= 300


@pytest.mark.parametrize("how", ["stop", "finish"])
def test_an_end_is_noticed_within_an_episode(how: str) -> None:
    made = Made(lambda: Scripted([]), max_decisions=10**6)
    trainer = Trainer(made.link, asks(1))

    def end(env: Scripted) -> None:
        env._history.clear()
        if made.decisions == 300:
            made.worker.stop() if how == "stop" else trainer.direct(finish=True)

    made.env.on_step = end
    made.worker.run()
    assert made.ends == ["aborted"]
    assert not made.link.chunks


def test_a_failure_of_the_link_is_not_one_of_the_environment() -> None:
    made = Made(lambda: Scripted([]), max_decisions=10**6)
    Trainer(made.link, asks(1))

    def lose(env: Scripted) -> None:
        env._history.clear()
        made.link.failure = NetworkError("the token was revoked")

    made.env.on_step = lose
    with pytest.raises(NetworkError, match="the token was revoked"):
        made.worker.run()
    assert made.collector.failures == 0


def test_a_failed_episode_is_dropped_and_played_again(caplog: pytest.LogCaptureFixture) -> None:
    times = [3, 0, 7]
    made = Made(lambda: Scripted([], fail(times)))
    Trainer(made.link, asks(2, seed=5))
    made.worker.run()
    assert len(made.played) == 2
    assert made.ends == ["aborted", "aborted", "truncated", "truncated"]
    assert made.collector.failures == 3
    assert caplog.text.count("the crane is stuck") >= 3
    assert caplog.text.count("Traceback") == 1


def test_too_many_failures_end_the_worker() -> None:
    made = Made(lambda: Scripted([], fail([2] * 9)), max_failures=2)
    Trainer(made.link, asks(1))
    with pytest.raises(EnvironmentFailedError, match=r"failed 3 times in a row, worker\.max_failures is 2.*crane"):
        made.worker.run()


def test_a_seed_of_a_reset_that_failed_is_used_again() -> None:
    made = Made(lambda: Scripted([], fail([0])))
    Trainer(made.link, asks(1, seed=9))
    made.worker.run()
    assert [episode.seed for episode in made.played] == [9]


def test_an_environment_whose_reset_fails_is_made_again() -> None:
    log: list[str] = []
    broken = [True]

    class Broken(Scripted):
        def reset(self) -> None:
            if self._history_exists and broken and broken.pop():
                raise ValueError("no reset")
            super().reset()
            self._history_exists = True

        _history_exists = False

    made = Made(lambda: Broken(log))
    Trainer(made.link, asks(2))
    made.worker.run()
    made.worker.close()
    assert len(made.played) == 2
    assert log == ["make", "close", "make", "close"]


def test_a_performance_that_cannot_be_sent_names_its_part() -> None:
    class Odd(Stocks):
        @property
        def metrics(self) -> Any:
            return {"score": 1, "self": self}

    made = Made(Odd, max_failures=1)
    Trainer(made.link, asks(1))
    with pytest.raises(EnvironmentFailedError, match=r"value\['performance'\]\['self'\] is a .*Odd"):
        made.worker.run()


def test_a_score_that_fails_is_a_failure_of_the_episode() -> None:
    class Odd(Stocks):
        @property
        def metrics(self) -> Any:
            return {"score": "high"}

    def strict(mode: Any) -> Any:
        made = manager(mode)
        made.score = lambda performance: float(performance["score"])  # type: ignore[method-assign]
        return made

    made = Made(Odd, max_failures=0, make_manager=strict)
    Trainer(made.link, asks(1))
    with pytest.raises(EnvironmentFailedError, match="the manager's score failed: ValueError: could not convert"):
        made.worker.run()


class Wild(Weights):
    def choose_action(self, state: Any, epsilon: float) -> Any:
        return np.nan if self.weights[0] > 5 else super().choose_action(state, epsilon)


def wild(mode: Any) -> Any:
    made = manager(mode)
    for policy in made.policies.values():
        policy.__class__ = Wild
    return made


def test_actions_that_are_not_finite_wait_for_another_version(caplog: pytest.LogCaptureFixture) -> None:
    made = Made(make_manager=wild, max_failures=0)
    Trainer(made.link, asks(1, models={**MODELS, "a": blob(9.0, 0.0)}), asks(1))
    made.worker.run()
    assert [episode.version for episode in made.played] == [(1, 2)]
    assert "wait" in caplog.text


# --- evaluations ------------------------------------------------------------------------------------------------------


def test_evaluations_change_nothing_in_the_episodes_between_which_they_are_played() -> None:
    plain, evaluated = Made(), Made()
    Trainer(plain.link, asks(1, seed=5), asks(1))
    Trainer(evaluated.link, asks(1, seed=5), asks(1, evaluation=Evaluation(1, (1000, 1001), (1, 2))))
    for made in (plain, evaluated):
        made.worker.run()
    assert all(map(same, [e.experiences for e in plain.played], [e.experiences for e in evaluated.played]))
    tests = [record for record in evaluated.link.records if record.mode == "test"]
    assert [(record.seed, record.evaluation, record.version) for record in tests] == [
        (1000, 1, (1, 2)),
        (1001, 1, (1, 2)),
    ]
    assert evaluated.worker.recorder.buffer.stat_test_steps == STEPS


def test_evaluations_are_deterministic_and_without_exploration() -> None:
    made = Made()
    Trainer(made.link, asks(1, evaluation=Evaluation(1, (7, 7), (1, 1))))
    made.worker.run()
    first, second = (record.episode_return for record in made.link.records if record.mode == "test")
    assert first == second
    actor = Actor(Stocks(), manager("inference"))
    performances, _ = actor.roll_out(MODELS, EPSILONS, 7, test=True)
    assert performances["local"]["score"] == first


def test_an_evaluation_whose_policy_fails_is_played_again_with_the_next_policy() -> None:
    made = Made(make_manager=wild, max_failures=0)
    asked = Evaluation(1, (7, 8), (1, 1))
    Trainer(made.link, asks(1, models={**MODELS, "a": blob(9.0, 0.0)}, evaluation=asked), asks(1, evaluation=asked))
    made.worker.run()
    assert [(record.seed, record.version) for record in made.link.records if record.mode == "test"] == [
        (7, (1, 2)),
        (8, (1, 2)),
    ]


def test_tests_use_their_own_environment() -> None:
    log: list[str] = []
    made = Made(make_test_env=lambda: Scripted(log))
    Trainer(made.link, asks(1, evaluation=Evaluation(1, (7,), (1, 1))), asks(1, evaluation=Evaluation(2, (8,), (1, 2))))
    made.worker.run()
    made.worker.close()
    assert log == ["make", "close"]


# --- policies ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("models", "epsilons", "reason"),
    [
        ({"a": MODELS["a"]}, EPSILONS, r"has the policies \['a'\], and this worker has \['a', 'b'\]"),
        ({**MODELS, "c": MODELS["a"]}, EPSILONS, r"\['a', 'b', 'c'\]"),
        ({"a": blob(1.0, 1.0), "b": Blob("file", b"damaged")}, EPSILONS, "safetensors"),
        (MODELS, {"west": 0.5}, "west"),
        (MODELS, {"north": 7.0}, "north"),
    ],
)
def test_a_version_that_does_not_fit_is_refused_completely(
    models: Any, epsilons: Any, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    made = Made()
    trainer = Trainer(made.link)
    trainer.publish()
    made.collector.uplink.take_policy(verbose=False)
    trainer.publish(models, epsilons)
    made.collector.uplink.take_policy(verbose=False)
    agents = made.collector.stage.manager
    assert {name: policy.get_model() for name, policy in agents.policies.items()} == MODELS
    assert dict(agents.explorer.epsilons) == EPSILONS
    assert made.worker.recorder.version == (1, 1)
    assert re.search("version 1.2 of the policy is refused, the old one stays: .*" + reason, caplog.text)


def test_the_first_version_that_does_not_fit_leaves_the_policies_as_they_were_made() -> None:
    made = Made()
    agents = made.collector.stage.manager
    before = {name: policy.get_model() for name, policy in agents.policies.items()}, dict(agents.explorer.epsilons)
    Trainer(made.link).publish({"a": blob(1.0, 1.0), "b": Blob("file", b"damaged")})
    made.collector.uplink.take_policy(verbose=False)
    assert (
        {name: policy.get_model() for name, policy in agents.policies.items()},
        dict(agents.explorer.epsilons),
    ) == before


def test_kept_policies_are_loaded_at_the_start(tmp_path: Path) -> None:
    made = Made(path=tmp_path / "policy.tmod")
    Trainer(made.link, asks(1))
    made.worker.run()
    assert PolicyBundle.read(tmp_path / "policy.tmod") == PolicyBundle(MODELS, EPSILONS)
    again = Made(path=tmp_path / "policy.tmod", linked=False)
    agents = again.collector.stage.manager
    assert {name: policy.get_model() for name, policy in agents.policies.items()} == MODELS


# --- the worker -------------------------------------------------------------------------------------------------------


def test_without_a_server_it_plays_tests_only(tmp_path: Path) -> None:
    made = Made(linked=False)
    assert made.worker.run_episode(seed=3)
    assert made.worker.recorder.buffer.stat_test_steps == STEPS
    with pytest.raises(StarvedError, match="the worker is standalone"):
        made.worker.run()


def test_the_environment_is_closed_before_the_link() -> None:
    log: list[str] = []
    made = Made(make_test_env=lambda: Scripted(log))
    Trainer(made.link, asks(1, evaluation=Evaluation(1, (7,), (1, 1))))
    made.worker.run()

    class Link(type(made.link)):  # type: ignore[misc]
        def close(self) -> Any:
            log.append("link")
            return super().close()

    made.link.__class__ = Link
    made.worker.close()
    assert log == ["make", "close", "link"]


def test_close_ends_it_once() -> None:
    made = Made()
    Trainer(made.link, asks(1))
    made.worker.run()
    with made.worker:
        pass
    assert made.link.closed
    assert made.worker.close() is None
    with pytest.raises(LinkClosedError, match="is closed"):
        made.worker.run()
