from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from tmrl_core.samples import Buffer, Chunk
from tmrl_core.training.agent import TrainingAgent
from tmrl_core.training.interface import LocalInterface
from tmrl_core.training.loops.lockstep_round import LastRows
from tmrl_core.training.loops.training_loop import TrainingOffline
from tmrl_core.training.memories.held_rows import HeldRows
from tmrl_core.training.memories.memory import MAX_STREAMS
from tmrl_core.training.memories.replay import ReplayMemory
from tmrl_core.training.memories.sequences import SequenceMemory

IMAGE_BYTES = 1 << 20


def images(make_rows: Any, stream: int, first_step: int, rows: int, image_bytes: int = IMAGE_BYTES) -> Chunk:
    chunk: Chunk = make_rows(0, 0, first_step, rows, observation=lambda n: np.zeros((n, image_bytes), np.uint8))
    return dataclasses.replace(chunk, stream=stream.to_bytes(16, "big"))


def test_the_longest_silent_stream_is_dropped_first(caplog: pytest.LogCaptureFixture) -> None:
    dropped: list[bytes] = []
    held: HeldRows[int] = HeldRows(lambda size: size, 10, dropped.append)
    for stream, size in ((b"a", 4), (b"b", 4), (b"a", 5), (b"c", 2)):
        held[stream] = size
    assert (dict(held), dropped) == ({b"a": 5, b"c": 2}, [b"b"])
    held[b"d"] = 11
    assert (dict(held), dropped) == ({b"d": 11}, [b"b", b"a", b"c"])
    del held[b"d"]
    held[b"e"] = 10
    assert dict(held) == {b"e": 10}
    assert caplog.text.count("worker.send_every") == 1


def test_an_origin_with_many_streams_drops_its_own() -> None:
    held: HeldRows[int] = HeldRows(lambda size: size, 10)
    held.put(b"honest", 3, "honest")
    for number in range(10):
        held.put(b"%d" % number, 2, "hostile")
    assert dict(held) == {b"honest": 3, b"7": 2, b"8": 2, b"9": 2}
    held = HeldRows(lambda size: size, 10)
    held.put(b"large", 6, "a")
    for number in range(3):
        held.put(b"%d" % number, 2, number)
    assert dict(held) == {b"0": 2, b"1": 2, b"2": 2}, "a single stream counts by its silence, not by its size"


def test_more_streams_than_are_kept_take_no_search() -> None:
    """Each worker without a certificate is its own origin."""
    searches = 0

    class Searched(dict[Any, Any]):
        def __iter__(self) -> Iterator[Any]:
            nonlocal searches
            searches += 1
            return super().__iter__()

    held: HeldRows[int] = HeldRows(lambda size: size)
    held._streams = Searched()
    for number in range(MAX_STREAMS + 5):
        held.put(b"%d" % number, 2, number)
    assert (len(held), next(iter(held)), searches) == (MAX_STREAMS, b"5", 0)


class Idle(TrainingAgent):
    def train(self, batch: Any) -> dict[str, Any]:
        return {}

    def get_actor(self) -> None:
        return None


class Hostile(LocalInterface):
    """All streams but the first have one origin."""

    def origin(self, stream: bytes) -> bool:
        return any(stream)


def test_many_streams_of_an_origin_do_not_end_the_episodes_of_others(make_rows: Any) -> None:
    def memory(nb_steps: int, device: Any) -> ReplayMemory:
        return ReplayMemory(device, nb_steps, memory_size=1)

    interface = Hostile()
    training = TrainingOffline((gym.spaces.Discrete(2), gym.spaces.Discrete(2)), memory, Idle)
    for stream, step in [(0, 0), *((stream, 0) for stream in range(1, 20)), (0, 1)]:
        buffer = Buffer(maxlen=None)
        buffer.extend([images(make_rows, stream, step, 1, 16 << 20)])
        interface.put(buffer)
        training.update_buffer(interface)
    assert len(training.training_memory) == 1


def test_streams_of_one_large_row_do_not_fill_the_memory(make_rows: Any) -> None:
    memory = ReplayMemory(memory_size=1)
    for stream in range(20):
        memory.append_chunk(images(make_rows, stream, 0, 1, 16 << 20))
    state: Any = memory.state_dict()["tails"]
    assert sum(tree.nbytes for tree in state["trees"]) == 256 << 20
    assert memory.append_chunk(images(make_rows, 4, 1, 1, 16 << 20)) == 1
    assert memory.append_chunk(images(make_rows, 3, 1, 1, 16 << 20)) == 0


@pytest.mark.parametrize("kind", [ReplayMemory, SequenceMemory])
def test_64_workers_with_images_of_1_mb_lose_no_transition(make_rows: Any, kind: Any) -> None:
    memory = kind(memory_size=1, **({"length": 2, "stride": 2} if kind is SequenceMemory else {}))
    for stream in range(100, 400):  # of workers that are gone
        memory.append_chunk(images(make_rows, stream, 0, 1))
    for step in range(3):
        made = [memory.append_chunk(images(make_rows, stream, step, 1)) for stream in range(64)]
    assert made == [1] * 64


def test_last_rows_of_a_round_have_a_limit_in_bytes(make_rows: Any) -> None:
    last = LastRows()
    for stream in range(20):
        last.join(images(make_rows, stream, 0, 1, 16 << 20))
    joined = [any(last.join(images(make_rows, stream, 1, 1, 16 << 20)).follows) for stream in (19, 5, 4)]
    assert joined == [True, True, False]
