"""Small messages share memory in a stream's queue, and stay in order."""

from __future__ import annotations

import random
import tracemalloc
from collections import deque

import pytest

from tmrl_core.networking.protocol.framing import HEADER, Kind
from tmrl_core.networking.relay.message_queue import SMALL_BYTES, MessageQueue


def frame(size: int, mark: int) -> bytearray:
    return bytearray(HEADER.pack(size - HEADER.size, Kind.DATA, 3, 0, mark) + bytes(size - HEADER.size))


@pytest.mark.parametrize("seed", [pytest.param(seed, marks=() if seed < 5 else pytest.mark.full) for seed in range(20)])
def test_messages_leave_in_the_order_of_their_arrival(seed: int) -> None:
    chance = random.Random(seed)
    queue, model = MessageQueue(), deque[list[bytearray]]()
    for mark in range(2_000):
        if chance.random() < 0.55:
            size = chance.choice([44, 60, SMALL_BYTES, SMALL_BYTES + 1, 5_000])
            frames = [frame(size, mark)] if size < 5_000 else [frame(3_000, mark), frame(2_000, mark)]
            model.append([bytearray(one) for one in frames])
            queue.append(frames, size)
        elif model:
            assert queue.first_bytes == sum(map(len, model[0]))
            assert queue.popleft() == model.popleft()
        assert len(queue) == len(model)
        assert queue.nbytes == sum(len(one) for frames in model for one in frames)
    queue.clear()
    assert (len(queue), queue.nbytes) == (0, 0)
    queue.append([frame(44, 7)], 44)
    assert queue.popleft() == [frame(44, 7)]


def test_small_messages_take_little_more_memory_than_their_bytes() -> None:
    queue = MessageQueue()
    tracemalloc.start()
    for mark in range(50_000):
        queue.append([frame(44, mark)], 44)
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert taken <= 1.2 * queue.nbytes


def test_messages_that_have_left_take_no_memory() -> None:
    queues = [MessageQueue() for _ in range(100)]
    tracemalloc.start()
    for queue in queues:
        for mark in range(372):
            queue.append([frame(44, mark)], 44)
        for _ in range(370):
            queue.popleft()
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert taken <= 100 * 500
    assert [queue.popleft() for queue in queues] == [[frame(44, 370)]] * 100
