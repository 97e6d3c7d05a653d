"""What the trainer decodes of a worker's messages, and workers of weights."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import zstandard

from tests.fuzzing.mutation import Mutator
from tests.fuzzing.target import Target
from tmrl_core.errors import CodecError
from tmrl_core.samples import Buffer, EpisodeRecord, decode_message, decode_value, encode_message, encode_value
from tmrl_core.samples.columns import leaves

MAX_BYTES = 1 << 17
"""The limit that the cases are decoded with."""
_MESSAGE, _COMPRESSED, _VALUE = 0, 1, 2


def _chunks() -> list[bytes]:
    """Messages of some kinds of samples, not compressed."""
    rng = np.random.default_rng(0)
    encoded = []
    for kind in range(5):
        buffer = Buffer(maxlen=None)
        for i in range(12):
            small: Any = rng.normal(size=3).astype(np.float32)
            observation: Any = [small, (small, {"a": np.int8(i)}), {"text": "x" * i}, np.zeros((2, 2), np.uint8), i][
                kind
            ]
            action: Any = None if i % 6 == 0 else [np.zeros(1, np.float32), i, (0.5, True), 1.5, None][kind]
            info = {"x": [1, (2.5, None)], "array": small} if i == 7 else {}
            buffer.append_sample((action, observation, float(i), i == 5, i == 11, info))
        chunks = buffer.take()[0]
        records = [EpisodeRecord("", 1.5, 6, "train", "truncated")]
        encoded += [encode_message(chunk, records, signature=b"signature", compression="none") for chunk in chunks[:2]]
    return encoded


def _values() -> list[bytes]:
    values: list[Any] = [
        {"marks": {b"s" * 16: [3, 100]}, "deep": [[[[(1, 2)]]]]},
        (1 << 100, -(1 << 70), 1.5, None, True, "text", b"bytes"),
        np.arange(12, dtype=np.float32).reshape(3, 4),
        {"a": np.float64(1.5), 3: np.zeros((0, 4), np.int16), None: np.array(True)},
    ]
    return [encode_value(value) for value in values]


class Codec(Target):
    """Messages of samples, compressed and not, and values."""

    name = "codec"
    allowed = (CodecError,)

    def __init__(self) -> None:
        self._messages = _chunks()
        self._compressed = [b"\x01" + zstandard.ZstdCompressor(level=1).compress(m[1:]) for m in self._messages]
        self._values = _values()
        self._compressor = zstandard.ZstdCompressor(level=1)

    def make(self, mutator: Mutator) -> bytes:
        kind = mutator.random()
        if kind < 0.03:
            return bytes([mutator.below(3)]) + mutator.bytes(mutator.below(200))
        if kind < 0.55:
            return b"\x00" + mutator.mutate(mutator.pick(self._messages), self._messages)
        if kind < 0.65:
            # Wrong under a compression that is right.
            changed = mutator.mutate(mutator.pick(self._messages), self._messages)
            if mutator.chance(20):
                changed += bytes(mutator.below(1 << 19))  # small on the way, large when unpacked
            return b"\x00\x01" + self._compressor.compress(changed[1:])
        if kind < 0.75:
            return b"\x00" + mutator.mutate(mutator.pick(self._compressed), self._compressed)
        if kind < 0.97:
            return b"\x02" + mutator.mutate(mutator.pick(self._values), self._values)
        filler = mutator.pick(
            (b"\x90", b"\x91", b"\x80", b"\xa0", b"\xc0", b"\xd4\x02\x00", b"\xc7\x00\x02", b"\x92\x01\xa0")
        )
        start = mutator.pick(
            (b"\x02", b"\x02\xdd\x00\x00\xff\xff", b"\x00\x00\x94\xc4\x00\x90\xc0\xdd\x00\x00\xff\xff")
        )
        return bytes(start + filler * (20_000 // len(filler)))

    def run(self, case: bytes) -> None:
        if case[:1] == b"\x02":
            value = decode_value(case[1:], max_bytes=MAX_BYTES)
            again = encode_value(value)
            assert encode_value(decode_value(again, max_bytes=1 << 30)) == again
            return
        message = decode_message(case[1:], max_bytes=MAX_BYTES)
        chunk = message.chunk
        if chunk is None:
            return
        size = sum(math.prod(c.shape) * c.itemsize for c in leaves(chunk.fields) if isinstance(c, np.ndarray))
        assert size <= MAX_BYTES
        assert chunk.rows <= 8 * MAX_BYTES
        assert len(chunk.terminated) == len(chunk.truncated) == len(chunk.action_present) == chunk.rows
        assert sum(segment.rows for segment in chunk.segments) == chunk.rows
        for column in leaves(chunk.fields):
            assert len(column) == chunk.rows
        encode_message(chunk, message.records, compression="none")

    def limit_bytes(self, case: bytes) -> int:
        # Up to 80 bytes for an empty list of one byte, which are there twice while values are unpacked; and once more
        # when they are encoded again.
        return 300 * min(MAX_BYTES, len(case)) + 20 * MAX_BYTES + (1 << 18)
