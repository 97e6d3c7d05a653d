"""A Server that was taken over, with one stolen worker's bundle: it replays, reorders, alters, rolls back and forges.

The real relay serves two honest workers and a trainer. What goes through it passes an attacker, which also says things
of its own, made of what it has seen here, in another run and of another trainer. Nothing that it says changes anything,
every attempt is counted, and the honest exchange goes on.
"""

from __future__ import annotations

import functools
import itertools
import struct
from collections import Counter, deque
from collections.abc import Callable
from random import Random
from typing import Any

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import GCM

from tests.networking.end_to_end.ends import signer, verifier
from tests.networking.protocol.conversations import hear, said
from tmrl_core.networking.end_to_end import stream_keys
from tmrl_core.networking.end_to_end.identity import PROOF_BYTES
from tmrl_core.networking.end_to_end.run_key import RunKey
from tmrl_core.networking.end_to_end.statements import (
    TRAILER_BYTES,
    RunCard,
    StreamRecord,
    decode_statement,
    encode_statement,
)
from tmrl_core.networking.end_to_end.stream_keys import (
    ENCRYPTED,
    MAC,
    SEAL_BYTES,
    Sealed,
    StreamKeys,
    header,
)
from tmrl_core.networking.protocol.connection import Connection, Identity
from tmrl_core.networking.protocol.delivery import CommittedOffset, StreamSender
from tmrl_core.networking.protocol.framing import HEADER_BYTES, Frame, FrameReader, Kind, cut
from tmrl_core.networking.protocol.messages import (
    ALL_CHANNELS,
    POLICY_HEAD,
    SAMPLES_HEAD,
    Ack,
    Announce,
    Blob,
    Control,
    Direct,
    Directive,
    Incarnation,
    MessageHead,
    OpenStream,
    PolicyUpdate,
    Progress,
    Report,
    Resume,
    StreamClosed,
    StreamOpened,
    Version,
    Welcome,
    control_frame,
    decode_control,
    encode_body,
)
from tmrl_core.networking.relay import Relay, RelaySettings
from tmrl_core.networking.trainer import TrainerConnection, TrainerState
from tmrl_core.networking.trainer import connection as trainer_module
from tmrl_core.networking.trainer.seal import OpenedStream, TrainerSeal
from tmrl_core.networking.worker import WorkerConnection, WorkerState
from tmrl_core.networking.worker import seal as worker_module
from tmrl_core.networking.worker.seal import Mode, WorkerSeal

ATTEMPTS, ATTEMPTS_FULL = 1_400, 10_000
KEPT = 60
"""Frames of each kind that the attacker remembers."""
AT_ONCE = 10
"""Attempts between two moments at which the honest ends go on."""
PROVEN_BYTES = 200
"""Size from which workers receive MACs of policies here."""
_STEP_S = 1.0


@pytest.fixture(autouse=True)
def small_policies_with_macs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainer_module, "PROVEN_POLICY_BYTES", PROVEN_BYTES)


class AcceptedForgeryError(AssertionError):
    """An honest end has used something that no honest end has said, or not in its place."""


def demand(genuine: bool, otherwise: str) -> None:
    """Check something that holds as long as no forgery is accepted."""
    if not genuine:
        raise AcceptedForgeryError(otherwise)


class Link:
    """A client's connection, and the Server's end of it, with the attacker between them."""

    def __init__(self, world: World, client: Connection) -> None:
        self.world = world
        self.client = client
        self.server = world.relay.connection()
        self._readers = {client: FrameReader(), self.server: FrameReader()}
        for end in (client, self.server):
            end.connected(Identity("there"), world.now)

    def carry(self) -> bool:
        """Carry everything that both ends say, once. False: they said nothing."""
        moved = False
        for sender, receiver in ((self.client, self.server), (self.server, self.client)):
            data = said(sender, self.world.now)
            moved |= bool(data)
            for frame in _frames(self._readers[sender], data):
                for passed in self.world.attacker.passes(self, frame, up=receiver is self.server):
                    hear(receiver, passed, self.world.now)
            if sender.closing and not receiver.closing:
                receiver.received(0, self.world.now)
        return moved

    def tell(self, *messages: bytes | Control) -> None:
        """Say something to the client as if the Server did."""
        for message in messages:
            hear(self.client, message if isinstance(message, bytes) else control_frame(message), self.world.now)

    def inject(self, *messages: bytes | Control) -> None:
        """Say something forged, which changes nothing. At most, a worker asks for a higher incarnation."""
        before = self.world.obeyed
        self.tell(*messages)
        if self.client.closing:
            demand(
                "must take a higher one" in str(self.client.reason),
                "somebody has ended a link because of a forged message",
            )
            (card,) = messages
            assert isinstance(card, Announce)
            assert card.incarnation == self.world.state.holding
        demand(self.world.obeyed == before, "somebody has obeyed a forged message")


def _frames(reader: FrameReader, data: bytes) -> list[Frame]:
    rest, found = memoryview(data), []
    while rest:
        buffer = reader.get_buffer()
        n = min(len(buffer), len(rest))
        buffer[:n] = rest[:n]
        rest = rest[n:]
        found += reader.received(n)
    return found


class Stream:
    """A stream of an honest worker, what it has made, and what the trainer has done with it."""

    def __init__(self, worker: HonestWorker, channel: int) -> None:
        self.worker = worker
        self.channel = channel
        self.world = worker.world
        self.id = worker.state.new_stream()
        self.sender = StreamSender(self.id, queue_bytes=1 << 20, drop_oldest=False, sealer=worker.state.seal)
        worker.state.add_stream(self.sender, b"signature")
        self.record = worker.state.announcement(self.sender, b"signature")
        self.made: list[bytes] = []
        self.taken = 0
        self.refused = 0
        self.world.streams[self.id] = self

    def make(self, size: int) -> None:
        """Make one message, which says where it belongs."""
        body = b"%s %d " % (self.id.hex().encode(), len(self.made)) + self.world.random.randbytes(size)
        assert self.sender.offer([body], 1)
        self.made.append(body)

    def check(self) -> None:
        """Check that no sample was released or refused that the trainer has not."""
        demand(len(self.made) - self.sender.held_messages <= self.taken, "a sample was released that was not taken")
        demand(self.sender.samples_refused <= self.refused, "a sample counts as refused that was not")

    @property
    def address(self) -> tuple[int, int]:
        """The trainer's channel, and the epoch."""
        stream = self.world.relay.streams[self.id]
        return stream.trainer_channel, stream.epoch


class HonestWorker:
    """A worker, what it has made, and what it has obeyed."""

    def __init__(self, world: World, name: str, mode: Mode) -> None:
        self.name, self.mode = name, mode
        self.accepted: Version = (0, 0)
        self.world = world
        self.retired = 0
        """Counts of earlier processes."""
        self.begin()

    def begin(self) -> None:
        """Start a process, with the file of what was accepted."""
        self.seal = WorkerSeal(
            self.world.run,
            signer("worker", self.name),
            verifier(),
            mode=self.mode,
            accepted=self.accepted,
            on_accepted=self._keep,
        )
        peer = self.world.random.randbytes(16)
        self.state = WorkerState(run=self.world.run, name=self.name, peer=peer, seal=self.seal)
        self.streams = [Stream(self, channel) for channel in range(2)]

    def _keep(self, version: Version) -> None:
        self.accepted = max(self.accepted, version)

    def connection(self) -> Connection:
        return WorkerConnection(self.state, silent_s=10, heartbeat_s=3)

    @property
    def counted(self) -> int:
        return self.retired + self.seal.forged + self.seal.outdated

    @property
    def obeyed(self) -> tuple[Any, ...]:
        """Everything that a message of the trainer changes."""
        state, senders = self.state, [stream.sender for stream in self.streams]
        released = [(one.samples_acked, one.samples_refused, one.held_messages) for one in senders]
        return released, state.policy_version, dict(state.directives), state.progress, self.seal.incarnation


class World:
    """A fleet whose Server was taken over.

    Args:
        key: secret of the trainer's run key.
    """

    def __init__(self, seed: int, mode: Mode, *, run: str = "run", key: bytes = bytes(32)) -> None:
        self.mode = mode
        self.run = run
        self.key = key
        self.random = Random(seed)
        self.now = 100.0
        self.relay = Relay(RelaySettings(), wall_clock=lambda: 0.0)
        self.attacker = Attacker(self)
        self.streams: dict[bytes, Stream] = {}
        self.policies: dict[int, bytes] = {}
        """Weights that were published, by their counter: a trainer may raise its incarnation."""
        self.orders: set[bytes] = {encode_body(Directive()), encode_body(Progress())}
        self.channels = itertools.count(1 << 20)
        """Channels of forged streams: the trainer closes a link that announces one twice."""
        self.closed = 0
        """Links that an end has closed because of what it heard."""
        self.workers = [HonestWorker(self, "robot", "authenticate"), HonestWorker(self, "camera", "encrypt")]
        self.state = self.new_trainer(0, 0, {})
        self.revision = 0
        self.links: dict[HonestWorker | None, Link] = {}
        for who in (None, *self.workers):
            self.link(who)
        for _ in range(20):
            honest_work(self)

    def new_trainer(self, incarnation: int, counter: int, offsets: dict[bytes, CommittedOffset]) -> TrainerState:
        """Start a process of the trainer."""
        self.seal = TrainerSeal(self.run, signer("trainer", "node"), verifier(), RunKey(self.key), mode=self.mode)
        return TrainerState(
            run=self.run,
            name="node",
            peer=self.random.randbytes(16),
            inbox_bytes=1 << 20,
            incarnation=incarnation,
            counter=counter,
            offsets=offsets,
            seal=self.seal,
        )

    def link(self, who: HonestWorker | None) -> Link:
        """Connect a worker, or the trainer (None), in place of an earlier link."""
        if who in self.links:
            for end in (self.links[who].client, self.links[who].server):
                end.lost(None, self.now)
        client = TrainerConnection(self.state, silent_s=10, heartbeat_s=3) if who is None else who.connection()
        self.links[who] = Link(self, client)
        return self.links[who]

    @property
    def trainer(self) -> Link:
        return self.links[None]

    def pick(self) -> Stream:
        """Return a stream of a process that runs."""
        return self.random.choice(self.random.choice(self.workers).streams)

    def settle(self) -> None:
        """Let time pass until everything honest has arrived."""
        for _ in range(600):
            moved = True
            while moved:
                moved = sum(link.carry() for link in self.links.values()) > 0
                self.work()
            for who, link in list(self.links.items()):
                if link.client.closing or link.server.closing:
                    self.closed += 1
                    self.link(who)
                    moved = True
            if not moved and all(one.sender.settled for worker in self.workers for one in worker.streams):
                return
            self.now += _STEP_S
            for link in self.links.values():
                for end in (link.client, link.server):
                    if end.deadline() <= self.now:
                        end.tick(self.now)
        raise AssertionError("the honest exchange does not go on")

    def work(self) -> None:
        """Commit or refuse what has arrived, and check that it belongs there."""
        for received in self.state.take():
            stream = self.streams.get(received.stream)
            demand(stream is not None, "a stream that no worker has opened")
            assert stream is not None
            demand(received.number == stream.taken, "a message is missing, or came twice")
            made = stream.made[received.number] if received.number < len(stream.made) else None
            demand(bytes(received.payload) == made, "a sample that its worker did not send")
            stream.taken += 1
            refused = self.random.random() < 0.1
            stream.refused += refused
            self.state.acknowledge(received, "no room" if refused else None)
        for worker in self.workers:
            self.check(worker)

    def check(self, worker: HonestWorker) -> None:
        """Check what a worker has obeyed and released."""
        state = worker.state
        if state.policy is not None:
            version, body = state.policy
            demand(self.policies.get(version[1]) == bytes(body), "weights that no trainer has published")
            state.policy = None
        for directive in state.directives.values():
            demand(encode_body(directive) in self.orders, "a directive that no trainer has made")
        demand(encode_body(state.progress) in self.orders, "a report that no trainer has made")
        demand(state.policy_version <= self.state.version, "a version that no trainer has published")
        for stream in worker.streams:
            stream.check()

    def publish(self) -> None:
        """Publish weights."""
        size = self.random.choice((50, PROVEN_BYTES))
        self.state.publish(PolicyUpdate((0, 0), {"": Blob("sim", self.random.randbytes(size))}))
        assert self.state.policy is not None
        counter, body = self.state.policy
        self.policies[counter] = body

    def direct(self) -> None:
        """Give all workers and one of them an order, and report."""
        self.revision += 1
        connection = self.trainer.client
        assert isinstance(connection, TrainerConnection)
        for stream in (None, self.workers[self.revision % 2].streams[0].id):
            self.state.directives[stream] = Directive(revision=self.revision)
            self.orders.add(encode_body(self.state.directives[stream]))
            connection.direct(stream)
        self.state.progress = Progress(samples=self.revision)
        self.orders.add(encode_body(self.state.progress))
        connection.report()

    @property
    def obeyed(self) -> tuple[Any, ...]:
        """Everything that a forged message could change."""
        openers = [(stream, receiver.opener) for stream, receiver in self.state.receivers.items()]
        return self.state.holding, len(self.state.inbox), openers, *(worker.obeyed for worker in self.workers)

    @property
    def counted(self) -> int:
        """Return the number of attempts that both ends have noticed."""
        trainer = self.seal.forged + self.seal.unknown_keys + self.state.duplicates + self.attacker.requests
        return trainer + self.closed + sum(worker.counted for worker in self.workers)


class Attacker:
    """The attacker's memory. It holds the bundle of a worker of its own, `thief`."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.heard: dict[str, deque[bytes]] = {}
        """Frames that went through, by the direction and the kind of their content."""
        self.elsewhere: list[dict[str, deque[bytes]]] = []
        """The same of another run, and of another trainer."""
        self.alter: Callable[[Link, Frame, bool], list[bytes] | None] | None = None
        """Returns what the next frame becomes: nothing, and it is asked again; None: it does not apply."""
        self.requests = 0
        """Times that the trainer asked for something again."""
        self.exact = False
        """True: the latest attempt repeats something genuine, which may be the newest of its kind and do nothing."""
        self.thief = WorkerSeal(world.run, signer("worker", "thief"), verifier(), mode="authenticate")

    def passes(self, link: Link, frame: Frame, up: bool) -> list[bytes]:
        """Return what reaches the other side in place of a frame."""
        data = bytes(frame.buffer)
        if frame.kind == Kind.CONTROL:
            message = decode_control(frame.payload)
            name = type(message).__name__
            self.requests += up and isinstance(message, Resume)
        else:
            name = Kind(frame.kind).name
        if frame.kind != Kind.PING:
            self.heard.setdefault(f"{'up' if up else 'down'} {name}", deque(maxlen=KEPT)).append(data)
        if self.alter is not None:
            changed = self.alter(link, frame, up)
            if changed:
                self.alter = None
            if changed is not None:
                return changed
        return [data]

    def seen(self, *kinds: str) -> bytes:
        """Return the content of a frame that went through, here or elsewhere."""
        random = self.world.random
        source = random.choice([self.heard, self.heard, *self.elsewhere])
        return random.choice(source[random.choice(kinds)])[HEADER_BYTES:]

    def seen_message(self, *kinds: str) -> Control:
        return decode_control(memoryview(self.seen(*kinds)))

    def flip(self, data: bytes, first: int = 0) -> bytes:
        """Change one bit."""
        changed = bytearray(data)
        at = self.world.random.randrange(first, len(data))
        changed[at] ^= 1 << self.world.random.randrange(8)
        return bytes(changed)

    def perhaps_altered(self, body: bytes) -> bytes:
        """Return the same bytes half of the time; otherwise flip, cut, lengthen or reverse them."""
        random = self.world.random
        self.exact = not body or random.random() < 0.5
        if self.exact:
            return body
        how = random.randrange(4)
        if how == 0:
            return self.flip(body)
        if how == 1:
            return body[: random.randrange(len(body))]
        return body + random.randbytes(random.randrange(1, 9)) if how == 2 else b"\0" + body[::-1]


# --- attempts that the Server makes by itself ---


def _samples(stream: Stream, head: MessageHead, body: bytes) -> None:
    channel, _ = stream.address
    epoch = stream.world.random.getrandbits(
        16
    )  # of an earlier one, the trainer would ignore what follows a bad message
    packed = SAMPLES_HEAD.pack(*head, len(body))
    stream.world.trainer.inject(*map(bytes, cut(Kind.DATA, packed, [body], epoch=epoch, channel=channel)))
    stream.world.trainer.carry()


def forge_samples(world: World) -> None:
    """Old messages in any stream and place, altered or not, and samples of the attacker's own with any proof."""
    stream, attacker, random = world.pick(), world.attacker, world.random
    after = world.state.receivers[stream.id].next_number
    seen = attacker.seen("up DATA")
    head = MessageHead(*SAMPLES_HEAD.unpack_from(seen)[:4])
    body = seen[SAMPLES_HEAD.size :]
    how = random.randrange(8)
    if how == 0:
        body = random.randbytes(random.choice((0, 30, 200))) + body[-SEAL_BYTES:]
    elif how == 1:
        body = random.randbytes(random.choice((0, 94, 264)))
    elif how == 2:
        body = random.randbytes(94) + bytes((random.choice((1, 2, 3)),))
    if random.random() < 0.5:
        head = MessageHead(after, random.choice((0, after)), after, 1)
    if how == 3:
        parts = attacker.thief.seal(attacker.thief.new_stream(), head, [random.randbytes(30)])
        assert parts is not None
        body = b"".join(parts)
    _samples(stream, head, attacker.perhaps_altered(body))
    attacker.exact = False


def forge_stream(world: World) -> None:
    """A stream of a worker with a wrong record, or without one, and samples in it."""
    stream, thief = world.pick(), world.attacker.thief
    private = X25519PrivateKey.generate()
    public = private.public_key().public_bytes_raw()
    own = StreamRecord(b"signature", stream.worker.seal.signer.certificate, public, 0, 0, bytes(PROOF_BYTES))
    opened = world.attacker.seen_message("up OpenStream")
    assert isinstance(opened, OpenStream)
    forged = world.random.choice(
        (
            b"signature",
            b"",
            world.attacker.flip(stream.record),
            stream.record[: world.random.randrange(len(stream.record))],
            thief.record(thief.new_stream(), b"signature"),
            encode_statement(own),
            opened.signature if opened.stream != stream.id else b"",
        )
    )
    channel = next(world.channels)
    world.trainer.inject(StreamOpened(channel, stream.id, stream.worker.name, forged))
    run_key = world.seal.run_key
    keys = StreamKeys(
        private,
        run_key.public,
        run=world.run,
        stream=stream.id,
        stream_key=public,
        run_key=run_key.public,
        key_id=run_key.id,
    )
    after = world.state.receivers[stream.id].next_number
    for counter, number in enumerate((0, after, after + 1)):
        head = MessageHead(number, 0, number, 1)
        body = b"".join(keys.seal(MAC, counter, head, [b"false"]))
        packed = SAMPLES_HEAD.pack(*head, len(body))
        world.trainer.inject(*map(bytes, cut(Kind.DATA, packed, [body], epoch=1, channel=channel)))
    world.trainer.inject(StreamClosed(channel, False))


def forge_ack(world: World) -> None:
    """An acknowledgement that no trainer has made, with any tag, sometimes while samples are held back."""
    stream, random = world.pick(), world.random
    link = world.links[stream.worker]
    for _ in range(random.choice((0, 2))):
        stream.make(20)
    seen = world.attacker.seen_message("up Ack")
    assert isinstance(seen, Ack)
    number = random.randrange(len(stream.made) + 50)
    tag = world.attacker.perhaps_altered(seen.tag)[:64]
    link.inject(
        random.choice(
            [
                Ack(stream.channel, number),
                Ack(stream.channel, len(stream.made), (), random.randbytes(16)),
                Ack(stream.channel, number, seen.refused, seen.tag),
                Ack(stream.channel, seen.next, (*seen.refused[1:], (number, "x")), seen.tag),
                Ack(stream.channel, seen.next, seen.refused, tag),
            ]
        )
    )
    world.attacker.exact = True


def forge_policy(world: World) -> None:
    """Weights of the attacker's own, altered ones, and old ones under their own or another version."""
    worker, random = world.pick().worker, world.random
    seen = world.attacker.seen("up WEIGHTS")
    incarnation, counter, _ = POLICY_HEAD.unpack_from(seen)
    body = world.attacker.perhaps_altered(seen[POLICY_HEAD.size :])
    if random.random() < 0.5:
        newest = worker.state.policy_version
        incarnation, counter = newest[0] + random.randrange(2), newest[1] + random.randrange(100)
    if random.random() < 0.25:
        body = encode_body(PolicyUpdate((0, 0), {"": Blob("sim", b"harm")})) + random.choice(
            (b"", body[-TRAILER_BYTES:])
        )
    packed = POLICY_HEAD.pack(incarnation, counter, len(body))
    world.links[worker].inject(*map(bytes, cut(Kind.WEIGHTS, packed, [body], epoch=0, channel=0)))
    world.attacker.exact = False


def _made_orders(world: World) -> list[bytes]:
    """Cards, directives and reports of the attacker's own, and cards of the trainer for earlier incarnations."""
    trailer = world.attacker.seen("up Report")[-TRAILER_BYTES:]
    harmful = [
        encode_body(Directive(revision=1 << 40, finish=True)),
        encode_body(Progress(lack="samples", gave_up=True)),
    ]
    key, thief = RunKey(b"\1" * 32), signer("worker", "thief")
    card = RunCard(world.run, 1 << 20, key.public, key.signing_public, thief.certificate)
    return [
        *harmful,
        *(one + trailer for one in harmful),
        encode_statement(msgspec.structs.replace(card, proof=thief.sign(card.covered()))),
        world.seal.card(world.random.randrange(world.state.holding)),
        TrainerSeal("other", signer("trainer", "node"), verifier(), RunKey(bytes(32))).card(1 << 20),
    ]


def forge_order(world: World) -> None:
    """Any card, directive or report in the place of any other, altered or not."""
    worker, random = world.pick().worker, world.random
    if random.random() < 0.3:
        body = random.choice(_made_orders(world))
        world.attacker.exact = False
    else:
        seen = world.attacker.seen_message("up Announce", "up Direct", "up Report")
        assert isinstance(seen, Announce | Direct | Report)
        body = world.attacker.perhaps_altered(seen.body)
    kind = random.randrange(3)
    if kind == 0:
        # A card of another trainer, with the own one's incarnation: the worker asks for a higher one, in a new link.
        incarnation = random.choice((world.state.holding, random.randrange(9)))
        world.links[worker].inject(Announce(incarnation, body))
    elif kind == 1:
        world.links[worker].inject(Direct(random.choice((0, 1, ALL_CHANNELS)), 1 << 40, body))
    else:
        world.links[worker].inject(Report(body))


# --- attempts on what goes through ---


def skip_samples(world: World) -> None:
    """A message is held back, and the next one says that nothing was before it."""
    stream = world.pick()
    held: list[bytes] = []

    def alter(link: Link, frame: Frame, up: bool) -> list[bytes] | None:
        own = link is world.links[stream.worker] and frame.channel == stream.channel
        if not own or not up or frame.kind != Kind.DATA:
            return None
        if not held:
            held.append(bytes(frame.buffer))
            return []
        changed = bytearray(frame.buffer)
        struct.pack_into("<Q", changed, HEADER_BYTES + 8, 0)
        return [bytes(changed)]

    world.attacker.alter = alter
    for _ in range(2):
        stream.make(20)


def alter_samples(world: World) -> None:
    """One bit of a message's header or body is changed on its way."""
    stream = world.pick()

    def alter(link: Link, frame: Frame, up: bool) -> list[bytes] | None:
        if link is not world.trainer or up or frame.kind != Kind.DATA or frame.channel != stream.address[0]:
            return None
        # The length and the frame's own header only harm the link.
        while True:
            changed = world.attacker.flip(bytes(frame.buffer), HEADER_BYTES)
            if changed[HEADER_BYTES + 28 : HEADER_BYTES + 32] == frame.buffer[HEADER_BYTES + 28 : HEADER_BYTES + 32]:
                return [changed]

    world.attacker.alter = alter
    stream.make(world.random.choice((0, 50, 500)))
    stream.make(20)  # with a lower number, the first is a duplicate, and the second shows the gap


def truncate_samples(world: World) -> None:
    """A message loses its end, and says so."""

    def alter(link: Link, frame: Frame, up: bool) -> list[bytes] | None:
        if link is not world.trainer or up or frame.kind != Kind.DATA:
            return None
        *fields, length = SAMPLES_HEAD.unpack_from(frame.payload)
        length = world.random.randrange(length)
        body = bytes(frame.payload[SAMPLES_HEAD.size :][:length])
        packed = SAMPLES_HEAD.pack(*fields, length)
        return list(map(bytes, cut(Kind.DATA, packed, [body], epoch=frame.epoch, channel=frame.channel)))

    world.attacker.alter = alter
    world.pick().make(50)


def reorder_samples(world: World) -> None:
    """Two messages change places."""
    stream = world.pick()
    held: list[bytes] = []

    def alter(link: Link, frame: Frame, up: bool) -> list[bytes] | None:
        if link is not world.trainer or up or frame.kind != Kind.DATA or frame.channel != stream.address[0]:
            return None
        if held:
            return [bytes(frame.buffer), *held]
        held.append(bytes(frame.buffer))
        return []

    world.attacker.alter = alter
    for _ in range(2):
        stream.make(20)


def alter_policy(world: World) -> None:
    """One bit of a new policy is changed on its way to a worker, who may have its MAC."""
    worker = world.pick().worker

    def alter(link: Link, frame: Frame, up: bool) -> list[bytes] | None:
        if link is not world.links[worker] or up or frame.kind != Kind.WEIGHTS:
            return None
        data = bytes(frame.buffer)  # the MAC does not cover the signature, which it replaces
        return [world.attacker.flip(data[:-TRAILER_BYTES], HEADER_BYTES + POLICY_HEAD.size) + data[-TRAILER_BYTES:]]

    world.attacker.alter = alter
    world.publish()
    world.settle()
    world.publish()


def false_hints(world: World) -> None:
    """Hints that nobody proves: they may delay, and do nothing else."""
    stream = world.pick()
    link = world.links[stream.worker]
    how = world.random.randrange(4)
    if how == 0:
        stream.make(20)
        link.tell(Resume(stream.channel, world.random.randrange(len(stream.made) + 1), 77, 0))
    elif how == 1:
        world.trainer.tell(Incarnation(world.state.holding + (1 << world.random.randrange(21, 60))))
    elif how == 2:
        world.link(stream.worker).tell(Welcome(1, 1 << 60, 1, 1 << 20, 1 << 20, 3.0, 0, True))
    else:
        world.trainer.tell(StreamOpened(1 << 21, stream.id, "", stream.record))
        world.link(None)
    world.link(stream.worker)


INJECTED = (forge_samples, forge_stream, forge_ack, forge_policy, forge_order)
ON_THE_WAY = (skip_samples, alter_samples, truncate_samples, reorder_samples, alter_policy)


# --- the honest ends ---


def restart_worker(world: World) -> None:
    """A new process of a worker, with its file."""
    worker = world.random.choice(world.workers)
    worker.retired = worker.counted
    worker.begin()
    world.link(worker)
    world.settle()


def restart_trainer(world: World) -> None:
    """A new process of the trainer, from what it has committed."""
    world.state = world.new_trainer(world.state.incarnation, world.state.counter, world.state.offsets)
    world.link(None)
    world.publish()
    world.direct()
    world.settle()


def honest_work(world: World) -> None:
    """A little of everything that a fleet does."""
    for worker in world.workers:
        world.random.choice(worker.streams).make(world.random.choice((0, 30, 300)))
    if world.random.random() < 0.5:
        world.publish()
    if world.random.random() < 0.5:
        world.direct()
    world.settle()


@functools.cache
def heard_elsewhere(mode: Mode) -> list[dict[str, deque[bytes]]]:
    """Return what passes a Server of another run, and of another trainer of this run."""
    return [World(18, mode, run="other run").attacker.heard, World(19, mode, key=b"1" * 32).attacker.heard]


def attack(world: World, attempts: int, *, all_counted: bool = True) -> None:
    """Attack a fleet, and check after every attempt that it harmed nobody and was counted.

    Args:
        all_counted: False: do not check that it was counted, but continue until a forgery is accepted.
    """
    world.attacker.elsewhere = heard_elsewhere(world.mode)
    assert world.counted == world.attacker.requests, "honest ends take each other for forgers"
    tried: Counter[str] = Counter()
    harmless = contests = 0
    while tried.total() < attempts:
        attempt = world.random.choice((*INJECTED * 4, *ON_THE_WAY, false_hints))
        if attempt in ON_THE_WAY:
            world.settle()
        before, world.attacker.exact = world.counted, False
        attempt(world)
        tried[attempt.__name__] += 1
        contested = [worker for worker in world.workers if world.links[worker].client.closing]
        if attempt not in INJECTED or contested or tried.total() % AT_ONCE == 0:
            for worker in world.workers:
                world.random.choice(worker.streams).make(5)  # the honest exchange goes on
            holding = world.state.holding
            if contested:
                world.link(None)
            world.settle()
            assert (world.state.holding > holding) >= bool(contested), "no higher incarnation settles the contest"
            contests += len(contested)
        assert world.attacker.alter is None, f"{attempt.__name__} met no message"
        if all_counted and world.counted == before and attempt is not false_hints:
            assert world.attacker.exact, f"{attempt.__name__} was not counted"
            harmless += 1
        if world.random.random() < 0.1:
            world.settle()
            honest_work(world)
        if world.random.random() < 0.01:
            world.settle()
            world.random.choice((restart_trainer, restart_worker))(world)
    world.settle()
    honest_work(world)
    assert tried.keys() == {attempt.__name__ for attempt in (*INJECTED, *ON_THE_WAY, false_hints)}
    assert contests
    assert harmless < attempts / 10, "only exact repetitions of the newest message of their kind change nothing"
    for stream in world.streams.values():
        assert stream.taken == len(stream.made), "every honest sample has arrived once"
    for worker in world.workers:
        assert worker.state.policy_version == world.state.version
        assert worker.state.directives["all"].revision == world.revision
        for stream in worker.streams:
            assert stream.sender.samples_refused == stream.refused
            assert stream.sender.samples_acked + stream.refused == len(stream.made)


@pytest.mark.timeout(1_200)
@pytest.mark.parametrize("mode", ["authenticate", "encrypt"])
def test_a_server_that_was_taken_over_gets_nothing_accepted(full: bool, mode: Mode) -> None:
    attack(World(17, mode), ATTEMPTS_FULL if full else ATTEMPTS)


# --- proof that the attack would notice ---


def _unchecked_tag(self: WorkerSeal, *acknowledgement: object) -> bool:
    return True


def _unchecked_samples(self: OpenedStream, head: MessageHead, body: memoryview) -> memoryview:
    if len(body) >= SEAL_BYTES and body[-1] == ENCRYPTED:
        sealed = Sealed(body)
        if (keys := self._keys.get(sealed.key_id)) is not None:
            nonce = stream_keys._NONCE.pack(0, sealed.counter)
            return memoryview(Cipher(AES(keys._ciphers[ENCRYPTED]), GCM(nonce)).decryptor().update(sealed.content))
    return body[:-SEAL_BYTES]


def _unchecked_record(self: TrainerSeal, stream: bytes, signature: bytes, *, stored: bool = False) -> OpenedStream:
    record = decode_statement(signature, StreamRecord)
    return OpenedStream(self, stream, record, self._verifier.check(record.certificate, ("worker",)))


def _header_without_floor(stream: bytes, mode: int, head: MessageHead) -> bytes:
    return header(stream, mode, head._replace(floor=0))


def _any_version(self: WorkerSeal, version: Version, body: memoryview, *, base: bool = False) -> memoryview | None:
    content = self._checked("policy", body)[1]
    return None if content is None else self._decrypted("policy", content)


def _any_order(self: WorkerSeal, subject: str, stream: bytes, version: Version) -> bool:
    self._newest[subject, stream] = max(version, self._newest.get((subject, stream), (0, 0)))
    return True


def _unchecked_mac(self: WorkerSeal, version: Version, content: memoryview) -> bool:
    return any(own.policy is not None and own.policy.version == version for own in self._streams.values())


def _unchecked_signature(key: object, proof: bytes, data: bytes) -> bool:
    return True


MUTATIONS: dict[str, tuple[object, str, object]] = {
    "acknowledgements are not checked": (WorkerSeal, "check_ack", _unchecked_tag),
    "samples are not checked": (OpenedStream, "open", _unchecked_samples),
    "records are not checked": (TrainerSeal, "open_record", _unchecked_record),
    "the floor is not covered": (stream_keys, "header", _header_without_floor),
    "policies may be of any version": (WorkerSeal, "open_policy", _any_version),
    "directives may be old": (WorkerSeal, "_is_newest", _any_order),
    "MACs of policies are not checked": (WorkerSeal, "_has_tag", _unchecked_mac),
    "signatures are not checked": (worker_module, "is_signed", _unchecked_signature),
}


@pytest.mark.parametrize("mode", ["authenticate", "encrypt"])
@pytest.mark.parametrize("name", MUTATIONS)
def test_the_attack_notices_a_removed_check(name: str, mode: Mode, monkeypatch: pytest.MonkeyPatch) -> None:
    heard_elsewhere(mode)  # with all checks
    monkeypatch.setattr(*MUTATIONS[name])
    world = World(17, mode)  # honest ends need no check
    with pytest.raises(AcceptedForgeryError):
        attack(world, ATTEMPTS, all_counted=False)
