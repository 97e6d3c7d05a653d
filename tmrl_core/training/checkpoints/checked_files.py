"""The files of one checkpoint: written and flushed, and read only if sizes and checksums are right.

Arrays are in the safetensors format, which other programs can read; everything else is JSON.
"""

from __future__ import annotations

import json
import os
import zlib
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np
import safetensors.numpy
from safetensors import SafetensorError

from tmrl_core.errors import CheckpointError
from tmrl_core.storage import read_whole
from tmrl_core.training.memories.layout import Array
from tmrl_core.training.value_types import State

_Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]


class FileEntry(msgspec.Struct, frozen=True):
    """Size and checksum of a file."""

    bytes: _Count
    crc32: _Count


def write_file(path: Path, data: bytes) -> FileEntry:
    """Write and flush a file; return its size and checksum. Both release the interpreter's lock."""
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    return FileEntry(len(data), zlib.crc32(data))


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


def safetensors_bytes(arrays: dict[str, Array]) -> bytes:
    """Return the content of a safetensors file.

    Raises:
        CheckpointError: the format does not hold the dtype of an array.
    """
    try:
        # The library writes the memory of an array as it lies, also where that is by columns.
        return safetensors.numpy.save({name: np.asarray(array, order="C") for name, array in arrays.items()})
    except (KeyError, SafetensorError) as exc:
        found = ", ".join(sorted({str(array.dtype) for array in arrays.values()}))
        raise CheckpointError(f"a checkpoint cannot hold arrays of one of the dtypes {found}: {exc}") from exc


def parse_safetensors(data: bytes, path: Path) -> dict[str, Array]:
    """Return arrays by name; `path` is for the message.

    Raises:
        CheckpointError: `data` is not a valid safetensors file.
    """
    try:
        return safetensors.numpy.load(data)
    except (SafetensorError, ValueError, KeyError, TypeError) as exc:
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
