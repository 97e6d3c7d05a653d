"""Nested values as bytes: the supported values and their encoding.

MessagePack has no tuples, NumPy arrays or integers beyond 64 bits. They are encoded as extension types:

| code | payload | value |
| --- | --- | --- |
| 1 | filter u8, axes u8, length of the dtype's name u8, the name as in `dtype.str`, axes x u32, raw items | array |
| 2 | empty; the first item of a MessagePack array | the other items are a tuple |
| 3 | as 1, with no axes | NumPy scalar |
| 4 | two's complement, little-endian, up to 1,024 bytes | integer beyond 64 bits |

All numbers are little-endian; the items have the byte order in the dtype's name. Filter 0 is none; filter 1 means that
the items are stored byte by byte (the first byte of every item, then the second of every item, ...), which groups
similar bytes before compression.
"""

# Theory of operation
#
# Two directions, two representations: `pack` turns a value into MessagePack's own types and `Ext`, `unpack` turns the
# result of msgspec's decoder back. `own` is the third walk: a deep copy, with the same rules, when a sample is
# recorded. All three are `_walk` with a `_Scheme` of four conversions, so a value that can be recorded can also be
# sent.
#
# What must survive: Python's types (1, 1.0 and True are three values; a tuple is no list), NumPy's dtypes with their
# byte order, the order of dict keys, -0.0 and NaN. What may not: subclasses become their base type, because the other
# side could not make them without running code that the peer names.
#
# A tuple is the list [mark, item, ...], with an empty extension as mark. A nested extension would need a second encoder
# for its payload, with copies of all that is inside.
#
# Limits, and where they come from:
#
# - Depth 32: `unpack` recurses in Python, and 1,000 levels would end in a RecursionError.
# - 2^20 values, counted before msgspec decodes anything over 1 MiB: one byte of MessagePack may become an empty list of
#   80 bytes, so 100 MB of them would be 8 GB. The count reads heads only and skips payloads, so the large arrays of an
#   ordinary message cost nothing. Below 1 MiB the worst case is 80 MB, and counting would cost more than decoding.
# - Integers of 1,024 bytes: Python refuses to print larger ones, so an error message about them would fail itself.
# - No long doubles: their size differs between machines, and their padding would send bytes of our memory.
#
# The encoder counts too: what it would write and nobody could read is refused where it is made.
#
# Errors carry the path of the value, which grows while the exception passes the containers, innermost key first. Nobody
# pays for the path of a value that is fine.

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from tmrl_core.errors import CodecError
from tmrl_core.samples.arrays import array_head, array_items, decode_array
from tmrl_core.samples.supported_values import (
    DTYPES,
    INT_MAX,
    INT_MIN,
    KEYS,
    MAX_DEPTH,
    MAX_INTEGER_BYTES,
    UncarriableError,
    check_dtype,
    own_integer,
    own_key,
    own_text,
    type_name,
)

ARRAY, TUPLE, SCALAR, INTEGER = 1, 2, 3, 4
# One byte may become an empty list of 80 bytes. Therefore at most this number of bytes is decoded without counting
# values, and at most this number of values with counting.
_UNCOUNTED_BYTES = 1 << 20
_MOST_VALUES = 1 << 20

_TUPLE_MARK = object()
_NATIVE = frozenset({type(None), bool, int, float, str, bytes})


def encode_value(value: Any) -> bytes:
    """Return a nested value as bytes; structure, types and dtypes are preserved.

    Subclasses of the supported types are encoded as their base type (a named tuple as a tuple).

    Raises:
        CodecError: the value, or a part of it, is of an unsupported type.
    """
    return encode(pack(value, "value"))


def decode_value(data: bytes | bytearray | memoryview, *, max_bytes: int) -> Any:
    """Undo `encode_value`. Arrays are views of `data`, perhaps unaligned, and must not be written to.

    Raises:
        CodecError: the data is larger than `max_bytes`, or `encode_value` did not write it.
    """
    view = memoryview(data).cast("B")
    if len(view) > max_bytes:
        raise CodecError(f"a value of {len(view)} bytes, more than the limit of {max_bytes}")
    return unpack(decode(_VALUE_DECODER, view))


def own(value: Any, name: str) -> Any:
    """Return a deep copy of a supported value, so that its owner may reuse its memory.

    Raises:
        CodecError: a part of it is not supported; the message names it, starting with `name`.
    """
    return _rebuild(value, name, _OWN)


def own_entries(entries: dict[Any, Any], name: str) -> tuple[dict[Any, Any], list[str]]:
    """Return a deep copy of a dict without unsupported values, and a sentence for each part left out.

    Of a nested dict, only the unsupported entries are left out. Other containers are left out completely.
    """
    try:
        return _walk(entries, _OWN, 0), []
    except UncarriableError:
        refused: list[str] = []
        return _own_parts(entries, name, [], refused), refused


def _own_parts(entries: dict[Any, Any], name: str, path: list[Any], refused: list[str]) -> dict[Any, Any]:
    owned: dict[Any, Any] = {}
    for key, value in entries.items():
        inside = path
        try:
            own_name = own_key(key)
            inside = [*path, key]
            if isinstance(value, dict) and len(inside) < MAX_DEPTH:
                owned[own_name] = _own_parts(value, name, inside, refused)
            else:
                owned[own_name] = _walk(value, _OWN, len(inside))
        except UncarriableError as error:
            error.path += reversed(inside)
            refused.append(error.told(name))
    return owned


def pack(value: Any, name: str) -> Any:
    """Return the value in terms of MessagePack. Large arrays are referenced, not copied.

    Raises:
        CodecError: a part of it is not supported; the message names it, starting with `name`.
    """
    return _rebuild(value, name, _PACK)


def unpack(packed: Any, depth: int = 0) -> Any:
    """Undo `pack`.

    Raises:
        CodecError: `pack` did not return the value.
    """
    kind = type(packed)
    if kind in _NATIVE or isinstance(packed, (np.ndarray, np.generic)):
        return packed
    if depth >= MAX_DEPTH:
        raise CodecError(f"a value nested deeper than {MAX_DEPTH} levels")
    if kind is list:
        if packed and packed[0] is _TUPLE_MARK:
            return tuple([unpack(item, depth + 1) for item in packed[1:]])
        return [unpack(item, depth + 1) for item in packed]
    if kind is dict:
        return {unpack_key(key): unpack(item, depth + 1) for key, item in packed.items()}
    raise CodecError(f"a {kind.__name__} where a value was expected")


def unpack_key(key: Any) -> Any:
    """Return a key of a dict from received bytes.

    Raises:
        CodecError: the type is not allowed for keys, or it is an integer beyond 64 bits.
    """
    if type(key) not in KEYS or (type(key) is int and not INT_MIN <= key <= INT_MAX):
        raise CodecError(f"a key of type {type(key).__name__} in a dict, or an integer key beyond 64 bits")
    return key


def encode(packed: Any) -> bytes:
    """Return packed values, or structs that hold them, as MessagePack.

    Raises:
        CodecError: a value is too large for MessagePack, or is not packed.
    """
    try:
        data = _ENCODER.encode(packed)
        if len(data) > _UNCOUNTED_BYTES:
            _check_count(data)
        return data
    except CodecError:
        raise
    except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError) as error:
        raise CodecError(f"cannot be written as MessagePack: {error}") from error


def decode(decoder: msgspec.msgpack.Decoder[Any], data: bytes | bytearray | memoryview) -> Any:
    """Decode MessagePack; `decoder` has `ext_hook` as its hook.

    Raises:
        CodecError: the data has another type than the decoder expects, or too many values.
    """
    if len(data) > _UNCOUNTED_BYTES:
        _check_count(data)
    try:
        return decoder.decode(data)
    except CodecError:
        raise
    except (ValueError, TypeError, OverflowError, RecursionError, msgspec.MsgspecError) as error:
        raise CodecError(f"not written by the codec: {error}") from error


def _check_count(data: bytes | bytearray | memoryview) -> None:
    """Check that MessagePack holds at most `_MOST_VALUES` values, containers and keys included.

    The decoder reports malformed data.

    Raises:
        CodecError: there are more values.
    """
    position, end = 0, len(data)
    for _ in range(_MOST_VALUES):
        if position >= end:
            return
        first = data[position]
        if 0xA0 <= first <= 0xBF:
            position += 1 + (first & 31)
        elif first in _FIXED:
            position += _FIXED[first]
        elif first in _COUNTED:
            width, more = _COUNTED[first]
            position += 1 + width
            position += more + int.from_bytes(data[position - width : position], "big")
        else:
            position += 1
    if position < end:
        raise CodecError(f"more than {_MOST_VALUES} values in {end} bytes")


# MessagePack's first bytes of values with more than one byte: those of a fixed length, and those followed by a count of
# bytes, with the count's width and the number of further bytes. A container's items follow like other values.
_FIXED = {0xCA: 5, 0xCB: 9, 0xCC: 2, 0xCD: 3, 0xCE: 5, 0xCF: 9, 0xD0: 2, 0xD1: 3, 0xD2: 5, 0xD3: 9}
_FIXED |= {0xD4: 3, 0xD5: 4, 0xD6: 6, 0xD7: 10, 0xD8: 18, 0xDC: 3, 0xDD: 5, 0xDE: 3, 0xDF: 5}
_COUNTED = {0xC4: (1, 0), 0xC5: (2, 0), 0xC6: (4, 0), 0xC7: (1, 1), 0xC8: (2, 1), 0xC9: (4, 1)}
_COUNTED |= {0xD9: (1, 0), 0xDA: (2, 0), 0xDB: (4, 0)}


def ext_hook(code: int, payload: memoryview) -> Any:
    """Turn MessagePack's extension types into values.

    Raises:
        CodecError: the code is unknown, or the payload does not match the code.
    """
    if code == ARRAY:
        return decode_array(payload)
    if code == TUPLE and not payload:
        return _TUPLE_MARK
    if code == SCALAR:
        array = decode_array(payload)
        if array.ndim == 0:
            return array[()]
    if code == INTEGER and 0 < len(payload) <= MAX_INTEGER_BYTES:
        return int.from_bytes(payload, "little", signed=True)
    raise CodecError(f"an unknown extension of type {code} and {len(payload)} bytes")


class _Scheme(NamedTuple):
    """Conversions of the values that are neither containers nor MessagePack's own types."""

    array: Callable[[NDArray[Any]], Any]
    scalar: Callable[[Any], Any]
    integer: Callable[[int], Any]
    tuple: Callable[[list[Any]], Any]


def _rebuild(value: Any, name: str, scheme: _Scheme) -> Any:
    try:
        return _walk(value, scheme, 0)
    except UncarriableError as error:
        raise error.named(name) from None


def _walk(value: Any, scheme: _Scheme, depth: int) -> Any:
    kind = type(value)
    if kind is float or kind is bool or value is None or kind is bytes:
        return value
    if kind is int:
        return scheme.integer(value)
    if kind is str:
        return own_text(value)
    if isinstance(value, np.ndarray):
        if kind is not np.ndarray and kind is not np.memmap:
            raise UncarriableError(f"is a {type_name(value)}")
        check_dtype(value.dtype)
        return scheme.array(value)
    if isinstance(value, np.generic):
        return _walk_scalar(value, scheme)
    if isinstance(value, (dict, list, tuple)):
        if depth >= MAX_DEPTH:
            raise UncarriableError("is nested too deep")
        return _walk_container(value, scheme, depth + 1)
    # Subclasses are encoded as their base type with its methods, because an enum's str() is its name.
    if isinstance(value, int):
        return scheme.integer(int.__int__(value))
    if isinstance(value, float):
        return float.__float__(value)
    if isinstance(value, str):
        return own_text(str.__str__(value))
    if isinstance(value, bytes):
        return b"".join((value,))
    raise UncarriableError(f"is a {type_name(value)}")


def _walk_container(value: dict[Any, Any] | list[Any] | tuple[Any, ...], scheme: _Scheme, depth: int) -> Any:
    place: Any = None
    try:
        if isinstance(value, dict):
            mapping = {}
            for place, item in value.items():
                mapping[own_key(place)] = _walk(item, scheme, depth)
            return mapping
        items: list[Any] = []
        for item in value:
            place = len(items)
            items.append(_walk(item, scheme, depth))
        return scheme.tuple(items) if isinstance(value, tuple) else items
    except UncarriableError as error:
        error.path.append(place)
        raise


def _walk_scalar(value: np.generic, scheme: _Scheme) -> Any:
    if isinstance(value, np.str_):
        return own_text(str.__str__(value))
    if isinstance(value, np.bytes_):
        return b"".join((value,))
    if value.dtype.str not in DTYPES:
        raise UncarriableError(f"is a {type_name(value)}")
    return scheme.scalar(value)


def _pack_array(array: NDArray[Any], code: int = ARRAY) -> msgspec.msgpack.Ext:
    return msgspec.msgpack.Ext(code, b"".join((array_head(array.dtype, array.shape), array_items(array))))


def _pack_integer(value: int) -> Any:
    if INT_MIN <= value <= INT_MAX:
        return value
    size = own_integer(value).bit_length() // 8 + 1
    return msgspec.msgpack.Ext(INTEGER, value.to_bytes(size, "little", signed=True))


_OWN = _Scheme(
    array=lambda array: np.array(array, order="C", copy=True), scalar=lambda s: s, integer=own_integer, tuple=tuple
)
_PACK = _Scheme(
    array=_pack_array,
    scalar=lambda scalar: _pack_array(np.asarray(scalar), SCALAR),
    integer=_pack_integer,
    tuple=lambda items: [msgspec.msgpack.Ext(TUPLE, b""), *items],
)

_ENCODER = msgspec.msgpack.Encoder()
_VALUE_DECODER: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(ext_hook=ext_hook)
