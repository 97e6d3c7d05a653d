"""SessionPool: one rule per test, in RAM and mapped from files."""

from __future__ import annotations

import dataclasses
import errno
import os
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from tests.sessions.made_sessions import make_session
from tmrl_core.envs.replay import SessionBatch, SessionPool, padded_sequences
from tmrl_core.envs.replay.recorded import SessionBatchEnvironment
from tmrl_core.errors import ConfigError, MissingExtraError, SampleRefusedError, StorageFullError
from tmrl_core.sessions.session import Session


@pytest.fixture(params=["ram", "mapped"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path | None:
    return tmp_path if request.param == "mapped" else None


def sessions(batch: int = 4, ticks: int = 6, unit: int = 3, seed: int = 0) -> tuple[Any, Any, Any]:
    """Observations, actions and rewards."""
    draw = np.random.default_rng(seed)
    return (
        draw.standard_normal((batch, ticks, unit)).astype(np.float32),
        draw.integers(0, 5, (batch, ticks)).astype(np.int32),
        draw.standard_normal((batch, ticks)).astype(np.float32),
    )


def alive(lengths: list[int], ticks: int) -> Any:
    return (np.arange(ticks) < np.array(lengths)[:, None]).astype(np.uint8)


def content(pool: SessionPool) -> list[Any]:
    """All that a pool holds."""
    if not len(pool):
        return [0]
    batch = pool.select(range(len(pool)))
    return [
        *batch.observations,
        *batch.actions,
        batch.rewards,
        batch.is_alive,
        *(batch.preceding_agent_memories or []),
        batch.terminated,
        *(batch.final_observations or []),
    ]


def assert_same(found: list[Any], expected: list[Any]) -> None:
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert np.asarray(one).dtype == np.asarray(other).dtype
        np.testing.assert_array_equal(one, other)


def described(arrays: list[Any]) -> list[tuple[tuple[int, ...], str]]:
    return [(array.shape, array.dtype.name) for array in arrays]


# -- declarations ------------------------------------------------------------------------------------------------------


def test_counts_declare_float32_vectors_and_int32_scalars(folder: Path | None) -> None:
    pool = SessionPool(2, 3, 1, folder=folder)
    obs, act, rew = sessions()
    other = np.ones((4, 6, 7))
    pool.load_sessions([obs, other], [act, act + 1, act.astype(np.int64)], rew, prev_memories=np.ones((4, 5)))
    batch = pool.select([1])
    assert described(batch.observations) == [((1, 6, 3), "float32"), ((1, 6, 7), "float32")]
    assert described(batch.actions) == [((1, 6), "int32")] * 3
    assert described([batch.rewards, batch.is_alive]) == [((1, 6), "float32"), ((1, 6), "uint8")]
    assert described(batch.preceding_agent_memories or []) == [((1, 5), "float32")]


def test_spaces_declare_shapes_and_dtypes(folder: Path | None) -> None:
    pool = SessionPool(
        [spaces.Box(0, 255, (2, 3), np.uint8), spaces.Discrete(9)],
        spaces.Box(-1, 1, (2,), np.float64),
        0,
        folder=folder,
    )
    images, kinds, acts = np.full((2, 4, 2, 3), 200), np.full((2, 4), 8), np.full((2, 4, 2), 0.1)
    pool.load_sessions([images, kinds], acts, np.zeros((2, 4)))
    assert [one.dtype for one in pool.observations] == [np.uint8, np.int64]
    assert pool.actions[0].dtype == np.float64
    np.testing.assert_array_equal(pool.observations[0], images)
    np.testing.assert_array_equal(pool.observations[1], kinds)
    np.testing.assert_array_equal(pool.actions[0], acts)


@pytest.mark.parametrize(("dtype", "expected"), [("int64", np.int64), (np.float32, np.float32), ("uint8", np.uint8)])
def test_the_default_action_dtype_is_that_of_actions_that_state_none(dtype: Any, expected: Any) -> None:
    pool = SessionPool(default_action_dtype=dtype)
    obs, act, rew = sessions()
    pool.load_sessions(obs, act, rew)
    assert pool.actions[0].dtype == expected
    stated = SessionPool(1, spaces.Discrete(5), default_action_dtype=dtype)
    stated.load_sessions(obs, act, rew)
    assert stated.actions[0].dtype == np.int64


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"observations": 0}, "observations is 0"),
        ({"actions": []}, "actions is an empty list"),
        ({"agent_memories": -1}, "agent_memories is -1"),
        ({"default_action_dtype": "text"}, "the dtype of actions is 'text'"),
        ({"rng_seed": -1}, "rng_seed is -1; allowed are integers of at least 0"),
        ({"rng_seed": 0.5}, "rng_seed is 0.5"),
        ({"folder": "/no/such/folder"}, "is no folder; create it"),
    ],
)
def test_wrong_constructor_arguments_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        SessionPool(**arguments)


# -- loading -----------------------------------------------------------------------------------------------------------


def test_loading_replaces_the_content(folder: Path | None) -> None:
    pool = SessionPool(folder=folder)
    pool.load_sessions(*sessions(5, 9, 2, seed=1))
    obs, act, rew = sessions()
    pool.load_sessions(obs, act, rew)
    assert len(pool) == 4
    assert_same(pool.observations, [obs])
    assert_same(pool.actions, [act])
    assert_same([pool.rewards], [rew])


def test_a_pool_keeps_its_own_copy(folder: Path | None) -> None:
    obs, act, rew = sessions()
    pool = SessionPool(folder=folder)
    pool.load_sessions(obs, act, rew)
    expected = [obs.copy(), act.copy(), rew.copy()]
    for array in (obs, act, rew, *pool.observations, *pool.select([0]).actions):
        array[:] = 0
    assert_same([*pool.observations, *pool.actions, pool.rewards], expected)


def test_without_a_mask_all_ticks_are_alive(folder: Path | None) -> None:
    pool = SessionPool(folder=folder)
    pool.load_sessions(*sessions())
    assert_same([pool.is_alive], [np.ones((4, 6), np.uint8)])


@pytest.mark.parametrize("dtype", [np.uint8, bool, np.float32, np.int64])
def test_a_mask_is_kept(folder: Path | None, dtype: Any) -> None:
    pool = SessionPool(folder=folder)
    mask = alive([6, 1, 3, 0], 6)
    pool.load_sessions(*sessions(), mask.astype(dtype))
    assert_same([pool.is_alive], [mask])
    assert_same([pool.select([2, 1]).is_alive], [mask[[2, 1]]])


def test_what_stands_behind_the_end_is_kept_too(folder: Path | None) -> None:
    obs, act, rew = sessions()
    pool = SessionPool(folder=folder)
    pool.load_sessions(obs, act, rew, alive([6, 1, 3, 0], 6))
    assert_same([*pool.observations, *pool.actions, pool.rewards], [obs, act, rew])


def test_padding_of_zeros_takes_no_rows() -> None:
    obs, act, rew = (array * (alive([6, 1, 3, 2], 6) if array.ndim == 2 else alive([6, 1, 3, 2], 6)[..., None])
                     for array in sessions())  # fmt: skip
    pool = SessionPool()
    pool.load_sessions(obs, act, rew, alive([6, 1, 3, 2], 6))
    assert pool._content is not None
    assert pool._content.ticks.lengths.tolist() == [6, 1, 3, 2]
    np.testing.assert_array_equal(pool.observations[0], obs)


def test_its_generator_draws_and_may_be_replaced() -> None:
    pools = [SessionPool(agent_memories=0, rng_seed=5) for _ in range(2)]
    for pool in pools:
        pool.load_sessions(*sessions())
    pools[1].rng = np.random.default_rng(5)
    assert pools[0].rng.bit_generator.state == pools[1].rng.bit_generator.state
    assert_same(*([pool.sample(3, replace=True).selector] for pool in pools))


def test_left_out_memories_are_none(folder: Path | None) -> None:
    pool = SessionPool(agent_memories=1, folder=folder)
    pool.load_sessions(*sessions())
    assert pool.select([0]).preceding_agent_memories is None
    assert pool.preceding_agent_memories is None


def test_memories_come_back_in_declared_order(folder: Path | None) -> None:
    pool = SessionPool(agent_memories=2, folder=folder)
    one, two = np.arange(8, dtype=np.float32).reshape(4, 2), np.arange(12, dtype=np.float32).reshape(4, 3)
    pool.load_sessions(*sessions(), prev_memories=[one, two])
    assert_same(pool.preceding_agent_memories or [], [one, two])
    assert_same(pool.select([3, 0]).preceding_agent_memories or [], [one[[3, 0]], two[[3, 0]]])


def test_without_terminated_the_end_counts_as_terminated(folder: Path | None) -> None:
    pool = SessionPool(folder=folder)
    pool.load_sessions(*sessions())
    batch = pool.select([0, 1])
    assert batch.terminated.tolist() == [True, True]
    assert batch.final_observations is None


def test_truncated_sessions_bring_their_final_observations(folder: Path | None) -> None:
    obs, act, rew = sessions()
    final = np.ones((4, 3), np.float32)
    pool = SessionPool(folder=folder)
    pool.load_sessions(obs, act, rew, terminated=[1, 0, 1, 0], final_observations=final)
    batch = pool.select([1, 2])
    assert batch.terminated.tolist() == [False, True]
    assert_same(batch.final_observations or [], [final[[1, 2]]])


def test_no_sessions_make_an_empty_pool(folder: Path | None) -> None:
    pool = SessionPool(folder=folder)
    pool.load_sessions(*sessions())
    pool.load_sessions(*sessions(0))
    assert len(pool) == 0
    pool.append_sessions(*sessions(2, 3, 7))
    assert len(pool) == 2


def changed(array: Any, at: Any, value: Any) -> Any:
    array = array.copy()
    array[at] = value
    return array


OBS, ACT, REW = sessions()
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"observation_sequences": OBS[0, :, 0]}, r"observation_sequences has the shape \[6\]; expected is \[batch, tick"),
    ({"observation_sequences": OBS[..., 0]}, r"observation_sequences has the shape \[4, 6\]; expected is"),
    ({"observation_sequences": [OBS, OBS]}, "observation_sequences is a list of 2; the pool declares 1 observations"),
    ({"observation_sequences": changed(OBS, (2, 4, 1), np.nan)}, "observation_sequences, session 2, tick 4: found nan"),
    ({"observation_sequences": OBS.astype(str)}, "observation_sequences has the dtype <U"),
    ({"observation_sequences": OBS[:, :0], "action_sequences": ACT[:, :0]}, "has 0 ticks; a session has at least one"),
    ({"action_sequences": ACT[:3]}, "action_sequences has 3 sessions and 6 ticks; .* have 4 sessions and 6 ticks"),
    ({"action_sequences": ACT[:, :5]}, "action_sequences has 4 sessions and 5 ticks; .* have 4 sessions and 6 ticks"),
    ({"action_sequences": ACT[..., None]}, r"action_sequences has the shape \[4, 6, 1\]; expected is \[batch, tick\]"),
    ({"action_sequences": ACT + 0.5}, r"action_sequences, session 0, tick 0: found \d\.5; int32 cannot hold it"),
    ({"reward_seq": REW[:, 1:]}, "reward_seq has 4 sessions and 5 ticks"),
    ({"reward_seq": changed(REW, (3, 0), np.inf)}, "reward_seq, session 3, tick 0: found inf; only finite"),
    ({"is_alive": np.ones((4, 5))}, "is_alive has 4 sessions and 5 ticks"),
    ({"is_alive": np.full((4, 6), -1)}, "is_alive, session 0, tick 0: found -1; allowed are 0 and 1"),
    ({"is_alive": np.full((4, 6), 2)}, "is_alive, session 0, tick 0: found 2; allowed are 0 and 1"),
    ({"is_alive": changed(np.ones((4, 6)), (1, 3), 0)}, "is_alive, session 1, tick 4: found 1; it follows a 0"),
    ({"is_alive": changed(np.ones((4, 6)), (1, 0), 0)}, "is_alive, session 1, tick 1: found 1; it follows a 0"),
    ({"prev_memories": np.ones((3, 2))}, "prev_memories has 3 sessions; .* have 4 sessions"),
    ({"prev_memories": np.ones((4, 6, 2))}, r"prev_memories has the shape \[4, 6, 2\]; expected is \[batch, unit\]"),
    ({"prev_memories": changed(np.ones((4, 2)), (3, 1), np.nan)}, "prev_memories, session 3: found nan"),
    ({"prev_memories": [np.ones((4, 2))] * 2}, "prev_memories is a list of 2; the pool declares 1"),
    ({"terminated": [1, 1, 1]}, "terminated has 3 sessions; .* have 4 sessions"),
    ({"terminated": [1, 1, 0, 1]}, "session 2 is not terminated and has no final observation"),
    (
        {"final_observations": np.ones((4, 2))},
        r"final_observations has items of the shape \[2\], the observations \[3\]",
    ),
    ({"final_observations": np.ones((4, 6, 3))}, r"final_observations has the shape .* expected is \[batch, unit\]"),
]


@pytest.mark.parametrize("method", ["load_sessions", "append_sessions", "get_session_updates"])
def test_wrong_sessions_are_named_and_change_nothing(method: str) -> None:
    pool = SessionPool()
    pool.load_sessions(*sessions(2, 3, seed=5))
    before = content(pool)
    for arguments, message in REFUSED:
        given = {"observation_sequences": OBS, "action_sequences": ACT, "reward_seq": REW, **arguments}
        if method == "get_session_updates" and "prev_memories" in given:
            given["prev_memory"] = given.pop("prev_memories")
        with pytest.raises(SampleRefusedError, match=message):
            getattr(pool, method)(**given)
        assert_same(content(pool), before)


def test_memories_of_a_pool_that_declares_none_are_refused() -> None:
    pool = SessionPool(agent_memories=0)
    with pytest.raises(SampleRefusedError, match="prev_memories is one array; the pool declares 0"):
        pool.load_sessions(*sessions(), prev_memories=np.ones((4, 2)))


@pytest.mark.parametrize("method", ["load_sessions", "append_sessions"])
def test_a_full_disk_leaves_the_pool_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    pool = SessionPool(folder=tmp_path)
    pool.load_sessions(*sessions(2, 3), prev_memories=np.ones((2, 2)))
    before = content(pool)
    calls = []

    def full(descriptor: int, given: Any) -> int:
        calls.append(descriptor)
        if len(calls) == 4:  # the memories, after three columns of ticks
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(descriptor, given)

    write = os.write
    with monkeypatch.context() as patched:
        patched.setattr(os, "write", full)
        with pytest.raises(StorageFullError, match="Make room"):
            getattr(pool, method)(*sessions(1, 3, seed=9), prev_memories=np.zeros((1, 2)))
    assert_same(content(pool), before)


# -- appending ---------------------------------------------------------------------------------------------------------


def test_appended_sessions_are_the_last(folder: Path | None) -> None:
    pool = SessionPool(folder=folder)
    first, second = sessions(seed=1), sessions(2, seed=2)
    pool.append_sessions(*first)
    pool.append_sessions(*second)
    assert_same(
        [*pool.observations, *pool.actions, pool.rewards],
        [np.concatenate(pair) for pair in zip(first, second, strict=True)],
    )


@pytest.mark.parametrize(("size", "expected"), [(None, 7), (20, 7), (7, 7), (6, 6), (3, 3), (2, 2), (1, 1)])
def test_only_the_last_max_pool_size_sessions_stay(folder: Path | None, size: int | None, expected: int) -> None:
    pool = SessionPool(folder=folder)
    first, second = sessions(4, seed=1), sessions(3, seed=2)
    memories = np.arange(7, dtype=np.float32).reshape(7, 1)
    pool.load_sessions(*first, prev_memories=memories[:4])
    pool.append_sessions(*second, prev_memories=memories[4:], max_pool_size=size)
    assert len(pool) == expected
    together = [np.concatenate(pair)[-expected:] for pair in zip(first, second, strict=True)]
    assert_same(
        [*pool.observations, *pool.actions, pool.rewards, *(pool.preceding_agent_memories or [])],
        [*together, memories[-expected:]],
    )


def test_max_pool_size_holds_for_an_empty_pool_and_for_no_new_sessions(folder: Path | None) -> None:
    pool = SessionPool(folder=folder)
    given = sessions(5)
    pool.append_sessions(*given, max_pool_size=4)
    assert_same(pool.observations, [given[0][1:]])
    pool.append_sessions(*sessions(0), max_pool_size=3)
    assert_same(pool.observations, [given[0][2:]])


@pytest.mark.parametrize("size", [0, -1, 2.5, True, "3"])
def test_max_pool_size_is_a_positive_integer(size: Any) -> None:
    pool = SessionPool()
    with pytest.raises(SampleRefusedError, match=f"max_pool_size is {size!r}; allowed are positive integers"):
        pool.append_sessions(*sessions(), max_pool_size=size)


def test_longer_sessions_pad_the_shorter_ones(folder: Path | None) -> None:
    pool = SessionPool(folder=folder)
    short, long = sessions(2, 3, seed=1), sessions(1, 5, seed=2)
    pool.load_sessions(*short)
    pool.append_sessions(*long)
    assert pool.rewards.shape == (3, 5)
    assert_same([pool.is_alive], [alive([3, 3, 5], 5)])
    np.testing.assert_array_equal(pool.observations[0][:2, :3], short[0])
    assert not pool.observations[0][:2, 3:].any()
    np.testing.assert_array_equal(pool.observations[0][2:], long[0])
    assert pool.select([0]).actions[0].shape == (1, 5)
    pool.append_sessions(*sessions(2, 4), max_pool_size=2)
    assert pool.rewards.shape == (2, 4)


MIXED: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({}, {"prev_memories": np.ones((4, 2))}, "have no preceding_agent_memories, these have some"),
    ({"prev_memories": np.ones((4, 2))}, {}, "have preceding_agent_memories, these have none"),
    ({}, {"final_observations": np.ones((4, 3))}, "have no final_observations, these have some"),
    ({"final_observations": np.ones((4, 3))}, {}, "have final_observations, these have none"),
    (
        {"prev_memories": np.ones((4, 2))},
        {"prev_memories": np.ones((4, 5))},
        r"memories\.0 has items of the shape \[5\]",
    ),
]


@pytest.mark.parametrize(("first", "second", "message"), MIXED)
def test_sessions_of_one_pool_have_one_structure(first: Any, second: Any, message: str) -> None:
    pool = SessionPool()
    pool.load_sessions(*sessions(), **first)
    before = content(pool)
    with pytest.raises(SampleRefusedError, match=message):
        pool.append_sessions(*sessions(), **second)
    assert_same(content(pool), before)


def test_the_first_sessions_set_the_unit_size() -> None:
    pool = SessionPool()
    pool.load_sessions(*sessions(unit=3))
    with pytest.raises(
        SampleRefusedError, match=r"observations\.0 has items of the shape \[4\], those in the pool .*\[3\]"
    ):
        pool.append_sessions(*sessions(unit=4))
    pool.load_sessions(*sessions(unit=4))
    assert pool.observations[0].shape == (4, 6, 4)


# -- updates -----------------------------------------------------------------------------------------------------------


def test_updates_change_nothing_until_they_are_applied(folder: Path | None) -> None:
    pool = SessionPool(folder=folder)
    pool.load_sessions(*sessions())
    before = content(pool)
    obs, act, rew = sessions(3, 4, 5, seed=7)
    updates = pool.get_session_updates(
        obs.astype(np.float64), act.astype(np.int64), rew.tolist(), prev_memory=[np.ones((3, 2), np.int64)]
    )
    assert_same(content(pool), before)
    assert dict(zip(updates, described(list(updates.values())), strict=True)) == {
        "observations.0": ((3, 4, 5), "float32"),
        "actions.0": ((3, 4), "int32"),
        "rewards": ((3, 4), "float32"),
        "preceding_agent_memories.0": ((3, 2), "float32"),
        "is_alive": ((3, 4), "uint8"),
        "terminated": ((3,), "bool"),
    }
    pool.apply_updates(updates)
    assert_same([*pool.observations, *pool.actions, pool.rewards], [obs, act, rew])
    assert_same(pool.preceding_agent_memories or [], [np.ones((3, 2), np.float32)])


@pytest.mark.parametrize(
    ("key", "arguments"),
    [
        ("observations.0", {"observation_sequences": OBS.astype(np.float64)}),
        ("actions.0", {"action_sequences": ACT.astype(np.int64)}),
        ("rewards", {"reward_seq": REW.astype(np.float64)}),
        ("is_alive", {"is_alive": np.ones((4, 6), np.float32)}),
        ("preceding_agent_memories.0", {"prev_memory": np.ones((4, 2))}),
        ("terminated", {"terminated": np.ones(4, np.int64)}),
        ("final_observations.0", {"final_observations": np.ones((4, 3))}),
    ],
)
def test_without_casting_other_dtypes_are_kept_and_refused_when_applied(key: str, arguments: dict[str, Any]) -> None:
    pool = SessionPool()
    pool.load_sessions(*sessions(2, 3))
    before = content(pool)
    given = {"observation_sequences": OBS, "action_sequences": ACT, "reward_seq": REW, **arguments}
    updates = pool.get_session_updates(**given, cast_dtypes=False)
    (argument,) = arguments.values()
    assert updates[key].dtype == argument.dtype
    with pytest.raises(SampleRefusedError, match=f"{key} has the dtype {argument.dtype}, the pool's is"):
        pool.apply_updates(updates)
    assert_same(content(pool), before)
    pool.apply_updates(pool.get_session_updates(**given, cast_dtypes=True))
    assert len(pool) == 4


def test_without_casting_the_pools_own_dtypes_are_taken() -> None:
    pool = SessionPool()
    pool.apply_updates(pool.get_session_updates(OBS, ACT, REW, cast_dtypes=False))
    assert_same([*pool.observations, *pool.actions, pool.rewards], [OBS, ACT, REW])


@pytest.mark.parametrize(
    ("without", "added", "message"),
    [
        ("rewards", {}, r"updates lack \['rewards'\] and have the unknown keys none"),
        (None, {"reward": REW}, r"lack nothing and have the unknown keys \['reward'\]"),
        (None, {"preceding_agent_memories.1": REW}, r"lack \['preceding_agent_memories.0'\]"),
        (None, {"rewards": REW[:2]}, "rewards has 2 sessions"),
        (
            None,
            {"actions.0": changed(ACT.astype(np.float32), (0, 1), np.nan)},
            r"actions\.0, session 0, tick 1: found nan",
        ),
        (None, {"is_alive": 2 * np.ones((4, 6), np.uint8)}, "is_alive, session 0, tick 0: found 2"),
    ],
)
def test_updates_are_checked_when_they_are_applied(without: str | None, added: dict[str, Any], message: str) -> None:
    pool = SessionPool()
    updates = pool.get_session_updates(OBS, ACT, REW)
    if without:
        del updates[without]
    with pytest.raises(SampleRefusedError, match=message):
        pool.apply_updates({**updates, **added})
    assert len(pool) == 0


# -- selecting and sampling --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("selector", [[2, 0, 3], [1, 1, 1], (3,), np.array([0, 2], np.uint8), range(4), []])
def test_selected_sessions_come_in_the_order_of_the_selector(folder: Path | None, selector: Any) -> None:
    pool = SessionPool(folder=folder)
    memories = np.arange(4, dtype=np.float32).reshape(4, 1)
    mask = alive([6, 2, 4, 1], 6)
    pool.load_sessions(OBS, ACT, REW, mask, memories)
    batch = pool.select(selector)
    rows = np.array(selector, np.int64)
    assert_same(
        [*batch.observations, *batch.actions, batch.rewards, batch.is_alive, *(batch.preceding_agent_memories or [])],
        [OBS[rows], ACT[rows], REW[rows], mask[rows], memories[rows]],
    )
    np.testing.assert_array_equal(batch.selector, rows)


@pytest.mark.parametrize(
    ("selector", "message"),
    [
        ([0, 4], r"selector\[1\] is 4; the pool has the sessions 0 to 3"),
        ([-1], r"selector\[0\] is -1; the pool has the sessions 0 to 3"),
        (2, r"selector has the shape \[\] and the dtype int64; expected is \[batch\] with integers"),
        ([[1]], r"selector has the shape \[1, 1\]"),
        ([0.0], "the dtype float64"),
        ([True, False, True, False], "the dtype bool.*numpy.flatnonzero"),
    ],
)
def test_wrong_selectors_are_refused(selector: Any, message: str) -> None:
    pool = SessionPool()
    pool.load_sessions(*sessions())
    with pytest.raises(SampleRefusedError, match=message):
        pool.select(selector)


@pytest.mark.parametrize(
    ("replace", "asked", "expected"), [(False, 3, 3), (False, 4, 4), (False, 50, 4), (True, 3, 3), (True, 50, 50)]
)
def test_the_number_of_sampled_sessions(folder: Path | None, replace: bool, asked: int, expected: int) -> None:
    pool = SessionPool(folder=folder)
    pool.load_sessions(*sessions())
    batch = pool.sample(asked, replace)
    assert len(batch.selector) == expected
    assert batch.rewards.shape == (expected, 6)
    assert_same([batch.rewards], [REW[batch.selector]])
    if not replace:
        assert len(set(batch.selector.tolist())) == expected


@pytest.mark.parametrize("replace", [False, True])
def test_sampling_is_uniform_and_fresh_each_time(replace: bool) -> None:
    pool = SessionPool()
    pool.load_sessions(*sessions(8))
    draws = [pool.sample(4, replace).selector.tolist() for _ in range(1000)]
    assert len({tuple(draw) for draw in draws}) > 500
    counts = np.bincount([index for draw in draws for index in draw], minlength=8)
    assert counts.min() > 400  # 500 is the mean
    assert counts.max() < 600


def test_the_order_of_a_full_draw_is_random_too() -> None:
    pool = SessionPool()
    pool.load_sessions(*sessions(8))
    assert len({tuple(pool.sample(99).selector.tolist()) for _ in range(20)}) == 20


def test_the_seed_decides_the_draws() -> None:
    def draws(seed: int) -> list[list[int]]:
        pool = SessionPool(rng_seed=seed)
        pool.load_sessions(*sessions(20))
        np.random.default_rng(seed).random()  # another generator changes nothing
        return [pool.sample(5, replace).selector.tolist() for replace in (False, True, False)]

    assert draws(1337) == draws(1337)
    assert draws(1337) != draws(1)


@pytest.mark.parametrize("dtype", ["int32", np.int64, "uint8", "int16"])
def test_the_selector_dtype_is_that_of_the_drawn_indices(dtype: Any) -> None:
    pool = SessionPool()
    pool.load_sessions(*sessions())
    assert pool.sample(2, selector_dtype=dtype).selector.dtype == dtype
    assert pool.sample(2).selector.dtype == np.int32


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"max_n_samples": 0}, "max_n_samples is 0; allowed are positive integers"),
        ({"max_n_samples": -3}, "max_n_samples is -3"),
        ({"max_n_samples": 2.0}, "max_n_samples is 2.0"),
        ({"max_n_samples": True}, "max_n_samples is True"),
        ({"max_n_samples": 2, "selector_dtype": "index"}, "selector_dtype is 'index'; allowed are integer dtypes"),
        ({"max_n_samples": 2, "selector_dtype": "float32"}, "selector_dtype is float32; allowed are integer dtypes"),
        ({"max_n_samples": 2, "selector_dtype": "int8"}, "selector_dtype is int8; .* that hold 299, the last index"),
    ],
)
def test_wrong_arguments_of_a_sample_are_refused(arguments: dict[str, Any], message: str) -> None:
    pool = SessionPool()
    pool.load_sessions(*sessions(300, 2))
    with pytest.raises(SampleRefusedError, match=message):
        pool.sample(**arguments)


def test_an_empty_pool_is_empty_and_refuses_to_be_sampled() -> None:
    pool = SessionPool(2, spaces.Box(-1, 1, (3,)))
    assert len(pool) == 0
    assert [array.shape for array in pool.observations] == [(0, 0, 0), (0, 0, 0)]
    assert [array.shape for array in pool.actions] == [(0, 0, 3)]
    assert pool.rewards.shape == pool.is_alive.shape == (0, 0)
    with pytest.raises(SampleRefusedError, match="the pool is empty; load_sessions or append_sessions first"):
        pool.select([])
    for replace in (False, True):
        with pytest.raises(SampleRefusedError, match="the pool is empty"):
            pool.sample(1, replace)


def test_a_batch_is_independent_of_the_pool(folder: Path | None) -> None:
    pool = SessionPool(folder=folder)
    pool.load_sessions(*sessions())
    batch: SessionBatch = pool.select([1, 2])
    for number in range(10):
        pool.append_sessions(*sessions(seed=number), max_pool_size=3)
    assert_same([*batch.observations, *batch.actions, batch.rewards], [OBS[[1, 2]], ACT[[1, 2]], REW[[1, 2]]])


# -- as environments ---------------------------------------------------------------------------------------------------


def test_selected_and_sampled_sessions_are_environments_of_tensors(folder: Path | None) -> None:
    pool = SessionPool(agent_memories=1, folder=folder)
    mask, memories, final = alive([6, 2, 4, 1], 6), np.ones((4, 2), np.float32), np.full((4, 3), 7, np.float32)
    pool.load_sessions(OBS, ACT, REW, mask, memories, terminated=[1, 0, 1, 1], final_observations=final)
    rows = [2, 1]
    environment = pool.select_session_batch(rows)
    assert isinstance(environment, SessionBatchEnvironment)
    found: list[Any] = [*environment.observations, *environment.actions, environment.rewards, environment.is_alive]
    found += [*(environment.preceding_agent_memories or []), environment.terminated]
    found += environment.final_observations or []
    assert all(isinstance(tensor, torch.Tensor) for tensor in found)
    expected = [OBS[rows], ACT[rows], REW[rows], mask[rows], memories[rows], np.array([True, False]), final[rows]]
    assert_same([tensor.numpy() for tensor in found], expected)
    sampled = pool.sample_session_batch(9)
    assert sampled.num_envs == 4
    assert pool.sample_session_batch(9, replace=True).num_envs == 9


def test_environments_without_torch_name_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = SessionPool()
    pool.load_sessions(OBS, ACT, REW)
    monkeypatch.setitem(sys.modules, "torch", None)
    assert len(pool.sample(2).rewards) == 2
    message = r"needs the package 'torch'.*pip install 'tmrl_core\[trainer\]'"
    with pytest.raises(MissingExtraError, match=message):
        pool.select_session_batch([0])
    with pytest.raises(MissingExtraError, match=message):
        pool.sample_session_batch(2)
    with pytest.raises(MissingExtraError, match=message):
        pool.replay()


def test_environments_without_memories_have_none() -> None:
    pool = SessionPool()
    pool.load_sessions(OBS, ACT, REW)
    assert pool.sample_session_batch(2).preceding_agent_memories is None


def test_the_same_seed_draws_the_same_environments() -> None:
    pools = [SessionPool(), SessionPool()]
    for pool in pools:
        pool.load_sessions(OBS, ACT, REW)
    one, two = pools[0].sample_session_batch(3), pools[1].sample(3)
    np.testing.assert_array_equal(one.observations[0], two.observations[0])


# -- recorded sessions -------------------------------------------------------------------------------------------------


def test_recorded_sessions_fill_a_pool(folder: Path | None) -> None:
    kinds, box = spaces.Discrete(3), spaces.Box(-1, 1, (2, 2), np.float32)
    of = spaces.Dict(kind=kinds, box=box), kinds
    recorded = [make_session(of, 4, 1, terminated=True), make_session(of, 2, 2, truncated=True)]
    pool = SessionPool([kinds, box], kinds, 0, folder=folder)
    pool.load_sessions(**padded_sequences(recorded))
    pool.append_sessions(**padded_sequences([make_session(of, 5, 3)]), max_pool_size=2)
    batch = pool.select([0])
    observations: Any = recorded[1].observations
    assert_same([batch.is_alive], [alive([2], 5)])
    assert batch.terminated.tolist() == [False]
    for found, name in zip(batch.observations, ("kind", "box"), strict=True):
        np.testing.assert_array_equal(found[0, :2], observations[name][:2])
    for found, name in zip(batch.final_observations or [], ("kind", "box"), strict=True):
        np.testing.assert_array_equal(found[0], observations[name][2])
    np.testing.assert_array_equal(batch.actions[0][0, :2], recorded[1].actions)
    np.testing.assert_array_equal(batch.rewards[0, :2], recorded[1].rewards.astype(np.float32))


def walk(ticks: int, first: float = 0.0) -> Session:
    return Session(
        observations=np.arange(first, first + ticks + 1, dtype=np.float32)[:, None],
        actions=np.zeros(ticks, np.int32),
        rewards=np.ones(ticks, np.float32),
        truncated=True,
    )


def test_one_long_session_among_short_ones_takes_no_memory_for_the_others(
    folder: Path | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tmrl_core.envs.replay.pool._PADDED_BYTES", 1 << 17)
    lengths = [1, *[3] * 20, 100_000, *[2] * 20]  # padded all at once: 34 MB and more
    pool = SessionPool(1, 1, 0, folder=folder)
    tracemalloc.start()
    try:
        pool.load_recording(walk(ticks, 100.0 * number) for number, ticks in enumerate(lengths))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 12e6
    batch = pool.select([2, 21, 41])
    assert batch.is_alive.sum(axis=1).tolist() == [3, 100_000, 2]
    assert batch.observations[0][:, 1, 0].tolist() == [201.0, 2101.0, 4101.0]
    assert batch.final_observations is not None
    assert batch.final_observations[0][[0, 2], 0].tolist() == [203.0, 4102.0]


def test_a_recording_that_cannot_be_loaded_leaves_the_pool() -> None:
    pool = SessionPool(1, 1, 0)
    pool.load_recording([walk(2), walk(3)])
    bad = dataclasses.replace(walk(2), rewards=np.array([0.0, np.nan], np.float32))
    with pytest.raises(SampleRefusedError, match="from number 0 on: reward_seq, session 1, tick 1: found nan"):
        pool.load_recording([walk(4), bad])
    with pytest.raises(SampleRefusedError, match="there are no sessions"):
        pool.load_recording([])
    assert pool.is_alive.sum(axis=1).tolist() == [2, 3]


def test_recorded_sessions_that_differ_are_named() -> None:
    two, three = spaces.Box(-1, 1, (2,), np.float32), spaces.Box(-1, 1, (3,), np.float32)
    with pytest.raises(SampleRefusedError, match="session 1 differs from the first one in its actions"):
        padded_sequences([make_session((two, two), 3, 1), make_session((two, three), 3, 2)])
    with pytest.raises(SampleRefusedError, match="there are no sessions"):
        padded_sequences([])
