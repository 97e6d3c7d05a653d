from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv

from tmrl_core.actor import GaussianRNNActor, QValueMLPActor
from tmrl_core.envs.replay import (
    BaseEnvironment,
    SessionBatchEnvironment,
    SessionPool,
    SessionPoolEnvironment,
    Sessions,
    get_sessions,
)
from tmrl_core.errors import SampleRefusedError

B, T = 4, 6
RNG = np.random.default_rng(0)
OBSERVATIONS = RNG.standard_normal((B, T, 3)).astype(np.float32)
ACTIONS = RNG.integers(0, 5, (B, T)).astype(np.int32)
REWARDS = RNG.standard_normal((B, T)).astype(np.float32)
LENGTHS = np.array([6, 2, 4, 1])
ALIVE = (np.arange(T) < LENGTHS[:, None]).astype(np.uint8)
MEMORIES = RNG.standard_normal((B, 7)).astype(np.float32)


def loaded(cls: Any = SessionPoolEnvironment, **kwargs: Any) -> Any:
    pool = cls(**kwargs)
    pool.load_sessions(OBSERVATIONS, ACTIONS, REWARDS, ALIVE, MEMORIES)
    return pool


def assert_equal(one: Sessions, other: Sessions) -> None:
    mine, theirs = tensors(one), tensors(other)
    assert len(mine) == len(theirs)
    assert all(torch.equal(*pair) for pair in zip(mine, theirs, strict=True))


def tensors(found: Sessions) -> list[torch.Tensor]:
    lists = [*found.environment_states, *found.observations, *found.actions, *found.actor_states.values()]
    return [*lists, *(part for part in found if isinstance(part, torch.Tensor))]


def test_it_takes_the_arguments_of_a_pool_and_has_its_methods() -> None:
    env = SessionPoolEnvironment(
        observations=spaces.Box(-1, 1, (3,)), actions=1, agent_memories=2, default_action_dtype="int64", rng_seed=7
    )
    assert isinstance(env, SessionPool)
    assert isinstance(env, BaseEnvironment)
    assert isinstance(env, VectorEnv)
    assert len(env) == env.num_envs == 0
    env.load_sessions(OBSERVATIONS, ACTIONS, REWARDS, prev_memories=[MEMORIES, MEMORIES])
    env.append_sessions(OBSERVATIONS[:1], ACTIONS[:1], REWARDS[:1], None, [MEMORIES[:1]] * 2, max_pool_size=3)
    assert len(env) == env.num_envs == 3
    assert env.action_dtypes == ["int64"]
    updates = env.get_session_updates(OBSERVATIONS, ACTIONS, REWARDS)
    assert len(env) == 3
    env.apply_updates(updates)
    assert env.num_envs == B
    assert np.array_equal(env.observations[0], OBSERVATIONS)
    chosen = env.select_session_batch([2, 0])
    assert isinstance(chosen, SessionBatchEnvironment)
    assert torch.equal(torch.as_tensor(chosen.rewards), torch.as_tensor(REWARDS[[2, 0]]))
    assert env.sample_session_batch(3).num_envs == 3


def test_it_steps_through_all_its_sessions() -> None:
    env = loaded()
    assert env.metadata["autoreset_mode"] is AutoresetMode.DISABLED
    assert env.observation_shapes == [(3,)]
    assert env.observation_dtypes == ["float32"]
    assert (env.state_shapes, env.action_shapes) == ([()], [()])
    assert env.state_dtypes == ["int32"]
    assert env.single_observation_space == spaces.Box(-np.inf, np.inf, (3,))
    assert env.single_action_space.dtype == np.int32
    observations, _ = env.reset()
    assert env.observation_space.contains(observations)
    for tick in range(T + 1):
        observations, rewards, terminated, truncated, _ = env.step(env.action_space.sample())
        shown = np.minimum(tick + 1, LENGTHS - 1)
        assert np.array_equal(observations, OBSERVATIONS[np.arange(B), shown])
        assert np.array_equal(rewards, np.where(tick < LENGTHS, REWARDS[:, min(tick, T - 1)], 0))
        assert np.array_equal(terminated, tick + 1 >= LENGTHS)
        assert not truncated.any()


def test_it_is_a_base_environment_whose_state_is_the_tick() -> None:
    env = loaded()
    states, observations = env.get_initial_results(B)
    assert torch.equal(observations[0], torch.as_tensor(OBSERVATIONS[:, 0]))
    new_states, observations = env.checked_action_results(states, [torch.zeros(B)])
    assert new_states[0].tolist() == [1] * B
    assert np.array_equal(env.get_rewards(states, [], new_states), REWARDS[:, 0])
    assert env.get_is_alive(new_states).tolist() == [1, 1, 1, 0]
    assert np.array_equal(env.get_recorded_actions(states)[0], ACTIONS[:, 0])
    (tick,), (observation,) = env.as_layers()
    assert tick(states[0], torch.zeros(B)).tolist() == [1] * B
    assert torch.equal(observation(states[0], torch.zeros(B)), observations[0])


def test_a_change_of_the_content_begins_again() -> None:
    env = loaded()
    env.reset()
    env.step(None)
    assert env.replay() is env.replay()
    env.load_sessions(OBSERVATIONS[::-1], ACTIONS, REWARDS)
    assert np.array_equal(env.reset()[0], OBSERVATIONS[::-1, 0])
    env.append_sessions(OBSERVATIONS[:1], ACTIONS[:1], REWARDS[:1], max_pool_size=2)
    assert np.array_equal(env.reset()[0], [OBSERVATIONS[0, 0], OBSERVATIONS[0, 0]])
    assert env.action_space.shape == (2,)


def test_an_empty_pool_is_no_environment() -> None:
    env = SessionPoolEnvironment()
    for use in (env.reset, env.replay, lambda: env.observation_space, lambda: get_sessions(env, actor(), 2)):
        with pytest.raises(SampleRefusedError, match="the pool is empty; load_sessions or append_sessions first"):
            use()
    assert "num_envs=0" in repr(env)


def actor() -> Any:
    torch.manual_seed(0)
    return GaussianRNNActor(spaces.Box(-9, 9, (3,)), spaces.Box(-9, 9, ()), hidden_sizes=(8,), cell_size=7)


@pytest.mark.parametrize("cls", [SessionPool, SessionPoolEnvironment])
@pytest.mark.parametrize("optimize", [False, True])
def test_a_pool_that_is_passed_directly_replays_all_its_sessions(cls: Any, optimize: bool) -> None:
    pool, policy = loaded(cls), actor()
    found = get_sessions(pool, policy, T, optimize)
    assert_equal(found, get_sessions(pool.select_session_batch(range(B)), policy, T, optimize))
    assert np.array_equal(found.actions[0], np.where(ALIVE, ACTIONS, ACTIONS[np.arange(B), LENGTHS - 1][:, None]))
    assert np.array_equal(found.environment_states[0], np.tile(np.arange(T), (B, 1)))
    assert np.array_equal(found.actor_states["h"][:, 0].detach(), MEMORIES)
    assert np.array_equal(found.is_alive, ALIVE)


def test_padded_ticks_change_nothing() -> None:
    junk = OBSERVATIONS.copy()
    junk[ALIVE == 0] = 1e6
    results = []
    for observations in (OBSERVATIONS, junk):
        pool = SessionPool()
        pool.load_sessions(observations, ACTIONS, REWARDS, ALIVE, MEMORIES)
        results.append(get_sessions(pool, actor(), T, True))
    assert_equal(*results)


def test_sampled_sessions_train_an_actor() -> None:
    pool = SessionPoolEnvironment(agent_memories=0)
    pool.load_sessions(OBSERVATIONS, ACTIONS, REWARDS, ALIVE)
    policy = QValueMLPActor(spaces.Box(-9, 9, (3,)), spaces.Discrete(5))
    batch = pool.sample_session_batch(3)
    found = get_sessions(batch, policy, T, optimize_experience_replay=True)
    assert found.values is not None
    q = found.values.gather(-1, found.actions[0].long()[..., None]).squeeze(-1)
    assert isinstance(batch.rewards, torch.Tensor)
    torch.autograd.backward(((q - batch.rewards) * found.is_alive).square().sum())
    assert all(each.grad is not None for each in policy.parameters())
