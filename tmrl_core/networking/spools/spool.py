"""Spool of the Server: messages of workers that have ended, stored until a trainer has acknowledged them. Sans-I/O.

`Spool` is the interface and does the accounting: the messages of each stream, and their share of the size limit.
Implementations differ in the location of the bytes: `MemorySpool` here, `DiskSpool` (disk_spool.py) in files.
`tests/networking/spools/test_spool.py` tests both.

A message is never changed or decoded. Only its floor is recomputed when it is read: messages that an earlier trainer
has acknowledged are no longer stored, so the floor of the first remaining message explains the gap before it
(`delivery`).

Stored messages are never dropped to make space for others. A principal (holder of a certificate, or of a role's token)
may therefore store no more than `_SHARE_OF_FREE` times what stays free, in bytes, streams and messages, as in the pool
of credit (`relay.credit_flow`). Alone, it gets four fifths. Whatever it hands over, a fifth stays free for the others.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from tmrl_core.networking.protocol.framing import message_bytes
from tmrl_core.networking.protocol.messages import SAMPLES_HEAD

MAX_SPOOLED_STREAMS = 1_280
"""Maximum number of stored streams, however small. One principal alone gets 1,024 of them."""
MAX_SPOOLED_MESSAGES = 1 << 20
"""Maximum number of stored messages, however small. Each takes 230 bytes of memory, also if it is stored elsewhere."""
_SHARE_OF_FREE = 4
"""Maximum bytes, streams and messages that one principal stores, as a multiple of the free ones."""
MAX_SIGNATURES_BYTES = 16 << 20
"""Maximum bytes of the signatures of one principal's streams: a trainer that comes receives them before any sample."""
MESSAGE_COST_BYTES = 512
"""Cost of a message besides its body."""
STREAM_COST_BYTES = 4_096
"""Cost of a stream besides its messages, name and signature."""


class StreamInfo(NamedTuple):
    """Description of a stream for the trainer."""

    stream: bytes
    run: str
    name: str
    signature: bytes
    principal: str
    """Owner of the stream, which the trainer does not receive."""


@dataclass(slots=True, eq=False)
class SpooledMessage:
    """One message: the fields of its header, and the location of its body."""

    number: int
    floor: int
    position: int
    samples: int
    length: int
    body: Sequence[bytes | memoryview] | None = None
    """Body in memory; None once it is stored elsewhere."""
    place: Any = None
    """Location of the body, in a form that the implementation defines."""

    @property
    def size(self) -> int:
        """Size of the message on a link, in bytes."""
        return message_bytes(SAMPLES_HEAD, self.length)

    @property
    def cost(self) -> int:
        """Cost of the message against the spool's limit, in bytes."""
        return self.length + MESSAGE_COST_BYTES


class SpooledStream:
    """Stored messages of one stream in order, without the acknowledged ones."""

    def __init__(self, info: StreamInfo) -> None:
        self.info = info
        self.messages: list[SpooledMessage] = []
        self.next_number = 0
        """First number that the spool has not accepted."""
        self.stored = 0
        """Every accepted message below this number is durably stored."""
        self.samples = 0
        self.released = 0
        """Number of samples that a trainer has acknowledged, since the Server's start."""
        self.body_bytes = 0
        """Bytes of the messages' bodies."""
        self.ended = False
        """True: its worker has ended in order and has handed over everything."""
        self.cost = STREAM_COST_BYTES + len(info.name) + len(info.signature)

    def find(self, number: int) -> int:
        """Return the index of the first message from `number` on."""
        return bisect_left(self.messages, number, key=lambda message: message.number)


@dataclass(slots=True)
class _Holding:
    """Used part of the spool of one principal."""

    used_bytes: int = 0
    signatures_bytes: int = 0
    streams: int = 0
    messages: int = 0


class Spool(ABC):
    """Store of streams' messages, bounded in bytes. Not thread-safe: the relay's thread makes all calls.

    Args:
        limit_bytes: maximum bytes stored, with a fixed cost for each message and stream. A principal gets a part of it.

    Attributes:
        streams: stored streams, by id.
        used_bytes: used part of the limit.
        on_stored: called with a stream's id, in the relay's thread, after its `stored` has risen.
        on_failed: called with a stream's id and a reason, in the relay's thread, after accepted messages could not be
            stored: they are dropped, and `next_number` has gone back to the first of them.
    """

    frees_messages = True
    """True: an acknowledged message frees its space immediately; False: only together with the whole stream."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self._messages = 0
        self.streams: dict[bytes, SpooledStream] = {}
        self._holdings: dict[str, _Holding] = {}
        self.on_stored: Callable[[bytes], None] = lambda stream: None
        self.on_failed: Callable[[bytes, str], None] = lambda stream, reason: None

    # --- for the relay ---

    def append(
        self,
        info: StreamInfo,
        *,
        number: int,
        floor: int,
        position: int,
        samples: int,
        body: Sequence[bytes | memoryview],
    ) -> str:
        """Accept one complete message, which is durable once `stored` has passed it. The spool now owns the buffers.

        Returns:
            The reason of a refusal, for display; empty: the message was accepted.

        Raises:
            ValueError: its number is below `next_number`.
        """
        kept = self.streams.get(info.stream)
        stream = kept or SpooledStream(info)
        holding = self._holdings.get(stream.info.principal) or _Holding()
        if kept is None and holding.signatures_bytes + len(info.signature) > MAX_SIGNATURES_BYTES:
            return (
                f"the Server's spool stores {MAX_SIGNATURES_BYTES >> 20} MB of signatures of streams with these "
                "credentials, until a trainer takes the samples"
            )
        if number < stream.next_number:
            raise ValueError(f"message {number} comes after message {stream.next_number - 1}")
        message = SpooledMessage(number, floor, position, samples, sum(map(len, body)))
        need = message.cost + (stream.cost if kept is None else 0)
        for verb, held, more, used, most, what in (
            ("have", holding.streams, kept is None, len(self.streams), MAX_SPOOLED_STREAMS, "places"),
            ("have", holding.messages, 1, self._messages, MAX_SPOOLED_MESSAGES, "messages"),
            ("use", holding.used_bytes, need, self.used_bytes, self.limit_bytes, "bytes (server.spool_bytes)"),
        ):
            if more and held + more > _SHARE_OF_FREE * (most - used - more):
                return (
                    f"the Server's spool is full for workers with these credentials: they {verb} {held} and all "
                    f"workers {used} of its {most} {what}, until a trainer takes the samples"
                )
        if kept is None:
            self._add(stream)
        self._use(stream, message.cost)
        self._count(stream, 1)
        stream.cost += message.cost
        stream.messages.append(message)
        stream.next_number = number + 1
        stream.samples += samples
        stream.body_bytes += message.length
        stream.ended = False
        message.body = body
        self._store(stream, message)
        return ""

    def unwritten_bytes(self, principal: str) -> int:
        """Return the cost of a principal's accepted messages that wait in memory until they are stored."""
        return 0

    def peek(self, stream: bytes, number: int) -> SpooledMessage | None:
        """Return the first message of `stream` from `number` on; None: there is none."""
        kept = self.streams.get(stream)
        if kept is None:
            return None
        index = kept.find(number)
        return kept.messages[index] if index < len(kept.messages) else None

    def read(self, stream: bytes, message: SpooledMessage) -> tuple[bytes, Sequence[bytes | memoryview]]:
        """Return header and body of a message that `peek` returned. The body is read-only.

        Raises:
            OSError: the message cannot be read; the caller must `discard` it, unless the reason is temporary.
        """
        kept = self.streams[stream]
        index = kept.find(message.number)
        before = kept.messages[index - 1].number + 1 if index else 0
        head = SAMPLES_HEAD.pack(
            message.number, min(message.floor, before), message.position, message.samples, message.length
        )
        return head, message.body if message.body is not None else self._load(kept, message)

    def drop(self, stream: bytes, next_number: int) -> int:
        """Drop the acknowledged messages below `next_number`; a stream without messages is forgotten.

        Returns:
            The number of dropped samples.
        """
        kept = self.streams.get(stream)
        if kept is None:
            return 0
        return self._remove(kept, 0, kept.find(next_number))

    def discard(self, stream: bytes, message: SpooledMessage) -> None:
        """Drop one message that cannot be read: the trainer will count a gap."""
        kept = self.streams[stream]
        index = kept.find(message.number)
        self._remove(kept, index, index + 1)

    def end(self, stream: bytes) -> None:
        """Record that the worker of this stream has ended in order."""
        kept = self.streams.get(stream)
        if kept is not None and not kept.ended:
            kept.ended = True
            self._store_end(kept)

    def of_run(self, run: str) -> list[SpooledStream]:
        """Return the streams of one run."""
        return [kept for kept in self.streams.values() if kept.info.run == run]

    def summary(self) -> list[str]:
        """Return a summary of the stored samples for logs, a line for each run."""
        runs = sorted({kept.info.run for kept in self.streams.values()})
        lines = []
        for run in runs:
            streams = self.of_run(run)
            samples = sum(kept.samples for kept in streams)
            lines.append(f"{len(streams)} stream{'s' * (len(streams) != 1)}, {samples:,} samples of run {run!r}")
        return lines

    @abstractmethod
    def close(self) -> None:
        """Finish pending writes. No callback follows."""

    # --- for implementations ---

    def _add(self, kept: SpooledStream) -> None:
        """Add a stream, with the messages that it has."""
        self.streams[kept.info.stream] = kept
        holding = self._holdings.setdefault(kept.info.principal, _Holding())
        holding.streams += 1
        holding.signatures_bytes += len(kept.info.signature)
        self._use(kept, kept.cost)
        self._count(kept, len(kept.messages))

    def _use(self, kept: SpooledStream, cost: int) -> None:
        """Count bytes of a stream as used; a negative cost frees them."""
        self.used_bytes += cost
        self._holdings[kept.info.principal].used_bytes += cost

    def _count(self, kept: SpooledStream, messages: int) -> None:
        """Count messages of a stream; a negative number removes them."""
        self._messages += messages
        self._holdings[kept.info.principal].messages += messages

    def _is_stored(self, kept: SpooledStream, message: SpooledMessage) -> None:
        """Record a durably stored message. Must be called in the relay's thread, in the order of `_store`."""
        if self.streams.get(kept.info.stream) is kept and message.number >= kept.stored:
            kept.stored = message.number + 1
            self.on_stored(kept.info.stream)

    def _is_lost(self, kept: SpooledStream, message: SpooledMessage, reason: str) -> bool:
        """Drop a message that could not be stored, and all later ones. Must be called in the relay's thread.

        Returns:
            False: it had been dropped before.
        """
        index = kept.find(message.number)
        here = kept.messages[index : index + 1]
        # Later messages are lost too. Their results are ignored, even if the messages were handed over again.
        if self.streams.get(kept.info.stream) is not kept or not here or here[0] is not message:
            return False
        kept.next_number = message.number
        self._remove(kept, index, len(kept.messages), freed=True)
        self.on_failed(kept.info.stream, reason)
        return True

    def _remove(self, kept: SpooledStream, start: int, stop: int, *, freed: bool = False) -> int:
        gone = kept.messages[start:stop]
        del kept.messages[start:stop]
        self._count(kept, -len(gone))
        samples = sum(message.samples for message in gone)
        kept.samples -= samples
        kept.body_bytes -= sum(message.length for message in gone)
        if freed or self.frees_messages:
            cost = sum(message.cost for message in gone)
            kept.cost -= cost
            self._use(kept, -cost)
        if not kept.messages:
            del self.streams[kept.info.stream]
            self._use(kept, -kept.cost)
            holding = self._holdings[kept.info.principal]
            holding.streams -= 1
            holding.signatures_bytes -= len(kept.info.signature)
            if not holding.streams:
                del self._holdings[kept.info.principal]
            self._forget(kept)
        return samples

    @abstractmethod
    def _store(self, kept: SpooledStream, message: SpooledMessage) -> None:
        """Store a message, then call `_is_stored` or `_is_lost`, immediately or later, in order."""

    @abstractmethod
    def _load(self, kept: SpooledStream, message: SpooledMessage) -> Sequence[bytes | memoryview]:
        """Load the body of a message that is not in memory.

        Raises:
            OSError: the body cannot be read.
        """

    @abstractmethod
    def _store_end(self, kept: SpooledStream) -> None:
        """Store the end of the stream."""

    @abstractmethod
    def _forget(self, kept: SpooledStream) -> None:
        """Remove all data of a stream."""


class MemorySpool(Spool):
    """Spool in this process's memory. Its content ends with the process."""

    def _store(self, kept: SpooledStream, message: SpooledMessage) -> None:
        self._is_stored(kept, message)

    def _load(self, kept: SpooledStream, message: SpooledMessage) -> Sequence[bytes | memoryview]:
        raise AssertionError("bodies stay in memory here")

    def _store_end(self, kept: SpooledStream) -> None:
        """Do nothing: `ended` records it."""

    def _forget(self, kept: SpooledStream) -> None:
        """Do nothing: no reference is left."""

    def close(self) -> None:
        """Do nothing: no write is pending."""
