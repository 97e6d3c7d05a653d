"""The Server's mind: who may say what, who gets what, and how much of it is held. Sans-I/O.

Theory of operation
-------------------
The relay holds whole messages of samples, as the very frames in which they came, in one queue per stream; it rewrites
each frame's channel and epoch in place and never looks at a payload. Streams take turns by bytes (start-time fair
queueing, Goyal et al. 1996), a message at a time, as the trainer's credit allows: those that send all the time get
equal shares, and who sends little need not wait for a round of theirs.

All memory for samples comes out of one pool of `budget_bytes`. A stream reserves from it what it may send and has not
forwarded: a small standing credit, and what it asked for with `Want`. Wants are granted whole, in the streams'
turns; since a worker sends only messages that fit its credit whole, every reserved byte belongs to a message that
will be complete, and the pool cannot be filled with fragments that wait for each other.

Weights are kept as the frames to send, once for all workers. Everything else that the trainer says to workers is a last
value, so a slow worker costs no more than one value of each kind.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from heapq import heappop, heappush, heapreplace
from itertools import count
from operator import attrgetter
from typing import Any

from tmrl_core.errors import RemoteProtocolError
from tmrl_core.networking.framing import (
    FIRST,
    HEADER_BYTES,
    LAST,
    MAX_FRAME_BYTES,
    SAMPLES_HEAD,
    Frame,
    message_bytes,
)
from tmrl_core.networking.messages import (
    ALL_CHANNELS,
    SUPPORTED_VERSIONS,
    Ack,
    Credit,
    Direct,
    Halt,
    Hello,
    Incarnation,
    Joined,
    Left,
    Notice,
    OpenStream,
    Report,
    Resume,
    Waits,
    Want,
    Welcome,
    negotiate,
)
from tmrl_core.networking.relay.connection import RelayConnection
from tmrl_core.networking.relay.handover import HandOvers
from tmrl_core.networking.relay.owners import Owners
from tmrl_core.networking.relay.probes import Probes
from tmrl_core.networking.relay.settings import RelaySettings
from tmrl_core.networking.relay.spool import Spool
from tmrl_core.networking.relay.status import MAX_OBSERVERS, Snapshots
from tmrl_core.networking.relay.streams import Policy, RelayStream

_HEAD_START_BYTES = MAX_FRAME_BYTES
"""What a stream without anything queued keeps of the turns that it did not use."""
_MAX_STREAMS_PER_LINK = 1_024
_MAX_UNREAD_BYTES = 16 << 20
"""Of what a worker's streams make the relay say; a worker that opens more of them meanwhile loses its link."""
_MAX_NUMBER = 1 << 62
"""No stream comes to so many messages or samples; past it they would not fit where trainers and checkpoints count."""
_MAX_RUNS = 64
"""Runs whose lasting directive is kept."""
_MAX_LEAP = 1 << 32
"""By how much a peer's incarnation may exceed the relay's: one peer cannot use all of them up."""

Authenticate = Callable[["Hello", "RelayConnection"], "tuple[str, str] | tuple[str, str, float] | None"]
"""Says whether a peer is who it says it is: None, or (refusal code, reason, and for how many seconds to hold it back).
"""


class Relay:
    """Connects many workers and one trainer. Not thread-safe: one thread drives all of its connections.

    Args:
        settings: bounds.
        authenticate: decides about a peer's `Hello`; the default lets everybody in (for the in-process transport).
        on_refused: called with (address, reason) for each peer that is refused or breaks the protocol.
        versions: versions of the protocol that it speaks.
        wall_clock: seconds since 1970, for those who compare their clock with the Server's.
        spool: keeps samples of workers that end while there is no trainer; None: nothing is kept.
        say: called with what is worth a line in the Server's log.
    """

    def __init__(
        self,
        settings: RelaySettings | None = None,
        authenticate: Authenticate = lambda hello, connection: None,
        on_refused: Callable[[str, str], None] = lambda address, reason: None,
        versions: tuple[int, ...] = SUPPORTED_VERSIONS,
        wall_clock: Callable[[], float] = time.time,
        spool: Spool | None = None,
        say: Callable[[str], None] = lambda line: None,
    ) -> None:
        self.settings = settings or RelaySettings()
        self.authenticate = authenticate
        self.on_refused = on_refused
        self.versions = versions
        self.wall_clock = wall_clock
        self.probes = Probes(self)
        self.incarnation = 0
        self.policy: Policy | None = None
        self.policy_run = ""
        self.workers: dict[bytes, RelayConnection] = {}
        self.trainer: RelayConnection | None = None
        self.observers: set[RelayConnection] = set()
        self.snapshots = Snapshots(self)
        self.process: Callable[[], Mapping[str, Any]] = dict
        """What is known of the process, for observers: any of `uptime_s`, `pid`, `memory_bytes`, ..."""
        self.streams: dict[bytes, RelayStream] = {}
        self._stream_owners = Owners()
        self._peer_owners = Owners()
        self.hand_overs = HandOvers(self, spool, say)
        self.reserved_bytes = 0
        self.queued_bytes = 0
        self.discarded_messages = 0
        self.relayed_messages = 0
        self.relayed_samples = 0
        self.relayed_bytes = 0
        self.dropped_messages = 0
        """Dropped by workers before they left, as far as it shows here: the trainer's count of gaps is the truth."""
        self.refused_peers = 0
        """Peers that may not do what they asked for."""
        self.protocol_errors = 0
        """Peers that said what the protocol does not allow."""
        self._trainer_peer = b""
        self._by_trainer_channel: dict[int, RelayStream] = {}
        self._next_trainer_channel = 1
        self._trainer_limit = 0
        self._trainer_sent = 0
        self._turns: list[tuple[int, int, RelayStream]] = []
        """A heap of the streams that have something queued: (turn, order among equals, stream)."""
        self._order = count()
        self._turn = 0
        """Of the message that was begun last: so many bytes have been passed on for whoever sent all the time."""
        self._wants: OrderedDict[bytes, RelayStream] = OrderedDict()
        self._short_bytes = 0
        """What the first of those that want credit lacked when it was looked at last: less need not be looked at."""
        self._report: Report | None = None
        self._direct_all: Direct | None = None
        self._lasting: OrderedDict[str, Direct] = OrderedDict()
        """By run: the directive for all that holds on without its trainer."""
        self._sending: tuple[RelayStream, list[bytearray], int] | None = None
        self._sending_index = 0
        self._sending_spooled = False

    def connection(self) -> RelayConnection:
        """A new connection for a transport to drive."""
        return RelayConnection(self)

    # --- who is there ---

    def greet(self, connection: RelayConnection, hello: Hello) -> None:
        """Answer a `Hello`: let the peer in, or refuse it and say why."""
        version = negotiate(hello.versions, self.versions)
        if version is None:
            self.refuse_versions(connection, hello.versions)
            return
        connection.version = version
        if len(hello.peer) != 16:
            raise RemoteProtocolError("a peer's id has 16 bytes")
        verdict = self.authenticate(hello, connection)
        if verdict is not None:
            self.refuse_peer(connection, *verdict)
            return
        if hello.incarnation > self.incarnation + _MAX_LEAP:
            raise RemoteProtocolError(f"no trainer has had the incarnation {hello.incarnation}")
        identity = connection.identity
        connection.principal = (
            f"certificate {identity.role} {identity.name}" if identity.role else f"token {hello.role}"
        )
        link = self.workers.get(hello.peer)
        taken = link is not None and link.principal != connection.principal  # also where it has been forgotten
        if hello.role != "observer" and (taken or not self._peer_owners.claim(hello.peer, connection.principal)):
            self.refuse_peer(
                connection,
                "name",
                "this peer's id was first used with other credentials, and belongs to them. If these are new, start "
                "this process again, which gives it a new id",
            )
            return
        connection.run = hello.run
        connection.name = hello.name[:200]
        connection.peer = hello.peer
        if hello.role == "worker":
            self._greet_worker(connection, hello)
        elif hello.role == "trainer":
            self._greet_trainer(connection, hello)
        else:
            self._greet_observer(connection)

    def refuse_versions(self, connection: RelayConnection, versions: tuple[int, ...]) -> None:
        """Tell a peer that no version of the protocol is spoken on both sides."""
        theirs = ", ".join(map(str, versions[:20])) or "none"
        ours = ", ".join(map(str, self.versions))
        older = "the peer's" if not versions or max(versions) < max(self.versions) else "the Server's"
        self.refuse_peer(
            connection,
            "protocol",
            f"the Server speaks protocol version {ours}, the peer {theirs}: install the same version of tmrl_core on "
            f"both sides ({older} is the older one)",
        )

    def refuse_peer(self, connection: RelayConnection, code: str, reason: str, delay_s: float = 0.0) -> None:
        """Tell a peer why it may not do what it asks for; it is counted, and the Server's log says so at once."""
        self.refused_peers += 1
        self.on_refused(connection.identity.address, f"{connection.identity.name or 'it'} was told: {reason}")
        if delay_s > 0:
            connection.refuse_later(code, reason, delay_s)
        else:
            connection.refuse(code, reason)

    def _welcome(self, connection: RelayConnection, incarnation: int) -> None:
        settings = self.settings
        connection.send(
            Welcome(
                connection.version,
                incarnation,
                settings.window_bytes // 2,
                settings.max_message_bytes,
                settings.max_policy_bytes,
                settings.heartbeat_s,
                self.hand_overs.spool_bytes,
            )
        )

    def no_place_for(self, role: str) -> str:
        """Why one more peer of that role would be refused now; empty: it would not."""
        limit = self.settings.max_workers
        if role == "worker" and limit is not None and len(self.workers) >= limit:
            return (
                f"this Server takes {limit} workers (server.max_workers) and has them; it tries again when one leaves"
            )
        older = self.trainer
        if role == "trainer" and older is not None:
            return (
                f"this Server already has a trainer ({older.name or 'unnamed'} of run {older.run!r}, at "
                f"{older.identity.address}); stop that one, or wait until it ends"
            )
        return ""

    def _greet_worker(self, connection: RelayConnection, hello: Hello) -> None:
        older = self.workers.get(hello.peer)
        if older is None and (no_place := self.no_place_for("worker")):
            self.refuse_peer(connection, "full", no_place)
            return
        if older is not None:
            older.refuse("superseded", "the same worker has connected again")
            older.leave()
        self.workers[hello.peer] = connection
        connection.state = "worker"
        connection.have = hello.have
        self._welcome(connection, self.incarnation)
        if hello.incarnation > self.incarnation:
            self.incarnation = hello.incarnation
            if self.trainer is not None:
                self.incarnation += 1
                self.trainer.send(Incarnation(self.incarnation))
        if self.trainer is not None and self.trainer.run == connection.run:
            if self._report is not None:
                connection.put("report", self._report)
            if self._direct_all is not None:
                connection.put("direct-all", self._direct_all)
        elif connection.run in self._lasting:
            connection.put("direct-all", self._lasting[connection.run])
        self.notice()

    def _greet_trainer(self, connection: RelayConnection, hello: Hello) -> None:
        older = self.trainer
        if older is not None and older.peer != hello.peer:
            self.refuse_peer(connection, "trainer_present", self.no_place_for("trainer"))
            return
        if older is not None:
            older.refuse("superseded", "the same trainer has connected again")
            older.leave()
        known = max(self.incarnation, hello.incarnation)
        if hello.holding and hello.holding == known:
            self.incarnation = known
        else:
            self.incarnation = known + 1
        if self.policy is not None and self.policy_run != hello.run:
            self.policy = None
        self.policy_run = hello.run
        self._lasting.pop(hello.run, None)
        self.trainer = connection
        self._trainer_peer = hello.peer
        self._trainer_limit = 0
        self._trainer_sent = 0
        connection.state = "trainer"
        self._welcome(connection, self.incarnation)
        for stream in self.streams.values():
            if stream.worker is not None:
                self.introduce(stream)
        self.hand_overs.introduce(hello.run)
        self.notice()

    def _greet_observer(self, connection: RelayConnection) -> None:
        """One who only looks: it takes nobody's place, and nobody is told of it."""
        if len(self.observers) >= MAX_OBSERVERS:
            self.refuse_peer(connection, "full", f"{MAX_OBSERVERS} others look at this Server already; try again later")
            return
        self.observers.add(connection)
        connection.state = "observer"
        self._welcome(connection, self.incarnation)

    def introduce(self, stream: RelayStream) -> None:
        """Tell the trainer of a stream, if it is of its run; it answers with a `Resume`."""
        trainer = self.trainer
        worker = stream.worker
        if trainer is None or trainer.run != stream.run:
            if worker is not None and not stream.handing:  # the spool serves as its trainer, and goes on
                self._halt(worker, stream)
            return
        stream.trainer_channel = self._next_trainer_channel
        self._next_trainer_channel += 1
        self._by_trainer_channel[stream.trainer_channel] = stream
        trainer.send(Joined(stream.trainer_channel, stream.id, stream.name, stream.signature, live=worker is not None))
        if stream.waits:
            self._tell_waits(stream)

    def _halt(self, worker: RelayConnection, stream: RelayStream) -> None:
        trainer = self.trainer
        if trainer is None:
            worker.send(Halt(stream.channel))
        else:
            worker.send(
                Halt(
                    stream.channel,
                    f"the Server's trainer is of run {trainer.run!r}, this worker of run {stream.run!r}: nothing "
                    "is sent until the names are the same (run.name)",
                )
            )

    def open_stream(self, connection: RelayConnection, message: OpenStream) -> None:
        """A worker's link carries a stream from now on."""
        if len(message.stream) != 16:
            raise RemoteProtocolError("a stream's id has 16 bytes")
        if message.channel in connection.streams:
            raise RemoteProtocolError(f"channel {message.channel} is open already")
        if len(connection.streams) >= _MAX_STREAMS_PER_LINK:
            raise RemoteProtocolError(f"a link carries at most {_MAX_STREAMS_PER_LINK} streams")
        told = (connection,) if self.trainer is None else (connection, self.trainer)
        if any(end.unread_bytes > _MAX_UNREAD_BYTES for end in told):
            raise RemoteProtocolError("streams are opened faster than they are read of")
        older = self.streams.get(message.stream)
        link = older.worker if older is not None else None
        taken = link is not None and link.principal != connection.principal  # also where it has been forgotten
        if taken or not self._stream_owners.claim(message.stream, connection.principal):
            self.refuse_peer(
                connection,
                "name",
                "this stream was first opened with other credentials, and belongs to them. If these are new, start "
                "this process again, which gives it a new stream",
            )
            return
        stream = RelayStream(message.stream, message.name[:200], connection.run, message.signature)
        self.hand_overs.kept(stream)  # if it is spooled, then as one of this run
        older = self.streams.get(message.stream)
        if older is not None:
            self._detach(older)
            self._forget(older)
        stream.worker = connection
        stream.channel = message.channel
        self.streams[stream.id] = stream
        connection.streams[message.channel] = stream
        self.introduce(stream)

    def close_stream(self, connection: RelayConnection, channel: int) -> None:
        """A stream has ended in order."""
        stream = connection.stream(channel)
        self._detach(stream)
        stream.ended = True
        self.hand_overs.ended(stream)
        self._forget_if_done(stream)

    def _detach(self, stream: RelayStream) -> None:
        """The stream has no link any more: what is half received is void."""
        if stream.worker is not None:
            stream.worker.streams.pop(stream.channel, None)
            stream.worker = None
        self._wants.pop(stream.id, None)
        self._short_bytes = 0
        stream.partial = []
        kept = self._stream_queued(stream)
        self.reserved_bytes -= stream.reserved - kept
        stream.limit = stream.forwarded + kept

    def _stream_queued(self, stream: RelayStream) -> int:
        """Bytes of the pool that whole messages of a stream occupy."""
        sending = self._sending
        sent = sending[2] if sending is not None and sending[0] is stream and not self._sending_spooled else 0
        return sum(size for _, size in stream.queue) + sum(size for _, size in stream.handed) + sent

    def _forget_if_done(self, stream: RelayStream) -> None:
        """A stream without a link is gone when all that was queued is with the trainer, and all that was spooled, too.

        Of a spooled stream the trainer is told until it has acknowledged it.
        """
        if stream.worker is not None or self._stream_queued(stream):
            return
        if not stream.trainer_channel or self.hand_overs.kept(stream) is None:
            self._forget(stream)

    def _forget(self, stream: RelayStream) -> None:
        """The stream is gone, with what is queued of it."""
        self.void(stream)
        self.streams.pop(stream.id, None)
        if stream.trainer_channel:
            self._by_trainer_channel.pop(stream.trainer_channel, None)
            if self.trainer is not None:
                self.trainer.send(Left(stream.trainer_channel, stream.ended))
            stream.trainer_channel = 0

    def void(self, stream: RelayStream) -> None:
        """Drop everything that is held of a stream and give its reserve back; what is spooled stays."""
        for _, size in (*stream.queue, *stream.handed):
            self.queued_bytes -= size
        stream.queue.clear()
        stream.handed.clear()
        stream.replay = None
        if self._sending is not None and self._sending[0] is stream:
            if not self._sending_spooled:
                self.queued_bytes -= self._sending[2]
            self._sending = None
        stream.partial = []
        self.reserved_bytes -= stream.reserved
        stream.limit = stream.forwarded = stream.received = stream.told_limit = stream.wanted = 0
        stream.standing = 0
        stream.active = False
        self._wants.pop(stream.id, None)
        self._short_bytes = 0

    def worker_left(self, connection: RelayConnection) -> None:
        """A worker's link is gone. What it had delivered whole still goes to the trainer."""
        if self.workers.get(connection.peer) is connection:
            del self.workers[connection.peer]
        for stream in list(connection.streams.values()):
            self._detach(stream)
            self._forget_if_done(stream)
        self.grant()
        self.notice()

    def trainer_left(self, connection: RelayConnection) -> None:
        """The trainer's link is gone: workers keep everything until the next resume."""
        if self.trainer is not connection:
            return
        if self._direct_all is not None and self._direct_all.lasting:
            self._lasting[connection.run] = self._direct_all
            if len(self._lasting) > _MAX_RUNS:
                self._lasting.popitem(last=False)
        self.trainer = None
        self._by_trainer_channel.clear()
        self._report = None
        self._direct_all = None
        for stream in list(self.streams.values()):
            stream.trainer_channel = 0
            stream.in_turn = False
            if stream.handing:
                continue  # the spool serves as its trainer, and goes on
            self.void(stream)
            if stream.worker is None:
                del self.streams[stream.id]
            else:
                stream.worker.hasten("report")  # it is the word of the one that has left
                stream.worker.send(Halt(stream.channel))
        self._turns.clear()

    # --- samples ---

    def resume(self, message: Resume) -> None:
        """The trainer says from where it wants a stream."""
        stream = self._by_trainer_channel.get(message.channel)
        if stream is None or (stream.worker is None and self.hand_overs.kept(stream) is None):
            return  # it has left meanwhile; the trainer is told so
        self.void(stream)
        stream.handing = False
        stream.next_number = message.next
        following = self.hand_overs.replay(stream, message.next)
        self.activate(stream)
        if stream.worker is not None:
            stream.worker.send(Resume(stream.channel, following, stream.epoch, stream.limit))
        if stream.replay is not None:
            self._take_turns(stream)

    def activate(self, stream: RelayStream) -> None:
        """Begin a new epoch of a stream that was voided, with its standing credit."""
        stream.epoch = (stream.epoch + 1) & 0xFFFF
        if stream.worker is None:
            return
        stream.active = True
        room = self.settings.budget_bytes // 2 - len(self.streams) * self.settings.standing_bytes
        stream.standing = self.settings.standing_bytes if room >= 0 else 0
        free = self.settings.budget_bytes - self.reserved_bytes
        stream.limit = stream.told_limit = min(stream.standing, max(0, free))
        self.reserved_bytes += stream.limit

    def _take_turns(self, stream: RelayStream) -> None:
        if not stream.in_turn:
            stream.in_turn = True
            # Nobody saves up much while having nothing to send; who sends little is always the next.
            stream.turn = max(stream.turn, self._turn - _HEAD_START_BYTES)
            heappush(self._turns, (stream.turn, next(self._order), stream))
        if self.trainer is not None:
            self.trainer.wake()

    def samples_frame(self, connection: RelayConnection, frame: Frame) -> None:
        """A DATA frame from a worker."""
        stream = connection.stream(frame.channel)
        if not stream.active or frame.epoch != stream.epoch:
            if frame.flags & LAST:
                self.discarded_messages += 1
            return
        size = len(frame.buffer)
        stream.received += size
        if stream.received > stream.limit:
            raise RemoteProtocolError(f"{stream.received - stream.limit} bytes more were sent than credit was given")
        if frame.flags & FIRST:
            payload = frame.payload
            if len(payload) < SAMPLES_HEAD.size:
                raise RemoteProtocolError("a message began with a frame too short for its head")
            number, _, position, _, length = SAMPLES_HEAD.unpack_from(payload)
            if max(number, position) >= _MAX_NUMBER:
                raise RemoteProtocolError(f"message {number} at sample {position}: no stream comes to that")
            if length > self.settings.max_message_bytes:
                raise RemoteProtocolError(
                    f"a message of {length} bytes; at most {self.settings.max_message_bytes} are relayed"
                )
            if stream.partial:
                raise RemoteProtocolError("a message began before the last one ended")
            stream.partial_length = message_bytes(SAMPLES_HEAD, length)
            stream.partial_bytes = 0
        elif not stream.partial:
            raise RemoteProtocolError("a message went on that had not begun")
        stream.partial.append(frame.buffer)
        stream.partial_bytes += size
        frame.readdress(frame.epoch, stream.trainer_channel)
        if frame.flags & LAST:
            if stream.partial_bytes != stream.partial_length:
                raise RemoteProtocolError("a message's frames and its head say different lengths")
            frames, stream.partial = stream.partial, []
            if stream.handing:
                self.hand_overs.take(stream, frames, stream.partial_bytes)
                return
            stream.queue.append((frames, stream.partial_bytes))
            self.queued_bytes += stream.partial_bytes
            self._take_turns(stream)
        elif stream.partial_bytes >= stream.partial_length:
            raise RemoteProtocolError("a message's frames and its head say different lengths")
        elif size != MAX_FRAME_BYTES:  # a frame costs more memory than its bytes: many small ones would pass the budget
            raise RemoteProtocolError("only a message's last frame is not full")

    def want(self, connection: RelayConnection, message: Want) -> None:
        """A worker asks for credit for whole messages."""
        stream = connection.stream(message.channel)
        if not stream.active or message.epoch != stream.epoch:
            return
        settings = self.settings
        most = max(settings.window_bytes, message_bytes(SAMPLES_HEAD, settings.max_message_bytes))
        if message.total > stream.limit + most:
            raise RemoteProtocolError("more credit was asked for than the window allows")
        if message.total > stream.wanted:
            stream.wanted = message.total
            self._wants.setdefault(stream.id, stream)
            self._short_bytes = 0
            self.grant()

    def waits(self, connection: RelayConnection, message: Waits) -> None:
        """A worker says what it waits for: a last value, for the trainer."""
        stream = connection.stream(message.channel)
        stream.waits = message.text
        self._tell_waits(stream)

    def _tell_waits(self, stream: RelayStream) -> None:
        if self.trainer is not None and stream.trainer_channel:
            self.trainer.put(("waits", stream.trainer_channel), Waits(stream.trainer_channel, stream.waits))

    def grant(self) -> None:
        """Give credit to those who asked, by whose turn it is, as far as the pool reaches.

        Who waits keeps its turn while those that are served lose theirs, so nobody is passed over for ever.
        """
        if self.settings.budget_bytes - self.reserved_bytes < self._short_bytes:
            return
        self._short_bytes = 0
        for stream in sorted(self._wants.values(), key=attrgetter("turn")):
            need = stream.wanted - stream.limit
            if need > 0:
                over = stream.wanted - stream.forwarded > self.settings.window_bytes
                if over and stream.limit - stream.forwarded > stream.standing:
                    continue  # it has its share; asked again when something of it has been forwarded
                if need > self.settings.budget_bytes - self.reserved_bytes:
                    self._short_bytes = need
                    return  # those behind wait too, so that a large want is not passed over for ever
                stream.limit += need
                self.reserved_bytes += need
            self._tell_limit(stream)  # it may have had that much already as standing credit, and not known it
            del self._wants[stream.id]

    def _tell_limit(self, stream: RelayStream) -> None:
        if stream.worker is not None and stream.limit > stream.told_limit:
            stream.told_limit = stream.limit
            stream.worker.put(("credit", stream.channel), Credit(stream.channel, stream.epoch, stream.limit))

    def next_samples_frame(self) -> bytearray | None:
        """The next frame for the trainer; None: nothing queued, or no credit."""
        if self._sending is None and not self._next_message():
            return None
        assert self._sending is not None
        stream, frames, size = self._sending
        frame = frames[self._sending_index]
        frames[self._sending_index] = bytearray()  # the memory goes with the frame, not with the message
        self._sending_index += 1
        self._trainer_sent += len(frame)
        if self._sending_index == len(frames):
            self._sending = None
            self.relayed_messages += 1
            self.relayed_bytes += size
            stream.relayed_messages += 1
            stream.relayed_bytes += size
            if not self._sending_spooled:  # what is spooled is not of the pool
                self.queued_bytes -= size
                self.forwarded(stream, size)
        return frame

    def _next_message(self) -> bool:
        turns = self._turns
        while turns:
            turn, _, stream = turns[0]
            spooled = self.hand_overs.upcoming(stream)
            if spooled is None and not stream.queue:
                heappop(turns)
                stream.in_turn = False
                continue
            size = stream.queue[0][1] if spooled is None else spooled
            if self._trainer_sent + size > self._trainer_limit:
                return False
            if spooled is None:
                frames, size = stream.queue.popleft()
            else:
                replayed = self.hand_overs.frames(stream)
                if replayed is None:
                    self._forget_if_done(stream)
                    continue
                frames = replayed
            self._turn = turn
            stream.turn = turn + size
            heapreplace(turns, (stream.turn, next(self._order), stream))
            self._sending_spooled = spooled is not None
            self._sending = (stream, frames, size)
            self._sending_index = 0
            self._count(stream, frames[0])
            return True
        return False

    def _count(self, stream: RelayStream, frame: bytearray) -> None:
        """A message begins to be passed on: what its head says, for those who look."""
        number, _, position, samples, _ = SAMPLES_HEAD.unpack_from(frame, HEADER_BYTES)
        passed_over = max(0, number - stream.next_number)
        stream.next_number = number + 1
        stream.position = position + samples
        stream.relayed_samples += samples
        stream.dropped_messages += passed_over
        self.relayed_samples += samples
        self.dropped_messages += passed_over

    def forwarded(self, stream: RelayStream, size: int) -> None:
        """A message is with the trainer, or stored in the spool: its bytes are the pool's again."""
        stream.forwarded += size
        self.reserved_bytes -= size
        if stream.worker is None:
            self._forget_if_done(stream)
        else:
            # Keep the standing credit standing.
            lacking = stream.standing - stream.reserved
            free = self.settings.budget_bytes - self.reserved_bytes
            if lacking > 0 and free >= lacking:
                stream.limit += lacking
                self.reserved_bytes += lacking
                if stream.limit - stream.told_limit >= stream.standing // 2:
                    self._tell_limit(stream)
        self.grant()

    # --- what the trainer says ---

    def ack(self, message: Ack) -> None:
        """The trainer has committed messages of a stream."""
        stream = self._by_trainer_channel.get(message.channel)
        if stream is None:
            return
        self.hand_overs.acknowledged(stream, message.next)
        if stream.worker is not None:
            stream.worker.acknowledge(Ack(stream.channel, message.next, message.refused))
        else:
            self._forget_if_done(stream)

    def trainer_credit(self, message: Credit) -> None:
        """The trainer has room for more samples."""
        self._trainer_limit = max(self._trainer_limit, message.limit)
        if self.trainer is not None:
            self.trainer.wake()

    def report(self, message: Report) -> None:
        """The trainer's counters, for every worker of its run."""
        self._report = message
        for worker in self._workers_of_run():
            worker.put("report", message)

    def direct(self, message: Direct) -> None:
        """A directive for one stream, or for all of the run."""
        if message.channel == ALL_CHANNELS:
            self._direct_all = message
            for worker in self._workers_of_run():
                worker.put("direct-all", message)
            return
        stream = self._by_trainer_channel.get(message.channel)
        if stream is not None and stream.worker is not None:
            stream.worker.put(("direct", stream.channel), Direct(stream.channel, message.revision, message.body))

    def _workers_of_run(self) -> list[RelayConnection]:
        run = self.trainer.run if self.trainer is not None else None
        return [worker for worker in self.workers.values() if worker.run == run]

    def publish(self, policy: Policy) -> None:
        """The trainer's policy has arrived whole."""
        if self.policy is not None and policy.version <= self.policy.version:
            return
        self.policy = policy
        for worker in self._workers_of_run():
            worker.wake()

    def notice(self) -> None:
        """Tell the trainer what only the Server sees."""
        if self.trainer is not None:
            others = sum(worker.run != self.trainer.run for worker in self.workers.values())
            self.trainer.put("notice", Notice(len(self.workers), self.queued_bytes, others))
