"""Simulated processes: a worker and a trainer, each with the real state and the real connections of its role."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tests.networking.end_to_end.ends import signer, verifier
from tests.networking.simulation.memory import Memory, content
from tests.networking.simulation.network import CLIENT, End, Network, Route, Violation
from tests.networking.simulation.seals import TrainerMachine, WorkerMachine
from tmrl_core.errors import NetworkError, RefusedError
from tmrl_core.networking.observer.seal import ViewerSeal
from tmrl_core.networking.observer.viewer import ViewerConnection, ViewerState
from tmrl_core.networking.protocol.connection import Connection, Identity
from tmrl_core.networking.protocol.delivery import CommittedOffset, Received, StreamSender
from tmrl_core.networking.protocol.framing import message_bytes
from tmrl_core.networking.protocol.messages import (
    RETRYABLE,
    SAMPLES_HEAD,
    Blob,
    Directive,
    PolicyUpdate,
    Progress,
    encode_body,
)
from tmrl_core.networking.protocol.pictures import PIECE_BYTES, Kind, Picture
from tmrl_core.networking.protocol.telemetry import History, Order, Scene
from tmrl_core.networking.trainer import TrainerConnection, TrainerState
from tmrl_core.networking.trainer.orders import Orders
from tmrl_core.networking.worker import WorkerConnection, WorkerState

BACKOFF_MIN_S, BACKOFF_MAX_S = 0.2, 4.0


class Client:
    """A process that keeps one connection to the Server alive, as `links/base.py` does."""

    def __init__(self, network: Network, route: Route) -> None:
        self.network = network
        self.route = route
        self.identity = CLIENT
        self.alive = True
        self.killed = False
        self.end: End | None = None
        self.connection: Connection | None = None
        self.state: WorkerState | TrainerState | ViewerState
        self._delay = BACKOFF_MIN_S
        self._begun = 0.0
        self._welcomes = 0

    def make_connection(self) -> Connection:
        raise NotImplementedError

    @property
    def linked(self) -> bool:
        """Whether the Server has welcomed it, as far as it knows."""
        return self.end is not None and self.end.up and self.end.connection.state == "open"

    def connect(self) -> None:
        """Dial, and again whenever the connection has ended."""
        if not self.alive:
            return
        self._begun = self.network.now
        self._welcomes = self.state.connections
        self.connection = self.make_connection()
        self.network.dial(self, self.connection)

    def connected(self, end: End) -> None:
        """Its connection stands."""
        self.end = end
        if not self.alive:
            end.up = False
            end.peer.reset()

    def over(self, end: End) -> None:
        """Its connection has ended: try again after a while, longer each time."""
        if not self.alive:
            return
        reason = end.connection.reason
        if isinstance(reason, RefusedError) and reason.code not in (*RETRYABLE, "superseded"):
            raise Violation(f"an honest peer was refused: {reason}")
        if reason is not None and not isinstance(reason, NetworkError):
            raise Violation(f"an honest Server was taken for another: {reason!r}")
        network = self.network
        if self.state.connections > self._welcomes and network.now - self._begun >= network.settings.silent_s:
            self._delay = BACKOFF_MIN_S
        wait = self._delay
        self._delay = min(2 * wait, BACKOFF_MAX_S)
        network.at(wait * (0.5 + 0.5 * network.random.random()), self.connect)

    def kill(self) -> None:
        """SIGKILL."""
        self.alive = False
        self.killed = True
        if self.end is not None:
            self.end.kill()

    def close(self) -> None:
        """The link is closed in order."""
        self.alive = False
        if self.end is not None and self.end.up:
            self.end.connection.close()
            self.end.pump()


PICTURES: dict[Kind, int] = {"camera": 1_000, "video": 2 * PIECE_BYTES + 1}
"""Sizes of pictures by their kinds."""


def picture(kind: Kind, number: int) -> bytes:
    """Return the content of a picture."""
    return bytes([number % 251]) * PICTURES[kind]


class Worker(Client):
    """A worker process with one stream.

    Args:
        uid: who it is among all of a run.
        peer: its peer id; None: a random one.
        certified: True: it has a certificate of its own; False: it shares the workers' token.
        machine: its credentials for end-to-end authentication; None: there is none.
    """

    state: WorkerState

    def __init__(
        self,
        network: Network,
        route: Route,
        uid: int,
        *,
        name: str,
        queue_bytes: int,
        drop_oldest: bool,
        peer: bytes | None = None,
        sender: Callable[..., StreamSender] = StreamSender,
        run: str = "run",
        certified: bool = False,
        machine: WorkerMachine | None = None,
    ) -> None:
        super().__init__(network, route)
        if certified:
            self.identity = Identity("client", "worker", name)
        self.uid = uid
        self.stream = uid.to_bytes(2, "big") + network.random.randbytes(14)
        seal = machine.seal(run) if machine is not None else None
        self.accepted = seal.accepted if seal is not None else (0, 0)
        """The newest policy version that an earlier process of its machine had accepted."""
        self.state = WorkerState(run=run, name=name, peer=peer or network.random.randbytes(16), seal=seal)
        if seal is not None:
            self.stream = self.state.new_stream()
        self.sender = sender(self.stream, queue_bytes=queue_bytes, drop_oldest=drop_oldest, sealer=seal)
        self.state.add_stream(self.sender, b"")
        self.samples: list[int] = []
        """Samples of each message that was taken over, by its number."""
        self.bad: set[int] = set()
        """Numbers of messages that the memory refuses."""
        self.largest = 0
        self.version = (0, 0)
        self.published = 0
        self.policy = b""
        self.servers = 0
        """Which Server process was the latest when it began to end."""

    def make_connection(self) -> Connection:
        settings = self.network.settings
        return WorkerConnection(
            self.state,
            silent_s=settings.silent_s,
            heartbeat_s=settings.heartbeat_s,
            greeting_s=settings.greeting_s,
        )

    def make(self, samples: int, size: int, bad: bool) -> bool:
        """Hand one message over; False: there was no room."""
        number = len(self.samples)
        body = content(number, samples, bad, size)
        if not self.sender.offer(body, samples):
            return False
        self.samples.append(samples)
        if bad:
            self.bad.add(number)
        self.largest = max(self.largest, size, len(body[0]))
        if self.end is not None:
            self.end.wake()
        return True

    def show(self) -> None:
        """Send viewers a camera picture and a video of three pieces, which the number determines."""
        if self.linked and self.end is not None:
            assert isinstance(self.end.connection, WorkerConnection)
            number = int(1e6 * self.network.now)
            for kind in PICTURES:
                self.end.connection.show(Picture(self.state.name, kind, number, picture(kind, number)))

    def begin_to_end(self) -> None:
        """What `WorkerLink.close` does first: the Server may take over what no trainer takes."""
        self.state.ending = True
        self.servers = self.network.servers
        if self.end is not None and isinstance(self.end.connection, WorkerConnection):
            self.end.connection.hand_over()

    def drained(self) -> bool:
        """Whether nothing is left to be acknowledged or handed over."""
        return self.sender.settled

    def end_in_order(self) -> None:
        """What `WorkerLink.close` does in the end, whether everything has drained or its time is over."""
        if self.drained() and self.linked and self.end is not None:
            assert isinstance(self.end.connection, WorkerConnection)
            self.end.connection.end_streams()
            self.end.pump()
        self.close()


class Viewer(Client):
    """A viewer's process, which watches the run and orders a checkpoint now and then.

    Args:
        authenticated: it believes proven scenes only, and signs its orders.
    """

    state: ViewerState

    def __init__(self, network: Network, route: Route, *, authenticated: bool) -> None:
        super().__init__(network, route)
        seal = ViewerSeal(signer("operator", "anna"), verifier()) if authenticated else None
        self.state = ViewerState(run="run", name="anna", peer=network.random.randbytes(16), seal=seal)
        self.seen_s = 0.0
        """Time of the latest scene that it has seen."""
        self.numbers: dict[tuple[str, Kind], int] = {}
        """Numbers of the latest pictures that it has seen, by worker and kind."""

    def make_connection(self) -> Connection:
        settings = self.network.settings
        return ViewerConnection(
            self.state,
            silent_s=settings.silent_s,
            heartbeat_s=settings.heartbeat_s,
            greeting_s=settings.greeting_s,
        )

    def order(self) -> None:
        """Order a checkpoint, if there is somebody to order."""
        if self.linked and self.end is not None and self.state.scene is not None:
            assert isinstance(self.end.connection, ViewerConnection)
            self.end.connection.command(*self.state.envelope(Order(kind="checkpoint")))


class _Shown:
    """Telemetry of a simulated trainer: when it was made."""

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer

    def scene(self) -> bytes:
        trainer = self._trainer
        return encode_body(Scene(run=trainer.state.run, time_s=trainer.network.now, takes_orders=True))

    def history(self) -> bytes:
        return encode_body(History(run=self._trainer.state.run))


class Trainer(Client):
    """A trainer process.

    Args:
        memory: what it appends to; it outlives the process as far as it is durable.
        machine: its credentials for end-to-end authentication; None: there is none.
        others: machines whose keys it has too.
        packs: policies are sent packed.
        shows: it has something to show viewers.
    """

    state: TrainerState

    def __init__(
        self,
        network: Network,
        route: Route,
        memory: Memory,
        *,
        inbox_bytes: int,
        run: str = "run",
        state: Callable[..., TrainerState] = TrainerState,
        connection: Callable[..., TrainerConnection] = TrainerConnection,
        offsets: Mapping[bytes, CommittedOffset] | None = None,
        machine: TrainerMachine | None = None,
        others: Sequence[TrainerMachine] = (),
        packs: bool = False,
        shows: bool = False,
    ) -> None:
        super().__init__(network, route)
        self.memory = memory
        self.known = max(memory.incarnation, machine.highest if machine is not None else 0)
        """The highest incarnation that it knew of when it began."""
        authentication: dict[str, Any] = {}
        if machine is not None:
            authentication = {"seal": machine.seal(run, others), "hold": machine.hold}
        self.state = state(
            run=run,
            name="trainer",
            peer=network.random.randbytes(16),
            inbox_bytes=inbox_bytes,
            incarnation=self.known,
            counter=memory.counter,
            offsets=memory.offsets if offsets is None else offsets,
            packs=packs,
            **authentication,
        )
        self.state.telemetry = _Shown(self) if shows else None
        self.state.orders = Orders(run, lambda: network.now)
        self.state.orders.obeys = True
        self.obeyed: list[str] = []
        """Ids of orders that were carried out."""
        self.holding = 0
        self.idle = False
        """Whether it takes nothing now."""
        self.policy = b""
        self.revision = 0
        self._make_connection = connection
        self._taken: list[Received] = []
        self._next = {stream: offset.next_number for stream, offset in self.state.offsets.items()}
        self.beside_thief = False
        self.gaps = 0
        """Messages of honest workers that were missing between those that were taken."""

    def make_connection(self) -> Connection:
        settings = self.network.settings
        return self._make_connection(
            self.state,
            silent_s=settings.silent_s,
            heartbeat_s=settings.heartbeat_s,
            greeting_s=settings.greeting_s,
        )

    @property
    def inbox_limit(self) -> int:
        """Most bytes that may wait for it."""
        return max(self.state.inbox_bytes, message_bytes(SAMPLES_HEAD, self.network.settings.max_message_bytes))

    def work(self) -> None:
        """What a training loop does now and then: commit what was taken before, then take what has arrived."""
        if not self.alive or self.idle:
            return
        for received in self._taken:
            refused = self.memory.append(received)
            self.state.acknowledge(received, refused)
            self.memory.rows(received.stream).offset = self.state.receivers[received.stream].offset
        while (order := self.state.orders.take()) is not None:
            self.obeyed.append(order.id)
            self.state.orders.answer(order, "done", done=True)
        self._taken = self.state.take()
        for received in self._taken:
            missing = received.number - self._next.get(received.stream, 0)
            if missing < 0:
                raise Violation(f"message {received.number} arrived a second time")
            if received.stream not in self.network.hostile_streams:
                self.gaps += missing
            self._next[received.stream] = received.number + 1
        counted = self.state.gap_messages
        self.beside_thief |= not self.network.hostile_streams.isdisjoint(self.state.receivers)
        # A gap before a message that has arrived, and is one of too many to be taken at once, is counted already.
        if counted < self.gaps or (counted > self.gaps and not self.beside_thief and not self.state.inbox):
            raise Violation(f"{self.gaps} messages are missing, {counted} were counted as gaps")
        if self.end is not None:
            self.end.wake()

    @property
    def arrived(self) -> list[Received]:
        """Messages that have arrived and are not committed."""
        return [*self._taken, *self.state.inbox]

    def publish(self, body: bytes) -> None:
        """Make a policy the latest."""
        self.state.publish(PolicyUpdate((0, 0), {"policy": Blob("sim", body)}))
        assert self.state.policy is not None
        self.policy = self.state.policy[1]
        if self.end is not None:
            self.end.wake()

    def report(self, progress: Progress) -> None:
        """Tell the workers how far training is."""
        if progress != self.state.progress:
            self.state.progress = progress
            if self.end is not None and isinstance(self.end.connection, TrainerConnection):
                self.end.connection.report()

    def direct(self) -> None:
        """Give all workers a new directive."""
        self.revision += 1
        self.state.directives[None] = Directive(revision=self.revision)
        if self.end is not None and isinstance(self.end.connection, TrainerConnection):
            self.end.connection.direct(None)

    def checkpoint(self) -> None:
        """Write memory and offsets to disk, as of now."""
        self.memory.checkpoint(self.state.incarnation, self.state.counter)

    def kill(self) -> None:
        """SIGKILL: the memory keeps what it can."""
        if self.alive:
            super().kill()
            self.memory.crash()


def held(sender: StreamSender) -> dict[int, Any]:
    """The messages that a sender holds, by number."""
    messages = [*sender._sent, *([sender._current] if sender._current is not None else []), *sender._queue]
    return {message.number: message for message in messages}


def stored(sender: StreamSender) -> int:
    """Every message below it is kept by the Server, as far as the worker knows."""
    return sender._stored


__all__ = ["Client", "Trainer", "Viewer", "Worker", "held", "picture", "stored"]
