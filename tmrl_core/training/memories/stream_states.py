"""Committed offsets and open episodes of sample streams, which a memory on disk writes with its rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tmrl_core.errors import CodecError, StorageError
from tmrl_core.samples import decode_value, encode_value
from tmrl_core.samples.columns import leaves, tree_bytes
from tmrl_core.storage import MAX_NOTE_BYTES
from tmrl_core.training.value_types import State, Tree

MAX_STREAMS = 32_768
"""Maximum number of streams whose state is kept, as many as a trainer has on a link. The stream that has been silent
for longest is forgotten first: a trainer that is killed then has no offset of it, and may take messages twice."""
MAX_TAILS_BYTES = 32 << 20
"""Maximum size of the streams' last rows in one record. Beyond it, the last row of the longest silent stream is
dropped."""
_ARRAY_BYTES = 256
"""Size that each array of a row counts besides its content: a record holds a million values, of an observation of many
small arrays about two for each."""

_MAX_NUMBER = 1 << 63
"""Upper bound of the messages, samples or episodes of a stream. The protocol takes numbers up to 2^62, and what comes
after the highest one is stored here."""

Changes = dict[str, dict[Any, Any]]


class StreamStates:
    """State that the log holds with the rows: committed offsets of sample streams, and a few values.

    Attributes:
        offsets: number and position of each stream's next message.
        tails: last row of each stream with an open episode: episode, step and observation (a tree of arrays [1, ...]).
        values: counters and similar values.
    """

    def __init__(self) -> None:
        self.offsets: dict[bytes, list[int]] = {}
        self.tails: dict[bytes, list[Tree]] = {}
        self.values: State = {}

    def apply(self, changes: Mapping[str, Mapping[Any, Any]]) -> None:
        """Apply changes; a tail that is None has ended."""
        for name, held in (("marks", self.offsets), ("tails", self.tails)):
            for stream, value in changes.get(name, {}).items():
                held.pop(stream, None)  # move the stream with the latest change to the end
                if value is not None:
                    held[stream] = list(value)
            while len(held) > MAX_STREAMS:
                del held[next(iter(held))]
        self.values.update(changes.get("values", {}))

    def whole(self) -> Changes:
        """Return the whole state, as changes."""
        return {"marks": self.offsets, "tails": self.tails, "values": self.values}


def encoded(changes: Changes) -> bytes:
    """Encode changes as bytes for a record's metadata."""
    tails = changes.get("tails", {})
    size = 0
    kept = {}
    for stream, tail in reversed(list(tails.items())):
        if tail is not None and size <= MAX_TAILS_BYTES:
            size += tree_bytes(tail[2]) + _ARRAY_BYTES * sum(1 for _ in leaves(tail[2]))
        kept[stream] = tail if size <= MAX_TAILS_BYTES else None
    return encode_value({**changes, "tails": dict(reversed(kept.items()))})


def decoded(data: bytes) -> Changes:
    """Undo `encoded`.

    Raises:
        StorageError: the data was not made by `encoded`.
    """
    try:
        changes = decode_value(data, max_bytes=MAX_NOTE_BYTES) if data else {}
    except CodecError as exc:
        raise StorageError(f"a note of the replay memory cannot be read: {exc}") from exc
    if not isinstance(changes, dict) or not all(isinstance(value, dict) for value in changes.values()):
        raise StorageError("a note of the replay memory is not what this version writes")
    for name, (length, whole) in {"marks": (2, 2), "tails": (3, 2)}.items():
        for stream, value in changes.get(name, {}).items():
            # The value of a stream: integers, then a tree of arrays if it is a tail.
            right = value is None or (
                isinstance(value, list | tuple)
                and len(value) == length
                and all(type(number) is int and 0 <= number < _MAX_NUMBER for number in value[:whole])
                and all(isinstance(leaf, np.ndarray) for tree in value[whole:] for leaf in leaves(tree))
            )
            if not isinstance(stream, bytes) or not right:
                raise StorageError(f"a note of the replay memory has invalid {name} of a stream")
    return changes
