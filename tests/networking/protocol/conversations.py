"""Conversations of workers, a trainer and observers with the Server, whose every byte is compared with a recording.

Nothing here does I/O: ids and the clock are given, and so is what is random in proofs. A conversation is played by the
connections of both sides, which hand over all that they have to say in turn until there is no more. In place of the
Server, or of the clients, the recording may play: the other side's bytes have to be the recorded ones all the same.

    python -m tests.networking.protocol.conversations       records them, for a new version of the protocol

A byte that changes is a new version: peers of the present one would not understand each other any more. Conversations
that are added need none. Until the first release, `WIRE_UNRELEASED=1` in the environment replaces the recording of the
present version.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
import lzma
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from tmrl_core.networking.end_to_end.identity import Signer, Verifier
from tmrl_core.networking.end_to_end.run_key import RunKey
from tmrl_core.networking.observer import ObserverConnection, ObserverState
from tmrl_core.networking.observer.admission_probe import ProbeConnection
from tmrl_core.networking.observer.seal import ViewerSeal
from tmrl_core.networking.observer.viewer import ViewerConnection, ViewerState
from tmrl_core.networking.protocol.connection import Connection, Identity
from tmrl_core.networking.protocol.delivery import StreamSender, WrittenMessage
from tmrl_core.networking.protocol.messages import (
    AUTHENTICATED,
    PROTOCOL_VERSION,
    SUPPORTED_VERSIONS,
    Blob,
    Collect,
    Directive,
    Echo,
    Evaluation,
    Hello,
    PolicyUpdate,
    Probe,
    Progress,
    Report,
    Show,
    encode_body,
)
from tmrl_core.networking.protocol.pictures import PIECE_BYTES, PIECE_S, Picture, Wanted
from tmrl_core.networking.protocol.telemetry import History, Order, Scene
from tmrl_core.networking.relay import MemorySpool, Relay, RelaySettings
from tmrl_core.networking.security.certificates import Signed, make_authority, make_client_certificate
from tmrl_core.networking.trainer import TrainerConnection, TrainerState
from tmrl_core.networking.trainer.orders import Orders
from tmrl_core.networking.trainer.seal import TrainerSeal
from tmrl_core.networking.worker import WorkerConnection, WorkerState
from tmrl_core.networking.worker.seal import Mode, WorkerSeal

WALL_CLOCK = 1_800_000_000.0
RECORDING = Path(__file__).with_name("wire.json.xz")
COMMAND = "python -m tests.networking.protocol.conversations"
UNRELEASED = "WIRE_UNRELEASED"
ADVICE = f"raise PROTOCOL_VERSION and record anew with `{COMMAND}`, in a commit that says why"
Event = list[str]
"""A link's number with `>` (towards the Server) or `<`, and the bytes in hexadecimal digits; or something that happens
to a link: `open`, `lost`; or `time` and the seconds that pass."""


class Recording(NamedTuple):
    """The recording: conversations of one version, and the certificates of those who authenticate."""

    version: int
    certificates: dict[str, Signed]
    """Throwaway ones of the CA and of each role, valid for a hundred years."""
    conversations: dict[str, list[Event]]


@functools.cache
def recorded() -> Recording:
    """Return the recording."""
    version, certificates, conversations = json.loads(lzma.decompress(RECORDING.read_bytes())).values()
    return Recording(version, {name: Signed(*pair) for name, pair in certificates.items()}, conversations)


@contextmanager
def repeatable() -> Iterator[None]:
    """Replace what is random, and the version of the package: nonces, keys of streams, signatures."""
    count = itertools.count()

    def chosen(size: int) -> bytes:
        return hashlib.shake_128(b"%d" % next(count)).digest(size)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "urandom", chosen)
        private = classmethod(lambda cls: cls.from_private_bytes(chosen(32)))
        patch.setattr(X25519PrivateKey, "generate", private)
        signature = ec.ECDSA(hashes.SHA256(), deterministic_signing=True)
        patch.setattr("tmrl_core.networking.end_to_end.identity._ALGORITHM", signature)
        patch.setattr("tmrl_core.networking.relay.status.__version__", "0.0.0")
        yield


def hear(end: Connection, data: bytes, now: float) -> None:
    """Have one end receive these bytes."""
    rest = memoryview(data)
    while rest and not end.closing:
        buffer = end.get_buffer()
        n = min(len(buffer), len(rest))
        buffer[:n] = rest[:n]
        end.received(n, now)
        rest = rest[n:]


def said(end: Connection, now: float) -> bytes:
    """All that one end has to say."""
    parts = []
    while out := end.to_send(now):
        parts.append(b"".join(out))
    return b"".join(parts)


def make_relay() -> Relay:
    """A Server's side, with a token for workers, little room, and a list of revoked certificates."""

    def authenticate(hello: Hello | Probe, connection: Any) -> tuple[str, str] | None:
        return ("token", "wrong token") if hello.token == "wrong" else None

    settings = RelaySettings(max_workers=2, standing_bytes=1_000)
    spool = MemorySpool(1 << 20)
    relay = Relay(settings, authenticate, wall_clock=lambda: WALL_CLOCK, spool=spool)
    relay.signed_revocations = lambda: REVOKED
    return relay


REVOKED = b"a list that the CA has signed"


class Talk:
    """One conversation as it goes.

    Args:
        certificates: see `Recording`.
        expected: what was recorded; None: it is recorded now.
        server: whether a Server takes part, or the recording in its place.
    """

    def __init__(
        self, certificates: dict[str, Signed], expected: list[Event] | None = None, *, server: bool = True
    ) -> None:
        self.certificates = certificates
        self.expected = expected
        self.relay = make_relay() if server else None
        self.events: list[Event] = []
        self.now = 100.0
        self._links: list[tuple[Connection, Connection | None]] = []

    def open(self, client: Connection) -> None:
        """Connect a client."""
        self._note("open", str(len(self._links)))
        server = None
        if self.relay is not None:
            server = self.relay.connection()
        self._links.append((client, server))
        for end in (client, server):
            if end is not None:
                end.connected(Identity("there"), self.now)
        self.run()

    def lose(self, client: Connection) -> None:
        """The link of a client breaks; what was not said is lost."""
        number = next(number for number, (end, _) in enumerate(self._links) if end is client)
        self._note("lost", str(number))
        for end in self._links[number]:
            if end is not None:
                end.lost(None, self.now)
        self.run()

    def wait(self, seconds: float) -> None:
        """Let time pass."""
        self.now += seconds
        self._note("time", str(seconds))
        for ends in self._links:
            for end in ends:
                if end is not None and end.deadline() <= self.now:
                    end.tick(self.now)
        self.run()

    def run(self, only: Connection | None = None) -> None:
        """Carry bytes until nobody has anything to say, or, with `only`, what that client says and nothing else."""
        moved = True
        while moved:
            moved = False
            for number, (client, server) in enumerate(self._links):
                for sender, receiver, arrow in ((client, server, ">"), (server, client, "<")):
                    if only is not None and sender is not only:
                        continue
                    name = f"{number}{arrow}"
                    data = self._next_recorded(name) if sender is None else said(sender, self.now)
                    if data:
                        moved = True
                        self._note(name, data.hex())
                        if receiver is not None:
                            hear(receiver, data, self.now)

    def _next_recorded(self, name: str) -> bytes:
        assert self.expected is not None
        event = self.expected[len(self.events)] if len(self.events) < len(self.expected) else [""]
        return bytes.fromhex(event[1]) if event[0] == name else b""

    def _note(self, *event: str) -> None:
        if self.expected is not None:
            at = len(self.events)
            wanted = self.expected[at] if at < len(self.expected) else ["nothing"]
            if wanted != list(event):
                raise AssertionError(f"step {at}: {_shown(event)}; in the recording {_shown(wanted)}: {ADVICE}")
        self.events.append(list(event))

    def finish(self) -> None:
        """There is no more in the recording."""
        expected = self.expected
        assert expected is None or len(self.events) == len(expected), f"{_shown(expected[len(self.events)])}: {ADVICE}"


def _shown(event: Any) -> str:
    return " ".join(str(part)[:300] for part in event)


def play_server(events: list[Event]) -> None:
    """Have a Server hear what the clients of a recording said; what it says must be what it said then."""
    relay = make_relay()
    links: list[Connection] = []
    now = 100.0
    # What a Server says leaves when it is asked, which is before anybody else says something.
    for at, event in enumerate(events):
        if event[0] == "open":
            links.append(relay.connection())
            links[-1].connected(Identity("there"), now)
        elif event[0] == "lost":
            links[int(event[1])].lost(None, now)
        elif event[0] == "time":
            now += float(event[1])
            for link in links:
                if link.deadline() <= now:
                    link.tick(now)
        elif event[0].endswith(">"):
            hear(links[int(event[0][:-1])], bytes.fromhex(event[1]), now)
        else:
            data = said(links[int(event[0][:-1])], now).hex()
            assert data == event[1], (
                f"step {at}: {_shown([event[0], data])}; in the recording {_shown(event)}: {ADVICE}"
            )


# --- the conversations ------------------------------------------------------------------------------------------------


TIMES: dict[str, Any] = {"silent_s": 10.0, "heartbeat_s": 3.0}


class Worker:
    """A worker process with one stream.

    Args:
        seal: its end of the authentication; None: it does not authenticate.
    """

    def __init__(
        self,
        name: str,
        number: int,
        run: str = "run",
        token: str = "",
        queue: int | None = None,
        seal: WorkerSeal | None = None,
    ) -> None:
        self.state = WorkerState(run=run, name=name, peer=bytes([number]) * 16, token=token, seal=seal)
        stream = bytes([number + 100]) * 16 if seal is None else self.state.new_stream()
        self.sender = StreamSender(stream, queue_bytes=queue or 1 << 21, drop_oldest=queue is not None, sealer=seal)
        self.state.add_stream(self.sender, b"signature of " + name.encode())
        self.link = self.connection()

    def connection(self) -> WorkerConnection:
        self.link = WorkerConnection(self.state, **TIMES)
        return self.link

    def make(self, size: int, samples: int) -> None:
        assert self.sender.offer([b"head", bytes([samples]) * (size - 4)], samples)

    def end(self, talk: Talk) -> None:
        """Hand over what no trainer has taken, and leave."""
        self.state.ending = True
        self.link.hand_over()
        talk.run()
        self.link.end_streams()
        self.link.close()
        talk.run()


class Trainer:
    """A trainer process."""

    def __init__(self, number: int, **state: Any) -> None:
        self.state = TrainerState(run="run", name="hpc", peer=bytes([number]) * 16, inbox_bytes=1 << 20, **state)
        self.link = self.connection()

    def connection(self) -> TrainerConnection:
        self.link = TrainerConnection(self.state, **TIMES)
        return self.link

    def take(self, refuse: int | None = None) -> list[tuple[int, int, bytes]]:
        taken = self.state.take()
        for one in taken:
            self.state.acknowledge(one, "it is of another environment" if one.number == refuse else None)
        return [(one.number, one.samples, bytes(one.payload[:5])) for one in taken]

    def publish(self, size: int, letter: bytes = b"w") -> None:
        version = (self.state.version[0], self.state.version[1] + 1)
        self.state.publish(PolicyUpdate(version, {"": Blob("safetensors", letter * size)}, {"noise": 0.5}))

    def direct(self, stream: bytes | None, **wanted: Any) -> None:
        before = self.state.directives.get(stream, Directive())
        self.state.directives[stream] = Directive(revision=before.revision + 1, **wanted)
        self.link.direct(stream)


def make_observer() -> ObserverConnection:
    """An observer's link."""
    return ObserverConnection(ObserverState(run="run", name="pid 1", peer=b"o" * 16), **TIMES)


def worker_seal(talk: Talk, mode: Mode) -> WorkerSeal:
    """A worker's end of the authentication."""
    return WorkerSeal("run", _signer(talk, "worker"), _verifier(talk), mode=mode, clock=lambda: WALL_CLOCK)


def trainer_seal(talk: Talk, mode: Mode) -> TrainerSeal:
    """A trainer's end of the authentication."""
    return TrainerSeal("run", _signer(talk, "trainer"), _verifier(talk), RunKey(bytes(range(32))), mode=mode)


def _signer(talk: Talk, role: str) -> Signer:
    return Signer(*talk.certificates[role])


def _verifier(talk: Talk) -> Verifier:
    return Verifier(talk.certificates["authority"].certificate, clock=lambda: WALL_CLOCK)


def samples_and_policies(talk: Talk) -> None:
    """From the first word to the last: samples of one frame and of several, policies, orders, a lockstep round."""
    worker, trainer = Worker("robot7", 1, token="right"), Trainer(3)
    worker.state.lateness = lambda: (1_000, 3, 1_200)
    talk.open(worker.link)
    worker.make(500, 7)
    talk.run()
    talk.open(trainer.link)
    assert trainer.take() == [(0, 7, b"head\7")]
    talk.run()
    worker.make(150_000, 9)
    worker.make(10, 1)
    talk.run()
    assert trainer.take(refuse=2) == [(1, 9, b"head\t"), (2, 1, b"head\1")]
    talk.run()
    assert worker.sender.settled
    assert len(worker.sender.refusals) == 1
    trainer.publish(100)
    talk.run()
    assert worker.state.policy_version == (1, 1)
    trainer.publish(200_000)
    talk.run()
    assert worker.state.policy is not None
    assert len(worker.state.policy[1]) > 200_000
    trainer.state.progress = Progress(samples=17, updates=3, start_training=5, lack="2 samples", turn=(1, 2))
    trainer.link.report()
    talk.run()
    assert worker.state.progress == trainer.state.progress
    worker.state.waits = "the policy after 1.2"
    worker.link.say_waits()
    talk.run()
    assert list(trainer.state.waits.values()) == ["the policy after 1.2"]
    trainer.direct(None, pause=True)
    talk.run()
    trainer.direct(worker.sender.stream, evaluation=Evaluation(4, (1, 2, 3), (1, 2)))
    talk.run()
    assert worker.state.directive.pause
    collect = Collect(round=2, version=(1, 2), steps=50, seed=11)
    trainer.direct(worker.sender.stream, collect=encode_body(collect))
    talk.run()
    trainer.direct(worker.sender.stream, collect=encode_body(Collect(round=3, version=(1, 3), episodes=2)))
    talk.run()
    trainer.direct(worker.sender.stream, refusal="another policy", wanted=Wanted("robot7", 1))
    talk.run()
    assert worker.state.directive.refusal == "another policy"
    (late,) = trainer.state.lateness.values()
    assert (late.steps, late.late_steps, late.p999_us) == (1_000, 3, 1_200)
    talk.wait(3.5)
    talk.wait(3.5)
    trainer.state.progress = Progress(samples=17, lack="2 samples", gave_up=True)
    trainer.link.report()
    trainer.direct(None, finish=True)
    talk.run()
    assert worker.state.progress.gave_up
    assert worker.state.directive.finish
    worker.link.end_streams()
    worker.link.close()
    talk.run()
    trainer.link.close()
    talk.run()


def links_that_break(talk: Talk) -> None:
    """Every side loses its link once and resumes, the trainer in a new process with the marks of its checkpoint."""
    worker, trainer = Worker("robot7", 1), Trainer(3)
    talk.open(trainer.link)
    talk.open(worker.link)
    for number in range(4):
        worker.make(40_000, number + 1)
    talk.run(only=worker.link)
    talk.lose(worker.link)
    talk.open(worker.connection())
    assert [number for number, _, _ in trainer.take()] == [0, 1, 2, 3]
    trainer.publish(1_000)
    talk.run(only=trainer.link)
    talk.lose(trainer.link)
    worker.make(100, 5)
    talk.run()
    assert worker.state.halted
    talk.open(trainer.connection())
    talk.lose(trainer.link)
    again = Trainer(4, offsets=trainer.state.offsets, incarnation=trainer.state.incarnation, counter=7)
    talk.open(again.link)
    assert [number for number, _, _ in again.take()] == [4]
    again.publish(10)
    talk.run()
    assert worker.state.policy_version == (again.state.incarnation, 8)
    # A worker that another trainer had given a higher incarnation, and whose queue drops what it has asked credit for.
    far = Worker("robot9", 9, queue=5_000)
    far.state.incarnation = 12
    talk.open(far.link)
    assert again.state.holding > 12
    far.make(4_900, 8)
    talk.run(only=far.link)
    far.make(200, 9)
    talk.run()
    assert [samples for _, samples, _ in again.take()] == [9]
    talk.run()
    superseded = far.link
    talk.open(far.connection())
    assert superseded.closing
    # A worker with a number that no trainer can have had.
    talk.lose(far.link)
    lying = Worker("robot10", 10)
    lying.state.incarnation = 1 << 50
    talk.open(lying.link)
    assert lying.state.incarnation == again.state.holding
    talk.lose(again.link)
    talk.open(again.connection())
    talk.wait(20.0)


def deltas(talk: Talk) -> None:
    """Packed policies, complete and as deltas, to a worker that keeps its base, loses it, connects again, or joins."""
    worker, trainer = Worker("robot7", 1), Trainer(3, packs=True)
    talk.open(trainer.link)
    talk.open(worker.link)
    for letter in b"abc":
        trainer.publish(200, bytes((letter,)))
        talk.run()
    assert worker.state.policy_version == (1, 3)
    assert worker.state.kept.base == (1, 1)
    talk.lose(worker.link)
    trainer.publish(200, b"d")
    talk.run()
    talk.open(worker.connection())
    assert worker.state.policy_version == (1, 4)
    worker.state.kept.clear()
    trainer.publish(200, b"e")
    talk.run()
    assert worker.state.policy_version == (1, 4)
    trainer.publish(200, b"f")
    talk.run()
    assert worker.state.policy_version == (1, 6)
    late = Worker("robot9", 9)
    talk.open(late.link)
    assert late.state.policy is not None
    assert late.state.policy == worker.state.policy


def namesakes(talk: Talk) -> None:
    """Two workers have one label; the second keeps its number over links, also without the first."""
    first, second = Worker("robot7", 1), Worker("robot7", 2)
    talk.open(first.link)
    talk.open(second.link)
    assert (first.state.place, second.state.place) == (0, 2)
    for one in (first, second):
        talk.lose(one.link)
    talk.open(second.connection())
    third = Worker("robot7", 3)
    talk.open(third.link)
    assert third.state.place == 0


def hand_over(talk: Talk) -> None:
    """A worker ends while there is no trainer; the Server keeps its samples for the one that comes."""
    worker, trainer = Worker("robot7", 1), Trainer(3)
    worker.make(70_000, 5)
    worker.make(300, 6)
    talk.open(worker.link)
    worker.end(talk)
    assert worker.sender.settled
    talk.open(trainer.link)
    assert [samples for _, samples, _ in trainer.take()] == [5, 6]
    talk.run()
    trainer.link.close()
    talk.run()


class _Bodies:
    """Bodies that a killed worker has written."""

    def load(self, place: int) -> list[bytes]:
        return [b"head", bytes([place]) * 500]

    def release(self, place: int) -> None:
        """Keep it: there is no disk."""


def killed_worker(talk: Talk) -> None:
    """A worker delivers what an earlier process had written to the disk, besides its own samples."""
    worker, trainer = Worker("robot7", 1), Trainer(3)
    earlier = StreamSender(bytes([42]) * 16, queue_bytes=1 << 21, drop_oldest=True, store=_Bodies(), store_bytes=0)
    earlier.restore([WrittenMessage(number, number, 5 * number, 5, 504, number) for number in (2, 3)])
    worker.state.add_stored_stream(earlier, b"signature of robot7", "robot7")
    worker.make(300, 6)
    talk.open(worker.link)
    talk.open(trainer.link)
    assert sorted(samples for _, samples, _ in trainer.take()) == [5, 5, 6]
    talk.run()
    assert not earlier.held_messages
    worker.end(talk)


def full_spool(talk: Talk) -> None:
    """A worker ends with more samples than the Server's spool takes."""
    worker = Worker("robot7", 1)
    for number in range(4):
        worker.make(300_000, number + 1)
    talk.open(worker.link)
    worker.end(talk)
    assert worker.state.hand_over_refusal
    assert not worker.sender.settled


def looks(talk: Talk) -> None:
    """Workers of two runs, one of which has ended; an observer; and somebody who only asks about admission."""
    worker, other = Worker("robot7", 1), Worker("robot8", 2, run="other")
    worker.state.lateness = lambda: (1_000, 3, 1_200)
    for one in (worker, other):
        talk.open(one.link)
        one.make(1_000, 3)
    trainer = Trainer(3)
    talk.open(trainer.link)
    trainer.publish(1_000)
    other.end(talk)
    observer = make_observer()
    talk.open(observer)
    observer.request_status()
    talk.run()
    talk.wait(1.0)
    observer.request_status()
    talk.run()
    state = observer.observer
    assert state.answers == 2
    assert state.status is not None
    assert {peer.role for peer in state.status.peers} == {"worker", "trainer", "observer"}
    assert state.status.policy is not None
    assert len(state.status.streams) == len(state.status.spooled) == 1
    _ask(talk)


def _ask(talk: Talk) -> None:
    probe = ProbeConnection(**TIMES, greeting_s=10.0)
    talk.open(probe)
    probe.send(Probe(SUPPORTED_VERSIONS, "worker", "right", "run"))
    talk.run()
    probe.send(Echo(1, 2_000))
    talk.run()
    probe.send(Echo(2, 0, b"filler"))
    talk.run()
    assert len(probe.heard) == 3


def authenticated(talk: Talk) -> None:
    """Both ends authenticate: signed and sealed samples, a policy with its MAC, messages of somebody else."""
    worker = Worker("robot7", 1, seal=worker_seal(talk, "authenticate"))
    worker.make(70_000, 5)
    talk.open(worker.link)
    worker.end(talk)  # it knows no trainer yet, so the samples are signed
    trainer = Trainer(3, seal=trainer_seal(talk, "authenticate"))
    talk.open(trainer.link)
    assert [samples for _, samples, _ in trainer.take()] == [5]
    talk.run()
    worker = Worker("robot7", 2, seal=worker_seal(talk, "authenticate"))
    talk.open(worker.link)
    worker.make(500, 7)
    worker.make(70_000, 8)
    talk.run()
    assert [samples for _, samples, _ in trainer.take(refuse=1)] == [7, 8]
    talk.run()
    assert worker.sender.settled
    assert len(worker.sender.refusals) == 1
    _instruct(talk, worker, trainer)
    trainer.publish(1 << 20)
    talk.run()
    assert worker.state.policy_version == (1, 2)
    # Ignored: a report without a proof, one of an earlier trainer, and a stream without a valid record.
    seal = trainer.state.seal
    assert seal is not None
    for report in (b"no report", seal.seal_report(0, b"of an earlier trainer")):
        trainer.link.send(Report(report))
        talk.run()
    assert worker.state.seal is not None
    assert (worker.state.seal.forged, worker.state.seal.outdated) == (1, 1)
    forged = Worker("robot9", 9)
    forged.state.senders[0] = forged.sender, AUTHENTICATED + b"no record"
    forged.make(500, 9)
    talk.open(forged.link)
    assert len(forged.sender.refusals) == 1
    talk.lose(forged.link)
    # Another trainer had a higher incarnation.
    far = Worker("robot7", 4, seal=worker_seal(talk, "authenticate"))
    far.state.incarnation = 12
    talk.open(far.link)
    assert trainer.state.holding > 12
    observer = make_observer()
    talk.open(observer)
    observer.request_status()
    talk.run()
    assert observer.observer.status is not None
    assert {peer.forged for peer in observer.observer.status.peers} == {0, 1}
    _ask(talk)


def encrypted(talk: Talk) -> None:
    """The Server can read neither samples nor what the trainer sends."""
    worker, trainer = (
        Worker("robot7", 1, seal=worker_seal(talk, "encrypt")),
        Trainer(3, seal=trainer_seal(talk, "encrypt")),
    )
    talk.open(worker.link)
    worker.make(500, 7)
    talk.run()
    talk.open(trainer.link)
    assert trainer.take() == [(0, 7, b"head\7")]
    talk.run()
    assert worker.sender.settled
    _instruct(talk, worker, trainer)
    talk.lose(worker.link)
    talk.open(worker.connection())
    trainer.direct(None, finish=True)
    talk.run()
    assert worker.state.directive.finish


def _instruct(talk: Talk, worker: Worker, trainer: Trainer) -> None:
    """Everything that a trainer tells workers, each with its proof."""
    trainer.publish(100)
    trainer.state.progress = Progress(samples=17, updates=3, start_training=5, lack="2 samples")
    trainer.link.report()
    trainer.direct(None, pause=True)
    trainer.direct(worker.sender.stream, evaluation=Evaluation(4, (1, 2, 3), (1, 1)))
    talk.run()
    assert worker.state.policy_version == (1, 1)
    assert worker.state.progress == trainer.state.progress
    assert worker.state.directive.pause
    assert worker.state.directive.evaluation is not None


def other_settings(talk: Talk) -> None:
    """Only one end authenticates: each says so, and samples stay with their worker."""
    proving, trainer = Worker("robot7", 1, seal=worker_seal(talk, "authenticate")), Trainer(3)
    talk.open(trainer.link)
    talk.open(proving.link)
    assert "end_to_end" in proving.state.halt_reason
    trainer.link.close()
    talk.run()
    demanding, plain = Trainer(4, seal=trainer_seal(talk, "authenticate")), Worker("robot8", 2)
    talk.open(demanding.link)
    demanding.publish(100)
    plain.make(500, 7)
    talk.open(plain.link)
    assert "end_to_end" in plain.state.halt_reason
    assert plain.state.policy is None
    assert plain.state.trainer_authenticates


class _Telemetry:
    """A trainer's telemetry with the same values each time."""

    def scene(self) -> bytes:
        return encode_body(Scene(run="run", version=(1, 2), time_s=WALL_CLOCK, state="training", takes_orders=True))

    def history(self) -> bytes:
        return encode_body(History(run="run", series={"eval/mean_reward": ((1_000, 2.5, -3.0),)}))


def _shown_by(trainer: Trainer) -> Trainer:
    trainer.state.telemetry = _Telemetry()
    trainer.state.orders = Orders("run", lambda: WALL_CLOCK)
    trainer.state.orders.obeys = True
    return trainer


def viewers(talk: Talk) -> None:
    """One viewer comes before the trainer and one after it; they give orders and see what came of them."""
    state = ViewerState(run="run", name="anna", peer=b"v" * 16)
    viewer = ViewerConnection(state, **TIMES)
    talk.open(viewer)
    viewer.command(*state.envelope(Order(kind="checkpoint")))
    talk.run()
    assert [outcome.done for outcome in state.answered.values()] == [False]
    trainer = _shown_by(Trainer(3))
    talk.open(trainer.link)
    assert state.scene is not None
    assert state.history is not None
    later = ViewerConnection(ViewerState(run="", name="ben", peer=b"w" * 16), **TIMES)
    talk.open(later)
    assert later.viewer.scene == state.scene
    viewer.command(*state.envelope(Order(kind="pause_worker", worker="robot7")))
    viewer.command(*state.envelope(Order(kind="ratio", value=0.5)))
    talk.run()
    for kind in ("pause_worker", "ratio"):
        order = trainer.state.orders.take()
        assert order is not None
        assert order.order.kind == kind
    talk.wait(1.5)
    later.request_status()
    talk.run()
    later.close()
    talk.run()


def proven_viewers(talk: Talk) -> None:
    """The trainer proves what it shows, and an operator the orders; a scene of somebody else is not believed."""
    trainer = _shown_by(Trainer(3, seal=trainer_seal(talk, "authenticate")))
    talk.open(trainer.link)
    state = ViewerState(
        run="run", name="anna", peer=b"v" * 16, seal=ViewerSeal(_signer(talk, "trainer"), _verifier(talk))
    )
    viewer = ViewerConnection(state, **TIMES)
    talk.open(viewer)
    assert state.scene is not None
    viewer.command(*state.envelope(Order(kind="pause")))
    talk.run()
    order = trainer.state.orders.take()
    assert order is not None
    assert order.by == "robot7"
    trainer.link.send(Show("scene", encode_body(Scene(run="run", updates=7))))
    talk.run()
    assert state.scene.updates == 0
    assert state.unproven
    talk.lose(trainer.link)
    talk.open(trainer.connection())
    assert not state.unproven


def pictures(talk: Talk) -> None:
    """An operator wants to see a worker: its camera in one piece, a video in two, and why there is none."""
    trainer = _shown_by(Trainer(3, seal=trainer_seal(talk, "authenticate")))
    talk.open(trainer.link)
    worker = Worker("robot7", 1, seal=worker_seal(talk, "authenticate"))
    talk.open(worker.link)
    seal = ViewerSeal(_signer(talk, "trainer"), _verifier(talk))
    state = ViewerState(run="run", name="anna", peer=b"v" * 16, seal=seal)
    viewer = ViewerConnection(state, **TIMES)
    talk.open(viewer)
    viewer.command(*state.envelope(Order(kind="camera", worker="robot7")))
    talk.run()
    trainer.direct(worker.sender.stream, wanted=Wanted("robot7", 1, 2))
    talk.run()
    assert worker.state.directive.wanted == Wanted("robot7", 1, 2)
    worker.link.show(Picture("robot7", "camera", 5, b"a frame"))
    worker.link.show(Picture("robot7", "video", 6, b"v" * (PIECE_BYTES + 1), "evaluation-3.mp4"))
    talk.run()
    assert list(state.pictures.shown) == [("robot7", "camera")]
    talk.wait(PIECE_S)
    shown = state.pictures.shown["robot7", "video"]
    assert (len(shown.content), shown.text, shown.origin) == (PIECE_BYTES + 1, "evaluation-3.mp4", "robot7")
    worker.link.show(Picture("robot7", "camera", 7, b"", "this worker has no camera"))
    talk.run()
    assert state.pictures.shown["robot7", "camera"].text == "this worker has no camera"


def refusals(talk: Talk) -> None:
    """A wrong token, another version of the protocol, a worker too many, a second trainer, and no greeting at all."""
    wrong = Worker("robot7", 1, token="wrong")
    talk.open(wrong.link)
    assert wrong.link.closing
    newer = Worker("robot7", 1)
    hello = newer.state.hello
    newer.state.hello = lambda: msgspec.structs.replace(hello(), versions=(98, 99))  # type: ignore[method-assign]
    talk.open(newer.link)
    assert newer.link.closing
    for number in (1, 2, 3):
        talk.open(Worker(f"robot{number}", number).link)
    for number in (4, 5):
        talk.open(Trainer(number).link)
    silent = ProbeConnection(**TIMES, greeting_s=10.0)
    talk.open(silent)
    talk.wait(10.5)


CONVERSATIONS: dict[str, Callable[[Talk], None]] = {
    one.__name__: one
    for one in (
        samples_and_policies,
        links_that_break,
        deltas,
        namesakes,
        hand_over,
        killed_worker,
        full_spool,
        looks,
        refusals,
        authenticated,
        encrypted,
        other_settings,
        viewers,
        proven_viewers,
        pictures,
    )
}


def refuse_changes(before: Recording, after: Recording) -> None:
    """Refuse to replace a recording by another one of the same version.

    Raises:
        SystemExit: a recorded conversation differs, so the version must be raised.
    """
    changed = [name for name, events in before.conversations.items() if after.conversations.get(name) != events]
    if changed and before.version == after.version:
        raise SystemExit(f"version {after.version} is recorded with other bytes ({', '.join(changed)}): {ADVICE}")


def record() -> None:
    """Write the recording."""
    before = recorded() if RECORDING.exists() else None
    certificates = before.certificates if before is not None else _make_certificates()
    conversations: dict[str, list[Event]] = {}
    for name, play in CONVERSATIONS.items():
        talk = Talk(certificates)
        with repeatable():
            play(talk)
        conversations[name] = talk.events
        print(f"{name}: {len(talk.events)} events")
    after = Recording(PROTOCOL_VERSION, certificates, conversations)
    if before is not None and os.environ.get(UNRELEASED) != "1":
        refuse_changes(before, after)
    RECORDING.write_bytes(lzma.compress(json.dumps(after._asdict()).encode(), preset=9))


def _make_certificates() -> dict[str, Signed]:
    until = datetime.now(timezone.utc) + timedelta(days=36_500)
    authority = make_authority(until)
    roles = {role: make_client_certificate(authority, role, "robot7", until) for role in ("worker", "trainer")}
    return {"authority": authority._replace(key=""), **roles}


if __name__ == "__main__":
    record()
