"""A trainer's end of a link, and the trainer's state that outlives links. Sans-I/O."""

# Theory of operation
#
# A trainer's side: `TrainerState` lives as long as the process, `TrainerConnection` as long as one link. What must
# survive a lost link, or goes into a checkpoint, is in the state: the receiver of each stream with its committed
# offset, samples that wait for the training thread (`Inbox`), the latest policy, report and directives. Channels,
# credit and what was told belong to a link.
#
# Two threads use the state. The I/O thread delivers, the training thread takes and commits. `lock` guards the inbox,
# the receivers, members and `to_acknowledge`. The policy, the report and each directive are last values, replaced by
# one assignment. Nothing is decoded here: when samples enter the memory must not depend on when they arrive.
#
# A stream: `StreamOpened` -> its record is checked, if this trainer authenticates -> a member, and `Resume` with the
# first number that is lacking -> messages -> inbox -> `take`, commit by the memory -> `acknowledge` -> `Ack` at the
# next output -> `StreamClosed`. Its receiver stays after that, since the stream may come back. 4,096 absent ones are
# kept; which of them are forgotten first is decided so that nobody can push out another's (`forgotten_streams.py`).
#
# Credit. The relay may send `_inbox_bytes` that the training thread has not taken, counted over all streams, since it
# sends one message at a time. Example with 64 MB: all of it was granted and 60 MB wait in the inbox while the trainer
# computes a long update. It takes 20 MB; 20 MB are granted again, in one message, because that is more than an eighth.
# A message that comes with less granted than its bytes ends the link: the Server does not keep to the credit.
#
# Three ways not to take a message, besides taking it:
#
# - it does not open (a wrong proof, an unknown run key): it has not arrived. The rest of the epoch is ignored and it is
#   requested again after 1 s, 2 s, ... up to 60 s. The worker keeps it, so a forgery costs time and no sample.
# - the inbox does not admit it (it would take gigabytes in memory): as before, but requested once there is room, the
#   streams of one origin one at a time (`postponed.py`).
# - its stream has no valid record: each message is refused, with the reason, without a proof and without a state that
#   outlives the channel. So nobody can use a forged announcement to change what is remembered of a genuine stream.
#
# A stream of a machine with another mode of authentication is left where it is (`Halt`): its samples are neither forged
# nor lost, and a person has to decide.
#
# The policy. One version is in transit; `Have` from the Server lets the next one begin, and it is then the latest. For
# thin links it is packed, mostly as a delta to an earlier one (`delta_base.py`). MACs for large ones go to at most 64
# streams, 8 of one certificate, since samples wait while they are computed, and in letters, which precede the policy's
# first frame.
#
# The report. Workers wait for their turn, which is reported at once. Counts and what the trainer lacks change with
# every round; they are reported 250 times a second at most, to all workers together: to each of 200 once in 0.8 s. But
# a trainer that has waited for samples for 0.1 s says so, and the counts with it, in case workers wait for these.
#
# Incarnations. Without authentication the Server assigns them. A trainer that authenticates takes the number above its
# checkpoint's and its credentials folder's, stores it before it is used (`hold`), and only follows plausible
# suggestions, up to 2^20 above its own. Each makes it seal and publish everything again. The relay suggests as often as
# workers report a higher one, which it limits for each of them; a Server that was taken over may suggest ever higher
# ones, as it may withhold everything.
#
# Bounds. Everything that a Server or a worker can make grow here has a limit beside it: members, signatures, reasons,
# directives, forgotten streams, one incomplete message. `_MAX_DIRECTIVES` and the others say how many and why.

from __future__ import annotations

import heapq
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from tmrl_core.bounded_texts import BoundedTexts
from tmrl_core.errors import CredentialsError, ForgedError, LocalProtocolError, RemoteProtocolError, UnknownRunKeyError
from tmrl_core.networking.protocol.buffer_pool import BodyPool
from tmrl_core.networking.protocol.client import ClientConnection, ClientState
from tmrl_core.networking.protocol.delivery import Body, CommittedOffset, PostponedError, Received, StreamReceiver
from tmrl_core.networking.protocol.framing import FIRST, LAST, Frame, Kind, Wire, cut, message_bytes, spare
from tmrl_core.networking.protocol.messages import (
    ALL_CHANNELS,
    AUTHENTICATED,
    LEGAL,
    MAX_BODY_BYTES,
    MAX_NAME_CHARACTERS,
    MAX_REASON_CHARACTERS,
    MAX_WAITS_CHARACTERS,
    MOST_RAISED,
    POLICY_DELTA,
    POLICY_DELTA_HEAD,
    POLICY_HEAD,
    SAMPLES_HEAD,
    Ack,
    Announce,
    Command,
    Control,
    Credit,
    Direct,
    Directive,
    Forged,
    Halt,
    Have,
    Hello,
    Incarnation,
    Lateness,
    Notice,
    PolicyUpdate,
    Progress,
    Refusal,
    Report,
    Resume,
    Revoked,
    Show,
    StreamClosed,
    StreamOpened,
    Waits,
    Watched,
    Welcome,
    control_frame,
    decode_body,
    encode_body,
    plain,
    samples_head,
)
from tmrl_core.networking.protocol.packed_policy import pack
from tmrl_core.networking.trainer.delta_base import DeltaBase
from tmrl_core.networking.trainer.forgotten_streams import ForgottenStreams
from tmrl_core.networking.trainer.inbox import Inbox
from tmrl_core.networking.trainer.members import Member, Members
from tmrl_core.networking.trainer.orders import Orders
from tmrl_core.networking.trainer.postponed import Postponed
from tmrl_core.networking.trainer.telemetry import TelemetrySource, TelemetryTimes

if TYPE_CHECKING:  # loaded only where authentication is on
    from tmrl_core.networking.end_to_end.identity import Peer
    from tmrl_core.networking.trainer.seal import OpenedStream, TrainerSeal

MOST_MESSAGE_BYTES = 1 << 30
"""Maximum size of a message of samples from any Server. The first frame allocates memory for the whole message."""
MAX_MEMBERS = 32_768
"""Maximum number of streams on a link, as many as a Server knows."""
MAX_SIGNATURES_BYTES = 32 << 20
"""Maximum size of the signatures of all members. Later members have none, so only their samples are checked."""
MOST_RECORD_RAISES = 16
"""Number of times that the records of one worker can raise the incarnation: each makes the trainer publish again."""
RETRY_MIN_S, RETRY_MAX_S = 1.0, 60.0
"""Seconds after which a message that did not open is requested again, the first time and after many."""
_RETRY_PASS_S = 0.1
"""Time between two searches for messages to request again: each looks at all streams that have sent a bad one."""
PROVEN_POLICY_BYTES = 1 << 20
"""Size from which workers receive MACs of a policy, which take a tenth of the time of hashing it."""
MAX_PROVEN = 64
"""Maximum number of streams that receive MACs of each policy, each of which takes 50 to 170 us/MB here."""
MAX_PROVEN_OF_ONE = 8
"""Maximum number of them for one certificate. Samples wait while they are computed, and thousands of streams would take
the MACs that honest workers leave. Other workers of that certificate check the signature."""
_MAX_DIRECTIVES = 4_096
"""Number of directives above which those for forgotten streams are removed."""
_MAX_REASONS, _MAX_REASONS_EACH = 1_024, 128
"""Maximum number of different reasons for refusing samples in the life of a process, and of those for a certificate.
Workers influence the texts, and each stream keeps its latest hundred."""
_FURTHER_REASONS = "samples were refused for many different reasons; the trainer's log has some of them"
_STORED_REASON_CHARACTERS = 100
"""Maximum length of a reason in a checkpoint, in ASCII. A checkpoint holds twenty of each stream."""
_REPORTS_PER_S = 250
"""Reports of counts, to all workers together: each costs the Server a message and a worker's machine a proof."""
_LACK_S = 0.1
"""Time after which a trainer that lacks samples says so, if the rate of reports does not allow it before."""
_FORGOTTEN_STREAMS = 4_096
"""Maximum number of absent streams whose offsets are kept, in case they return: besides those that are away for a
moment, of which half as many are kept, or as many as a lost link had."""
_SEARCHED_STREAMS = 512
"""Number of the oldest absent streams among which one without a committed message is forgotten first."""


class TrainerState(ClientState):
    """A trainer's side of delivery and of the last-value channels.

    Args:
        inbox_bytes: maximum bytes of samples that wait for the training thread.
        incarnation: highest incarnation in the checkpoint that this trainer resumes from.
        offsets: committed offset of each stream in that checkpoint.
        refusals: recent refusals of each stream in that checkpoint.
        seal: authenticates samples and what goes to the workers; None: nothing is authenticated, and the Server assigns
            the incarnation.
        hold: with a seal, stores an incarnation above `incarnation` durably, before it is used.
        packs: policies are sent packed, as deltas where that is possible.
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
        offsets: Mapping[bytes, CommittedOffset] | None = None,
        refusals: Mapping[bytes, Iterable[Refusal]] | None = None,
        seal: TrainerSeal | None = None,
        hold: Callable[[int], None] = lambda incarnation: None,
        packs: bool = False,
    ) -> None:
        super().__init__(run=run, name=name, peer=peer, token=token)
        self.packs = packs
        self._complete: tuple[int, bytes] | None = None
        """Counter of the last policy that was packed completely, and its bytes."""
        self.on_remark: Callable[[str, str], None] = lambda text, name: None
        """Called with a reason why samples of a stream are not taken, and the name in the certificate of the stream
        (empty: it has no valid record). The callee limits the rate of its log."""
        self.incarnation = incarnation
        self.holding = 0
        """The incarnation of this process; 0: none yet."""
        self.seal = seal
        self._hold = hold
        self._raises: Counter[str] = Counter()
        """Number of raises of the incarnation by the records of each worker, by the identity in its certificate."""
        if seal is not None:
            self._take_incarnation(incarnation + 1)
        self.counter = counter
        self.inbox_bytes = inbox_bytes
        self.lock = threading.Lock()
        """Guards inbox, offsets and acknowledgements: the training thread takes and commits while links deliver."""
        self.inbox = Inbox()
        self._bodies = BodyPool()
        self.receivers: OrderedDict[bytes, StreamReceiver] = OrderedDict()
        self._forgotten = ForgottenStreams()
        self._search_above = _FORGOTTEN_STREAMS
        """Number of streams above which absent ones are forgotten."""
        for stream, offset in (offsets or {}).items():
            if not self._forgotten.restore(stream, offset[0]):
                self.receivers[stream] = StreamReceiver(stream, CommittedOffset(*offset), self._bodies)
        for stream, told in (refusals or {}).items():
            if stream in self.receivers:
                self.receivers[stream].remember(told)
        self._away: OrderedDict[bytes, None] = OrderedDict.fromkeys(self.receivers)
        """Streams that may return at any moment, since their link, this trainer's or its process was lost."""
        self._most_away = max(_FORGOTTEN_STREAMS // 2, len(self._away))
        self.members = Members()
        self.names: dict[bytes, str] = {}
        self.waits: dict[bytes, str] = {}
        """Wait reason of each member; empty text: the worker collects."""
        self.lateness: dict[bytes, Lateness] = {}
        """Lateness of the steps of members whose environments have a rate."""
        self.to_acknowledge: dict[bytes, None] = {}
        """Streams with unsent acknowledgements, in order of their commits."""
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
        self._prune_above = _MAX_DIRECTIVES
        self._reasons = BoundedTexts(_MAX_REASONS, _MAX_REASONS_EACH)
        self.notice = Notice(0, 0, 0)
        self.telemetry: TelemetrySource | None = None
        """Makes scenes and histories for viewers; None: nothing is shown."""
        self.orders = Orders(run)
        """Orders of operators."""

    def hello(self) -> Hello:
        """Return the first message to a Server."""
        return msgspec.structs.replace(super().hello(), holding=self.holding, announces=self.seal is not None)

    def publish(self, update: PolicyUpdate) -> tuple[int, int]:
        """Make `update` the latest policy. Return its present version, which a new incarnation may raise.

        Raises:
            LocalProtocolError: workers could not decode the policy.
        """
        body = encode_body(update)
        try:
            decode_body(body, PolicyUpdate)
        except RemoteProtocolError as exc:
            raise LocalProtocolError(
                f"the policy update was not published: workers could not decode it: {exc}"
            ) from exc
        self.counter += 1
        self.published += 1
        self.policy = (self.counter, body)  # one assignment, because a link's thread may read it at the same time
        return self.version

    def complete(self, counter: int, body: bytes) -> bytes:
        """Return what to send of a policy to those who have none."""
        if not self.packs:
            return body
        # The same bytes over each link: they are never encrypted again under one version.
        if self._complete is None or self._complete[0] != counter:
            self._complete = counter, pack(body)
        return self._complete[1]

    @property
    def version(self) -> tuple[int, int]:
        """Return the version of the latest policy."""
        return (self.holding or self.incarnation, self.counter)

    def _take_incarnation(self, incarnation: int) -> None:
        self._hold(incarnation)
        self.holding = self.incarnation = incarnation

    def raise_to(self, incarnation: int) -> None:
        """Take an incarnation if it is plausible."""
        if self.holding < incarnation <= self.holding + MOST_RAISED:
            try:
                self._take_incarnation(incarnation)
            except CredentialsError as exc:
                self.on_remark(f"incarnation {incarnation} is not used: {exc}", "")

    def may_raise(self, worker: Peer) -> bool:
        """Count a worker's record that claims a higher incarnation. Return False if it has had too many of them."""
        self._raises[worker.identity] += 1
        if self._raises[worker.identity] <= MOST_RECORD_RAISES:
            return True
        self.on_remark(
            f"worker {plain(worker.name, MAX_NAME_CHARACTERS)} repeatedly claims higher incarnations of a trainer, "
            "which are ignored from now on. If its machine was not stolen, start the trainer again",
            worker.name,
        )
        return False

    def receiver(self, stream: bytes) -> StreamReceiver:
        """Return the receiver of `stream`; create it for a new stream. The caller holds the lock."""
        receiver = self.receivers.get(stream)
        if receiver is None:
            receiver = self.receivers[stream] = StreamReceiver(stream, bodies=self._bodies)
            if len(self.receivers) > self._search_above:
                self._forget_streams(stream)
        else:
            self.receivers.move_to_end(stream)
            self._away.pop(stream, None)
        return receiver

    def lose_members(self) -> None:
        """Take all members for away, because the link has ended. The caller holds the lock.

        A fleet of any size returns when the Server does, and finds its offsets.
        """
        self._away.update(dict.fromkeys(self.members))
        self._most_away = max(_FORGOTTEN_STREAMS // 2, len(self._away))
        self.members.clear()

    def lose_stream(self, stream: bytes) -> None:
        """Take a stream for away, because its worker's link was lost. The caller holds the lock."""
        self._away[stream] = None
        if len(self._away) > self._most_away:
            self._away.popitem(last=False)

    def _forget_streams(self, newest: bytes) -> None:
        if len(self.receivers) > MAX_MEMBERS + _FORGOTTEN_STREAMS:
            self._away.clear()  # no honest fleet has as many: the memory stays bounded
        absent = [
            other
            for other in self.receivers
            if other != newest and not (other in self.members or other in self._away or self._waits(other))
        ]
        # Several at a time, and not again at once if few are absent, because each search looks at all streams.
        room = max(1, _FORGOTTEN_STREAMS // 16)
        most = max(0, len(absent) + 1 - _FORGOTTEN_STREAMS + room)
        if self.seal is None:
            # A stream without a committed message has no offset to lose. A flood of them replaces itself first.
            oldest = absent[: max(most, _SEARCHED_STREAMS)]
            chosen = sorted(oldest, key=lambda one: self.receivers[one].offset.next_number > 0)[:most]
        else:
            chosen = self._forgotten.choose(self.receivers, absent, most)
        for other in chosen:
            del self.receivers[other]
            self.names.pop(other, None)
            if self.seal is not None:
                self._forgotten.add(other)
        self._search_above = max(_FORGOTTEN_STREAMS, len(self.receivers) + room)

    def check_stream(self, stream: bytes, name: str) -> None:
        """Check that an authenticated stream, of a certificate with that name, is not one that was forgotten here.

        Raises:
            ForgedError: it may be.
        """
        if self.seal is not None and stream not in self.receivers and self._forgotten.may_hold(stream):
            reason = (
                "a stream is not newer than others of its worker that this trainer has forgotten, so its samples may "
                "be in the memory already: restart its worker, once the clock of its machine is set"
            )
            self.seal.count(reason, name)
            raise ForgedError(reason)

    def _waits(self, stream: bytes) -> bool:
        receiver = self.receivers[stream]
        return receiver.offset.next_number != receiver.next_number

    def take(self) -> list[Received]:
        """Return arrived messages that were not taken yet, see `Inbox.take`. Their bytes become credit again."""
        with self.lock:
            return self.inbox.take()

    def acknowledge(self, received: Received, refused: str | None = None) -> None:
        """Acknowledge one message that `take` has returned.

        Raises:
            LocalProtocolError: the message has not arrived.
        """
        with self.lock:
            self.receivers[received.stream].commit(received.number, refused)
            if refused is not None:
                self.samples_refused += received.samples
            self.to_acknowledge[received.stream] = None

    def refuse(self, received: Received, reason: str) -> None:
        """Acknowledge a message that the memory cannot store as refused; the worker receives the reason."""
        text = self._reasons.keep(plain(reason, MAX_REASON_CHARACTERS), self.origin(received.stream))
        self.acknowledge(received, refused=_FURTHER_REASONS if text is None else text)

    def has_of_first(self, arrived: int) -> bool:
        """Return True until calls of `take` have returned the first `arrived` messages that have arrived."""
        with self.lock:
            return self.inbox.has_of_first(arrived)

    def worker_name(self, stream: bytes) -> str:
        """Return the label of a stream's worker, which may have left."""
        return self.names.get(stream, stream.hex()[:8])

    def origin(self, stream: bytes) -> str:
        """Return the name in the certificate of a stream's worker; without authentication, the worker's first label."""
        receiver = self.receivers.get(stream)
        return (receiver.origin if receiver is not None else None) or self.worker_name(stream)

    def waits_of(self, stream: bytes) -> str:
        """Return the wait reason of the worker of one stream; empty text: the worker collects, or is not linked."""
        with self.lock:
            return self.waits.get(stream, "")

    def all_wait(self, matches: Callable[[str], bool]) -> bool:
        """Return True if the wait reasons of all linked workers match; the search ends at the first that does not."""
        with self.lock:
            return all(matches(self.waits.get(stream, "")) for stream in self.members)

    def take_member_changes(self) -> tuple[dict[bytes, Member], set[bytes]]:
        """Return the workers that were linked, and the streams that have left, since the last call; see `Members`."""
        with self.lock:
            return self.members.take_changes()

    def direct(self, directive: Directive, stream: bytes | None) -> None:
        """Make a directive the latest one for a stream, or for all workers (None).

        Raises:
            ValueError: the directive is larger than `MAX_BODY_BYTES`.
        """
        size = len(encode_body(directive))
        if size > MAX_BODY_BYTES:
            raise ValueError(f"the directive takes {size} bytes; a message holds {MAX_BODY_BYTES}")
        self.directives[stream] = directive
        if len(self.directives) <= self._prune_above:
            return
        with self.lock:  # those of streams that may return stay
            # A copy, because the I/O thread removes directives without the lock.
            for other in self.directives.copy():
                if other is not None and other not in self.receivers:
                    self.directives.pop(other, None)
        self._prune_above = max(_MAX_DIRECTIVES, 2 * len(self.directives))

    def offsets_after(self, received: Iterable[Received]) -> dict[bytes, CommittedOffset]:
        """Return the offsets that these messages' streams have once all messages up to them are committed."""
        latest = {one.stream: one.number for one in received}  # each search looks at all messages of a stream
        with self.lock:
            return {stream: self.receivers[stream].offset_after(number) for stream, number in latest.items()}

    def offsets_of(self, streams: Iterable[bytes]) -> dict[bytes, CommittedOffset]:
        """Return the committed offsets of these streams."""
        with self.lock:
            return {stream: self.receivers[stream].offset for stream in streams}

    @property
    def offsets(self) -> dict[bytes, CommittedOffset]:
        """Return the committed offset of each stream, and marks of forgotten ones.

        A checkpoint stores the offsets together with the matching memory.
        """
        with self.lock:
            known = {stream: receiver.offset for stream, receiver in self.receivers.items()}
            return known | {mark: CommittedOffset(start, 0) for mark, start in self._forgotten.marks.items()}

    @property
    def refusals(self) -> dict[bytes, tuple[Refusal, ...]]:
        """Return the recent refusals of each stream, with shortened reasons.

        A checkpoint stores them with the committed offsets.
        """
        with self.lock:
            return {
                stream: tuple(
                    (number, reason.encode("ascii", "backslashreplace").decode()[:_STORED_REASON_CHARACTERS])
                    for number, reason in told
                )
                for stream, receiver in self.receivers.items()
                if (told := receiver.refusals)
            }


def _without_counts(progress: Progress) -> Progress:
    return msgspec.structs.replace(progress, samples=0, updates=0, lack="")


class TrainerConnection(ClientConnection):
    """A trainer's end of one link."""

    LEGAL = LEGAL["trainer"]

    def __init__(self, state: TrainerState, **times: float) -> None:
        super().__init__(state, **times)
        self.source, self.takes = self._next_frame, Kind.DATA
        self.trainer = state
        self._channels: dict[int, StreamReceiver] = {}
        self._refused_channels: dict[int, tuple[str, int]] = {}
        """Channels of streams without a proof of their origin: the reason, and the number of the latest message."""
        self._retries: dict[int, tuple[float, float]] = {}
        """Channels with a message that did not open: time of the next request for it, and the wait after that."""
        self._postponed = Postponed(state.inbox)
        self._origins: Counter[str | None] = Counter()
        """Number of channels of each origin."""
        self._retry_at = float("inf")
        self._signatures_bytes = 0
        self._stream_channels: dict[bytes, int] = {}
        self._openers: dict[bytes | None, OpenedStream] = {}
        """Authenticated streams whose workers are linked."""
        self._data_bytes = 0
        self._partial_bytes = 0
        self._partial_channel = 0
        self._granted = 0
        self._inbox_bytes = state.inbox_bytes
        self._max_message_bytes = self._largest_bytes = 0
        self._sent_version = (0, 0)
        self._deltas = DeltaBase()
        self._told_forged = 0
        self._in_flight = False
        self._cutter: Iterator[Wire] | None = None
        self._telemetry_times = TelemetryTimes()
        self._reported: Progress | None = None
        self._reported_at = float("-inf")
        self._report_at = self._lack_at = float("inf")
        """Times of the next report, and of one because the trainer lacks samples or has them again."""

    def _on_control(self, message: Control) -> None:
        state = self.trainer
        match message:
            case Welcome():
                self._welcomed(message)
                if message.anew and state.seal is None:
                    state.incarnation = 0
                self._given(message.incarnation)
                self._max_message_bytes = min(message.max_message_bytes, MOST_MESSAGE_BYTES)
                # One message always fits, because the relay sends only complete messages that fit the credit.
                self._largest_bytes = message_bytes(SAMPLES_HEAD, self._max_message_bytes)
                self._inbox_bytes = max(state.inbox_bytes, self._largest_bytes)
                self._send_report()
                if None in state.directives:
                    self.direct(None)
                if state.telemetry is not None:
                    self._telemetry_times.begin(self._now)
            case StreamOpened():
                self._joined(message)
            case StreamClosed():
                self._left(message)
            case Waits():
                receiver = self._channels.get(message.channel)
                if receiver is not None:
                    state.waits[receiver.stream] = plain(message.text, MAX_WAITS_CHARACTERS)
            case Lateness():
                receiver = self._channels.get(message.channel)
                if receiver is not None:
                    with state.lock:
                        state.lateness[receiver.stream] = message
                return
            case Incarnation():
                self._given(message.incarnation)
            case Have():
                self._in_flight = False
                self._deltas.confirmed((message.incarnation, message.counter), state.holding)
                self.wake()
            case Notice():
                state.notice = message
                return
            case Revoked():
                state.on_revocations(message.body)
            case Watched():
                if state.telemetry is not None:
                    self._telemetry_times.watched(message.viewers, message.joined, self._now)
                    self._show_due()
                return
            case Command():
                state.orders.received(message.body, state.seal)
                self.show_now()
        state.on_change()

    def suggest(self, incarnation: int) -> None:
        """Take a higher incarnation, as if the Server had suggested it."""
        self._given(incarnation)

    def _given(self, incarnation: int) -> None:
        """Handle the incarnation that the Server assigns, or suggests to a trainer that chooses its own."""
        state = self.trainer
        if state.seal is None:
            state.holding = incarnation
            state.incarnation = max(state.incarnation, incarnation)
        else:
            before = state.holding
            state.raise_to(incarnation)
            self._raised(before)

    def _raised(self, before: int) -> None:
        """Announce the incarnation. If it is a higher one, replace what was sealed before and would come too late."""
        self.announce()
        if self.trainer.holding > before:
            self._send_report()
            for stream in dict.fromkeys((*self.trainer.directives, *self._openers)):
                self.direct(stream)

    def announce(self) -> None:
        """Send the run card, which may have changed."""
        state = self.trainer
        if self.state == "open" and state.seal is not None:
            self.send(Announce(state.holding, state.seal.card(state.holding)))

    def _joined(self, message: StreamOpened) -> None:
        state = self.trainer
        if len(self._channels) + len(self._refused_channels) >= MAX_MEMBERS:
            raise RemoteProtocolError(f"more than {MAX_MEMBERS} streams were announced")
        if message.channel in self._channels or message.channel in self._refused_channels:
            raise RemoteProtocolError(f"channel {message.channel} was announced twice")
        opener: OpenedStream | None = None
        signature = message.signature
        if state.seal is not None:
            try:
                opener = state.seal.open_record(message.stream, signature, stored=not message.live)
                state.check_stream(message.stream, opener.name)
            except ForgedError as exc:
                if signature.startswith(AUTHENTICATED):
                    self._refuse_stream(message, exc)
                else:
                    self._leave_stream(message, "does not authenticate its samples and this trainer checks them")
                return
            signature, opener.signature = opener.signature, b""  # members have it, in a limited number of bytes
            if opener.incarnation > (before := state.holding) and state.may_raise(opener.peer):
                state.raise_to(opener.incarnation + 1)  # otherwise its worker would not follow this trainer
                if state.holding > before:  # the Server takes a repeated number for one that this trainer keeps
                    self._raised(before)
        elif signature.startswith(AUTHENTICATED):
            self._leave_stream(message, "authenticates its samples and this trainer does not check them")
            return
        if message.stream in self._stream_channels:
            # With two channels, it would be forgotten at the end of the first, while samples come on the second.
            raise RemoteProtocolError("a stream was announced on two channels")
        with state.lock:
            receiver = state.receiver(message.stream)
            receiver.opener = opener
            self._channels[message.channel] = receiver
            self._stream_channels[message.stream] = message.channel
            name = plain(message.name, MAX_NAME_CHARACTERS)
            if receiver.origin is None:
                receiver.origin = opener.name if opener is not None else name
            self._count_origin(receiver.origin, 1)
            self._forget_member(message.stream)
            if self._signatures_bytes + len(signature) > MAX_SIGNATURES_BYTES:
                signature = b""
            self._signatures_bytes += len(signature)
            state.members[message.stream] = Member(message.stream, name, signature, self._now, message.live)
            state.names[message.stream] = name
            self.send(Resume(message.channel, receiver.attach()))
            state.to_acknowledge[message.stream] = None
        if opener is not None and message.live:
            self._openers[message.stream] = opener
        self.direct(message.stream)

    def _count_origin(self, origin: str | None, channels: int) -> None:
        self._origins[origin] += channels
        if not self._origins[origin]:
            del self._origins[origin]
        self.trainer.inbox.shared = len(self._origins) > 1

    def _leave_stream(self, message: StreamOpened, cause: str) -> None:
        """Leave a stream where it is, in its worker or in the Server's spool, because the machines' modes differ."""
        name = plain(message.name, MAX_NAME_CHARACTERS)
        advice = "use the same network.end_to_end on all machines"
        if not message.live:
            cause = f"{cause}, and the Server stores them"
            if not message.signature.startswith(AUTHENTICATED):
                advice = "to take them, run the trainer once with network.end_to_end: off"
        else:
            self.send(Halt(message.channel, f"this worker {cause}: {advice}"))
        self.trainer.on_remark(f"worker {name} {cause}, so they stay there: {advice}", "")

    def _refuse_stream(self, message: StreamOpened, error: ForgedError) -> None:
        """Refuse a stream without a proof of its origin, message by message. It has no state that outlives its channel.

        Its acknowledgements have no tag, so that a worker that authenticates its stream ignores them. They release what
        the Server's spool stores, so an unsent one is replaced by the next: a burst of messages gets one answer.
        """
        reason = f"this trainer takes authenticated samples only (network.end_to_end): {plain(str(error), 300)}"
        self._refused_channels[message.channel] = reason[:MAX_REASON_CHARACTERS], 0
        self.send(Resume(message.channel, 0))

    def _refuse_frame(self, frame: Frame, reason: str, number: int) -> None:
        if frame.flags & FIRST:
            number = samples_head(frame.payload)[0]
            self._refused_channels[frame.channel] = reason, number
        if frame.flags & LAST:
            self.put(("refused", frame.channel), Ack(frame.channel, number + 1, ((number, reason),)))

    def _forget_member(self, stream: bytes) -> None:
        member = self.trainer.members.pop(stream, None)
        if member is not None:
            self._signatures_bytes -= len(member.signature)

    def _left(self, message: StreamClosed) -> None:
        if message.channel == self._partial_channel:
            self._abandon_partial()  # the rest of its message will not arrive
        self._refused_channels.pop(message.channel, None)
        self.withdraw(("refused", message.channel))
        self._retries.pop(message.channel, None)
        self._postponed.discard(message.channel)
        receiver = self._channels.pop(message.channel, None)
        if receiver is None:
            return
        self._count_origin(receiver.origin, -1)
        if self._stream_channels.get(receiver.stream) == message.channel:
            del self._stream_channels[receiver.stream]
            self._openers.pop(receiver.stream, None)
            with self.trainer.lock:
                self._forget_member(receiver.stream)
                self.trainer.waits.pop(receiver.stream, None)
                self.trainer.lateness.pop(receiver.stream, None)
                if message.ended and receiver.stream in self.trainer.receivers:
                    # This stream does not return, so it is forgotten before streams that may return.
                    self.trainer.receivers.move_to_end(receiver.stream, last=False)
                elif not message.ended:
                    self.trainer.lose_stream(receiver.stream)
            if message.ended:
                self.trainer.directives.pop(receiver.stream, None)

    def _on_frame(self, frame: Frame) -> None:
        state = self.trainer
        if frame.channel != self._partial_channel:
            # The relay sends one message at a time. A fake Server could fill the memory with one on each channel.
            self._abandon_partial()
        self._data_bytes += len(frame.buffer)
        if self._data_bytes > self._granted + self._inbox_bytes:
            raise RemoteProtocolError("more samples were sent than this trainer has granted credit for")
        self._partial_bytes = len(frame.buffer) + (0 if frame.flags & FIRST else self._partial_bytes)
        self._partial_channel = frame.channel
        if frame.flags & LAST:
            self._partial_bytes = 0
        receiver = self._channels.get(frame.channel)
        if receiver is None:
            if frame.channel in self._refused_channels:
                self._refuse_frame(frame, *self._refused_channels[frame.channel])
            return  # otherwise the stream has left meanwhile or returned under another channel
        origin = receiver.origin or ""
        with state.lock:
            # Totals of the process grow by what this frame changes; a receiver that is forgotten takes its own numbers
            # with it.
            gap_messages, gap_samples, duplicates = receiver.gap_messages, receiver.gap_samples, receiver.duplicates
            try:
                received, ask = receiver.frame(frame, self._max_message_bytes, partial(state.inbox.admits, origin))
            except PostponedError:
                self._retries.pop(frame.channel, None)
                self._postponed.add(frame.channel, origin, self._now)
                received, ask = None, False
            except (ForgedError, UnknownRunKeyError) as exc:
                if isinstance(exc, UnknownRunKeyError) and receiver.opener is not None:
                    state.on_remark(
                        f"{exc}: samples of worker {state.names[receiver.stream]} wait. If they do not arrive, copy "
                        "the run's key from run_keys in the credentials folder of the machine that trained this run "
                        "before to run_keys/older here, and restart. If there was none, check the Server's host",
                        receiver.opener.name,
                    )
                self._postponed.discard(frame.channel)
                self._request_later(frame.channel)
                received, ask = None, False
            if received is not None:
                receiver.heard_at = self._now
                state.inbox.append(received, origin)
                state.samples_received += received.samples
                state.messages_received += 1
                state.gap_messages += receiver.gap_messages - gap_messages
                state.gap_samples += receiver.gap_samples - gap_samples
            elif receiver.duplicates != duplicates:
                state.duplicates += 1
                state.to_acknowledge[receiver.stream] = None
        if not receiver.in_message:
            self._partial_bytes = 0  # the rest of an ignored message may never arrive
        spare(frame.buffer)  # its payload has been copied
        if received is not None:
            self._retries.pop(frame.channel, None)
            self._postponed.discard(frame.channel)
            if self._postponed.due_at != float("inf"):
                self._request_postponed()
            state.on_change()
        if ask:
            self.send(Resume(frame.channel, receiver.next_number))

    def _abandon_partial(self) -> None:
        """Discard the incomplete message, whose bytes become credit again."""
        receiver = self._channels.get(self._partial_channel)
        if receiver is not None:
            receiver.abandon()
        self._partial_bytes = 0

    def _request_later(self, channel: int) -> None:
        """Request a message that did not open again, after a time that grows with each failure."""
        _, wait_s = self._retries.get(channel, (0.0, RETRY_MIN_S))
        self._retries[channel] = self._now + wait_s, min(2 * wait_s, RETRY_MAX_S)
        self._retry_at = min(self._retry_at, self._now + wait_s)

    def tick(self, now: float) -> None:
        """Handle the passing of time: request messages that did not open or wait, and show what is due."""
        super().tick(now)
        if now >= self._postponed.due_at:
            self._request_postponed()
        self._show_due()
        self._report_due()
        if now < self._retry_at or self.closing:
            return
        self._retry_at = float("inf")
        for channel, (due, wait_s) in self._retries.items():
            if due <= now:
                # Requested: not again before the answer has come and failed. The wait for that time is kept.
                self._retries[channel] = float("inf"), wait_s
                self.send(Resume(channel, self._channels[channel].next_number))
            else:
                self._retry_at = min(self._retry_at, max(due, now + _RETRY_PASS_S))

    def _request_postponed(self) -> None:
        if self.closing:
            return
        for channel in self._postponed.take_due(self._now):
            self.send(Resume(channel, self._channels[channel].next_number))

    def deadline(self) -> float:
        """Return the latest time for the next call of `tick`."""
        shows = self.trainer.telemetry is not None and self.state == "open" and not self.closing
        shown_at = self._telemetry_times.due_at if shows else float("inf")
        return min(super().deadline(), self._retry_at, self._postponed.due_at, self._report_at, shown_at)

    def show_now(self) -> None:
        """Send viewers a scene, because something has changed that somebody waits for."""
        self._telemetry_times.hurry(self._now)
        # At once: the link may be closed next.
        self._show_due()
        self.wake()

    def _show_due(self) -> None:
        """Send viewers what is due."""
        state = self.trainer
        if state.telemetry is None or self.state != "open" or self.closing or self._now < self._telemetry_times.due_at:
            return
        for part in self._telemetry_times.take_due(self._now):
            body = state.telemetry.scene() if part == "scene" else state.telemetry.history()
            if state.seal is not None:
                body = state.seal.seal_telemetry(state.holding, part, body)
            self.put(part, Show(part, body))

    def direct(self, stream: bytes | None) -> None:
        """Send the directive for `stream` (None: for all streams) if the stream is linked."""
        channel = ALL_CHANNELS if stream is None else self._stream_channels.get(stream)
        if channel is None or self.state != "open":
            return
        state = self.trainer
        directive = state.directives.get(stream)
        body = encode_body(directive) if directive is not None else b""
        # A finish is also for workers that connect after this trainer has left.
        lasting = stream is None and directive is not None and directive.finish
        if stream in self._openers:
            body = self._openers[stream].letter(state.holding, body)
        elif state.seal is not None and body:
            readable = lasting  # the Server knows it anyway, and no later worker would have the key
            body = state.seal.seal_directive(state.holding, body, readable=readable) if stream is None else b""
        if not body:
            return
        revision = directive.revision if directive is not None else 0
        self.put(("direct", channel), Direct(channel, revision, body, lasting))

    def report(self) -> None:
        """Send the trainer's progress: at once if workers may act on what has changed, or soon."""
        progress, before = self.trainer.progress, self._reported
        if progress is None or before is None or _without_counts(progress) != _without_counts(before):
            self._send_report()
        elif self.state == "open":
            self._report_at = self._reported_at + len(self.trainer.members) / _REPORTS_PER_S
            if bool(progress.lack) == bool(before.lack):
                self._lack_at = float("inf")
            else:
                self._lack_at = min(self._lack_at, self._now + _LACK_S)
                self._report_at = min(self._report_at, self._lack_at)
            self.wake()

    def _send_report(self) -> None:
        state = self.trainer
        if self.state == "open" and state.progress is not None:
            self._reported, self._reported_at = state.progress, self._now
            self._report_at = self._lack_at = float("inf")
            body = encode_body(state.progress)
            self.put("report", Report(body if state.seal is None else state.seal.seal_report(state.holding, body)))

    def _report_due(self) -> None:
        if self._now >= self._report_at and not self.closing:
            self._send_report()

    def to_send(self, now: float) -> list[bytes | bytearray | memoryview]:
        """Return the buffers to send now, acknowledgements, credit and the latest policy included."""
        if self.state != "open" or self.closing:
            return super().to_send(now)
        self._now = now
        state = self.trainer
        if state.seal is not None and state.seal.forged != self._told_forged:
            self._told_forged = state.seal.forged
            self._slots["forged"] = Forged(self._told_forged)
        if self._postponed.due_at != float("inf"):
            self._request_postponed()  # what was taken has made room
        self._show_due()
        self._report_due()
        if state.to_acknowledge:
            with state.lock:
                streams, state.to_acknowledge = state.to_acknowledge, {}
                for stream in streams:
                    channel = self._stream_channels.get(stream)
                    # Usually one; more if the reasons of refusals do not fit one frame.
                    while channel is not None and (ack := state.receivers[stream].next_ack(channel)) is not None:
                        self._control.append(control_frame(ack))
        # What has come, without an incomplete message, without what waits, plus the inbox: the total that fits when all
        # that was granted has arrived.
        limit = self._data_bytes - self._partial_bytes - state.inbox.held_bytes + self._inbox_bytes
        next_fits = self._partial_bytes or self._granted - self._data_bytes >= self._largest_bytes
        # Credit is sent for several messages together, unless the next message may not fit the remaining credit.
        if limit - self._granted >= (self._inbox_bytes // 8 if next_fits else 1):
            self._granted = limit
            self._slots["credit"] = Credit(0, 0, limit)
        self._begin_policy()
        return super().to_send(now)

    def _begin_policy(self) -> None:
        """Begin to send the latest policy, unless it was sent or another one is in transit."""
        state = self.trainer
        if state.policy is None or self._in_flight or self._cutter is not None:
            return
        # One read of the pair: the training thread may replace it at any moment.
        counter, body = state.policy
        version = (state.holding, counter)
        if version == self._sent_version:
            return
        # Also before it has arrived: if the link breaks, the next one begins with (0, 0) and sends the latest again.
        self._sent_version = version
        self._in_flight = True
        delta = self._deltas.delta(version, body) if state.packs else None
        if delta is None:
            content = state.complete(counter, body)
            if state.packs:
                self._deltas.begin(version, body, content)
        else:
            content = delta[1]
        parts: Body = (content,) if state.seal is None else state.seal.seal_policy(version, content)
        size = sum(map(len, parts))
        if delta is None:
            self._cutter = cut(Kind.WEIGHTS, POLICY_HEAD.pack(*version, size), parts, epoch=0, channel=0)
        else:
            head = POLICY_DELTA_HEAD.pack(*version, size, *delta[0])
            self._cutter = cut(Kind.WEIGHTS, head, parts, epoch=0, channel=0, flags=POLICY_DELTA)
        if len(content) >= PROVEN_POLICY_BYTES:
            for stream, opener in self._proven():
                opener.prove_policy(version, *parts[:-1])
                self.direct(stream)  # control messages are sent before the policy's first frame

    def _proven(self) -> list[tuple[bytes | None, OpenedStream]]:
        """Return the streams that receive MACs: the first ones of each certificate, then the second ones, and so on."""
        streams_of: Counter[str] = Counter()
        ranked: list[tuple[int, int, bytes | None, OpenedStream]] = []
        for place, (stream, opener) in enumerate(self._openers.items()):
            rank = streams_of[opener.name]
            if rank < MAX_PROVEN_OF_ONE:
                ranked.append((rank, place, stream, opener))
                streams_of[opener.name] += 1
        return [(stream, opener) for _, _, stream, opener in heapq.nsmallest(MAX_PROVEN, ranked)]

    def _next_frame(self) -> Wire | None:
        if self._cutter is None:
            return None
        frame = next(self._cutter)
        if frame.last:
            self._cutter = None
        return frame

    @property
    def all_sent(self) -> bool:
        """Return True if all messages of the trainer were sent and the latest policy has arrived."""
        state = self.trainer
        version = (state.holding, state.policy[0]) if state.policy is not None else self._sent_version
        return not (
            self._control
            or self._slots
            or state.to_acknowledge
            or self._in_flight
            or version != self._sent_version
            or self._report_at != float("inf")
        )

    def _on_closed(self) -> None:
        self._abandon_partial()
        with self.trainer.lock:
            self.trainer.lose_members()
            self.trainer.waits.clear()
            self.trainer.lateness.clear()
        super()._on_closed()
