"""State of each worker's stream in the relay. Sans-I/O."""

from __future__ import annotations

from collections import deque
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


class RelayStream:
    """A worker's stream at the relay."""

    # There may be thousands, whose memory counts.
    __slots__ = (
        "active", "asking", "channel", "dropped_messages", "ended", "epoch",
        "forwarded", "handed", "handing", "held_bytes", "id", "in_turn", "lateness", "limit",
        "name", "next_number", "over_window", "partial", "partial_bytes", "partial_length",
        "position", "queue", "received", "relayed_bytes", "relayed_messages", "relayed_samples",
        "replay", "run", "sent_limit", "share", "signature", "standing",
        "stored", "trainer_channel", "turn", "waits", "wanted", "worker",
    )  # fmt: skip

    def __init__(self, stream: bytes, name: str, run: str, signature: bytes) -> None:
        self.share: Share
        """Its owner's; `Flow.join` sets it."""
        self.id = stream
        self.name = name
        self.run = run
        self.signature = signature
        self.stored = False
        """True: its process has ended, and a worker sends what it had written to the disk."""
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
        self.asking = 0
        """Order of its entry in `Share.wants` while it waits for the credit that it wants; 0: it does not."""
        self.over_window = False
        """True: it wants more than its window, and asks again once a message of it was forwarded."""
        self.ended = False
        self.waits = ""
        self.lateness: Lateness | None = None
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
        self.queue = MessageQueue()
        self.held_bytes = 0
        """Bytes of the pool that its complete messages occupy, until they were sent completely or stored."""
        self.turn = 0
        """Turn of its next message among those of its principal."""
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
