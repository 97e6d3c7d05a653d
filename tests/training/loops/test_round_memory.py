from __future__ import annotations

import dataclasses
import functools
import math
import operator
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from tests.counted_segments import KINDS, MANY, one_row_segments
from tmrl_core.errors import SampleRefusedError
from tmrl_core.samples import Buffer, Chunk, EpisodeRecord, Segment
from tmrl_core.samples.columns import by_lane, leaves
from tmrl_core.samples.segments import LANE_BITS
from tmrl_core.training.batches import ENDS, PLACES
from tmrl_core.training.loops.lockstep_round import Round
from tmrl_core.training.loops.round_memory import RoundMemory

A, B = (bytes([number]) * 16 for number in (1, 2))

Rows = Callable[..., Chunk]


@pytest.fixture
def memory() -> RoundMemory:
    memory = RoundMemory("cpu", clock=lambda: 0.0)
    round_ = Round(1, (1, 2), amount=20, grace_s=5.0)
    round_.poll([(B, "b"), (A, "a")], 0.0, lambda stream, what: False)
    memory.begin(round_)
    return memory


def buffer(*chunks: Chunk, records: tuple[EpisodeRecord, ...] = ()) -> Buffer:
    made = Buffer(maxlen=None)
    made.extend(chunks, records)
    return made


def new(make_rows: Rows, *args: Any, **kwargs: Any) -> Chunk:
    return make_rows(*args, **{"version": (1, 2), **kwargs})


def test_transitions_do_not_depend_on_the_pieces_of_arrival(memory: RoundMemory, make_rows: Rows) -> None:
    memory.append(buffer(new(make_rows, 2, 0, 0, 4)))
    memory.append(buffer(make_rows(1, 0, 0, 3, version=(1, 1))))  # of the round before: only what it ends with counts
    memory.append(buffer(new(make_rows, 1, 0, 3, 2), new(make_rows, 1, 0, 5, 2, end="terminated")))
    memory.append(buffer(new(make_rows, 1, 1, 0, 2), new(make_rows, 2, 0, 4, 3)))
    prev_obs, action, reward, new_obs, terminated, truncated, extras = memory.batch()
    # (stream, episode, step): by name of the worker, then as they were made
    expected = [(1, 0, 3), (1, 0, 4), (1, 0, 5), (1, 0, 6), (1, 1, 1), *[(2, 0, step) for step in range(1, 7)]]
    assert new_obs.tolist() == [list(place) for place in expected]
    assert prev_obs.tolist() == [[stream, episode, step - 1] for stream, episode, step in expected]
    assert action.tolist() == [[step] for _, _, step in expected]
    assert reward.tolist() == [step for _, _, step in expected]
    assert reward.dtype == torch.float32
    assert terminated.tolist() == [0, 0, 0, 1, *[0] * 7]
    assert truncated.tolist() == [0] * 11
    assert extras[ENDS].tolist() == [0, 0, 0, 1, 1, 0, 0, 0, 0, 0, 1]
    number = {stream: int.from_bytes(bytes([stream]) * 8, "little") for stream in (1, 2)}
    assert extras[PLACES].tolist() == [[number[stream], episode, step] for stream, episode, step in expected]
    assert len(memory) == 11
    assert set(map(tuple, memory.versions().tolist())) == {(1, 2)}
    assert len(memory.versions()) == 11


def test_each_environment_of_a_worker_is_a_stream_of_its_own(memory: RoundMemory, make_rows: Rows) -> None:
    for lane in (0, 1, 2, 300):
        chunk = new(make_rows, 1, lane << LANE_BITS, 0, 2)
        memory.append(buffer(*by_lane(chunk, A)))
    assert memory.round is not None
    places = memory.batch()[6][PLACES]
    assert len(set(places[:, 0].tolist())) == 4


def test_a_gap_ends_a_run(memory: RoundMemory, make_rows: Rows) -> None:
    memory.append(buffer(new(make_rows, 1, 0, 0, 3), new(make_rows, 1, 0, 6, 3)))
    _, _, _, new_obs, _, _, extras = memory.batch()
    assert new_obs[:, 2].tolist() == [1, 2, 7, 8]
    assert extras[ENDS].tolist() == [0, 1, 0, 1]


def test_nested_observations_and_extras_come_as_they_are(memory: RoundMemory, make_rows: Rows) -> None:
    def nested(rows: int) -> Any:
        return {"b": np.arange(rows)[:, None].astype(np.float64), "a": (np.arange(rows, dtype=np.uint8),)}

    chunk = new(make_rows, 1, 0, 0, 4, observation=nested)
    chunk.extras = {"logp": np.arange(4, dtype=np.float32)}
    memory.append(buffer(chunk))
    prev_obs, _, _, new_obs, _, _, extras = memory.batch()
    assert list(new_obs) == ["b", "a"]
    assert new_obs["a"][0].dtype == torch.uint8
    assert prev_obs["b"].dtype == torch.float32
    assert prev_obs["b"].tolist() == [[0], [1], [2]]
    assert extras["logp"].tolist() == [1, 2, 3]


def test_episodes_of_the_round_are_those_that_its_counted_rows_end(memory: RoundMemory, make_rows: Rows) -> None:
    record = EpisodeRecord("", 7.0, 3, mode="train", end="truncated", version=(1, 2))
    memory.append(buffer(new(make_rows, 1, 0, 0, 4, end="truncated"), make_rows(1, 1, 0, 3, version=(1, 1))))
    memory.append(buffer(records=(record,)))  # of an episode whose rows count, or do not count: they are what counts
    memory.append(buffer(new(make_rows, 1, 1, 3, 2, end="terminated")))  # begun before the round
    memory.append(buffer(new(make_rows, 1, 2, 0, 3), new(make_rows, 1, 3, 0, 2)))  # given up, and open
    memory.append(buffer(new(make_rows, 2, 0, 0, 5, end="terminated"), new(make_rows, 2, 1, 0, 50, end="terminated")))
    memory.append(buffer(new(make_rows, 2, 2, 0, 2, end="terminated")))  # beyond the assignment
    assert memory.episodes == [(6.0, 3), (10.0, 4), (10.0, 4)]
    memory.begin(Round(2, (1, 3), amount=20, grace_s=5.0))
    assert memory.episodes == []


def test_an_episode_whose_beginning_is_lost_counts_without_a_return(memory: RoundMemory, make_rows: Rows) -> None:
    memory.append(buffer(new(make_rows, 1, 0, 2, 3, end="terminated"), new(make_rows, 1, 1, 0, 2)))
    memory.append(buffer(new(make_rows, 1, 1, 4, 3, end="truncated")))
    assert [length for _, length in memory.episodes] == [4, 6]
    assert all(math.isnan(episode_return) for episode_return, _ in memory.episodes)


@pytest.mark.parametrize("in_episodes", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_a_round_counts_its_episodes_exactly_for_any_pieces(in_episodes: bool, seed: int) -> None:
    """1,200 short episodes with rewards that have no exact sum, in messages of any sizes."""
    rng = random.Random(seed)
    lengths = [rng.randint(1, 4) for _ in range(1_200)]
    rewards = [[rng.random() for _ in range(length)] for length in lengths]
    played = Buffer(maxlen=None)
    for number, episode in enumerate(rewards):
        played.start_episode(number, (1, 2))
        for step, reward in enumerate([0.0, *episode]):
            action = np.zeros(1, np.float32) if step else None
            played.append_sample((action, np.zeros(1, np.float32), reward, step == len(episode), False, {}))
    (whole,), _ = played.take()
    whole.stream = A
    memory = RoundMemory("cpu", clock=lambda: 0.0)
    amount = 1_200 if in_episodes else sum(lengths)
    memory.begin(Round(1, (1, 2), amount=amount, episodes=in_episodes, grace_s=5.0))
    assert memory.round is not None
    memory.round.poll([(A, "a")], 0.0, lambda stream, what: False)
    start = 0
    while start < whole.rows:
        stop = min(whole.rows, start + rng.choice([1, 7, 900]))
        memory.append(buffer(whole.slice(start, stop)))
        start = stop
    assert memory.round.complete
    sums = [functools.reduce(operator.add, episode, 0.0) for episode in rewards]
    assert memory.episodes == list(zip(sums, lengths, strict=True))


def test_samples_that_differ_from_earlier_ones_are_refused_alone(memory: RoundMemory, make_rows: Rows) -> None:
    assert memory.append(buffer(new(make_rows, 1, 0, 0, 3))) == []
    wrong = [
        new(make_rows, 2, 0, 0, 3, observation=lambda rows: np.zeros((rows, 5), np.float32)),
        new(make_rows, 1, 0, 3, 3, observation=lambda rows: np.zeros((rows, 3, 1), np.float32)),
        new(make_rows, 2, 0, 0, 3, observation=lambda rows: ["x"] * rows),
        dataclasses.replace(new(make_rows, 2, 0, 0, 3), action=np.zeros((3, 2), np.float32)),
        dataclasses.replace(new(make_rows, 2, 0, 0, 3), extras={"logp": np.zeros(3, np.float32)}),
        dataclasses.replace(new(make_rows, 2, 0, 0, 3), reward=np.zeros((3, 2))),
    ]
    good = new(make_rows, 2, 0, 0, 3)
    refused = memory.append(buffer(*wrong, good))
    assert [id(chunk) for chunk, _ in refused] == [id(chunk) for chunk in wrong]
    reasons = [str(reason) for _, reason in refused]
    assert "observation of a sample is (value: float32[5]), and others' is (value: float32[3])" in reasons[0]
    assert "see that they use the same environment" in reasons[0]
    assert "observation holds values that are no numeric array" in reasons[2]
    assert "action of a sample is" in reasons[3]
    assert "extras of a sample is (/logp: float32[])" in reasons[4]
    assert "reward of a sample is float64[2]" in reasons[5]
    assert memory.batch()[0].shape == (4, 3)
    assert memory.round is not None
    assert memory.round.collected == 4


def test_the_byte_order_of_the_first_samples_does_not_matter(memory: RoundMemory, make_rows: Rows) -> None:
    """A worker that sends the other one would cause the refusal of all others."""
    first = new(make_rows, 1, 0, 0, 4)
    for name in ("observation", "action", "reward"):
        column = getattr(first, name)
        setattr(first, name, column.astype(column.dtype.newbyteorder(">")))
    first.extras = {"logp": np.arange(4, dtype=">f4")}
    other = new(make_rows, 2, 0, 0, 4)
    other.extras = {"logp": np.arange(4, dtype=np.float32)}
    assert memory.append(buffer(first, other)) == []
    _, action, reward, new_obs, _, _, extras = memory.batch()
    assert new_obs.tolist() == [[stream, 0, step] for stream in (1, 2) for step in (1, 2, 3)]
    assert action[:, 0].tolist() == reward.tolist() == extras["logp"].tolist() == [1, 2, 3, 1, 2, 3]


def test_first_samples_that_cannot_be_trained_on_end_the_run(memory: RoundMemory, make_rows: Rows) -> None:
    with pytest.raises(SampleRefusedError, match="observation holds values that are no numeric array"):
        memory.append(buffer(new(make_rows, 1, 0, 0, 3, observation=lambda rows: ["x"] * rows)))
    with pytest.raises(ValueError, match="no transition"):
        memory.batch()


def test_a_reset_does_not_define_the_format_of_actions(memory: RoundMemory, make_rows: Rows) -> None:
    alone = new(make_rows, 1, 0, 0, 1)
    assert not alone.action_present.any()
    strange = dataclasses.replace(alone, action=np.zeros((1, 9), np.int8))
    assert memory.append(buffer(strange, new(make_rows, 1, 0, 1, 2), new(make_rows, 2, 0, 0, 3))) == []
    assert memory.batch()[1].shape == (4, 1)


@pytest.mark.parametrize("reward", [np.zeros((3, 2)), np.zeros(3, complex)])
def test_a_reward_is_one_number(memory: RoundMemory, make_rows: Rows, reward: Any) -> None:
    with pytest.raises(SampleRefusedError, match="the reward of a sample is"):
        memory.append(buffer(dataclasses.replace(new(make_rows, 1, 0, 0, 3), reward=reward)))


@pytest.mark.parametrize(
    ("kind", "episodes"),
    [
        *((kind, False) for kind in KINDS),
        ("alternating", True),
        *(pytest.param(kind, True, marks=pytest.mark.full) for kind in KINDS if kind != "alternating"),
    ],
)
def test_the_work_for_segments_of_one_row_grows_with_their_number(kind: str, episodes: bool, make_rows: Rows) -> None:
    memory = RoundMemory("cpu", clock=lambda: 0.0)
    round_ = Round(1, (1, 2), amount=2 if episodes else 2 * MANY, episodes=episodes, grace_s=5.0)
    memory.begin(round_)
    round_.poll([(B, "b"), (A, "a")], 0.0, lambda stream, what: False)
    chunk = new(make_rows, 1, 0, 0, MANY)
    chunk.segments = one_row_segments(kind, MANY, (1, 2))
    assert memory.append(buffer(chunk)) == []
    steps = {"following": MANY - 1, "identical": 0, "alternating": MANY // 2 - 1}[kind]
    assert (len(memory), round_.collected) == (steps, 0 if episodes else steps)
    assert len(round_.segments) <= 1
    assert round_.late == (MANY // 2 if kind == "alternating" else 0)
    if steps:
        rewards = memory.batch()[2].tolist()
        assert rewards == (list(range(1, MANY)) if kind == "following" else list(range(2, MANY, 2)))


def kept_bytes(memory: RoundMemory) -> int:
    """Return the bytes that a round keeps, where views keep the arrays that they are of."""
    assert memory.round is not None
    owners: dict[int, int] = {}
    for segment in memory.round.segments:
        for column in [column for tree in segment.chunk.fields for column in leaves(tree)]:
            owner: Any = column
            while owner.base is not None:
                owner = owner.base
            owners[id(owner)] = owner.nbytes
        owners[id(segment)] = 8 * len(segment.follows)
    return sum(owners.values())


def test_one_step_in_a_long_message_keeps_one_step(memory: RoundMemory, make_rows: Rows) -> None:
    for message in range(3):
        chunk = new(make_rows, 1, 0, 10_000 * message, 10_000)
        chunk.action_present = np.arange(10_000) == (9_999, 0, 5_000)[message]
        chunk.action = np.zeros((10_000, 1), np.float32)
        memory.append(buffer(chunk))
    assert memory.batch()[2].tolist() == [9_999, 10_000, 25_000]
    assert memory.batch()[0].tolist() == [[1, 0, 9_998], [1, 0, 9_999], [1, 0, 24_999]]
    assert len(memory) == 3
    assert kept_bytes(memory) < 1_000


def test_the_infos_of_samples_are_not_kept(memory: RoundMemory, make_rows: Rows) -> None:
    chunk = new(make_rows, 1, 0, 0, 4)
    chunk.info = {1: {"text": "x" * 1_000}}
    memory.append(buffer(chunk))
    assert memory.round is not None
    assert [segment.chunk.info for segment in memory.round.segments] == [{}]
    assert len(memory) == 3


def test_a_small_part_of_a_message_does_not_keep_the_rest_of_it(memory: RoundMemory) -> None:
    message = bytearray(100_000)

    def column(dtype: str, shape: tuple[int, ...]) -> Any:
        return np.frombuffer(memoryview(message)[: int(np.prod(shape)) * np.dtype(dtype).itemsize], dtype).reshape(
            shape
        )

    chunk = Chunk(
        rows=3,
        action=np.zeros((3, 1), np.float32),
        action_present=np.ones(3, np.bool_),
        observation=column("f4", (3, 2)),
        reward=column("f4", (3,)),
        terminated=np.zeros(3, np.bool_),
        truncated=np.zeros(3, np.bool_),
        segments=(Segment(3, 0, 0, 1, 2),),
        stream=A,
    )
    memory.append(buffer(chunk))
    assert len(memory) == 2
    assert memory.round is not None
    (segment,) = memory.round.segments
    observation: Any = segment.chunk.observation
    assert not np.shares_memory(observation, np.frombuffer(message, np.uint8))


def test_the_rows_of_a_normal_message_are_not_copied(memory: RoundMemory, make_rows: Rows) -> None:
    chunk = new(make_rows, 1, 0, 0, 10)
    memory.append(buffer(chunk))
    assert memory.round is not None
    assert np.shares_memory(memory.round.segments[0].chunk.reward, chunk.reward)


def episode_memory(amount: int, limit: int) -> tuple[RoundMemory, Round]:
    memory = RoundMemory("cpu", clock=lambda: 0.0)
    round_ = Round(1, (1, 2), amount=amount, episodes=True, grace_s=5.0, max_episode_bytes=limit)
    memory.begin(round_)
    round_.poll([(B, "b"), (A, "a")], 0.0, lambda stream, what: False)
    return memory, round_


def test_an_endless_episode_keeps_a_limited_number_of_bytes(make_rows: Rows) -> None:
    limit = 100_000
    memory, round_ = episode_memory(4, limit)
    most = 0
    for message in range(30):
        memory.append(buffer(new(make_rows, 1, 0, 1_000 * message, 1_000)))
        most = max(most, kept_bytes(memory))
    assert most < 2 * limit
    assert (len(memory), round_.surplus, round_.too_long) == (0, 30_000, {A: "a"})
    memory.append(buffer(new(make_rows, 1, 0, 30_000, 10, end="terminated")))
    assert (round_.collected, len(memory)) == (0, 0)
    memory.append(buffer(new(make_rows, 1, 1, 0, 10, end="terminated"), new(make_rows, 1, 2, 0, 10)))
    assert (round_.collected, len(memory)) == (1, 18)
    memory.append(buffer(new(make_rows, 1, 2, 10, 5_000)))  # too many rows, of this episode only
    assert (round_.collected, len(memory)) == (1, 9)
    memory.append(buffer(new(make_rows, 1, 3, 0, 10, end="truncated")))
    assert (round_.collected, len(memory)) == (2, 18)


def test_an_end_and_the_next_episode_in_one_message_are_told_apart(make_rows: Rows) -> None:
    memory, round_ = episode_memory(4, 1_000)
    memory.append(buffer(new(make_rows, 1, 0, 0, 10)))
    chunk = new(make_rows, 1, 0, 10, 60)
    chunk.terminated = np.arange(60) == 9
    chunk.action_present = np.arange(60) != 10
    chunk.segments = (Segment(10, 0, 10, 1, 2), Segment(50, 1, 0, 1, 2))
    memory.append(buffer(chunk))
    assert (round_.collected, len(memory)) == (1, 19)
    assert memory.batch()[2].tolist() == list(range(1, 20))
    assert round_.surplus == 50


def test_the_rows_of_an_open_episode_are_dropped_with_its_part(make_rows: Rows) -> None:
    memory, round_ = episode_memory(4, 1 << 20)
    memory.append(buffer(new(make_rows, 1, 0, 0, 10, end="terminated"), new(make_rows, 1, 1, 0, 10)))
    assert (round_.collected, len(memory)) == (1, 18)
    changed = dict(round_.poll([(B, "b"), (A, "a")], 25.0, lambda stream, what: False))
    assert changed == {}  # nobody has finished
    memory.append(buffer(*[new(make_rows, 2, episode, 0, 3, end="terminated") for episode in range(2)]))
    assert dict(round_.poll([(B, "b"), (A, "a")], 26.0, lambda stream, what: False)).keys() == {A, B}
    assert (round_.collected, len(memory), round_.surplus) == (3, 9 + 4, 10)


def test_workers_with_and_without_a_person_fill_one_round(memory: RoundMemory, make_rows: Rows) -> None:
    flags: dict[str, Any] = {
        "is_intervention": np.array([False, True, False]),
        "policy_action": np.zeros((3, 1), np.float32),
    }
    beside = dataclasses.replace(new(make_rows, 1, 0, 0, 3), extras=flags)
    memory.append(buffer(beside, new(make_rows, 2, 0, 0, 3)))
    extras = memory.batch()[6]
    assert extras["is_intervention"].tolist() == [1, 0, 0, 0]
    assert extras.keys() == {"is_intervention", ENDS, PLACES}
