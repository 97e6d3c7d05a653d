"""The replay memory of a simulated trainer: what it keeps when its process dies, and what goes with it."""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.networking.simulation.network import Violation
from tmrl_core.networking.protocol.delivery import CommittedOffset, Received

_START = CommittedOffset(0, 0)


@dataclass
class Rows:
    """What the memory holds of one stream."""

    numbers: list[int] = field(default_factory=list)
    """Messages appended, in the order in which they were."""
    refused: list[int] = field(default_factory=list)
    offset: CommittedOffset = _START
    last: int = -1


class Memory:
    """Samples with the committed offsets of their streams.

    Args:
        durable: a disk memory, with the mark in the record of the samples; otherwise in RAM, with checkpoints.
    """

    def __init__(self, durable: bool) -> None:
        self.durable = durable
        self.streams: dict[bytes, Rows] = {}
        self.samples = 0
        self.updates = 0
        self.incarnation = 0
        self.counter = 0
        self.lost: dict[bytes, set[int]] = {}
        """By stream: messages committed since the last checkpoint that went with a process."""
        self.processes_lost = 0
        self._checkpoint: dict[bytes, tuple[int, int, CommittedOffset]] = {}
        self._checkpoint_counts = (0, 0, 0, 0)

    def rows(self, stream: bytes) -> Rows:
        """What is held of a stream."""
        rows = self.streams.get(stream)
        if rows is None:
            rows = self.streams[stream] = Rows()
        return rows

    def append(self, received: Received) -> str | None:
        """Take one message; or say why it is refused.

        Raises:
            Violation: it is not what its worker handed over, or it was here before, or its turn has passed.
        """
        serial, samples, bad = parse(received.payload)
        if serial != received.number or samples != received.samples:
            raise Violation(f"message {received.number} has the content of {serial} ({received.samples}, {samples})")
        rows = self.rows(received.stream)
        if received.number <= rows.last:
            name = received.stream.hex()[:4]
            if received.number in rows.numbers or received.number in rows.refused:
                raise Violation(f"message {received.number} of {name} is in the memory twice")
            raise Violation(f"message {received.number} of {name} came after {rows.last}")
        rows.last = received.number
        if bad:
            rows.refused.append(received.number)
            return "bad"
        rows.numbers.append(received.number)
        self.samples += samples
        return None

    @property
    def offsets(self) -> dict[bytes, CommittedOffset]:
        """How far each stream is committed, as a new process finds it."""
        return {stream: rows.offset for stream, rows in self.streams.items()}

    def checkpoint(self, incarnation: int, counter: int) -> None:
        """Write everything to disk."""
        self.incarnation, self.counter = incarnation, counter
        if not self.durable:
            self._checkpoint = {
                stream: (len(rows.numbers), len(rows.refused), rows.offset) for stream, rows in self.streams.items()
            }
            self._checkpoint_counts = (self.samples, self.updates, incarnation, counter)

    def crash(self) -> None:
        """The process dies; what is left is what the next one finds."""
        self.processes_lost += 1
        if self.durable:
            return
        for stream, rows in self.streams.items():
            numbers, refused, offset = self._checkpoint.get(stream, (0, 0, _START))
            self.lost.setdefault(stream, set()).update(rows.numbers[numbers:], rows.refused[refused:])
            del rows.numbers[numbers:], rows.refused[refused:]
            rows.offset = offset
            rows.last = max(rows.numbers[-1:] + rows.refused[-1:], default=-1)
        self.samples, self.updates, self.incarnation, self.counter = self._checkpoint_counts


def content(number: int, samples: int, bad: bool, size: int) -> list[bytes]:
    """The body of a message, which says what it is."""
    head = b"%d %d %d " % (number, samples, bad)
    return [head, bytes(max(0, size - len(head)))]


def parse(payload: memoryview) -> tuple[int, int, bool]:
    """(number, samples, whether the memory refuses it) of a body."""
    number, samples, bad, _ = bytes(payload[:40]).split(b" ", 3)
    return int(number), int(samples), bad == b"1"
