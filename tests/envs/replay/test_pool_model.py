"""SessionPool against a list of sessions: any sequence of calls has the same results."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tmrl_core.envs.replay import SessionBatch, SessionPool
from tmrl_core.errors import SampleRefusedError


@dataclass
class Given:
    """Sessions as they are loaded; `final` and `memories` may be missing."""

    observations: list[Any]
    actions: list[Any]
    rewards: Any
    is_alive: Any
    terminated: Any
    memories: list[Any] | None
    final: list[Any] | None

    def arguments(self, memories: str = "prev_memories") -> dict[str, Any]:
        return {
            "observation_sequences": self.observations,
            "action_sequences": self.actions,
            "reward_seq": self.rewards,
            "is_alive": self.is_alive,
            memories: self.memories,
            "terminated": self.terminated,
            "final_observations": self.final,
        }

    def sessions(self) -> list[dict[str, Any]]:
        return [
            {
                "ticks": [*(each[row] for each in (*self.observations, *self.actions, self.rewards, self.is_alive))],
                "once": [*(each[row] for each in (*(self.memories or []), self.terminated, *(self.final or [])))],
            }
            for row in range(len(self.rewards))
        ]


@st.composite
def given_sessions(draw: Any, least: int = 0) -> Given:
    batch, ticks = draw(st.integers(least, 4)), draw(st.integers(1, 5))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    lengths = rng.integers(0, ticks + 1, (batch, 1)) if draw(st.booleans()) else np.full((batch, 1), ticks)
    is_alive = (np.arange(ticks) < lengths).astype(np.uint8)
    kept = is_alive if draw(st.booleans()) else np.ones_like(is_alive)  # else something is recorded behind the end

    def sequence(shape: tuple[int, ...], whole: bool = False) -> Any:
        values = rng.integers(0, 9, (batch, ticks, *shape)) if whole else rng.standard_normal((batch, ticks, *shape))
        return (values * kept.reshape(batch, ticks, *[1] * len(shape))).astype(np.int64 if whole else np.float32)

    final = draw(st.booleans())
    return Given(
        [sequence((3,)), sequence((2, 2), whole=True).astype(np.uint8)],
        [sequence((), whole=True).astype(np.int16), sequence((2,))],
        sequence(()),
        is_alive,
        rng.random(batch) < 0.5 if final else np.ones(batch, bool),
        [rng.standard_normal((batch, 5)).astype(np.float32)] if draw(st.booleans()) else None,
        [
            rng.standard_normal((batch, 3)).astype(np.float32),
            rng.integers(0, 9, (batch, 2, 2)).astype(np.uint8),
        ]
        if final
        else None,
    )


def found_in(batch: SessionBatch) -> list[dict[str, Any]]:
    return Given(
        batch.observations,
        batch.actions,
        batch.rewards,
        batch.is_alive,
        batch.terminated,
        batch.preceding_agent_memories,
        batch.final_observations,
    ).sessions()


class PoolMachine(RuleBasedStateMachine):
    @initialize(mapped=st.booleans(), seed=st.integers(0, 99))
    def begin(self, mapped: bool, seed: int) -> None:
        self.folder = tempfile.TemporaryDirectory(prefix="tmrl_core-pool-") if mapped else None
        self.pool = SessionPool(
            [spaces.Box(-9, 9, (3,), np.float32), spaces.Box(0, 255, (2, 2), np.uint8)],
            [spaces.Discrete(9, dtype=np.int16), spaces.Box(-9, 9, (2,), np.float32)],
            1,
            rng_seed=seed,
            folder=None if self.folder is None else self.folder.name,
        )
        self.twin = np.random.default_rng(seed)
        self.model: list[dict[str, Any]] = []
        self.has = (False, False)

    def teardown(self) -> None:
        folder = getattr(self, "folder", None)
        if folder is not None:
            folder.cleanup()

    def expected(self, rows: Any) -> list[dict[str, Any]]:
        """The model's sessions, padded with zeros to the longest one of the pool."""
        width = max((len(session["ticks"][-1]) for session in self.model), default=0)
        return [
            {
                "ticks": [
                    np.concatenate([each, np.zeros((width - len(each), *each.shape[1:]), each.dtype)])
                    for each in self.model[row]["ticks"]
                ],
                "once": self.model[row]["once"],
            }
            for row in rows
        ]

    def compare(self, found: list[dict[str, Any]], rows: Any) -> None:
        expected = self.expected(rows)
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            for part in ("ticks", "once"):
                for array, wanted in zip(one[part], other[part], strict=True):
                    assert np.asarray(array).dtype == np.asarray(wanted).dtype
                    np.testing.assert_array_equal(array, wanted)

    @rule(given=given_sessions())
    def load(self, given: Given) -> None:
        self.pool.load_sessions(**given.arguments())
        self.model, self.has = given.sessions(), (given.memories is not None, given.final is not None)

    @rule(given=given_sessions(), size=st.none() | st.integers(1, 6))
    def append(self, given: Given, size: int | None) -> None:
        has = (given.memories is not None, given.final is not None)
        if self.model and has != self.has:
            with pytest.raises(SampleRefusedError, match="load them with all sessions or with none"):
                self.pool.append_sessions(**given.arguments(), max_pool_size=size)
            return
        self.pool.append_sessions(**given.arguments(), max_pool_size=size)
        self.model = [*self.model, *given.sessions()][-size if size else None :]
        self.has = has

    @rule(given=given_sessions(), cast=st.booleans())
    def update(self, given: Given, cast: bool) -> None:
        before = len(self.pool)
        updates = self.pool.get_session_updates(**given.arguments("prev_memory"), cast_dtypes=cast)
        assert len(self.pool) == before
        self.pool.apply_updates(updates)
        self.model, self.has = given.sessions(), (given.memories is not None, given.final is not None)

    @rule(given=given_sessions(least=1), argument=st.sampled_from(["observations", "actions", "rewards"]))
    def refuse_what_is_not_finite(self, given: Given, argument: str) -> None:
        bad = {"observations": given.observations[0], "actions": given.actions[1], "rewards": given.rewards}[argument]
        bad[-1, -1] = np.nan
        for change in (self.pool.load_sessions, self.pool.append_sessions):
            with pytest.raises(SampleRefusedError, match=f"session {len(bad) - 1}, tick {bad.shape[1] - 1}: found nan"):
                change(**given.arguments())

    @rule(given=given_sessions(least=1))
    def refuse_other_lengths(self, given: Given) -> None:
        given.rewards = np.concatenate([given.rewards, given.rewards[:, :1]], axis=1)
        for change in (self.pool.load_sessions, self.pool.append_sessions):
            with pytest.raises(SampleRefusedError, match="reward_seq has"):
                change(**given.arguments())

    @rule(given=given_sessions(least=1), to=st.sampled_from([np.float64, np.int64]))
    def refuse_updates_of_other_dtypes(self, given: Given, to: Any) -> None:
        given.rewards = given.rewards.astype(to)
        updates = self.pool.get_session_updates(**given.arguments("prev_memory"), cast_dtypes=False)
        assert updates["rewards"].dtype == to
        with pytest.raises(SampleRefusedError, match="rewards has the dtype"):
            self.pool.apply_updates(updates)

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def select(self, data: Any) -> None:
        rows = data.draw(st.lists(st.integers(0, len(self.model) - 1), max_size=9))
        self.compare(found_in(self.pool.select(rows)), rows)

    @precondition(lambda self: self.model)
    @rule(count=st.integers(1, 9), replace=st.booleans())
    def sample(self, count: int, replace: bool) -> None:
        batch = self.pool.sample(count, replace)
        assert len(batch.selector) == (count if replace else min(count, len(self.model)))
        assert replace or len(set(batch.selector.tolist())) == len(batch.selector)
        self.compare(found_in(batch), batch.selector)

    @precondition(lambda self: not self.model)
    @rule()
    def refuse_to_sample_an_empty_pool(self) -> None:
        for use in (
            lambda: self.pool.sample(1),
            lambda: self.pool.select([]),
            lambda: self.pool.sample_session_batch(1),
        ):
            with pytest.raises(SampleRefusedError, match="the pool is empty"):
                use()

    @invariant()
    def content(self) -> None:
        if not hasattr(self, "pool"):
            return
        assert len(self.pool) == len(self.model)
        if self.model:
            everything = list(range(len(self.model)))
            self.compare(found_in(self.pool.select(everything)), everything)
            for whole, sequence in zip(
                [*self.pool.observations, *self.pool.actions, self.pool.rewards, self.pool.is_alive],
                zip(*(each["ticks"] for each in self.expected(everything)), strict=True),
                strict=True,
            ):
                np.testing.assert_array_equal(whole, np.stack(sequence))


TestPool = PoolMachine.TestCase
TestPool.settings = settings(stateful_step_count=25, derandomize=True)
