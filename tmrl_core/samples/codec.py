"""Samples and values as bytes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal

import msgspec

from tmrl_core.samples.columns import Chunk
from tmrl_core.samples.records import EpisodeRecord

Compression = Literal["auto", "zstd", "none"]
BytesLike = bytes | bytearray | memoryview


class SampleMessage(msgspec.Struct, frozen=True):
    """One message of samples and episode records."""

    chunk: Chunk | None
    records: list[EpisodeRecord]
    signature: bytes = b""


def encode_message(
    chunk: Chunk | None, records: Sequence[EpisodeRecord], *, signature: bytes = b"", compression: Compression = "auto"
) -> bytes:
    """Return one message as bytes."""
    raise NotImplementedError("the codec is being written")


def decode_message(data: BytesLike, *, max_bytes: int) -> SampleMessage:
    """Return what `encode_message` was given."""
    raise NotImplementedError("the codec is being written")


def split_chunk(chunk: Chunk, max_bytes: int) -> Iterator[Chunk]:
    """Yield the chunk in pieces of at most `max_bytes` encoded without compression, or of one sample."""
    raise NotImplementedError("the codec is being written")


def encode_value(value: Any) -> bytes:
    """Return a nested value as bytes."""
    raise NotImplementedError("the codec is being written")


def decode_value(data: BytesLike, *, max_bytes: int) -> Any:
    """Return what `encode_value` was given."""
    raise NotImplementedError("the codec is being written")
