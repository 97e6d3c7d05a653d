"""Samples: the Buffer that collects them, the columns that store them, the codec that encodes them."""

from tmrl_core.samples.buffer import Buffer, Samples
from tmrl_core.samples.codec import (
    SampleMessage,
    decode_message,
    encode_message,
    encode_message_buffers,
    split_chunk,
)
from tmrl_core.samples.columns import Chunk, Sample, Tree
from tmrl_core.samples.concatenation import same_layout
from tmrl_core.samples.segments import EpisodeRecord, Segment, Version
from tmrl_core.samples.values import decode_value, encode_value

__all__ = [
    "Buffer",
    "Chunk",
    "EpisodeRecord",
    "Sample",
    "SampleMessage",
    "Samples",
    "Segment",
    "Tree",
    "Version",
    "decode_message",
    "decode_value",
    "encode_message",
    "encode_message_buffers",
    "encode_value",
    "same_layout",
    "split_chunk",
]
