"""Pictures that are no stacks are stored once too, and nothing of a transition changes by that."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.training.memories.test_frame_stack_memory import same
from tmrl_core.config import from_values
from tmrl_core.config.algorithms import stacks_problem
from tmrl_core.errors import ConfigError, SampleRefusedError
from tmrl_core.training import ReplayMemory
from tmrl_core.training.memories.frame_stack_memory import FrameStackMemory

SHAPE = (26, 27, 3)
"""2,106 bytes."""


def play(make_rows: Any, seed: int, steps: int, streams: int = 3, still: int = 1) -> list[Any]:
    """Chunks of several streams in turn, with pictures of two cameras, of which one hardly changes, and a number."""
    generator = np.random.default_rng(seed)
    waiting: list[list[Any]] = []
    for stream in range(1, streams + 1):
        chunks: list[Any] = []
        episode = made = 0
        while made < steps:
            length = int(generator.integers(5, 25))
            left = generator.integers(0, 256, (length, *SHAPE)).astype(np.uint8)
            right = np.repeat(left[::still], still, axis=0)[:length]
            at = 0
            while at < length:
                rows = min(int(generator.integers(1, 8)), length - at)
                end = ("terminated" if generator.random() < 0.5 else "truncated") if at + rows == length else None
                part = {
                    "left": left[at : at + rows],
                    "right": right[at : at + rows],
                    "speed": np.arange(at, at + rows, dtype=np.float32)[:, None],
                }
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


@pytest.fixture(params=["ram", "disk"])
def where(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr("tmrl_core.training.memories.disk_rows.MAX_SEGMENT_BYTES", 200_000)
    return {} if request.param == "ram" else {"storage": "disk", "folder": tmp_path / "memory"}


@pytest.mark.parametrize(("capacity", "n_step"), [(5_000, 1), (100, 1), (100, 3)])
def test_transitions_are_those_of_a_memory_that_stores_pictures_twice(
    where: Any, make_rows: Any, capacity: int, n_step: int
) -> None:
    plain = ReplayMemory(memory_size=capacity, n_step=n_step)
    once = FrameStackMemory(memory_size=capacity, n_step=n_step, frame_stack=1, **where)
    try:
        for number, chunk in enumerate(play(make_rows, capacity, 100)):
            assert once.append_chunk(chunk) == plain.append_chunk(chunk)
            assert 0.7 * len(plain) <= len(once) <= len(plain)
            if number % 10 == 0:
                for item in range(0, len(once), 5):
                    assert same(once.get_transition(item), plain.get_transition(item + len(plain) - len(once)))
    finally:
        once.close()


def test_the_same_seed_gives_the_same_batches(where: Any, make_rows: Any) -> None:
    plain = ReplayMemory(memory_size=5_000, batch_size=16, seed=3)
    once = FrameStackMemory(memory_size=5_000, batch_size=16, seed=3, frame_stack=1, **where)
    try:
        for chunk in play(make_rows, 1, 60):
            plain.append_chunk(chunk)
            once.append_chunk(chunk)
        for _ in range(8):
            expected, found = plain.sample(), once.sample()
            assert all(a.dtype == b.dtype for a, b in zip(expected[0].values(), found[0].values(), strict=True))
            assert same(found, expected)
    finally:
        once.close()


def test_a_memory_on_disk_goes_on_where_another_process_has_ended(make_rows: Any, tmp_path: Path) -> None:
    chunks = play(make_rows, 2, 60)
    settings: Any = {"memory_size": 120, "frame_stack": 1, "storage": "disk", "folder": tmp_path / "memory"}
    plain = ReplayMemory(memory_size=120)
    for part in (chunks[: len(chunks) // 2], chunks[len(chunks) // 2 :]):
        once = FrameStackMemory(**settings)
        for chunk in part:
            assert once.append_chunk(chunk) == plain.append_chunk(chunk)
        for item in range(0, len(once), 5):
            assert same(once.get_transition(item), plain.get_transition(item + len(plain) - len(once)))
        once.close()
    with pytest.raises(ConfigError, match=r"single frames, each stored once, and memory\.frame_stack is 4"):
        FrameStackMemory(**{**settings, "frame_stack": 4})
    with pytest.raises(ConfigError, match="each frame once; keep"):
        ReplayMemory(memory_size=120, storage="disk", folder=tmp_path / "memory")


def test_a_checkpoint_continues_identically(make_rows: Any) -> None:
    chunks = play(make_rows, 4, 80)
    one = FrameStackMemory(memory_size=90, batch_size=8, frame_stack=1, seed=4)
    for chunk in chunks[:40]:
        one.append_chunk(chunk)
    state, rows = one.state_dict(), [ring[-len(one) :].copy() for ring in _newest(one)]
    other = FrameStackMemory(memory_size=90, batch_size=8, frame_stack=1, seed=5)
    other.load_state_dict(state, rows)
    for chunk in chunks[40:50]:
        assert one.append_chunk(chunk) == other.append_chunk(chunk)
        assert same(one.sample(), other.sample())


def _newest(memory: FrameStackMemory) -> list[Any]:
    order = np.arange(memory.written - len(memory), memory.written) % memory.memory_size
    return [ring[order] for ring in memory.row_arrays]


def test_a_transition_takes_about_one_picture_of_each_camera(make_rows: Any) -> None:
    once = FrameStackMemory(memory_size=2_000, frame_stack=1)
    plain = ReplayMemory(memory_size=2_000)
    for memory in (once, plain):
        for chunk in play(make_rows, 1, 10):
            memory.append_chunk(chunk)
    size = once.frame_bytes + sum(ring.nbytes for ring in once.row_arrays)
    assert size < 0.54 * sum(ring.nbytes for ring in plain.row_arrays)


def test_a_picture_beside_a_stack_is_stored_once(make_rows: Any) -> None:
    frames = np.random.default_rng(0).integers(0, 256, (12, *SHAPE)).astype(np.uint8)
    stacks = np.lib.stride_tricks.sliding_window_view(frames, 2, axis=0).transpose(0, 4, 1, 2, 3)

    def observation(_: Any) -> dict[str, Any]:
        return {"stack": np.ascontiguousarray(stacks), "wrist": frames[1:]}

    chunk = make_rows(1, 0, 0, 11, end="truncated", observation=observation)
    memory, plain = FrameStackMemory(memory_size=50, frame_stack=2), ReplayMemory(memory_size=50)
    assert memory.append_chunk(chunk) == plain.append_chunk(chunk) == 10
    for item in range(10):
        assert same(memory.get_transition(item), plain.get_transition(item))
    assert memory.layout is not None
    assert all(len(column.shape) == 1 for column in memory.layout.new_obs)


def test_observations_without_pictures_are_refused(make_rows: Any) -> None:
    chunk = make_rows(1, 0, 0, 3, observation=lambda _: {"speed": np.zeros((3, 1), np.float32)})
    with pytest.raises(SampleRefusedError, match="has 2048 bytes, so storing it once saves nothing"):
        FrameStackMemory(memory_size=50, frame_stack=1).append_chunk(chunk)
    with pytest.raises(ConfigError, match="newest_only is for stacks"):
        FrameStackMemory(memory_size=50, frame_stack=1, newest_only=True)


def test_the_configuration_is_checked_against_the_space() -> None:
    from gymnasium import spaces

    config = from_values({"memory": {"cls": "tmrl_core.training:FrameStackMemory", "kwargs": {"frame_stack": 1}}})
    picture = spaces.Box(0, 255, SHAPE, np.uint8)
    number = spaces.Box(-1, 1, (1, 300), np.float64)
    assert stacks_problem(config, spaces.Dict({"camera": picture, "speed": number})) is None
    assert "no part of the" in (stacks_problem(config, spaces.Dict({"speed": number})) or "")
