"""Recorded messages of samples: the same bytes are written, and they are read as the same values.

They prove that a change of the code leaves the format unchanged: workers, trainers, spools and recordings hold such
bytes. Other bytes are another format, whose commit raises the version of what contains them.

`codec_bytes.json` holds for each message its bytes in base64, `none` without compression and `zstd` with it. Those
without are compared exactly. Those with zstd are only decoded, since their bytes depend on the library's version.

`RECORD_CODEC=1 pytest tests/samples/test_codec_bytes.py` adds messages that are not recorded yet, and never changes one
that is: a commit that changes the format removes the recorded ones and says why.
"""

from __future__ import annotations

import base64
import dataclasses
import functools
import json
import math
import os
import struct
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tmrl_core.samples import Buffer, Chunk, EpisodeRecord, decode_message, encode_message

RECORDED = Path(__file__).with_name("codec_bytes.json")
RECORDING = os.environ.get("RECORD_CODEC") == "1"
LIMIT = 1 << 20
DTYPES = [np.dtype(order + code) for code in "?bhiqBHIQefdFD" for order in "<>"]
RECORDS = [
    EpisodeRecord("", -1.5, 200, "train", "truncated", 3, (1, 7), 42, 5, "robot7", {"is_success": 1.0, "speed": 0.25}),
    EpisodeRecord("a", math.inf, 0, "test", "aborted"),
]


def chunk_of(samples: Iterable[tuple[Any, ...]]) -> Chunk:
    """The last chunk of samples `(act, obs, rew, terminated, truncated, info, extras)`, in most cases the only one."""
    buffer = Buffer(maxlen=None)
    buffer.set_version((2, 5))
    for *sample, extras in samples:
        buffer.append_sample(sample, extras)
    return buffer.take()[0][-1]


def values(dtype: np.dtype[Any], row: int, shape: tuple[int, ...]) -> Any:
    """Values that differ by row, the lowest, the highest and fractions among them."""
    plain: Any = np.arange(row, row + math.prod(shape)).reshape(shape)
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        plain = np.where(plain % 3 == 0, plain, np.where(plain % 3 == 1, limits.max, limits.min))
    elif dtype.kind in "fc":
        plain = plain / 8 - 1
    else:
        plain = plain % 2
    return plain.astype(dtype)


def of_dtype(dtype: np.dtype[Any]) -> Chunk:
    return chunk_of(
        (values(dtype, row, (2,)) if row else None, values(dtype, row, (2, 2)), row / 4, row == 4, False, {}, None)
        for row in range(5)
    )


def vectors() -> Chunk:
    """Samples as most environments send them, with enough rows for the filters of zstd."""
    random = np.random.default_rng(0)
    return chunk_of(
        (
            None if row % 40 == 0 else (random.integers(-64, 65, 1) / 64).astype(np.float32),
            (random.integers(-64, 65, 3) / 64).astype(np.float32),
            np.float64(random.integers(-64, 65) / 64),
            row % 40 == 39,
            False,
            {},
            None,
        )
        for row in range(120)
    )


def nested() -> Chunk:
    return chunk_of(
        (
            {"arm": np.array([row], np.int16), "grip": np.int64(row % 2)} if row else None,
            {
                "b": (np.array([row, 1.5], np.float32), row, row / 2, row % 2 == 0),
                "a": {3: np.array(row, ">i2"), "empty": {}},
            },
            row,
            False,
            row == 5,
            {},
            None,
        )
        for row in range(6)
    )


def images() -> Chunk:
    random = np.random.default_rng(1)
    return chunk_of(
        (
            np.int64(row) if row else None,
            {"image": random.integers(0, 256, (6, 5, 3), dtype=np.uint8), "stack": np.full((4, 2), row, np.uint8)},
            1.0,
            row == 3,
            False,
            {},
            None,
        )
        for row in range(4)
    )


def extras_and_infos() -> Chunk:
    return chunk_of(
        (
            np.array([row], np.float32) if row else None,
            np.array([row], np.float32),
            np.float32(row),
            False,
            False,
            {"frame": np.arange(row), "why": ("x", None, b"\x00", [True, 2**63])} if row % 2 else {},
            {"logp": np.float32(-row), "hidden": (np.zeros((2, 0)), np.full((1, 2), row, np.float64))},
        )
        for row in range(5)
    )


def ragged() -> Chunk:
    """Leaves that no column can hold."""
    return chunk_of(
        (
            ("left" if row % 2 else "right") if row else None,
            {"text": ["goal", (row, None)], "points": np.ones((row, 2), np.float32)},
            0.5,
            False,
            False,
            {},
            None,
        )
        for row in range(4)
    )


def segments() -> Chunk:
    buffer = Buffer(maxlen=None)
    for row in range(9):
        if row % 3 == 0:
            buffer.start_episode(7 + row)
        if row in (2, 5):
            buffer.set_version((3, row))
        buffer.append_sample((None if row % 3 == 0 else np.ones(1), np.array([row * 0.5]), 0.0, False, False, {}))
    (chunk,), _ = buffer.take()
    return chunk


CHUNKS: dict[str, Callable[[], Chunk | None]] = {
    **{f"dtype {dtype.str}": functools.partial(of_dtype, dtype) for dtype in DTYPES},
    "vectors": vectors,
    "nested": nested,
    "images": images,
    "extras and infos": extras_and_infos,
    "ragged": ragged,
    "segments": segments,
    "records only": lambda: None,
}


def plain(value: Any) -> Any:
    """A value in a form that `==` compares exactly: types, dtypes with byte order, bits and the order of keys."""
    if isinstance(value, (np.ndarray, np.generic)):
        return type(value).__name__, value.dtype.str, value.shape, value.tobytes()
    if dataclasses.is_dataclass(value):
        return [plain(getattr(value, field.name)) for field in dataclasses.fields(value)]
    if isinstance(value, dict):
        return "dict", [(plain(key), plain(item)) for key, item in value.items()]
    if isinstance(value, (list, tuple)):
        return type(value).__name__, [plain(item) for item in value]
    return type(value).__name__, struct.pack("d", value) if isinstance(value, float) else value


def encoded(name: str, compression: Any) -> bytes:
    return encode_message(CHUNKS[name](), RECORDS, signature=b"spaces", compression=compression)


@pytest.fixture(scope="module")
def recorded() -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = json.loads(RECORDED.read_text(encoding="utf-8")) if RECORDED.exists() else {}
    if RECORDING:
        for name in CHUNKS.keys() - found.keys():
            found[name] = {way: base64.b64encode(encoded(name, way)).decode() for way in ("none", "zstd")}
        RECORDED.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    return found


@pytest.mark.parametrize("name", CHUNKS)
def test_the_recorded_bytes_are_written(name: str, recorded: dict[str, dict[str, str]]) -> None:
    assert encoded(name, "none") == base64.b64decode(recorded[name]["none"])


@pytest.mark.parametrize("way", ["none", "zstd"])
@pytest.mark.parametrize("name", CHUNKS)
def test_recorded_bytes_are_read(name: str, way: str, recorded: dict[str, dict[str, str]]) -> None:
    message = decode_message(base64.b64decode(recorded[name][way]), max_bytes=LIMIT)
    assert plain(message.chunk) == plain(CHUNKS[name]())
    assert message.records == RECORDS
    assert message.signature == b"spaces"
