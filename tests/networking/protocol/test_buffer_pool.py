"""Memory of received messages comes back when nobody looks at it, never before."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tmrl_core.networking.protocol.buffer_pool import LEAST_BYTES, BodyPool


def address(body: memoryview) -> int:
    return int(np.asarray(body).__array_interface__["data"][0])


@pytest.mark.parametrize("length", [0, 1, LEAST_BYTES - 1, LEAST_BYTES, LEAST_BYTES + 1, 1_000_000, 50_000_000])
def test_a_body_has_the_requested_length(length: int) -> None:
    assert len(BodyPool().take(length)) == length


def test_memory_is_reused_once_no_view_exists(collect_garbage: Callable[[], object]) -> None:
    pool = BodyPool()
    body = pool.take(100_000)
    place = address(body)
    body[:] = b"\x7f" * len(body)
    column = np.frombuffer(body[1000:9000], np.float32)
    del body
    collect_garbage()
    column_bytes = column.tobytes()
    other = pool.take(100_000)
    assert address(other) != place, "a column still looks at it"
    other[:] = bytes(len(other))
    assert column.tobytes() == column_bytes
    del column
    collect_garbage()
    assert address(pool.take(100_000)) == place


def test_the_pool_is_bounded(collect_garbage: Callable[[], object]) -> None:
    pool = BodyPool(keep_bytes=4 << 20)
    bodies = [pool.take(200_000) for _ in range(100)]
    del bodies
    collect_garbage()
    assert sum(len(free) * size for size, free in pool._free.items()) <= 4 << 20


def test_memory_of_unused_sizes_is_released(collect_garbage: Callable[[], object]) -> None:
    pool = BodyPool(keep_bytes=4 << 20)
    for length in (70_000, 200_000, 300_000, 600_000, 1_100_000):
        bodies = [pool.take(length) for _ in range(60)]
        del bodies
        collect_garbage()
        kept = {size: len(free) for size, free in pool._free.items() if free}
        assert sum(size * count for size, count in kept.items()) <= 4 << 20
    assert list(kept) == [1 << 21], "the others had to make room"


def test_bodies_in_transit_reuse_the_same_memory(collect_garbage: Callable[[], object]) -> None:
    pool = BodyPool()
    places = []
    for _ in range(3):
        bodies = [pool.take(1_000_000) for _ in range(8)]
        places.append({address(body) for body in bodies})
        del bodies
        collect_garbage()
    assert places[0] == places[1] == places[2]
