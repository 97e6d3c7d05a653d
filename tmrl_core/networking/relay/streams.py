"""State of each worker's stream in the relay. Sans-I/O."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tmrl_core.networking.relay.message_queue import MessageQueue

if TYPE_CHECKING:
    from tmrl_core.networking.protocol.messages import Lateness
    from tmrl_core.networking.relay.connection import RelayConnection


class Share:
    """Part of one principal in the pool and in the turns: the holder of a certificate or of a token.

    Its live and its spooled streams are one part. Spooled streams without a known principal have one together.
    """

    def __init__(self, principal: str) -> None:
        self.principal = principal
        self.weight = 1
        """Its part of the throughput, in parts of a principal with weight 1."""
        self.streams = 0
        self.reserved_bytes = 0
        """Bytes of the pool that its streams reserve."""
        self.standing_bytes = 0
        """Standing credit of its streams."""
        self.turn = 0
        """Turn of its next message: bytes forwarded for it, divided by its weight, without unused turns."""
        self.in_turn = False
        self.queued: list[tuple[int, int, RelayStream]] = []
        """Heap of its streams with queued messages: (turn, order among equals, stream)."""
        self.stream_turn = 0
        """Turn of the stream of its latest message."""
        self.asking = False
        self.wants: list[tuple[int, int, RelayStream]] = []
        """Heap of its streams that want credit: (turn, order among equals, stream). Others are withdrawn entries."""


@dataclass(slots=True, eq=False, repr=False)  # there may be thousands, whose memory counts
class RelayStream:
    """A worker's stream at the relay."""

    id: bytes
    name: str
    run: str
    signature: bytes
    share: Share = field(init=False)
    """Its owner's; `Flow.join` sets it."""
    stored: bool = False
    """True: its process has ended, and a worker sends what it had written to the disk."""
    worker: RelayConnection | None = None
    channel: int = 0
    trainer_channel: int = 0
    """Channel on the trainer's link; 0: the stream is not announced to the trainer."""
    epoch: int = 0
    active: bool = False
    standing: int = 0
    received: int = 0
    forwarded: int = 0
    limit: int = 0
    sent_limit: int = 0
    wanted: int = 0
    asking: int = 0
    """Order of its entry in `Share.wants` while it waits for the credit that it wants; 0: it does not."""
    over_window: bool = False
    """True: it wants more than its window, and asks again once a message of it was forwarded."""
    ended: bool = False
    waits: str = ""
    lateness: Lateness | None = None
    relayed_messages: int = 0
    relayed_samples: int = 0
    relayed_bytes: int = 0
    dropped_messages: int = 0
    """Count of message numbers that the worker skipped within an epoch."""
    position: int = 0
    next_number: int = 0
    """Number after the last forwarded message, or the first number that the trainer requested."""
    partial: list[bytearray] = field(default_factory=list)
    partial_bytes: int = 0
    partial_length: int = 0
    queue: MessageQueue = field(default_factory=MessageQueue)
    held_bytes: int = 0
    """Bytes of the pool that its complete messages occupy, until they were sent completely or stored."""
    turn: int = 0
    """Turn of its next message among those of its principal."""
    in_turn: bool = False
    handing: bool = False
    """True: its worker hands the stream over. Complete messages go to the spool."""
    handed: deque[tuple[int, int]] = field(default_factory=deque)
    """(number, bytes) of the messages that the spool has accepted and not stored yet."""
    replay: int | None = None
    """Number of the next spooled message to replay, before those in the queue; None: there is none."""

    @property
    def reserved(self) -> int:
        """Bytes reserved from the pool: granted and not forwarded yet."""
        return self.limit - self.forwarded
