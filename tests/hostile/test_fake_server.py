"""A Server that was taken over, with one stolen worker's bundle: it replays, reorders, alters, rolls back and forges.

The real relay serves two honest workers and a trainer. What goes through it passes an attacker, which also says things
of its own. After every attempt, nothing was accepted, the attempt is counted, and the honest exchange goes on.
"""

from __future__ import annotations

import struct
from collections import Counter, deque
from collections.abc import Callable
from random import Random

import msgspec
import pytest

from tests.networking.end_to_end.ends import signer, verifier
from tmrl_core.errors import ForgedError
from tmrl_core.networking.end_to_end import stream_keys
from tmrl_core.networking.end_to_end import worker as worker_module
from tmrl_core.networking.end_to_end.run_key import RunKey
from tmrl_core.networking.end_to_end.statements import (
    TRAILER_BYTES,
    RunCard,
    StreamRecord,
    decode_letter,
    decode_statement,
    encode_statement,
    split_trailer,
)
from tmrl_core.networking.end_to_end.stream_keys import SEAL_BYTES, header
from tmrl_core.networking.end_to_end.trainer import OpenedStream, TrainerSeal
from tmrl_core.networking.end_to_end.worker import Mode, WorkerSeal
from tmrl_core.networking.peers import TrainerConnection, TrainerState, WorkerConnection, WorkerState
from tmrl_core.networking.peers import trainer as trainer_module
from tmrl_core.networking.protocol.connection import Connection, Identity
from tmrl_core.networking.protocol.delivery import CommittedOffset, StreamSender
from tmrl_core.networking.protocol.framing import (
    HEADER_BYTES,
    POLICY_HEAD,
    SAMPLES_HEAD,
    Frame,
    FrameReader,
    Kind,
    MessageHead,
    control_frame,
    cut,
)
from tmrl_core.networking.protocol.messages import (
    ALL_CHANNELS,
    Ack,
    Announce,
    Blob,
    Control,
    Direct,
    Directive,
    Incarnation,
    PolicyUpdate,
    Progress,
    Report,
    Resume,
    StreamClosed,
    StreamOpened,
    Version,
    Welcome,
    decode_control,
    encode_body,
)
from tmrl_core.networking.relay import Relay, RelaySettings

ATTEMPTS, ATTEMPTS_FULL = 400, 10_000
KEPT = 60
"""Frames of each kind that the attacker remembers."""
PROVEN_BYTES = 200
"""Size from which workers receive MACs of policies here."""
_STEP_S = 1.0


@pytest.fixture(autouse=True)
def small_policies_with_macs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainer_module, "PROVEN_POLICY_BYTES", PROVEN_BYTES)


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

    def inject(self, *messages: bytes | Control) -> None:
        """Say something to the client as if the Server did."""
        for message in messages:
            hear(self.client, message if isinstance(message, bytes) else control_frame(message), self.world.now)


def _frames(reader: FrameReader, data: bytes) -> list[Frame]:
    rest, found = memoryview(data), []
    while rest:
        buffer = reader.get_buffer()
        n = min(len(buffer), len(rest))
        buffer[:n] = rest[:n]
        reader.received(n)
        rest = rest[n:]
        found += reader.take()
    return found


def said(end: Connection, now: float) -> bytes:
    """Return everything that an end has to say."""
    parts = []
    while out := end.to_send(now):
        parts.append(b"".join(out))
    return b"".join(parts)


def hear(end: Connection, data: bytes, now: float) -> None:
    """Have one end receive these bytes."""
    rest = memoryview(data)
    while rest and not end.closing:
        buffer = end.get_buffer()
        n = min(len(buffer), len(rest))
        buffer[:n] = rest[:n]
        end.received(n, now)
        rest = rest[n:]


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
            "run",
            signer("worker", self.name),
            verifier(),
            mode=self.mode,
            accepted=self.accepted,
            on_accepted=self._keep,
        )
        self.state = WorkerState(run="run", name=self.name, peer=self.world.random.randbytes(16), seal=self.seal)
        stream, sealer = self.state.new_stream()
        self.sender = StreamSender(stream, queue_bytes=1 << 20, drop_oldest=False, sealer=sealer)
        self.state.add_stream(self.sender, b"signature")
        self.made: list[bytes] = []
        self.world.made[stream] = self.made

    def _keep(self, version: Version) -> None:
        self.accepted = max(self.accepted, version)

    def connection(self) -> Connection:
        return WorkerConnection(self.state, silent_s=10, heartbeat_s=3)

    def make(self, size: int) -> None:
        """Make one message, which says where it belongs."""
        body = b"%s %d " % (self.sender.stream.hex().encode(), len(self.made)) + self.world.random.randbytes(size)
        assert self.sender.offer([body], 1)
        self.made.append(body)

    @property
    def counted(self) -> int:
        return self.retired + self.seal.forged + self.seal.outdated


class World:
    """A fleet whose Server was taken over."""

    def __init__(self, seed: int, mode: Mode) -> None:
        self.mode = mode
        self.random = Random(seed)
        self.now = 100.0
        self.relay = Relay(RelaySettings(), wall_clock=lambda: 0.0)
        self.attacker = Attacker(self)
        self.made: dict[bytes, list[bytes]] = {}
        self.memory: dict[bytes, list[bytes]] = {}
        self.policies: dict[int, bytes] = {}
        """Weights that were published, by their counter: a trainer may raise its incarnation."""
        self.orders: set[bytes] = {encode_body(Directive()), encode_body(Progress())}
        self.closed = 0
        """Links that an end has closed because of what it heard."""
        self.workers = [HonestWorker(self, "robot", "authenticate"), HonestWorker(self, "camera", "encrypt")]
        self.state = self.new_trainer(0, 0, {})
        self.revision = 0
        self.links: dict[HonestWorker | None, Link] = {}
        for who in (None, *self.workers):
            self.link(who)
        self.settle()

    def new_trainer(self, incarnation: int, counter: int, offsets: dict[bytes, CommittedOffset]) -> TrainerState:
        """Start a process of the trainer."""
        self.seal = TrainerSeal("run", signer("trainer", "node"), verifier(), RunKey(bytes(32)), mode=self.mode)
        peer = self.random.randbytes(16)
        return TrainerState(
            run="run",
            name="node",
            peer=peer,
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
            if not moved and all(worker.sender.settled for worker in self.workers):
                return
            self.now += _STEP_S
            for link in self.links.values():
                for end in (link.client, link.server):
                    if end.deadline() <= self.now:
                        end.tick(self.now)
        raise AssertionError("the honest exchange does not go on")

    def work(self) -> None:
        """Commit what has arrived, and check that it belongs there."""
        for received in self.state.take():
            rows = self.memory.setdefault(received.stream, [])
            made = self.made[received.stream]
            assert received.number == len(rows), "a message is missing, or came twice"
            assert bytes(received.payload) == made[received.number], "a sample that its worker did not send"
            rows.append(made[received.number])
            self.state.acknowledge(received)
        for worker in self.workers:
            self.check(worker)

    def check(self, worker: HonestWorker) -> None:
        """Check what a worker has obeyed and released."""
        state = worker.state
        if state.policy is not None:
            version, body = state.policy
            assert self.policies[version[1]] == bytes(body), "weights that no trainer has published"
            state.policy = None
        for directive in state.directives.values():
            assert encode_body(directive) in self.orders, "a directive that no trainer has made"
        assert encode_body(state.progress) in self.orders, "a report that no trainer has made"
        assert state.policy_version <= self.state.version
        held = worker.sender.held_messages
        rows = len(self.memory.get(worker.sender.stream, ()))
        assert len(worker.made) - held <= rows, "samples were released that the trainer does not have"
        assert not worker.sender.samples_refused

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
        for stream in (None, self.workers[self.revision % 2].sender.stream):
            self.state.directives[stream] = Directive(revision=self.revision)
            self.orders.add(encode_body(self.state.directives[stream]))
            connection.direct(stream)
        self.state.progress = Progress(samples=self.revision)
        self.orders.add(encode_body(self.state.progress))
        connection.report()

    @property
    def counted(self) -> int:
        """Return the number of attempts that both ends have noticed."""
        trainer = self.seal.forged + self.seal.unknown_keys + self.state.duplicates
        return trainer + self.closed + sum(worker.counted for worker in self.workers)


class Attacker:
    """The attacker's memory and tricks. It holds the bundle of a worker of its own, `thief`."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.heard: dict[str, deque[bytes]] = {}
        """Frames that went through, by the direction and the kind of their content."""
        self.alter: Callable[[Link, Frame, bool], list[bytes] | None] | None = None
        """Returns what the next frame becomes: nothing, and it is asked again; None: it does not apply."""
        self.requests = 0
        """Times that the trainer asked for something again."""
        self.thief = WorkerSeal("run", signer("worker", "thief"), verifier(), mode="authenticate")

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

    def old(self, kind: str) -> bytes | None:
        """A frame that went through before."""
        frames = self.heard.get(kind)
        return self.world.random.choice(frames) if frames else None

    def flip(self, data: bytes, first: int = 0) -> bytes:
        """Change one bit."""
        changed = bytearray(data)
        at = self.world.random.randrange(first, len(data))
        changed[at] ^= 1 << self.world.random.randrange(8)
        return bytes(changed)


# --- attempts: each returns False if there is nothing yet to try it with ---


def _address(world: World, worker: HonestWorker) -> tuple[int, int]:
    """The trainer's channel of a worker's stream, and its epoch."""
    stream = world.relay.streams[worker.sender.stream]
    return stream.trainer_channel, stream.epoch


def _to_trainer(world: World, worker: HonestWorker, head: MessageHead, body: bytes) -> None:
    channel, epoch = _address(world, worker)
    packed = SAMPLES_HEAD.pack(*head, len(body))
    world.trainer.inject(*map(bytes, cut(Kind.DATA, packed, [body], epoch=epoch, channel=channel)))


def _pick(world: World) -> HonestWorker:
    return world.random.choice(world.workers)


def replay_samples(world: World) -> bool:
    """A message again, in its own or another stream."""
    data = world.attacker.old("up DATA")
    if data is None:
        return False
    number, floor, position, samples, _ = SAMPLES_HEAD.unpack_from(data, HEADER_BYTES)
    body = data[HEADER_BYTES + SAMPLES_HEAD.size :]
    _to_trainer(world, _pick(world), MessageHead(number, floor, position, samples), body)
    return True


def move_samples(world: World) -> bool:
    """An old message in the next place of a stream."""
    data = world.attacker.old("up DATA")
    if data is None:
        return False
    worker = _pick(world)
    number = world.state.receivers[worker.sender.stream].next_number
    _to_trainer(world, worker, MessageHead(number, 0, number, 1), data[HEADER_BYTES + SAMPLES_HEAD.size :])
    return True


def skip_samples(world: World) -> bool:
    """A message is held back, and the next one says that nothing was before it."""
    worker = _pick(world)
    held: list[bytes] = []

    def alter(link: Link, frame: Frame, up: bool) -> list[bytes] | None:
        if link is not world.links[worker] or not up or frame.kind != Kind.DATA:
            return None
        if not held:
            held.append(bytes(frame.buffer))
            return []
        changed = bytearray(frame.buffer)
        struct.pack_into("<Q", changed, HEADER_BYTES + 8, 0)
        return [bytes(changed)]

    world.attacker.alter = alter
    for _ in range(2):
        worker.make(20)
    return True


def alter_samples(world: World) -> bool:
    """One bit of a message's header or body is changed on its way."""
    worker = _pick(world)

    def alter(link: Link, frame: Frame, up: bool) -> list[bytes] | None:
        if link is not world.trainer or up or frame.kind != Kind.DATA or frame.channel != _address(world, worker)[0]:
            return None
        # The length and the frame's own header only harm the link.
        while True:
            changed = world.attacker.flip(bytes(frame.buffer), HEADER_BYTES)
            if changed[HEADER_BYTES + 28 : HEADER_BYTES + 32] == frame.buffer[HEADER_BYTES + 28 : HEADER_BYTES + 32]:
                return [changed]

    world.attacker.alter = alter
    worker.make(world.random.choice((0, 50, 500)))
    worker.make(20)  # with a lower number, the first is a duplicate, and the second shows the gap
    return True


def truncate_samples(world: World) -> bool:
    """A message loses its end, and says so."""
    worker = _pick(world)

    def alter(link: Link, frame: Frame, up: bool) -> list[bytes] | None:
        if link is not world.trainer or up or frame.kind != Kind.DATA:
            return None
        *fields, length = SAMPLES_HEAD.unpack_from(frame.payload)
        length = world.random.randrange(length)
        body = bytes(frame.payload[SAMPLES_HEAD.size :][:length])
        packed = SAMPLES_HEAD.pack(*fields, length)
        return list(map(bytes, cut(Kind.DATA, packed, [body], epoch=frame.epoch, channel=frame.channel)))

    world.attacker.alter = alter
    worker.make(50)
    return True


def reorder_samples(world: World) -> bool:
    """Two messages change places."""
    worker = _pick(world)
    held: list[bytes] = []

    def alter(link: Link, frame: Frame, up: bool) -> list[bytes] | None:
        if link is not world.trainer or up or frame.kind != Kind.DATA or frame.channel != _address(world, worker)[0]:
            return None
        if held:
            return [bytes(frame.buffer), *held]
        held.append(bytes(frame.buffer))
        return []

    world.attacker.alter = alter
    for _ in range(2):
        worker.make(20)
    return True


def forge_samples(world: World) -> bool:
    """Samples of the attacker's own, with a proof of the stolen bundle, of old messages, or with none."""
    worker = _pick(world)
    number = world.state.receivers[worker.sender.stream].next_number
    head = MessageHead(number, 0, number, 1)
    body = world.random.randbytes(world.random.choice((0, 30, 200)))
    how = world.random.randrange(4)
    if how == 0 and (old := world.attacker.old("up DATA")) is not None:
        body += old[-65:]
    elif how == 1:
        thief = world.attacker.thief
        stream = thief.new_stream()
        parts = thief.seal(stream, head, [body])
        assert parts is not None
        body = b"".join(parts)
    elif how == 2:
        body += world.random.randbytes(64) + bytes((world.random.choice((1, 2, 3)),))
    _to_trainer(world, worker, head, body)
    return True


def forge_stream(world: World) -> bool:
    """A stream of a worker with a wrong record, or without one, and samples in it."""
    worker = _pick(world)
    record = worker.state.senders[0][1]
    thief = world.attacker.thief
    forged = world.random.choice(
        (
            b"signature",
            b"",
            world.attacker.flip(record),
            record[: world.random.randrange(len(record))],
            next(other for other in world.workers if other is not worker).state.senders[0][1],
            thief.record(thief.new_stream(), b"signature"),
        )
    )
    channel = 1 << 20 | world.random.getrandbits(10)
    world.trainer.inject(StreamOpened(channel, worker.sender.stream, worker.name, forged))
    for number in range(3):
        packed = SAMPLES_HEAD.pack(number, 0, number, 1, 5)
        world.trainer.inject(*map(bytes, cut(Kind.DATA, packed, [b"false"], epoch=1, channel=channel)))
    world.trainer.inject(StreamClosed(channel, False))
    return True


def release_samples(world: World) -> bool:
    """An acknowledgement that no trainer has made, while the samples are held back."""
    worker = _pick(world)
    link = world.links[worker]
    for _ in range(2):
        worker.make(20)
    made = len(worker.made)
    how = world.random.randrange(4)
    tag = world.random.randbytes(16)
    refused: tuple[tuple[int, str], ...] = ()
    old = world.attacker.old("down Ack")
    if how == 0:
        tag = b""
    elif how == 1 and old is not None:
        acked = decode_control(memoryview(old)[HEADER_BYTES:])
        assert isinstance(acked, Ack)
        tag = acked.tag
    elif how == 2:
        refused = ((made - 1, "refused"),)
    link.inject(Ack(0, made - world.random.randrange(2), refused, tag))
    return True


def _policies(world: World, worker: HonestWorker, version: Version, body: bytes) -> None:
    packed = POLICY_HEAD.pack(*version, len(body))
    world.links[worker].inject(*map(bytes, cut(Kind.WEIGHTS, packed, [body], epoch=0, channel=0)))


def forge_policy(world: World) -> bool:
    """Weights of the attacker's own, altered ones, or ones under a later version."""
    worker = _pick(world)
    old = world.attacker.old("up WEIGHTS")
    if old is None:
        return False
    body = old[HEADER_BYTES + POLICY_HEAD.size :]
    incarnation, counter = worker.state.policy_version
    later = (incarnation + world.random.randrange(2), counter + 1 + world.random.randrange(3))
    how = world.random.randrange(4)
    if how == 0:
        body = world.attacker.flip(body)
    elif how == 1:
        body = encode_body(PolicyUpdate((0, 0), {"": Blob("sim", b"harm")}))
    elif how == 2:
        body = encode_body(PolicyUpdate((0, 0), {"": Blob("sim", b"harm")})) + body[-TRAILER_BYTES:]
    _policies(world, worker, later, body)
    return True


def alter_policy(world: World) -> bool:
    """One bit of a new policy is changed on its way to a worker, who may have its MAC."""
    worker = _pick(world)

    def alter(link: Link, frame: Frame, up: bool) -> list[bytes] | None:
        if link is not world.links[worker] or up or frame.kind != Kind.WEIGHTS:
            return None
        data = bytes(frame.buffer)  # the MAC does not cover the signature, which it replaces
        return [world.attacker.flip(data[:-TRAILER_BYTES], HEADER_BYTES + POLICY_HEAD.size) + data[-TRAILER_BYTES:]]

    world.attacker.alter = alter
    world.publish()
    world.settle()
    world.publish()
    return True


def roll_back_policy(world: World) -> bool:
    """Weights that were published before, to the same worker or to a new process of it."""
    old = world.attacker.old("up WEIGHTS")
    if old is None:
        return False
    worker = _pick(world)
    version = POLICY_HEAD.unpack_from(old, HEADER_BYTES)[:2]
    if version >= worker.accepted:
        return False
    if world.random.random() < 0.2:
        restart_worker(world, worker)
        version = POLICY_HEAD.unpack_from(old, HEADER_BYTES)[:2]
    _policies(world, worker, version, old[HEADER_BYTES + POLICY_HEAD.size :])
    return True


def restart_worker(world: World, worker: HonestWorker) -> None:
    """A new process of a worker, with its file."""
    world.settle()
    worker.retired += worker.seal.forged + worker.seal.outdated
    worker.begin()
    world.link(worker)
    world.settle()


def _version_of(worker: HonestWorker, body: bytes, own: bool) -> Version:
    """The place of a directive or report in their order; a letter for another worker has the first one."""
    if not own:
        return split_trailer(memoryview(body))[1].version
    keys = worker.seal._streams[worker.sender.stream].keys
    try:
        return decode_letter(body, keys).version if keys is not None else (0, 0)
    except ForgedError:
        return 0, 0


def forge_order(world: World) -> bool:
    """A directive or a report of the attacker's own, an altered one, an old one, or one for another worker."""
    worker = _pick(world)
    link = world.links[worker]
    finish = encode_body(Directive(revision=1 << 40, finish=True))
    gave_up = encode_body(Progress(lack="samples", gave_up=True))
    kind = world.random.choice(("up Direct", "up Report"))
    frames = world.attacker.heard.get(kind)
    if not frames or len(frames) < 4:
        return False
    how = world.random.randrange(4)
    older = decode_control(memoryview(world.random.choice(list(frames)[:-3]))[HEADER_BYTES:])
    assert isinstance(older, Direct | Report)
    body = older.body
    if how == 0:
        body = world.attacker.flip(body)
    elif how == 1:
        body = finish if kind == "up Direct" else gave_up
    elif how == 2:
        body = (finish if kind == "up Direct" else gave_up) + body[-TRAILER_BYTES:]
    else:
        own = isinstance(older, Direct) and older.channel != ALL_CHANNELS
        scope = "report" if kind == "up Report" else "directive", worker.sender.stream if own else b""
        if _version_of(worker, body, own) >= worker.seal._newest.get(scope, (0, 0)):
            return False  # it may be the latest one, which does no harm
    if kind == "up Report":
        link.inject(Report(body))
    else:
        assert isinstance(older, Direct)
        for_all = older.channel == ALL_CHANNELS
        link.inject(Direct(ALL_CHANNELS if for_all else 0, 1 << 40, body))
    return True


def forge_card(world: World) -> bool:
    """A card that is altered, older, of another run, or signed with the stolen bundle."""
    worker = _pick(world)
    how = world.random.randrange(4)
    incarnation = world.state.holding
    card = world.seal.card(incarnation)
    if how == 0:
        card = world.attacker.flip(card)
    elif how == 1:
        incarnation = world.random.randrange(incarnation)
        card = world.seal.card(incarnation)  # an earlier process has sent it
    elif how == 2:
        card = TrainerSeal("other", signer("trainer", "node"), verifier(), RunKey(bytes(32))).card(1 << 20)
    else:
        key, thief = RunKey(b"\1" * 32), signer("worker", "thief")
        made = RunCard("run", 1 << 20, key.public, key.signing_public, thief.certificate)
        card = encode_statement(msgspec.structs.replace(made, proof=thief.sign(made.covered())))
    world.links[worker].inject(Announce(incarnation, card))
    return True


COUNTED: tuple[Callable[[World], bool], ...] = (
    replay_samples,
    move_samples,
    skip_samples,
    alter_samples,
    truncate_samples,
    reorder_samples,
    forge_samples,
    forge_stream,
    release_samples,
    forge_policy,
    alter_policy,
    roll_back_policy,
    forge_order,
    forge_card,
)


def false_hints(world: World) -> bool:
    """Hints that nobody proves: they may delay, and do nothing else."""
    worker = _pick(world)
    link = world.links[worker]
    how = world.random.randrange(4)
    if how == 0:
        worker.make(20)
        link.inject(Resume(0, world.random.randrange(len(worker.made) + 1), 77, 0))
    elif how == 1:
        world.trainer.inject(Incarnation(world.state.holding + (1 << world.random.randrange(21, 60))))
    elif how == 2:
        world.link(worker)
        hear(
            world.links[worker].client, control_frame(Welcome(2, 1 << 60, 1, 1 << 20, 1 << 20, 3.0, 0, True)), world.now
        )
    else:
        world.trainer.inject(StreamOpened(1 << 21, worker.sender.stream, "", worker.state.senders[0][1]))
        world.link(None)
    world.link(worker)
    return True


def restart_trainer(world: World) -> None:
    """A new process of the trainer, from what it has committed."""
    world.settle()
    world.state = world.new_trainer(world.state.incarnation, world.state.counter, world.state.offsets)
    world.link(None)
    world.publish()
    world.direct()
    world.settle()


def honest_work(world: World) -> None:
    """A little of everything that a fleet does."""
    for worker in world.workers:
        worker.make(world.random.choice((0, 30, 300)))
    if world.random.random() < 0.5:
        world.publish()
    if world.random.random() < 0.5:
        world.direct()
    world.settle()


def attack(attempts: int, mode: Mode = "encrypt") -> None:
    """Attack a fleet, and check after every attempt that it harmed nobody and was counted."""
    world = World(17, mode)
    tried: Counter[str] = Counter()
    for _ in range(5):
        honest_work(world)
    while tried.total() < attempts:
        attempt = world.random.choice((*COUNTED, false_hints))
        before, asked = world.counted, world.attacker.requests
        if not attempt(world):
            honest_work(world)
            continue
        for worker in world.workers:
            worker.make(5)  # the honest exchange goes on
        world.settle()
        assert world.attacker.alter is None, f"{attempt.__name__} met no message"
        tried[attempt.__name__] += 1
        asked_again = attempt in (replay_samples, reorder_samples) and world.attacker.requests > asked
        assert world.counted > before or asked_again or attempt is false_hints, f"{attempt.__name__} was not counted"
        if world.random.random() < 0.3:
            honest_work(world)
        if world.random.random() < 0.01:
            restart_trainer(world)
    honest_work(world)
    assert tried.keys() == {attempt.__name__ for attempt in (*COUNTED, false_hints)}
    for stream, made in world.made.items():
        assert world.memory.get(stream, []) == made, "every honest sample has arrived once"
    for worker in world.workers:
        assert worker.state.policy_version == world.state.version
        assert worker.state.directives["all"].revision == world.revision


@pytest.mark.timeout(1_200)
@pytest.mark.parametrize("mode", ["authenticate", "encrypt"])
def test_a_server_that_was_taken_over_gets_nothing_accepted(full: bool, mode: Mode) -> None:
    attack(ATTEMPTS_FULL if full else ATTEMPTS, mode)


# --- proof that the attack would notice ---


def _unchecked_tag(self: WorkerSeal, *acknowledgement: object) -> bool:
    return True


def _unchecked_samples(self: OpenedStream, head: MessageHead, body: memoryview) -> memoryview:
    return body[:-SEAL_BYTES]


def _unchecked_record(self: TrainerSeal, stream: bytes, signature: bytes) -> OpenedStream:
    record = decode_statement(signature, StreamRecord)
    return OpenedStream(self, stream, record, self._verifier.check(record.certificate, ("worker",)))


def _header_without_floor(stream: bytes, mode: int, head: MessageHead) -> bytes:
    return header(stream, mode, head._replace(floor=0))


def _any_version(self: WorkerSeal, version: Version, body: memoryview) -> memoryview | None:
    return self._checked("policy", body)[1]


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


@pytest.mark.parametrize("name", MUTATIONS)
def test_the_attack_notices_a_removed_check(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(*MUTATIONS[name])
    with pytest.raises((AssertionError, KeyError, ValueError)):
        attack(ATTEMPTS)
