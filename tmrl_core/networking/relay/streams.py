"""State of each worker's stream in the relay. Sans-I/O."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tmrl_core.networking.relay.connection import RelayConnection


class RelayStream:
    """A worker's stream at the relay."""

    def __init__(self, stream: bytes, name: str, run: str, signature: bytes) -> None:
        self.id = stream
        self.name = name
        self.run = run
        self.signature = signature
        self.worker: RelayConnection | None = None
        self.channel = 0
        self.trainer_channel = 0
        """Channel on the trainer's link; 0: the stream is not announced to the trainer."""
        self.epoch = 0
        self.active = False
        self.standing = 0
        self.received = 0
        self.forwarded = 0
        self.limit = 0
        self.sent_limit = 0
        self.wanted = 0
        self.ended = False
        self.waits = ""
        self.relayed_messages = 0
        self.relayed_samples = 0
        self.relayed_bytes = 0
        self.dropped_messages = 0
        """Count of message numbers that the worker skipped within an epoch."""
        self.position = 0
        self.next_number = 0
        """Number after the last forwarded message, or the first number that the trainer requested."""
        self.partial: list[bytearray] = []
        self.partial_bytes = 0
        self.partial_length = 0
        self.queue: deque[tuple[list[bytearray], int]] = deque()
        self.turn = 0
        """Turn of its next message: bytes forwarded for this stream, without unused turns."""
        self.in_turn = False
        self.handing = False
        """True: its worker hands the stream over. Complete messages go to the spool."""
        self.handed: deque[tuple[int, int]] = deque()
        """(number, bytes) of the messages that the spool has accepted and not stored yet."""
        self.replay: int | None = None
        """Number of the next spooled message to replay, before those in the queue; None: there is none."""

    @property
    def reserved(self) -> int:
        """Bytes reserved from the pool: granted and not forwarded yet."""
        return self.limit - self.forwarded
