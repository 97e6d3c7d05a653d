"""Sequences beside those that a plain loop cuts out of whole episodes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tmrl_core.actor import QValueRNNActor
from tmrl_core.actor.module import RecurrentActor
from tmrl_core.errors import ConfigError
from tmrl_core.samples import Chunk, Segment
from tmrl_core.training import ReplayMemory
from tmrl_core.training.memories.mixed import MixedMemory
from tmrl_core.training.memories.sequences import SequenceMemory

Made = tuple[Any, ...]
OBSERVATIONS = gym.spaces.Box(-1, 1, (3,), np.float32)
no_fixture_check = settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def with_state(chunk: Chunk) -> Chunk:
    """Add a state before each action that says which action it is."""
    state = np.stack([chunk.step - 1, chunk.episode], 1).astype(np.float32)
    return replace(chunk, extras={"state.h": state, "logp": state[:, 0]})


def held(memory: SequenceMemory) -> list[Made]:
    """Sequences by stream, episode, number of the first tick, steps of its observations, and how they end."""
    found = []
    for item in range(len(memory)):
        row: Any = memory.get_transition(item)
        before, act, rew, after, terminated, truncated, extras = row
        ticks = int(extras["ticks"])
        for column in (act, rew, after, terminated, truncated):
            assert len(column) == memory.length
            assert not np.any(column[ticks:]), "padding is zeros"
        stream, episode, step = (int(value) for value in before)
        assert extras["first_tick"] == step
        if "state.h" in extras:
            assert extras["state.h"].tolist() == [step, episode], "the state before the first tick"
        assert set(extras) <= {"ticks", "first_tick", "state.h"}
        steps = list(range(step + 1, step + 1 + ticks))
        assert after[:ticks].tolist() == [[stream, episode, number] for number in steps]
        assert act[:ticks, 0].tolist() == rew[:ticks].tolist() == steps
        assert not terminated[: ticks - 1].any()
        assert not truncated[: ticks - 1].any()
        found.append((stream, episode, step, ticks, bool(terminated[ticks - 1]), bool(truncated[ticks - 1])))
    return found


@dataclass
class Episode:
    """Runs of consecutive steps that arrived, of an episode that ended at a step."""

    stream: int
    number: int
    steps: int
    end: str
    arrived: list[range]


def slowly(episode: Episode, length: int, stride: int) -> list[Made]:
    """The sequences of an episode, by an obvious loop over its runs."""
    made = []
    for run in episode.arrived:
        ticks = range(run.start, run.stop - 1)
        covered = ticks.start
        for begin in ticks:
            if begin % stride:
                covered += begin == covered  # before the first multiple of the stride
                continue
            stop = min(begin + length, ticks.stop)
            if stop > covered:
                over = stop == episode.steps
                ends = (over and episode.end == "terminated", over and episode.end == "truncated")
                made.append((episode.stream, episode.number, begin, stop - begin, *ends))
                covered = stop
    return made


@st.composite
def episodes(draw: st.DrawFn, make_rows: Callable[..., Chunk]) -> tuple[list[list[Chunk]], list[Episode]]:
    """Chunks of each stream, in order, and the episodes that they hold."""
    chunks: list[list[Chunk]] = []
    found = []
    for stream in range(1, draw(st.integers(1, 3)) + 1):
        chunks.append([])
        for number in range(draw(st.integers(1, 3))):
            steps, at = draw(st.integers(1, 20)), 0
            end = draw(st.sampled_from(["terminated", "truncated"]))
            arrived: list[range] = []
            while at <= steps:
                rows = draw(st.integers(1, steps + 1 - at))
                last = at + rows > steps
                if last or draw(st.integers(0, 5)):  # else: a message is missing
                    chunks[-1].append(with_state(make_rows(stream, number, at, rows, end=end if last else None)))
                    if arrived and arrived[-1].stop == at:
                        arrived[-1] = range(arrived[-1].start, at + rows)
                    else:
                        arrived.append(range(at, at + rows))
                at += rows
            found.append(Episode(stream, number, steps, end, arrived))
    return chunks, found


@no_fixture_check
@given(data=st.data())
def test_any_split_into_messages_equals_a_slow_loop(data: st.DataObject, make_rows: Any) -> None:
    length = data.draw(st.integers(1, 8), "length")
    stride = data.draw(st.integers(1, length), "stride")
    memory = SequenceMemory(memory_size=1000, length=length, stride=stride)
    streams, whole = data.draw(episodes(make_rows))
    while any(streams):
        memory.append_chunk(data.draw(st.sampled_from([chunks for chunks in streams if chunks])).pop(0))
    found = held(memory)
    assert sorted(found) == sorted(one for episode in whole for one in slowly(episode, length, stride))
    for episode in whole:
        if episode.arrived == [range(episode.steps + 1)]:
            mine = [one for one in found if one[:2] == (episode.stream, episode.number)]
            ticks = {tick for one in mine for tick in range(one[2], one[2] + one[3])}
            assert ticks == set(range(episode.steps)), "each tick is in a sequence"


@no_fixture_check
@given(data=st.data())
def test_several_episodes_in_one_message_are_cut_apart(data: st.DataObject, make_rows: Any) -> None:
    lengths = data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=5))
    parts = [make_rows(1, number, 0, steps + 1, end="terminated") for number, steps in enumerate(lengths)]
    apart, together = (SequenceMemory(memory_size=1000, length=4, stride=2) for _ in range(2))
    for part in parts:
        apart.append_chunk(part)
    fields = ("action", "action_present", "observation", "reward", "terminated", "truncated")
    columns = {name: np.concatenate([getattr(part, name) for part in parts]) for name in fields}
    segments = tuple(segment for part in parts for segment in part.segments)
    together.append_chunk(replace(parts[0], rows=sum(map(len, parts)), segments=segments, **columns))
    assert held(apart) == held(together)


@pytest.mark.parametrize("acted", [False, True])
def test_the_calls_for_a_message_do_not_grow_with_its_runs(
    make_rows: Any, monkeypatch: pytest.MonkeyPatch, acted: bool
) -> None:
    """A message of 600 bytes may hold 600,000 runs of one row; a few calls for each took ten seconds."""
    calls = 0

    class Counted:
        def __getattr__(self, name: str) -> Any:
            nonlocal calls
            calls += 1
            return getattr(np, name)

    runs = 2_000
    chunk = with_state(make_rows(1, 0, 1, 2 * runs))
    chunk.segments = tuple(Segment(2, episode, 0) for episode in range(runs))
    chunk.action_present[:] = [False, acted] * runs
    memory = SequenceMemory(memory_size=10_000, length=4, stride=2)
    monkeypatch.setattr("tmrl_core.training.memories.sequences.np", Counted())
    assert memory.append_chunk(chunk) == (runs - 1 if acted else 0)  # the last one is open
    assert calls < 100


def test_sequences_overlap_and_the_last_one_is_padded(make_rows: Any) -> None:
    memory = SequenceMemory(memory_size=100, length=4, stride=2)
    memory.append_chunk(make_rows(1, 0, 0, 8, end="truncated"))
    assert [one[2:] for one in held(memory)] == [(0, 4, False, False), (2, 4, False, False), (4, 3, False, True)]


def test_the_first_sequence_has_its_state_where_a_reset_alone_completes_it(make_rows: Any) -> None:
    memory = SequenceMemory(memory_size=100, length=4, stride=2)
    memory.append_chunk(with_state(make_rows(1, 0, 0, 3)))
    memory.append_chunk(make_rows(1, 1, 0, 1))
    memory.append_chunk(with_state(make_rows(1, 1, 1, 4)))
    assert [one[1:4] for one in held(memory)] == [(0, 0, 2), (1, 0, 4)]
    assert all("state.h" in memory.get_transition(item)[6] for item in range(len(memory)))


def test_a_sequence_inside_the_one_before_it_is_left_out(make_rows: Any) -> None:
    memory = SequenceMemory(memory_size=100, length=4, stride=2)
    memory.append_chunk(make_rows(1, 0, 0, 5))
    memory.append_chunk(make_rows(1, 1, 0, 1))
    assert [one[2:4] for one in held(memory)] == [(0, 4)]


def test_the_oldest_version_of_a_sequence_is_its_version(make_rows: Any) -> None:
    memory = SequenceMemory(memory_size=100, length=4, stride=4, max_drawn_lag=1, batch_size=1)
    memory.append_chunk(make_rows(1, 0, 0, 3, version=(1, 3)))
    memory.append_chunk(make_rows(1, 0, 3, 2, version=(1, 5)))
    memory.note_version(4)
    assert memory.sampleable == 1
    memory.note_version(5)
    assert memory.sampleable == 0


def test_a_full_memory_keeps_the_newest_sequences(make_rows: Any) -> None:
    memory = SequenceMemory(memory_size=3, length=2, stride=1)
    memory.append_chunk(make_rows(1, 0, 0, 11, end="terminated"))
    assert [one[2] for one in held(memory)] == [6, 7, 8]


def test_a_batch_has_ticks_as_its_second_axis(make_rows: Any) -> None:
    memory = SequenceMemory(memory_size=10, batch_size=3, length=4, stride=2, priority={}, seed=0)
    memory.append_chunk(with_state(make_rows(1, 0, 0, 8, end="truncated")))
    first, act, rew, after, terminated, truncated, extras = memory.sample()
    assert first.shape == (3, 3)
    assert (act.shape, after.shape) == ((3, 4, 1), (3, 4, 3))
    assert rew.shape == terminated.shape == truncated.shape == (3, 4)
    assert extras["state.h"].shape == (3, 2)
    assert extras["ticks"].shape == extras["weights"].shape == (3,)
    memory.update_priorities(extras["indices"], torch.ones(3))


@pytest.mark.parametrize("settings", [{}, {"priority": {}}, {"prefetch": 2}], ids=["uniform", "prioritized", "ahead"])
def test_ram_and_disk_sample_the_same(make_rows: Any, tmp_path: Path, settings: Any) -> None:
    kinds: list[Any] = [{}, {"storage": "disk", "folder": tmp_path / "memory"}]
    memories = [
        SequenceMemory(memory_size=50, batch_size=8, length=4, stride=2, seed=3, **settings, **k) for k in kinds
    ]
    for episode in range(5):
        for memory in memories:
            memory.append_chunk(with_state(make_rows(1, episode, 0, 10, end="terminated")))
        for _ in range(3):
            ram, disk = (memory.sample() for memory in memories)
            torch.testing.assert_close(ram, disk, rtol=0, atol=0)
    for memory in memories:
        memory.close()


@pytest.mark.parametrize("storage", ["ram", "disk"])
def test_a_restored_memory_continues_open_episodes(make_rows: Any, tmp_path: Path, storage: Any) -> None:
    def make(name: str) -> Any:
        kwargs: Any = {"storage": "disk", "folder": tmp_path / name} if storage == "disk" else {}
        return SequenceMemory(memory_size=50, length=4, stride=2, batch_size=8, seed=1, **kwargs)

    chunks = [make_rows(1, 0, 0, 4), make_rows(1, 0, 4, 4), make_rows(1, 0, 8, 3, end="terminated")]
    whole = make("whole")
    for chunk in chunks:
        whole.append_chunk(with_state(chunk))
    first = make("cut")
    for chunk in chunks[:2]:
        first.append_chunk(with_state(chunk))
    state = first.state_dict()
    rows = [] if storage == "disk" else [array[: len(first)].copy() for array in first.row_arrays]
    first.close()
    again = make("cut")
    again.load_state_dict(state, rows)
    again.append_chunk(with_state(chunks[2]))
    assert held(again) == held(whole)
    torch.testing.assert_close(again.sample(), whole.sample(), rtol=0, atol=0)
    again.close()
    whole.close()


def test_a_folder_of_other_rows_is_refused(make_rows: Any, tmp_path: Path) -> None:
    memory = SequenceMemory(memory_size=50, length=4, stride=2, storage="disk", folder=tmp_path)
    memory.append_chunk(make_rows(1, 0, 0, 9))
    state = memory.state_dict()
    memory.close()
    with pytest.raises(ConfigError, match="sequences of length 4 and stride 2, and this memory makes transitions"):
        ReplayMemory(memory_size=50, storage="disk", folder=tmp_path)
    with pytest.raises(ConfigError, match="and this memory makes sequences of length 4 and stride 4"):
        SequenceMemory(memory_size=50, length=4, stride=4, storage="disk", folder=tmp_path)
    with pytest.raises(ValueError, match="it was saved with sequences of length 4 and stride 2"):
        ReplayMemory(memory_size=50).load_state_dict(state)
    with pytest.raises(ValueError, match="it was saved with transitions"):
        SequenceMemory(memory_size=50, length=4).load_state_dict(ReplayMemory(memory_size=50).state_dict())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"length": 4, "stride": 5}, "memory.kwargs.stride: found 5, allowed: 1 to memory.kwargs.length = 4"),
        ({"length": 0}, "memory.kwargs.length must be a whole number"),
        ({"stride": 1.5}, "memory.kwargs.stride must be a whole number"),
        ({"n_step": 3}, "memory.n_step: found 3, allowed for sequences: 1"),
        ({"crc_debug": True}, "worker.crc_debug compares single transitions"),
    ],
)
def test_impossible_settings_are_refused(settings: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        SequenceMemory(memory_size=10, **settings)


def test_samples_without_a_state_make_sequences_without(make_rows: Any) -> None:
    memory = SequenceMemory(memory_size=10, batch_size=2, length=4, stride=4)
    memory.append_chunk(make_rows(1, 0, 0, 9))
    assert set(memory.sample()[6]) == {"ticks", "first_tick"}


def policy_of(size: int) -> RecurrentActor:
    return QValueRNNActor(OBSERVATIONS, gym.spaces.Discrete(2), hidden_sizes=(4,), cell_size=size, state_interval=2)


class Agent:
    """Has a recurrent policy whose state has two units."""

    def train(self, batch: Any) -> dict[str, float]:
        raise NotImplementedError

    def get_actor(self) -> RecurrentActor:
        return policy_of(2)


HOSTILE: dict[str, Callable[[Any], Any]] = {
    "another shape": lambda h: {"state.h": h[:, :1]},
    "no shape": lambda h: {"state.h": h[:, 0]},
    "another dtype": lambda h: {"state.h": h.astype(np.int64)},
    "huge": lambda h: {"state.h": np.zeros((len(h), 1 << 20), np.float32)},
    "a dict": lambda h: {"state.h": {"a": h}},
    "a tuple": lambda h: {"state.h": (h, h)},
    "texts": lambda h: {"state.h": ["x"] * len(h)},
}


@pytest.mark.parametrize("storage", ["ram", "disk"])
@pytest.mark.parametrize("name", HOSTILE)
def test_a_state_unlike_the_policys_is_refused_whichever_comes_first(
    make_rows: Any, make_buffer: Any, tmp_path: Path, storage: Any, name: str
) -> None:
    where: Any = {"storage": "disk", "folder": tmp_path} if storage == "disk" else {}
    memory = SequenceMemory(memory_size=100, length=4, stride=2, **where)
    memory.expect_agent(Agent())
    for episode in range(2):
        chunk = with_state(make_rows(9, episode, 0, 8, end="terminated"))
        hostile = replace(chunk, extras=HOSTILE[name](chunk.extras["state.h"]))
        honest = with_state(make_rows(1, episode, 0, 8, end="terminated"))
        ((refused, reason),) = memory.append(make_buffer([hostile, honest]))
        assert refused is hostile
        assert "the extra state.h" in str(reason)
    assert {one[:2] for one in held(memory)} == {(1, 0), (1, 1)}
    assert memory.sample()[6]["state.h"].shape == (memory.batch_size, 2)
    memory.close()


def test_states_that_are_missing_or_have_other_names_are_zeros(
    make_rows: Any, make_buffer: Any, caplog: pytest.LogCaptureFixture
) -> None:
    memory = SequenceMemory(memory_size=1000, length=4, stride=2, seed=0)
    memory.expect_agent(Agent())
    rows = make_rows(9, 0, 0, 8, end="terminated")
    for number in range(300):
        other: Any = {f"state.{number}\n": np.ones((8, 1000), np.float32)} if number else {}
        assert not memory.append(make_buffer([replace(rows, extras=other)]))
    assert not memory.append(make_buffer([with_state(make_rows(1, 0, 0, 8, end="terminated"))]))
    found = [memory.get_transition(item) for item in range(len(memory))]
    assert all(set(row[6]) == {"ticks", "first_tick", "state.h"} for row in found)
    assert {int(row[0][0]): row[6]["state.h"].tolist() for row in found} == {9: [0, 0], 1: [4, 0]}
    assert len(caplog.records) == 100
    assert all("\n" not in message and "unknown to the policy" in message for message in caplog.messages)


def test_a_stream_that_changes_its_state_loses_its_own_ticks_only(make_rows: Any, make_buffer: Any) -> None:
    memory = SequenceMemory(memory_size=100, length=4, stride=2)
    memory.expect_agent(Agent())
    honest, other = [with_state(make_rows(1, 0, first, 3)) for first in (0, 3)], make_rows(9, 0, 0, 3)
    memory.append(make_buffer([honest[0], with_state(other)]))
    hostile = replace(make_rows(9, 0, 3, 3), extras={"state.h": np.zeros((3, 3), np.float32)})
    assert len(memory.append(make_buffer([hostile]))) == 1
    assert not memory.append(make_buffer([honest[1], with_state(make_rows(9, 0, 6, 3, end="truncated"))]))
    assert held(memory) == [(1, 0, 0, 4, False, False), (9, 0, 6, 2, False, True)]


def test_a_memory_of_two_expects_the_states_in_both(make_rows: Any, make_buffer: Any) -> None:
    make = partial(SequenceMemory, memory_size=100, length=4, stride=2)
    memory = MixedMemory(make, make, batch_size=4)
    memory.expect_agent(Agent())
    memory.for_sessions.append(make_buffer([make_rows(2, 0, 0, 9, end="truncated")]))
    wrong = replace(make_rows(9, 0, 0, 9), extras={"state.h": np.zeros((9, 3), np.float32)})
    assert len(memory.append(make_buffer([wrong, with_state(make_rows(1, 0, 0, 9))]))) == 1
    (batch,) = memory
    assert batch[6]["state.h"].shape == (4, 2)
    with pytest.raises(ConfigError, match="found 1, allowed: multiples"):
        MixedMemory(make, partial(make, stride=1), batch_size=4).expect_agent(Agent())
