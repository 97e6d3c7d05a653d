from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tmrl_core.errors import SampleRefusedError
from tmrl_core.training import ReplayMemory
from tmrl_core.training.memories.frame_stack_memory import FrameStackMemory

K, SIDE = 4, 6


def play(make_rows: Any, seed: int, steps: int, streams: int = 3, shortest: int = 5) -> list[Any]:
    """Chunks of several streams in turn, whose observations are stacks as Gymnasium makes them."""
    generator = np.random.default_rng(seed)
    waiting = []
    for stream in range(1, streams + 1):
        chunks, episode, made = [], 0, 0
        while made < steps:
            length = int(generator.integers(shortest, shortest + 20))
            frames = generator.integers(0, 256, (length, SIDE, SIDE)).astype(np.uint8)
            padded = np.concatenate([np.repeat(frames[:1], K - 1, axis=0), frames])
            stacks = np.stack([padded[i : i + K] for i in range(length)])
            at = 0
            while at < length:
                rows = min(int(generator.integers(1, 8)), length - at)
                end = ("terminated" if generator.random() < 0.5 else "truncated") if at + rows == length else None
                part = {"image": stacks[at : at + rows], "speed": np.arange(at, at + rows, dtype=np.float32)[:, None]}
                if generator.random() > 0.05:  # else: a message is missing
                    chunks.append(make_rows(stream, episode, at, rows, end=end, observation=lambda _, part=part: part))
                at += rows
            made, episode = made + length, episode + 1
        waiting.append(chunks)
    turns = []
    while any(waiting):
        one = waiting[int(generator.integers(len(waiting)))]
        if one:
            turns.append(one.pop(0))
    return turns


def same(left: Any, right: Any) -> bool:
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    if isinstance(left, tuple):
        return len(left) == len(right) and all(map(same, left, right))
    return bool(np.array_equal(np.asarray(left), np.asarray(right)))


def seen(transition: Any) -> tuple[bytes, bytes, float]:
    before, _, rew, after, *_ = transition
    return before["image"].tobytes(), after["image"].tobytes(), float(rew)


@pytest.fixture(params=["ram", "disk"])
def make(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes a memory in RAM, or on disk with a new file every few records."""
    monkeypatch.setattr("tmrl_core.training.memories.disk_rows.MAX_SEGMENT_BYTES", 4000)
    made: list[FrameStackMemory] = []

    def one(**kwargs: Any) -> FrameStackMemory:
        on_disk: Any = {"storage": "disk", "folder": tmp_path / str(len(made))} if request.param == "disk" else {}
        made.append(FrameStackMemory(**{"frame_stack": K, **kwargs}, **on_disk))
        return made[-1]

    yield one
    for memory in made:
        memory.close()


@pytest.mark.parametrize(
    ("capacity", "n_step"),
    [
        (10_000, 3),
        (100, 3),
        (100, 1),
        *(pytest.param(*case, marks=pytest.mark.full) for case in ((250, 3), (250, 1), (10_000, 1))),
    ],
)
def test_its_transitions_are_those_of_a_memory_that_stores_stacks_whole(
    make: Any, make_rows: Any, capacity: int, n_step: int
) -> None:
    plain = ReplayMemory(memory_size=capacity, n_step=n_step)
    shared = make(memory_size=capacity, n_step=n_step)
    for number, chunk in enumerate(play(make_rows, seed=capacity, steps=180)):
        assert shared.append_chunk(chunk) == plain.append_chunk(chunk)
        assert 0.4 * len(plain) <= len(shared) <= len(plain)
        if number % 20 == 0 and len(shared):
            for item in range(0, len(shared), 7):
                assert same(shared.get_transition(item), plain.get_transition(item + len(plain) - len(shared)))
    assert shared.written == plain.written


def with_originals(chunk: Any, before: dict[bytes, Any]) -> Any:
    """The chunk with the worker's own transitions in its infos, as crc_debug sends them."""
    infos = {}
    for row in range(chunk.rows):
        seen_now = {name: column[row] for name, column in chunk.observation.items()}
        end = chunk.reward[row], chunk.terminated[row], chunk.truncated[row]
        if chunk.action_present[row]:
            infos[row] = {"crc_sample": (before.get(chunk.stream), chunk.action[row], seen_now, *end)}
        before[chunk.stream] = seen_now
    return replace(chunk, info=infos)


@pytest.mark.parametrize("capacity", [10_000, 100, 5])
def test_crc_debug_compares_each_transition_with_its_own_original(make: Any, make_rows: Any, capacity: int) -> None:
    before: dict[bytes, Any] = {}
    chunks = [with_originals(chunk, before) for chunk in play(make_rows, seed=capacity, steps=100)]
    memory = make(memory_size=capacity, crc_debug=True)
    compared = sum(memory.append_chunk(chunk) for chunk in chunks)
    assert compared > 100
    # A row of a later part of a message is compared too.
    wrong = next(chunk for chunk in chunks if chunk.rows == 7)
    *original, reward, terminated, truncated = wrong.info[6]["crc_sample"]
    wrong.info[6] = {"crc_sample": (*original, reward + 1, terminated, truncated)}
    with pytest.raises(ValueError, match="crc_debug: rew"):
        make(memory_size=capacity, crc_debug=True).append_chunk(wrong)


def test_batches_are_whole_stacks(make: Any, make_rows: Any) -> None:
    memory = make(memory_size=150, batch_size=32, seed=0, priority={})
    for chunk in play(make_rows, seed=1, steps=120):
        memory.append_chunk(chunk)
        if len(memory):
            batch = memory.sample()
            assert batch[0]["image"].shape == (32, K, SIDE, SIDE)
            assert batch[3]["image"].dtype == torch.uint8
            for row, index in enumerate(batch[6]["indices"].tolist()):
                expected = memory.get_transition(index - (memory.written - len(memory)))
                assert same(
                    (batch[0]["image"][row], batch[3]["image"][row]), (expected[0]["image"], expected[3]["image"])
                )


def test_a_stream_that_was_silent_for_long_is_joined_exactly_or_not_at_all(make: Any, make_rows: Any) -> None:
    generator = np.random.default_rng(0)
    frames = generator.integers(0, 256, (8, SIDE, SIDE)).astype(np.uint8)
    stacks = np.stack([frames[i : i + K] for i in range(5)])
    for busy in (50, 150, 400):
        memory = make(memory_size=200)
        memory.append_chunk(make_rows(9, 0, 0, 2, observation=lambda _: {"image": stacks[:2]}))
        for number in range(busy):
            other = generator.integers(0, 256, (1, K, SIDE, SIDE)).astype(np.uint8)
            memory.append_chunk(make_rows(1, 0, number, 1, observation=lambda _, other=other: {"image": other}))
        joined = memory.append_chunk(make_rows(9, 0, 2, 3, observation=lambda _: {"image": stacks[2:]}))
        assert joined == (3 if busy < 60 else 2)
        (
            before,
            *_,
        ) = memory.get_transition(len(memory) - 1)
        assert same(before["image"], stacks[3])
        if joined == 3:
            assert same(memory.get_transition(len(memory) - 3)[0]["image"], stacks[1])


def test_a_transition_takes_about_one_frame(make_rows: Any) -> None:
    memory = FrameStackMemory(memory_size=20_000, frame_stack=K)
    stack = np.zeros((2, K, 64, 64), np.uint8)
    memory.append_chunk(make_rows(1, 0, 0, 2, observation=lambda _: stack))
    rows = sum(ring.nbytes for ring in memory.row_arrays)
    assert (memory.frame_bytes + rows) / 20_000 <= 1.1 * 64 * 64


def test_a_restored_memory_continues_identically(make_rows: Any) -> None:
    chunks = play(make_rows, seed=2, steps=300)
    whole = FrameStackMemory(memory_size=150, batch_size=8, frame_stack=K, seed=4)
    for chunk in chunks[:80]:
        whole.append_chunk(chunk)
    whole.sample()
    state = whole.state_dict()
    start, stop = whole.written - len(whole), whole.written
    rows = [ring[np.arange(start, stop) % 150].copy() for ring in whole.row_arrays]
    other = FrameStackMemory(memory_size=150, batch_size=8, frame_stack=K, seed=5)
    other.load_state_dict(state, rows)
    for chunk in chunks[80:]:
        assert whole.append_chunk(chunk) == other.append_chunk(chunk)
        left, right = whole.sample(), other.sample()
        assert same(left[0], right[0])
        assert same(left[3], right[3])
    with pytest.raises(ValueError, match=r"memory\.frame_stack: 4"):
        FrameStackMemory(memory_size=150, frame_stack=2).load_state_dict(state, rows)


def test_transitions_of_overwritten_frames_are_removed(make: Any, make_rows: Any) -> None:
    memory = make(memory_size=64)
    generator = np.random.default_rng(0)

    def resets(number: int, rows: int) -> Any:
        stacks = generator.integers(0, 256, (rows, K, 3, 3)).astype(np.uint8)
        return make_rows(1 + number % 50, number, 0, rows, observation=lambda _: stacks)

    for number in range(40):
        memory.append_chunk(resets(number, 2))
    expected = memory.get_transition(len(memory) - 1)
    for number in range(40, 60):
        assert memory.append_chunk(resets(number, 1)) == 0
        if len(memory):
            assert same(memory.get_transition(len(memory) - 1)[0], expected[0])
    assert len(memory) < 20


def test_observations_without_stacks_are_refused(make: Any, make_rows: Any) -> None:
    memory = make(memory_size=100)
    with pytest.raises(SampleRefusedError, match=r"no part .* is a stack of memory\.frame_stack = 4"):
        memory.append_chunk(make_rows(1, 0, 0, 3))
    memory.append_chunk(make_rows(1, 0, 0, 3, observation=lambda rows: np.zeros((rows, K, 2), np.uint8)))
    with pytest.raises(SampleRefusedError, match=r"uint8\[4, 3\].*uint8\[4, 2\]"):
        memory.append_chunk(make_rows(1, 0, 3, 3, observation=lambda rows: np.zeros((rows, K, 3), np.uint8)))


def test_refused_samples_do_not_overwrite_frames(make: Any, make_rows: Any) -> None:
    memory, plain = make(memory_size=30), ReplayMemory(memory_size=30)
    chunks = play(make_rows, seed=3, steps=60, streams=1)
    for number, chunk in enumerate(chunks):
        memory.append_chunk(chunk)
        plain.append_chunk(chunk)
        for wrong in (
            replace(chunk, reward=np.zeros((chunk.rows, 2)), stream=bytes([7]) * 16),
            replace(
                chunk, action=np.zeros((chunk.rows, 3), np.float32), action_present=np.ones(chunk.rows, bool),
                stream=bytes([8]) * 16,
            ),
        ):  # fmt: skip
            if number > 3:
                with pytest.raises(SampleRefusedError):
                    memory.append_chunk(wrong)
        memory.commit()
    assert len(memory) == len(plain)
    for item in range(len(plain)):
        assert same(memory.get_transition(item), plain.get_transition(item))


def test_n_step_transitions_of_silent_streams_are_exact(make: Any, make_rows: Any) -> None:
    """Their last rows are stored again at once, all of them."""
    plain = ReplayMemory(memory_size=1000, n_step=12)
    memory = make(memory_size=40, n_step=12)
    held = set()
    for number, chunk in enumerate(play(make_rows, seed=5, steps=60, streams=6)):
        memory.append_chunk(chunk)
        before = len(plain)
        plain.append_chunk(chunk)
        held |= {seen(plain.get_transition(item)) for item in range(before, len(plain))}
        if number % 5 == 0:
            assert {seen(memory.get_transition(item)) for item in range(len(memory))} <= held
    assert len(memory) > 20


def test_a_restored_memory_does_not_sample_transitions_without_frames(make_rows: Any) -> None:
    memory = FrameStackMemory(memory_size=4, frame_stack=K, batch_size=2, seed=0)
    memory.append_chunk(make_rows(1, 0, 0, 2, observation=lambda rows: np.zeros((rows, K, 2), np.uint8)))
    memory.sample()
    generator = np.random.default_rng(0)
    for number in range(40):  # first observations only: their frames take the place of all others
        stacks = generator.integers(0, 256, (1, K, 2)).astype(np.uint8)
        memory.append_chunk(make_rows(2, number, 0, 1, observation=lambda _, stacks=stacks: stacks))
    assert len(memory) == 0
    other = FrameStackMemory(memory_size=4, frame_stack=K, batch_size=2, seed=1)
    other.load_state_dict(memory.state_dict(), [ring[:0] for ring in memory.row_arrays])
    for one in (memory, other):
        one.append_chunk(make_rows(3, 0, 0, 3, observation=lambda rows: np.ones((rows, K, 2), np.uint8)))
    assert same(memory.sample(), other.sample())


def newest_of(chunks: list[Any]) -> list[Any]:
    """The chunks as `NewestFrame` sends them: the first row of an episode whole, then newest frames."""
    found = []
    for chunk in chunks:
        image = chunk.observation["image"]
        if chunk.step[0] == 0:
            found.append(chunk.slice(0, 1))
            chunk, image = chunk.slice(1, chunk.rows), image[1:]
        if chunk.rows:
            found.append(replace(chunk, observation={**chunk.observation, "image": image[:, None, -1:]}))
    return found


@pytest.mark.parametrize("storage", ["ram", "disk"])
@pytest.mark.parametrize("n_step", [1, 3])
@pytest.mark.parametrize("capacity", [60, 5_000])
def test_newest_frames_give_the_transitions_of_whole_stacks(
    make_rows: Any, tmp_path: Path, storage: str, n_step: int, capacity: int
) -> None:
    def make(name: str, **kwargs: Any) -> FrameStackMemory:
        return FrameStackMemory(
            memory_size=capacity, frame_stack=K, n_step=n_step, storage=storage, folder=tmp_path / name, **kwargs
        )

    whole, restored = make("whole"), make("restored", newest_only=True)
    chunks = play(make_rows, 4, 80)
    known: dict[bytes, tuple[int, int]] = {}
    complete = []
    for chunk in chunks:
        # What follows a lost message is unknown until an episode begins; messages here are shorter than twice a stack.
        before = int(chunk.episode[0]), int(chunk.step[0]) - 1
        if chunk.step[0] == 0 or known.get(chunk.stream) == before:
            complete.append(chunk)
            known[chunk.stream] = int(chunk.episode[-1]), int(chunk.step[-1])
    for chunk in complete:
        whole.append_chunk(chunk)
    for chunk in newest_of(complete):
        restored.append_chunk(chunk)
    assert len(restored) == len(whole) > 40
    for item in range(len(whole)):
        assert same(restored.get_transition(item)[:6], whole.get_transition(item)[:6])
    for memory in (whole, restored):
        memory.close()


def test_frames_after_lost_samples_are_left_out_until_a_stack_is_complete(make_rows: Any) -> None:
    frames = np.arange(20, dtype=np.uint8)[:, None, None] * np.ones((1, SIDE, SIDE), np.uint8)
    stacks = np.stack([frames[max(0, at - K + 1) : at + 1][[*range(-min(at + 1, K), 0)]] for at in range(3, 20)])
    memory = FrameStackMemory(memory_size=100, frame_stack=K, newest_only=True)

    def append(first: int, rows: int) -> int:
        part = {"image": stacks[first : first + rows, None, -1:]}
        return memory.append_chunk(make_rows(1, 0, first, rows, observation=lambda _: part))

    memory.append_chunk(make_rows(1, 0, 0, 1, observation=lambda _: {"image": stacks[:1]}))
    assert append(1, 2) == 2
    assert append(4, K - 1) == 0
    assert append(7, K + 1) == 1
    assert same(memory.get_transition(2)[0], {"image": stacks[10]})
    assert same(memory.get_transition(2)[3], {"image": stacks[11]})


@pytest.mark.parametrize("shape", [(SIDE + 1, SIDE), (1, 1), (SIDE * SIDE,)])
def test_newest_frames_of_another_shape_are_refused(make_rows: Any, shape: tuple[int, ...]) -> None:
    """A compressor's output is not declared, so that a worker may send any shape."""
    memory = FrameStackMemory(memory_size=100, frame_stack=K, newest_only=True)
    stacks = np.zeros((1, K, SIDE, SIDE), np.uint8)
    memory.append_chunk(make_rows(1, 0, 0, 1, observation=lambda _: {"image": stacks}))
    for first in (1, 5):
        other = {"image": np.zeros((2, 1, 1, *shape), np.uint8)}
        with pytest.raises(SampleRefusedError, match=r"array 0 of the observation is a frame of the shape \["):
            memory.append_chunk(make_rows(1, 0, first, 2, observation=lambda _: other))  # noqa: B023
    newest = {"image": stacks[:, None, -1:]}
    assert memory.append_chunk(make_rows(1, 0, 1, 1, observation=lambda _: newest)) == 1
