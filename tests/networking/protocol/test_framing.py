"""Frames: wire tables, limits before allocation, and the same frames however the bytes are sliced."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tmrl_core.errors import RemoteProtocolError
from tmrl_core.networking.protocol.framing import (
    FIRST,
    HEADER,
    HEADER_BYTES,
    LAST,
    MAX_FRAME_BYTES,
    MAX_PAYLOAD_BYTES,
    PING_FRAME,
    Frame,
    FrameReader,
    Kind,
    cut,
    message_bytes,
)
from tmrl_core.networking.protocol.messages import POLICY_HEAD, SAMPLES_HEAD, Bye, Direct, control_frame, decode_control

Fields = tuple[int, int, int, int, bytes]

# kind, flags, epoch, channel, payload -> bytes, written out by hand
WIRE: list[tuple[Fields, bytes]] = [
    ((3, 0, 0, 0, b""), b"\x00\x00\x00\x00\x03\x00\x00\x00\x00\x00\x00\x00"),
    ((0, 0, 0, 0, b"\x91\xa3bye"), b"\x05\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x91\xa3bye"),
    ((1, 3, 0x0102, 0x03040506, b"ab"), b"\x02\x00\x00\x00\x01\x03\x02\x01\x06\x05\x04\x03ab"),
    ((2, 1, 0xFFFF, 0xFFFFFFFF, b"\x00"), b"\x01\x00\x00\x00\x02\x01\xff\xff\xff\xff\xff\xff\x00"),
    ((1, 0, 1, 2, b"y" * 5_000), b"\x88\x13\x00\x00\x01\x00\x01\x00\x02\x00\x00\x00" + b"y" * 5_000),
    ((1, 2, 7, 9, b"z" * 65_524), b"\xf4\xff\x00\x00\x01\x02\x07\x00\x09\x00\x00\x00" + b"z" * 65_524),
    ((2, 1, 0, 0, b"w" * 65_524), b"\xf4\xff\x00\x00\x02\x01\x00\x00\x00\x00\x00\x00" + b"w" * 65_524),
]


def feed(reader: FrameReader, data: bytes, slices: Iterable[int] | None = None) -> list[Frame]:
    """Give the reader `data` in pieces of the sizes said (the last again and again), taking frames as they come."""
    frames: list[Frame] = []
    sizes = iter(slices if slices is not None else (len(data) or 1,))
    size = 1
    view = memoryview(data)
    while view:
        size = max(1, next(sizes, size))
        piece = view[:size]
        view = view[size:]
        while piece:
            buffer = reader.get_buffer()
            assert len(buffer) > 0
            n = min(len(buffer), len(piece))
            buffer[:n] = piece[:n]
            piece = piece[n:]
            frames += reader.received(n)
    return frames


def fields(frame: Frame) -> Fields:
    assert len(frame.buffer) == HEADER_BYTES + len(frame.payload)
    return frame.kind, frame.flags, frame.epoch, frame.channel, bytes(frame.payload)


def write(kind: int, flags: int, epoch: int, channel: int, payload: bytes) -> bytes:
    return HEADER.pack(len(payload), kind, flags, epoch, channel) + payload


# -- wire tables -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("row", "wire"), WIRE, ids=range(len(WIRE)))
def test_a_complete_frame_gives_its_fields(row: Fields, wire: bytes) -> None:
    reader = FrameReader()
    assert [fields(frame) for frame in feed(reader, wire)] == [row]
    assert reader.empty


@pytest.mark.parametrize(("row", "wire"), WIRE, ids=range(len(WIRE)))
def test_a_frame_read_byte_by_byte_is_complete_at_its_last_byte(row: Fields, wire: bytes) -> None:
    reader = FrameReader()
    assert feed(reader, wire[:-1], (1,)) == []
    assert not reader.empty
    assert [fields(frame) for frame in feed(reader, wire[-1:])] == [row]
    assert reader.empty


@pytest.mark.parametrize(("row", "wire"), WIRE, ids=range(len(WIRE)))
def test_bytes_after_a_frame_belong_to_the_next(row: Fields, wire: bytes) -> None:
    reader = FrameReader()
    assert [fields(frame) for frame in feed(reader, wire + PING_FRAME[:7])] == [row]
    assert not reader.empty
    assert [fields(frame) for frame in feed(reader, PING_FRAME[7:])] == [(3, 0, 0, 0, b"")]


@pytest.mark.parametrize(("row", "wire"), WIRE, ids=range(len(WIRE)))
def test_a_frame_can_be_forwarded_under_another_address(row: Fields, wire: bytes) -> None:
    (frame,) = feed(FrameReader(), wire)
    assert bytes(frame.buffer) == wire
    frame.readdress(513, 67_305_985)
    assert bytes(frame.buffer) == wire[:6] + b"\x01\x02\x01\x02\x03\x04" + wire[12:]
    (again,) = feed(FrameReader(), bytes(frame.buffer))
    assert fields(again) == (row[0], row[1], 513, 67_305_985, row[4])


def test_a_full_frame_fills_four_tls_records() -> None:
    assert HEADER_BYTES == 12
    assert MAX_FRAME_BYTES == 4 * 16_384 == HEADER_BYTES + MAX_PAYLOAD_BYTES


def test_headers_have_the_layout_of_other_versions() -> None:
    assert SAMPLES_HEAD.pack(1, 2, 3, 4, 5) == b"".join(
        number.to_bytes(size, "little") for number, size in ((1, 8), (2, 8), (3, 8), (4, 4), (5, 4))
    )
    assert POLICY_HEAD.pack(1, 2, 3) == b"".join(number.to_bytes(8, "little") for number in (1, 2, 3))


# -- limits ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [MAX_PAYLOAD_BYTES + 1, 1 << 20, 0xFFFF_FFFF])
def test_a_frame_too_long_is_refused_at_its_header_before_anything_is_allocated(length: int) -> None:
    reader = FrameReader()
    header = HEADER.pack(length, Kind.DATA, FIRST, 0, 0)
    tracemalloc.start()
    try:
        with pytest.raises(RemoteProtocolError, match=f"{length} bytes was announced; at most 65524"):
            feed(reader, header)
        assert tracemalloc.get_traced_memory()[1] < 32_768
    finally:
        tracemalloc.stop()


def test_an_incomplete_header_waits_for_more_bytes() -> None:
    reader = FrameReader()
    assert feed(reader, HEADER.pack(0xFFFF_FFFF, 9, 0, 0, 0)[:11]) == []
    with pytest.raises(RemoteProtocolError):
        feed(reader, b"\0")


@pytest.mark.parametrize("kind", [4, 9, 255])
def test_an_unknown_kind_is_refused_at_its_header(kind: int) -> None:
    with pytest.raises(RemoteProtocolError, match=f"unknown kind of frame: {kind}"):
        feed(FrameReader(), HEADER.pack(10, kind, 0, 0, 0))


def test_an_incomplete_frame_uses_only_its_own_size() -> None:
    reader = FrameReader()
    tracemalloc.start()
    try:
        feed(reader, HEADER.pack(MAX_PAYLOAD_BYTES, Kind.DATA, FIRST, 0, 0))
        assert tracemalloc.get_traced_memory()[0] < MAX_FRAME_BYTES + 8_192
    finally:
        tracemalloc.stop()
    assert len(reader.get_buffer()) == MAX_PAYLOAD_BYTES


def test_small_frames_may_follow_full_ones() -> None:
    full, small = WIRE[-1], WIRE[1]
    data = full[1] + 4_000 * PING_FRAME + small[1] + full[1] + full[1] + PING_FRAME[:5]
    reader = FrameReader()
    frames = [fields(frame) for frame in feed(reader, data)]
    assert frames == [full[0], *4_000 * [(3, 0, 0, 0, b"")], small[0], full[0], full[0]]
    assert not reader.empty
    assert len(feed(reader, PING_FRAME[5:])) == 1
    assert reader.empty


def test_invalid_data_after_full_frames_is_refused() -> None:
    for wrong in (HEADER.pack(MAX_PAYLOAD_BYTES, 9, 0, 0, 0), HEADER.pack(1 << 20, Kind.DATA, 0, 0, 0)):
        reader = FrameReader()
        assert len(feed(reader, WIRE[-1][1])) == 1
        with pytest.raises(RemoteProtocolError):
            feed(reader, wrong)


# -- properties --------------------------------------------------------------------------------------------------------

valid_frames = st.lists(
    st.tuples(
        st.integers(0, 3),
        st.integers(0, 255),
        st.integers(0, 0xFFFF),
        st.integers(0, 0xFFFF_FFFF),
        st.one_of(
            st.binary(max_size=40),
            st.sampled_from([4_084, 4_096, 12_287, 12_288, 16_371, 16_372, 16_373, 20_000, MAX_PAYLOAD_BYTES]).map(
                lambda size: bytes([size % 251]) * size
            ),
        ),
    ),
    max_size=5,
)
slicings = st.lists(st.sampled_from([1, 2, 11, 12, 13, 100, 4_095, 4_096, 16_384, 70_000]), min_size=1, max_size=40)


@given(valid_frames, slicings)
def test_frames_do_not_depend_on_the_slices_of_bytes(rows: Sequence[Fields], slices: list[int]) -> None:
    data = b"".join(write(*row) for row in rows)
    reader = FrameReader()
    assert [fields(frame) for frame in feed(reader, data, [*slices, 4_096])] == list(rows)
    assert reader.empty


@given(st.binary(max_size=200), slicings)
def test_any_bytes_give_frames_or_a_protocol_error_and_nothing_else(data: bytes, slices: list[int]) -> None:
    outcomes = []
    for sizes in (None, slices):
        reader = FrameReader()
        error = ""
        frames: list[Frame] = []
        try:
            frames = feed(reader, data, sizes)
        except RemoteProtocolError as exc:
            error = str(exc)
        assert sum(len(frame.buffer) for frame in frames) <= len(data)
        outcomes.append((error, [fields(frame) for frame in frames][-1:] if not error else []))
    assert outcomes[0] == outcomes[1]


@given(valid_frames, st.integers(0, 200), st.integers(0, 255))
def test_one_wrong_byte_gives_frames_or_a_protocol_error(rows: Sequence[Fields], at: int, value: int) -> None:
    data = bytearray(b"".join(write(*row) for row in rows))
    if data:
        data[at % len(data)] = value
    try:
        frames = feed(FrameReader(), bytes(data))
    except RemoteProtocolError:
        return
    assert all(frame.kind in (0, 1, 2, 3) and len(frame.buffer) <= MAX_FRAME_BYTES for frame in frames)


# -- writing -----------------------------------------------------------------------------------------------------------


def test_a_control_message_is_one_frame() -> None:
    (frame,) = feed(FrameReader(), control_frame(Bye()))
    assert frame.kind == Kind.CONTROL
    assert decode_control(frame.payload) == Bye()


def test_a_control_message_too_large_for_a_frame_is_a_local_error() -> None:
    with pytest.raises(ValueError, match=r"Direct takes 7\d{4} bytes; a frame holds 65524"):
        control_frame(Direct(0, 1, bytes(70_000)))


@pytest.mark.parametrize("head_bytes", [1, 24, 32])
def test_cut_gives_full_frames_then_the_rest(head_bytes: int) -> None:
    head = bytes(range(head_bytes))
    content = bytes(i % 251 for i in range(3 * MAX_PAYLOAD_BYTES + 5))
    for body_bytes in (
        *(0, 1, 100, MAX_PAYLOAD_BYTES - 33, MAX_PAYLOAD_BYTES - 32, MAX_PAYLOAD_BYTES - 31, MAX_PAYLOAD_BYTES - 24),
        *(MAX_PAYLOAD_BYTES - 1, MAX_PAYLOAD_BYTES, MAX_PAYLOAD_BYTES + 1, 2 * MAX_PAYLOAD_BYTES - 32),
        *(2 * MAX_PAYLOAD_BYTES, len(content)),
    ):
        body = content[:body_bytes]
        wire = [bytes(frame) for frame in cut(Kind.DATA, head, [body], epoch=3, channel=5)]
        frames = feed(FrameReader(), b"".join(wire))
        assert b"".join(bytes(frame.payload) for frame in frames) == head + body
        assert all(len(frame.payload) == MAX_PAYLOAD_BYTES for frame in frames[:-1]), body_bytes
        assert 0 < len(frames[-1].payload) <= MAX_PAYLOAD_BYTES, body_bytes
        assert [frame.flags & FIRST for frame in frames] == [FIRST] + [0] * (len(frames) - 1), body_bytes
        assert [frame.flags & LAST for frame in frames] == [0] * (len(frames) - 1) + [LAST], body_bytes
        assert {(frame.kind, frame.epoch, frame.channel) for frame in frames} == {(Kind.DATA, 3, 5)}, body_bytes


@given(st.lists(st.sampled_from([0, 1, 7, 1_000, MAX_PAYLOAD_BYTES - 32, MAX_PAYLOAD_BYTES, 70_000]), max_size=12))
def test_cut_treats_many_buffers_as_one(sizes: list[int]) -> None:
    body = [bytes([i + 1]) * size for i, size in enumerate(sizes)]
    head = bytes(SAMPLES_HEAD.size)
    pieces = [piece if i % 2 else memoryview(piece) for i, piece in enumerate(body)]
    wire = list(cut(Kind.DATA, head, pieces, epoch=0, channel=0))
    in_one = cut(Kind.DATA, head, [b"".join(body)], epoch=0, channel=0)
    assert [bytes(frame) for frame in wire] == [bytes(frame) for frame in in_one]
    assert sum(frame.size for frame in wire) == message_bytes(SAMPLES_HEAD, sum(sizes))


def test_cut_makes_frames_on_request() -> None:
    body = bytes(50 << 20)
    tracemalloc.start()
    try:
        frames = cut(Kind.DATA, b"head", [body], epoch=0, channel=0)
        for _ in range(20):
            next(frames)
        assert tracemalloc.get_traced_memory()[1] < 4 * MAX_FRAME_BYTES
    finally:
        tracemalloc.stop()
