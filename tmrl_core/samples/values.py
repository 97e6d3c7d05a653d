"""Nested values as bytes: what the codec carries, and how.

MessagePack has no tuples, NumPy arrays or integers beyond 64 bits. They travel as extension types:

| code | payload | value |
| --- | --- | --- |
| 1 | filter u8, axes u8, length of the dtype's name u8, the name as in `dtype.str`, axes x u32, raw items | array |
| 2 | empty; the first item of a MessagePack array | the other items are a tuple |
| 3 | as 1, with no axes | NumPy scalar |
| 4 | two's complement, little-endian | integer beyond 64 bits |

All numbers are little-endian; the items have the byte order that the dtype's name says. Filter 0 is none; filter 1
means that the items are stored byte by byte (the first byte of every item, then the second of every item, ...), which
puts like with like before compression.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from tmrl_core.errors import CodecError

MAX_DEPTH = 32
"""How deep containers may be nested, checked where values enter and where bytes do."""

ALLOWED = (
    "None, bool, int, float, str, bytes, list, tuple, dict (keys: str, bytes, int, float, bool, None), and NumPy "
    "arrays and scalars of bool, integer, float (16 to 64 bits) and complex (64, 128 bits) dtypes"
)

ARRAY, TUPLE, SCALAR, INTEGER = 1, 2, 3, 4
PLAIN, PLANES = 0, 1

_HEAD = struct.Struct("<BBB")
_MAX_AXES = 32
# A table instead of np.dtype(name): nothing that a peer wrote is parsed. No long doubles: their format is not the same
# everywhere, and their padding would carry whatever lay in memory.
DTYPES: dict[str, np.dtype[Any]] = {
    dtype.str: dtype
    for dtype in (np.dtype(order + code) for code in "?bhilqBHILQefdFD" for order in "<>")
    if dtype.kind in "biufc"
}

_TUPLE_MARK = object()
_NATIVE = frozenset({type(None), bool, int, float, str, bytes})
_KEYS = frozenset({type(None), bool, int, float, str, bytes})
_INT_MIN, _INT_MAX = -(2**63), 2**64 - 1


def encode_value(value: Any) -> bytes:
    """Return a nested value as bytes; structure, types and dtypes come back as they were.

    Subclasses of the allowed types travel as what they derive from (a named tuple as a tuple).

    Raises:
        CodecError: the value, or something in it, is of a type that cannot be carried.
    """
    return encode(pack(value, "value"))


def decode_value(data: bytes | bytearray | memoryview, *, max_bytes: int) -> Any:
    """Return what `encode_value` was given. Arrays are read-only views of `data`, perhaps unaligned.

    Raises:
        CodecError: more than `max_bytes`, or not what `encode_value` writes.
    """
    if memoryview(data).nbytes > max_bytes:
        raise CodecError(f"a value of {memoryview(data).nbytes} bytes, more than the limit of {max_bytes}")
    return unpack(decode(_VALUE_DECODER, data))


def own(value: Any, name: str) -> Any:
    """Return a deep copy of a value that the codec can carry, so that its maker may use its memory again.

    Raises:
        CodecError: something in it cannot be carried; the message names it, starting with `name`.
    """
    return _rebuild(value, name, _OWN)


def pack(value: Any, name: str) -> Any:
    """Return the value in terms of MessagePack; large arrays are referred to, not copied.

    Raises:
        CodecError: something in it cannot be carried; the message names it, starting with `name`.
    """
    return _rebuild(value, name, _PACK)


def unpack(packed: Any, depth: int = 0) -> Any:
    """Return the value whose `pack` this is.

    Raises:
        CodecError: it is not what `pack` returns.
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
    """Return a key of a dict out of received bytes.

    Raises:
        CodecError: a type that is no key.
    """
    if type(key) not in _KEYS:
        raise CodecError(f"a key of type {type(key).__name__} in a dict")
    return key


def own_key(key: Any) -> Any:
    """Return a key of a dict that the codec can carry, as its base type.

    Raises:
        UncarriableError: it cannot be carried.
    """
    kind = type(key)
    if kind is str:
        return _text(key)
    if kind is int and not _INT_MIN <= key <= _INT_MAX:
        raise UncarriableError("has an integer key beyond 64 bits")
    if kind in _KEYS:
        return key
    if isinstance(key, str):
        return _text(str.__str__(key))
    raise UncarriableError(f"has a key of type {_type_name(key)}")


def check_dtype(dtype: np.dtype[Any]) -> None:
    """Check that arrays of this dtype can be carried.

    Raises:
        UncarriableError: they cannot.
    """
    if dtype.str not in DTYPES:
        raise UncarriableError(f"is an array of dtype {dtype}")


def array_head(array: NDArray[Any], filter_: int = PLAIN) -> bytes:
    """Return what stands before the items in an array's extension payload.

    Raises:
        UncarriableError: the dtype cannot be carried, or the array is too large for one message.
    """
    check_dtype(array.dtype)
    name = array.dtype.str.encode("ascii")
    try:
        shape = struct.pack(f"<{array.ndim}I", *array.shape)
        return b"".join((_HEAD.pack(filter_, array.ndim, len(name)), name, shape))
    except struct.error as error:
        raise UncarriableError(f"is an array of shape {array.shape}") from error


def array_items(array: NDArray[Any]) -> memoryview:
    """Return an array's items as bytes, without copying them if the array is C-contiguous."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def array_planes(array: NDArray[Any]) -> NDArray[np.uint8]:
    """Return an array's items byte by byte: [itemsize, size], each row one byte of every item."""
    items = np.ascontiguousarray(array).reshape(-1).view(np.uint8).reshape(array.size, array.itemsize)
    return np.ascontiguousarray(items.T)


def decode_array(payload: memoryview) -> NDArray[Any]:
    """Return the array of an extension payload: a read-only view, or a copy if a filter has to be undone.

    Raises:
        CodecError: the payload is not an array's, or its length is not what its shape and dtype say.
    """
    try:
        filter_, axes, name_length = _HEAD.unpack_from(payload)
        start = _HEAD.size + name_length
        dtype = DTYPES.get(str(payload[_HEAD.size : start], "ascii"))
        if dtype is None or axes > _MAX_AXES or filter_ not in (PLAIN, PLANES):
            raise CodecError("an array of an unknown dtype, filter or number of axes")
        shape = struct.unpack_from(f"<{axes}I", payload, start)
        items = payload[start + 4 * axes :]
        # math.prod counts in Python's integers, so a shape chosen to overflow does not get through.
        if math.prod(shape) * dtype.itemsize != len(items):
            raise CodecError(f"an array of shape {shape} and dtype {dtype} in {len(items)} bytes")
        if not items:
            return np.empty(shape, dtype)
        if filter_ == PLANES:
            planes = np.frombuffer(items, np.uint8).reshape(dtype.itemsize, -1)
            return np.ascontiguousarray(planes.T).reshape(-1).view(dtype).reshape(shape)
        return np.frombuffer(items, dtype).reshape(shape)
    except (struct.error, UnicodeDecodeError) as error:
        raise CodecError("an array whose head is cut short or no text") from error
    except ValueError as error:
        if isinstance(error, CodecError):
            raise
        raise CodecError(f"an array that cannot be: {error}") from error


def encode(packed: Any) -> bytes:
    """Return packed values, or structs that hold them, as MessagePack.

    Raises:
        CodecError: something is too large for MessagePack, or is not packed.
    """
    try:
        return _ENCODER.encode(packed)
    except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError) as error:
        raise CodecError(f"cannot be written as MessagePack: {error}") from error


def decode(decoder: msgspec.msgpack.Decoder[Any], data: bytes | bytearray | memoryview) -> Any:
    """Decode MessagePack; `decoder` has `ext_hook` as its hook.

    Raises:
        CodecError: anything else than what the decoder expects.
    """
    try:
        return decoder.decode(data)
    except CodecError:
        raise
    except (ValueError, TypeError, OverflowError, RecursionError, msgspec.MsgspecError) as error:
        raise CodecError(f"not what the codec writes: {error}") from error


def ext_hook(code: int, payload: memoryview) -> Any:
    """Turn MessagePack's extension types into values.

    Raises:
        CodecError: an unknown code, or a payload that is not the code's.
    """
    if code == ARRAY:
        return decode_array(payload)
    if code == TUPLE and not payload:
        return _TUPLE_MARK
    if code == SCALAR:
        array = decode_array(payload)
        if array.ndim == 0:
            return array[()]
    if code == INTEGER and payload:
        return int.from_bytes(payload, "little", signed=True)
    raise CodecError(f"an unknown extension of type {code} and {len(payload)} bytes")


class UncarriableError(Exception):
    """Something cannot be carried; `path` grows on the way out, innermost key first."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.path: list[Any] = []

    def named(self, name: str) -> CodecError:
        """Return the error for the caller, which names the field."""
        path = name + "".join(f"[{_key_name(key)}]" for key in reversed(self.path))
        return CodecError(
            f"{path} {self.reason}, which the codec cannot carry. It carries {ALLOWED}, nested up to {MAX_DEPTH} "
            f"levels. Convert the value or leave it out."
        )


class _Scheme(NamedTuple):
    """What to make of the values that are not containers of others nor MessagePack's own."""

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
        return _text(value)
    if isinstance(value, np.ndarray):
        if kind is not np.ndarray and kind is not np.memmap:
            raise UncarriableError(f"is a {_type_name(value)}")
        check_dtype(value.dtype)
        return scheme.array(value)
    if isinstance(value, np.generic):
        return _walk_scalar(value, scheme)
    if isinstance(value, (dict, list, tuple)):
        if depth >= MAX_DEPTH:
            raise UncarriableError("is nested too deep")
        return _walk_container(value, scheme, depth + 1)
    # Subclasses travel as the type that they derive from, and by its own methods: an enum's str() is its name.
    if isinstance(value, int):
        return scheme.integer(int.__int__(value))
    if isinstance(value, float):
        return float.__float__(value)
    if isinstance(value, str):
        return _text(str.__str__(value))
    if isinstance(value, bytes):
        return b"".join((value,))
    raise UncarriableError(f"is a {_type_name(value)}")


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
        return _text(str.__str__(value))
    if isinstance(value, np.bytes_):
        return b"".join((value,))
    if value.dtype.str not in DTYPES:
        raise UncarriableError(f"is a {_type_name(value)}")
    return scheme.scalar(value)


def _text(value: str) -> str:
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise UncarriableError("is text with lone surrogates") from error
    return value


def _key_name(key: Any) -> str:
    # Not repr() of just anything: it may fail, and it may be long.
    if isinstance(key, str) and len(key) > 60:
        return f"{key[:60]!r}..."
    if isinstance(key, (str, float)) or (isinstance(key, int) and key.bit_length() <= 64):
        return repr(key)
    return f"a {_type_name(key)}"


def _type_name(value: Any) -> str:
    kind = type(value)
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _pack_array(array: NDArray[Any], code: int = ARRAY) -> msgspec.msgpack.Ext:
    return msgspec.msgpack.Ext(code, b"".join((array_head(array), array_items(array))))


def _pack_integer(value: int) -> Any:
    if _INT_MIN <= value <= _INT_MAX:
        return value
    return msgspec.msgpack.Ext(INTEGER, value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True))


_OWN = _Scheme(
    array=lambda array: np.array(array, order="C", copy=True), scalar=lambda s: s, integer=lambda i: i, tuple=tuple
)
_PACK = _Scheme(
    array=_pack_array,
    scalar=lambda scalar: _pack_array(np.asarray(scalar), SCALAR),
    integer=_pack_integer,
    tuple=lambda items: [msgspec.msgpack.Ext(TUPLE, b""), *items],
)

_ENCODER = msgspec.msgpack.Encoder()
_VALUE_DECODER: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(ext_hook=ext_hook)
