from __future__ import annotations

import copy
import itertools
import logging
import traceback
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from tests.actor.rollout.composing import compose
from tests.masked_corridor import MaskedCorridor
from tmrl_core.actor import ActorModule, NumpyQValueMLPActor, NumpySquashedGaussianMLPActor
from tmrl_core.actor.policies.masks import ACTION_MASK
from tmrl_core.actor.rollout.worker import Worker
from tmrl_core.envs import GenericGymEnv
from tmrl_core.errors import CodecError, ConfigError, EnvironmentFailedError
from tmrl_core.training import ReplayMemory


def make(env: Any, actor: Any, **kwargs: Any) -> Worker:
    return compose(env if callable(env) else lambda: env, actor, **kwargs)


def same(left: Any, right: Any) -> bool:
    if isinstance(left, (tuple, list)):
        return len(left) == len(right) and all(same(a, b) for a, b in zip(left, right, strict=True))
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    return bool(np.array_equal(left, right)) and getattr(left, "dtype", None) == getattr(right, "dtype", None)


def test_reset_appends_a_sample_without_action(counting_env: Any, constant_actor: Any) -> None:
    worker = make(counting_env(), constant_actor)
    obs, info = worker.reset(collect_samples=True)
    assert obs.tolist() == [0, 0, 0]
    assert info == {"fresh": 0}
    (sample,) = list(worker.buffer.memory)
    assert sample[0] is None
    assert same(sample[1:], (obs, 0.0, False, False, {"fresh": 0}))
    worker.reset(collect_samples=False)
    assert len(worker.buffer) == 1


def test_reset_takes_the_environments_default_action(counting_env: Any, constant_actor: Any) -> None:
    env = counting_env()
    env.default_action = np.array([0.5], np.float32)
    worker = make(env, constant_actor)
    worker.reset(collect_samples=True)
    assert worker.buffer.memory[0][0].tolist() == [0.5]


def test_step_acts_on_the_observation_and_appends(counting_env: Any, constant_actor: Any) -> None:
    worker = make(counting_env(), constant_actor)
    obs, _ = worker.reset(collect_samples=True)
    new_obs, rew, terminated, truncated, info = worker.step(obs, test=False, collect_samples=True)
    assert new_obs.tolist() == [0, 1, 0.25]
    assert (rew, terminated, truncated, info) == (1.0, False, False, {})
    assert worker.step(new_obs, test=True, collect_samples=False)[0].tolist() == [0, 2, 0.125]
    assert [sample[2] for sample in worker.buffer.memory] == [0.0, 1.0]
    assert same(worker.actor.seen, [obs, new_obs])  # type: ignore[attr-defined]


@pytest.mark.parametrize(("end", "flags"), [("terminated", (True, False)), ("truncated", (False, True))])
def test_the_last_step_is_truncated_unless_it_terminates(
    end: str, flags: tuple[bool, bool], counting_env: Any, constant_actor: Any
) -> None:
    worker = make(counting_env(length=1, end=end), constant_actor)
    obs, _ = worker.reset(collect_samples=True)
    assert worker.step(obs, test=False, collect_samples=True, last_step=True)[2:4] == flags
    worker = make(counting_env(length=9), constant_actor)
    obs, _ = worker.reset(collect_samples=True)
    assert worker.step(obs, test=False, collect_samples=True, last_step=True)[2:4] == (False, True)
    assert worker.buffer.memory[1][3:5] == (False, True)


def test_the_preprocessor_comes_before_act_and_compressor(counting_env: Any, constant_actor: Any) -> None:
    compressed: list[Any] = []

    def compressor(prev_act: Any, obs: Any, rew: float, terminated: bool, truncated: bool, info: Any) -> Any:
        compressed.append(obs)
        return prev_act, obs[:1], rew * 10, terminated, truncated, {}

    worker = make(
        counting_env(length=2),
        constant_actor,
        obs_preprocessor=lambda obs: obs * 2 + 1,
        sample_compressor=compressor,
    )
    worker.collect_train_episode()
    assert [obs.tolist() for obs in worker.actor.seen] == [[1, 1, 1], [1, 3, 1.5]]  # type: ignore[attr-defined]
    assert [obs.tolist() for obs in compressed] == [[1, 1, 1], [1, 3, 1.5], [1, 5, 1.5]]
    assert [(sample[1].tolist(), sample[2]) for sample in worker.buffer.memory] == [([1], 0), ([1], 10), ([1], 20)]
    worker.act(np.zeros(3, np.float32))
    assert worker.actor.seen[-1].tolist() == [0, 0, 0]  # type: ignore[attr-defined]


def test_crc_debug_carries_the_original_transition(counting_env: Any, constant_actor: Any) -> None:
    worker = make(
        counting_env(length=2),
        constant_actor,
        crc_debug=True,
        sample_compressor=lambda act, obs, rew, terminated, truncated, info: (
            act,
            obs[:1],
            rew,
            terminated,
            truncated,
            info,
        ),
    )
    worker.collect_train_episode()
    originals = [sample[5]["crc_sample"] for sample in worker.buffer.memory]
    act = np.array([0.25], np.float32)
    obs = [np.array([0, step, 0.25 if step else 0], np.float32) for step in range(3)]
    assert same(originals[0], (None, None, obs[0], 0.0, False, False))
    assert same(originals[1], (obs[0], act, obs[1], 1.0, False, False))
    assert same(originals[2], (obs[1], act, obs[2], 2.0, False, True))
    assert worker.buffer.memory[0][5]["fresh"] == 0


@pytest.mark.parametrize("limit", [1, 7, 200, None])
def test_the_fast_loop_equals_single_steps(limit: int | None) -> None:
    class BySteps(Worker):
        def step(self, *args: Any, **kwargs: Any) -> Any:
            return super().step(*args, **kwargs)

    workers = []
    for kind in (Worker, BySteps):
        worker = compose(
            GenericGymEnv,
            lambda observation_space, action_space: NumpySquashedGaussianMLPActor(
                observation_space, action_space, hidden_sizes=(8,), seed=1
            ),
            seed=11,
            kind=kind,
        )
        for _ in range(2):
            worker.collect_train_episode(limit)
        worker.run_episode(limit)
        worker.run_episode(limit, train=True)
        workers.append(worker)
    fast, slow = workers
    assert fast.loop.stepper is None
    assert slow.loop.stepper is slow
    assert len(fast.buffer) == 2 * (1 + (limit or 200))
    assert same(list(fast.buffer.memory), list(slow.buffer.memory))
    assert fast.buffer.episodes == slow.buffer.episodes
    assert fast.steps_collected == slow.steps_collected == len(fast.buffer)
    assert [chunk.segments for chunk in fast.buffer.chunks] == [chunk.segments for chunk in slow.buffer.chunks]


def test_single_steps_of_a_script_make_the_same_record(counting_env: Any, constant_actor: Any) -> None:
    worker = make(counting_env(length=3, end="terminated"), constant_actor, name="robot")
    obs, _ = worker.reset(collect_samples=True)
    done = False
    while not done:
        obs, _, terminated, truncated, _ = worker.step(obs, test=False, collect_samples=True)
        done = terminated or truncated
    (record,) = worker.buffer.episodes
    assert (record.episode_return, record.length, record.mode, record.end) == (6.0, 3, "train", "terminated")
    assert record.worker == "robot"
    assert worker.buffer.stat_train_return == 6.0


def test_episodes_are_numbered_and_steps_counted_from_the_reset(counting_env: Any, constant_actor: Any) -> None:
    worker = make(counting_env(length=3), constant_actor)
    worker.collect_train_episode()
    worker.run_episode()
    worker.collect_train_episode(max_samples=2)
    (chunk,) = worker.buffer.chunks
    assert chunk.episode.tolist() == [0] * 4 + [2] * 3
    assert chunk.step.tolist() == [0, 1, 2, 3, 0, 1, 2]
    assert chunk.truncated.tolist() == [False, False, False, True, False, False, True]
    assert [(r.episode, r.length, r.mode, r.end) for r in worker.buffer.episodes] == [
        (0, 3, "train", "truncated"),
        (1, 3, "test", "truncated"),
        (2, 2, "train", "truncated"),
    ]


def test_max_samples_per_episode_cuts_every_kind_of_episode(counting_env: Any, constant_actor: Any) -> None:
    worker = make(counting_env(length=50), constant_actor, max_samples_per_episode=4)
    worker.collect_train_episode()
    worker.run_episode()
    assert [(record.length, record.end) for record in worker.buffer.episodes] == [(4, "truncated")] * 2
    with pytest.raises(ValueError, match="at least 1"):
        make(counting_env(), constant_actor, max_samples_per_episode=0)
    with pytest.raises(ValueError, match="at least 1"):
        worker.collect_train_episode(0)


def test_run_episode_buffers_nothing_and_keeps_the_statistics(counting_env: Any, constant_actor: Any) -> None:
    worker = make(counting_env(length=3), constant_actor)
    worker.run_episode()
    assert (worker.buffer.stat_test_return, worker.buffer.stat_test_steps) == (6.0, 3)
    assert worker.env.actions == [0.125] * 3
    worker.run_episode(train=True)
    assert worker.env.actions[3:] == [0.25] * 3
    assert len(worker.buffer) == 0
    assert worker.steps_collected == 0


def test_an_episode_left_open_is_not_joined_with_the_next(counting_env: Any, constant_actor: Any) -> None:
    worker = make(counting_env(), constant_actor)
    obs, _ = worker.reset(collect_samples=True)
    worker.step(obs, test=False, collect_samples=True)
    worker.collect_train_episode()
    assert [(record.length, record.end) for record in worker.buffer.episodes] == [(1, "aborted"), (5, "truncated")]
    assert worker.buffer.chunks[0].episode.tolist() == [0] * 2 + [1] * 6


FAULTS = {
    "raises": RuntimeError("the motor is hot"),
    "NaN": np.array([0, np.nan, 0], np.float32),
    "shape": np.zeros(4, np.float32),
    "dtype": np.full(3, 1e300),
    "type": ["0", "0", "0"],
}


OTHER_DTYPES = [
    np.array([1, 2, 3], np.uint8),
    np.array([1, 2, 3], np.float64),
    np.array([True, False, True]),
    [1.0, 2, 3],
    (1, 2, 3),
]


@pytest.mark.parametrize("returned", OTHER_DTYPES)
@pytest.mark.parametrize("slow", [False, True])
def test_observations_of_another_dtype_are_cast_and_named_once(
    returned: Any, slow: bool, counting_env: Any, constant_actor: Any, caplog: pytest.LogCaptureFixture
) -> None:
    env = counting_env(length=4, script={(episode, step): returned for episode in (0, 1) for step in (2, 3)})
    worker = make(env, constant_actor, obs_preprocessor=(lambda obs: obs) if slow else None)
    with caplog.at_level(logging.WARNING):
        worker.collect_train_episode()
        worker.collect_train_episode()
    observations = [sample[1] for sample in worker.buffer.memory]
    assert len(observations) == 10
    assert {obs.dtype for obs in observations} == {np.dtype(np.float32)}
    assert np.array_equal(observations[2], np.asarray(returned, np.float32))
    (record,) = caplog.records
    assert "its space wants" in record.getMessage()
    assert "float32" in record.getMessage()


@pytest.mark.parametrize("returned", OTHER_DTYPES)
def test_strict_spaces_refuse_them(returned: Any, counting_env: Any, constant_actor: Any) -> None:
    env = counting_env(length=4, script={(0, 0): returned})
    with pytest.raises(EnvironmentFailedError, match=r"its space wants .*after a reset"):
        make(env, constant_actor, strict_spaces=True).reset(collect_samples=True)


class Turning(gymnasium.Env[Any, Any]):
    """A dict whose order of keys is another after each step."""

    observation_space = spaces.Dict({key: spaces.Box(-1, 1, (1,), np.float64) for key in "abc"})
    action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)

    def __init__(self) -> None:
        self.orders = itertools.cycle(["cab", "abc", "bca"])

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        return {key: np.full(1, ord(key), np.float32) for key in next(self.orders)}, {}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        return self.reset()[0], 0.0, False, False, {}


def test_keys_keep_the_order_of_the_first_observation(constant_actor: Any) -> None:
    worker = make(Turning(), constant_actor)
    worker.collect_train_episode(max_samples=3)
    observations = [sample[1] for sample in worker.buffer.memory]
    assert [[*obs] for obs in observations] == [["c", "a", "b"]] * 4
    assert all(obs[key].tolist() == [ord(key)] for obs in observations for key in obs)


class Informing(gymnasium.Env[Any, Any]):
    """Three steps whose infos say something."""

    observation_space = spaces.Box(-1, 1, (1,), np.float32)
    action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        self.steps = 0
        return np.zeros(1, np.float32), {"cost": 100}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        self.steps += 1
        info: dict[str, Any] = {"cost": np.float32(self.steps), "arm": {"angle": np.array([self.steps])}, "text": "x"}
        if self.steps == 1:
            info["early"] = True
        if self.steps == 3:
            info["is_success"] = np.bool_(True)
        return np.zeros(1, np.float32), 0.0, self.steps == 3, False, info


@pytest.mark.parametrize("slow", [False, True])
@pytest.mark.parametrize("collect", [False, True])
def test_numbers_of_infos_become_metrics_of_the_episode(
    slow: bool, collect: bool, constant_actor: Any, caplog: pytest.LogCaptureFixture
) -> None:
    keys = ["cost", "cost:mean", "arm/angle", "early", "text", "missing", "arm/angle/deeper"]
    worker = make(Informing(), constant_actor, info_metrics=keys, obs_preprocessor=(lambda obs: obs) if slow else None)
    for _ in range(2):
        worker.collect_train_episode() if collect else worker.run_episode()
    expected = {"cost": 3.0, "cost_mean": 2.0, "arm/angle": 3.0, "early": 1.0, "is_success": 1.0}
    assert [record.metrics for record in worker.buffer.episodes] == [expected, expected]
    (warning,) = [record.getMessage() for record in caplog.records]
    assert "info['text'] is 'x' of type str" in warning


def test_is_success_of_the_last_step_is_always_a_metric(constant_actor: Any) -> None:
    worker = make(Informing(), constant_actor)
    worker.collect_train_episode(max_samples=2)
    worker.collect_train_episode()
    assert [record.metrics for record in worker.buffer.episodes] == [{}, {"is_success": 1.0}]


@pytest.mark.parametrize("keys", [["x" * 101], [str(number) for number in range(32)], [""]])
def test_too_many_metrics_are_refused(keys: Any, constant_actor: Any) -> None:
    with pytest.raises(ConfigError, match=r"worker\.info_metrics: found .* allowed are 31 keys"):
        make(Informing(), constant_actor, info_metrics=keys)


class Odd(Informing):
    """Steps that return odd rewards, and reset and step that do odd things."""

    def __init__(self, reward: Any) -> None:
        self.reward = reward
        self.observation = np.zeros(1, np.float32)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        self.steps += 1
        self.observation[:] = self.steps  # the array that was returned before
        action[:] = 77.0
        return self.observation, self.reward, np.bool_(self.steps == 3), False, {"seen": self.observation}  # type: ignore


@pytest.mark.parametrize(
    "reward", [np.array([1.0]), np.array([[1]]), np.array(1.0), [1.0], 1, True, np.float32(1), torch.tensor(1.0)]
)
@pytest.mark.parametrize("slow", [False, True])
def test_recorded_values_do_not_change_when_the_environment_reuses_its_arrays(
    reward: Any, slow: bool, constant_actor: Any
) -> None:
    worker = make(Odd(reward), constant_actor, obs_preprocessor=(lambda obs: obs) if slow else None)
    worker.collect_train_episode()
    worker.collect_train_episode()
    reset, *steps = worker.buffer.memory[:4]
    assert reset[0] is None
    assert [float(action[0]) for action, *_ in steps] == [0.25] * 3
    assert [float(obs[0]) for _, obs, *_ in steps] == [1.0, 2.0, 3.0]
    assert [float(info["seen"][0]) for *_, info in steps] == [1.0, 2.0, 3.0]
    assert [(np.shape(rew), float(rew)) for _, _, rew, *_ in steps] == [((), 1.0)] * 3
    assert [(terminated, truncated) for *_, terminated, truncated, _ in steps] == [(False, False)] * 2 + [(True, False)]
    assert [record.episode_return for record in worker.buffer.episodes] == [3.0, 3.0]
    memory = ReplayMemory(memory_size=10)
    assert memory.append(worker.buffer) == []
    assert len(memory) == 6


def test_crc_debug_stores_a_copy_of_the_observation(constant_actor: Any) -> None:
    worker = make(Odd(1.0), constant_actor, crc_debug=True)
    worker.collect_train_episode()
    memory = ReplayMemory(memory_size=10, crc_debug=True)
    assert memory.append(worker.buffer) == []
    assert len(memory) == 3


@pytest.mark.parametrize("reward", [[1.0, 2.0], None, "1", np.array([np.nan])])
@pytest.mark.parametrize("slow", [False, True])
def test_the_error_names_an_invalid_reward(reward: Any, slow: bool, constant_actor: Any) -> None:
    worker = make(Odd(reward), constant_actor, max_failures=0, obs_preprocessor=(lambda obs: obs) if slow else None)
    with pytest.raises(EnvironmentFailedError, match="the reward is"):
        worker.collect_train_episode()


class Duck:
    """Has what Gymnasium's environments have, and derives from nothing."""

    observation_space, action_space = Informing.observation_space, Informing.action_space
    step = Informing.step

    def close(self) -> None:
        pass

    def reset(self) -> Any:
        self.steps = 0
        return np.zeros(1, np.float32), {}


class NoActor:
    def __init__(self, observation_space: Any, action_space: Any) -> None:
        pass


@pytest.mark.parametrize(
    ("env", "actor", "words"),
    [
        (Duck(), None, r"env_cls: found <.*Duck object .* of type Duck; wanted: what makes one when it is called"),
        ("Pendulum-v1", None, "env_cls: found 'Pendulum-v1' of type str"),
        (lambda: None, None, "made a NoneType, which is not an environment: it lacks action_space, close"),
        (gymnasium.Env, None, "made a Env, which is not an environment: it lacks action_space, observation_space"),
        (Duck, "policy", "actor_module_cls: found 'policy' of type str"),
        (Duck, NoActor, r"actor_module_cls made a NoActor; wanted: .*tmrl_core\.actor\.ActorModule"),
    ],
)
def test_the_error_names_an_invalid_factory_of_environment_or_actor(
    env: Any, actor: Any, words: str, constant_actor: Any
) -> None:
    with pytest.raises(ConfigError, match=words):
        compose(env, actor or constant_actor)


def test_an_actor_instance_is_refused_as_factory(constant_actor: Any) -> None:
    made = constant_actor(Duck.observation_space, Duck.action_space)
    with pytest.raises(ConfigError, match="of type ConstantActor; wanted: what makes one when it is called"):
        compose(Duck, made)


def test_an_environment_needs_no_base_class(constant_actor: Any) -> None:
    worker = make(Duck(), constant_actor)
    worker.collect_train_episode()
    assert len(worker.buffer) == 4


def test_the_error_for_a_reset_without_seed_shows_the_signature(constant_actor: Any) -> None:
    worker = make(Duck(), constant_actor, seed=1, max_failures=0)
    with pytest.raises(EnvironmentFailedError, match="Gymnasium's reset takes the keywords seed and options"):
        worker.collect_train_episode()


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("slow", [False, True])
def test_a_failing_step_drops_the_episode_and_resets(
    fault: str, slow: bool, counting_env: Any, constant_actor: Any, caplog: pytest.LogCaptureFixture
) -> None:
    env = counting_env(length=3, script={(1, 2): copy.copy(FAULTS[fault])})
    worker = make(env, constant_actor, obs_preprocessor=(lambda obs: obs) if slow else None)
    worker.collect_train_episode()
    with caplog.at_level(logging.ERROR):
        worker.collect_train_episode()
    assert env.episode == 2
    assert len(worker.buffer) == 8
    assert [float(sample[1][0]) for sample in worker.buffer.memory] == [0] * 4 + [2] * 4
    assert worker.recorder.samples_dropped == 2
    assert worker.loop.failures == 1
    assert [record.end for record in worker.buffer.episodes] == ["truncated", "truncated"]
    (message,) = caplog.records
    assert "2 samples" in message.getMessage()
    if not isinstance(FAULTS[fault], Exception):
        assert message.exc_info is None, "there is no code to blame but ours"
        assert "EnvironmentFailedError" not in message.getMessage()
    else:
        assert message.exc_info is not None
        frames = traceback.extract_tb(message.exc_info[2])
        assert not [frame for frame in frames if frame.filename.endswith(("environment.py", "loop.py"))]
        assert frames[-1].filename.endswith("conftest.py"), "the user's own code is shown"


@pytest.mark.parametrize("shape", [(3,), (16,), (17,), (4, 6)])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_one_bad_number_anywhere_is_noticed_by_the_fast_loop(
    shape: tuple[int, ...], bad: float, constant_actor: Any
) -> None:
    class Env(gymnasium.Env[Any, Any]):
        observation_space = spaces.Box(-np.inf, np.inf, shape, np.float64)
        action_space = spaces.Box(-1, 1, (1,), np.float32)
        steps = 0

        def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
            return np.zeros(shape), {}

        def step(self, action: Any) -> Any:
            Env.steps += 1
            # The largest numbers are numbers, also where their sum is none.
            obs = np.full(shape, np.finfo(np.float64).max)
            if Env.steps == 4:
                obs.flat[-1] = bad
            return obs, 0.0, False, False, {}

    worker = make(Env(), constant_actor)
    worker.collect_train_episode(5)
    assert worker.loop.failures == 1
    assert Env.steps == 9


@pytest.mark.parametrize("reward", [float("nan"), float("inf"), None])
@pytest.mark.parametrize("slow", [False, True])
def test_a_reward_that_is_not_a_number_is_a_failure(
    reward: Any, slow: bool, counting_env: Any, constant_actor: Any
) -> None:
    class Env(counting_env):  # type: ignore[misc]
        def step(self, action: Any) -> Any:
            obs, rew, *rest = super().step(action)
            return (obs, reward if (self.episode, self.steps) == (0, 2) else rew, *rest)

    worker = make(Env(length=3), constant_actor, obs_preprocessor=(lambda obs: obs) if slow else None)
    worker.collect_train_episode()
    assert worker.loop.failures == 1
    assert worker.buffer.stat_train_return == 6.0


def test_the_sent_part_of_a_failed_episode_is_ended(counting_env: Any, constant_actor: Any, link: Any) -> None:
    env = counting_env(length=5, script={(0, 4): RuntimeError("cut")})
    worker = make(env, constant_actor, link=link, send_every=2)
    worker.run(nb_episodes=1, verbose=False)
    assert [(record.episode, record.end, record.length) for record in link.records] == [
        (0, "aborted", 3),
        (1, "truncated", 5),
    ]
    episodes = [number for chunk in link.chunks for number in chunk.episode.tolist()]
    assert episodes == [0] * (len(link) - 6) + [1] * 6
    assert 2 <= episodes.count(0) <= 4
    assert episodes.count(0) + worker.recorder.samples_dropped == 4


def test_a_failing_reset_recreates_the_environment(counting_env: Any, constant_actor: Any) -> None:
    made: list[Any] = []

    def env_cls() -> Any:
        made.append(counting_env(length=2, script={(0, 0): OSError("no contact")} if not made else {}))
        return made[-1]

    worker = make(env_cls, constant_actor, seed=5)
    worker.collect_train_episode()
    assert len(made) == 2
    assert worker.env is made[1]
    assert made[0].is_closed
    assert made[0].seeds == made[1].seeds == [5]
    assert worker.buffer.stat_train_steps == 2


def test_a_recreated_environment_with_other_spaces_is_refused(counting_env: Any, constant_actor: Any) -> None:
    made: list[Any] = []

    def env_cls() -> Any:
        env = counting_env(script={(0, 0): OSError("no contact")})
        if made:
            env.observation_space = spaces.Discrete(2)
        made.append(env)
        return env

    with pytest.raises(EnvironmentFailedError, match="other spaces"):
        make(env_cls, constant_actor).collect_train_episode()


@pytest.mark.parametrize("max_failures", [0, 2])
def test_too_many_failures_in_a_row_end_it(
    max_failures: int, counting_env: Any, constant_actor: Any, caplog: pytest.LogCaptureFixture
) -> None:
    env = counting_env(script={(episode, 1): RuntimeError("broken") for episode in range(9)})
    worker = make(env, constant_actor, max_failures=max_failures)
    with pytest.raises(
        EnvironmentFailedError, match=rf"{max_failures + 1} times in a row.*broken\. .*fix it"
    ) as caught:
        worker.collect_train_episode()
    assert isinstance(caught.value.__cause__, RuntimeError)
    assert env.episode == max_failures
    assert len(worker.buffer) == 0
    assert [bool(record.exc_info) for record in caplog.records] == [True, False][:max_failures]


def test_a_failure_without_a_text_is_named_by_its_line(counting_env: Any, constant_actor: Any) -> None:
    worker = make(counting_env(script={(0, 1): AssertionError()}), constant_actor, max_failures=0)
    with pytest.raises(EnvironmentFailedError, match=r"line \d+: AssertionError: raise scripted\. Nothing"):
        worker.collect_train_episode()


class Stuck(MaskedCorridor):
    """Allows no action after its first step."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        obs, *rest = super().step(action)
        return (obs | {ACTION_MASK: np.zeros_like(obs[ACTION_MASK])}, *rest)


def test_an_episode_that_goes_on_without_an_allowed_action_is_a_failure(caplog: pytest.LogCaptureFixture) -> None:
    worker = make(Stuck, partial(NumpyQValueMLPActor, hidden_sizes=(8,)), max_failures=1)
    with (
        caplog.at_level(logging.ERROR),
        pytest.raises(EnvironmentFailedError, match=r"2 times in a row.*no action is allowed by the observation's"),
    ):
        worker.collect_train_episode()
    (message,) = caplog.records
    assert "2 samples of the episode that were not yet sent are dropped" in message.getMessage()
    assert message.exc_info is None
    assert len(worker.buffer) == 0


def test_the_error_shows_the_invalid_result_and_the_expected_form(counting_env: Any, constant_actor: Any) -> None:
    nowhere = np.array([0, np.nan, 0], np.float32)
    env = counting_env(script={(0, 1): nowhere})
    with pytest.raises(
        EnvironmentFailedError,
        match=r"The last failure: the observation holds NaN, finite numbers are wanted\. .*see what its reset and step",
    ):
        make(env, constant_actor, max_failures=0).collect_train_episode()


def test_the_error_of_an_environment_names_the_line_of_its_code(counting_env: Any, constant_actor: Any) -> None:
    class Broken(gymnasium.Wrapper[Any, Any, Any, Any]):
        def step(self, action: Any) -> Any:
            raise KeyError("arm")

    line = Broken.step.__code__.co_firstlineno + 1
    with pytest.raises(EnvironmentFailedError, match=rf"failure: \S*test_loop\.py, line {line}: KeyError: 'arm'\."):
        make(Broken(counting_env()), constant_actor, max_failures=0).collect_train_episode()


@pytest.mark.parametrize("wrapped", [False, True])
def test_the_error_for_an_old_gym_step_shows_the_new_form(
    wrapped: bool, counting_env: Any, constant_actor: Any
) -> None:
    class Done(gymnasium.Wrapper[Any, Any, Any, Any]):
        def step(self, action: Any) -> Any:
            obs, rew, terminated, truncated, info = self.env.step(action)
            return obs, rew, terminated or truncated, info

    env: Any = Done(counting_env())
    if wrapped:
        env = gymnasium.wrappers.TimeLimit(env, 9)
    with pytest.raises(
        EnvironmentFailedError, match=r"got 4\).*step returns five: obs, reward, terminated, truncated, info"
    ):
        make(env, constant_actor, max_failures=0).collect_train_episode()


def test_the_error_for_an_old_gym_reset_shows_the_new_form(counting_env: Any, constant_actor: Any) -> None:
    class Bare(gymnasium.Wrapper[Any, Any, Any, Any]):
        def reset(self, **kwargs: Any) -> Any:
            return self.env.reset(**kwargs)[0]

    with pytest.raises(EnvironmentFailedError, match=r"reset returned a ndarray; wanted: obs, info"):
        make(Bare(counting_env()), constant_actor, max_failures=0).collect_train_episode()


def test_an_episode_in_order_forgives_earlier_failures(counting_env: Any, constant_actor: Any) -> None:
    env = counting_env(length=2, script={(episode, 1): RuntimeError("shaky") for episode in range(0, 8, 2)})
    worker = make(env, constant_actor, max_failures=1)
    for _ in range(4):
        worker.collect_train_episode()
    assert worker.loop.failures == 4


def test_many_good_steps_forgive_earlier_failures(counting_env: Any, constant_actor: Any) -> None:
    env = counting_env(length=10**9, script={(0, 1): RuntimeError("a"), (1, 1500): RuntimeError("b")})
    worker = make(env, constant_actor, max_failures=1)
    worker.collect_train_episode(max_samples=1600)
    assert worker.loop.failures == 2
    assert worker.buffer.stat_train_steps == 1600


@pytest.mark.parametrize("slow", [False, True])
def test_errors_of_user_code_are_not_failures_of_the_environment(
    slow: bool, counting_env: Any, constant_actor: Any
) -> None:
    class Broken(constant_actor):  # type: ignore[misc]
        def act(self, obs: Any, test: bool = False) -> Any:
            raise RuntimeError("bug in the policy")

    worker = make(counting_env(), Broken, obs_preprocessor=(lambda obs: obs) if slow else None)
    with pytest.raises(ConfigError, match=r"Broken cannot act in .* RuntimeError: bug in the policy"):
        worker.collect_train_episode()
    assert worker.loop.failures == 0


def test_the_error_names_unsupported_values(counting_env: Any, constant_actor: Any) -> None:
    worker = make(counting_env(), constant_actor, obs_preprocessor=lambda obs: {"camera": object()})
    with pytest.raises(CodecError, match=r"camera.*object"):
        worker.collect_train_episode()
    assert worker.loop.failures == 0


def test_public_steps_let_the_environments_errors_pass(counting_env: Any, constant_actor: Any) -> None:
    script = {(0, 1): ZeroDivisionError("mine"), (1, 1): np.zeros(2, np.float32), (2, 0): np.full(3, 1e300)}
    worker = make(counting_env(script=script), constant_actor)
    obs, _ = worker.reset(collect_samples=True)
    with pytest.raises(ZeroDivisionError, match="mine"):
        worker.step(obs, test=False, collect_samples=True)
    obs, _ = worker.reset(collect_samples=True)
    with pytest.raises(EnvironmentFailedError, match=r"shape \(2,\)"):
        worker.step(obs, test=False, collect_samples=True)
    with pytest.raises(EnvironmentFailedError, match=r"float64.*after a reset"):
        worker.reset(collect_samples=True)


@pytest.mark.parametrize(
    "space", [spaces.Discrete(7), spaces.Dict({"a": spaces.Box(-1, 1, (2,), np.float32), "b": spaces.Discrete(3)})]
)
def test_observations_of_other_structures_are_supported(space: Any, constant_actor: Any) -> None:
    class Env(gymnasium.Env[Any, Any]):
        observation_space = space
        action_space = spaces.Box(-1, 1, (1,), np.float32)

        def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
            space.seed(1)
            return space.sample(), {}

        def step(self, action: Any) -> Any:
            return space.sample(), 1.0, False, False, {}

    worker = make(Env(), constant_actor)
    worker.collect_train_episode(max_samples=3)
    space.seed(1)
    assert same([sample[1] for sample in worker.buffer.memory], [space.sample() for _ in range(4)])


def test_the_seed_is_of_the_first_reset_and_of_exploration(counting_env: Any) -> None:
    def run() -> list[float]:
        worker = make(counting_env(length=3), NumpySquashedGaussianMLPActor, seed=3)
        worker.actor.from_blob(
            *NumpySquashedGaussianMLPActor(worker.env.observation_space, worker.env.action_space, seed=0).to_blob(),
            device="cpu",
        )
        worker.collect_train_episode()
        worker.collect_train_episode()
        assert worker.env.seeds == [3, None]
        return list(worker.env.actions)

    assert run() == run()


class SamplingActor(ActorModule):
    """Samples from its action space, as a policy may that explores."""

    def act(self, obs: Any, test: bool = False) -> Any:
        return self.action_space.sample()


class SeedsItsActions(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Seeds its action space at each reset, as gym-anytrading does."""

    def reset(self, **kwargs: Any) -> Any:
        self.action_space.seed(0)
        return self.env.reset(**kwargs)


@pytest.mark.parametrize("rows", [1, 2])
def test_an_environment_that_seeds_its_action_space_does_not_repeat_the_actors_samples(
    rows: int, counting_env: Any
) -> None:
    def run(seed: int | None) -> list[list[float]]:
        made: list[Any] = []

        def make_env() -> Any:
            made.append(counting_env(length=5))
            return SeedsItsActions(made[-1])

        worker = compose(make_env, SamplingActor, seed=seed, rows=rows)
        worker.run(nb_episodes=2 * rows, verbose=False)
        return [env.actions for env in made]

    for actions in (run(None), run(3)):
        assert all(len(set(of_one)) == len(of_one) >= 10 for of_one in actions)
    assert run(3) == run(3)
    assert run(3) != run(4)


class NoiseActor(ActorModule):
    """Acts at random, with NumPy's default generator, as most policies do."""

    def seed(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def act(self, obs: Any, test: bool = False) -> np.ndarray:
        return self.rng.standard_normal(2).astype(np.float32)

    def to_bytes(self) -> bytes:
        return b""

    def from_bytes(self, data: bytes, device: Any = "cpu") -> NoiseActor:
        return self


@pytest.mark.parametrize("between_episodes", [False, True])
def test_exploration_and_environment_use_different_random_numbers_for_one_seed(between_episodes: bool) -> None:
    noise: list[float] = []
    actions: list[float] = []

    class NoisyEnv(gymnasium.Env[Any, Any]):
        observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
        action_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            super().reset(seed=seed)
            return self.observe(), {}

        def step(self, action: Any) -> Any:
            actions.extend(action.tolist())
            return self.observe(), 0.0, False, len(actions) >= 40, {}

        def observe(self) -> np.ndarray:
            drawn = self.np_random.standard_normal(2).astype(np.float32)
            noise.extend(drawn.tolist())
            return drawn

    worker = make(NoisyEnv(), NoiseActor, seed=None if between_episodes else 3)
    if between_episodes:
        worker.loop.seed_next_episode(3)
    worker.collect_train_episode()
    assert noise[:2] == np.random.default_rng(3).standard_normal(2).astype(np.float32).tolist()
    assert len(actions) == 40
    assert not set(noise) & set(actions)


class Halved(Worker):
    """Acts with half of the policy's action."""

    def act(self, obs: Any, test: bool = False) -> Any:
        return super().act(obs, test) / 2


def test_a_subclass_may_override_act_step_and_reset(counting_env: Any, constant_actor: Any) -> None:
    class Own(Halved):
        resets = 0

        def reset(self, collect_samples: bool) -> Any:
            self.resets += 1
            return super().reset(collect_samples)

    worker = compose(lambda: counting_env(length=2), constant_actor, kind=Own)
    worker.collect_train_episode()
    worker.run(nb_episodes=1, verbose=False)
    assert worker.env.actions == [0.125] * 4
    assert isinstance(worker, Own)
    assert worker.resets == 2
    obs, _ = worker.reset(collect_samples=False)
    worker.step(obs, test=False, collect_samples=False)
    assert worker.env.actions[-1] == 0.125


def test_a_script_may_replace_a_method_of_one_worker(counting_env: Any, constant_actor: Any) -> None:
    worker = make(counting_env(length=3), constant_actor)
    lasts: list[bool] = []
    step = worker.step

    def noting(obs: Any, test: bool, collect_samples: bool, last_step: bool = False) -> Any:
        lasts.append(last_step)
        return step(obs, test, collect_samples, last_step)

    worker.step = noting  # type: ignore[method-assign]
    worker.collect_train_episode(max_samples=2)
    assert lasts == [False, True]
    assert worker.buffer.stat_train_steps == 2
    del worker.step
    worker.collect_train_episode(max_samples=2)
    assert len(lasts) == 2


def test_the_error_names_a_reset_that_does_not_begin_an_episode(counting_env: Any, constant_actor: Any) -> None:
    class Lazy(Worker):
        def reset(self, collect_samples: bool) -> Any:
            return None, {}

    with pytest.raises(RuntimeError, match=r"Lazy\.reset did not call the reset that it overrides"):
        compose(counting_env, constant_actor, kind=Lazy).collect_train_episode()


def test_begin_episode_is_called_before_the_first_action(counting_env: Any, constant_actor: Any) -> None:
    class Told(constant_actor):  # type: ignore[misc]
        def begin_episode(self) -> None:
            self.seen.append("begin")

    worker = make(counting_env(length=1, script={(1, 1): RuntimeError("x")}), Told)
    worker.collect_train_episode()
    worker.run_episode()  # fails once
    worker.reset(collect_samples=True)
    assert [isinstance(seen, str) for seen in worker.actor.seen] == [True, False] * 3 + [True]  # type: ignore[attr-defined]


@pytest.mark.parametrize("slow", [False, True])
def test_a_persons_action_is_executed_and_recorded(slow: bool, counting_env: Any, constant_actor: Any) -> None:
    worker = make(counting_env(length=3), constant_actor, obs_preprocessor=(lambda obs: obs) if slow else None)
    worker.runner.override = lambda obs, action, extras: (
        (np.full(1, 0.75, np.float32) if obs[1] == 1 else action),
        {"person": float(obs[1] == 1)},
    )
    worker.collect_train_episode()
    assert worker.env.actions == [0.25, 0.75, 0.25]
    assert [sample[0] and sample[0].tolist() for sample in worker.buffer.memory] == [None, [0.25], [0.75], [0.25]]
    (_, steps) = worker.buffer.chunks
    assert np.asarray(steps.extras["person"]).tolist() == [0, 1, 0]
