from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from tmrl_core.training.agents.ppo import PPOAgent
from tmrl_core.training.interface import LocalInterface
from tmrl_core.training.loops.lockstep import TrainingLockstep
from tmrl_core.training.memories.memory import MAX_STREAMS

SPACES = (spaces.Box(-1.0, 1.0, (2,), np.float32), spaces.Discrete(2))


def test_each_stream_gets_one_unique_seed() -> None:
    def made(seed: int | None) -> TrainingLockstep:
        return TrainingLockstep(SPACES, training_agent_cls=PPOAgent, steps_per_round=8, seed=seed, device="cpu")

    training = made(3)
    streams = [bytes([number]) * 16 for number in range(6)]
    first = [training._seed_of(stream, index) for index, stream in enumerate(streams[:3])]
    assert [training._seed_of(stream, index) for index, stream in enumerate(streams[:3])] == [None] * 3
    training.rounds_done = 1  # who joins later gets no seed that the first ones had
    later = [training._seed_of(stream, index) for index, stream in enumerate(streams[3:])]
    assert len({*first, *later}) == 6
    assert None not in first + later
    assert made(3)._seed_of(streams[5], 0) == first[0]
    assert made(4)._seed_of(streams[5], 0) != first[0]
    assert made(None)._seed_of(streams[0], 0) is None


class OneWorker(LocalInterface):
    def workers(self) -> list[tuple[bytes, str]]:
        return [(b"here", "robot")]


class TwoWorkers(LocalInterface):
    """Stops training at the first wait. `first` says that it waits for the next round."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: set[bytes] = set()

    def workers(self) -> list[tuple[bytes, str]]:
        return [(b"first", "a"), (b"second", "b")]

    def says_idle(self, stream: bytes) -> bool:
        return stream == b"first"

    def collect(self, what: Any, stream: bytes) -> None:
        self.asked.add(stream)

    def wait(self, timeout_s: float) -> bool:
        self.stop()
        return False


def test_a_stalled_worker_that_waits_is_asked_again() -> None:
    training = TrainingLockstep(SPACES, training_agent_cls=PPOAgent, steps_per_round=8, device="cpu")
    training.suspended = {b"first", b"second"}
    interface = TwoWorkers()
    training._collect(interface)
    assert interface.asked == {b"first"}


def test_streams_that_have_left_are_not_kept_forever() -> None:
    training = TrainingLockstep(SPACES, training_agent_cls=PPOAgent, steps_per_round=8, seed=3, device="cpu")
    left = {number.to_bytes(16, "big") for number in range(MAX_STREAMS + 1)}
    training.suspended = {b"here", *left}
    training._seeded = {b"here", *left}
    suspended = training._begin_round(OneWorker())._suspended
    assert training.suspended == training._seeded == suspended == {b"here"}


def test_a_message_names_few_of_many_stalled_workers(caplog: pytest.LogCaptureFixture) -> None:
    training = TrainingLockstep(SPACES, training_agent_cls=PPOAgent, steps_per_round=8, device="cpu")
    round_ = training._begin_round(OneWorker())
    for count, text in ((3, "from w0, w1, w2 and given"), (100, "from w0, w1, w2, w3, w4 and 95 more and given")):
        round_.stalled = [f"w{number}" for number in range(count)]
        training._count(round_)
        assert text in caplog.messages[-1]


def test_a_worker_whose_episodes_are_too_large_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    training = TrainingLockstep(SPACES, training_agent_cls=PPOAgent, episodes_per_round=8, device="cpu")
    round_ = training._begin_round(TwoWorkers())
    for names in ({}, {b"first": "a"}, {b"first": "a", b"second": "b"}):
        round_.too_long = names
        training._name_long_episodes(round_)
        training._name_long_episodes(round_)
    assert len(caplog.messages) == 2
    assert "more than 256 MB was dropped, from a;" in caplog.messages[0]
    assert "from b;" in caplog.messages[1]


def test_origins_that_stalled_are_remembered_for_ten_rounds_and_in_bounded_number() -> None:
    training = TrainingLockstep(SPACES, training_agent_cls=PPOAgent, steps_per_round=8, device="cpu")
    training.rounds_done = 20
    training.needed = {"early": (10, 4.0), "late": (20, 2.0)}
    training.stalled_origins = {"early": 10, **dict.fromkeys(range(MAX_STREAMS + 1_000), 11), "late": 20}
    training._begin_round(OneWorker())
    assert len(training.stalled_origins) == MAX_STREAMS
    assert "early" not in training.stalled_origins
    assert training.needed == {"late": (20, 2.0)}
    assert {MAX_STREAMS + 999, "late"} <= training.stalled_origins.keys()
    training.rounds_done = 30
    training._begin_round(OneWorker())
    assert training.stalled_origins == {}
    assert training.needed == {}
