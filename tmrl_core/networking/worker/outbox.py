"""Samples that a worker has handed over and that are not encoded yet, and their way into messages. Sans-I/O."""

# Theory of operation
#
# The application hands over items: a chunk of rows, episode records, or both. This file turns them into messages and
# offers these to the stream's sender. It knows neither sockets nor the trainer, and never waits.
#
# Two threads meet here. The application's adds items; the link's I/O thread encodes them, because compression must not
# delay an environment's loop. `_lock` guards the items and their two sums, and nothing else: encoding happens outside
# it, on items that stay in the queue until the sender has all of their messages. A sample is therefore counted here, by
# the sender, or for a moment by both, and never by neither: a worker that blocks compares the sum with its limit.
#
# Items that have arrived while the link was busy leave together, as one message of up to 1 MiB; nothing waits for
# more. Ten messages of 100 kB cost worker, Server and trainer a fifth more processor time than one of 1 MB. A joined
# message has at most an eighth of the queue, because messages are dropped as a whole: with a queue of 4 MB, the first
# drop then costs 0.5 MB and not 1 MB. An item that is larger than a message is divided into several.
#
# The order matters in two places. Records that do not fit the last message of their item go before it: a round of
# lockstep ends with its last sample, and a record after that would reach the trainer in the next round. And the last
# message is encoded before these records are offered, because joined items are tried again after a `CodecError`: what
# was offered by then would arrive twice.
#
# A value that cannot be encoded costs its own item alone: the joined items are encoded again one by one.

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Literal, NamedTuple

from tmrl_core.errors import CodecError
from tmrl_core.networking.protocol.delivery import Body, StreamSender
from tmrl_core.samples import Chunk, EpisodeRecord, encode_message_buffers, same_layout, split_chunk

logger = logging.getLogger(__name__)

PIECE_BYTES = 1 << 20
"""Approximate size of a message of samples."""
_PIECE_RECORDS = 250
"""Maximum number of episode records in a message; with all their metrics they have less than 1 MB."""
_AHEAD_BYTES = 8 << 20
"""Limit of encoded unsent bytes, beyond which samples that must not be dropped are not encoded."""


class _Item(NamedTuple):
    chunk: Chunk | None
    records: Sequence[EpisodeRecord]
    size: int
    """Size of the chunk, as `Chunk.nbytes` counts it; computed once."""


class Outbox:
    """Samples and records between an application that hands them over and a sender.

    Args:
        sender: end of the stream that the messages belong to.
        queue_bytes: maximum bytes of unacknowledged samples in memory, the sender's included.
        drop_oldest: True: the sender drops messages at that limit. False: the application waits for room.
        max_message_bytes: maximum size of a message.
        compression: of messages, see `encode_message_buffers`.

    Attributes:
        bytes, samples: those that are not encoded yet.
        signature: signature of the messages.
    """

    def __init__(
        self,
        sender: StreamSender,
        *,
        queue_bytes: int,
        drop_oldest: bool,
        max_message_bytes: int,
        compression: Literal["auto", "zstd", "none"],
    ) -> None:
        self.bytes = self.samples = 0
        self.signature = b""
        self._sender = sender
        self._queue_bytes = queue_bytes
        self._drop_oldest = drop_oldest
        self._limit = min(PIECE_BYTES, max_message_bytes)
        self._compression: Literal["auto", "zstd", "none"] = compression
        self._lock = threading.Lock()
        self._items: deque[_Item] = deque()
        self._messages: Iterator[tuple[Body, int]] | None = None
        """Rest of the messages of the first items."""
        self._singly = 0
        """Number of next items that are encoded separately, because one of them cannot be encoded."""

    def __bool__(self) -> bool:
        """Return True if an item is not encoded yet."""
        return bool(self._items)

    # --- the application's thread ---

    def has_room(self, size: int) -> bool:
        """Return True if a chunk of this size may be added now. One is always accepted, however large."""
        waiting = self.bytes + self._sender.held_bytes
        return self._drop_oldest or waiting == 0 or waiting + size <= self._queue_bytes

    def add(self, chunk: Chunk | None, records: Sequence[EpisodeRecord], size: int) -> None:
        """Add a chunk of `size` bytes, records, or both. The caller must not use them afterwards."""
        with self._lock:
            self._items.append(_Item(chunk, records, size))
            self.bytes += size
            self.samples += chunk.rows if chunk is not None else 0

    # --- the I/O thread ---

    def ready(self) -> bool:
        """Return True if `encode` has work to do now."""
        # Without dropping, encoding far ahead has no benefit and doubles the memory.
        return bool(self._items) and (self._drop_oldest or self._sender.unsent_bytes < _AHEAD_BYTES)

    def encode(self) -> bool:
        """Encode the first items, about `PIECE_BYTES` of them, and offer the messages. Return False if nothing was.

        The limit bounds the time in which the caller's loop reads and sends nothing.
        """
        encoded = 0
        while self.ready() and encoded < PIECE_BYTES:
            if self._messages is None:
                self._messages = self._encode()
            body, samples = next(self._messages, ((), 0))
            if not body:
                self._messages = None
                continue
            self._sender.offer(body, samples)
            encoded += sum(map(len, body))
        return encoded > 0

    def _encode(self) -> Iterator[tuple[Body, int]]:
        """Yield the messages of the first item, joined with the following ones that fit, and then remove these."""
        chunk, first_records, size = self._items[0]
        chunks, records, rows, joined = [] if chunk is None else [chunk], list(first_records), 0, 1
        if self._singly:
            self._singly -= 1
        elif chunk is not None:
            room = min(self._limit, self._queue_bytes // 8) - size
            while joined < len(self._items):
                follower, its_records, its_size = self._items[joined]
                if follower is None or its_size > room or not same_layout(chunk, follower):
                    break
                room -= its_size
                rows += follower.rows
                chunks.append(follower)
                records.extend(its_records)
                joined += 1
        if chunk is not None:
            rows += chunk.rows
        pieces: list[tuple[Chunk | Sequence[Chunk], int]] = [(chunks, rows)]
        if joined == 1 and chunk is not None and size > self._limit:
            pieces = [(piece, piece.rows) for piece in split_chunk(chunk, self._limit)]
        encode = partial(encode_message_buffers, signature=self.signature, compression=self._compression)
        before = max(0, (len(records) - 1) // _PIECE_RECORDS * _PIECE_RECORDS)
        try:
            for piece, its_rows in pieces[:-1]:
                yield encode(piece, ()), its_rows
            last = encode(pieces[-1][0], records[before:])
            for start in range(0, before, _PIECE_RECORDS):
                yield encode((), records[start : start + _PIECE_RECORDS]), 0
            yield last, pieces[-1][1]
        except CodecError:
            if joined > 1:
                self._singly = joined  # none was sent yet, because joined items form one piece
                return
            logger.exception("samples could not be encoded and are lost")
        with self._lock:
            for _ in range(joined):
                item = self._items.popleft()
                self.bytes -= item.size
                self.samples -= item.chunk.rows if item.chunk is not None else 0
