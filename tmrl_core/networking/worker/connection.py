"""A worker's end of a link, and the worker's state that outlives links. Sans-I/O."""

# Theory of operation
#
# A worker's side: `WorkerState` lives as long as the process, `WorkerConnection` as long as one link. What must survive
# a lost link is in the state: streams and their messages, the newest policy, directives, the wait reason, the number
# among workers of one label. What is said at most once a link is in the connection: the window, what was told of
# lateness or forgeries, a half-received policy.
#
#     greeting --Welcome--> open --end_streams--> ended (on this link), or lost at any time
#
# On `Welcome` the worker announces all of its streams, in the order of their channels, and waits. Each is answered with
# `Resume`, from which on its sender sends, or with `Halt`. Nothing else is repeated: numbers and floors say it all.
#
# The channel of a stream is its index, in every link. Streams of earlier processes (`stored`) are announced under their
# old names. They take no directive and no wait reason, since those are for whoever plays now; each is closed after its
# last acknowledgement.
#
# Several senders share the link in turns: one is asked for frames until it has none, so that messages are not
# interleaved, then the next one.
#
# A policy goes through three hands: `PolicyReceiver` assembles its frames in pooled memory, the seal checks its origin,
# and `policy_arrived` keeps it if it is newer. `Have` is sent when it has arrived and not when it is used: the Server
# may send the next one then, and a worker that is busy skips those in between. On a thin link it is packed:
# `kept_policies.py` makes the policy of it here, in the I/O thread, so that the environment loop gets the bytes that it
# would get otherwise. A complete one that is older than the newest is opened too, as a base.
#
# What cannot be opened yet. The Server sends last values before the letter that brings the group key, because it stores
# them. The latest policy, report and directive without a key are kept, one of each (`_unopened`), and handled when a
# letter has changed the keys. A message that is forged is ignored; it neither ends the link nor removes what is kept of
# its kind.
#
# Whose trainer. A worker that authenticates uses nothing without a proof, one that does not ignores everything that
# ends like a proof, so that a Server cannot turn authentication off between them. If a trainer uses the incarnation of
# another trainer, whose card this worker has accepted, the worker must not follow either of them by luck: it ends the
# link and reports a higher number in the next one, and the Server suggests that the trainer take a still higher one.

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import msgspec

from tmrl_core.errors import ForgedError, NetworkError, RemoteProtocolError, UnknownGroupKeyError
from tmrl_core.networking.protocol.buffer_pool import BodyPool
from tmrl_core.networking.protocol.client import ClientConnection, ClientState
from tmrl_core.networking.protocol.delivery import StreamSecret, StreamSender
from tmrl_core.networking.protocol.framing import FIRST, LAST, Frame, Kind, Wire, spare
from tmrl_core.networking.protocol.messages import (
    ALL_CHANNELS,
    LEGAL,
    MAX_SIGNATURE_BYTES,
    POLICY_DELTA,
    PROOF_ENDS,
    Ack,
    Announce,
    CloseStream,
    Control,
    Credit,
    Direct,
    Directive,
    Forged,
    Halt,
    HandOver,
    Have,
    Hello,
    Lacks,
    Lateness,
    OpenStream,
    Place,
    Progress,
    Report,
    Resume,
    Revoked,
    Stored,
    Version,
    Waits,
    Welcome,
    decode_body,
    plain,
)
from tmrl_core.networking.protocol.pictures import Picture
from tmrl_core.networking.protocol.policy_heads import read_head
from tmrl_core.networking.worker.kept_policies import KeptPolicies
from tmrl_core.networking.worker.pictures import OutgoingPictures

if TYPE_CHECKING:  # loaded only where authentication is on
    from tmrl_core.networking.worker.seal import WorkerSeal

_POLICY_KEEP_BYTES = 64 << 20
"""Limit of the memory that a worker keeps for its next policy. Policies of up to half this size reuse one buffer."""


_Content = TypeVar("_Content", bytes, memoryview)


class PolicyReceiver:
    """Assemble the WEIGHTS frames of a policy update, in memory of `bodies`."""

    def __init__(self, max_bytes: int, bodies: BodyPool | None = None) -> None:
        self.max_bytes = max_bytes
        self._bodies = bodies or BodyPool(_POLICY_KEEP_BYTES)
        self._body: memoryview | None = None
        self._version = (0, 0)
        self._filled = 0

    def frame(self, frame: Frame) -> tuple[Version, memoryview] | None:
        """Add a frame. Return the update (version, body) when it is complete.

        Raises:
            RemoteProtocolError: the update is too large, or its frames contradict its header.
        """
        payload = frame.payload
        if frame.flags & FIRST:
            self._version, length, _, begin = read_head(frame, self.max_bytes)
            self._body = self._bodies.take(length)
            self._filled = 0
            payload = payload[begin:]
        if self._body is None:
            raise RemoteProtocolError("a policy update was continued without a beginning")
        end = self._filled + len(payload)
        if end > len(self._body) or (frame.flags & LAST and end != len(self._body)):
            raise RemoteProtocolError(f"a policy update announced {len(self._body)} bytes and has others")
        self._body[self._filled : end] = payload
        self._filled = end
        if not frame.flags & LAST:
            return None
        body, self._body = self._body, None
        return self._version, body


class WorkerState(ClientState):
    """A worker's side of delivery and of the last-value channels.

    Args:
        seal: authenticates samples and what comes from the trainer; None: nothing is authenticated.
    """

    role = "worker"

    def __init__(self, *, run: str, name: str, peer: bytes, token: str = "", seal: WorkerSeal | None = None) -> None:
        super().__init__(run=run, name=name, peer=peer, token=token)
        self.seal = seal
        if seal is not None:
            self.incarnation = seal.incarnation
        self.trainer_authenticates = False
        """True: the trainer authenticates, and this worker does not, so that it ignores the trainer."""
        self.senders: list[tuple[StreamSender, bytes]] = []
        """Streams and their encoded signatures; the channel is the index."""
        self.stored: dict[int, str] = {}
        """Channels of streams of earlier processes, with their names. Their messages come from the worker's spool."""
        self.policy_version = (0, 0)
        self.policy: tuple[Version, bytes | memoryview] | None = None
        """The newest policy and its version, not taken by the application yet."""
        self.versions_published = 0
        """Number of versions published since the first connection, skipped versions included."""
        self.bodies = BodyPool(_POLICY_KEEP_BYTES)
        """Memory in which policies are assembled; successive links share it."""
        self.kept = KeptPolicies()
        """Policies that the trainer's deltas refer to."""
        self.directives: dict[str, Directive] = {}
        """The trainer's directives for all workers and for this one."""
        self.directive = Directive()
        """Both together."""
        self.progress = Progress()
        self.waits = ""
        """Wait reason of this worker, with its numbers; empty while the worker collects."""
        self.place = 0
        """This worker's number, which it keeps over reconnections; see `Place`. 0: not known yet."""
        self.lateness: Callable[[], tuple[int, int, int]] | None = None
        """Returns the fields of `Lateness`; None: the environment has no rate. Called by the I/O thread."""
        self.pictures = OutgoingPictures(run, lambda: self.seal)
        """Pictures for viewers."""
        self.halted = False
        """True: according to the Server's last notice, no trainer accepts samples."""
        self.halt_reason = ""
        """Reason for the halt, other than a missing trainer."""
        self.ending = False
        """True: this worker ends and hands samples without a trainer over to the Server."""
        self.hand_over_refusal = ""
        """Reason why the Server stopped storing the handed-over samples."""

    def hello(self) -> Hello:
        """Return the first message to a Server."""
        return msgspec.structs.replace(super().hello(), have=self.policy_version, base=self.kept.base)

    def new_stream(self) -> bytes:
        """Return the id of a new stream, whose `StreamSender` has this state's seal."""
        return os.urandom(16) if self.seal is None else self.seal.new_stream()

    def add_stream(self, sender: StreamSender, signature: bytes) -> None:
        """Add a stream, which the next connection announces to the Server.

        Raises:
            ValueError: the signature is too long.
        """
        size = len(self.announcement(sender, signature))
        if size > MAX_SIGNATURE_BYTES:
            raise ValueError(f"a stream's signature of {size} bytes; at most {MAX_SIGNATURE_BYTES} fit")
        self.senders.append((sender, signature))

    def add_stored_stream(self, sender: StreamSender, signature: bytes, name: str) -> None:
        """Add a stream of an earlier process, which ends once all of its messages are acknowledged."""
        self.stored[len(self.senders)] = name
        self.senders.append((sender, signature))

    def can_continue(self, stream: bytes, secret: StreamSecret | None) -> bool:
        """Continue the authentication of a stream of an earlier process. Return False if that is not possible."""
        if self.seal is None:
            return secret is None
        return secret is not None and self.seal.continue_stream(stream, secret)

    def announcement(self, sender: StreamSender, signature: bytes) -> bytes:
        """Return a stream's signature, in its record if it is authenticated. The certificate may have been renewed."""
        return signature if self.seal is None else self.seal.record(sender.stream, signature)

    def directed(self, receiver: str, directive: Directive) -> None:
        """Merge the trainer's directive for this worker ("own") with its directive for all workers ("all")."""
        self.directives[receiver] = directive
        everyone = self.directives.get("all", Directive())
        own = self.directives.get("own", everyone)
        self.directive = Directive(
            revision=own.revision,
            evaluation=own.evaluation or everyone.evaluation,
            pause=own.pause or everyone.pause,
            finish=own.finish or everyone.finish,
            collect=own.collect or everyone.collect,
            refusal=own.refusal,
            wanted=own.wanted,
        )

    def trainer_gone(self) -> None:
        """Clear the report of a trainer that waits for samples, unless the trainer gave up for that reason."""
        if self.progress.lack and not self.progress.gave_up:
            self.progress = msgspec.structs.replace(self.progress, lack="")

    def trainer_there(self) -> None:
        """Record that a new trainer replaces the one that gave up."""
        if self.progress.gave_up:
            self.progress = msgspec.structs.replace(self.progress, lack="", gave_up=False)

    def begin_anew(self) -> None:
        """Forget all version numbers, because the Server's numbers begin below them. The policy itself stays in use.

        Authenticated numbers stay: only the trainer can say which ones are valid.
        """
        if self.seal is not None:
            return
        self.incarnation = 0
        self.policy_version = (0, 0)
        self.kept.clear()

    def policy_arrived(self, version: tuple[int, int], body: bytes | memoryview) -> None:
        """Store a policy if it is newer than the current one, and count the versions in between."""
        if version <= self.policy_version:
            return
        if version[0] == self.policy_version[0]:
            self.versions_published += version[1] - self.policy_version[1]
        else:
            self.versions_published += 1
        self.policy_version = version
        self.policy = (version, body)
        self.incarnation = max(self.incarnation, version[0])


class WorkerConnection(ClientConnection):
    """A worker's end of one link."""

    LEGAL = LEGAL["worker"]

    def __init__(self, state: WorkerState, *, max_policy_bytes: int = 1 << 30, **times: float) -> None:
        super().__init__(state, **times)
        self.source, self.takes = self._next_frame, Kind.WEIGHTS
        self.worker = state
        self.window_bytes = 0
        self.spool_bytes = 0
        self._ended = False
        self._halted: set[int] = set()
        """Channels that were halted and have not requested the handoff."""
        self._policy = PolicyReceiver(max_policy_bytes, state.bodies)
        self._is_delta = False
        self._turn = 0
        self._told_ignored = (0, 0)
        self._told_lateness = (0, 0, 0)
        self._lateness_due = 0.0
        self._films_woke = False
        """True: the transport was asked to send pieces of pictures, and has not done so yet."""
        self._unopened: dict[str, Callable[[], None]] = {}
        """Handlers of the latest messages of each kind whose key has not arrived yet."""

    def _on_control(self, message: Control) -> None:
        state = self.worker
        match message:
            case Welcome():
                self._welcomed(message)
                self.window_bytes = message.window_bytes
                self.spool_bytes = message.spool_bytes
                if message.anew:
                    state.begin_anew()
                if state.seal is None:
                    state.incarnation = max(state.incarnation, message.incarnation)
                for channel, (sender, signature) in enumerate(state.senders):
                    stored = channel in state.stored
                    if stored and not sender.held_messages:
                        continue  # it has ended
                    announcement = state.announcement(sender, signature)
                    name = state.stored.get(channel, state.name)
                    self.send(OpenStream(channel, sender.stream, name, announcement, stored))
                if state.waits:
                    self.say_waits()
                if state.place:
                    self.send(Place(state.place))
            case Place():
                # A number is kept for the life of the process: it is mixed into seeds.
                state.place = state.place or message.number
            case Resume():
                state.halted = False
                state.halt_reason = ""
                state.trainer_there()
                self._halted.discard(message.channel)
                self._sender(message.channel).resume(
                    channel=message.channel,
                    epoch=message.epoch,
                    next_number=message.next,
                    credit=message.credit,
                )
                self.wake()
            case Halt():
                state.halted = True
                state.halt_reason = plain(message.reason)
                state.trainer_gone()
                self._sender(message.channel).halt()
                if message.channel not in state.stored:  # on the worker's disk, it is as safe as with the Server
                    self._halted.add(message.channel)
                # The trainer left while this worker waited for acknowledgements: ask the Server to store the rest.
                if state.ending:
                    self.hand_over()
            case Stored():
                sender = self._sender(message.channel)
                sender.stored(message.next)
                if message.refusal:
                    sender.halt()
                    state.hand_over_refusal = plain(message.refusal)
            case Ack():
                sender = self._sender(message.channel)
                held = sender.held_messages
                sender.on_ack(message)
                if message.channel in state.stored and held and not sender.held_messages:
                    sender.halt()
                    self._slots.pop(("want", message.channel), None)
                    self.send(CloseStream(message.channel))
            case Credit():
                self._sender(message.channel).credit(epoch=message.epoch, limit=message.limit)
                self.wake()
                return  # nobody waits for credit
            case Announce():
                if state.seal is not None:
                    self._announced(state.seal, message)
            case Direct():
                self._directed(message)
            case Report():
                self._reported(message)
            case Revoked():
                state.on_revocations(message.body)
        state.on_change()

    def _directed(self, message: Direct) -> None:
        state = self.worker
        if message.channel in state.stored:
            return  # it was for a process that has ended
        stream = None if message.channel == ALL_CHANNELS else self._sender(message.channel).stream
        keys = state.seal.group_keys if state.seal is not None else None
        order = self._opened(
            "directive" if stream is None else "letter",
            message.body,
            lambda seal: seal.open_directive(stream, message.body),
            partial(self._directed, message),
        )
        if order is not None:
            state.directed("all" if stream is None else "own", decode_body(order, Directive))
        if state.seal is not None and state.seal.group_keys is not keys:
            # Emptied first: what still lacks its key puts itself back.
            unopened, self._unopened = self._unopened, {}
            for handle in unopened.values():
                handle()

    def _reported(self, message: Report) -> None:
        state = self.worker
        report = self._opened(
            "report", message.body, lambda seal: seal.open_report(message.body), partial(self._reported, message)
        )
        if report is not None:
            progress = decode_body(report, Progress)
            state.progress = msgspec.structs.replace(progress, lack=plain(progress.lack))

    def _published(self, version: Version, body: memoryview, delta: bool) -> None:
        state = self.worker
        if not delta:
            self._unopened.pop("delta", None)  # it was to an earlier one
        content = self._opened(
            "delta" if delta else "policy",
            body,
            lambda seal: seal.open_policy(version, body, base=not delta),
            partial(self._published, version, body, delta),
        )
        if content is not None:
            policy = state.kept.body_of(version, content)
            if policy is None:
                # `Have` was said: the Server goes on, with a complete policy before the next delta.
                self.put("lacks", Lacks())
            elif state.seal is None or version >= state.seal.accepted:  # otherwise it is a base
                state.policy_arrived(version, policy)
        elif (
            state.policy_version == (0, 0) and state.incarnation > 0 and not self._unopened.keys() & {"policy", "delta"}
        ):
            self._contest(version[0])  # older than what an earlier process of this worker has accepted
        state.on_change()

    def _announced(self, seal: WorkerSeal, message: Announce) -> None:
        state = self.worker
        outdated = seal.outdated
        if seal.announced(message.body):
            state.incarnation = seal.incarnation
            seal.contested = False
            self.wake()
        elif seal.ready and seal.outdated > outdated and message.incarnation == seal.incarnation:
            seal.contested = True
            self._contest(message.incarnation)

    def _contest(self, incarnation: int) -> None:
        """Report a higher incarnation, in a new link, because a trainer uses one that another trainer has used before.

        The Server then suggests a higher one to the trainer.
        """
        state = self.worker
        if state.seal is not None and state.incarnation == state.seal.incarnation == incarnation:
            state.incarnation += 1
            self._fail(
                NetworkError(f"two trainers have used the incarnation {incarnation}; one must take a higher one")
            )

    def _opened(
        self, kind: str, body: _Content, check: Callable[[WorkerSeal], _Content | None], handle: Callable[[], None]
    ) -> _Content | None:
        """Return the content of a message of the trainer; None: it is ignored, or handled once its key arrives."""
        state = self.worker
        if state.seal is None:
            state.trainer_authenticates = body[-len(PROOF_ENDS) :] == PROOF_ENDS
            return None if state.trainer_authenticates else body
        if state.seal.contested:
            return None
        self._unopened.pop(kind, None)
        try:
            return check(state.seal)
        except ForgedError:
            pass
        except UnknownGroupKeyError:
            self._unopened[kind] = handle
        return None

    def _sender(self, channel: int) -> StreamSender:
        if channel >= len(self.worker.senders):
            raise RemoteProtocolError(f"there is no channel {channel}")
        return self.worker.senders[channel][0]

    def _on_frame(self, frame: Frame) -> None:
        if frame.flags & FIRST:
            self._is_delta = bool(frame.flags & POLICY_DELTA)
        update = self._policy.frame(frame)
        # Its payload is in the policy's memory by now.
        spare(frame.buffer)
        if update is not None:
            version, body = update
            self.put("have", Have(*version))
            self._published(version, body, self._is_delta)

    def to_send(self, now: float) -> list[bytes | bytearray | memoryview]:
        """Return the buffers to send now, credit that is wanted, and last values, included."""
        if self.state != "open" or self.closing or self._ended:
            return super().to_send(now)
        self._now = now
        state = self.worker
        if state.seal is not None and (ignored := (state.seal.forged, state.seal.outdated)) != self._told_ignored:
            self._told_ignored = ignored
            self._slots["forged"] = Forged(*ignored)
        if state.lateness is not None and self._now >= self._lateness_due:
            self._lateness_due = self._now + self.heartbeat_s
            lateness = state.lateness()
            if lateness != self._told_lateness:
                self._told_lateness = lateness
                self._slots["lateness"] = Lateness(0, *lateness)
        if now >= state.pictures.due_at:
            self._films_woke = False
            for film in state.pictures.take(now):
                self._slots["film", film.kind, film.part] = film
        for channel, (sender, _) in enumerate(state.senders):
            unused = sender.unused()
            if unused is not None:
                self.send(unused)
            # Asked at each output, and not at each `offer`: what was offered since the last one is requested with one
            # message.
            want = sender.want(self.window_bytes)
            if want is not None:
                self._slots[("want", channel)] = want
        return super().to_send(now)

    def _next_frame(self) -> Wire | None:
        if self._ended:
            return None  # messages that it still requests are already stored or acknowledged
        senders = self.worker.senders
        for _ in range(len(senders)):
            frame = senders[self._turn][0].next_frame()
            if frame is not None:
                return frame
            self._turn = (self._turn + 1) % len(senders)
        return None

    def show(self, picture: Picture) -> None:
        """Send viewers a picture in place of an earlier one of its kind."""
        if self.state == "open" and not self._ended:
            self.worker.pictures.show(picture)
            self._films_woke = True
            self.wake()

    def tick(self, now: float) -> None:
        """Handle the passing of time."""
        super().tick(now)
        if now >= self.worker.pictures.due_at and not self._films_woke:
            self._films_woke = True  # or a transport that takes nothing would be woken again and again
            self.wake()

    def deadline(self) -> float:
        """Return the latest time for the next call of `tick`."""
        deadline = super().deadline()
        shows = self.state == "open" and not (self.closing or self._ended or self._films_woke)
        return min(deadline, self.worker.pictures.due_at) if shows else deadline

    def say_waits(self) -> None:
        """Send the trainer this worker's wait reason, or that it no longer waits."""
        if self.state == "open" and not self._ended:
            for channel in self._own_channels:
                self.put(("waits", channel), Waits(channel, self.worker.waits))

    def hand_over(self) -> None:
        """Request the handoff to the Server's spool; called once this worker ends (`WorkerState.ending`)."""
        if self.worker.seal is not None:
            # From now on nobody but the Server's spool may take the samples, and it needs a proof that a later trainer
            # can check without a key that this worker never had.
            self.worker.seal.signs = True
        if self.state == "open" and self.spool_bytes and not self._ended:
            for channel in sorted(self._halted):
                self.send(HandOver(channel))
            self._halted.clear()

    @property
    def _own_channels(self) -> list[int]:
        """Return the channels of this process's streams."""
        return [channel for channel in range(len(self.worker.senders)) if channel not in self.worker.stored]

    def end_streams(self) -> None:
        """Tell the Server that the streams have ended in order; it is the last message about them."""
        if self.state != "open" or self.closing:
            return
        self._ended = True
        for channel in range(len(self.worker.senders)):
            for name in ("want", "waits"):
                self._slots.pop((name, channel), None)
        self._slots.pop("lateness", None)
        for channel in self._own_channels:
            self.send(CloseStream(channel))

    def _on_closed(self) -> None:
        for sender, _ in self.worker.senders:
            sender.halt()
        self.worker.pictures.clear()
        self.worker.trainer_gone()
        super()._on_closed()
