"""Messages of the protocol: typed control messages, and the heads of samples and policies.

Data from a peer is decoded into one of these declared types, or its connection is closed. The relay forwards
application envelopes (`PolicyUpdate`, `Directive`, `Progress`) as opaque bytes and never decodes them.
"""

# Theory of operation
#
# This file says what peers can tell each other, and nothing about when: the state in which a message is legal stands in
# `LEGAL`, and what it causes in the connections of each role. There are three layers, which three kinds of reader
# decode:
#
# - heads: fixed structs at the start of a DATA or WEIGHTS message. The relay reads them to count and to limit.
# - control messages: MessagePack arrays with a tag, one in a frame. Both ends of a link decode them.
# - envelopes (`PolicyUpdate`, `Directive`, `Progress`, and those of `telemetry.py`): bytes inside a control message or
#   a policy. Worker, trainer and viewer decode them; the relay forwards them. It can therefore neither be broken by
#   their content nor change with it, and they may be sealed or encrypted without its knowledge.
#
# A peer's bytes become one of the declared types with values in the declared ranges, or a RemoteProtocolError that ends
# its link. Ranges stand in the types (`Number`, `Label`, ...), so that msgspec checks them while it decodes: no code
# after it meets a negative count or a text of a megabyte. `Number` ends at 2^63 - 1 and `MAX_NUMBER` at half of that. A
# number that a peer chooses can then be increased by one, or added to a count, without leaving the range of any field
# that carries the sum: a record that cannot be encoded would fail at an honest peer, because of somebody else.
#
# Arrays and not maps: a control message about samples has 10 to 20 bytes then, and the names of its fields would be
# most of a map. `Hello` must stay readable for ever in its first field, which lists versions (`versions_of`).
#
# Which message travels where:
#
#     worker   -> relay             OpenStream, CloseStream, HandOver, Want, Unused, Have, Lacks, Forged, Place
#     worker   -> relay -> trainer  DATA, Waits, Lateness
#     worker   -> relay -> observer Film
#     trainer  -> relay             Credit, Announce, Forged, WEIGHTS
#     trainer  -> relay -> worker   Resume, Halt, Ack, Direct, Report, Announce, WEIGHTS
#     relay    -> worker            Welcome, Refused, Resume, Halt, Stored, Credit, Place, Revoked
#     relay    -> trainer           Welcome, Refused, StreamOpened, StreamClosed, Have, Notice, Incarnation, Revoked,
#                                   Watched
#     observer -> relay             StatusRequest, Watch
#     observer -> relay -> trainer  Command
#     trainer  -> relay -> observer Show, Announce
#     relay    -> observer          Welcome, Refused, StatusPage, Undelivered, Revoked
#
# One message of samples, with everything around it, for a stream that the trainer has never seen:
#
#     worker:   OpenStream(0, id)      relay: StreamOpened(7, id)     trainer: Resume(7, next=0)
#     relay:    Resume(0, next=0, epoch=1, credit=65536)              worker: DATA(channel 0, epoch 1, number 0)
#     relay:    DATA(channel 7, epoch 1, number 0)                    trainer, after its commit: Ack(7, next=1)
#     relay:    Ack(0, next=1)                                        worker: forgets message 0
#
# Wait reasons are texts and not codes, because people read them in the log, in `--status` and in the run's records.
# Those that the trainer must recognise (`TURN`, `NEXT_ROUND`, `EPISODE_END`, `Collect.done`) are made and compared here
# alone, so that worker and trainer cannot differ in them.
#
# `tests/networking/protocol/wire.json.xz` records the bytes of each message. A change of them fails a test until
# `PROTOCOL_VERSION` is raised, so nobody changes the wire by accident.

from __future__ import annotations

import struct
from functools import reduce
from operator import or_
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias

import msgspec

from tmrl_core.decodable import decodable
from tmrl_core.errors import RemoteProtocolError
from tmrl_core.networking.protocol.framing import HEADER, MAX_PAYLOAD_BYTES, Kind
from tmrl_core.networking.protocol.pictures import MAX_PIECES, Wanted
from tmrl_core.networking.protocol.telemetry import MAX_ORDER_BYTES

PROTOCOL_VERSION = 1
"""Version of the protocol. Raise it with each change of what is sent, and record `tests/networking/protocol` anew."""
SUPPORTED_VERSIONS: tuple[int, ...] = (PROTOCOL_VERSION,)
"""Versions that this side speaks, as it offers them: one, since another one is refused with both numbers."""

Number: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
"""Count or position. Its range leaves space for one more in the fields of all formats."""
MAX_COUNT = (1 << 63) - 1
"""Upper bound of sums of numbers from peers: larger sums would not fit messages and records."""
Channel: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=0xFFFF_FFFF)]
"""Range of the field in a frame's header."""
Epoch: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=0xFFFF)]
"""Range of the field in a frame's header."""
Label: TypeAlias = Annotated[str, msgspec.Meta(max_length=1_000)]

MAX_SIGNATURE_BYTES = 60_000
"""Maximum size of a stream's signature; the message then always fits one frame."""
EXPERT = b"expert"
"""Signature of messages with samples of an expert instead of the trainer's policy."""
MAX_BODY_BYTES = 60_000
"""Maximum size of a directive, report or status page; the message then always fits one frame."""
AUTHENTICATED = b"\xc1"
"""Beginning of an authenticated stream's signature: a byte that MessagePack, as in other signatures, never uses."""
FIRST_START_S = 1_767_225_600
"""2026-01-01. Ids of authenticated streams begin with a later time, or this one; earlier times mark random ids."""
PROOF_ENDS = b"\xc1tmrl e2"
"""End of a policy, directive, report or part of the telemetry with a proof of its origin."""
PROVEN_BYTES = 88
"""Size of that proof with its end; `end_to_end/statements.py` defines it."""
MAX_CARD_BYTES = 16_384
"""Maximum size of a run card."""
MOST_RAISED = 1 << 20
"""Maximum number by which a Server can raise the incarnation of a trainer that chooses its own. No fleet has had that
many trainers, and the numbers last for ever."""
MAX_TAG_BYTES = 64
"""Maximum size of an acknowledgement's tag."""
MAX_NAME_CHARACTERS = 200
"""Maximum length of a worker's label that Server and trainer keep."""
MAX_WAITS_CHARACTERS = 200
"""Maximum length of a wait reason that they keep."""
MAX_REASON_CHARACTERS = 500
"""Maximum length of the reason for refusing one message of samples."""

Version: TypeAlias = tuple[Number, Number]
"""Policy version: (incarnation of the trainer, counter), compared as tuples. (0, 0): no policy yet."""

Role = Literal["worker", "trainer", "observer"]

RefusalCode = Literal[
    "protocol", "token", "certificate", "role", "name", "full", "trainer_present", "superseded", "misuse"
]
"""Reason for which a Server refuses a peer."""

RETRYABLE: frozenset[str] = frozenset({"full", "trainer_present"})
"""Refusals after which the peer tries again."""


def plain(text: str, most: int = 1_000) -> str:
    """Return a peer's text in a form that is safe for logs and terminals: short, without control characters."""
    text = text[:most]
    # Nearly every text is printable, and then one scan in C suffices. Terminal escapes and line breaks become "?".
    return text if text.isprintable() else "".join(one if one.isprintable() else "?" for one in text)


# --- heads of messages, at the start of their first frame -------------------------------------------------------------

SAMPLES_HEAD = struct.Struct("<QQQII")
"""Head of a message of samples: number, floor, position, samples, bytes.

*floor*: the sender no longer has the messages from it up to this one. *position*: samples that the stream carried
before this message, so that a receiver can count the samples of a gap. *bytes*: length of the message's body.
"""
POLICY_HEAD = struct.Struct("<QQQ")
"""Head of a policy update: incarnation, counter, bytes."""
POLICY_DELTA = 4
"""Flag of the first frame of a policy that is a delta to a complete one; see `packed_policy.py`."""
POLICY_DELTA_HEAD = struct.Struct("<QQQQQ")
"""Head of such a policy: `POLICY_HEAD`, then incarnation and counter of the complete one."""
MAX_NUMBER = 1 << 62
"""Upper bound of message numbers, positions and policy versions; control messages hold twice as much."""


class MessageHead(NamedTuple):
    """Fields of `SAMPLES_HEAD` that a worker authenticates together with the body."""

    number: int
    floor: int
    position: int
    samples: int


def samples_head(payload: memoryview) -> tuple[int, int, int, int, int]:
    """Return number, floor, position, samples and bytes of the message that a DATA frame with this payload begins.

    Raises:
        RemoteProtocolError: the payload is too short, or a number is out of range.
    """
    if len(payload) < SAMPLES_HEAD.size:
        raise RemoteProtocolError("the first frame of a message is too short for its header")
    # The sample count and the length are u32: their ranges need no check of their own.
    head = number, floor, position, _, _ = SAMPLES_HEAD.unpack_from(payload)
    if max(number, floor, position) >= MAX_NUMBER:
        raise RemoteProtocolError(f"message {number} (floor {floor}) at sample {position} is out of range")
    return head


# --- application envelopes: opaque to the relay -----------------------------------------------------------------------


class Blob(msgspec.Struct, frozen=True):
    """Named weights: opaque bytes and the tag of their format (`safetensors`, or `file`)."""

    format: str
    data: bytes


@decodable
class PolicyUpdate(msgspec.Struct, frozen=True):
    """Policy update of a trainer: one blob per policy, and the workers' exploration parameters."""

    version: Version
    policies: dict[str, Blob]
    exploration: dict[str, float] = {}


class Evaluation(msgspec.Struct, frozen=True):
    """Request to a worker: one deterministic episode per seed, with a policy of at least `version`."""

    id: Number
    seeds: tuple[Number, ...]
    version: Version = (0, 0)


@decodable
class Directive(msgspec.Struct, frozen=True):
    """Instruction of a trainer to a worker. Only the newest revision counts.

    Args:
        revision: grows with each directive.
        evaluation: evaluation to run once, before further collection.
        pause: stop collecting at the next end of an episode.
        finish: the run has ended.
        collect: encoded `Collect`, in lockstep collection.
        refusal: reason why the trainer uses no samples of this worker; empty: it uses them.
        wanted: pictures of this worker that an operator wants to see; None: none.
    """

    revision: int = 0
    evaluation: Evaluation | None = None
    pause: bool = False
    finish: bool = False
    collect: bytes | None = None
    refusal: str = ""
    wanted: Wanted | None = None


@decodable
class Collect(msgspec.Struct, frozen=True):
    """A worker's assignment in a round of lockstep collection, in `Directive.collect`. Only the latest one counts.

    Exactly one of `steps` and `episodes` is set. If the round and version are those of the current assignment, the new
    number replaces its total. Otherwise the worker cancels the current assignment.

    Args:
        round: number of the round, for log messages.
        version: exact version of the policy to act with; each round has its own.
        steps: total number of environment steps, resets not counted; an open episode continues in the next round.
        episodes: total number of complete episodes.
        seed: seed of a new episode and of the exploration; None: continue.
    """

    round: Number
    version: Version
    steps: Number | None = None
    episodes: Number | None = None
    seed: Number | None = None

    @property
    def amount(self) -> int:
        """Number of steps, or of episodes."""
        return (self.steps if self.episodes is None else self.episodes) or 0

    @property
    def done(self) -> str:
        """Wait reason of a worker whose samples of this assignment are all acknowledged."""
        return (
            f"{_ROUND_AFTER}{self.round}, of which {self.amount} {'steps' if self.episodes is None else 'episodes'} "
            f"with version {self.version[0]}.{self.version[1]} are done"
        )


@decodable
class Progress(msgspec.Struct, frozen=True):
    """Counters of the trainer.

    Args:
        samples: environment steps received from all workers.
        updates: number of gradient steps.
        start_training: number of samples before the first update.
        lack: description of the missing samples while the trainer waits; empty while it trains.
        gave_up: True: the trainer has ended because of that shortfall. Stays in force without the trainer.
        turn: policy version that synchronous workers may collect with now. The trainer publishes no other version
            until all of them wait again.
    """

    samples: int = 0
    updates: int = 0
    start_training: int = 0
    lack: str = ""
    gave_up: bool = False
    turn: Version = (0, 0)


# --- control messages -------------------------------------------------------------------------------------------------


# Frozen, because last values are shared between links, and between the I/O thread and the application's.
class Control(msgspec.Struct, frozen=True, array_like=True, tag_field="type", forbid_unknown_fields=False):
    """Base of the control messages. Each subclass is one, and can be decoded."""


class Hello(Control, frozen=True, tag="hello"):
    """First message of a client. Each version of the protocol can read its `versions`: see `versions_of`.

    Args:
        versions: supported protocol versions.
        role: requested role.
        token: token of the role; empty with a client certificate.
        run: name of the run; weights and samples of another run are discarded.
        name: label for display, not an identity.
        peer: 16 random bytes per process. A link of the same peer supersedes the older one.
        incarnation: highest incarnation of a trainer that this peer has received.
        holding: for a trainer, its own incarnation: the one that this process was assigned earlier, or that it has
            chosen; 0: none yet.
        have: for a worker, its newest policy, which need not be sent again.
        announces: for a trainer, True: it authenticates, so it chooses its incarnation and announces it with its card.
        base: for a worker, the complete policy that it keeps for deltas; (0, 0): none. It also keeps `have` if it
            reports a base.
    """

    versions: tuple[Number, ...]
    role: Role
    token: Annotated[str, msgspec.Meta(max_length=4_096)]
    run: Annotated[str, msgspec.Meta(max_length=200)]
    name: Label
    peer: bytes
    incarnation: Number = 0
    holding: Number = 0
    have: Version = (0, 0)
    announces: bool = False
    base: Version = (0, 0)

    def __repr__(self) -> str:
        return f"Hello(role={self.role!r}, run={self.run!r}, name={self.name!r})"  # leave out the token


class Probe(Control, frozen=True, tag="probe"):
    """First message of a client that only checks whether a `Hello` of that role would be admitted.

    It is authenticated like that `Hello` and occupies no place. It is a separate message and not a flag of `Hello`,
    because it has no peer id, no label and no incarnation that the Server could take for those of a peer.

    Args:
        versions, role, token, run: see `Hello`.
    """

    versions: tuple[Number, ...]
    role: Role
    token: Annotated[str, msgspec.Meta(max_length=4_096)]
    run: Annotated[str, msgspec.Meta(max_length=200)]

    def __repr__(self) -> str:
        return f"Probe(role={self.role!r}, run={self.run!r})"  # leave out the token


class Diagnosis(Control, frozen=True, tag="diagnosis"):
    """The Server's answer to a `Probe` of a client that it would admit.

    Args:
        version: negotiated protocol version.
        versions: all versions that the Server supports.
        time_s: the Server's clock, in seconds since 1970.
        no_place: reason why an authenticated `Hello` would be refused at the moment; empty: none.
        trainer: True: a trainer is linked.
        trainer_run: run of that trainer.
        allowance_bytes: bytes that this link may use for measurements, in each direction.
        card: run card of the latest trainer of the probe's run; empty: there is none.
    """

    version: Number
    versions: tuple[Number, ...]
    time_s: float
    no_place: Label
    trainer: bool
    trainer_run: Label
    allowance_bytes: Number
    card: Annotated[bytes, msgspec.Meta(max_length=MAX_CARD_BYTES)] = b""


class Echo(Control, frozen=True, tag="echo"):
    """Client -> Server: request for `size` bytes of filler. Server -> client: the answer with the same number."""

    number: Number
    size: Annotated[int, msgspec.Meta(ge=0, le=MAX_BODY_BYTES)] = 0
    filler: Annotated[bytes, msgspec.Meta(max_length=MAX_BODY_BYTES)] = b""


class Welcome(Control, frozen=True, tag="welcome"):
    """The Server's answer to a `Hello` that it accepts.

    Args:
        version: negotiated protocol version.
        incarnation: for a trainer, its assigned incarnation, which one that announces its own may refuse; for a worker,
            the highest known one.
        window_bytes: maximum bytes of a worker's requested credit that are granted and not forwarded yet.
        max_message_bytes: maximum size of a message of samples.
        max_policy_bytes: maximum size of a policy update.
        heartbeat_s: seconds of silence after which either side sends a heartbeat.
        spool_bytes: capacity of the spool for workers that end without a trainer; 0: no spool. Workers send `HandOver`
            only to a Server with a spool.
        anew: True: the peer reported an implausible incarnation, so this Server counts from its own. The peer discards
            its incarnations and versions.
    """

    version: Number
    incarnation: Number
    window_bytes: Number
    max_message_bytes: Number
    max_policy_bytes: Number
    heartbeat_s: float
    spool_bytes: Number = 0
    anew: bool = False


class Refused(Control, frozen=True, tag="refused"):
    """The Server's last message on a link: its reason to close it."""

    code: str
    reason: str


class OpenStream(Control, frozen=True, tag="open"):
    """Worker -> relay: this link now carries a stream, under a channel number chosen by the worker."""

    channel: Channel
    stream: bytes
    name: Label
    signature: Annotated[bytes, msgspec.Meta(max_length=MAX_SIGNATURE_BYTES)] = b""
    stored: bool = False
    """True: the stream of an earlier process, whose messages come from the worker's spool."""


class CloseStream(Control, frozen=True, tag="close"):
    """Worker -> relay: the stream has ended in order; the worker holds no more messages of it."""

    channel: Channel


class StreamOpened(Control, frozen=True, tag="joined"):
    """Relay -> trainer: a stream, under a channel number never used before on this link."""

    channel: Channel
    stream: bytes
    name: Label
    signature: Annotated[bytes, msgspec.Meta(max_length=MAX_SIGNATURE_BYTES)] = b""
    live: bool = True
    """False: its process has ended; the messages come from a spool, the Server's or a worker's."""


class StreamClosed(Control, frozen=True, tag="left"):
    """Relay -> trainer: this channel is closed."""

    channel: Channel
    ended: bool
    """True: the stream has ended in order. False: its link was lost; it may return under another channel."""


class Resume(Control, frozen=True, tag="resume"):
    """Trainer -> relay -> worker: send from message `next` on.

    The relay assigns `epoch`; `credit` is the stream's initial credit in that epoch, in bytes.
    """

    channel: Channel
    next: Number
    epoch: Epoch = 0
    credit: Number = 0


class Halt(Control, frozen=True, tag="halt"):
    """Relay -> worker: no trainer takes this stream; keep all messages until the next `Resume`.

    `reason` is set if the user should see it (the trainer serves another run). Trainer -> relay -> worker: this trainer
    cannot take the stream, for the reason given, and never resumes it.
    """

    channel: Channel
    reason: str = ""


Refusal: TypeAlias = tuple[Number, Annotated[str, msgspec.Meta(max_length=MAX_REASON_CHARACTERS)]]
"""Number of a message of samples that the trainer refused, and the reason."""


class Ack(Control, frozen=True, tag="ack"):
    """Trainer -> relay -> worker: every message below `next` is committed or refused.

    Args:
        refused: (number, reason) of each message refused since the last `Ack`.
        tag: proof for the worker that the trainer made this acknowledgement; empty: none.
    """

    channel: Channel
    next: Number
    refused: tuple[Refusal, ...] = ()
    tag: Annotated[bytes, msgspec.Meta(max_length=MAX_TAG_BYTES)] = b""


class HandOver(Control, frozen=True, tag="hand_over"):
    """Worker -> relay: the worker ends without a trainer; store its messages.

    The relay answers as a trainer does, with a `Resume` from the first missing number, and with `Stored`.
    """

    channel: Channel


class Stored(Control, frozen=True, tag="stored"):
    """Relay -> worker: the Server stores every message below `next` until a trainer has acknowledged it.

    Args:
        refusal: reason why no more of this stream is stored (the spool is full); empty: the rest may follow.
    """

    channel: Channel
    next: Number
    refusal: Label = ""


class Want(Control, frozen=True, tag="want"):
    """Worker -> relay: complete messages are ready up to byte `total`, counted from the epoch's start."""

    channel: Channel
    epoch: Epoch
    total: Number


class Unused(Control, frozen=True, tag="unused"):
    """Worker -> relay: `size` bytes of the requested credit will not be used; they count as sent."""

    channel: Channel
    epoch: Epoch
    size: Number


class Credit(Control, frozen=True, tag="credit"):
    """Receiver -> sender: bytes up to `limit` may be sent, counted from the epoch's (channel 0: the link's) start."""

    channel: Channel
    epoch: Epoch
    limit: Number


class Have(Control, frozen=True, tag="have"):
    """Receiver -> sender: this policy version has arrived completely; the next may follow."""

    incarnation: Number
    counter: Number


class Lacks(Control, frozen=True, tag="lacks"):
    """Worker -> relay: a delta did not fit what this worker has kept, so it keeps nothing now.

    The relay sends a complete policy before the next delta.
    """


class Announce(Control, frozen=True, tag="announce"):
    """Trainer -> relay -> all workers and viewers of its run: the run card, and the incarnation that it proves.

    A last value, which the relay keeps for the run, also after the trainer has left. A trainer that announces its
    incarnation is not assigned one.
    """

    incarnation: Number
    body: Annotated[bytes, msgspec.Meta(max_length=MAX_CARD_BYTES)]


class Forged(Control, frozen=True, tag="forged"):
    """Worker or trainer -> relay: numbers of messages from the other end that it has ignored, for the status.

    A last value.

    Args:
        count: messages without a valid proof of their origin.
        outdated: for a worker, messages with a valid proof that are older than ones that it has accepted.
    """

    count: Number
    outdated: Number = 0


class Lateness(Control, frozen=True, tag="lateness"):
    """Worker -> relay -> trainer: lateness of this worker's steps, for metrics and the status.

    A last value.

    Args:
        steps: number of steps.
        late_steps: number of late steps among them.
        p999_us: 99.9th percentile of the lateness of recent steps, in microseconds.
    """

    channel: Channel
    steps: Number
    late_steps: Number
    p999_us: Number


class Revoked(Control, frozen=True, tag="revoked"):
    """Relay -> worker, trainer or viewer: the list of revoked certificates with the CA's signature, as PEM.

    A last value.
    """

    body: Annotated[bytes, msgspec.Meta(max_length=MAX_BODY_BYTES)]


class Place(Control, frozen=True, tag="place"):
    """Relay -> worker: number among the linked workers of its run that have chosen the same label, if it is above 1.

    Worker -> relay: the number that it has kept since an earlier link.
    """

    number: Annotated[int, msgspec.Meta(gt=1, le=2**31)]


class Incarnation(Control, frozen=True, tag="incarnation"):
    """Relay -> trainer: the trainer's new incarnation, assigned because a peer reported a higher one.

    A trainer that announces its incarnation answers with an `Announce`, of a higher one if it accepts the suggestion.
    """

    incarnation: Number


class Waits(Control, frozen=True, tag="waits"):
    """Worker -> relay -> trainer: reason for which this worker waits; empty: it collects."""

    channel: Channel
    text: Label


TURN = "with version "
"""Beginning of the wait reason of a synchronous worker."""


NEXT_ROUND = "the trainer's next round"
"""Wait reason of a worker in lockstep that has no assignment."""
_ROUND_AFTER = "the round after "


def waits_for_round(text: str) -> bool:
    """Return True for a wait reason of a worker in lockstep that could begin an assignment at once."""
    return text == NEXT_ROUND or text.startswith(_ROUND_AFTER)


PAUSE_END = "the end of its pause"
"""Wait reason of a worker that an operator has paused."""
EPISODE_END = "the end of its episode"
"""Beginning of the wait reason of a worker that plays a long episode, whose samples are sent when it ends."""


def starves(text: str) -> bool:
    """Return True for a wait reason of a worker that sends nothing before the trainer does something."""
    return bool(text) and not text.startswith((EPISODE_END, PAUSE_END))


def turn_text(version: Version) -> str:
    """Return the beginning of the wait reason of a synchronous worker that has finished its turn with a version."""
    return f"{TURN}{version[0]}.{version[1]}: "


class Direct(Control, frozen=True, tag="direct"):
    """Trainer -> relay -> worker: an encoded `Directive` for one stream, or for all (`ALL_CHANNELS`).

    Args:
        lasting: True, for all streams: the directive stays in force without the trainer, also for later workers, until
            the run has another trainer.
    """

    channel: Channel
    revision: Number
    body: bytes
    lasting: bool = False


class Report(Control, frozen=True, tag="report"):
    """Trainer -> relay -> all workers of its run: the trainer's encoded `Progress`."""

    body: bytes


class Notice(Control, frozen=True, tag="notice"):
    """Relay -> trainer: numbers of linked workers, of queued bytes of samples, and of workers of other runs."""

    workers: Number
    queued_bytes: Number
    other_run_workers: Number


class StatusRequest(Control, frozen=True, tag="look"):
    """Observer -> relay: request for page `page` of the status; page 0 takes a new snapshot."""

    page: Number


class StatusPage(Control, frozen=True, tag="seen"):
    """Relay -> observer: one of the `pages` pages of an encoded `ServerStatus`."""

    page: Number
    pages: Number
    body: Annotated[bytes, msgspec.Meta(max_length=MAX_BODY_BYTES)]


class Watch(Control, frozen=True, tag="watch"):
    """Observer -> relay: send the telemetry of this run from now on. Empty: of the run that is trained at present."""

    run: Annotated[str, msgspec.Meta(max_length=200)]


class Show(Control, frozen=True, tag="show"):
    """Trainer -> relay -> observers that watch its run: an encoded `Scene` or `History`.

    A last value for each part, which the relay keeps for the run, also after the trainer has left.
    """

    part: Literal["scene", "history"]
    body: Annotated[bytes, msgspec.Meta(max_length=MAX_BODY_BYTES)]


class Film(Control, frozen=True, tag="film"):
    """Worker -> relay -> observers that watch its run: an encoded `Piece` of a picture.

    A last value for each kind and part.
    """

    kind: Literal["camera", "video"]
    part: Annotated[int, msgspec.Meta(ge=0, lt=MAX_PIECES)]
    body: Annotated[bytes, msgspec.Meta(max_length=MAX_BODY_BYTES)]


class Watched(Control, frozen=True, tag="watched"):
    """Relay -> trainer: number of observers that watch its run, and number of those that have come on this link.

    A last value.
    """

    viewers: Number
    joined: Number


class Command(Control, frozen=True, tag="command"):
    """Observer -> relay -> trainer: an encoded order, with a number that the observer chooses."""

    number: Number
    body: Annotated[bytes, msgspec.Meta(max_length=MAX_ORDER_BYTES)]


class Undelivered(Control, frozen=True, tag="undelivered"):
    """Relay -> observer: the command of that number was not forwarded to a trainer, for the reason given."""

    number: Number
    reason: Label


class Bye(Control, frozen=True, tag="bye"):
    """Either side: the link is closed in order."""


LEGAL: dict[str, dict[str, frozenset[type]]] = {
    "server": {
        "greeting": frozenset({Hello, Probe}),
        "probe": frozenset({Echo}),
        "worker": frozenset(
            {OpenStream, CloseStream, HandOver, Want, Unused, Have, Lacks, Waits, Forged, Lateness, Place, Film}
        ),
        "trainer": frozenset({Resume, Halt, Ack, Announce, Credit, Direct, Report, Forged, Show}),
        "observer": frozenset({StatusRequest, Watch, Command}),
    },
    "worker": {
        "greeting": frozenset({Welcome}),
        "open": frozenset({Resume, Halt, Ack, Stored, Credit, Announce, Direct, Report, Revoked, Place}),
    },
    "trainer": {
        "greeting": frozenset({Welcome}),
        "open": frozenset(
            {StreamOpened, StreamClosed, Waits, Lateness, Incarnation, Have, Notice, Revoked, Watched, Command}
        ),
    },
    "observer": {
        "greeting": frozenset({Welcome}),
        "open": frozenset({StatusPage}),
    },
    "viewer": {
        "greeting": frozenset({Welcome}),
        "open": frozenset({StatusPage, Show, Film, Announce, Revoked, Undelivered}),
    },
    "probe": {
        "greeting": frozenset({Diagnosis}),
        "probe": frozenset({Echo}),
    },
}
"""Messages that each side may receive, by the state of its link."""

ALL_CHANNELS = 0xFFFF_FFFF
"""Channel of a `Direct` for all streams of the run, later ones included."""

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Control] = msgspec.msgpack.Decoder(reduce(or_, Control.__subclasses__()))


encode_control = _encoder.encode
"""Encode a control message as MessagePack."""
encode_body = _encoder.encode
"""Encode an application envelope, which the relay forwards as bytes."""


def control_frame(message: Control) -> bytes:
    """Return `message` as the bytes of one frame.

    Raises:
        ValueError: the message is too long for one frame.
    """
    payload = encode_control(message)
    if len(payload) > MAX_PAYLOAD_BYTES:
        raise ValueError(f"{type(message).__name__} takes {len(payload)} bytes; a frame holds {MAX_PAYLOAD_BYTES}")
    # Flags, epoch and channel mean nothing here: one frame is one message, and channels are fields of the messages that
    # have one.
    return HEADER.pack(len(payload), Kind.CONTROL, 0, 0, 0) + payload


def decode_control(data: bytes | bytearray | memoryview) -> Control:
    """Decode the control message in `data`.

    Raises:
        RemoteProtocolError: the bytes are not a declared message.
    """
    try:
        return _decoder.decode(data)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as exc:
        # The error may quote the peer.
        raise RemoteProtocolError(f"a control message could not be decoded: {plain(str(exc), 200)}") from exc


# The beginning of a `Hello` in any version: msgspec ignores the fields after the first one. A `Hello` that this version
# cannot decode still tells which versions its peer speaks, so both can be named in the refusal.
class _AnyHello(msgspec.Struct, frozen=True, array_like=True, tag="hello", tag_field="type"):
    versions: tuple[Number, ...]


_any_hello_decoder = msgspec.msgpack.Decoder(_AnyHello)


def versions_of(data: bytes | bytearray | memoryview) -> tuple[int, ...]:
    """Return the protocol versions in a `Hello`, also of an unsupported version; empty: it is not a `Hello`."""
    try:
        return _any_hello_decoder.decode(data).versions
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return ()


_body_decoders: dict[type[Any], msgspec.msgpack.Decoder[Any]] = {}


def check_update_head(begin: bytes | bytearray | memoryview) -> None:
    """Check that bytes begin like an encoded `PolicyUpdate`, without decoding its content.

    Raises:
        RemoteProtocolError: the bytes begin differently.
    """
    start = bytes(begin[: 1 + len(_UPDATE_BEGINS)])
    # The Server stores this policy for every worker of the run, also for those that come later. Bytes that no worker
    # can read would stop all of them, so the cheapest test is made before. Decoding all of it would cost the Server the
    # time of a copy, and an encrypted one would still be unread.
    # A map of at least two fields, beginning with the version.
    if not start or not 0x82 <= start[0] <= 0x8F or start[1:] != _UPDATE_BEGINS:
        raise RemoteProtocolError("the published bytes are not a policy update")


_UPDATE_BEGINS = b"\xa7version\x92"


def decode_body(data: bytes | bytearray | memoryview, kind: type[Any]) -> Any:
    """Decode the application envelope of type `kind` in `data`.

    Raises:
        RemoteProtocolError: the bytes are not such an envelope.
    """
    decoder = _body_decoders.get(kind)
    if decoder is None:
        decoder = _body_decoders[kind] = msgspec.msgpack.Decoder(kind)
    try:
        return decoder.decode(data)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as exc:
        raise RemoteProtocolError(f"a {kind.__name__} could not be decoded: {plain(str(exc), 200)}") from exc
