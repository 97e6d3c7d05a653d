from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from tests.actor.rollout.composing import compose
from tmrl_core.actor import NumpySquashedGaussianResidualActor, NumpySquashedGaussianRNNActor
from tmrl_core.actor.interventions import InterventionSource, as_source
from tmrl_core.actor.rollout.takeover import Takeover
from tmrl_core.actor.rollout.worker import Worker
from tmrl_core.errors import ConfigError, TakeoverError


class Person(InterventionSource):
    """Acts and speaks as a script says, by the number of the step in the episode."""

    def __init__(self, actions: Mapping[int, Any] | None = None, events: Mapping[int, Collection[str]] | None = None):
        self.actions, self.said = dict(actions or {}), dict(events or {})
        self.episodes = self.step = 0
        self.closed = False

    def begin_episode(self) -> None:
        self.episodes += 1
        self.step = 0

    def poll(self, obs: Any) -> Any:
        self.step += 1
        action = self.actions.get(self.step)
        if isinstance(action, Exception):
            raise action
        return action

    def events(self) -> Collection[str]:
        return self.said.get(self.step, ()) if self.episodes == 1 else ()

    def close(self) -> None:
        self.closed = True


def beside(env: Any, actor: Any, person: Any, **kwargs: Any) -> Worker:
    takeover = {name: kwargs.pop(name) for name in ("executed", "success_reward") if name in kwargs}
    worker = compose(env if callable(env) else lambda: env, actor, **kwargs)
    loop = worker.loop
    loop.let_take_over(Takeover(person, loop.environment.env.action_space, loop.recorder, **takeover))
    return worker


def column(worker: Worker, name: str) -> list[Any]:
    return [value for chunk in worker.buffer.chunks for value in np.asarray(chunk.extras[name]).tolist()]


def actions(worker: Worker) -> list[Any]:
    return [None if sample[0] is None else sample[0].tolist() for sample in worker.buffer.memory]


class Clipping(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Says which action it has executed, as a robot's driver does, and that a person acts inside, at step 2."""

    def __init__(self, env: Any, key: str = "teleop_action") -> None:
        super().__init__(env)
        self._key, self._steps = key, 0

    def step(self, action: Any) -> Any:
        self._steps += 1
        obs, reward, terminated, truncated, info = self.env.step(action)
        return obs, reward, terminated, truncated, {
            **info, self._key: np.clip(action, -0.5, 0.5), "is_intervention": self._steps == 2, "other": 1,
        }  # fmt: skip


def test_a_persons_action_is_executed_and_recorded_beside_the_policys(counting_env: Any, constant_actor: Any) -> None:
    worker = beside(counting_env(length=4), constant_actor, Person({2: [0.75], 3: np.array([-0.5])}))
    worker.collect_train_episode()
    assert worker.env.actions == [0.25, 0.75, -0.5, 0.25]
    assert actions(worker) == [None, [0.25], [0.75], [-0.5], [0.25]]
    assert column(worker, "is_intervention") == [False, False, True, True, False]
    assert column(worker, "policy_action") == [[0.0], [0.25], [0.25], [0.25], [0.25]]
    # The reset and the steps are one chunk: their columns are the same.
    assert len(worker.buffer.chunks) == 1


def test_the_metrics_of_an_episode_have_the_rate_and_the_number_of_takeovers(
    counting_env: Any, constant_actor: Any
) -> None:
    worker = beside(counting_env(length=5), constant_actor, Person({1: [0], 3: [0], 4: [0]}))
    worker.collect_train_episode()
    (record,) = worker.buffer.episodes
    assert record.metrics == {"intervention_rate": 0.6, "takeovers": 2.0}


def test_recorded_is_what_the_environment_says_it_has_executed(counting_env: Any, constant_actor: Any) -> None:
    worker = beside(Clipping(counting_env(length=3)), constant_actor, Person({1: [0.75]}))
    worker.collect_train_episode()
    assert actions(worker) == [None, [0.5], [0.25], [0.25]]
    assert column(worker, "is_intervention") == [False, True, True, False]
    assert [sample[5] for sample in worker.buffer.memory][1:] == [{"other": 1}] * 3


def test_what_an_environment_says_of_the_person_is_recorded_beside_a_recurrent_state(counting_env: Any) -> None:
    worker = beside(Clipping(counting_env(length=3)), NumpySquashedGaussianRNNActor, Person({1: [0.75]}))
    worker.collect_train_episode()
    assert column(worker, "is_intervention") == [False, True, True, False]
    assert len(column(worker, "state.h")) == 4


def test_another_key_may_hold_the_executed_action(counting_env: Any, constant_actor: Any) -> None:
    worker = beside(Clipping(counting_env(length=1), "sent"), constant_actor, Person({1: [1.0]}), executed="sent")
    worker.collect_train_episode()
    assert actions(worker) == [None, [0.5]]


def test_an_action_beyond_the_bounds_is_moved_to_them(counting_env: Any, constant_actor: Any) -> None:
    worker = beside(counting_env(length=1), constant_actor, Person({1: [7.0]}))
    worker.collect_train_episode()
    assert actions(worker) == [None, [float(worker.env.action_space.high[0])]]


@pytest.mark.parametrize(
    ("event", "end", "reward", "success"),
    [
        ("success", "terminated", 5.0, 1.0),
        ("failure", "terminated", 2.0, 0.0),
        ("terminate_episode", "truncated", 2.0, None),
    ],
)
def test_events_end_an_episode(
    event: str, end: str, reward: float, success: float | None, counting_env: Any, constant_actor: Any
) -> None:
    person = Person(events={2: {event}})
    worker = beside(counting_env(length=9), constant_actor, person, success_reward=5.0)
    worker.collect_train_episode()
    (record,) = worker.buffer.episodes
    assert (record.end, record.length, worker.buffer.memory[-1][2]) == (end, 2, reward)
    assert record.metrics.get("is_success") == success


def test_a_discarded_episode_leaves_nothing_and_another_one_follows(
    counting_env: Any, constant_actor: Any, caplog: Any
) -> None:
    worker = beside(counting_env(length=4), constant_actor, Person(events={3: {"rerecord_episode", "success"}}))
    worker.collect_train_episode()
    assert [record.length for record in worker.buffer.episodes] == [4]
    assert {int(number) for chunk in worker.buffer.chunks for number in chunk.episode} == {1}
    assert worker.recorder.samples_dropped == 3  # the step of the event is not recorded
    assert not [each for each in caplog.records if each.levelno >= logging.WARNING]


def test_an_environment_may_ask_to_discard_its_episode(counting_env: Any, constant_actor: Any) -> None:
    env = counting_env(length=2)
    step = env.step
    said: list[bool] = []

    def saying(action: Any) -> Any:
        *result, info = step(action)
        said.append(not said)
        return (*result, {**info, "rerecord_episode": said[-1]})

    env.step = saying
    worker = beside(env, constant_actor, Person())
    worker.collect_train_episode()
    assert [record.episode for record in worker.buffer.episodes] == [1]


def test_samples_that_were_sent_before_a_discard_are_counted(
    counting_env: Any, constant_actor: Any, caplog: Any
) -> None:
    worker = beside(counting_env(length=4), constant_actor, Person(events={3: {"rerecord_episode"}}))
    worker.loop.train(allow=lambda: (worker.recorder.take(), 1)[1])
    assert "3 samples of the discarded episode had been sent before and stay in the memory" in caplog.text


def test_a_takeover_in_an_evaluation_is_told(counting_env: Any, constant_actor: Any, caplog: Any) -> None:
    worker = beside(counting_env(length=2), constant_actor, Person({1: [0.0]}))
    worker.loop.play(collect=False, test=True, evaluation=7)
    assert worker.buffer.episodes[0].metrics["intervention_rate"] == 0.5
    assert "a person took over 1 of 2 steps of an episode of evaluation 7" in caplog.text


@pytest.mark.parametrize("action", [[0.1, 0.2], [float("nan")], "left"])
def test_what_is_no_action_ends_the_run(action: Any, counting_env: Any, constant_actor: Any) -> None:
    worker = beside(counting_env(length=2), constant_actor, Person({2: action}))
    with pytest.raises(TakeoverError, match=r"the source's action is .*; allowed: .*action"):
        worker.collect_train_episode()
    assert worker.env.actions == [0.25]


def test_a_source_that_fails_ends_the_run(counting_env: Any, constant_actor: Any) -> None:
    worker = beside(counting_env(length=2), constant_actor, Person({1: OSError("unplugged")}))
    with pytest.raises(TakeoverError, match=r"failed with OSError: unplugged\. The worker stops, because the person"):
        worker.collect_train_episode()


def test_an_unknown_event_ends_the_run(counting_env: Any, constant_actor: Any) -> None:
    worker = beside(counting_env(length=2), constant_actor, Person(events={1: {"sucess"}}))
    with pytest.raises(TakeoverError, match=r"reports \['sucess'\]; allowed: success, failure, rerecord_episode"):
        worker.collect_train_episode()


def test_an_action_of_choices_must_be_one_of_them(counting_env: Any) -> None:
    space = spaces.Discrete(3)

    class Always:
        def __init__(self, choice: int) -> None:
            self.choice = choice

        def poll(self, obs: Any) -> int:
            return self.choice

    recorder = compose(counting_env, None or _actor_class(), max_failures=1).recorder
    takeover = Takeover(as_source(Always(2), "x"), space, recorder)
    assert takeover.decide(None, 0, {})[0] == 2
    with pytest.raises(TakeoverError, match=r"the source's action is 3; allowed: an action of Discrete\(3\)"):
        Takeover(as_source(Always(3), "x"), space, recorder).decide(None, 0, {})
    with pytest.raises(ConfigError, match=r"allowed: Box, Discrete, MultiDiscrete, MultiBinary"):
        Takeover(Person(), spaces.Tuple((space,)), recorder)


def _actor_class() -> Any:
    from tmrl_core.actor import ActorModule

    class Still(ActorModule):
        def act(self, obs: Any, test: bool = False) -> Any:
            return np.zeros(1, np.float32)

    return Still


def test_single_steps_are_the_same_as_those_of_episodes(counting_env: Any, constant_actor: Any) -> None:
    worker = beside(counting_env(length=3), constant_actor, Person({1: [0.5]}, {2: {"success"}}))
    obs, _ = worker.reset(collect_samples=True)
    obs, *_ = worker.step(obs, test=False, collect_samples=True)
    _, reward, terminated, _, info = worker.step(obs, test=False, collect_samples=True)
    assert (reward, terminated, info) == (1.0, True, {"is_success": True})
    assert column(worker, "is_intervention") == [False, True, False]


def test_the_device_is_released_with_the_worker(counting_env: Any, constant_actor: Any) -> None:
    person = Person()
    beside(counting_env(), constant_actor, person).close()
    assert person.closed


class Still(gymnasium.Env[Any, Any]):
    """Observations do not depend on actions, so that two policies see the same ones."""

    observation_space = spaces.Box(-1, 1, (2,), np.float32)
    action_space = spaces.Box(-1, 1, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self._steps = 0
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        self._steps += 1
        return np.full(2, self._steps / 30, np.float32), 0.0, False, self._steps == 30, {}


@pytest.mark.parametrize("kind", [NumpySquashedGaussianRNNActor, NumpySquashedGaussianResidualActor])
def test_the_policys_state_and_noise_go_on_while_a_person_acts(kind: Any) -> None:
    actor = kind(Still.observation_space, Still.action_space)
    actor.set_exploration({"random": 0.0})
    workers = []
    for person in (Person(), Person({step: [0.5] for step in range(5, 25)})):
        workers.append(beside(Still, lambda **spaces: actor, person, seed=3))
        workers[-1].collect_train_episode()
    alone, together = workers
    assert column(alone, "policy_action") == column(together, "policy_action")
    assert actions(alone)[25:] == actions(together)[25:]
    states = [name for name in together.buffer.chunks[0].extras if name.startswith("state.")]
    assert bool(states) == (kind is NumpySquashedGaussianRNNActor)
    for name in states:
        assert column(alone, name) == column(together, name)


# --- sources ----------------------------------------------------------------------------------------------------------


def test_an_object_that_cannot_take_over_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"worker\.interventions\.cls: a:B made a object, which has no `poll"):
        as_source(object(), "a:B")
