from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.wrappers.vector import RecordEpisodeStatistics

from tmrl_core.envs.replay import BaseEnvironment, SessionBatchEnvironment
from tmrl_core.envs.replay.recorded import as_numpy, as_tensor

B, T = 3, 5
RNG = np.random.default_rng(0)
OBSERVATIONS = RNG.standard_normal((B, T, 4)).astype(np.float32)
PICTURES = RNG.integers(0, 255, (B, T, 2, 6), np.uint8)
ACTIONS = RNG.integers(0, 9, (B, T)).astype(np.int32)
REWARDS = RNG.standard_normal((B, T)).astype(np.float32)
ALIVE = (np.arange(T) < np.array([[5], [2], [3]])).astype(np.uint8)
MEMORIES = RNG.standard_normal((B, 7)).astype(np.float32)
FINAL = RNG.standard_normal((B, 4)).astype(np.float32)


def replay(**changes: Any) -> SessionBatchEnvironment:
    given: dict[str, Any] = {
        "observations": OBSERVATIONS,
        "single_observation_shapes": (4,),
        "actions": ACTIONS,
        "rewards": REWARDS,
    }
    return SessionBatchEnvironment(**{**given, **changes})


def same(found: Any, expected: Any) -> bool:
    return bool(np.array_equal(as_numpy(found), expected))


# --- arguments --------------------------------------------------------------------------------------------------------


def test_it_is_an_environment_of_both_kinds() -> None:
    assert isinstance(replay(), BaseEnvironment)
    assert isinstance(replay(), VectorEnv)


@pytest.mark.parametrize("of", [np.asarray, torch.as_tensor], ids=["numpy", "torch"])
def test_it_refers_to_the_given_data(of: Any) -> None:
    given = [of(each) for each in (OBSERVATIONS, ACTIONS, REWARDS, ALIVE, MEMORIES)]
    env = SessionBatchEnvironment(
        given[0], (4,), given[1], rewards=given[2], is_alive=given[3], preceding_agent_memories=given[4]
    )
    assert env.observations[0] is given[0]
    assert env.actions[0] is given[1]
    assert env.rewards is given[2]
    assert env.is_alive is given[3]
    assert env.preceding_agent_memories is not None
    assert env.preceding_agent_memories[0] is given[4]


def test_several_observations_and_actions_are_lists_in_declared_order() -> None:
    moves = RNG.standard_normal((B, T, 2))
    env = SessionBatchEnvironment(
        [OBSERVATIONS, PICTURES], [(4,), [2, 6]], [ACTIONS, moves], [(), (2,)], preceding_agent_memories=[MEMORIES] * 2
    )
    assert env.observations[1] is PICTURES
    assert env.actions[1] is moves
    assert env.observation_shapes == [(4,), (2, 6)]
    assert env.observation_dtypes == ["float32", "uint8"]
    assert env.action_shapes == [(), (2,)]
    assert env.action_dtypes == ["int32", "float64"]
    assert env.state_shapes == [()]
    assert env.state_dtypes == ["int32"]
    assert len(env.preceding_agent_memories or []) == 2


def test_one_shape_is_that_of_one_observation_without_batch_and_tick() -> None:
    frames = np.zeros((2, 25, 3, 21, 16), np.uint8)
    env = SessionBatchEnvironment(frames, [3, 21, 16])
    assert env.observation_shapes == [(3, 21, 16)]
    assert (env.num_envs, env.recorded_ticks) == (2, 25)


def test_all_scalar_means_that_each_action_has_no_shape() -> None:
    env = SessionBatchEnvironment(OBSERVATIONS, (4,), [ACTIONS, ACTIONS], "all_scalar")
    assert env.action_shapes == [(), ()]
    assert SessionBatchEnvironment(OBSERVATIONS, (4,)).action_shapes == [()]


def test_what_is_left_out() -> None:
    env = SessionBatchEnvironment(OBSERVATIONS, (4,))
    assert env.actions == []
    assert env.rewards is None
    assert same(env.is_alive, np.ones((B, T)))
    assert env.preceding_agent_memories is None
    of_tensors = SessionBatchEnvironment(torch.as_tensor(OBSERVATIONS), (4,))
    assert isinstance(of_tensors.is_alive, torch.Tensor)
    states, _ = env.get_initial_results(B)
    assert env.get_rewards(states, [], states).tolist() == [0.0] * B


def test_rewards_can_be_used_without_stepping() -> None:
    env = replay(rewards=torch.as_tensor(REWARDS))
    assert isinstance(env.rewards, torch.Tensor)
    assert torch.equal(env.rewards.sum(dim=1), torch.as_tensor(REWARDS).sum(dim=1))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"observations": []}, r"observations is empty or has no axes \[batch, tick\]"),
        ({"observations": OBSERVATIONS[0, 0]}, r"observations is empty or has no axes \[batch, tick\]"),
        ({"observations": [[1.0, 2.0]]}, "observations has a list; allowed: NumPy arrays and torch tensors"),
        (
            {"observations": OBSERVATIONS[:, :, 0]},
            r"observations has the shape \(3, 5\); expected \(3, 5, 4\): the batch",
        ),
        ({"observations": [OBSERVATIONS] * 2}, "observations has 2 arrays for 1 shapes"),
        (
            {"observations": [OBSERVATIONS, OBSERVATIONS[:2]], "single_observation_shapes": [4, (4,)][1:] * 2},
            r"observations\[1\] has the shape \(2, 5, 4\); expected \(3, 5, 4\)",
        ),
        ({"actions": ACTIONS[:, :4]}, r"actions has the shape \(3, 4\); expected \(3, 5\): the batch, the ticks and"),
        ({"actions": OBSERVATIONS}, r"actions has the shape \(3, 5, 4\); expected \(3, 5\)"),
        ({"single_action_shapes": [(), ()]}, "actions has 1 arrays for 2 shapes; give one shape for each"),
        ({"single_action_shapes": "scalar"}, "single_action_shapes is 'scalar'; allowed"),
        ({"rewards": REWARDS[:2]}, r"rewards has the shape \(2, 5\); expected \(3, 5\)"),
        ({"rewards": [0.0]}, "rewards has a float; allowed"),
        ({"is_alive": ALIVE[:, 1:]}, r"is_alive has the shape \(3, 4\); expected \(3, 5\)"),
        ({"is_alive": ALIVE * 2}, r"is_alive, session 0, tick 0: found 2; allowed are 0 and 1"),
        ({"is_alive": ALIVE[:, ::-1]}, "is_alive, session 1, tick 3: found 1; it follows a 0; sessions end once"),
        (
            {"preceding_agent_memories": MEMORIES[:1]},
            r"preceding_agent_memories has the shape \(1, 7\); expected \(3, 7\)",
        ),
        ({"terminated": np.ones(2)}, r"terminated has the shape \(2,\); expected \(3,\)"),
        ({"final_observations": FINAL[:, :2]}, r"final_observations has the shape \(3, 2\); expected \(3, 4\)"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replay(**changes)


# --- BaseEnvironment --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("of", [np.asarray, torch.as_tensor], ids=["numpy", "torch"])
def test_the_state_is_the_tick_and_actions_are_ignored(of: Any) -> None:
    env = replay(observations=of(OBSERVATIONS), actions=of(ACTIONS), rewards=of(REWARDS))
    states, observations = env.get_initial_results(B)
    for tick in range(T):
        assert states[0].tolist() == [tick] * B
        assert states[0].dtype == torch.int32
        assert isinstance(observations[0], torch.Tensor)
        assert same(observations[0], OBSERVATIONS[:, tick])
        assert same(env.get_recorded_actions(states)[0], ACTIONS[:, tick])
        assert env.get_is_alive(states).tolist() == [1] * B
        results = [
            env.checked_action_results(states, [action])
            for action in (torch.zeros(B), torch.full((B,), -7), torch.as_tensor(ACTIONS[:, tick]))
        ]
        assert all(torch.equal(each[1][0], results[0][1][0]) for each in results)
        new_states, observations = results[0]
        assert same(env.get_rewards(states, [], new_states), REWARDS[:, tick])
        states = new_states


def test_past_the_end_of_the_recording() -> None:
    env = replay()
    for tick in (T, T + 3):
        state = [torch.full((B,), tick, dtype=torch.int32)]
        before = [state[0] - 1]
        new_state, observations = env.get_action_results(before, [])
        assert torch.equal(new_state[0], state[0])
        assert same(observations[0], OBSERVATIONS[:, -1])
        assert env.get_rewards(state, [], state).tolist() == [0.0] * B
        assert env.get_is_alive(state).tolist() == [0] * B
        assert same(env.get_recorded_actions(state)[0], ACTIONS[:, -1])


def test_padding_after_the_end_of_a_session_is_ignored() -> None:
    junk = [np.where((ALIVE == 0).reshape(B, T, *[1] * (each.ndim - 2)), 99, each) for each in (OBSERVATIONS, ACTIONS)]
    env = replay(
        observations=junk[0].astype(np.float32),
        actions=junk[1].astype(np.int32),
        rewards=np.where(ALIVE == 0, np.nan, REWARDS),
        is_alive=ALIVE,
    )
    last = ALIVE.sum(axis=1) - 1
    for tick in range(T + 2):
        state = [torch.full((B,), tick, dtype=torch.int32)]
        shown = np.minimum(tick, last)
        assert same(env.get_action_results([state[0] - 1], [])[1][0], OBSERVATIONS[np.arange(B), shown])
        assert same(env.get_recorded_actions(state)[0], ACTIONS[np.arange(B), shown])
        assert same(env.get_rewards(state, [], state), np.where(tick <= last, REWARDS[np.arange(B), shown], 0))
        assert same(env.get_is_alive(state), tick <= last)


def test_past_the_end_of_a_session_is_its_final_observation_if_that_is_known() -> None:
    env = replay(is_alive=ALIVE, final_observations=FINAL)
    for tick in range(T + 2):
        _, observations = env.get_action_results([torch.full((B,), tick - 1)], [])
        ended = tick >= ALIVE.sum(axis=1)
        assert same(observations[0], np.where(ended[:, None], FINAL, OBSERVATIONS[:, min(tick, T - 1)]))


def test_sessions_may_be_at_different_ticks() -> None:
    env = replay()
    states, observations = env.get_action_results([torch.tensor([0, 2, 7])], [])
    assert states[0].tolist() == [1, 3, 8]
    assert same(observations[0], OBSERVATIONS[np.arange(B), [1, 3, 4]])


def test_the_batch_is_the_recorded_one() -> None:
    with pytest.raises(ValueError, match="found a batch of 2; a replay has as many as were recorded, 3"):
        replay().get_initial_results(2)


def test_it_has_layers() -> None:
    (tick,), (observation,) = replay().as_layers()
    state, action = torch.zeros(B, dtype=torch.int32), torch.zeros(B)
    assert tick(state, action).tolist() == [1] * B
    assert same(observation(state, action), OBSERVATIONS[:, 1])


def test_gradients_reach_recorded_tensors() -> None:
    observations = torch.as_tensor(OBSERVATIONS).clone().requires_grad_()
    env = replay(observations=observations, is_alive=ALIVE)
    env.get_action_results([torch.tensor([3, 3, 3])], [])[1][0].sum().backward()  # type: ignore[no-untyped-call]
    assert observations.grad is not None
    assert np.argwhere(observations.grad[:, :, 0].numpy()).tolist() == [[0, 4], [1, 1], [2, 2]]


# --- Gymnasium --------------------------------------------------------------------------------------------------------


def test_spaces_follow_shapes_and_dtypes() -> None:
    env = SessionBatchEnvironment([OBSERVATIONS, PICTURES], [(4,), (2, 6)], ACTIONS)
    parts: list[Any] = [spaces.Box(-np.inf, np.inf, (4,)), spaces.Box(0, 255, (2, 6), np.uint8)]
    assert env.single_observation_space == spaces.Tuple(parts)
    assert env.single_action_space == spaces.Box(-(2**31), 2**31 - 1, (), np.int32)
    assert env.action_space.shape == (B,)
    assert env.num_envs == B
    assert env.metadata["autoreset_mode"] is AutoresetMode.DISABLED
    observations, infos = env.reset(seed=0)
    assert env.observation_space.contains(observations)
    assert infos == {}
    flags = SessionBatchEnvironment(OBSERVATIONS > 0, (4,)).single_observation_space
    assert flags.shape == (4,)
    assert flags.dtype == np.bool_


@pytest.mark.parametrize("of", [np.asarray, torch.as_tensor], ids=["numpy", "torch"])
def test_steps_are_the_recorded_ones(of: Any) -> None:
    env = replay(observations=of(OBSERVATIONS), actions=of(ACTIONS), rewards=of(REWARDS), is_alive=of(ALIVE))
    observations, _ = env.reset()
    assert isinstance(observations, np.ndarray)
    assert same(observations, OBSERVATIONS[:, 0])
    last = ALIVE.sum(axis=1) - 1
    for tick in range(T + 2):
        alive, shown = tick <= last, np.minimum(tick, last)
        observations, rewards, terminated, truncated, infos = env.step(env.action_space.sample())
        assert same(observations, OBSERVATIONS[np.arange(B), np.minimum(tick + 1, last)])
        assert same(rewards, np.where(alive, REWARDS[np.arange(B), shown], 0))
        assert same(terminated, tick >= last)
        assert not truncated.any()
        assert same(infos["action"], ACTIONS[np.arange(B), shown])
        assert same(infos["_action"], alive)
    assert same(env.reset()[0], OBSERVATIONS[:, 0])


def test_a_truncated_session_is_truncated_and_shows_its_final_observation() -> None:
    env = replay(is_alive=ALIVE, terminated=np.array([False, True, False]), final_observations=FINAL)
    env.reset()
    for _ in range(T):
        observations, _, terminated, truncated, _ = env.step(None)
    assert terminated.tolist() == [False, True, False]
    assert truncated.tolist() == [True, False, True]
    assert same(observations, FINAL)


def test_wrappers_of_gymnasium_take_it() -> None:
    env = RecordEpisodeStatistics(replay(is_alive=ALIVE))
    env.reset(seed=1)
    returns = np.zeros(B)
    for _ in range(T):
        _, _, _, _, infos = env.step(env.action_space.sample())
        if "episode" in infos:
            returns = np.where(infos["_episode"] & (returns == 0), infos["episode"]["r"], returns)
    assert np.allclose(returns, (REWARDS * ALIVE).sum(axis=1))


def test_a_mask_resets_some_sessions() -> None:
    env = replay()
    env.reset()
    env.step(None)
    env.step(None)
    observations, _ = env.reset(options={"reset_mask": np.array([True, False, True])})
    assert same(observations, OBSERVATIONS[np.arange(B), [0, 2, 0]])
    assert same(env.step(None)[0], OBSERVATIONS[np.arange(B), [1, 3, 1]])


def test_a_recording_without_actions_and_rewards_steps_too() -> None:
    env = SessionBatchEnvironment(OBSERVATIONS, (4,))
    env.reset()
    _, rewards, terminated, _, infos = env.step(None)
    assert rewards.tolist() == [0.0] * B
    assert not terminated.any()
    assert infos == {}


def test_arrays_are_replayed_without_torch() -> None:
    code = """
import sys
sys.modules["torch"] = None
import numpy as np
from tmrl_core.envs.replay import SessionBatchEnvironment
env = SessionBatchEnvironment(np.zeros((2, 3, 4), np.float32), (4,), np.zeros((2, 3), np.int32))
env.reset()
print(env.step(None)[2].tolist(), env.step(None)[2].tolist(), env.step(None)[2].tolist())
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=False)
    assert ended.stdout.strip() == "[False, False] [False, False] [True, True]", ended.stderr


# --- arrays and tensors -----------------------------------------------------------------------------------------------


def test_all_parts_move_to_a_device() -> None:
    env = replay(is_alive=ALIVE, preceding_agent_memories=MEMORIES, terminated=np.ones(B), final_observations=FINAL)
    moved = env.to("cpu")
    parts = [*moved.observations, *moved.actions, moved.rewards, moved.is_alive, moved.terminated]
    parts += [*(moved.preceding_agent_memories or []), *(moved.final_observations or [])]
    assert len(parts) == 7
    assert all(isinstance(each, torch.Tensor) for each in parts)


def test_tensors_refer_to_arrays_where_torch_can() -> None:
    array = np.arange(4.0)
    tensor = as_tensor(array)
    array[0] = 7.0
    assert tensor[0] == 7.0
    assert as_tensor(tensor) is tensor
    array.setflags(write=False)
    assert as_tensor(array).tolist() == array.tolist()
    assert as_tensor(np.arange(4.0)[::-1]).tolist() == [3.0, 2.0, 1.0, 0.0]
