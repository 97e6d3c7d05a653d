"""A Server that replays, reorders, alters, truncates, rolls back and forges at random: no attempt is accepted."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

from tests.networking.end_to_end.ends import Ends, signer, verifier
from tests.networking.peers.test_unread_answers import give
from tmrl_core.networking.end_to_end.run_key import RunKey
from tmrl_core.networking.end_to_end.trainer import TrainerSeal
from tmrl_core.networking.end_to_end.worker import Mode, WorkerSeal
from tmrl_core.networking.peers import TrainerConnection, TrainerState, WorkerConnection, WorkerState
from tmrl_core.networking.protocol.connection import Connection, Identity
from tmrl_core.networking.protocol.delivery import StreamSender
from tmrl_core.networking.protocol.framing import (
    POLICY_HEAD,
    SAMPLES_HEAD,
    Frame,
    FrameReader,
    Kind,
    MessageHead,
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
    OpenStream,
    PolicyUpdate,
    Progress,
    Report,
    Resume,
    StreamOpened,
    Welcome,
    decode_control,
)

WELCOME = Welcome(2, 1, 1 << 20, 1 << 20, 1 << 20, 3.0)
MODES: tuple[Mode, ...] = ("authenticate", "encrypt")


def give_bytes(connection: Connection, data: bytes) -> None:
    while data:
        view = connection.get_buffer()
        n = min(len(view), len(data))
        view[:n] = data[:n]
        connection.received(n, 0.0)
        data = data[n:]
    assert not connection.closing, connection.reason


def said(connection: Connection) -> tuple[list[Control], list[Frame]]:
    reader = FrameReader()
    controls: list[Control] = []
    frames: list[Frame] = []
    while data := b"".join(connection.to_send(0.0)):
        while data:
            view = reader.get_buffer()
            n = min(len(view), len(data))
            view[:n] = data[:n]
            reader.received(n)
            for frame in reader.take():
                if frame.kind == Kind.CONTROL:
                    controls.append(decode_control(frame.payload))
                else:
                    frames.append(frame)
            data = data[n:]
    return controls, frames


class Run:
    """An honest worker with two streams and an honest trainer; the Server between them keeps all that it sees."""

    def __init__(self, run: str, mode: Mode, key: bytes = bytes(32)) -> None:
        seal = WorkerSeal(run, signer(), verifier(), mode=mode)
        self.worker = WorkerState(run=run, name="robot", peer=b"w" * 16, seal=seal)
        self.senders: list[StreamSender] = []
        for _ in range(2):
            stream, sealer = self.worker.new_stream()
            self.senders.append(StreamSender(stream, queue_bytes=1 << 30, drop_oldest=False, sealer=sealer))
            self.worker.add_stream(self.senders[-1], b"")
        trainer_seal = TrainerSeal(run, signer("trainer", "node"), verifier(), RunKey(key))
        self.trainer = TrainerState(run=run, name="node", peer=b"t" * 16, inbox_bytes=1 << 30, seal=trainer_seal)
        self.seals = seal, trainer_seal
        self.worker_link = WorkerConnection(self.worker, silent_s=10, heartbeat_s=3)
        self.trainer_link = TrainerConnection(self.trainer, silent_s=10, heartbeat_s=3)
        for link in (self.worker_link, self.trainer_link):
            link.connected(Identity("Server"), 0.0)
            give(link, WELCOME)
        self.to_worker: list[Control] = []
        self.policies: list[tuple[tuple[int, int], bytes]] = []
        self.samples: list[tuple[int, MessageHead, bytes]] = []
        """Stream, head and sealed body of each message."""
        self.truth: dict[tuple[bytes, int], bytes] = {}
        self.published: dict[tuple[int, int], bytes] = {}
        self.released = [0, 0]
        self.epoch = 1
        for message in said(self.worker_link)[0]:
            if isinstance(message, OpenStream):
                give(self.trainer_link, StreamOpened(message.channel + 1, message.stream, "r", message.signature))
        self.hear_trainer()
        for message in self.to_worker:
            if isinstance(message, Announce):
                give(self.worker_link, message)
        for channel in (0, 1):
            give(self.worker_link, Resume(channel, 0, 1, 1 << 40))

    def hear_trainer(self) -> list[Control]:
        controls, frames = said(self.trainer_link)
        self.to_worker += [one for one in controls if isinstance(one, Ack | Announce | Direct | Report)]
        for frame in frames:
            if frame.kind == Kind.WEIGHTS:  # small enough for one frame
                incarnation, counter, _ = POLICY_HEAD.unpack_from(frame.payload)
                body = bytes(frame.payload[POLICY_HEAD.size :])
                self.policies.append(((incarnation, counter), body))
                self.trainer_link._in_flight = False
        return controls

    def give_samples(self, stream: int, head: MessageHead, body: bytes) -> None:
        self.epoch = self.epoch % 60_000 + 1
        packed = SAMPLES_HEAD.pack(*head, len(body))
        for wire in iter(cut(Kind.DATA, packed, (body,), epoch=self.epoch, channel=stream + 1)):
            give_bytes(self.trainer_link, b"".join(wire.buffers))

    def give_policy(self, version: tuple[int, int], body: bytes) -> None:
        for wire in iter(cut(Kind.WEIGHTS, POLICY_HEAD.pack(*version, len(body)), (body,), epoch=0, channel=0)):
            give_bytes(self.worker_link, b"".join(wire.buffers))

    def go_on(self, rng: random.Random) -> None:
        """Let both ends work, and deliver in order what they say."""
        stream = rng.randrange(2)
        sender = self.senders[stream]
        body = rng.randbytes(rng.randrange(1, 100))
        self.truth[sender.stream, sender.next_number] = body
        assert sender.offer([body], 3)
        for frame in said(self.worker_link)[1]:
            *fields, _ = SAMPLES_HEAD.unpack_from(frame.payload)
            sealed = frame.channel, MessageHead(*fields), bytes(frame.payload[SAMPLES_HEAD.size :])
            self.samples.append(sealed)
            self.give_samples(*sealed)
        for received in self.trainer.take():
            assert self.truth.pop((received.stream, received.number)) == received.payload
            self.trainer.acknowledge(received, rng.choice([None, "no room"]))
            self.released[[one.stream for one in self.senders].index(received.stream)] += received.samples
        if rng.random() < 0.5:
            body = rng.randbytes(20)
            update = PolicyUpdate((1, 1), {"default": Blob("safetensors", body)})
            self.published[self.trainer.publish(update)] = body
        self.trainer.progress = Progress(samples=rng.randrange(1_000))
        self.trainer_link.report()
        self.trainer.directives[None] = Directive(rng.randrange(1_000))
        self.trainer_link.direct(None)
        self.trainer_link.wake()
        before = len(self.to_worker), len(self.policies)
        self.hear_trainer()
        for message in self.to_worker[before[0] :]:
            if isinstance(message, Ack):
                message = msgspec.structs.replace(message, channel=message.channel - 1)
            give(self.worker_link, message)
        for policy in self.policies[before[1] :]:
            self.give_policy(*policy)

    @property
    def counted(self) -> int:
        worker, trainer = self.seals
        return worker.forged + worker.outdated + trainer.forged + trainer.unknown_keys + self.trainer.duplicates


def altered(rng: random.Random, body: bytes) -> bytes:
    kind = rng.randrange(4)
    if kind == 0 and body:
        place = rng.randrange(len(body))
        return body[:place] + bytes((body[place] ^ 1 << rng.randrange(8),)) + body[place + 1 :]
    if kind == 1:
        return body[: rng.randrange(len(body) + 1)]
    if kind == 2:
        return body + rng.randbytes(rng.randrange(1, 9))
    return body[::-1]


class Attack:
    """Random attempts on one run, with what its Server has seen there, in another run, and of another trainer."""

    def __init__(self, mode: Mode, seed: int) -> None:
        self.rng = random.Random(seed)
        self.run = Run("run", mode)
        self.others = [Run("other run", mode), Run("run", mode, b"1" * 32)]
        for run in (self.run, *self.others):
            for _ in range(30):
                run.go_on(self.rng)
        self.asked = 0

    def source(self) -> Run:
        return self.rng.choice([self.run, self.run, *self.others])

    def attempt(self) -> None:
        self.rng.choice([self.forge_samples, self.forge_ack, self.forge_policy, self.forge_message])()

    def forge_samples(self) -> None:
        run, rng = self.run, self.rng
        stream, head, body = rng.choice(self.source().samples)
        after = run.trainer.receivers[run.senders[stream].stream].next_number
        if rng.random() < 0.5:
            head = head._replace(number=after, floor=rng.choice([0, after]))
        if rng.random() < 0.5:
            body = altered(rng, body)
        if rng.random() < 0.3:
            stream = 1 - stream
        run.give_samples(stream, head, body)
        self.asked += sum(isinstance(one, Resume) for one in run.hear_trainer())

    def forge_ack(self) -> None:
        rng = self.rng
        channel = rng.randrange(2)
        seen = rng.choice([one for one in self.source().to_worker if isinstance(one, Ack)])
        number = rng.randrange(self.run.senders[channel].next_number + 50)
        ack = rng.choice(
            [
                Ack(channel, number),
                Ack(channel, number, seen.refused, seen.tag),
                Ack(channel, seen.next, (*seen.refused[1:], (number, "x")), seen.tag),
                Ack(channel, seen.next, seen.refused, altered(rng, seen.tag)[:64]),
            ]
        )
        give(self.run.worker_link, ack)

    def forge_policy(self) -> None:
        rng = self.rng
        version, body = rng.choice(self.source().policies)
        if rng.random() < 0.5:
            version = version[0] + rng.randrange(2), version[1] + rng.randrange(-1, 100)
        self.run.give_policy((version[0], max(0, version[1])), altered(rng, body) if rng.random() < 0.5 else body)

    def forge_message(self) -> None:
        rng = self.rng
        pool = [one for one in self.source().to_worker if isinstance(one, Announce | Direct | Report)]
        body = rng.choice(pool).body
        body = altered(rng, body) if rng.random() < 0.7 else body
        kind = rng.randrange(3)
        if kind == 0:
            number = rng.randrange(9)
            cards = [one.body for run in self.others for one in run.to_worker if isinstance(one, Announce)]
            if number != self.run.worker.incarnation or body not in cards:
                give(self.run.worker_link, Announce(number, body))
            # Otherwise a worker sees two trainers with one incarnation, asks for a higher one and closes the link.
        elif kind == 1:
            give(self.run.worker_link, Direct(rng.choice([0, 1, ALL_CHANNELS]), 5_000, body))
        else:
            give(self.run.worker_link, Report(body))

    def check(self, before: tuple[Any, ...]) -> None:
        run = self.run
        assert not run.trainer.inbox, "the trainer has taken a forged message"
        assert before == self.state, "the worker has obeyed a forged message"

    @property
    def state(self) -> tuple[Any, ...]:
        worker, senders = self.run.worker, self.run.senders
        released = [(one.samples_acked, one.samples_refused, one.held_messages) for one in senders]
        return released, worker.policy_version, dict(worker.directives), worker.progress, worker.incarnation


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("attempts", [1_000, pytest.param(10_000, marks=pytest.mark.full)])
def test_no_random_attempt_is_accepted(mode: Mode, attempts: int) -> None:
    attack = Attack(mode, seed=attempts)
    run = attack.run
    counted = run.counted
    harmless = 0
    for number in range(attempts):
        state, told, asked = attack.state, run.counted, attack.asked
        attack.attempt()
        attack.check(state)
        harmless += (told, asked) == (run.counted, attack.asked)
        if number % 20 == 0:  # the honest ends go on all the time
            counted -= run.counted
            run.go_on(attack.rng)
            counted += run.counted
    # Only exact repetitions of the newest message of their kind count as nothing, because they change nothing.
    assert harmless < attempts / 10
    assert run.counted - counted + attack.asked == attempts - harmless
    assert run.truth == {}
    for sender, released in zip(run.senders, run.released, strict=True):
        assert sender.samples_acked + sender.samples_refused == released == sender.samples_offered
    taken = run.worker.policy
    assert taken is not None
    assert run.published[taken[0]] in bytes(taken[1])
    assert max(run.published) == taken[0]


def test_ends_of_this_test_are_honest() -> None:
    assert Ends().trainer.forged == Run("run", "encrypt").counted == 0
