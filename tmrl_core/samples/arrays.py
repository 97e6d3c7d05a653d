"""Arrays as payloads of MessagePack extensions; see `values.py` for the format."""

from __future__ import annotations

import math
import struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tmrl_core.errors import CodecError
from tmrl_core.samples.supported_values import DTYPES, UncarriableError, check_dtype

PLAIN, PLANES = 0, 1

_HEAD = struct.Struct("<BBB")
_MAX_AXES = 32


def array_head(dtype: np.dtype[Any], shape: tuple[int, ...], filter_: int = PLAIN) -> bytes:
    """Return the header of an array's extension payload.

    Raises:
        UncarriableError: the dtype cannot be carried, or the array is too large for one message.
    """
    check_dtype(dtype)
    name = dtype.str.encode("ascii")
    axes = len(shape)
    try:
        return b"".join((_HEAD.pack(filter_, axes, len(name)), name, struct.pack(f"<{axes}I", *shape)))
    except struct.error as error:
        raise UncarriableError(f"is an array of shape {shape}") from error


def array_items(array: NDArray[Any]) -> memoryview:
    """Return an array's items as bytes, without copying them if the array is C-contiguous."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def array_planes(array: NDArray[Any]) -> NDArray[np.uint8]:
    """Return an array's items as byte planes [itemsize, size]: each row has one byte of every item."""
    items = np.ascontiguousarray(array).reshape(-1).view(np.uint8).reshape(array.size, array.itemsize)
    return np.ascontiguousarray(items.T)


def decode_array(payload: memoryview) -> NDArray[Any]:
    """Return the array of an extension payload: a view, or a copy if a filter must be undone.

    Raises:
        CodecError: the payload is not an array, or its length contradicts its shape and dtype.
    """
    try:
        filter_, axes, name_length = _HEAD.unpack_from(payload)
        start = _HEAD.size + name_length
        dtype = DTYPES.get(str(payload[_HEAD.size : start], "ascii"))
        if dtype is None or axes > _MAX_AXES or filter_ not in (PLAIN, PLANES):
            raise CodecError("an array of an unknown dtype, filter or number of axes")
        shape = struct.unpack_from(f"<{axes}I", payload, start)
        items = payload[start + 4 * axes :]
        # math.prod uses Python's integers, so that a shape chosen to overflow is detected.
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
