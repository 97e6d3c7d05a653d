"""Conversations of workers, a trainer and observers with the Server, whose every byte is compared with a recording.

Nothing here does I/O: ids and the clock are given. A conversation is played by the connections of both sides, which
hand over all that they have to say in turn until there is no more. In place of the Server, or of the clients, the
recording may play: the other side's bytes have to be the recorded ones all the same. The recording is of version 1 of
the protocol.
"""

from __future__ import annotations

import json
import lzma
from collections.abc import Callable, Iterator
from typing import Any

from tests.compatibility.parts import DATA
from tmrl_core.networking.peers import (
    ObserverConnection,
    ObserverState,
    TrainerConnection,
    TrainerState,
    WorkerConnection,
    WorkerState,
)
from tmrl_core.networking.peers.probe import ProbeConnection
from tmrl_core.networking.protocol.connection import Connection, Identity
from tmrl_core.networking.protocol.delivery import StreamSender
from tmrl_core.networking.protocol.messages import (
    Blob,
    Collect,
    Directive,
    Echo,
    Evaluation,
    Hello,
    PolicyUpdate,
    Probe,
    Progress,
    encode_body,
)
from tmrl_core.networking.relay import MemorySpool, Relay, RelaySettings

WALL_CLOCK = 1_800_000_000.0
RECORDING = DATA / "wire.json.xz"
VERSIONS = (1,)
Event = list[str]
"""A link's number with `>` (towards the Server) or `<`, and the bytes in hexadecimal digits; or something that happens
to a link: `open`, `lost`; or `time` and the seconds that pass."""


def recorded() -> dict[str, list[Event]]:
    """All conversations of the recording."""
    found: dict[str, list[Event]] = json.loads(lzma.decompress(RECORDING.read_bytes()))
    return found


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


def make_relay(versions: tuple[int, ...] = VERSIONS) -> Relay:
    """A Server's side, with a token for workers and little room."""

    def authenticate(hello: Hello | Probe, connection: Any) -> tuple[str, str] | None:
        return ("token", "wrong token") if hello.token == "wrong" else None

    settings = RelaySettings(max_workers=2, standing_bytes=1_000)
    spool = MemorySpool(1 << 20)
    return Relay(settings, authenticate, versions=versions, wall_clock=lambda: WALL_CLOCK, spool=spool)


class Talk:
    """One conversation as it goes.

    Args:
        expected: what was recorded; None: it is recorded now.
        server: whether a Server takes part, or the recording in its place.
    """

    def __init__(self, expected: list[Event] | None = None, *, server: bool = True) -> None:
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
                raise AssertionError(f"step {at}: {_shown(event)}; in the recording {_shown(wanted)}")
        self.events.append(list(event))

    def finish(self) -> None:
        """There is no more in the recording."""
        assert self.expected is None or len(self.events) == len(self.expected), _shown(self.expected[len(self.events)])


def _shown(event: Any) -> str:
    return " ".join(str(part)[:300] for part in event)


def play_server(events: list[Event], versions: tuple[int, ...] = VERSIONS) -> None:
    """Have a Server hear what the clients of a recording said; what it says must be what it said then."""
    relay = make_relay(versions)
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
            assert data == event[1], f"step {at}: {_shown([event[0], data])}; in the recording {_shown(event)}"


# --- the conversations ------------------------------------------------------------------------------------------------


TIMES: dict[str, Any] = {"silent_s": 10.0, "heartbeat_s": 3.0}


class Worker:
    """A worker process with one stream."""

    def __init__(self, name: str, number: int, run: str = "run", token: str = "", queue: int | None = None) -> None:
        self.state = WorkerState(run=run, name=name, peer=bytes([number]) * 16, token=token)
        self.state.versions = VERSIONS
        self.sender = StreamSender(
            bytes([number + 100]) * 16, queue_bytes=queue or 1 << 20, drop_oldest=queue is not None
        )
        self.state.add_stream(self.sender, b"signature of " + name.encode())
        self.link = self.connection()

    def connection(self) -> WorkerConnection:
        self.link = WorkerConnection(self.state, **TIMES)
        return self.link

    def make(self, size: int, samples: int) -> None:
        assert self.sender.offer([b"head", bytes([samples]) * (size - 4)], samples)


class Trainer:
    """A trainer process."""

    def __init__(self, number: int, **state: Any) -> None:
        self.state = TrainerState(run="run", name="hpc", peer=bytes([number]) * 16, inbox_bytes=1 << 20, **state)
        self.state.versions = VERSIONS
        self.link = self.connection()

    def connection(self) -> TrainerConnection:
        self.link = TrainerConnection(self.state, **TIMES)
        return self.link

    def take(self, refuse: int | None = None) -> list[tuple[int, int, bytes]]:
        taken = self.state.take()
        for one in taken:
            self.state.acknowledge(one, "it is of another environment" if one.number == refuse else None)
        return [(one.number, one.samples, bytes(one.payload[:5])) for one in taken]

    def publish(self, size: int) -> None:
        version = (self.state.version[0], self.state.version[1] + 1)
        self.state.publish(PolicyUpdate(version, {"": Blob("safetensors", b"w" * size)}, {"noise": 0.5}))

    def direct(self, stream: bytes | None, **wanted: Any) -> None:
        before = self.state.directives.get(stream, Directive())
        self.state.directives[stream] = Directive(revision=before.revision + 1, **wanted)
        self.link.direct(stream)


def samples_and_policies(talk: Talk) -> None:
    """From the first word to the last: samples of one frame and of several, policies, orders, a lockstep round."""
    worker, trainer = Worker("robot7", 1, token="right"), Trainer(3)
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
    talk.wait(3.5)
    talk.wait(3.5)
    trainer.direct(None, finish=True)
    talk.run()
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
    far = Worker("robot9", 9, queue=6_000)
    far.state.incarnation = 12
    talk.open(far.link)
    assert again.state.holding > 12
    far.make(4_000, 8)
    talk.run(only=far.link)
    far.make(5_000, 9)
    talk.run()
    assert [samples for _, samples, _ in again.take()] == [9]
    talk.run()
    superseded = far.link
    talk.open(far.connection())
    assert superseded.closing
    talk.wait(20.0)


def hand_over(talk: Talk) -> None:
    """A worker ends while there is no trainer; the Server keeps its samples for the one that comes."""
    worker, trainer = Worker("robot7", 1), Trainer(3)
    worker.make(70_000, 5)
    worker.make(300, 6)
    talk.open(worker.link)
    worker.state.ending = True
    worker.link.hand_over()
    talk.run()
    assert worker.sender.settled
    worker.link.end_streams()
    worker.link.close()
    talk.run()
    talk.open(trainer.link)
    assert [samples for _, samples, _ in trainer.take()] == [5, 6]
    talk.run()
    trainer.link.close()
    talk.run()


def looks(talk: Talk) -> None:
    """Two workers, one of another run; an observer; and somebody who only asks whether he would be let in."""
    for worker in (Worker("robot7", 1), Worker("robot8", 2, run="other")):
        talk.open(worker.link)
        worker.make(1_000, 3)
    trainer = Trainer(3)
    talk.open(trainer.link)
    observer = ObserverState(run="run", name="pid 1", peer=b"o" * 16)
    observer.versions = VERSIONS
    link = ObserverConnection(observer, **TIMES)
    talk.open(link)
    link.request_status()
    talk.run()
    talk.wait(1.0)
    link.request_status()
    talk.run()
    assert observer.answers == 2
    assert observer.status is not None
    assert {peer.role for peer in observer.status.peers} == {"worker", "trainer", "observer"}
    probe = ProbeConnection(**TIMES, greeting_s=10.0)
    talk.open(probe)
    probe.send(Probe((1,), "worker", "", "run"))
    talk.run()
    probe.send(Echo(1, 2_000))
    talk.run()
    assert len(probe.heard) == 2


def refusals(talk: Talk) -> None:
    """A wrong token, another version of the protocol, a worker too many, a second trainer, and no greeting at all."""
    wrong = Worker("robot7", 1, token="wrong")
    talk.open(wrong.link)
    assert wrong.link.closing
    newer = Worker("robot7", 1)
    newer.state.versions = (98, 99)
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
    one.__name__: one for one in (samples_and_policies, links_that_break, hand_over, looks, refusals)
}


def record() -> Iterator[str]:
    """Write the recording; yields what it is of."""
    found: dict[str, list[Event]] = {}
    for name, play in CONVERSATIONS.items():
        talk = Talk()
        play(talk)
        found[name] = talk.events
        yield f"{name}: {len(talk.events)} events"
    RECORDING.write_bytes(lzma.compress(json.dumps(found).encode(), preset=9))
