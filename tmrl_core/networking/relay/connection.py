"""The Server's end of one link. Sans-I/O."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, ClassVar

from tmrl_core.errors import RemoteProtocolError
from tmrl_core.networking.protocol.connection import Connection
from tmrl_core.networking.protocol.framing import FIRST, MAX_PAYLOAD_BYTES, Frame, Kind
from tmrl_core.networking.protocol.messages import (
    MAX_BODY_BYTES,
    MAX_COUNT,
    Ack,
    Announce,
    CloseStream,
    Control,
    Credit,
    Direct,
    Echo,
    Forged,
    Halt,
    HandOver,
    Have,
    Hello,
    Incarnation,
    Lateness,
    OpenStream,
    Place,
    Probe,
    Report,
    Resume,
    Revoked,
    StatusPage,
    StatusRequest,
    Unused,
    Version,
    Waits,
    Want,
    negotiate,
    versions_of,
)
from tmrl_core.networking.relay.message_queue import SMALL_BYTES
from tmrl_core.networking.relay.policies import Policy
from tmrl_core.networking.relay.probes import PROBE_S, Echoes
from tmrl_core.networking.relay.processor_time import (
    EFFECTS,
    PAUSE_S,
    SIGNATURE_BYTE_S,
    STATUS_BYTE_S,
    STREAM_S,
    WAITS_BYTE_S,
    WAITS_S,
    ReadSize,
)
from tmrl_core.networking.relay.streams import RelayStream

if TYPE_CHECKING:
    from tmrl_core.networking.relay.core import Relay


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
_BEHIND_PAUSE_S = 0.5
"""Time for which nothing is read from links that hand over faster than the spool stores."""
_REGISTERED = ("worker", "trainer")
"""Roles whose connections the Server logs; probes and observers are not logged."""


def _pause(links: Iterable[RelayConnection], seconds: float) -> None:
    """Read nothing from these links for some seconds.

    The transport resumes them in this order, and the first that is read may be followed by another pause of all. So the
    one that was read longest ago comes first, or the others would never be read.
    """
    for link in sorted(links, key=lambda link: link._read_at):
        link.pause(seconds)


class RelayConnection(Connection):
    """The Server's end of one link."""

    LEGAL: ClassVar[dict[str, frozenset[type]]] = {
        "greeting": frozenset({Hello, Probe}),
        "probe": frozenset({Echo}),
        "worker": frozenset({OpenStream, CloseStream, HandOver, Want, Unused, Have, Waits, Forged, Lateness, Place}),
        "trainer": frozenset({Resume, Halt, Ack, Announce, Credit, Direct, Report, Forged}),
        "observer": frozenset({StatusRequest}),
    }

    def __init__(self, relay: Relay) -> None:
        settings = relay.settings
        super().__init__(silent_s=settings.silent_s, heartbeat_s=settings.heartbeat_s, greeting_s=settings.greeting_s)
        self.relay = relay
        self._reader.max_payload_bytes = GREETING_PAYLOAD_BYTES
        self._held: tuple[float, str, str] | None = None
        self.principal = ""
        """Owner of its streams and its id, once it is admitted: the holder of a certificate's name, or of a token."""
        self.version = 0
        """Negotiated version of the protocol."""
        self.announces = False
        """True: a trainer that chooses its incarnation; see `Hello`."""
        self.run = ""
        self.name = ""
        """Label for display, unique among linked workers."""
        self.called = ""
        """Label that the peer has chosen for itself."""
        self.place = 0
        """Number of a worker; see `Place`."""
        self._has_kept = False
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
        self.forged = 0
        """Number of messages without a valid proof of their origin, as the peer reports it."""
        self.outdated = 0
        """Number of messages that were older than accepted ones, as the peer reports it."""
        self._policy: Policy | None = None
        """Version that is being sent."""
        self._policy_index = 0
        self._policy_due = float("inf")
        """Time at which it may begin with another version, if its principal has received too many of them."""
        self._sent: Version | None = None
        """Version that was sent completely and is not confirmed yet."""
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
        self._read_at = 0.0
        """Time of the latest read."""
        self._opened = False
        """True: it has opened a stream."""
        self.hands_over = False
        """True: it has handed a stream over."""
        self._trainer_s = 0.0
        """Price of the messages since then, in the trainer's processor time."""
        self._answers_s = 0.0
        """Price of the status since then."""
        self._credit_used_at = 0.0
        """Time of the last samples, or of the last check without unused credit."""
        self._checked_at = 0.0
        self._told_revocations = b""
        self._left = False
        self._parting = ""
        self._noticed = 0.0
        self.echoes = Echoes()
        self._snapshot = b""

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
        self.put(key, ack)
        if self.unread_bytes > _UNREAD_BYTES:
            self.refuse("full", f"more than {_UNREAD_BYTES >> 20} MB of acknowledgements were not read")

    def _on_connected(self) -> None:
        # The deadline begins now and not at the clock's zero: a deadline long past would look like a suspended process.
        self._noticed = self._checked_at = self._credit_used_at = self._now
        if self.identity.role is not None:
            self.belong_to_holder(self.identity.role)  # its handshake has a price, whatever follows

    def _on_control(self, message: Control) -> None:
        relay = self.relay
        match message:
            case Hello() | Probe() if self._held is not None:
                raise RemoteProtocolError("it has identified itself already")
            case Hello():
                relay.accept_hello(self, message)
                self._on_admitted()
                if self.state in _REGISTERED:
                    relay.membership_log.joined(self, self._now)
            case Probe():
                relay.probes.accept(self, message, self._now)
                self._on_admitted()
            case Echo():
                self.echoes.take(message)
                self.wake()
            case OpenStream():
                if self._opened or self.identity.role is not None:  # a fleet with one token connects again together
                    self._trainer_s += STREAM_S + len(message.signature) * SIGNATURE_BYTE_S
                self._opened = True
                relay.open_stream(self, message)
            case CloseStream():
                relay.close_stream(self, message.channel)
            case Want():
                relay.flow.want(self, message)
            case Unused():
                relay.flow.unused(self, message)
            case HandOver():
                relay.spool_handoff.begin(self, message.channel)
            case Waits():
                relay.waits(self, message)
                self._trainer_s += WAITS_S + len(self.stream(message.channel).waits.encode()) * WAITS_BYTE_S
            case Lateness():
                self._trainer_s += WAITS_S
                relay.lateness(self, message)
            case Place():
                if self._has_kept:
                    raise RemoteProtocolError("it has told its number already")
                self._has_kept = True
                relay.keep_place(self, message.number)
            case Have():
                version = (message.incarnation, message.counter)
                if version == self._sent:
                    self.have = version
                    self._sent = None
                    self.wake()
            case Resume():
                relay.resume(message)
            case Halt():
                relay.halt(message)
            case Ack():
                relay.forward_ack(message)
            case Credit():
                relay.flow.trainer_credit(message)
            case Announce():
                relay.announce(self, message)
            case Forged():
                self.forged = min(message.count, MAX_COUNT)
                self.outdated = min(message.outdated, MAX_COUNT)
            case Direct():
                relay.direct(message)
            case Report():
                relay.report(message)
            case StatusRequest():
                self._show(message.page)
            case _:
                super()._on_control(message)

    def _show(self, page: int) -> None:
        """Send an observer one page at a time, so that little data waits for a slow observer."""
        if self.unread_bytes > MAX_BODY_BYTES:
            raise RemoteProtocolError("status pages are requested faster than they are read")
        if page == 0:
            self._snapshot = self.relay.snapshots.take(self._now)
        pages = -(-len(self._snapshot) // MAX_BODY_BYTES)
        if page >= pages:
            raise RemoteProtocolError(f"there is no page {page} of {pages}")
        body = self._snapshot[page * MAX_BODY_BYTES : (page + 1) * MAX_BODY_BYTES]
        if page == pages - 1:
            self._snapshot = b""
        self._answers_s += len(body) * STATUS_BYTE_S
        self.send(StatusPage(page, pages, body))

    def charge(self, seconds: float, n: int, now: float) -> None:
        """Charge the processor time of received bytes to the principal, except the part of samples."""
        self._read_at = now
        used, wire = self._uncharged
        if not self._charged[1] and self.identity.role is None and self.state in _CHARGED:
            used = 0.0  # its handshake; members of a fleet with one token connect again together
        self._uncharged = used, wire = used + seconds, wire + n
        if self.closing:
            self._now = now
            # What follows the read in which it ended is discarded, and has no consequences.
            if self.state in _CHARGED and self.bytes_in != self._charged[0]:
                used *= EFFECTS
            self.relay.processor_time.charge(self.principal, used + self._answers_s, now, self._trainer_s)
            self._charged, self._uncharged = (self.bytes_in, self.frames_in), (0.0, 0)
            self._answers_s = self._trainer_s = 0.0
            return
        if self._read_size.spent(seconds, n):
            self.pause(0.0)
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
        relay, principal = self.relay, self.principal
        used, self._answers_s = EFFECTS * (1.0 - samples) * used + self._answers_s, 0.0
        pause_s = relay.processor_time.charge(principal, used, now, self._trainer_s)
        self._trainer_s = 0.0
        if pause_s:
            everyone = (*relay.workers.values(), *relay.observers, *relay.probes.places)
            links = [link for link in everyone if link.principal == principal]
            relay.processor_time.charge(principal, PAUSE_S * len(links), now)
            _pause(links, pause_s)
            if relay.processor_time.should_log(principal, now):
                relay.membership_log.slowed(self)
        if self.hands_over and relay.spool_handoff.is_behind(principal):
            links = [link for link in relay.workers.values() if link.principal == principal and link.hands_over]
            _pause(links, max(pause_s, _BEHIND_PAUSE_S))

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
        return self.relay.processor_time.overspent(self.principal, self._now)

    def _control_frame(self, frame: Frame) -> None:
        try:
            super()._control_frame(frame)
        except RemoteProtocolError:
            # A message of another protocol version may be unreadable, but its version number never is.
            versions = versions_of(frame.payload) if self.state == "greeting" else ()
            if not versions or negotiate(versions, self.relay.versions) is not None:
                raise
            self.relay.refuse_versions(self, versions)

    def _on_frame(self, frame: Frame) -> None:
        if self.state == "worker" and frame.kind == Kind.DATA:
            if self.relay.flow.frame(self, frame):
                self._credit_used_at = self._now
                size = len(frame.buffer)
                large = size >= SMALL_BYTES or not frame.flags & FIRST  # the last frame of a large message may be small
                self._sample_frames += 1.0 if large else size / SMALL_BYTES
        elif self.state == "trainer" and frame.kind == Kind.WEIGHTS:
            self._policy_frame(frame)
        else:
            raise RemoteProtocolError(f"a {self.state} sends no frames of kind {Kind(frame.kind).name}")

    def _policy_frame(self, frame: Frame) -> None:
        policy = self.relay.policies.take(frame, self.relay.trainer_incarnation)
        if policy.whole:
            self.put("have", Have(*policy.version))
        if policy.whole or frame.flags & FIRST:
            self.relay.limit_old_policies()
        if not policy.abandoned:
            self.relay.notify_policy()

    def _next_frame(self) -> bytes | bytearray | memoryview | None:
        if self.state == "trainer":
            return self.relay.flow.next_frame()
        if self.state == "probe":
            return self.echoes.next_frame()
        if self.state != "worker" or self._sent is not None:
            return None
        policy = self._policy
        if policy is None or policy.abandoned:
            policy = self._policy = self._next_policy()
            self._policy_index = 0
        if policy is None or self._policy_index == len(policy.frames):
            return None
        frame = policy.frames[self._policy_index]
        self._policy_index += 1
        if policy.whole and self._policy_index == len(policy.frames):
            self._sent, self._policy = policy.version, None  # its memory is not needed until it is confirmed
        return frame

    def _next_policy(self) -> Policy | None:
        """Return the version to begin with; None: nothing is to be sent, or not yet."""
        policy = self.relay.policies.version_for(self.run, self.have)
        if policy is None or self.identity.role is None:  # a fleet may share a token
            return policy
        wait_s = self.relay.sent_weights.wait_s(self.principal, policy.version, policy.size, self._now)
        self._policy_due = self._now + wait_s if wait_s else float("inf")
        return None if wait_s else policy

    @property
    def old_policy(self) -> Policy | None:
        """Version that this link still sends and that is not the latest; its memory is kept for such links alone."""
        policies, policy = self.relay.policies, self._policy
        return None if policy in (None, policies.latest, policies.arriving) else policy

    def send_latest_policy(self) -> None:
        """Leave the version that is being sent, and begin with the latest one."""
        self._policy = None
        self.wake()

    def _on_admitted(self) -> None:
        if self.state != "greeting" and not self.closing:
            self._reader.max_payload_bytes = MAX_PAYLOAD_BYTES
            self.on_admitted()

    def refuse_later(self, code: str, reason: str, delay_s: float) -> None:
        """Send a delayed rejection, within the time that the other side has to identify itself."""
        left_s = max(0.0, self.greeting_s - self.linked_s(self._now))
        self._held = (self._now + min(delay_s, 0.5 * left_s), code, reason)
        self.wake()

    def tick(self, now: float) -> None:
        """Handle the passing of time, and send the trainer the size of the queues."""
        super().tick(now)
        if self.relay.flow.unfinished:
            self.relay.flow.grant()
        if self.state in _REGISTERED and not self.closing and now >= self._checked_at + self.heartbeat_s:
            self._check_progress(now)
        if self._held is not None and not self.closing and now >= self._held[0]:
            self.refuse(*self._held[1:])
        if self.state in _REGISTERED and not self.closing:
            self.tell_revocations()
        if now >= self._policy_due:
            self._policy_due = float("inf")
            self.wake()
        if self.state == "probe" and not self.closing and now - self._connected_at >= PROBE_S:
            self.refuse("misuse", f"a probe must end within {PROBE_S:g} s")
        if self.state == "trainer" and not self.closing and now - self._noticed >= self.heartbeat_s:
            self._noticed = now
            self.relay.notice()

    def tell_revocations(self) -> None:
        """Send the list of revoked certificates if the peer has not received it."""
        body = self.relay.signed_revocations()
        if body and body is not self._told_revocations:
            self._told_revocations = body
            self.put("revoked", Revoked(body))

    def _check_progress(self, now: float) -> None:
        """Close a link that makes no progress and occupies memory that others need. Its peer may connect again."""
        self._checked_at = now
        stalled_s = self.relay.settings.stalled_s
        if now - self._last_taken >= stalled_s:
            self.refuse("full", f"nothing was read for {stalled_s:g} s")
            return
        flow = self.relay.flow
        unused = sum(map(flow.unused_credit, self.streams.values()))
        if not unused or not flow.waiting:
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
        if self.state in _REGISTERED:
            deadline = min(deadline, self._checked_at + self.heartbeat_s, self._policy_due)
        if self._held is not None:
            deadline = min(deadline, self._held[0])
        if self.relay.flow.unfinished:
            deadline = min(deadline, self._now)
        return min(deadline, self._noticed + self.heartbeat_s) if self.state == "trainer" else deadline

    def leave(self) -> None:
        """Remove this link from the relay, although its transport may still be open."""
        if self._left:
            return
        self._left = True
        unfinished = self.state in _CHARGED and self._charged[1] and self._has_tiny_records()
        if unfinished or (self.state == "greeting" and self.identity.role is not None):
            self.relay.processor_time.charge(self.principal, EFFECTS * self._uncharged[0], self._now)
            self._uncharged = (0.0, 0)
        if self.state in _REGISTERED:
            self.relay.membership_log.left(self, self._parting or self.reason, self._now)
        if self.state == "worker":
            self.relay.worker_left(self)
        elif self.state == "trainer":
            self.relay.trainer_left(self)
        elif self.state == "probe":
            self.relay.probes.places.discard(self)
        elif self.state == "observer":
            self.relay.observers.discard(self)

    def close(self) -> None:
        """Close the link in order, because the Server is shutting down."""
        if not self.closing:
            self._parting = "this Server ends"
        super().close()

    def refuse(self, code: str, reason: str, now: float | None = None) -> None:
        """Send the other side the reason, then close."""
        if code == "misuse" and not self.closing:
            self.relay.protocol_errors += 1
            self.relay.on_refused(self.identity.address, reason)
        super().refuse(code, reason, now)
        self.leave()

    def _fail(self, reason: object) -> None:
        super()._fail(reason)  # type: ignore[arg-type]
        self.leave()

    def _on_closed(self) -> None:
        self.leave()
