"""One end of a link, for any role: frames, heartbeats, deadlines, order of sending. Sans-I/O.

A transport drives a `Connection` with these calls and nothing else:

    connection.connected(peer, now)
    n = recv_into(connection.get_buffer());  connection.received(n, now)      # n == 0: end of stream
    for buffer in connection.to_send(now): send(buffer)                       # until it returns nothing
    connection.tick(now)                                                      # at connection.deadline() at the latest
    connection.closed, connection.lost(reason, now)

`connection.wake` is called when the input of another connection gives this one data to send.
"""

# Theory of operation
#
# A `Connection` is one end of one link, for any role. It joins frames to messages that are legal now, and orders what
# is to be sent. It knows no roles: which messages a state allows comes from `LEGAL`, what they mean from the subclass.
# It never waits, sleeps or reads a clock; each call of the transport brings the time, so a test drives years in
# milliseconds.
#
# State. `state` is "greeting" until the other side has identified itself, then a word of the subclass's ("open",
# "worker", ...). `closing` is set once and never reset: from then on received bytes are ignored, and `to_send` returns
# what is left (a `Bye`, or the reason of a refusal) and then nothing. `lost` is the transport's end. A link therefore
# ends in this order: closing, the last output, lost; or lost at once, if the network fails. `_on_closed` is called once
# in both cases.
#
# Order of sending. Control messages go first, in order (`send`). Last values follow (`put`): one slot a key, in which a
# newer message replaces an unsent one, so a slow reader costs one message a key however often the value changes. Data
# comes last, from `source`, one frame at a time and about 128 kB a call. An acknowledgement or a heartbeat therefore
# waits for at most one such piece, while gigabytes of samples are waiting. `flush` turns a last value
# into a message in order, where what follows must not overtake it.
#
# Example: 10 MB of samples wait, and the trainer acknowledges a message. The next call of `to_send` returns the
# acknowledgement and 128 kB of samples; the one after it 128 kB of samples.
#
# Time. Each end sends a PING after `heartbeat_s` without another frame, and takes the link for dead after `silent_s`
# without a byte: with 3 s and 10 s, three heartbeats may be late. Any byte counts, also one inside a large frame on a
# slow link. A greeting has its own deadline, which other bytes do not extend, so that a peer cannot hold a place by
# talking. Time in which this process did not run (a suspended laptop, a debugger) is discounted, because the other
# side's bytes are then waiting in the socket and only need to be read.
#
# Bounds. Input is bounded by the reader's frame and by what handlers store. Output is bounded by the source's credit,
# by the number of slot keys, and for control messages by `MAX_UNREAD_BYTES`: a peer that asks and never reads the
# answers loses its link. A peer's fault is never an exception to the caller: `received` refuses the peer with the
# reason, as a RemoteProtocolError says it.
#
# Rejected: events in a queue, as h11 has them. Each small message would pass one more object and one more loop, and the
# Server's time goes into the calls that a small message takes.

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Hashable
from typing import ClassVar, NamedTuple, TypeAlias

from tmrl_core.errors import NetworkError, RefusedError, RemoteProtocolError
from tmrl_core.networking.protocol.framing import PING_FRAME, Frame, FrameReader, Kind, Wire
from tmrl_core.networking.protocol.messages import Bye, Control, Hello, Refused, control_frame, decode_control, plain

SEND_BYTES = 131_072
"""Maximum size of one result of `to_send`. An urgent frame waits for at most this much data in a socket's buffers."""
_FRAME_BYTES = 1_024
"""Bytes that take as long as a frame does in addition to its own, so that tiny frames do not take long together."""


class Identity(NamedTuple):
    """Identity of the other side, as the transport knows it."""

    address: str
    """Address of the other side, for display."""
    role: str | None = None
    """The role in its client certificate, if it showed one."""
    name: str | None = None
    """The name in its client certificate, if it showed one."""
    serial: str | None = None
    """The serial number of that certificate, as `certificates.clean_serial` writes it."""
    issuer: str | None = None
    """Subject of the CA that signed it, as `ssl` formats it."""
    weight: int = 1
    """Weight in its client certificate: its part of the Server's throughput, in parts of a worker."""

    def named(self, text: str) -> str:
        """Return a text about the other side, after the name in its certificate if it showed one."""
        return text if self.name is None else f"{self.name}: {text}"


class Connection:
    """The common part of both sides of a link.

    Subclasses implement `_on_connected`, `_on_control`, `_on_frame` and `_on_closed`, set `source` and `takes`, and
    list in `LEGAL` the messages that each state allows.

    Args:
        silent_s: seconds without a byte from the other side after which the link is dead.
        heartbeat_s: seconds without a frame to the other side after which a heartbeat is sent.
        greeting_s: seconds within which the other side must identify itself.
    """

    LEGAL: ClassVar[dict[str, frozenset[type]]] = {}
    MAX_UNREAD_BYTES: ClassVar[float] = float("inf")
    """Maximum size of unsent control messages with which further messages are handled."""
    read_bytes = sys.maxsize
    """Maximum bytes to read at a time."""
    is_first = False
    """True: others wait for what this link brings, so that it is read before them."""

    def __init__(self, *, silent_s: float, heartbeat_s: float, greeting_s: float = 10.0) -> None:
        self.silent_s = silent_s
        self.heartbeat_s = heartbeat_s
        self.greeting_s = greeting_s
        self.state = "greeting"
        self.started = False
        """True: the transport is connected. Before that, there is nothing to send and no deadline."""
        self.identity = Identity("not connected")
        self.closing = False
        """True: received bytes are ignored. The remaining result of `to_send` should be sent before the transport
        closes."""
        self.reason: NetworkError | None = None
        """Reason of the close; None while the link is open, and if it was closed in order."""
        self.wake: Callable[[], None] = lambda: None
        self.on_admitted: Callable[[], None] = lambda: None
        """Called once, when the other side is authenticated."""
        self.pause: Callable[[float], None] = lambda seconds: None
        """Ask the transport to read nothing for some seconds."""
        self.rtt_s: Callable[[], float | None] = lambda: None
        """Returns the round-trip time of the link, if the transport knows it."""
        self.source: Callable[[], bytes | bytearray | memoryview | Wire | None] = lambda: None
        """Returns the next frame of data to send; None: nothing now."""
        self.takes: Kind | None = None
        """Kind of the frames of data that the other side may send; None: it sends none."""
        self.frames_in = 0
        self.bytes_in = 0
        self.bytes_out = 0
        self._reader = FrameReader()
        self.get_buffer = self._reader.get_buffer
        """Returns the buffer for the next bytes from the other side; never empty."""
        self._control: deque[bytes] = deque()
        self.unread_bytes = 0
        """Bytes of control messages that are not sent yet, because the other side does not read."""
        self._slots: dict[Hashable, Control] = {}
        self._now = 0.0
        self._connected_at = 0.0
        self._last_in = 0.0
        self._last_out = 0.0
        self._last_taken = 0.0
        """Time at which the transport last took output, if there was any."""
        self._was_lost = False

    # --- called by the transport ---

    def connected(self, identity: Identity, now: float) -> None:
        """Handle the established transport, its own handshake (TLS) included."""
        self.started = True
        self.identity = identity
        self._now = self._connected_at = self._last_in = self._last_out = self._last_taken = now
        self._on_connected()

    def received(self, n: int, now: float) -> None:
        """Handle `n` bytes written into `get_buffer()`; 0: the other side closed. Never raise for a peer's fault."""
        self._now = now
        already_closing = self.closing  # read again below, because handling a frame may change it
        if already_closing:
            return
        if n == 0:
            self._fail(NetworkError("the other side closed the connection"))
            return
        self.bytes_in += n
        self._last_in = now
        try:
            for frame in self._reader.received(n):
                self.frames_in += 1
                if frame.kind == Kind.CONTROL:
                    self._control_frame(frame)
                elif frame.kind != Kind.PING:
                    if self.state == "greeting":
                        raise RemoteProtocolError("it sent data before it identified itself")
                    if frame.kind != self.takes:
                        raise RemoteProtocolError(f"it may not send frames of kind {Kind(frame.kind).name}")
                    self._on_frame(frame)
                if self.closing:
                    return
                if self.unread_bytes > self.MAX_UNREAD_BYTES:
                    raise RemoteProtocolError("it does not read the answers to its messages")
        except RemoteProtocolError as exc:
            self.refuse("misuse", str(exc))

    def charge(self, seconds: float, n: int, now: float) -> None:
        """Handle the processor time that the last `n` received bytes took, with decryption."""

    @property
    def overspent(self) -> bool:
        """Return True if the peer has used more processor time than its share."""
        return False

    def to_send(self, now: float) -> list[bytes | bytearray | memoryview]:
        """Return the buffers to send now, in order, about `SEND_BYTES` at most. Repeat until the result is empty.

        The caller owns a returned bytearray and may reuse it; bytes and memoryviews are shared with others.
        """
        self._now = self._last_taken = now
        out: list[bytes | bytearray | memoryview] = []
        size = 0
        self.unread_bytes = 0
        while self._control:
            frame = self._control.popleft()
            out.append(frame)
            size += len(frame)
        # Last values describe the present of a link that goes on; a link that ends needs only its closing message.
        if self._slots and not self.closing:
            slots, self._slots = self._slots, {}
            for message in slots.values():
                frame = control_frame(message)
                out.append(frame)
                size += len(frame)
        if not self.closing and self.state != "greeting":
            frames = 0
            while size + frames * _FRAME_BYTES < SEND_BYTES:
                data = self.source()
                if data is None:
                    break
                frames += 1
                if isinstance(data, Wire):
                    out += data.buffers
                    size += data.size
                else:
                    out.append(data)
                    size += len(data)
        if out:
            self._last_out = now
            self.bytes_out += size
        return out

    def tick(self, now: float) -> None:
        """Handle the passing of time: send a heartbeat, or close a silent link."""
        self._now = now
        if self.closing or not self.started:
            return
        if self.state == "greeting" and now - self._connected_at >= self.greeting_s:
            self._fail(NetworkError(f"the other side did not identify itself within {self.greeting_s:g} s"))
        elif now - self._last_in >= self.silent_s:
            self._fail(NetworkError(f"no data came from the other side for {self.silent_s:g} s"))
        elif now - self._last_out >= self.heartbeat_s and self.state != "greeting":
            # The heartbeat counts as sent even if the transport accepts nothing. Otherwise heartbeats would accumulate.
            self._last_out = now
            # Control messages that wait are as good as a heartbeat: the other side hears from this one once it reads.
            if not self._control:
                self._control.append(PING_FRAME)

    def linked_s(self, now: float) -> float:
        """Return the age of the link in seconds."""
        return max(0.0, now - self._connected_at)

    def silent_for_s(self, now: float) -> float:
        """Return the seconds since the last byte arrived."""
        return max(0.0, now - self._last_in)

    def compensate_pause(self, seconds: float, now: float) -> None:
        """Discount time in which this process was suspended, because data that arrived meanwhile is still unread.

        A deadline that passed during the pause is postponed by a heartbeat interval, so that the unread data can be
        read first.
        """
        self._last_in = max(self._last_in + seconds, now - self.silent_s + self.heartbeat_s)
        self._last_taken += seconds
        self._connected_at += seconds
        if self.state == "greeting":
            self._connected_at = max(self._connected_at, now - self.greeting_s + self.heartbeat_s)

    def resumed(self, now: float) -> None:
        """Handle the end of a pause in which the transport read nothing: it says nothing about the other side."""
        self._last_in = max(self._last_in, now - self.silent_s + self.heartbeat_s)

    def deadline(self) -> float:
        """Return the latest time for the next call of `tick`."""
        if self.closing or not self.started:
            return float("inf")
        deadline = self._last_in + self.silent_s
        if self.state == "greeting":
            return min(deadline, self._connected_at + self.greeting_s)
        return min(deadline, self._last_out + self.heartbeat_s)

    def lost(self, reason: NetworkError | None, now: float) -> None:
        """Handle the loss of the transport, with the reason if it is known. May be called more than once."""
        self._now = now
        if not self.closing:
            self.closing = True
            self.reason = reason
        if not self._was_lost:
            self._was_lost = True
            self._control.clear()
            self._slots.clear()
            self._on_closed()

    # --- called by subclasses and owners ---

    def send(self, message: Control) -> None:
        """Queue a control message; it is sent before data."""
        frame = control_frame(message)
        self._control.append(frame)
        self.unread_bytes += len(frame)
        self.wake()

    def put(self, key: Hashable, message: Control) -> None:
        """Queue a control message that replaces an unsent one of the same key."""
        # Removed first, so that the new value takes its place at the end: last values keep the order of their latest
        # changes.
        self._slots.pop(key, None)
        self._slots[key] = message
        self.wake()

    def withdraw(self, key: Hashable) -> None:
        """Remove the unsent message that `put` has queued under a key."""
        self._slots.pop(key, None)

    def flush(self, key: Hashable) -> None:
        """Send the message that `put` has queued under `key`, and those queued before it, before later messages."""
        while key in self._slots:
            self.send(self._slots.pop(next(iter(self._slots))))

    def close(self) -> None:
        """Close in order: send a closing message, then nothing more."""
        if not self.closing:
            self.send(Bye())
            self.closing = True
            self.wake()

    def refuse(self, code: str, reason: str, now: float | None = None) -> None:
        """Send the other side the reason, then close. Pass `now` unless this answers a message that just arrived."""
        if now is not None:
            self._now = now
        if not self.closing:
            # What waits is answers to a peer that is refused now. The reason must not wait behind megabytes of them.
            self._control.clear()
            self.unread_bytes = 0
            self.send(Refused(code, reason[:1000]))
            self.closing = True
            self.reason = RemoteProtocolError(reason)
            self.wake()

    def _fail(self, reason: NetworkError | None) -> None:
        self.closing = True
        self.reason = reason
        self.wake()

    def _control_frame(self, frame: Frame) -> None:
        try:
            message = decode_control(frame.payload)
        # A peer of a later version may greet in a form that this version cannot decode. Only the subclass that awaits a
        # greeting can tell this from garbage.
        except RemoteProtocolError:
            if self._on_unreadable(frame.payload):
                return
            raise
        if isinstance(message, Bye):
            self._fail(None)
        elif isinstance(message, Refused):
            self._fail(RefusedError(plain(message.code, 50), plain(message.reason)))
        elif type(message) in self.LEGAL.get(self.state, frozenset()):
            self._on_control(message)
        else:
            raise RemoteProtocolError(f"{type(message).__name__} is not allowed in state {self.state!r}")

    # --- implemented by subclasses ---

    def _on_connected(self) -> None:
        """Handle the established transport."""

    def _on_control(self, message: Control) -> None:
        """Handle a control message that is legal in this state."""

    def _on_unreadable(self, payload: memoryview) -> bool:
        """Handle an unreadable control message. Return False if it is a violation of the protocol."""
        return False

    def _on_frame(self, frame: Frame) -> None:
        """Handle a frame of the kind that this side takes."""

    def _on_closed(self) -> None:
        """Handle the end of the transport; called once."""


Authenticate: TypeAlias = Callable[[Hello, Connection], "tuple[str, str] | tuple[str, str, float] | None"]
"""Authenticator of peers. It returns None, or (refusal code, reason, optional delay of the rejection in seconds)."""
