"""A stolen bundle in the simulation: one principal that says only valid things, and as much harm as they can do.

A `Thief` keeps many links with one certificate. It follows the protocol to the letter: every message is legal in its
state, every request within its window, every sample within its credit. Beyond that it does what it likes, in the mood
that its seed draws. It goes on when all faults are mended, so that the checks at the end hold beside it.

Where machines authenticate each other, the bundle's key signs the records of its streams and seals its samples, so that
the trainer takes them as it takes those of an honest worker. Some records and seals are wrong on purpose.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from random import Random
from typing import ClassVar, NamedTuple

from tests.networking.end_to_end.ends import verifier
from tests.networking.simulation.memory import content
from tests.networking.simulation.network import End, Network, Route, Violation
from tests.networking.simulation.seals import signer
from tmrl_core.networking.end_to_end.stream_keys import SEAL_BYTES
from tmrl_core.networking.protocol.connection import Connection, Identity
from tmrl_core.networking.protocol.delivery import Body
from tmrl_core.networking.protocol.framing import FIRST, LAST, PING_FRAME, Frame, Kind, Wire, cut, message_bytes
from tmrl_core.networking.protocol.messages import (
    MAX_NUMBER,
    MAX_SIGNATURE_BYTES,
    POLICY_HEAD,
    SAMPLES_HEAD,
    Ack,
    Announce,
    CloseStream,
    Control,
    Credit,
    Direct,
    Forged,
    Halt,
    HandOver,
    Have,
    Hello,
    Lateness,
    MessageHead,
    OpenStream,
    Place,
    Report,
    Resume,
    Revoked,
    Stored,
    Unused,
    Waits,
    Want,
    Welcome,
)
from tmrl_core.networking.relay import Relay, RelayConnection
from tmrl_core.networking.relay.streams import RelayStream
from tmrl_core.networking.worker.seal import Mode, WorkerSeal

STOLEN = Identity("thief", "worker", "robot7")
PRINCIPAL = "certificate worker robot7"
_MARK = b"thief"
"""The ids of its streams begin with it, unless they follow from a key."""
_WIDE = "\N{GRINNING FACE}" * 1_000
_MAX_STREAMS = 1_000
_MAX_RECORDS = 250
"""Streams with a signed record in a seed, which the thief then opens again: signing and checking take most time."""
_RECORD_BYTES = 640
"""Bytes of a record besides the application's signature, at most."""
_STARTED_S = 1_800_000_000
"""Time of the thief's clock at the beginning."""
OF_A_THIEF_BYTES, OF_ALL_BYTES = 2_000_000, 4_000_000
"""Memory of streams beside a thief."""
ANNOUNCED_BYTES, ANNOUNCED_BYTES_PER_S = 300_000, 30_000
"""Signatures that it may announce."""
LINKS = 10
"""Links that one certificate may have beside a thief."""
STALLED_S = 12.0
"""Longest time, in seconds, in which a link may make no progress beside a thief."""
CALLS, CALLS_OF_A_BYTE = 400, 5
"""Calls of functions that a piece of bytes may cost the relay."""


class Mood(NamedTuple):
    """A way to do harm.

    Args:
        actions: what it does, with weights.
        links: how many it keeps.
        deaf: probability that a new link reads nothing.
        signatures: bytes of its streams' signatures.
        burst: most messages at a time.
        eager: probability that it dials at a time, while links are missing.
        small: probability that a policy of the trainer beside it has one frame.
        confirms: confirm policies, so that others follow.
        narrow: the trainer's link carries little more than announcements may take of it.
        signed: what it does beyond `actions` where it signs and seals, with weights.
    """

    actions: dict[str, int]
    links: int
    deaf: float = 0.0
    signatures: tuple[int, ...] = (0, 100)
    burst: int = 12
    eager: float = 1.0
    small: float = 0.95
    confirms: bool = False
    narrow: bool = False
    signed: dict[str, int] = {}  # noqa: RUF012 - a field of a NamedTuple


ALL = ("open", "close", "want", "step", "unused", "waits", "hand over", "have", "samples", "part", "ping", "hang up")
PROTOCOL_2 = ("ask", "lateness", "forged")
MOODS: dict[str, Mood] = {
    "hoards credit": Mood({"open": 8, "want": 12, "ping": 1}, links=2),
    "asks again and again": Mood({"open": 12, "step": 20, "want": 1}, links=6, burst=60),
    "reads nothing": Mood({"open": 1, "ping": 20}, links=12, deaf=0.9, eager=0.1, small=0.3, confirms=True),
    "fills memory": Mood(
        {"open": 10, "waits": 6, "want": 1, "ping": 1},
        links=3,
        signatures=(0, MAX_SIGNATURE_BYTES),
        signed={"lateness": 6},
    ),
    "comes and goes": Mood(
        {"open": 6, "close": 5, "hang up": 2, "want": 2}, links=5, signatures=(5_000, MAX_SIGNATURE_BYTES), narrow=True
    ),
    "sends": Mood({"open": 1, "samples": 12, "part": 2, "want": 8, "unused": 1}, links=3, signed={"ask": 12}),
    "anything": Mood(
        dict.fromkeys(ALL, 1),
        links=6,
        deaf=0.2,
        signatures=(0, 100, MAX_SIGNATURE_BYTES),
        signed=dict.fromkeys(PROTOCOL_2, 1),
    ),
}


@dataclass
class Gains:
    """Streams and credit of the thief."""

    resumed: int = 0
    """Resumes of streams whose records are valid, where records are signed."""
    credit_bytes: int = 0
    """Credit that its links were told of."""
    reserved_bytes: int = 0
    """Most bytes that the relay had reserved for it at a check."""
    acknowledged: int = 0
    """Acknowledgements of messages, with a valid proof where samples are sealed."""


class Announced(NamedTuple):
    """A stream of the thief, as it announces it."""

    stream: bytes
    name: str
    signature: bytes
    valid: bool = True
    """False: its record is wrong."""


class Channel:
    """A stream of the thief on one link."""

    __slots__ = ("acknowledged", "announced", "epoch", "limit", "number", "position", "sent", "wanted")

    def __init__(self, announced: Announced) -> None:
        self.announced = announced
        self.epoch = -1
        """-1: not resumed."""
        self.limit = self.sent = self.wanted = self.number = self.position = 0
        self.acknowledged = -1
        """Every message below it is acknowledged; -1: not known."""


class StolenLink(Connection):
    """A worker's end of a link that says what the thief wants.

    Args:
        hello: its greeting.
        confirms: confirm policies.
        gains: counts what the link gets.
        seal: of the bundle; None: it signs and seals nothing.
    """

    LEGAL: ClassVar[dict[str, frozenset[type]]] = {
        "greeting": frozenset({Welcome}),
        "open": frozenset({Resume, Halt, Ack, Stored, Credit, Announce, Direct, Report, Revoked, Place}),
    }

    def __init__(self, hello: Hello, heartbeat_s: float, confirms: bool, gains: Gains, seal: WorkerSeal | None) -> None:
        super().__init__(silent_s=1e9, heartbeat_s=heartbeat_s)  # the silence is its own
        self.hello = hello
        self.confirms = confirms
        self.gains = gains
        self.seal = seal
        self.arriving = (0, 0)
        """Version of the policy that arrives."""
        self.welcome: Welcome | None = None
        self.channels: dict[int, Channel] = {}
        self.next_channel = 0
        self.wires: deque[Wire] = deque()
        self.takes = Kind.WEIGHTS
        self.source = lambda: self.wires.popleft() if self.wires else None

    def _on_connected(self) -> None:
        self.send(self.hello)

    def _on_control(self, message: Control) -> None:
        match message:
            case Welcome():
                self.welcome = message
                self.state = "open"
            case Resume() if message.channel in self.channels:
                channel = self.channels[message.channel]
                channel.epoch, channel.limit, channel.number = message.epoch, message.credit, message.next
                channel.sent = channel.wanted = 0
                if channel.acknowledged < 0:
                    channel.acknowledged = message.next
                self.gains.resumed += channel.announced.valid
                self.gains.credit_bytes += message.credit
                self.forget_wires(message.channel)
            case Announce() if self.seal is not None:
                self.seal.announced(message.body)
            case Ack() if message.channel in self.channels:
                self._acknowledged(self.channels[message.channel], message)
            case Halt() if message.channel in self.channels:
                self.channels[message.channel].epoch = -1
            case Credit() if message.channel in self.channels:
                channel = self.channels[message.channel]
                if message.epoch == channel.epoch:
                    self.gains.credit_bytes += max(0, message.limit - channel.limit)
                    channel.limit = max(channel.limit, message.limit)

    def _acknowledged(self, channel: Channel, ack: Ack) -> None:
        if ack.next <= channel.acknowledged or channel.acknowledged < 0:
            return
        channel.acknowledged = ack.next
        stream = channel.announced.stream
        if self.seal is None or (
            channel.announced.valid and self.seal.check_ack(stream, ack.next, ack.refused, ack.tag)
        ):
            self.gains.acknowledged += 1

    def _on_frame(self, frame: Frame) -> None:
        """Weights are dropped."""
        if frame.flags & FIRST:
            self.arriving = POLICY_HEAD.unpack_from(frame.payload)[:2]
        if frame.flags & LAST and self.confirms:
            self.send(Have(*self.arriving))

    def ping(self) -> None:
        """Send a heartbeat."""
        self._control.append(PING_FRAME)
        self.wake()

    def put_wires(self, wires: list[Wire]) -> None:
        """Send frames of samples."""
        self.wires += wires
        self.wake()

    def forget_wires(self, channel: int) -> None:
        """Drop the unsent frames of a channel."""
        self.wires = deque(wire for wire in self.wires if _channel_of(wire) != channel)


def _channel_of(wire: Wire) -> int:
    return int.from_bytes(bytes(wire)[8:12], "little")


class _Dial:
    """One link of the thief, dialled once."""

    identity = STOLEN

    def __init__(self, thief: Thief, route: Route, connection: StolenLink) -> None:
        self.thief = thief
        self.route = route
        self.connection = connection
        self.end: End | None = None

    def connected(self, end: End) -> None:
        """Its connection stands."""
        self.end = end

    def over(self, end: End) -> None:
        """Its connection has ended, or never stood."""
        self.thief.dials.remove(self)
        self.thief.spare(channel.announced for channel in self.connection.channels.values())


class Thief:
    """One hostile principal.

    Args:
        network: where the Server is.
        random: decides what it does.
        most: bytes of the largest message.
        mode: of its machine's end-to-end authentication; None: it signs and seals nothing.
    """

    def __init__(self, network: Network, random: Random, most: int, mode: Mode | None = None) -> None:
        self.network = network
        self.random = random
        self.most = most
        self.name = random.choice(list(MOODS))
        self.mood = MOODS[self.name]
        self.pause_s = random.choice((0.02, 0.1, 0.3))
        self.dials: list[_Dial] = []
        self.said = 0
        """Messages, for the table."""
        self.gains = Gains()
        self.actions = dict(self.mood.actions)
        self.seal: WorkerSeal | None = None
        if mode is not None:
            self.actions |= self.mood.signed
            self.seal = WorkerSeal("run", signer("worker", STOLEN.name), verifier(), mode=mode, clock=self._clock)
        self._streams = 0
        self._spare: list[Announced] = []
        """Streams with records that no link of it has open."""
        self._blocked: dict[End, float] = {}
        """Since when each link at the Server has output that its peer does not read."""
        self._idle: dict[RelayConnection, tuple[int, set[tuple[bytes, int]], float, int]] = {}
        """For links with unused credit that others wait for: bytes received, stream and epoch of what holds such credit
        all the time, since when, how often it was seen."""

    def audit(self, relay: Relay) -> None:
        """Check the bounds of what one principal may hold.

        Raises:
            Violation: one is passed.
        """
        now, settings = self.network.now, relay.settings
        links = [link for link in relay.workers.values() if link.principal == PRINCIPAL]
        streams = [stream for stream in relay.streams.values() if stream.share.principal == PRINCIPAL]
        self.gains.reserved_bytes = max(self.gains.reserved_bytes, sum(stream.reserved for stream in streams))
        if len(links) > LINKS:
            raise Violation(f"a thief has {len(links)} links of {LINKS}")
        held = sum(map(_memory_of, streams))
        if held > OF_A_THIEF_BYTES:
            raise Violation(f"the streams of a thief hold {held} bytes of {OF_A_THIEF_BYTES}")
        old = {policy.version: policy for link, policy in relay.old_policies().items() if link in links}
        sizes = sorted(policy.size for policy in old.values())
        if len(sizes) > 1 and sum(sizes) > settings.budget_bytes // 4 + sizes[-1]:
            raise Violation(f"a thief keeps {sum(sizes)} bytes of old policies; a quarter of {settings.budget_bytes}")
        late_s = settings.stalled_s + 3 * settings.heartbeat_s
        blocked = [end for end in self.network.server_ends if end.blocked and end.connection in links]
        self._blocked = {end: self._blocked.get(end, now) for end in blocked}
        if any(now - since > late_s for since in self._blocked.values()):
            raise Violation(f"a link that reads nothing is kept for more than {late_s:g} s")
        idle = [link for link in links if relay.flow.waiting and _unused(link)]
        found = {}
        for link in idle:
            received = sum(stream.received for stream in link.streams.values())
            holders = {(one.id, one.epoch) for one in link.streams.values() if one.limit > one.received + one.standing}
            before, kept, since, times = self._idle.get(link, (received, holders, now, 0))
            if before != received or not holders & kept:  # a new epoch has new credit
                kept, since, times = holders, now, -1
            found[link] = received, holders & kept, since, times + 1
        self._idle = found
        if any(now - since > late_s and times > 20 for _, _, since, times in found.values()):
            raise Violation(f"credit that others wait for stays unused for more than {late_s:g} s")

    def act(self) -> None:
        """Do something; again and again."""
        if len(self.dials) < self.mood.links and self.random.random() < self.mood.eager:
            self._dial()
        open_ = [dial for dial in self.dials if dial.connection.state == "open" and not dial.connection.closing]
        if open_:
            dial = self.random.choice(open_)
            kinds, weights = list(self.actions), list(self.actions.values())
            for kind in self.random.choices(kinds, weights, k=self.random.randint(1, self.mood.burst)):
                if not dial.connection.closing:
                    self.said += 1
                    ACTIONS[kind](self, dial)
        self.network.at(2 * self.pause_s * self.random.random(), self.act)

    def _dial(self) -> None:
        random = self.random
        route = Route(0.005, 0.005, 0.1, random.choice((400, 2_000, 131_072)))
        incarnation = random.choice((0, 0, 0, 1, 7, 1 << 40, 1 << 62))
        hello = Hello((1,), "worker", "", "run", random.choice(("robot7", _WIDE)), random.randbytes(16), incarnation)
        connection = StolenLink(hello, self.network.settings.heartbeat_s, self.mood.confirms, self.gains, self.seal)
        dial = _Dial(self, route, connection)
        self.dials.append(dial)
        self.network.dial(dial, connection)
        if random.random() < self.mood.deaf:
            self.network.at(0.5 * random.random(), self._turn_deaf, route)

    def _turn_deaf(self, route: Route) -> None:
        route.down = False

    def open(self, dial: _Dial) -> None:
        """Open a stream with a long name and signature."""
        link = dial.connection
        if len(link.channels) < _MAX_STREAMS and link.unread_bytes < 1 << 20:
            announced = self._announced()
            if announced is None:
                return
            link.channels[link.next_channel] = Channel(announced)
            link.send(OpenStream(link.next_channel, announced.stream, announced.name, announced.signature))
            link.next_channel += 1

    def _announced(self) -> Announced | None:
        """Return a stream to open: a new one, or one that was open before; None: it has no more."""
        random, seal = self.random, self.seal
        if seal is not None and self._spare and (self._streams >= _MAX_RECORDS or random.random() < 0.3):
            return self._spare.pop(random.randrange(len(self._spare)))
        if seal is not None and self._streams >= _MAX_RECORDS:
            return None
        self._streams += 1
        if seal is None:
            stream = _MARK + self._streams.to_bytes(4, "big") + random.randbytes(7)
            name = random.choice(("robot7", _WIDE))
            signature = bytes(random.choice(self.mood.signatures))
            self.network.hostile_streams.add(stream)
            return Announced(stream, name, signature)
        stream = seal.new_stream()
        name = random.choice(("robot7", _WIDE))
        signature = bytes(min(random.choice(self.mood.signatures), MAX_SIGNATURE_BYTES - _RECORD_BYTES))
        accepted = seal.accepted
        if random.random() < 0.03:  # each makes the trainer publish again
            seal.accepted = (seal.incarnation + random.choice((1, 7, 1 << 40)), 0)
        record = seal.record(stream, signature)
        seal.accepted = accepted
        valid = random.random() < 0.9
        self.network.hostile_streams.add(stream)
        return Announced(stream, name, record if valid else _changed(record), valid)

    def spare(self, streams: Iterable[Announced]) -> None:
        """Keep streams that no link has open any more."""
        if self.seal is not None:
            self._spare += streams

    def _clock(self) -> float:
        return _STARTED_S + self.network.now

    def _some(self, dial: _Dial, *, resumed: bool = True) -> tuple[int, Channel] | None:
        channels = dial.connection.channels
        if not channels:
            return None
        number = self.random.choice(list(channels))
        return (number, channels[number]) if not resumed or channels[number].epoch >= 0 else None

    def close(self, dial: _Dial) -> None:
        """Close a stream, also one with credit and with half a message on its way."""
        if some := self._some(dial, resumed=False):
            link = dial.connection
            self.spare((link.channels.pop(some[0]).announced,))
            link.forget_wires(some[0])
            link.send(CloseStream(some[0]))

    def want(self, dial: _Dial) -> None:
        """Ask for as much as is allowed."""
        welcome = dial.connection.welcome
        if welcome is not None and (some := self._some(dial)):
            most = max(2 * welcome.window_bytes, message_bytes(SAMPLES_HEAD, welcome.max_message_bytes))
            self._want(dial, *some, some[1].limit + most)

    def step(self, dial: _Dial) -> None:
        """Ask for a little more than before."""
        welcome = dial.connection.welcome
        if welcome is not None and (some := self._some(dial)):
            most = max(2 * welcome.window_bytes, message_bytes(SAMPLES_HEAD, welcome.max_message_bytes))
            channel = some[1]
            self._want(dial, *some, min(max(channel.wanted, channel.limit) + 1, channel.limit + most))

    def ask(self, dial: _Dial) -> None:
        """Ask for what the next message may need, as an honest worker does."""
        if some := self._some(dial):
            channel = some[1]
            total = channel.sent + message_bytes(SAMPLES_HEAD, self.most - 100 + SEAL_BYTES)
            if total > max(channel.limit, channel.wanted):
                self._want(dial, *some, total)

    def _want(self, dial: _Dial, number: int, channel: Channel, total: int) -> None:
        channel.wanted = total
        dial.connection.send(Want(number, channel.epoch, total))

    def unused(self, dial: _Dial) -> None:
        """Give some credit back."""
        some = self._some(dial)
        if some and some[1].limit > some[1].sent and not dial.connection.wires:
            size = self.random.randint(1, some[1].limit - some[1].sent)
            some[1].sent += size
            dial.connection.send(Unused(some[0], some[1].epoch, size))

    def waits(self, dial: _Dial) -> None:
        """Report a long wait reason."""
        if some := self._some(dial, resumed=False):
            dial.connection.send(Waits(some[0], _WIDE))

    def hand_over(self, dial: _Dial) -> None:
        """Offer a stream to the Server's spool."""
        link = dial.connection
        if link.welcome is not None and link.welcome.spool_bytes and (some := self._some(dial, resumed=False)):
            link.send(HandOver(some[0]))

    def have(self, dial: _Dial) -> None:
        """Confirm a version that nobody sent."""
        dial.connection.send(Have(self.random.randrange(1 << 30), self.random.randrange(1 << 30)))

    def samples(self, dial: _Dial) -> None:
        """Send a message within the credit, with odd counts."""
        if some := self._some(dial):
            self._message(dial, *some, self.random.choice((10, 300, self.most - 100)), whole=True)

    def part(self, dial: _Dial) -> None:
        """Begin a message within the credit, and leave it at that, where a message has more than one frame."""
        some = self._some(dial)
        if some and self.most > 100_000:
            self._message(dial, *some, self.most - 100, whole=False)
            # Nothing valid can follow on this channel but its end.
            dial.connection.channels[some[0]].limit = dial.connection.channels[some[0]].sent

    def _message(self, dial: _Dial, number: int, channel: Channel, size: int, *, whole: bool) -> None:
        samples = self.random.choice((0, 1, 50))
        body: Body = content(channel.number, samples, self.random.random() < 0.3, size)
        length = sum(map(len, body)) + (SEAL_BYTES if self.seal is not None else 0)
        if channel.sent + message_bytes(SAMPLES_HEAD, length) > channel.limit:
            return
        fields = MessageHead(channel.number, channel.number, channel.position, samples)
        if self.seal is not None:
            sealed = self.seal.seal(channel.announced.stream, fields, body)
            if sealed is None:
                return  # there is no trainer whose key could encrypt it
            body = sealed
            if self.random.random() < 0.05:
                body = [*body[:-1], _changed(body[-1])]
        wires = list(cut(Kind.DATA, SAMPLES_HEAD.pack(*fields, length), body, epoch=channel.epoch, channel=number))
        channel.sent += sum(wire.size for wire in wires)
        dial.connection.put_wires(wires if whole else wires[:1])
        channel.number += self.random.choice((1, 1, 1, 1_000))
        channel.position += samples

    def lateness(self, dial: _Dial) -> None:
        """Report late steps, in the largest numbers."""
        if some := self._some(dial, resumed=False):
            steps = self.random.randrange(MAX_NUMBER)
            dial.connection.send(Lateness(some[0], MAX_NUMBER - 1, steps, steps))

    def forged(self, dial: _Dial) -> None:
        """Report forged messages that nobody sent."""
        dial.connection.send(Forged(self.random.randrange(MAX_NUMBER), MAX_NUMBER - 1))

    def ping(self, dial: _Dial) -> None:
        """Say that it is alive."""
        dial.connection.ping()

    def hang_up(self, dial: _Dial) -> None:
        """End a link, in order or not."""
        if dial.end is not None and dial.end.up:
            if self.random.random() < 0.5:
                dial.connection.close()
                dial.end.pump()
            else:
                dial.end.cut()


ACTIONS: dict[str, Callable[[Thief, _Dial], None]] = {
    "open": Thief.open,
    "close": Thief.close,
    "want": Thief.want,
    "step": Thief.step,
    "ask": Thief.ask,
    "unused": Thief.unused,
    "waits": Thief.waits,
    "hand over": Thief.hand_over,
    "have": Thief.have,
    "samples": Thief.samples,
    "part": Thief.part,
    "lateness": Thief.lateness,
    "forged": Thief.forged,
    "ping": Thief.ping,
    "hang up": Thief.hang_up,
}


def _memory_of(stream: RelayStream) -> int:
    """Return the bytes of a stream besides its samples, as far as its peer decides on them."""
    return 1_000 + sys.getsizeof(stream.name) + sys.getsizeof(stream.waits) + len(stream.signature)


def _unused(link: RelayConnection) -> int:
    return sum(max(0, stream.limit - stream.received - stream.standing) for stream in link.streams.values())


def _changed(proof: bytes | memoryview) -> bytes:
    """Return a record or a seal with another proof."""
    changed = bytearray(proof)
    changed[-2] ^= 1  # the last byte of a seal names its mode
    return bytes(changed)


class _MeteredConnection(RelayConnection):
    """A link at the relay that counts the calls that an honest peer's bytes cost.

    Raises:
        Violation: they cost more than their size explains, as where the work grows with the streams of others.
    """

    most_calls: ClassVar[int] = 0

    def received(self, n: int, now: float) -> None:
        if self.identity is STOLEN or self.state != "worker":
            super().received(n, now)
            return
        calls = 0

        def count(*_: object) -> None:
            nonlocal calls
            calls += 1

        before = sys.getprofile()
        sys.setprofile(count)
        try:
            super().received(n, now)
        finally:
            sys.setprofile(before)
        if calls > CALLS + CALLS_OF_A_BYTE * n:
            raise Violation(f"{n} bytes of an honest worker cost the Server {calls} calls")


class MeteredRelay(Relay):
    """A relay whose links count the work for honest peers."""

    def connection(self) -> RelayConnection:
        return _MeteredConnection(self)
