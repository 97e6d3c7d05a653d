"""The files of one checkpoint: written in slices and flushed, and read only if sizes and checksums are right.

Arrays are in the safetensors format, which other programs can read; everything else is JSON.
"""

from __future__ import annotations

import json
import math
import os
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np

from tmrl_core.errors import CheckpointError
from tmrl_core.storage import read_whole
from tmrl_core.training.memories.layout import Array
from tmrl_core.training.value_types import State

SLICE_BYTES = 1 << 20

_DTYPES = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint64": "U64",
    "uint32": "U32",
    "uint16": "U16",
    "uint8": "U8",
    "bool": "BOOL",
}
_NAMES = {tag: np.dtype(name) for name, tag in _DTYPES.items()}


_Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]


class FileEntry(msgspec.Struct, frozen=True):
    """Size and checksum of a file."""

    bytes: _Count
    crc32: _Count


def write_file(path: Path, parts: Sequence[memoryview | bytes]) -> FileEntry:
    """Write and flush a file in slices that release the interpreter's lock; return its size and checksum."""
    crc = size = 0
    with path.open("wb", buffering=0) as file:
        for part in parts:
            view = memoryview(part).cast("B")
            for start in range(0, len(view), SLICE_BYTES):
                piece = view[start : start + SLICE_BYTES]
                while piece:
                    written = file.write(piece)
                    crc = zlib.crc32(piece[:written], crc)
                    size += written
                    piece = piece[written:]
        os.fsync(file.fileno())
    return FileEntry(size, crc)


def read_file(path: Path, expected: FileEntry) -> bytes:
    """Read a file that `write_file` wrote.

    Raises:
        CheckpointError: it is missing, truncated or damaged.
    """
    try:
        data = read_whole(path)
    except OSError as exc:
        raise CheckpointError(f"{path} cannot be read: {exc}") from exc
    if len(data) != expected.bytes:
        raise CheckpointError(f"{path} is cut short: {len(data)} of {expected.bytes} bytes")
    if zlib.crc32(data) != expected.crc32:
        raise CheckpointError(f"{path} is damaged: its checksum is wrong")
    return data


def safetensors_parts(arrays: dict[str, Array]) -> list[memoryview | bytes]:
    """Return the parts of a safetensors file, without copying the arrays."""
    entries: dict[str, object] = {}
    parts: list[memoryview | bytes] = []
    offset = 0
    for name, array in arrays.items():
        tag = _DTYPES.get(array.dtype.name)
        if tag is None:
            raise CheckpointError(f"{name} has dtype {array.dtype}; a checkpoint holds {', '.join(_DTYPES)}")
        entries[name] = {
            "dtype": tag,
            "shape": list(array.shape),
            "data_offsets": [offset, offset + array.nbytes],
        }
        offset += array.nbytes
        if array.nbytes:
            parts.append(array.reshape(-1).view(np.uint8).data)
    text = json.dumps(entries).encode()
    text += b" " * (-len(text) % 8)
    return [len(text).to_bytes(8, "little") + text, *parts]


def parse_safetensors(data: bytes, path: Path) -> dict[str, Array]:
    """Return arrays by name, as views of `data`; `path` is for the message.

    Raises:
        CheckpointError: `data` is not a valid safetensors file.
    """
    try:
        length = int.from_bytes(data[:8], "little")
        if length > len(data) - 8:
            raise ValueError("it is cut short within its head")
        entries = json.loads(data[8 : 8 + length])
        arrays = {}
        for name, entry in entries.items():
            begin, end = map(int, entry["data_offsets"])
            dtype = _NAMES[entry["dtype"]]
            shape = tuple(map(int, entry["shape"]))
            size = math.prod(shape)
            if min(begin, 0, *shape) < 0 or end - begin != size * dtype.itemsize or 8 + length + end > len(data):
                raise ValueError(f"{name} cannot lie where its entry says")
            # An empty array may end at the end of the file, where no view can begin.
            values = np.frombuffer(data, dtype, size, 8 + length + begin) if size else np.empty(0, dtype)
            arrays[name] = values.reshape(shape)
        return arrays
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as exc:
        raise CheckpointError(f"{path} does not hold what its manifest says: {exc}") from exc


def parse_state(data: bytes, path: Path) -> State:
    """Return the tree of `tmrl_core.training.checkpoints.capture`; `path` is for the message.

    Raises:
        CheckpointError: `data` is not a JSON object.
    """
    try:
        tree = json.loads(data)
    except (ValueError, RecursionError) as exc:
        raise CheckpointError(f"{path} does not hold what its manifest says: {exc}") from exc
    if not isinstance(tree, dict):
        raise CheckpointError(f"{path} does not hold what its manifest says: it is a {type(tree).__name__}")
    return tree
