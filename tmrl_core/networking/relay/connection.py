"""The Server's end of one link. Sans-I/O."""

# Theory of operation
#
# One link at the Server: its state, its greeting, and the account of its costs. What a message causes is the hub's
# matter (`Hub`, which `Relay` is), with these few calls; the link decides only whether a message may come now, and when
# the link ends.
#
#     greeting -> worker | trainer | observer | probe -> closing -> left
#
# Until a peer is admitted, it may send frames of 8 kB and nothing but `Hello` or `Probe`. A refusal because of wrong
# credentials is sent later (`refuse_later`), so that guessing takes time; meanwhile the link is in "greeting" and
# accepts nothing. After admission the hub sets `takes`, `sink` and `source`: which frames of data the peer may send,
# who takes them, and what is sent to it. So the path of a frame of samples has no look at roles.
#
# Leaving is separate from closing. `leave` removes the link from the relay at once, whatever the transport still does,
# because a peer that connects again must find its place free. It is called from every way in which a link can end, and
# works once.
#
# Three reasons close a link of an honest-looking peer: it reads nothing for `stalled_s` (what waits for it costs
# memory), it uses no credit for `stalled_s` while others wait for credit, or its acknowledgements pile up to 16 MB.
# Each is refused with "full", after which its peer connects again, and nothing is lost.
#
# Processor time. The transport measures each read with its decryption and tells `charge`; the principal pays for all of
# it that was not samples, since those are limited by credit and turns. The share of samples in a read is found from
# frames and bytes, because nothing is measured inside it: a full frame is samples entirely, one of 128 bytes by
# 128/512. Samples in TLS records of a few bytes each are charged in full, because decrypting a record costs nearly the
# same however small it is. Example: a read of 64 kB takes 0.2 ms and brings one full frame of samples: 0 is charged.
# The same bytes as 2,000 requests for credit may take 20 ms: 30 ms are charged, which a tenth of a core earns in 0.3 s.
#
# A read that took longer than 2 ms makes the next ones shorter (`ReadSize`), because the event loop serves nobody else
# within a read.

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from tmrl_core.errors import RemoteProtocolError
from tmrl_core.networking.protocol.connection import Connection
from tmrl_core.networking.protocol.framing import FIRST, MAX_PAYLOAD_BYTES, Frame
from tmrl_core.networking.protocol.messages import LEGAL, Ack, Control, Incarnation, Revoked, Version
from tmrl_core.networking.relay.latest_policy import Policy
from tmrl_core.networking.relay.message_queue import SMALL_BYTES
from tmrl_core.networking.relay.probes import PROBE_S, Echoes
from tmrl_core.networking.relay.processor_time import EFFECTS, ReadSize
from tmrl_core.networking.relay.settings import RelaySettings
from tmrl_core.networking.relay.streams import RelayStream

GREETING_PAYLOAD_BYTES = 8_192
"""Maximum payload of a frame from a peer that is not authenticated yet."""

_CHARGED = ("worker", "observer", "probe")
"""Roles that have a share of the processor; see `processor_time.py`."""
_RECORD_BYTES, _MAX_RECORD_BYTES = 22, 16_640
"""Overhead of a TLS record, and maximum size of one."""
_UNFINISHED_S = 0.01
"""Processor time that the beginning of a frame may cost before it is charged."""
_UNREAD_BYTES = 16 << 20
"""Maximum bytes of acknowledgements that wait for a worker, which reads nothing if there are more."""
REGISTERED = ("worker", "trainer")
"""Roles whose connections the Server logs; probes and observers are not logged."""


class Hub(Protocol):
    """The relay as each of its links sees it.

    A link hands over what happens. The hub answers with the methods of `Connection`, on this link and on others. A link
    of a role that sends or receives samples or policies gets `takes`, `sink` and `source` from it.
    """

    settings: RelaySettings
    unfinished: bool
    """True: the hub has work left, so a link should pass the time soon."""

    def message(self, link: RelayConnection, message: Control) -> None:
        """Handle a message that is legal in the link's state.

        Raises:
            RemoteProtocolError: its content is not allowed.
        """

    def other_version(self, link: RelayConnection, greeting: memoryview) -> bool:
        """Refuse a peer whose first message is unreadable, if it speaks only other versions. False: it does not."""

    def next_policy(self, link: RelayConnection) -> Policy | None:
        """Return the version that a worker's link begins to send; None: nothing is to be sent, or not yet."""

    def charge(self, link: RelayConnection, seconds: float, now: float) -> None:
        """Charge processor time to the link's principal, and read its links slowly if it has used up its share."""

    def overspent(self, link: RelayConnection) -> bool:
        """Return True if the link's principal has used more processor time than its share."""

    def passed(self, link: RelayConnection, now: float) -> None:
        """Handle the passing of time."""

    def left(self, link: RelayConnection, reason: object) -> None:
        """Remove a link, although its transport may still be open."""

    def misused(self, link: RelayConnection, reason: str) -> None:
        """Count a violation of the protocol."""


class RelayConnection(Connection):
    """The Server's end of one link."""

    LEGAL = LEGAL["server"]

    def __init__(self, hub: Hub) -> None:
        settings = hub.settings
        super().__init__(silent_s=settings.silent_s, heartbeat_s=settings.heartbeat_s, greeting_s=settings.greeting_s)
        self.hub = hub
        # Assigned by the hub at admission, so that a frame of data needs no decision by role.
        self.sink: Callable[[RelayConnection, Frame], object]
        """Takes frames of data. For samples, it returns True if they are of the present epoch."""
        self._reader.max_payload_bytes = GREETING_PAYLOAD_BYTES
        self._held: tuple[float, str, str] | None = None
        self.principal = ""
        """Owner of its streams and its id, once it is admitted: the holder of a certificate's name, or of a token."""
        self.announces = False
        """True: a trainer that chooses its incarnation; see `Hello`."""
        self.run = ""
        self.name = ""
        """Label for display, unique among linked workers."""
        self.called = ""
        """Label that the peer has chosen for itself."""
        self.place = 0
        """Number of a worker; see `Place`."""
        self.has_kept = False
        """True: a worker has said which number it keeps."""
        self.peer = b""
        self.streams: dict[int, RelayStream] = {}
        self.anew = False
        """True: the peer reported an implausible incarnation; see `Welcome`."""
        self.claimed = 0
        """Highest incarnation of a trainer that a worker reported in its `Hello`."""
        self.suggested = 0
        """Highest incarnation that a trainer was told because of such reports, after its announcement."""
        self.taken = 0
        """Incarnation that a trainer announced and that another trainer has had; it was told a free one."""
        self.unanswered = 0
        """Number of incarnations that a trainer was told since its last announcements, each of which answers one."""
        self.have: Version = (0, 0)
        self.base: Version = (0, 0)
        """Complete policy that this worker keeps for deltas, beside `have`; (0, 0): it keeps nothing."""
        self.forged = 0
        """Number of messages without a valid proof of their origin, as the peer reports it."""
        self.outdated = 0
        """Number of messages that were older than accepted ones, as the peer reports it."""
        self.policy: Policy | None = None
        """Version that is being sent."""
        self._policy_index = 0
        self.policy_due = float("inf")
        """Time at which it may begin with another version, if its principal has received too many of them."""
        self.sent: Version | None = None
        """Version that was sent completely and is not confirmed yet."""
        self._sent_base: Version | None = None
        """Its base; None: it is complete."""
        self._read_size = ReadSize()
        self.read_bytes = self._read_size.bytes
        self._sample_frames = 0.0
        """Frames of samples since the last charge; small ones, which cost more than their bytes, count in part."""
        self._charged = (0, 0)
        """Bytes and frames that had arrived then."""
        self._uncharged = (0.0, 0)
        """Processor time since then, and bytes as they were on the wire."""
        self._overhead_bytes = 0
        """Bytes on the wire that were not content and are not charged yet. A record may be incomplete."""
        self.read_at = 0.0
        """Time of the latest read."""
        self.opened = False
        """True: it has opened a stream."""
        self.hands_over = False
        """True: it has handed a stream over."""
        self.trainer_s = 0.0
        """Price of the messages since then, in the trainer's processor time."""
        self.answers_s = 0.0
        """Price of the status since then."""
        self._credit_used_at = 0.0
        """Time of the last samples, or of the last check without unused credit."""
        self.checked_at = 0.0
        """Time of the last check of its progress."""
        self._told_revocations = b""
        self._left = False
        self._parting = ""
        self.noticed_at = 0.0
        """Time of the last notice to the trainer."""
        self.echoes = Echoes()
        self.snapshot = b""
        """Status of which an observer requests the pages."""

    @property
    def now(self) -> float:
        """Return the time of the latest call."""
        return self._now

    def stream(self, channel: int) -> RelayStream:
        """Return the stream of a channel of this link."""
        stream = self.streams.get(channel)
        if stream is None:
            raise RemoteProtocolError(f"channel {channel} is not open")
        return stream

    def belong_to_holder(self, role: str) -> None:
        """Set the principal: the holder of the certificate or of the role's token."""
        identity = self.identity
        self.principal = f"certificate {identity.role} {identity.name}" if identity.role else f"token {role}"

    def suggest(self, incarnation: int) -> None:
        """Tell a trainer an incarnation. One that chooses its own announces the one that it has then."""
        self.unanswered += 1
        self.send(Incarnation(incarnation))

    def acknowledge(self, ack: Ack) -> None:
        """Forward an acknowledgement, in place of one that has not been sent yet if it implies that one."""
        key = ("ack", ack.channel)
        earlier = self._slots.get(key)
        if isinstance(earlier, Ack):
            # A tag covers the whole acknowledgement. The worker would count an omitted refusal as committed.
            first, ack = (earlier, ack) if earlier.next <= ack.next else (ack, earlier)
            if first.refused:
                self.send(first)
        # The usual case: an acknowledgement without refusals covers the one before it.
        self.put(key, ack)
        if self.unread_bytes > _UNREAD_BYTES:
            self.refuse("full", f"more than {_UNREAD_BYTES >> 20} MB of acknowledgements were not read")

    def _on_connected(self) -> None:
        # The deadline begins now and not at the clock's zero: a deadline long past would look like a suspended process.
        self.noticed_at = self.checked_at = self._credit_used_at = self._now
        if self.identity.role is not None:
            self.belong_to_holder(self.identity.role)  # its handshake has a price, whatever follows

    def _on_control(self, message: Control) -> None:
        if self._held is not None:
            raise RemoteProtocolError("it has identified itself already")
        self.hub.message(self, message)

    def charge(self, seconds: float, n: int, now: float) -> None:
        """Charge the processor time of received bytes to the principal, except the part of samples."""
        self.read_at = now
        used, wire = self._uncharged
        if not self._charged[1] and self.identity.role is None and self.state in _CHARGED:
            used = 0.0  # its handshake; members of a fleet with one token connect again together
        self._uncharged = used, wire = used + seconds, wire + n
        if self.closing:
            self._now = now
            # What follows the read in which it ended is discarded, and has no consequences.
            if self.state in _CHARGED and self.bytes_in != self._charged[0]:
                used *= EFFECTS
            self.hub.charge(self, used + self.answers_s, now)
            self._charged, self._uncharged = (self.bytes_in, self.frames_in), (0.0, 0)
            self.answers_s = 0.0
            return
        self._read_size.spent(seconds, n)
        self.read_bytes = self._read_size.bytes
        frames = self.frames_in - self._charged[1]
        if self.state == "trainer":
            self._charged, self._uncharged = (self.bytes_in, self.frames_in), (0.0, 0)
        if self.state not in _CHARGED or not (frames or (used > _UNFINISHED_S and self._has_tiny_records())):
            return
        # Samples in many tiny TLS records are charged like everything else, and those in small ones in part.
        large = self._large_records()
        samples = 0.0 if self._has_tiny_records() else min(self._sample_frames / frames, large)
        self._charged, self._uncharged, self._sample_frames = (self.bytes_in, self.frames_in), (0.0, 0), 0.0
        used, self.answers_s = EFFECTS * (1.0 - samples) * used + self.answers_s, 0.0
        self.hub.charge(self, used, now)

    def _has_tiny_records(self) -> bool:
        """Return True if less than half of the bytes since the last charge were content of TLS records."""
        return 2 * (self.bytes_in - self._charged[0]) <= self._uncharged[1]

    def _large_records(self) -> float:
        """Return 1 if records had `SMALL_BYTES` of content on average since the last charge, less for small ones."""
        content = self.bytes_in - self._charged[0]
        self._overhead_bytes += self._uncharged[1] - content
        overhead = max(0, self._overhead_bytes - _MAX_RECORD_BYTES)
        self._overhead_bytes -= overhead
        return min(1.0, content * _RECORD_BYTES / (SMALL_BYTES * overhead)) if overhead else 1.0

    @property
    def overspent(self) -> bool:
        """Return True if its principal has used more processor time than its share."""
        return self.hub.overspent(self)

    def _on_unreadable(self, payload: memoryview) -> bool:
        return self.state == "greeting" and self.hub.other_version(self, payload)

    def _on_frame(self, frame: Frame) -> None:
        if self.sink(self, frame):
            self._credit_used_at = self._now
            size = len(frame.buffer)
            large = size >= SMALL_BYTES or not frame.flags & FIRST  # the last frame of a large message may be small
            self._sample_frames += 1.0 if large else size / SMALL_BYTES

    def next_policy_frame(self) -> memoryview | None:
        """Return the next frame of a policy for a worker; None: nothing now."""
        # One version is in transit to each worker: the next one is chosen when this has arrived, and it is then the
        # latest. A slow worker skips versions in place of falling behind.
        if self.sent is not None:
            return None
        policy = self.policy
        if policy is None or policy.abandoned:
            policy = self.policy = self.hub.next_policy(self)
            self._policy_index = 0
        if policy is None or self._policy_index == len(policy.frames):
            return None
        frame = policy.frames[self._policy_index]
        self._policy_index += 1
        if policy.whole and self._policy_index == len(policy.frames):
            self.sent, self.policy = policy.version, None  # its memory is not needed until it is confirmed
            self._sent_base = policy.base
        return frame

    def confirm_policy(self, version: Version) -> None:
        """Handle a worker's report that a version has arrived."""
        if version != self.sent:
            return
        self.have, self.sent = version, None
        if self._sent_base is None:
            self.base = version
        self.wake()

    def send_latest_policy(self) -> None:
        """Leave the version that is being sent, and begin with the latest one."""
        self.policy = None
        self.wake()

    def admitted(self) -> None:
        """Handle the end of the greeting, unless the peer was refused."""
        if self.state != "greeting" and not self.closing:
            self._reader.max_payload_bytes = MAX_PAYLOAD_BYTES
            self.on_admitted()

    def refuse_later(self, code: str, reason: str, delay_s: float) -> None:
        """Send a delayed rejection, within the time that the other side has to identify itself."""
        # At most half of what is left, or the deadline of the greeting would close the link without the reason.
        left_s = max(0.0, self.greeting_s - self.linked_s(self._now))
        self._held = (self._now + min(delay_s, 0.5 * left_s), code, reason)
        self.wake()

    def tick(self, now: float) -> None:
        """Handle the passing of time."""
        super().tick(now)
        self.hub.passed(self, now)
        if self._held is not None and not self.closing and now >= self._held[0]:
            self.refuse(*self._held[1:])
        if now >= self.policy_due:
            self.policy_due = float("inf")
            self.wake()
        if self.state == "probe" and not self.closing and now - self._connected_at >= PROBE_S:
            self.refuse("misuse", f"a probe must end within {PROBE_S:g} s")

    def tell_revocations(self, body: bytes) -> None:
        """Send the list of revoked certificates if the peer has not received it."""
        if body and body is not self._told_revocations:
            self._told_revocations = body
            self.put("revoked", Revoked(body))

    def check_progress(self, now: float, unused: int) -> None:
        """Close a link that makes no progress and occupies memory that others need. Its peer may connect again.

        Args:
            now: the present time.
            unused: bytes of credit that it has not used while others wait for credit.
        """
        self.checked_at = now
        stalled_s = self.hub.settings.stalled_s
        if now - self._last_taken >= stalled_s:
            self.refuse("full", f"nothing was read for {stalled_s:g} s")
            return
        if not unused:
            self._credit_used_at = now
        elif now - self._credit_used_at >= stalled_s:
            self.refuse(
                "full", f"credit for {unused} bytes was requested and not used for {stalled_s:g} s, while others waited"
            )

    def compensate_pause(self, seconds: float, now: float) -> None:
        """Discount time in which this process was suspended."""
        super().compensate_pause(seconds, now)
        self._credit_used_at += seconds

    def deadline(self) -> float:
        """Return the latest time for the next call of `tick`."""
        deadline = super().deadline()
        if self.state in REGISTERED:
            deadline = min(deadline, self.checked_at + self.heartbeat_s, self.policy_due)
        if self._held is not None:
            deadline = min(deadline, self._held[0])
        if self.hub.unfinished:
            # As soon as possible: input of other links comes first, since the transport handles what has arrived before
            # timers.
            deadline = min(deadline, self._now)
        return min(deadline, self.noticed_at + self.heartbeat_s) if self.state == "trainer" else deadline

    def leave(self) -> None:
        """Remove this link from the relay, although its transport may still be open."""
        if self._left:
            return
        self._left = True
        unfinished = self.state in _CHARGED and self._charged[1] and self._has_tiny_records()
        if unfinished or (self.state == "greeting" and self.identity.role is not None):
            self.hub.charge(self, EFFECTS * self._uncharged[0], self._now)
            self._uncharged = (0.0, 0)
        self.hub.left(self, self._parting or self.reason)

    def close(self) -> None:
        """Close the link in order, because the Server is shutting down."""
        if not self.closing:
            self._parting = "this Server ends"
        super().close()

    def refuse(self, code: str, reason: str, now: float | None = None) -> None:
        """Send the other side the reason, then close."""
        if code == "misuse" and not self.closing:
            self.hub.misused(self, reason)
        super().refuse(code, reason, now)
        self.leave()

    def _fail(self, reason: object) -> None:
        super()._fail(reason)  # type: ignore[arg-type]
        self.leave()

    def _on_closed(self) -> None:
        self.leave()
