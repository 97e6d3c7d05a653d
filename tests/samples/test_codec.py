"""Messages of samples and records: there and back, limits, and bytes that are none."""

from __future__ import annotations

import dataclasses
import math
import struct
import threading
from typing import Any

import msgspec
import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tmrl_core.errors import CodecError
from tmrl_core.samples.buffer import Buffer
from tmrl_core.samples.codec import (
    MAX_COLUMNS,
    SampleMessage,
    decode_message,
    decoded_bytes,
    encode_message,
    encode_message_buffers,
    most_records,
    split_chunk,
)
from tmrl_core.samples.columns import Chunk, leaves
from tmrl_core.samples.segments import EpisodeRecord, Segment
from tmrl_core.samples.supported_values import DTYPES

LIMIT = 1 << 22
RECORDS = [
    EpisodeRecord("", -1.5, 200, "train", "truncated", 3, (1, 7), 42, 5, "robot7"),
    EpisodeRecord("a", math.inf, 0, "test", "aborted"),
]
COMPRESSIONS: list[Any] = ["auto", "zstd", "none"]


def identical(a: Any, b: Any) -> bool:
    """Whether structure, types, dtypes with byte order, and bits are the same."""
    if type(a) is not type(b):
        return False
    if isinstance(a, (np.ndarray, np.generic)):
        return bool(a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes())
    if isinstance(a, dict):
        return list(a) == list(b) and all(map(identical, a.values(), b.values()))
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(identical, a, b))
    if isinstance(a, float):
        return struct.pack("d", a) == struct.pack("d", b) or (math.isnan(a) and math.isnan(b))
    return bool(a == b)


def identical_chunks(a: Chunk, b: Chunk) -> bool:
    return all(identical(getattr(a, field.name), getattr(b, field.name)) for field in dataclasses.fields(Chunk))


def pendulum_like(rows: int = 500, seed: int = 0) -> Chunk:
    generator = np.random.default_rng(seed)
    buffer = Buffer(None)
    for row in range(rows):
        angle = generator.uniform(-math.pi, math.pi)
        observation = np.array([math.cos(angle), math.sin(angle), 8 * generator.standard_normal()], np.float32)
        action = None if row % 100 == 0 else generator.uniform(-2, 2, 1).astype(np.float32)
        reward = 0.0 if row % 100 == 0 else np.float64(-(generator.random() ** 2) * 16)
        buffer.append_sample((action, observation, reward, False, row % 100 == 99, {}))
    (chunk,), _ = buffer.take()
    return chunk


def mixed(rows: int = 20) -> Chunk:
    """A chunk with one of everything."""
    buffer = Buffer(None)
    for row in range(rows):
        observation = {
            "image": np.full((4, 4), row, np.uint8),
            3: (np.float16(row), np.array(row, ">i2"), row % 2 == 0, row, row / 2),
            "text": ["goal", (row, None)],
            "empty": {},
        }
        info = {"frame": np.arange(row), "why": ("x", row)} if row % 3 == 0 else {}
        extras = {"logp": np.float32(-row), "hidden": (np.zeros((2, 0)),)}
        buffer.append_sample((None if row < 2 else np.int64(row), observation, row, row == 7, False, info), extras)
        if row == 10:
            buffer.set_version((3, 4))
    (chunk,), _ = buffer.take()
    return chunk


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("make", [pendulum_like, mixed])
def test_a_chunk_and_records_come_back(make: Any, compression: Any) -> None:
    chunk = make()
    data = encode_message(chunk, RECORDS, signature=b"pendulum", compression=compression)
    message = decode_message(data, max_bytes=LIMIT)
    assert message.chunk is not None
    assert identical_chunks(message.chunk, chunk)
    assert message.records == RECORDS
    assert message.signature == b"pendulum"


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_records_are_sent_without_samples(compression: Any) -> None:
    data = encode_message(None, RECORDS, compression=compression)
    assert decode_message(data, max_bytes=LIMIT) == SampleMessage(None, RECORDS, b"")


# Any nested observation, through the Buffer and the codec, exactly

dtypes = st.sampled_from(list(DTYPES.values()))


def arrays_of(dtype: np.dtype[Any], shape: tuple[int, ...]) -> st.SearchStrategy[Any]:
    return hnp.arrays(dtype, shape)


shapes = hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3)
# Each of these is a strategy for the values of one leaf, all of which fit the same column or list.
leaf_values: st.SearchStrategy[st.SearchStrategy[Any]] = st.one_of(
    st.builds(arrays_of, dtypes, shapes),
    dtypes.map(lambda dtype: arrays_of(dtype, (1,)).map(lambda array: array[0])),
    st.sampled_from(
        [
            st.floats(),
            st.integers(-(2**63), 2**63 - 1),
            st.booleans(),
            st.none() | st.text(max_size=5) | st.binary(max_size=5) | st.lists(st.none() | st.floats(), max_size=3),
        ]
    ),
)
keys = st.text(max_size=3) | st.integers(-9, 9) | st.binary(max_size=3)
trees = st.recursive(
    leaf_values,
    lambda children: st.one_of(
        st.lists(children, max_size=3).map(lambda parts: st.tuples(*parts)),
        st.dictionaries(keys, children, max_size=3).map(st.fixed_dictionaries),
    ),
    max_leaves=6,
)


@given(trees, trees, st.integers(1, 5), st.sampled_from(COMPRESSIONS), st.data())
def test_any_nested_samples_come_back_exactly(
    observations: st.SearchStrategy[Any],
    actions: st.SearchStrategy[Any],
    rows: int,
    compression: Any,
    data: st.DataObject,
) -> None:
    buffer = Buffer(None)
    samples = []
    for _ in range(rows):
        action = data.draw(st.none() | actions)
        flags = data.draw(st.tuples(st.booleans(), st.booleans()))
        info = data.draw(st.dictionaries(keys, st.none() | st.integers(), max_size=2))
        samples.append((action, data.draw(observations), data.draw(st.floats()), *flags, info))
        buffer.append_sample(samples[-1])
    decoded = []
    for chunk in buffer.chunks:
        message = decode_message(encode_message(chunk, [], compression=compression), max_bytes=LIMIT)
        assert message.chunk is not None
        assert identical_chunks(message.chunk, chunk)
        decoded += [message.chunk.sample(row) for row in range(message.chunk.rows)]
    assert identical(decoded, samples)


# Size


def test_an_uncompressed_message_costs_little_more_than_its_columns() -> None:
    chunk = pendulum_like(1000)
    columns = 1000 * (12 + 4 + 8)
    assert len(encode_message(chunk, [], compression="none")) < columns + 3 * 125 + 250
    assert len(encode_message(chunk, [], compression="zstd")) < 0.9 * columns


def test_auto_uses_zstd_only_if_it_saves_bytes() -> None:
    noise = np.random.default_rng(0)
    for rows in (20, 2000):  # compressed as a whole, and judged by a piece
        for shape, compresses in (("noise", False), ("zeros", True)):
            buffer = Buffer(None)
            for row in range(rows):
                image = noise.integers(0, 256, 400, np.uint8) if shape == "noise" else np.zeros(400, np.uint8)
                buffer.append_sample((np.zeros(1, np.uint8), image, np.float64(row), False, False, {}))
            (chunk,), _ = buffer.take()
            plain = encode_message(chunk, [], compression="none")
            assert (encode_message(chunk, []) == plain) is not compresses
            assert len(encode_message(chunk, [])) <= len(plain)


def test_large_columns_are_not_copied() -> None:
    buffer = Buffer(None)
    for row in range(100):
        buffer.append_sample((np.zeros(1, np.float32), np.full(1000, row, np.float64), 0.0, False, False, {}))
    (chunk,), _ = buffer.take()
    assert isinstance(chunk.observation, np.ndarray)
    buffers = encode_message_buffers(chunk, RECORDS, signature=b"s", compression="none")
    assert len(buffers) == 3
    assert np.shares_memory(np.frombuffer(buffers[1], np.uint8), chunk.observation)
    assert b"".join(buffers) == encode_message(chunk, RECORDS, signature=b"s", compression="none")


def test_small_messages_are_one_buffer() -> None:
    assert len(encode_message_buffers(pendulum_like(), [], compression="none")) == 1


def test_columns_that_are_not_contiguous_are_encoded() -> None:
    chunk = pendulum_like(10)
    assert isinstance(chunk.observation, np.ndarray)
    wide = dataclasses.replace(chunk, observation=np.asfortranarray(np.repeat(chunk.observation, 2, axis=1))[:, ::2])
    for compression in COMPRESSIONS:
        message = decode_message(encode_message(wide, [], compression=compression), max_bytes=LIMIT)
        assert message.chunk is not None
        assert identical(message.chunk.observation, chunk.observation)


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_joined_columns_keep_their_byte_order(compression: Any) -> None:
    chunks = [
        dataclasses.replace(pendulum_like(200, seed), observation=np.arange(200, dtype=">f4")) for seed in range(2)
    ]
    message = decode_message(encode_message(chunks, [], compression=compression), max_bytes=1 << 20)
    assert message.chunk is not None
    assert identical(message.chunk.observation, np.tile(np.arange(200), 2).astype(">f4"))


def test_threads_do_not_share_compressors() -> None:
    chunks = [pendulum_like(2000, seed) for seed in range(2)]
    good = [0, 0]

    def work(index: int) -> None:
        for _ in range(20):
            message = decode_message(encode_message(chunks[index], [], compression="zstd"), max_bytes=LIMIT)
            assert message.chunk is not None
            good[index] += identical_chunks(message.chunk, chunks[index])

    threads = [threading.Thread(target=work, args=(index,)) for index in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert good == [20, 20]


# Splitting


@pytest.mark.parametrize("make", [lambda: pendulum_like(1000), lambda: mixed(200)])
@pytest.mark.parametrize("max_bytes", [1, 700, 3000, 10_000, 1 << 20])
def test_pieces_keep_to_the_limit_and_hold_every_row(make: Any, max_bytes: int) -> None:
    chunk = make()
    row = 0
    for piece in split_chunk(chunk, max_bytes):
        size = len(encode_message(piece, [], compression="none"))
        assert size <= max_bytes or piece.rows == 1
        assert identical_chunks(piece, chunk.slice(row, row + piece.rows))
        row += piece.rows
    assert row == chunk.rows


def test_pieces_are_not_much_smaller_than_allowed() -> None:
    pieces = list(split_chunk(pendulum_like(10_000), 20_000))
    for piece in pieces[:-1]:
        assert len(encode_message(piece, [], compression="none")) > 0.9 * 20_000


def test_pieces_are_made_on_request_and_are_views() -> None:
    chunk = pendulum_like(1000)
    pieces = split_chunk(chunk, 1000)
    first = next(pieces)
    assert first.rows < 100
    assert np.shares_memory(first.reward, chunk.reward)


def test_a_segment_for_each_row_is_reckoned_with() -> None:
    buffer = Buffer(None)
    for row in range(1000):
        buffer.set_version((1 << 40, (1 << 40) + row))
        buffer.append_sample((np.zeros(1, np.uint8), np.zeros(1, np.uint8), np.uint8(0), False, False, {}))
    (chunk,), _ = buffer.take()
    for piece in split_chunk(chunk, 2000):
        assert len(encode_message(piece, [], compression="none")) <= 2000


def test_an_empty_chunk_has_no_pieces() -> None:
    assert list(split_chunk(pendulum_like(10).slice(0, 0), 1000)) == []


# Limits and bytes that are no message


def test_max_bytes_limits_the_compressed_and_decompressed_message() -> None:
    chunk = pendulum_like()
    plain = encode_message(chunk, [], compression="none")
    decode_message(plain, max_bytes=len(plain))
    with pytest.raises(CodecError, match="more than the limit"):
        decode_message(plain, max_bytes=len(plain) - 1)
    zeros = encode_message(dataclasses.replace(chunk, observation=np.zeros((500, 1000))), [], compression="zstd")
    assert len(zeros) < 100_000
    with pytest.raises(CodecError, match="decompressed, more than the limit"):
        decode_message(zeros, max_bytes=100_000)


def frame(content: bytes, **options: Any) -> bytes:
    return b"\x01" + zstandard.ZstdCompressor(**options).compress(content)


def test_a_decompression_bomb_is_refused_by_its_header() -> None:
    bomb = frame(bytes(1 << 24))
    assert len(bomb) < 2000
    with pytest.raises(CodecError, match="16777216 bytes when decompressed"):
        decode_message(bomb, max_bytes=1 << 20)


def test_too_many_values_are_refused_by_their_number() -> None:
    bomb = frame(b"\x94\xc4\x00\x90\xc0\xdd" + struct.pack(">I", 1 << 22) + b"\x90" * (1 << 22))
    assert len(bomb) < 1000
    with pytest.raises(CodecError, match="more than 1048576 values"):
        decode_message(bomb, max_bytes=1 << 24)


@pytest.mark.parametrize("compression", ["auto", "zstd"])
@pytest.mark.parametrize("number", [64, 1_000, 40_000])
def test_an_encoder_sends_no_more_records_than_the_size_on_the_wire_allows(compression: Any, number: int) -> None:
    """A trainer uses no more, because equal records would take almost no bytes."""
    record = EpisodeRecord("", 1.0, 3, "train", "terminated", worker="w" * 300)
    assert number <= most_records(len(encode_message(None, [record] * number, compression=compression)))


def test_a_frame_without_its_size_is_refused() -> None:
    with pytest.raises(CodecError, match="does not say"):
        decode_message(frame(bytes(100), write_content_size=False), max_bytes=LIMIT)


def test_a_frame_that_promises_more_than_it_can_hold_is_refused() -> None:
    # Magic, single segment with 8 bytes of content size, one last raw block of nothing.
    lie = b"\x01\x28\xb5\x2f\xfd\xe0" + struct.pack("<Q", LIMIT) + b"\x01\x00\x00"
    with pytest.raises(CodecError, match="which it cannot hold"):
        decode_message(lie, max_bytes=LIMIT)


def test_frames_with_something_after_them_or_cut_short_are_refused() -> None:
    good = encode_message(pendulum_like(), [], compression="zstd")
    for bad in (good + b"x", good[:-1], good + good[1:]):
        with pytest.raises(CodecError):
            decode_message(bad, max_bytes=LIMIT)


def parts(chunk: Chunk | None) -> list[Any]:
    """The body of a message as MessagePack sees it, to be changed."""
    body = encode_message(chunk, [], compression="none")[1:]
    return msgspec.msgpack.decode(body, type=list[Any])


def message_of(body: Any) -> bytes:
    return b"\x00" + msgspec.msgpack.encode(body)


def changed(index: int, value: Any) -> bytes:
    body = parts(pendulum_like(10))
    body[2][index] = value
    return message_of(body)


def test_a_body_put_together_by_another_encoder_is_a_message() -> None:
    chunk = pendulum_like(10)
    message = decode_message(message_of(parts(chunk)), max_bytes=LIMIT)
    assert message.chunk is not None
    assert identical_chunks(message.chunk, chunk)


INVALID = [
    b"",
    b"\x00",
    b"\x01",
    b"\x02" + encode_message(None, [])[1:],
    b"\x01" + bytes(50),
    message_of([]),
    message_of([b"", [], None]),
    message_of([b"", [], None, [], []][:4]) + b"\x00",
    message_of([b"", [["", 1.0, 1, "play", "terminated"]], None, []]),
    message_of([b"", [], None, [1]]),
    message_of([b"", [], [1, 0, 0, 0, {}, [], [], b"\x00", b"\x00", b"\x00", {}], [1, 2, 3]]),
    # rows, action, observation, reward, extras, kinds, segments, action_present, terminated, truncated, info
    changed(0, 9),
    changed(0, 11),
    changed(0, -1),
    changed(0, 2**62),
    changed(1, 1),
    changed(1, []),
    changed(1, [1, 0, 0]),
    changed(1, [1]),
    changed(1, [9]),
    changed(1, [[1]]),
    changed(1, [2]),
    changed(1, [2, 0]),
    changed(1, [2, ["a"]]),
    changed(1, [2, ["a", "a"], 0, [3, *range(10)]]),
    changed(1, [2, [["a"]], 0]),
    changed(1, [2, [msgspec.msgpack.Ext(4, bytes(8) + b"\x01\x00")], 0]),
    changed(1, [3, *range(10)]),
    changed(1, None),
    changed(2, "x"),
    changed(3, [1, 0]),
    changed(4, {"logp": 0}),
    changed(4, {"logp": [3, 1]}),
    changed(5, [""]),
    changed(5, ["", "", "word"]),
    changed(5, ["float", "", ""]),
    changed(5, ["", "", "int"]),
    changed(6, []),
    changed(6, [[9, 0, 0, 0, 0]]),
    changed(6, [[10, 0, 0, 0, 0], [0, 0, 0, 0, 0]]),
    changed(6, [[10, -1, 0, 0, 0]]),
    changed(6, [[10, 0, 2**63, 0, 0]]),
    changed(7, b"\x00"),
    changed(8, b"\x00\x00\x00"),
    changed(9, b""),
    changed(10, {10: {}}),
    changed(10, {-1: {}}),
    changed(10, {0: 1}),
    changed(10, {0: {"x": {"y": msgspec.msgpack.Ext(9, b"")}}}),
]


def test_invalid_messages_are_refused() -> None:
    for number, data in enumerate(INVALID):
        try:
            decode_message(data, max_bytes=LIMIT)
        except CodecError:
            continue
        raise AssertionError(f"message {number}, {data!r}, was taken")


def test_the_number_of_columns_is_limited_on_both_sides() -> None:
    """Each takes time, so that a message of 300,000 tiny ones would take the trainer seconds."""
    chunk = pendulum_like(1)
    own = len(list(leaves(chunk.fields)))
    extras: dict[str, Any] = {str(n): np.zeros(1, np.int8) for n in range(MAX_COLUMNS - own)}
    most = dataclasses.replace(chunk, extras=extras, kinds=())
    message = decode_message(encode_message(most, []), max_bytes=LIMIT)
    assert message.chunk is not None
    assert len(message.chunk.extras) == MAX_COLUMNS - own
    with pytest.raises(CodecError, match="4097 columns, more than the limit of 4096"):
        encode_message(dataclasses.replace(most, extras={**extras, "more": np.zeros(1, np.int8)}), [])
    body = parts(chunk)
    for columns, extra in ((body[3] + [body[3][0]] * MAX_COLUMNS, 0), (body[3], [3, 0])):
        entry = [*body[2]]
        entry[4] = {str(n): extra for n in range(MAX_COLUMNS)}
        with pytest.raises(CodecError, match=r"<= 4096|4098 columns, more"):
            decode_message(message_of([*body[:2], entry, columns]), max_bytes=LIMIT)


def test_a_tree_nested_too_deep_is_refused() -> None:
    node: Any = 0
    for _ in range(200):
        node = [1, node]
    with pytest.raises(CodecError, match="tree that cannot be"):
        decode_message(changed(1, node), max_bytes=LIMIT)


@given(st.sampled_from([b"", b"\x00", b"\x01", b"\x00\x94\xc4\x00\x90"]), st.binary(max_size=100))
def test_any_bytes_give_a_message_or_codec_error(start: bytes, rest: bytes) -> None:
    assert decoded_bytes(start + rest) >= len(start + rest)
    try:
        message = decode_message(start + rest, max_bytes=LIMIT)
    except CodecError:
        return
    assert isinstance(message, SampleMessage)


def test_the_size_without_compression_is_found_without_decompressing() -> None:
    plain, packed = (encode_message(pendulum_like(2_000), [], compression=one) for one in ("none", "zstd"))
    assert len(packed) < len(plain)
    assert decoded_bytes(plain) == len(plain)
    assert abs(decoded_bytes(packed) - len(plain)) < 100


VALID = [
    encode_message(chunk, RECORDS, signature=b"s", compression=compression)
    for chunk in (pendulum_like(20), mixed(4))
    for compression in COMPRESSIONS
]


@given(st.sampled_from(VALID), st.data())
def test_changed_bytes_give_a_consistent_chunk_or_codec_error(valid: bytes, data: st.DataObject) -> None:
    message = bytearray(valid)
    for _ in range(data.draw(st.integers(1, 4))):
        message[data.draw(st.integers(0, len(message) - 1))] = data.draw(st.integers(0, 255))
    try:
        chunk = decode_message(
            message[: data.draw(st.integers(0, len(message)) | st.just(len(message)))], max_bytes=LIMIT
        ).chunk
    except CodecError:
        return
    if chunk is None:
        return
    assert all(len(column) == chunk.rows for column in leaves(chunk.fields))
    assert len(chunk.step) == len(chunk.episode) == len(chunk.version) == chunk.rows
    for row in range(chunk.rows):
        chunk.sample(row)
    encode_message(chunk, [])


# What is wrong is found on the way out too


@pytest.mark.parametrize(
    "change",
    [
        {"rows": 11},
        {"segments": (Segment(9, 0, 0),)},
        {"segments": (Segment(10, 0, -1),)},
        {"segments": (Segment(10, 2**70, 0),)},
        {"terminated": np.zeros(9, np.bool_)},
        {"reward": np.zeros(9)},
        {"reward": [0.0] * 10},
        {"reward": np.array(0.0)},
        {"extras": {"x": [1] * 9}},
        {"kinds": ("float",)},
        {"kinds": ("", "", "int")},
        {"info": {10: {"x": 1}}},
        {"extras": {1: np.zeros(10)}},
    ],
)
def test_a_chunk_with_mismatched_parts_is_refused(change: dict[str, Any]) -> None:
    chunk = dataclasses.replace(pendulum_like(10), **change)
    with pytest.raises(CodecError):
        decode_message(encode_message(chunk, []), max_bytes=LIMIT)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"info": {0: {"frame": object()}}}, "info['frame'] is a object"),
        ({"observation": [object()] * 10}, "observation is a object"),
        ({"observation": {(1, 2): np.zeros(10)}}, "observation has a key of type tuple"),
        ({"observation": np.array([None] * 10)}, "a column is an array of dtype object"),
        ({"extras": {"x": [{1}] * 10}}, "extras['x'] is a set"),
    ],
)
def test_unsupported_values_are_named(change: dict[str, Any], words: str) -> None:
    with pytest.raises(CodecError) as caught:
        encode_message(dataclasses.replace(pendulum_like(10), **change), [])
    assert words in str(caught.value)
