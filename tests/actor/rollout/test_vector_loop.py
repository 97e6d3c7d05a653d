from __future__ import annotations

import itertools
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from tests.actor.rollout.composing import compose
from tests.masked_corridor import MaskedCorridor
from tmrl_core.actor import (
    ActorModule,
    BatchActor,
    NumpyCategoricalMLPActor,
    NumpyGaussianMLPActor,
    NumpyQValueMLPActor,
)
from tmrl_core.actor.rollout.recorder import StepRecorder
from tmrl_core.actor.rollout.uplink import Uplink
from tmrl_core.actor.rollout.vector_environment import VectorEnvironment, info_of
from tmrl_core.actor.rollout.vector_recorder import VectorRecorder
from tmrl_core.actor.rollout.worker import Worker, make_loop
from tmrl_core.errors import ConfigError, EnvironmentFailedError, PolicyFailedError
from tmrl_core.networking.protocol.messages import Collect, Directive, Evaluation, encode_body
from tmrl_core.samples import Buffer, Chunk
from tmrl_core.samples.columns import by_lane

MODES = [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP, AutoresetMode.DISABLED]


class Told(gymnasium.Env[Any, Any]):
    """Observations are (place, episode, step); the reward is the step; episodes of place p have 3 + p steps."""

    observation_space = spaces.Box(-100, 100, (3,), np.float32)
    action_space = spaces.Box(-1000, 1000, (3,), np.float32)
    fails_at = -1

    def __init__(self, place: int) -> None:
        self.place, self.episode, self.steps = place, -1, 0
        self.seeds: list[int | None] = []
        self.actions: list[Any] = []

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.seeds.append(seed)
        self.episode, self.steps = self.episode + 1, 0
        return self._observation(), {"fresh": self.episode}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        self.actions.append(action.copy())
        self.steps += 1
        if self.steps == self.fails_at:
            raise OSError("the camera is away")
        over = self.steps == 3 + self.place
        info = {"is_success": self.place == 1, "last": self.steps} if over else {}
        return self._observation(), float(self.steps), over and self.place != 2, over and self.place == 2, info

    def _observation(self) -> Any:
        return np.array([self.place, self.episode, self.steps], np.float32)


class Echo(ActorModule):
    """Acts with its observation, one at a time."""

    def act(self, obs: Any, test: bool = False) -> Any:
        return obs.copy()


class EchoBatch(BatchActor):
    """The same on batches, with the number of its actions in the episode as state and as extra."""

    def initial_state(self, batch: int) -> Any:
        return {"ticks": np.zeros((batch,), np.int64)}

    def act_batch(self, obs_B: Any, state_B: Any, rng: Any, deterministic: bool) -> Any:
        assert obs_B.shape[1:] == (3,)
        return obs_B.copy(), {"ticks": state_B["ticks"] + 1}, {"tick": state_B["ticks"]}

    def reset_extras(self) -> dict[str, Any]:
        return {"tick": np.int64(-1)}


class CategoricalByOne(NumpyCategoricalMLPActor):
    """A user's policy, which acts for one environment after the other."""

    def act(self, obs: Any, test: bool = False) -> Any:
        return super().act(obs, test)


def environments(envs: int, mode: AutoresetMode | None) -> tuple[Any, list[Told]]:
    """Return a maker of single environments (mode None) or of a vector environment, and those that it makes."""
    made: list[Told] = []
    places = itertools.count()

    def make_one() -> Told:
        made.append(Told(next(places) % envs))
        return made[-1]

    if mode is None:
        return make_one, made
    return lambda: SyncVectorEnv([make_one] * envs, autoreset_mode=mode), made


def worker_of(
    envs: int, mode: AutoresetMode | None, actor: Any = EchoBatch, **kwargs: Any
) -> tuple[Worker, list[Told]]:
    make, made = environments(envs, mode)
    return compose(make, actor, rows=envs, **kwargs), made


def lanes(chunks: list[Chunk]) -> dict[bytes, list[Any]]:
    """Return the samples of each environment in order, each with its episode's id, step and extras."""
    found: dict[bytes, list[Any]] = {}
    for chunk in chunks:
        for part in by_lane(chunk, b"s" * 16):
            for row in range(part.rows):
                extras = {name: column[row] for name, column in part.extras.items()}
                found.setdefault(part.stream, []).append(
                    (part.sample(row), int(part.episode[row]), int(part.step[row]), extras)
                )
    return found


@pytest.mark.parametrize("mode", [None, *MODES])
@pytest.mark.parametrize("actor", [Echo, EchoBatch])
def test_episodes_of_each_environment_are_whole_and_apart(actor: Any, mode: AutoresetMode | None, link: Any) -> None:
    worker, made = worker_of(3, mode, actor, link=link, send_pause_s=0.0)
    worker.run(nb_episodes=12, verbose=False)
    found = lanes(link.chunks)
    assert len(found) == 3
    assert sum(map(len, found.values())) == worker.steps_collected
    for place, samples in enumerate(found.values()):
        before: Any = None
        for (action, obs, reward, terminated, truncated, info), episode, step, extras in samples:
            assert obs[0] == place
            if step == 0:
                assert before is None or before[1], "an episode begins where one has ended"
                assert (action, reward, terminated, truncated) == (None, 0.0, False, False)
                assert info == {"fresh": int(obs[1])}
                assert extras.get("tick", -1) == -1
            else:
                assert before is not None
                assert not before[1]
                assert action.tolist() == before[0].tolist(), "the action follows the observation before it"
                assert (episode, step) == (before[2], before[3] + 1)
                assert (obs[2], reward) == (step, float(step))
                assert type(reward) is float
                assert extras.get("tick", step - 1) == step - 1, "the state begins with each episode"
                over = step == 3 + place
                assert (terminated, truncated) == (over and place != 2, over and place == 2)
                assert info == ({"is_success": place == 1, "last": step} if over else {})
            assert obs[2] == step
            before = obs, terminated or truncated, episode, step
    for record in link.records:
        place = record.episode >> 40
        if record.end != "aborted":
            assert (record.length, record.episode_return) == (3 + place, sum(range(1, 4 + place)))
            assert record.metrics == {"is_success": float(place == 1)}
            assert record.end == ("truncated" if place == 2 else "terminated")
    assert len([record for record in link.records if record.end != "aborted"]) >= 12
    for env in made:
        assert all(step[0] == env.place for step in env.actions)


def test_versions_and_messages_may_change_at_any_step(link: Any) -> None:
    def publish(_: Any) -> None:
        link.publish(float(link.versions_published))

    class Loading(EchoBatch):
        def from_blob(self, tag: str, data: bytes, device: Any) -> Any:
            return self

    link.on_send = publish
    worker, _ = worker_of(2, None, Loading, link=link, send_every=4, update_weights="step", send_pause_s=0.0)
    worker.run(nb_episodes=10, verbose=False)
    versions = [int(version[1]) for chunk in link.chunks for version in chunk.version]
    assert len(set(versions)) > 3
    for samples in lanes(link.chunks).values():
        assert [(sample[1][1], sample[1][2]) for sample, *_ in samples] == sorted(
            (sample[1][1], sample[1][2]) for sample, *_ in samples
        ), "every step once, in order"


def test_synchronous_collection_steps_all_environments_where_one_step_is_allowed(link: Any) -> None:
    seen = []

    def publish(_: Any) -> None:
        seen.append(worker.steps_collected)
        link.publish()

    class Loading(EchoBatch):
        def from_blob(self, tag: str, data: bytes, device: Any) -> Any:
            return self

    link.on_wait = publish
    worker, _ = worker_of(4, None, Loading, link=link)
    worker.run_synchronous(nb_steps=40, initial_steps=8, max_steps_per_update=2.0, end_episodes=False)
    assert all(rows % 4 == 0 for rows in seen)
    assert 48 <= worker.steps_collected <= 52
    assert link.versions_published >= 16


def test_lockstep_collects_the_steps_of_each_assignment(link: Any) -> None:
    class Loading(EchoBatch):
        def from_blob(self, tag: str, data: bytes, device: Any) -> Any:
            return self

    def direct(_: Any) -> None:
        number = link.versions_published + 1
        if number == 4:
            link.directive = Directive(9, finish=True)
            return
        link.publish()
        link.directive = Directive(number, collect=encode_body(Collect(round=number, version=(1, number), steps=20)))

    link.on_wait = direct
    worker, _ = worker_of(2, None, Loading, link=link)
    worker.run_lockstep()
    steps: dict[int, int] = {}
    for chunk in link.chunks:
        for segment in chunk.segments:
            steps[segment.counter] = steps.get(segment.counter, 0) + segment.rows - (segment.first_step == 0)
    assert steps.keys() == {1, 2, 3}
    assert all(20 <= count <= 21 for count in steps.values()), steps


def test_whole_episodes_of_a_lockstep_round_are_refused(link: Any) -> None:
    link.directive = Directive(1, collect=encode_body(Collect(round=1, version=(0, 0), episodes=2)))
    worker, _ = worker_of(2, None, link=link)
    with pytest.raises(ConfigError, match=r"worker\.envs: found 2.*whole episodes"):
        worker.run_lockstep()


@pytest.mark.parametrize("mode", [None, *MODES])
def test_an_evaluation_plays_one_episode_of_each_seed(mode: AutoresetMode | None, link: Any) -> None:
    link.directive = Directive(1, evaluation=Evaluation(id=7, version=(0, 0), seeds=(10, 11, 12, 13, 14)))
    worker, made = worker_of(3, mode, link=link, info_metrics=["last"])
    worker.run(nb_episodes=6, verbose=False)
    played = [record for record in link.records if record.evaluation == 7]
    assert sorted(record.seed or 0 for record in played) == [10, 11, 12, 13, 14]
    assert {record.mode for record in played} == {"test"}
    assert sorted(record.length for record in played) == [3, 3, 4, 4, 5]
    assert {record.metrics["last"] for record in played} == {3.0, 4.0, 5.0}
    if mode is None:
        assert [seed for env in made for seed in env.seeds if seed in range(10, 15)] == [10, 13, 11, 14, 12]
    assert [record.mode for record in link.records].count("train") >= 6


@pytest.mark.parametrize("mode", [None, AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
@pytest.mark.parametrize("actor", [NumpyQValueMLPActor, CategoricalByOne])
def test_a_mask_may_allow_no_action_where_an_episode_has_ended(
    actor: Any, mode: AutoresetMode | None, link: Any
) -> None:
    link.directive = Directive(1, evaluation=Evaluation(id=7, version=(0, 0), seeds=(10, 11, 12, 13)))
    make = MaskedCorridor if mode is None else lambda: SyncVectorEnv([MaskedCorridor] * 3, autoreset_mode=mode)
    worker = compose(make, actor, rows=3, seed=1, link=link, send_pause_s=0.0, max_failures=0)
    worker.run(nb_episodes=9, verbose=False)
    ends = [record.end for record in link.records if record.mode == "train" and record.evaluation is None]
    assert len(ends) - ends.count("aborted") >= 9
    assert [record.evaluation for record in link.records].count(7) == 4
    for chunk in link.chunks:
        masks = chunk.observation["action_mask"]
        assert not masks[chunk.terminated].any(), "samples hold the environment's masks"
        assert masks[~chunk.terminated].any(axis=1).all()


def test_a_failure_drops_what_was_not_sent_and_begins_all_episodes_anew(link: Any) -> None:
    worker, made = worker_of(2, None, link=link, max_failures=1)
    made[1].fails_at = 2
    with pytest.raises(EnvironmentFailedError):
        worker.run(nb_episodes=4, verbose=False)
    assert worker.loop.failures == 2
    assert worker.recorder.samples_dropped == 8
    assert not link.chunks
    made[1].fails_at = -1
    worker.run(nb_episodes=4, verbose=False)
    assert {len(samples) > 3 for samples in lanes(link.chunks).values()} == {True}


def test_an_action_that_is_not_finite_is_not_executed() -> None:
    class Wrong(EchoBatch):
        def act_batch(self, obs_B: Any, state_B: Any, rng: Any, deterministic: bool) -> Any:
            action_B, *rest = super().act_batch(obs_B, state_B, rng, deterministic)
            action_B[1, 1] = np.nan
            return action_B, *rest

    worker, made = worker_of(2, None, Wrong)
    with pytest.raises(PolicyFailedError):
        worker.run(nb_episodes=1, verbose=False)
    assert not any(env.actions for env in made)


def test_a_limit_truncates_each_episode() -> None:
    worker, _ = worker_of(3, None, max_samples_per_episode=4)
    worker.run(nb_episodes=9, verbose=False)
    lengths = {(record.length, record.end) for record in worker.buffer.episodes if record.end != "aborted"}
    assert lengths == {(3, "terminated"), (4, "terminated"), (4, "truncated")}


def test_seeds_repeat_a_run() -> None:
    def played() -> Any:
        recorder = VectorRecorder(Buffer(None), 4)
        loop = make_loop(
            lambda: gymnasium.make("CartPole-v1"),
            lambda **spaces: Choosing(**spaces),
            recorder,
            seed=5,
        )
        loop.uplink = Uplink(None, recorder, loop.runner)
        loop.train(lambda: 100)
        loop.train(lambda: 100)
        return [(record.seed, record.length) for record in recorder.buffer.episodes], recorder.take()[0][0].observation

    class Choosing(BatchActor):
        def act_batch(self, obs_B: Any, state_B: Any, rng: Any, deterministic: bool) -> Any:
            return rng.integers(2, size=len(obs_B)), state_B, {}

    records, observations = played()
    again, same = played()
    assert records == again
    assert {record[0] for record in records} <= {5, 6, 7, 8}
    np.testing.assert_array_equal(observations, same)


@pytest.mark.parametrize(
    ("kwargs", "name"),
    [({"obs_preprocessor": lambda obs: obs}, "obs_preprocessor"), ({"safe_action": [0.0] * 3}, "safe_action")],
)
def test_settings_of_one_environment_are_refused(kwargs: dict[str, Any], name: str) -> None:
    with pytest.raises(ConfigError, match=rf"worker\.envs: found 2, and worker\.{name} is for one environment"):
        worker_of(2, None, **kwargs)


def test_single_steps_and_tests_between_episodes_are_refused() -> None:
    worker, _ = worker_of(2, None)
    with pytest.raises(ConfigError, match="test_episode_interval"):
        worker.run(test_episode_interval=1)
    with pytest.raises(ConfigError, match=r"worker\.envs: 2"):
        worker.reset(collect_samples=True)
    with pytest.raises(ConfigError, match=r"worker\.envs: 2"):
        worker.run_env_benchmark(3)


class Timed(Told):
    time_step_duration = 0.05


class OwnState(Echo):
    def begin_episode(self) -> None:
        self.ticks = 0


@pytest.mark.parametrize(
    ("make", "actor", "message"),
    [
        (lambda: Timed(0), Echo, "cannot keep the rate"),
        (lambda: Told(0), OwnState, "overrides begin_episode"),
        (lambda: SyncVectorEnv([lambda: Told(0)] * 3), Echo, "3 environments, and worker.envs is 2"),
    ],
)
def test_what_cannot_be_stepped_together_is_refused(make: Any, actor: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        compose(make, actor, rows=2)


def test_an_environment_that_allows_no_other_in_its_process_is_named() -> None:
    emulators = iter([Told(0)])  # an iterator that ends is an emulator that is taken
    with pytest.raises(EnvironmentFailedError, match=r"worker\.envs: found 2; the first .* start more workers"):
        compose(lambda: next(emulators), Echo, rows=2)


def test_a_users_vector_environment_has_to_say_its_mode_and_limits() -> None:
    def silent() -> Any:
        env = SyncVectorEnv([lambda: Told(0)] * 2)
        del env.metadata["autoreset_mode"]
        return env

    with pytest.raises(ConfigError, match="autoreset_mode"):
        compose(silent, Echo, rows=2)
    with pytest.raises(ConfigError, match="max_samples_per_episode"):
        compose(lambda: SyncVectorEnv([lambda: Told(0)] * 2), Echo, rows=2, max_samples_per_episode=9)


def test_a_users_policy_that_overrides_act_keeps_its_act() -> None:
    class Doubled(NumpyGaussianMLPActor):
        def act(self, obs: Any, test: bool = False) -> Any:
            return np.full(3, 7, np.float32)

        def act_with_extras(self, obs: Any, test: bool = False) -> Any:
            return self.act(obs, test), {}

    worker, made = worker_of(2, None, Doubled)
    worker.run(nb_episodes=2, verbose=False)
    assert all(action.tolist() == [7, 7, 7] for env in made for action in env.actions)


def test_values_that_no_columns_can_hold_are_refused() -> None:
    class Text(Told):
        observation_space = spaces.Text(5)  # type: ignore[assignment]

        def _observation(self) -> Any:
            return "abc"

    with pytest.raises(Exception, match=r"worker\.envs: 1"):
        compose(lambda: Text(0), Echo, rows=2).run(nb_episodes=1)


class Dial(gymnasium.Env[Any, Any]):
    """Has keys in another order than its space, and an int in the info of a reset where steps have floats."""

    observation_space = spaces.Dict({"a": spaces.Box(0, 9, (1,)), "b": spaces.Box(0, 9, (1,))})
    action_space = spaces.Discrete(2)

    def __init__(self, length: int) -> None:
        self.length, self.steps = length, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.steps = 0
        return self.seen(), {"distance": 0}

    def step(self, action: Any) -> Any:
        self.steps += 1
        return self.seen(), 0.0, self.steps == self.length, False, {"distance": 0.25 * self.steps, "done": True}

    def seen(self) -> dict[str, Any]:
        return {"b": np.full(1, self.steps, np.float32), "a": np.zeros(1, np.float32)}


def test_infos_and_the_order_of_keys_are_those_of_each_environment() -> None:
    lengths = iter([2, 4])
    environment = VectorEnvironment(lambda: Dial(next(lengths)), 2)
    obs_B, _ = environment.reset_rows(None)
    assert list(obs_B) == ["b", "a"]
    seen = []
    for _ in range(3):
        obs_B, _, _, _, infos = environment.step(np.zeros(2, np.int64))
        assert list(obs_B) == ["b", "a"]
        seen.append([info_of(infos, row).get("distance") for row in range(2)])
    assert seen == [[0.25, 0.25], [0.5, 0.5], [0, 0.75]], "the first one is reset in the third step"
    environment.close()


def test_one_environment_keeps_its_loop_and_recorder() -> None:
    worker = compose(lambda: Told(0), Echo, rows=1)
    assert type(worker.recorder) is StepRecorder


class Drawn(gymnasium.Env[Any, Any]):
    """Observations of a space, drawn from the seed and the actions; episodes of one to six steps."""

    def __init__(self, observation_space: Any, action_space: Any, odd: bool) -> None:
        self.observation_space, self.action_space, self._odd = observation_space, action_space, odd

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._left = int(self.np_random.integers(1, 7))
        return self._observation(0.0), {}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        self._left -= 1
        told = float(sum(np.sum(part) for part in action.values()) if isinstance(action, dict) else np.sum(action))
        over = self._left == 0
        return self._observation(told), np.float32(told), over and told > 0, over and told <= 0, {}

    def _observation(self, told: float) -> Any:
        self.observation_space.seed(int(1000 * abs(told)) + int(self.np_random.integers(1000)))
        drawn = self.observation_space.sample()
        # Some steps have another dtype, which is cast to that of the space.
        return drawn.astype(np.float64) if self._odd and self._left % 2 else drawn


BOX = spaces.Box(-1, 1, (3,), np.float32)
PARTS = spaces.Dict({"b": BOX, "a": spaces.Discrete(5)})


@pytest.mark.parametrize(
    ("observations", "actions", "odd"),
    [
        (BOX, BOX, False),
        (BOX, spaces.Discrete(3), True),
        (spaces.Box(0, 255, (4, 4, 1), np.uint8), PARTS, False),
        (PARTS, spaces.MultiBinary(2), False),
        (spaces.Tuple([BOX, PARTS]), BOX, False),
        (spaces.Discrete(4), BOX, False),
    ],
    ids=str,
)
def test_each_step_is_that_of_gymnasiums_vector_environment(observations: Any, actions: Any, odd: bool) -> None:
    def make() -> Drawn:
        return Drawn(observations, actions, odd)

    ours, theirs = VectorEnvironment(make, 3), SyncVectorEnv([make] * 3)
    batched = theirs.action_space
    batched.seed(0)
    np.testing.assert_equal(ours.reset_rows(7)[0], theirs.reset(seed=7)[0])
    for _ in range(30):
        action_B = batched.sample()
        found, expected = ours.step(action_B), theirs.step(action_B)
        np.testing.assert_equal(found[:4], expected[:4])
        dtypes = [[getattr(part, "dtype", None) for part in side[:4]] for side in (found, expected)]
        assert dtypes[0] == dtypes[1]
    ours.close()
    theirs.close()
