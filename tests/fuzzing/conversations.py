"""Whole ends of links, told what no honest peer says, beside links of others that must not notice."""

from __future__ import annotations

from typing import Any

import msgspec

from tests.fuzzing.mutation import MOST_BYTES, Mutator
from tests.fuzzing.target import Target
from tests.fuzzing.wire import BODIES, CONTROLS, ID, header
from tmrl_core.errors import NetworkError
from tmrl_core.networking.protocol.connection import Connection, Identity
from tmrl_core.networking.protocol.delivery import StreamSender
from tmrl_core.networking.protocol.framing import FIRST, HEADER, LAST, PING_FRAME, Kind, cut
from tmrl_core.networking.protocol.messages import (
    POLICY_HEAD,
    SAMPLES_HEAD,
    Ack,
    Bye,
    CloseStream,
    Control,
    Credit,
    Direct,
    Directive,
    Echo,
    Halt,
    Have,
    Hello,
    Incarnation,
    Notice,
    OpenStream,
    PolicyUpdate,
    Probe,
    Progress,
    Refused,
    Report,
    Resume,
    StatusRequest,
    StreamClosed,
    StreamOpened,
    Unused,
    Waits,
    Want,
    Welcome,
    control_frame,
    encode_body,
)
from tmrl_core.networking.relay import Relay, RelaySettings
from tmrl_core.networking.trainer import TrainerConnection, TrainerState
from tmrl_core.networking.worker import WorkerConnection, WorkerState

KB = 1024
SETTINGS = RelaySettings(budget_bytes=512 * KB, max_message_bytes=128 * KB, max_policy_bytes=128 * KB)
EVIL = b"evil-peer-------"
GOOD = b"good-peer-------"
STREAM = b"evil-stream-----"

_WORKER, _TRAINER, _ASKER, _TO_WORKER, _TO_TRAINER = range(5)


def _samples(number: int, size: int, epoch: int, channel: int) -> list[bytes]:
    head = SAMPLES_HEAD.pack(number, 0, 10 * number, 10, size)
    return [bytes(frame) for frame in cut(Kind.DATA, head, (bytes(size),), epoch=epoch, channel=channel)]


def _policy(incarnation: int, counter: int, size: int) -> list[bytes]:
    head = POLICY_HEAD.pack(incarnation, counter, size)
    return [bytes(frame) for frame in cut(Kind.WEIGHTS, head, (bytes(size),), epoch=0, channel=0)]


def _frames(*messages: Control | list[bytes]) -> list[bytes]:
    frames: list[bytes] = []
    for message in messages:
        frames += message if isinstance(message, list) else [control_frame(message)]
    return frames


def _hello(role: Any) -> Hello:
    return Hello((1,), role, "", "run", "evil", EVIL)


DIRECTIVE = encode_body(Directive(2, pause=True))
WEIGHTS = encode_body(PolicyUpdate((1, 1), {}, {}))
CONVERSATIONS: dict[int, list[list[bytes]]] = {
    _WORKER: [
        _frames(
            _hello("worker"),
            OpenStream(0, STREAM, "evil"),
            _samples(0, 300, 1, 0),
            Want(0, 1, 100_000),
            Unused(0, 1, 1_000),
            _samples(1, 70_000, 1, 0),
            Waits(0, "a model"),
            _samples(2, 20, 1, 0),
            Have(1, 1),
            CloseStream(0),
            Bye(),
        ),
        _frames(_hello("worker"), *[OpenStream(i, bytes([i]) * 16, "evil") for i in range(6)], CloseStream(3)),
    ],
    _TRAINER: [
        _frames(
            _hello("trainer"),
            Resume(1, 0),
            Credit(0, 0, 1 << 20),
            Report(encode_body(Progress(10, 5))),
            Ack(1, 1, ((0, "no"),)),
            Direct(1, 1, DIRECTIVE),
            Direct(0xFFFF_FFFF, 2, DIRECTIVE),
            _policy(1, 1, 300),
            _policy(1, 2, 70_000),
            Bye(),
        )
    ],
    _ASKER: [
        _frames(Probe((1,), "worker", "", "run"), Echo(1, 10, b"x"), Echo(2, 60_000), Bye()),
        _frames(_hello("observer"), StatusRequest(0), StatusRequest(0), Bye()),
    ],
    _TO_WORKER: [
        _frames(
            Welcome(1, 1, 1 << 20, 1 << 20, 1 << 20, 3.0),
            Resume(0, 0, 1, 65_536),
            Credit(0, 1, 1 << 20),
            Ack(0, 1, ((0, "no"),)),
            Direct(0, 1, DIRECTIVE),
            Report(encode_body(Progress(10, 5, 3, "40 samples"))),
            _policy(1, 1, 300),
            _policy(1, 2, 70_000),
            Halt(0, "gone"),
            Refused("full", "later"),
        )
    ],
    _TO_TRAINER: [
        _frames(
            Welcome(1, 1, 1 << 20, 128 * KB, 1 << 20, 3.0),
            StreamOpened(1, STREAM, "w", b"signature"),
            _samples(0, 300, 1, 1),
            _samples(1, 70_000, 1, 1),
            Waits(1, "a model"),
            Notice(1, 100, 0),
            Incarnation(5),
            Have(1, 1),
            StreamClosed(1, True),
            Bye(),
        )
    ],
}
ANY = [*_frames(*CONTROLS), PING_FRAME, *[f for frames in CONVERSATIONS.values() for c in frames for f in c]]


def tell(connection: Connection, data: bytes | memoryview, piece: int) -> None:
    """Bytes from the other side, in pieces."""
    at = 0
    while at < len(data) and not connection.closing:
        view = connection.get_buffer()
        n = min(len(view), len(data) - at, piece)
        view[:n] = data[at : at + n]
        at += n
        connection.received(n, 1.0)


def heard(connection: Connection, most_bytes: int = 1 << 20) -> bytes:
    """What has left, up to some amount."""
    out = bytearray()
    while len(out) < most_bytes and (buffers := connection.to_send(1.0)):
        for buffer in buffers:
            out += buffer
    return bytes(out)


class Pair:
    """A link of somebody who minds his own business."""

    def __init__(self, relay: Relay, client: Connection) -> None:
        self.client = client
        self.server = relay.connection()
        client.connected(Identity("server"), 1.0)
        self.server.connected(Identity("client"), 1.0)

    def move(self) -> bool:
        """Bytes in both directions; whether there were any."""
        up = heard(self.client)
        tell(self.server, up, 1 << 20)
        down = heard(self.server)
        tell(self.client, down, 1 << 20)
        return bool(up or down)

    def lose(self) -> None:
        for end in (self.client, self.server):
            end.lost(None, 1.0)


class World:
    """A relay with a good worker, and a good trainer unless somebody else is to have the place."""

    def __init__(self, with_trainer: bool) -> None:
        self.relay = Relay(SETTINGS, wall_clock=lambda: 1e9)
        self.worker_state = WorkerState(run="run", name="good", peer=GOOD)
        self.sender = StreamSender(b"good-stream-----", queue_bytes=1 << 20, drop_oldest=False)
        self.worker_state.add_stream(self.sender, b"")
        self.worker = self.link_worker()
        self.trainer_state: TrainerState | None = None
        self.trainer: Pair | None = None
        if with_trainer:
            self.link_trainer()
        self.settle()

    def link_worker(self) -> Pair:
        connection = WorkerConnection(
            self.worker_state, silent_s=10, heartbeat_s=3, max_policy_bytes=SETTINGS.max_policy_bytes
        )
        return Pair(self.relay, connection)

    def link_trainer(self) -> None:
        self.trainer_state = TrainerState(run="run", name="good", peer=GOOD[::-1], inbox_bytes=256 * KB)
        self.trainer = Pair(self.relay, TrainerConnection(self.trainer_state, silent_s=10, heartbeat_s=3))

    def settle(self) -> None:
        """Until nothing moves any more."""
        pairs = [self.worker] if self.trainer is None else [self.worker, self.trainer]
        for _ in range(60):
            if not sum(pair.move() for pair in pairs):
                return
        raise AssertionError("it never comes to rest")

    def check(self) -> None:
        """The relay's budgets."""
        relay = self.relay
        assert 0 <= relay.flow.reserved_bytes <= SETTINGS.budget_bytes
        assert 0 <= relay.flow.queued_bytes <= SETTINGS.budget_bytes

    def goes_on(self) -> None:
        """A message of the good worker's reaches the good trainer's memory and is acknowledged."""
        assert self.trainer_state is not None
        state = self.trainer_state
        self.sender.offer([b"on we go" * 10], 10)
        number = self.sender.next_number - 1
        for _ in range(20):
            self.settle()
            for received in state.take():
                state.acknowledge(received)
                if received.stream == self.sender.stream and received.number == number:
                    assert bytes(received.payload) == b"on we go" * 10
            if not self.sender.held_messages:
                return
        raise AssertionError("the good worker's samples do not arrive any more")


class Conversations(Target):
    """The Server's, a worker's and a trainer's end, fed with conversations that were right once."""

    name = "connection"
    allowed = ()

    def make(self, mutator: Mutator) -> bytes:
        scenario = mutator.pick((_WORKER, _WORKER, _TRAINER, _ASKER, _TO_WORKER, _TO_TRAINER))
        frames: list[bytes] = list(mutator.pick(CONVERSATIONS[scenario]))
        for _ in range(mutator.few()):
            kind = mutator.random()
            at = mutator.below(len(frames) + 1)
            if kind < 0.25:
                frames = mutator.items(frames) or frames
            elif kind < 0.45:
                frames.insert(at, mutator.pick(ANY))
            elif kind < 0.75 and at < len(frames):
                frames[at] = self._changed(frames[at], mutator)
            elif kind < 0.85 and at < len(frames):
                frames[at] = mutator.mutate(frames[at])
            elif kind < 0.9:
                length = mutator.below(200)
                frames.insert(at, header(mutator, length) + bytes(length))
            elif kind < 0.93:
                frames[at:at] = [mutator.pick(frames)] * (1 << mutator.below(8)) if frames else []
        whole = b"".join(frames)
        if mutator.chance(8):
            whole = mutator.mutate(whole)
        return bytes([scenario, mutator.below(256)]) + whole[: 3 * MOST_BYTES]

    def _changed(self, frame: bytes, mutator: Mutator) -> bytes:
        """A frame with another number in its header, its head or its message."""
        if len(frame) < HEADER.size:
            return frame
        fields = list(HEADER.unpack_from(frame))
        payload = frame[HEADER.size :]
        if fields[1] == Kind.CONTROL and mutator.random() < 0.8:
            try:
                values = msgspec.msgpack.decode(payload)
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                return frame  # it was changed before
            if not isinstance(values, list) or not values:
                return frame
            values[mutator.below(len(values))] = mutator.extreme() if mutator.chance(2) else mutator.value()
            if mutator.chance(10):
                values[-1] = encode_body(mutator.pick(BODIES))
            try:
                payload = msgspec.msgpack.encode(values)
            except (OverflowError, msgspec.MsgspecError):
                return frame
            fields[0] = len(payload)
        elif fields[1] == Kind.DATA and fields[2] & FIRST and len(payload) >= SAMPLES_HEAD.size and mutator.chance(2):
            head = list(SAMPLES_HEAD.unpack_from(payload))
            at = mutator.below(5)
            head[at] = mutator.extreme() & ((1 << (64 if at < 3 else 32)) - 1)
            payload = SAMPLES_HEAD.pack(*head) + payload[SAMPLES_HEAD.size :]
        elif fields[1] == Kind.WEIGHTS and fields[2] & FIRST and len(payload) >= POLICY_HEAD.size and mutator.chance(2):
            versions = list(POLICY_HEAD.unpack_from(payload))
            versions[mutator.below(3)] = mutator.extreme() & ((1 << 64) - 1)
            payload = POLICY_HEAD.pack(*versions) + payload[POLICY_HEAD.size :]
        else:
            at = 1 + mutator.below(4)
            fields[at] = mutator.below(4) if at < 3 else mutator.extreme() & (0xFFFF if at == 3 else 0xFFFF_FFFF)
            if mutator.chance(3):
                fields[2] ^= mutator.pick((FIRST, LAST))
        return HEADER.pack(*fields) + payload

    def run(self, case: bytes) -> None:
        if len(case) < 2:
            return
        scenario, data = case[0] % 5, memoryview(case)[2:]
        piece = (case[1] + 1) * 64
        if scenario >= _TO_WORKER:
            self._against_a_client(scenario, data, piece)
            return
        world = World(with_trainer=scenario != _TRAINER)
        evil = world.relay.connection()
        evil.connected(Identity("evil:1"), 1.0)
        at = 0
        # In a few parts, so that the others answer in between.
        part = max(1, len(data) // 5)
        while at < len(data) and not evil.closing:
            tell(evil, data[at : at + part], piece)
            at += part
            world.check()
            if case[1] & 1:
                heard(evil)
            world.settle()
            world.check()
        self._check_reason(evil)
        heard(evil)
        evil.lost(None, 1.0)
        assert evil not in world.relay.workers.values()
        assert world.relay.trainer is not evil
        if world.trainer is None:
            # A trainer is believed: workers may have left a link over what it said. They come back, to another trainer.
            self._check_reason(world.worker.client)
            world.worker.lose()
            world.worker = world.link_worker()
            world.link_trainer()
            world.settle()
        assert not world.worker.client.closing
        assert world.trainer is not None
        assert not world.trainer.client.closing
        world.goes_on()
        world.goes_on()
        world.check()

    def _against_a_client(self, scenario: int, data: memoryview, piece: int) -> None:
        client: Connection
        if scenario == _TO_WORKER:
            worker = WorkerState(run="run", name="w", peer=ID)
            sender = StreamSender(STREAM, queue_bytes=1 << 20, drop_oldest=False)
            for size in (100, 70_000, 20):
                sender.offer([bytes(size)], 10)
            worker.add_stream(sender, b"")
            client = WorkerConnection(worker, silent_s=10, heartbeat_s=3, max_policy_bytes=128 * KB)
        else:
            trainer = TrainerState(run="run", name="t", peer=ID, inbox_bytes=256 * KB)
            trainer.publish(PolicyUpdate((0, 0), {}, {}))
            client = TrainerConnection(trainer, silent_s=10, heartbeat_s=3)
        client.connected(Identity("server"), 1.0)
        part = max(1, len(data) // 5)
        for at in range(0, len(data), part):
            heard(client)
            tell(client, data[at : at + part], piece)
            if scenario == _TO_TRAINER and (at // part) & 1:
                for received in trainer.take():
                    assert len(received.payload) <= 128 * KB or client.closing
                    trainer.acknowledge(received)
        self._check_reason(client)
        heard(client)
        client.tick(2.0)
        client.lost(None, 2.0)

    def _check_reason(self, connection: Connection) -> None:
        assert connection.reason is None or isinstance(connection.reason, NetworkError)

    def limit_bytes(self, case: bytes) -> int:
        return 100 * len(case) + (8 << 20)
