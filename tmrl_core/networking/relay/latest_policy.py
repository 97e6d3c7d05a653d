"""Policy that the trainer sends to all workers: forwarded as it arrives, and stored for workers that connect later.

Sans-I/O.
"""

# Theory of operation
#
# Weights are a last value: only the newest version matters, and a late joiner needs it at once. The relay stores three
# policies at most, once for all workers, as the frames in which they came:
#
#     latest     the newest complete one; sent to whoever has an older one
#     delta      a newer one that a worker makes of `latest`, which it has kept (`protocol/packed_policy.py`)
#     arriving   the next one, of which frames are forwarded as they come
#
# Forwarding before a version is complete saves the time of one more transfer. A worker that connects, or has no
# version, first receives the complete one, so no worker waits for a trainer's slow link while a version is available. A
# link that sends a version keeps its frames alive after a newer one has come (`Policy` objects are shared), and a
# started transfer is completed, so that a slow link receives a version however often new ones come.
# `Relay.limit_old_policies` bounds that memory.
#
# A version is abandoned if its rest cannot arrive: the trainer's link failed, or another incarnation began. Workers
# with a part of it begin another version, from its beginning: the complete one, or the next.
#
# Example: the trainer sends 5.3 while 5.2 is stored. Worker A has 5.2 and gets the frames of 5.3 as they come. Worker B
# has nothing, gets 5.2, confirms it, and then what has come of 5.3. The trainer's link breaks: 5.3 is abandoned, A
# keeps 5.2.
#
# With deltas: 5.2 is complete, 5.9 a delta to it. Worker A keeps 5.2, is at 5.6, and gets the delta. Worker B has
# nothing and gets 5.2 first. Worker C has 5.8 of another Server and has not kept 5.2: it gets 5.2, which it keeps and
# does not act with, and then the delta. The delta is used for the base that it names and no other, which the trainer
# has stored here over the link on which it sends the delta.

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from tmrl_core.errors import RemoteProtocolError
from tmrl_core.networking.protocol.framing import FIRST, LAST, MAX_FRAME_BYTES, Frame, message_bytes
from tmrl_core.networking.protocol.messages import POLICY_DELTA_HEAD, POLICY_HEAD, Version
from tmrl_core.networking.protocol.policy_heads import read_head


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
    base: Version | None = None
    """Version of the complete policy to which this one is a delta; None: it is complete itself."""


class Policies:
    """Newest complete policy, the newest delta to it, and the one that is arriving.

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
        self.delta: Policy | None = None
        """A newer version, as a delta to `latest`."""
        self.arriving: Policy | None = None

    @property
    def newest(self) -> Policy | None:
        """Return the newest version that workers can have."""
        return self.delta or self.latest

    @property
    def held(self) -> tuple[Policy, ...]:
        """Return the policies that are stored here."""
        return tuple(filter(None, (self.latest, self.delta, self.arriving)))

    @property
    def held_bytes(self) -> int:
        """Return the bytes of the frames stored here. A slow worker's link keeps the version that it still sends."""
        return sum(policy.received for policy in self.held)

    def clear(self) -> None:
        """Drop the complete policies."""
        self.latest = self.delta = None

    def begin_run(self, run: str) -> None:
        """Handle a trainer of `run`: drop the policies of another run."""
        if self.run != run:
            self.clear()
        self.run = run

    def begin_incarnation(self, incarnation: int) -> None:
        """Handle the incarnation that the trainer has chosen: drop a policy whose version its own will not exceed."""
        if self.newest is not None and self.newest.version[0] > incarnation:
            self.clear()

    def abandon(self) -> None:
        """Discard the incomplete policy, because the rest will not arrive."""
        if self.arriving is not None:
            self.arriving.abandoned = True
            self.arriving = None

    def take(self, frame: Frame, incarnation: int) -> Policy:
        """Store a frame of the trainer, whose current incarnation is `incarnation`, and return its policy.

        Raises:
            RemoteProtocolError: the policy is too large, is not a policy, is a delta to one that is not stored, or its
                frames contradict its header.
        """
        begin = POLICY_HEAD.size
        if frame.flags & FIRST:
            self.abandon()
            version, length, base, begin = read_head(frame, self.max_bytes)
            # A version that is stored as a delta may come again complete: a trainer's new link begins with that.
            stored = self.latest if base is None else self.newest
            old = version[0] != incarnation or (stored is not None and version <= stored.version)
            if base is not None and not old and (self.latest is None or self.latest.version != base):
                raise RemoteProtocolError(f"a delta to policy {base[0]}.{base[1]}, which is not stored here")
            head = POLICY_HEAD if base is None else POLICY_DELTA_HEAD
            self.arriving = Policy(version, message_bytes(head, length), abandoned=old, base=base)
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
            self._check(frame.payload[begin:])
        # A view, because all workers' links share this buffer, which must not be reused.
        policy.frames.append(memoryview(frame.buffer))
        policy.received = received
        policy.whole = last
        if last:
            self.arriving = None
            if policy.abandoned:
                return policy
            if policy.base is None:
                self.latest, self.delta = policy, None
            else:
                self.delta = policy
        return policy

    def version_for(self, run: str, have: Version, base: Version = (0, 0)) -> Policy | None:
        """Return the policy to send next to a worker of `run` that has version `have`; None: nothing.

        The complete policy goes first: it is available immediately, however slow the trainer's link is.

        Args:
            run: run of the worker.
            have: its version.
            base: complete version that it keeps for deltas, beside `have`; (0, 0): it keeps nothing.
        """
        if run != self.run:
            return None
        for policy in (self.newest, self.arriving):
            if policy is not None and not policy.abandoned and policy.version > have:
                usable = policy.base is None or (base > (0, 0) and policy.base in (base, have))
                # It is the base, perhaps an older version than the worker's.
                return policy if usable else self.latest
        return None
