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
        """Under which the trainer knows it; 0: the trainer does not."""
        self.epoch = 0
        self.active = False
        self.standing = 0
        self.received = 0
        self.forwarded = 0
        self.limit = 0
        self.told_limit = 0
        self.wanted = 0
        self.ended = False
        self.waits = ""
        self.relayed_messages = 0
        self.relayed_samples = 0
        self.relayed_bytes = 0
        self.dropped_messages = 0
        """Numbers that the worker passed over within an epoch."""
        self.position = 0
        self.next_number = 0
        """The number after the last message passed on, or from which the trainer wants the stream."""
        self.partial: list[bytearray] = []
        self.partial_bytes = 0
        self.partial_length = 0
        self.queue: deque[tuple[list[bytearray], int]] = deque()
        self.turn = 0
        """When the next message of it is due: bytes that it has had, as far as they count."""
        self.in_turn = False
        self.handing = False
        """True: its worker hands the stream over, and complete messages go to the spool."""
        self.handed: deque[tuple[int, int]] = deque()
        """(number, bytes) of the messages that the spool has taken and not stored yet."""
        self.replay: int | None = None
        """The number from which spooled messages go to the trainer, before those in the queue; None: there are none."""

    @property
    def reserved(self) -> int:
        """Bytes of the pool that are kept for it: granted and not forwarded yet."""
        return self.limit - self.forwarded
