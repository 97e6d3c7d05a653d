"""Nested values to bytes and back."""

from __future__ import annotations

import collections
import enum
import math
import struct
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tmrl_core.errors import CodecError
from tmrl_core.samples.supported_values import DTYPES, MAX_DEPTH
from tmrl_core.samples.values import decode_value, encode_value, own

LIMIT = 1 << 20

dtypes = st.sampled_from(list(DTYPES.values()))
arrays = dtypes.flatmap(
    lambda dtype: hnp.arrays(dtype, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4))
)
scalars = dtypes.flatmap(lambda dtype: hnp.arrays(dtype, 1)).map(lambda array: array[0])
plain = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary()
keys = (
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.text() | st.binary()
)
values = st.recursive(
    plain | arrays | scalars,
    lambda children: (
        st.lists(children, max_size=4)
        | st.lists(children, max_size=4).map(tuple)
        | st.dictionaries(keys, children, max_size=4)
    ),
    max_leaves=12,
)


def identical(a: Any, b: Any) -> bool:
    """Whether structure, types, dtypes with byte order, and bits are the same."""
    if type(a) is not type(b):
        return False
    if isinstance(a, np.ndarray):
        return bool(a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes())
    if isinstance(a, np.generic):
        return bool(a.dtype == b.dtype and a.tobytes() == b.tobytes())
    if isinstance(a, dict):
        pairs = zip(a.items(), b.items(), strict=True)
        return len(a) == len(b) and all(identical(x, y) and identical(v, w) for (x, v), (y, w) in pairs)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(identical, a, b))
    if isinstance(a, float):
        return struct.pack("d", a) == struct.pack("d", b) or (math.isnan(a) and math.isnan(b))
    return bool(a == b)


@given(values)
def test_every_allowed_value_comes_back_exactly(value: Any) -> None:
    assert identical(decode_value(encode_value(value), max_bytes=LIMIT), value)


@given(values)
def test_a_copied_value_is_equal(value: Any) -> None:
    assert identical(own(value, "value"), value)


def test_a_copied_value_shares_no_memory() -> None:
    inner = np.zeros(3)
    value = {"a": [inner], "b": (inner, [1])}
    owned = own(value, "value")
    inner[:] = 7
    value["a"].append(2)  # type: ignore[attr-defined]
    assert owned["a"][0].tolist() == [0, 0, 0]
    assert owned["b"][0].tolist() == [0, 0, 0]
    assert len(owned["a"]) == 1


def test_non_contiguous_arrays_are_encoded() -> None:
    array = np.arange(24, dtype=">i4").reshape(4, 6)[::2, ::-3]
    assert identical(decode_value(encode_value(array), max_bytes=LIMIT), array)


class Colour(enum.IntEnum):
    RED = 1


class Name(str, enum.Enum):
    BOB = "bob"


class Metres(float):
    pass


class Token(bytes):
    pass


Point = collections.namedtuple("Point", "x y")


@pytest.mark.parametrize(
    ("value", "comes_back"),
    [
        (Point(1, 2), (1, 2)),
        (collections.OrderedDict(a=1), {"a": 1}),
        (Colour.RED, 1),
        (Name.BOB, "bob"),
        (Metres(1.5), 1.5),
        (Token(b"x"), b"x"),
        (np.str_("x"), "x"),
        (np.bytes_(b"x"), b"x"),
        ({np.str_("key"): 1}, {"key": 1}),
    ],
)
def test_subclasses_are_encoded_as_their_base_type(value: Any, comes_back: Any) -> None:
    assert identical(decode_value(encode_value(value), max_bytes=LIMIT), comes_back)
    assert identical(own(value, "value"), comes_back)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"frame": object()}, "info['frame'] is a object"),
        ({"a": [1, {"b": {1, 2}}]}, "info['a'][1]['b'] is a set"),
        ({"a": (1, 2j)}, "info['a'][1] is a complex"),
        ({"a": bytearray(b"x")}, "info['a'] is a bytearray"),
        ({"a": np.array([None])}, "info['a'] is an array of dtype object"),
        ({"a": np.zeros(2, "M8[s]")}, "info['a'] is an array of dtype datetime64[s]"),
        ({"a": np.datetime64(0, "s")}, "info['a'] is a numpy.datetime64"),
        ({"a": np.zeros(2, "U3")}, "info['a'] is an array of dtype <U3"),
        ({"a": np.zeros(2, [("x", "f4")])}, "info['a'] is an array of dtype [('x', '<f4')]"),
        ({"a": np.zeros(2, np.longdouble)}, f"info['a'] is an array of dtype {np.dtype(np.longdouble)}"),
        ({"a": np.longdouble(1)}, "info['a'] is a numpy.longdouble"),
        ({"a": np.ma.zeros(3)}, "info['a'] is a numpy.ma.MaskedArray"),
        ({"a": {(1, 2): 3}}, "info['a'][a tuple] has a key of type tuple"),
        ({"a": {2**64: 3}}, "info['a'][a int] has an integer key beyond 64 bits"),
        ({"a": [1 << 8_191]}, "info['a'][0] is an integer of more than 1024 bytes"),
        ({"a": "\ud800"}, "info['a'] is text with lone surrogates"),
        ({"a": {"\ud800": 1}}, "info['a']['\\ud800'] is text with lone surrogates"),
        ({"a" * 100: object()}, f"info['{'a' * 60}'...] is a object"),
    ],
)
def test_unsupported_values_are_named(value: Any, words: str) -> None:
    for function in (lambda: own(value, "info"), lambda: encode_value(value)):
        with pytest.raises(CodecError) as caught:
            function()
        assert words.removeprefix("info") in str(caught.value)
        assert "It carries None, bool, int" in str(caught.value)
    with pytest.raises(CodecError, match=r"^info"):
        own(value, "info")


def test_a_value_that_contains_itself_is_refused() -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(CodecError, match="nested too deep"):
        encode_value(loop)


def nested(levels: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(levels - 1):
        value = [value]
    return value


def test_the_depth_limit_is_the_same_on_both_sides() -> None:
    assert identical(decode_value(encode_value(nested(MAX_DEPTH)), max_bytes=LIMIT), nested(MAX_DEPTH))
    with pytest.raises(CodecError, match="nested too deep"):
        encode_value(nested(MAX_DEPTH + 1))
    with pytest.raises(CodecError, match="nested deeper"):
        decode_value(msgspec.msgpack.encode(nested(MAX_DEPTH + 1)), max_bytes=LIMIT)


def test_the_largest_integers_are_written_and_no_larger_ones_are_read() -> None:
    """Python refuses to write more than 4,300 digits, so that each message about such a value would fail."""
    for value in ((1 << 8_191) - 1, 1 - (1 << 8_191)):
        assert decode_value(encode_value(value), max_bytes=LIMIT) == value
        assert str(value)
    with pytest.raises(CodecError, match="unknown extension"):
        decode_value(extension(4, b"\x01" * 1_025), max_bytes=LIMIT)


def test_more_than_max_bytes_is_refused() -> None:
    data = encode_value(np.zeros(100))
    assert decode_value(data, max_bytes=len(data)).shape == (100,)
    with pytest.raises(CodecError, match="more than the limit"):
        decode_value(data, max_bytes=len(data) - 1)


def test_small_bytes_do_not_become_a_heap_of_values() -> None:
    lists = b"\xdd" + struct.pack(">I", 1 << 21) + b"\x90" * (1 << 21)
    with pytest.raises(CodecError, match="more than 1048576 values"):
        decode_value(lists, max_bytes=1 << 24)


@pytest.mark.parametrize(
    "value",
    [
        np.full(1 << 18, -1, np.int64),
        [b"\x90" * (1 << 20), "\x7f" * (1 << 20)],
        [{"k" * 20: [index, float(index), 2**40 + index, -5000, (None, True)]} for index in range(24_000)],
        ["x" * length for length in range(1500)],
        [np.zeros(length, np.int8) for length in range(1500)],
    ],
)
def test_large_values_are_counted_rightly(value: Any) -> None:
    data = encode_value(value)
    assert len(data) > 1 << 20
    assert identical(decode_value(data, max_bytes=1 << 24), value)


def test_the_maximum_number_of_values_is_equal_on_both_sides() -> None:
    # Two bytes each, so that there are enough of them for a count.
    most = [200] * ((1 << 20) - 1)
    assert len(decode_value(encode_value(most), max_bytes=1 << 24)) == len(most)
    with pytest.raises(CodecError, match="more than 1048576 values"):
        encode_value([*most, 200])
    with pytest.raises(CodecError, match="more than 1048576 values"):
        decode_value(msgspec.msgpack.encode([*most, 200]), max_bytes=1 << 24)


def extension(code: int, payload: bytes) -> bytes:
    return b"\xc9" + struct.pack(">Ib", len(payload), code) + payload


def array_payload(name: bytes, shape: tuple[int, ...], items: bytes, filter_: int = 0) -> bytes:
    return bytes((filter_, len(shape), len(name))) + name + struct.pack(f"<{len(shape)}I", *shape) + items


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        b"\x91" * 100_000,
        b"\x81\xa1a" * 100_000,
        b"\xdd\xff\xff\xff\xff",
        b"\xdf\xff\xff\xff\xff",
        b"\xc6\xff\xff\xff\xff",
        b"\x01\x02",
        b"\xa1\xff",
        b"\x81\x91\x01\x02",
        b"\x81\x80\x02",
        b"\xd6\xff\x00\x00\x00\x00",
        extension(99, b""),
        extension(2, b""),
        extension(2, b"x"),
        b"\x92\x01" + extension(2, b""),
        b"\x81" + extension(2, b"") + b"\x01",
        b"\x81" + extension(4, (2**64).to_bytes(9, "little")) + b"\x01",
        b"\x81" + extension(3, array_payload(b"<f8", (), bytes(8))) + b"\x01",
        b"\x81" + extension(1, array_payload(b"<f8", (1,), bytes(8))) + b"\x01",
        extension(4, b""),
        extension(1, b""),
        extension(1, b"\x00\x01\x03<f"),
        extension(1, array_payload(b"|O", (1,), bytes(8))),
        extension(1, array_payload(b"<M8[s]", (1,), bytes(8))),
        extension(1, array_payload(b"\xff\xff\xff", (1,), bytes(8))),
        extension(1, array_payload(b"<f8", (2,), bytes(8))),
        extension(1, array_payload(b"<f8", (1,), bytes(16))),
        extension(1, array_payload(b"<f8", (2**31, 2**31, 8), b"")),
        extension(1, array_payload(b"<f8", (0, *[2**32 - 1] * 8), b"")),
        extension(1, array_payload(b"<f8", (1,) * 33, bytes(8))),
        extension(1, array_payload(b"<f8", (1,), bytes(8), filter_=2)),
        extension(3, array_payload(b"<f8", (1,), bytes(8))),
    ],
)
def test_invalid_encoded_values_are_refused(data: bytes) -> None:
    with pytest.raises(CodecError):
        decode_value(data, max_bytes=LIMIT)


@given(st.binary(max_size=200))
def test_any_bytes_give_a_value_or_codec_error(data: bytes) -> None:
    try:
        value = decode_value(data, max_bytes=LIMIT)
    except CodecError:
        return
    assert identical(decode_value(encode_value(value), max_bytes=LIMIT), value)


@given(values, st.data())
def test_changed_bytes_give_a_value_or_codec_error(value: Any, data: st.DataObject) -> None:
    message = bytearray(encode_value(value))
    for _ in range(data.draw(st.integers(1, 3))):
        message[data.draw(st.integers(0, len(message) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(message)))
    for damaged in (bytes(message), bytes(message[:cut])):
        try:
            decode_value(damaged, max_bytes=LIMIT)
        except CodecError:
            continue
