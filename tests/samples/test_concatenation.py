from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tmrl_core.errors import CodecError
from tmrl_core.samples import (
    Buffer,
    Chunk,
    Segment,
    decode_message,
    encode_message,
    encode_message_buffers,
    same_layout,
)
from tmrl_core.samples.concatenation import join_segments


def chunk_of(*observations: Any, info: dict[str, Any] | None = None, action: Any = None) -> Chunk:
    buffer = Buffer(maxlen=None)
    for i, observation in enumerate(observations):
        act = np.full(2, i, np.float32) if action is None else action
        buffer.append_sample((act, observation, float(i), False, i == 1, info or {}))
    (chunk,) = buffer.take()[0]
    return chunk


def same(first: Chunk, second: Chunk) -> bool:
    assert first.rows == second.rows
    for row in range(first.rows):
        np.testing.assert_equal(first.sample(row), second.sample(row))
        assert [type(value) for value in first.sample(row)] == [type(value) for value in second.sample(row)]
    return first.kinds == second.kinds and list(first.step) == list(second.step)


TREES: dict[str, Any] = {
    "array": lambda i: np.full((3, 2), i, np.float32),
    "scalar": float,
    "tuple": lambda i: (np.full(2, i), np.float32(i), f"text {i}"),
    "dict": lambda i: {"a": np.arange(i, i + 4, dtype=np.uint8), 3: {"b": i}},
    "texts": lambda i: [None, "a", b"b"][i % 3],
}


@pytest.mark.parametrize("compression", ["none", "zstd", "auto"])
@pytest.mark.parametrize("tree", TREES)
def test_chunks_of_one_layout_become_one_message_with_all_rows_in_order(tree: str, compression: Any) -> None:
    make = TREES[tree]
    whole = chunk_of(*[make(i) for i in range(9)], info={"k": 1})
    parts = [whole.slice(0, 4), whole.slice(4, 5), whole.slice(5, 9)]
    assert all(same_layout(parts[0], part) for part in parts)
    decoded = decode_message(encode_message(parts, [], compression=compression), max_bytes=1 << 20).chunk
    assert decoded is not None
    assert same(decoded, whole)
    assert decoded.segments == whole.segments, "one run that was cut is one run again"
    assert decoded.info == whole.info
    assert encode_message(parts, [], compression="none") == encode_message(whole, [], compression="none")


def test_large_columns_of_joined_chunks_are_not_copied() -> None:
    parts = [chunk_of(np.full(100_000, i, np.uint8)) for i in range(3)]
    buffers = encode_message_buffers(parts, [], compression="none")
    for part in parts:
        memory = np.asarray(part.observation)
        assert any(np.shares_memory(memory, np.frombuffer(buffer, np.uint8)) for buffer in buffers)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (chunk_of(np.zeros(3)), chunk_of(np.zeros(4))),
        (chunk_of(np.zeros(3)), chunk_of(np.zeros(3, np.float32))),
        (chunk_of(1.0), chunk_of(np.float64(1.0))),
        (chunk_of((1.0, 2.0)), chunk_of((1.0, 2.0, 3.0))),
        (chunk_of({"a": 1.0}), chunk_of({"b": 1.0})),
        (chunk_of({1: 1.0, 2: 2.0}), chunk_of({2: 1.0, 1: 2.0})),
        (chunk_of({1: 1.0}), chunk_of({True: 1.0})),
        (chunk_of("text"), chunk_of(1.0)),
        (chunk_of(1.0, action=np.zeros(1)), chunk_of(1.0, action=np.zeros(2))),
    ],
)
def test_chunks_of_different_layouts_are_refused(first: Chunk, second: Chunk) -> None:
    assert not same_layout(first, second)
    assert not same_layout(second, first)
    with pytest.raises(CodecError, match="different layouts"):
        encode_message([first, second], [])


def test_only_consecutive_segments_are_joined() -> None:
    chunk = chunk_of(*range(4))
    ends = [
        (Segment(2, 7, 0, 1, 1), Segment(2, 7, 2, 1, 1)),
        (Segment(4, 7, 4, 1, 1),),
        (Segment(4, 7, 8, 1, 2),),
        (Segment(4, 7, 13, 1, 2),),
        (Segment(4, 8, 17, 1, 2),),
    ]
    chunks = []
    for segments in ends:
        part = chunk.slice(0, 4)
        chunks.append(
            Chunk(
                rows=4,
                action=part.action,
                action_present=part.action_present,
                observation=part.observation,
                reward=part.reward,
                terminated=part.terminated,
                truncated=part.truncated,
                segments=segments,
                kinds=part.kinds,
            )
        )
    assert join_segments(chunks) == (
        Segment(8, 7, 0, 1, 1),
        Segment(4, 7, 8, 1, 2),
        Segment(4, 7, 13, 1, 2),
        Segment(4, 8, 17, 1, 2),
    )
