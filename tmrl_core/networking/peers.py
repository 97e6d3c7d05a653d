"""What a worker and a trainer say to the Server: the clients' ends of a link. Sans-I/O.

Each has a state that outlives its links (`WorkerState`, `TrainerState`) and a connection that lives as long as one link
(`WorkerConnection`, `TrainerConnection`). Nothing is lost with a connection: the next one goes on from the state.
"""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping
from typing import ClassVar

import msgspec
import numpy as np
import numpy.typing as npt

from tmrl_core.errors import RemoteProtocolError
from tmrl_core.networking.bodies import BodyPool
from tmrl_core.networking.connection import Connection
from tmrl_core.networking.delivery import Mark, Received, StreamReceiver, StreamSender
from tmrl_core.networking.framing import (
    FIRST,
    LAST,
    POLICY_HEAD,
    SAMPLES_HEAD,
    Frame,
    Kind,
    control_frame,
    cut,
    message_bytes,
    spare,
)
from tmrl_core.networking.messages import (
    ALL_CHANNELS,
    MAX_SIGNATURE_BYTES,
    PROTOCOL_VERSION,
    Ack,
    CloseStream,
    Control,
    Credit,
    Direct,
    Directive,
    Halt,
    Have,
    Hello,
    Incarnation,
    Joined,
    Left,
    Notice,
    OpenStream,
    PolicyUpdate,
    Progress,
    Report,
    Resume,
    Role,
    Version,
    Waits,
    Welcome,
    decode_body,
    encode_body,
)

_FORGOTTEN_STREAMS = 4_096
"""Streams that are gone but whose marks are kept, in case they come back."""


class PolicyReceiver:
    """Puts the WEIGHTS frames of one policy update together."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._body: npt.NDArray[np.uint8] | None = None
        self._version = (0, 0)
        self._filled = 0

    def frame(self, frame: Frame) -> tuple[tuple[int, int], bytes] | None:
        """Take a frame; the update (version, body) when it is whole.

        Raises:
            RemoteProtocolError: too large, or its frames contradict its head.
        """
        payload = frame.payload
        if frame.flags & FIRST:
            if len(payload) < POLICY_HEAD.size:
                raise RemoteProtocolError("a policy update began with a frame too short for its head")
            incarnation, counter, length = POLICY_HEAD.unpack_from(payload)
            if length > self.max_bytes:
                raise RemoteProtocolError(f"a policy of {length} bytes; at most {self.max_bytes} are allowed")
            self._version = (incarnation, counter)
            self._body = np.empty(length, np.uint8)
            self._filled = 0
            payload = payload[POLICY_HEAD.size :]
        if self._body is None:
            raise RemoteProtocolError("a policy update went on that had not begun")
        end = self._filled + len(payload)
        if end > len(self._body) or (frame.flags & LAST and end != len(self._body)):
            raise RemoteProtocolError(f"a policy update said that it had {len(self._body)} bytes and has others")
        self._body[self._filled : end] = payload
        self._filled = end
        if not frame.flags & LAST:
            return None
        body, self._body = self._body, None
        return self._version, body.tobytes()


class ClientState:
    """What both kinds of client know of themselves.

    Args:
        run: name of the run.
        name: label for people.
        peer: 16 random bytes of this process.
        token: the role's token, if a token speaks for this peer.
    """

    role: ClassVar[Role]

    def __init__(self, *, run: str, name: str, peer: bytes, token: str = "") -> None:
        self.run = run
        self.name = name
        self.peer = peer
        self.token = token
        self.incarnation = 0
        """The highest incarnation of a trainer that this process has heard of."""
        self.connections = 0
        """How often a Server has welcomed this process."""
        self.on_change: Callable[[], None] = lambda: None
        """Called after something that the application may wait for has changed."""


class WorkerState(ClientState):
    """A worker's side of delivery and of the last-value channels."""

    role = "worker"

    def __init__(self, *, run: str, name: str, peer: bytes, token: str = "") -> None:
        super().__init__(run=run, name=name, peer=peer, token=token)
        self.senders: list[tuple[StreamSender, bytes]] = []
        """Streams and their encoded signatures; the channel is the index."""
        self.policy_version = (0, 0)
        self.policy: tuple[Version, bytes] | None = None
        """The newest policy and its version, not taken by the application yet."""
        self.versions_published = 0
        """How many versions were published since the first connection, those that were skipped included."""
        self.directives: dict[str, Directive] = {}
        self.progress = Progress()
        self.waits = ""
        """What this worker waits for, with which numbers; empty while it collects."""
        self.halt_reason = ""

    def add_stream(self, sender: StreamSender, signature: bytes) -> None:
        """One more stream; known to the Server from the next connection on.

        Raises:
            ValueError: the signature is too long.
        """
        if len(signature) > MAX_SIGNATURE_BYTES:
            raise ValueError(f"a stream's signature of {len(signature)} bytes; at most {MAX_SIGNATURE_BYTES} fit")
        self.senders.append((sender, signature))

    @property
    def directive(self) -> Directive:
        """What the trainer wants of this worker: its own directive, and the one for all."""
        everyone = self.directives.get("all", Directive())
        own = self.directives.get("own")
        if own is None:
            return everyone
        return Directive(
            revision=own.revision,
            evaluation=own.evaluation or everyone.evaluation,
            pause=own.pause or everyone.pause,
            finish=own.finish or everyone.finish,
            collect=own.collect or everyone.collect,
        )

    def policy_arrived(self, version: tuple[int, int], body: bytes) -> None:
        """Keep a policy if it is newer than what was there; count what was published in between."""
        if version <= self.policy_version:
            return
        if version[0] == self.policy_version[0]:
            self.versions_published += version[1] - self.policy_version[1]
        else:
            self.versions_published += 1
        self.policy_version = version
        self.policy = (version, body)
        self.incarnation = max(self.incarnation, version[0])


class WorkerConnection(Connection):
    """A worker's end of one link."""

    LEGAL: ClassVar[dict[str, frozenset[type]]] = {
        "greeting": frozenset({Welcome}),
        "open": frozenset({Resume, Halt, Ack, Credit, Direct, Report}),
    }

    def __init__(
        self,
        state: WorkerState,
        *,
        silent_s: float,
        heartbeat_s: float,
        max_policy_bytes: int = 1 << 30,
        greeting_s: float = 10.0,
    ) -> None:
        super().__init__(silent_s=silent_s, heartbeat_s=heartbeat_s, greeting_s=greeting_s)
        self.worker = state
        self.window_bytes = 0
        self._policy = PolicyReceiver(max_policy_bytes)
        self._turn = 0

    def _on_connected(self) -> None:
        state = self.worker
        self.send(
            Hello(
                versions=(PROTOCOL_VERSION,),
                role="worker",
                token=state.token,
                run=state.run,
                name=state.name,
                peer=state.peer,
                incarnation=state.incarnation,
                have=state.policy_version,
            )
        )

    def _on_control(self, message: Control) -> None:
        state = self.worker
        match message:
            case Welcome():
                self.state = "open"
                self.window_bytes = message.window_bytes
                state.connections += 1
                state.incarnation = max(state.incarnation, message.incarnation)
                for channel, (sender, signature) in enumerate(state.senders):
                    self.send(OpenStream(channel, sender.stream, state.name, signature))
                if state.waits:
                    self.say_waits()
                state.on_change()
            case Resume():
                state.halt_reason = ""
                self._sender(message.channel).resume(
                    channel=message.channel,
                    epoch=message.epoch,
                    next_number=message.next,
                    credit=message.credit,
                )
                self.wake()
            case Halt():
                state.halt_reason = message.reason
                self._sender(message.channel).halt()
                state.on_change()
            case Ack():
                self._sender(message.channel).ack(message)
                state.on_change()
            case Credit():
                self._sender(message.channel).credit(epoch=message.epoch, limit=message.limit)
                self.wake()
            case Direct():
                directive = decode_body(message.body, Directive)
                state.directives["all" if message.channel == ALL_CHANNELS else "own"] = directive
                state.on_change()
            case Report():
                state.progress = decode_body(message.body, Progress)
                state.on_change()
            case _:
                super()._on_control(message)

    def _sender(self, channel: int) -> StreamSender:
        if channel >= len(self.worker.senders):
            raise RemoteProtocolError(f"there is no channel {channel}")
        return self.worker.senders[channel][0]

    def _on_frame(self, frame: Frame) -> None:
        if frame.kind != Kind.WEIGHTS:
            raise RemoteProtocolError("a worker takes no samples")
        update = self._policy.frame(frame)
        if update is not None:
            version, body = update
            self.put("have", Have(*version))
            self.worker.policy_arrived(version, body)
            self.worker.on_change()

    def _before_send(self) -> None:
        if self.state != "open":
            return
        for channel, (sender, _) in enumerate(self.worker.senders):
            want = sender.want(self.window_bytes)
            if want is not None:
                self._slots[("want", channel)] = want

    def _next_frame(self) -> bytearray | None:
        senders = self.worker.senders
        for _ in range(len(senders)):
            frame = senders[self._turn][0].next_frame()
            if frame is not None:
                return frame
            self._turn = (self._turn + 1) % len(senders)
        return None

    def say_waits(self) -> None:
        """Tell the trainer what this worker waits for, or that it no longer does."""
        if self.state == "open":
            for channel in range(len(self.worker.senders)):
                self.put(("waits", channel), Waits(channel, self.worker.waits))

    def end_streams(self) -> None:
        """Tell the Server that the streams have ended in order."""
        for channel in range(len(self.worker.senders)):
            self.send(CloseStream(channel))

    def _on_closed(self) -> None:
        for sender, _ in self.worker.senders:
            sender.halt()
        self.worker.on_change()


class Member(msgspec.Struct, frozen=True):
    """A worker's stream as the trainer sees it."""

    stream: bytes
    name: str
    signature: bytes
    since_s: float


class TrainerState(ClientState):
    """A trainer's side of delivery and of the last-value channels.

    Args:
        inbox_bytes: most bytes of samples that wait for the training thread.
        incarnation: the highest one in the checkpoint that this trainer goes on from.
        marks: how far each stream was committed in that checkpoint.
    """

    role = "trainer"

    def __init__(
        self,
        *,
        run: str,
        name: str,
        peer: bytes,
        inbox_bytes: int,
        token: str = "",
        incarnation: int = 0,
        counter: int = 0,
        marks: Mapping[bytes, Mark] | None = None,
    ) -> None:
        super().__init__(run=run, name=name, peer=peer, token=token)
        self.incarnation = incarnation
        self.holding = 0
        """The incarnation that this process was given; 0: none yet."""
        self.counter = counter
        self.inbox_bytes = inbox_bytes
        self.lock = threading.Lock()
        """Guards inbox, marks and acknowledgements: the training thread takes and commits while links deliver."""
        self.inbox: deque[Received] = deque()
        self.inbox_held = 0
        self._bodies = BodyPool()
        self.receivers: OrderedDict[bytes, StreamReceiver] = OrderedDict()
        for stream, mark in (marks or {}).items():
            self.receivers[stream] = StreamReceiver(stream, Mark(*mark), self._bodies)
        self.members: dict[bytes, Member] = {}
        self.names: dict[bytes, str] = {}
        self.waits: dict[bytes, str] = {}
        """What each member waits for; empty text: it collects."""
        self.to_acknowledge: set[bytes] = set()
        self.samples_received = 0
        self.messages_received = 0
        self.gap_messages = 0
        self.gap_samples = 0
        self.duplicates = 0
        self.samples_refused = 0
        self.policy: tuple[int, bytes] | None = None
        """Counter and encoded body of the latest policy."""
        self.published = 0
        self.progress: Progress | None = None
        self.directives: dict[bytes | None, Directive] = {}
        self.notice = Notice(0, 0, 0)

    def publish(self, update: PolicyUpdate) -> tuple[int, int]:
        """Make `update` the latest policy. Returns the version that it has now (a new incarnation may raise it)."""
        body = encode_body(update)
        self.counter += 1
        self.published += 1
        self.policy = (self.counter, body)  # in one step: a link's thread may be looking
        return self.version

    @property
    def version(self) -> tuple[int, int]:
        """The version of the latest policy."""
        return (self.holding or self.incarnation, self.counter)

    def receiver(self, stream: bytes) -> StreamReceiver:
        """The receiver of `stream`, made when it is new. The lock is held."""
        receiver = self.receivers.get(stream)
        if receiver is None:
            receiver = self.receivers[stream] = StreamReceiver(stream, bodies=self._bodies)
            if len(self.receivers) > _FORGOTTEN_STREAMS:
                for other in list(self.receivers):
                    if other != stream and other not in self.members and not self._waits(other):
                        del self.receivers[other]
                        self.names.pop(other, None)
                        break
        else:
            self.receivers.move_to_end(stream)
        return receiver

    def _waits(self, stream: bytes) -> bool:
        receiver = self.receivers[stream]
        return receiver.mark.next_number != receiver.next_number

    def take(self) -> list[Received]:
        """Everything that has arrived and was not taken yet; its bytes become credit again."""
        with self.lock:
            taken = list(self.inbox)
            self.inbox.clear()
            self.inbox_held = 0
        return taken

    def commit(self, received: Received, refused: str | None = None) -> None:
        """Acknowledge one message that was taken.

        Raises:
            LocalProtocolError: it has not arrived.
        """
        with self.lock:
            self.receivers[received.stream].commit(received.number, refused)
            if refused is not None:
                self.samples_refused += received.samples
            self.to_acknowledge.add(received.stream)

    @property
    def marks(self) -> dict[bytes, Mark]:
        """How far each stream is committed: goes into the checkpoint, with the memory that it speaks of."""
        with self.lock:
            return {stream: receiver.mark for stream, receiver in self.receivers.items()}


class TrainerConnection(Connection):
    """A trainer's end of one link."""

    LEGAL: ClassVar[dict[str, frozenset[type]]] = {
        "greeting": frozenset({Welcome}),
        "open": frozenset({Joined, Left, Waits, Incarnation, Have, Notice}),
    }

    def __init__(
        self,
        state: TrainerState,
        *,
        silent_s: float,
        heartbeat_s: float,
        greeting_s: float = 10.0,
    ) -> None:
        super().__init__(silent_s=silent_s, heartbeat_s=heartbeat_s, greeting_s=greeting_s)
        self.trainer = state
        self._channels: dict[int, StreamReceiver] = {}
        self._stream_channels: dict[bytes, int] = {}
        self._data_bytes = 0
        self._partial_bytes = 0
        self._granted = 0
        self._inbox_bytes = state.inbox_bytes
        self._max_message_bytes = 0
        self._sending_version: tuple[int, int] | None = None
        self._sent_version = (0, 0)
        self._in_flight = False
        self._cutter: Iterator[bytearray] | None = None

    def _on_connected(self) -> None:
        state = self.trainer
        self.send(
            Hello(
                versions=(PROTOCOL_VERSION,),
                role="trainer",
                token=state.token,
                run=state.run,
                name=state.name,
                peer=state.peer,
                incarnation=state.incarnation,
                holding=state.holding,
            )
        )

    def _on_control(self, message: Control) -> None:
        state = self.trainer
        match message:
            case Welcome():
                self.state = "open"
                state.connections += 1
                self._given(message.incarnation)
                self._max_message_bytes = message.max_message_bytes
                # One message always fits: the relay sends only whole ones that do.
                self._inbox_bytes = max(state.inbox_bytes, message_bytes(SAMPLES_HEAD, message.max_message_bytes))
                if state.progress is not None:
                    self.put("report", Report(encode_body(state.progress)))
                if None in state.directives:
                    self.direct(None)
                state.on_change()
            case Joined():
                self._joined(message)
                state.on_change()
            case Left():
                self._left(message)
                state.on_change()
            case Waits():
                receiver = self._channels.get(message.channel)
                if receiver is not None:
                    state.waits[receiver.stream] = message.text
                    state.on_change()
            case Incarnation():
                self._given(message.incarnation)
                state.on_change()
            case Have():
                self._in_flight = False
                self.wake()
                state.on_change()
            case Notice():
                state.notice = message
            case _:
                super()._on_control(message)

    def _given(self, incarnation: int) -> None:
        self.trainer.holding = incarnation
        self.trainer.incarnation = max(self.trainer.incarnation, incarnation)

    def _joined(self, message: Joined) -> None:
        state = self.trainer
        with state.lock:
            receiver = state.receiver(message.stream)
            self._channels[message.channel] = receiver
            self._stream_channels[message.stream] = message.channel
            state.members[message.stream] = Member(message.stream, message.name, message.signature, self._now)
            state.names[message.stream] = message.name
            self.send(Resume(message.channel, receiver.attach()))
            state.to_acknowledge.add(message.stream)
        if message.stream in state.directives:
            self.direct(message.stream)

    def _left(self, message: Left) -> None:
        receiver = self._channels.pop(message.channel, None)
        if receiver is None:
            return
        if self._stream_channels.get(receiver.stream) == message.channel:
            del self._stream_channels[receiver.stream]
            with self.trainer.lock:
                self.trainer.members.pop(receiver.stream, None)
                self.trainer.waits.pop(receiver.stream, None)
            if message.ended:
                self.trainer.directives.pop(receiver.stream, None)

    def _on_frame(self, frame: Frame) -> None:
        if frame.kind != Kind.DATA:
            raise RemoteProtocolError("a trainer takes no policies")
        state = self.trainer
        # The relay sends one message at a time: what an abandoned one had used up is free again.
        self._data_bytes += len(frame.buffer)
        self._partial_bytes = len(frame.buffer) + (0 if frame.flags & FIRST else self._partial_bytes)
        if frame.flags & LAST:
            self._partial_bytes = 0
        receiver = self._channels.get(frame.channel)
        if receiver is None:
            return  # its stream has left meanwhile, or come back under another channel
        with state.lock:
            gap_messages, gap_samples, duplicates = receiver.gap_messages, receiver.gap_samples, receiver.duplicates
            received, ask = receiver.frame(frame, self._max_message_bytes)
            if received is not None:
                state.inbox.append(received)
                state.inbox_held += received.size
                state.samples_received += received.samples
                state.messages_received += 1
                state.gap_messages += receiver.gap_messages - gap_messages
                state.gap_samples += receiver.gap_samples - gap_samples
            elif receiver.duplicates != duplicates:
                state.duplicates += 1
                state.to_acknowledge.add(receiver.stream)
        spare(frame.buffer)  # its payload has been copied
        if received is not None:
            state.on_change()
        if ask:
            self.send(Resume(frame.channel, receiver.next_number))

    def direct(self, stream: bytes | None) -> None:
        """Send the directive for `stream` (None: for all), if it is here."""
        channel = ALL_CHANNELS if stream is None else self._stream_channels.get(stream)
        directive = self.trainer.directives.get(stream)
        if channel is not None and directive is not None and self.state == "open":
            self.put(("direct", channel), Direct(channel, directive.revision, encode_body(directive)))

    def report(self) -> None:
        """Send the trainer's progress."""
        if self.state == "open" and self.trainer.progress is not None:
            self.put("report", Report(encode_body(self.trainer.progress)))

    def _before_send(self) -> None:
        if self.state != "open":
            return
        state = self.trainer
        if state.to_acknowledge:
            with state.lock:
                while state.to_acknowledge:
                    stream = state.to_acknowledge.pop()
                    channel = self._stream_channels.get(stream)
                    while channel is not None and (ack := state.receivers[stream].ack(channel)) is not None:
                        self._control.append(control_frame(ack))
        limit = self._data_bytes - self._partial_bytes - state.inbox_held + self._inbox_bytes
        if limit - self._granted >= self._inbox_bytes // 8:
            self._granted = limit
            self._slots["credit"] = Credit(0, 0, limit)

    def _next_frame(self) -> bytearray | None:
        state = self.trainer
        if self._cutter is None:
            if state.policy is None or self._in_flight:
                return None
            counter, body = state.policy
            version = (state.holding, counter)
            if version == self._sent_version:
                return None
            self._sent_version = version
            self._in_flight = True
            self._cutter = cut(Kind.WEIGHTS, POLICY_HEAD.pack(*version, len(body)), (body,), epoch=0, channel=0)
        frame = next(self._cutter)
        if frame[5] & LAST:
            self._cutter = None
        return frame

    @property
    def all_said(self) -> bool:
        """Whether everything that the trainer had to say has left, and the latest policy has arrived."""
        state = self.trainer
        version = (state.holding, state.policy[0]) if state.policy is not None else self._sent_version
        return not (
            self._control or self._slots or state.to_acknowledge or self._in_flight or version != self._sent_version
        )

    def _on_closed(self) -> None:
        with self.trainer.lock:
            self.trainer.members.clear()
            self.trainer.waits.clear()
        self.trainer.on_change()
