"""Policy that the trainer sends to all workers: forwarded as it arrives, and stored for workers that connect later.

Sans-I/O.
"""

# Theory of operation
#
# A policy is a last value: one version is in transit to each worker, and the next one is sent after `Have(version)`, as
# the latest of that time. The frames of a version are forwarded as they arrive, since storing them first would cost the
# time of one more transfer; a worker with half a version whose source fails begins another. The last complete version
# is kept as the same frames, shared by all workers: one that connects or has none gets it first, so that nobody waits
# for a trainer's slow link while a version is available.
#
# A started transfer is completed, unless its rest cannot arrive (the trainer's link failed, another incarnation began),
# or the links of its principal hold too many old versions: then those that began last start again with the latest one,
# so that the oldest transfer always ends.

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from tmrl_core.errors import RemoteProtocolError
from tmrl_core.networking.protocol.framing import FIRST, LAST, MAX_FRAME_BYTES, Frame, message_bytes
from tmrl_core.networking.protocol.messages import POLICY_HEAD, Version, policy_head


@dataclass(slots=True, eq=False, repr=False)
class Policy:
    """One version of the policy as its frames, stored once for all workers."""

    version: Version
    size: int
    """Bytes of all its frames."""
    frames: list[memoryview] = field(default_factory=list)
    received: int = 0
    """Bytes of the frames that have arrived."""
    whole: bool = False
    """True: all its frames have arrived."""
    abandoned: bool = False
    """True: the rest is not sent. Workers that have received a part get another version instead."""


class Policies:
    """Newest complete policy, and the one that is arriving.

    Args:
        max_bytes: maximum size of a policy.
        check: called with the beginning of each policy's bytes; raises RemoteProtocolError if they are not a policy.
    """

    def __init__(self, max_bytes: int, check: Callable[[memoryview], None] = lambda begin: None) -> None:
        self.max_bytes = max_bytes
        self._check = check
        self.run = ""
        """Run of these policies."""
        self.latest: Policy | None = None
        self.arriving: Policy | None = None

    @property
    def held_bytes(self) -> int:
        """Return the bytes of the frames stored here. A slow worker's link keeps the version that it still sends."""
        return sum(policy.received for policy in (self.latest, self.arriving) if policy is not None)

    def begin_run(self, run: str) -> None:
        """Handle a trainer of `run`: drop the policies of another run."""
        if self.run != run:
            self.latest = None
        self.run = run

    def begin_incarnation(self, incarnation: int) -> None:
        """Handle the incarnation that the trainer has chosen: drop a policy whose version its own will not exceed."""
        if self.latest is not None and self.latest.version[0] > incarnation:
            self.latest = None

    def abandon(self) -> None:
        """Discard the incomplete policy, because the rest will not arrive."""
        if self.arriving is not None:
            self.arriving.abandoned = True
            self.arriving = None

    def take(self, frame: Frame, incarnation: int) -> Policy:
        """Store a frame of the trainer, whose current incarnation is `incarnation`, and return its policy.

        Raises:
            RemoteProtocolError: the policy is too large, is not a policy, or its frames contradict its header.
        """
        if frame.flags & FIRST:
            self.abandon()
            version, length = policy_head(frame.payload, self.max_bytes)
            old = version[0] != incarnation or (self.latest is not None and version <= self.latest.version)
            self.arriving = Policy(version, message_bytes(POLICY_HEAD, length), abandoned=old)
        policy = self.arriving
        if policy is None:
            raise RemoteProtocolError("a policy update was continued without a beginning")
        if policy.version[0] != incarnation:
            policy.abandoned = True  # peers have meanwhile reported a newer version to the relay
        received = policy.received + len(frame.buffer)
        last = bool(frame.flags & LAST)
        if received > policy.size or last != (received == policy.size):
            raise RemoteProtocolError("a policy update's frames and its head say different lengths")
        if not last and len(frame.buffer) != MAX_FRAME_BYTES:
            raise RemoteProtocolError("only a policy's last frame is not full")
        if frame.flags & FIRST:
            self._check(frame.payload[POLICY_HEAD.size :])
        # A view, because all workers' links share this buffer, which must not be reused.
        policy.frames.append(memoryview(frame.buffer))
        policy.received = received
        policy.whole = last
        if last:
            self.arriving = None
            if not policy.abandoned:
                self.latest = policy
        return policy

    def version_for(self, run: str, have: Version) -> Policy | None:
        """Return the policy to send next to a worker of `run` that has version `have`; None: nothing.

        The complete policy goes first: it is available immediately, however slow the trainer's link is.
        """
        if run != self.run:
            return None
        for policy in (self.latest, self.arriving):
            if policy is not None and not policy.abandoned and policy.version > have:
                return policy
        return None
