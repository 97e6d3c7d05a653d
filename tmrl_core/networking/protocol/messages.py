"""The typed messages of the protocol.

Everything that a peer sends is decoded into one of these declared types, or its connection is closed. Application
envelopes (`PolicyUpdate`, `Directive`, `Progress`) travel as opaque bytes through the relay, which never decodes them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Literal, TypeAlias

import msgspec

from tmrl_core.errors import RemoteProtocolError

PROTOCOL_VERSION = 1
"""The newest version of the protocol that this code speaks."""
SUPPORTED_VERSIONS: tuple[int, ...] = (1,)
"""All versions of the protocol that this code speaks."""

Number: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
"""A count or a position: what every field on the way holds, and one more as well."""
MAX_COUNT = (1 << 63) - 1
"""Upper bound of sums of numbers that peers choose: larger ones would fit neither a message nor a record."""
Channel: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=0xFFFF_FFFF)]
"""As wide as in a frame's header."""
Epoch: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=0xFFFF)]
"""As wide as in a frame's header."""
Label: TypeAlias = Annotated[str, msgspec.Meta(max_length=1_000)]

MAX_SIGNATURE_BYTES = 60_000
"""Of a stream's signature: what fits into one frame, whatever else the message says."""
EXPERT = b"expert"
"""Signature of a message whose samples an expert has collected, whatever the trainer's policy is."""
MAX_BODY_BYTES = 60_000
"""Of a directive, a report or a page of a status: what fits into one frame, whatever else the message says."""
MAX_REASON_CHARACTERS = 500
"""Of the reason why one message of samples was refused."""

Version: TypeAlias = tuple[Number, Number]
"""(incarnation of the trainer, counter) of a policy; (0, 0) means: none yet. Compared as tuples."""

Role = Literal["worker", "trainer", "observer"]

RefusalCode = Literal[
    "protocol", "token", "certificate", "role", "name", "full", "trainer_present", "superseded", "misuse"
]
"""Why a Server refuses a peer. `full` and `trainer_present` are worth another try, `superseded` is not."""

RETRYABLE: frozenset[str] = frozenset({"full", "trainer_present"})


def plain(text: str, most: int = 1_000) -> str:
    """A peer's words as they may stand in a log or a terminal: one line of `most` characters, without what would begin
    another line, move a cursor or change a colour.
    """
    text = text[:most]
    return text if text.isprintable() else "".join(one if one.isprintable() else "?" for one in text)


# --- what the application says: opaque to the relay -------------------------------------------------------------------


class Blob(msgspec.Struct, frozen=True):
    """Named weights: opaque bytes and the tag of their format (`safetensors`, or `file`)."""

    format: str
    data: bytes


class PolicyUpdate(msgspec.Struct, frozen=True):
    """Policy update of a trainer: one blob per policy, and the workers' exploration parameters."""

    version: Version
    policies: dict[str, Blob]
    exploration: dict[str, float] = {}


class Evaluation(msgspec.Struct, frozen=True):
    """Asks a worker for one deterministic episode per seed, played with a policy of at least `version`."""

    id: Number
    seeds: tuple[Number, ...]
    version: Version = (0, 0)


class Directive(msgspec.Struct, frozen=True):
    """Instruction of a trainer to a worker. Only the newest revision counts.

    Args:
        revision: grows with each directive.
        evaluation: to play once, before anything else is collected.
        pause: rest between episodes.
        finish: the run is over.
        collect: an encoded `Collect`, in lockstep collection.
    """

    revision: int = 0
    evaluation: Evaluation | None = None
    pause: bool = False
    finish: bool = False
    collect: bytes | None = None


class Collect(msgspec.Struct, frozen=True):
    """A worker's share of a round of lockstep collection, in `Directive.collect`. A last value, as the directive is.

    Exactly one of `steps` and `episodes` is set. The same round and version with another number means: that many in
    all. Anything else that is not finished is abandoned for it.

    Args:
        round: number of the round, for people.
        version: the policy to act with, exactly this one; each round has its own.
        steps: environment steps after resets, in all; the open episode goes on in the next round.
        episodes: whole episodes, in all.
        seed: begin with a new episode of this seed, and seed the exploration with it; None: go on.
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
        """Wait reason of a worker once all of this has been acknowledged."""
        return (
            f"the round after {self.round}, of which {self.amount} {'steps' if self.episodes is None else 'episodes'} "
            f"with version {self.version[0]}.{self.version[1]} are done"
        )


class Progress(msgspec.Struct, frozen=True):
    """The trainer's counters, as its acknowledgements report them.

    Args:
        samples: environment steps received, of all workers, raw.
        updates: gradient steps done.
        start_training: samples that the trainer waits for before its first update.
        lack: what a trainer that waits for samples lacks, in words; empty while it trains.
        gave_up: it ends because of that; the parting word of a trainer, which holds on after it has gone.
        turn: version of the policy with which workers that take turns with the trainer may collect now; it publishes
            no other until all of them wait again.
    """

    samples: int = 0
    updates: int = 0
    start_training: int = 0
    lack: str = ""
    gave_up: bool = False
    turn: Version = (0, 0)


# --- control messages -------------------------------------------------------------------------------------------------


class _Control(msgspec.Struct, frozen=True, array_like=True, tag_field="type", forbid_unknown_fields=False):
    pass


class Hello(_Control, frozen=True, tag="hello"):
    """The first message of a client.

    Args:
        versions: protocol versions that the client speaks.
        role: what it wants to be.
        token: the role's token; empty when a client certificate speaks for it.
        run: name of the run; weights and samples of another run are discarded.
        name: label for people; no identity.
        peer: 16 random bytes per process. A link of the same peer supersedes the older one.
        incarnation: the highest incarnation of a trainer that this peer has heard of.
        holding: for a trainer, the incarnation that this process was given earlier; 0 for a new process.
        have: for a worker, the newest policy that it holds, so that it is not sent again.
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

    def __repr__(self) -> str:
        return f"Hello(role={self.role!r}, run={self.run!r}, name={self.name!r})"  # never the token


class Probe(_Control, frozen=True, tag="probe"):
    """The first message of somebody who only wants to know whether a `Hello` of that role would be let in.

    It is judged as that `Hello` would be, and takes nobody's place. A message of its own, and not a flag of `Hello`,
    since a Server that does not know the flag would let the peer in for good.

    Args:
        versions, role, token, run: as in `Hello`.
    """

    versions: tuple[Number, ...]
    role: Role
    token: Annotated[str, msgspec.Meta(max_length=4_096)]
    run: Annotated[str, msgspec.Meta(max_length=200)]

    def __repr__(self) -> str:
        return f"Probe(role={self.role!r}, run={self.run!r})"  # never the token


class Diagnosis(_Control, frozen=True, tag="diagnosis"):
    """The Server's answer to a `Probe` whose sender it would let in.

    Args:
        version: the protocol version to speak.
        versions: all that the Server speaks.
        time_s: the Server's clock, in seconds since 1970.
        no_place: why a `Hello` would be refused at the moment although its sender may come; empty: it would not.
        trainer: whether a trainer is linked.
        trainer_run: of which run it is.
        allowance_bytes: how much this link may measure with, in each direction.
    """

    version: Number
    versions: tuple[Number, ...]
    time_s: float
    no_place: Label
    trainer: bool
    trainer_run: Label
    allowance_bytes: Number


class Echo(_Control, frozen=True, tag="echo"):
    """Prober -> Server: answer with `size` bytes of filler. Server -> prober: the answer, of the same number."""

    number: Number
    size: Annotated[int, msgspec.Meta(ge=0, le=MAX_BODY_BYTES)] = 0
    filler: Annotated[bytes, msgspec.Meta(max_length=MAX_BODY_BYTES)] = b""


class Welcome(_Control, frozen=True, tag="welcome"):
    """The Server's answer to a `Hello` that it accepts.

    Args:
        version: the protocol version to speak.
        incarnation: for a trainer, the one it was given; for a worker, the highest known.
        window_bytes: most bytes of wants that a worker may have granted and not forwarded.
        max_message_bytes: the largest samples message that is relayed.
        max_policy_bytes: the largest policy update that is relayed.
        heartbeat_s: seconds of silence after which either side sends a heartbeat.
        spool_bytes: how much the Server keeps for workers that end while there is no trainer; 0: nothing, also of a
            Server that does not know of it. A worker says `HandOver` only where there is a spool.
        anew: the peer named an incarnation that no honest run comes to, so this Server counts from its own: what the
            peer knows of incarnations and versions counts no more.
    """

    version: Number
    incarnation: Number
    window_bytes: Number
    max_message_bytes: Number
    max_policy_bytes: Number
    heartbeat_s: float
    spool_bytes: Number = 0
    anew: bool = False


class Refused(_Control, frozen=True, tag="refused"):
    """The Server's last words on a link: why it closes it."""

    code: str
    reason: str


class OpenStream(_Control, frozen=True, tag="open"):
    """Worker -> relay: a stream that this link carries from now on, under a channel number of the worker's choice."""

    channel: Channel
    stream: bytes
    name: Label
    signature: Annotated[bytes, msgspec.Meta(max_length=MAX_SIGNATURE_BYTES)] = b""


class CloseStream(_Control, frozen=True, tag="close"):
    """Worker -> relay: the stream has ended in order; nothing of it is held any more."""

    channel: Channel


class StreamOpened(_Control, frozen=True, tag="joined"):
    """Relay -> trainer: a stream, under a channel number never used before on this link."""

    channel: Channel
    stream: bytes
    name: Label
    signature: Annotated[bytes, msgspec.Meta(max_length=MAX_SIGNATURE_BYTES)] = b""
    live: bool = True
    """False: its worker is not there; what comes is what it had handed over to the Server."""


class StreamClosed(_Control, frozen=True, tag="left"):
    """Relay -> trainer: nothing more comes on this channel."""

    channel: Channel
    ended: bool
    """True: the stream has ended in order. False: its link went, it may come back under another channel."""


class Resume(_Control, frozen=True, tag="resume"):
    """Trainer -> relay -> worker: send from message `next` on.

    `epoch` is given by the relay; `credit` is the stream's standing credit in that epoch, in bytes.
    """

    channel: Channel
    next: Number
    epoch: Epoch = 0
    credit: Number = 0


class Halt(_Control, frozen=True, tag="halt"):
    """Relay -> worker: there is no trainer (of this run); keep everything until the next `Resume`.

    `reason` says why when it is worth telling a person (the trainer serves another run).
    """

    channel: Channel
    reason: str = ""


Refusal: TypeAlias = tuple[Number, Annotated[str, msgspec.Meta(max_length=MAX_REASON_CHARACTERS)]]
"""Number of a message of samples that the trainer refused, and why."""


class Ack(_Control, frozen=True, tag="ack"):
    """Trainer -> relay -> worker: every message below `next` is committed, or refused and let go.

    Args:
        refused: (number of the message, reason) of those refused since the last `Ack`.
    """

    channel: Channel
    next: Number
    refused: tuple[Refusal, ...] = ()


class HandOver(_Control, frozen=True, tag="hand_over"):
    """Worker -> relay: I am about to end and was told to halt; take what I hold.

    The relay answers as a trainer would, with a `Resume` from the first number that it lacks, and with `Stored`.
    """

    channel: Channel


class Stored(_Control, frozen=True, tag="stored"):
    """Relay -> worker: the Server keeps every message below `next` until a trainer has acknowledged it.

    Args:
        refusal: why no more of this stream is taken (the spool is full); empty: the rest may follow.
    """

    channel: Channel
    next: Number
    refusal: Label = ""


class Want(_Control, frozen=True, tag="want"):
    """Worker -> relay: I have whole messages that end at byte `total`, counted from the epoch's start."""

    channel: Channel
    epoch: Epoch
    total: Number


class Unused(_Control, frozen=True, tag="unused"):
    """Worker -> relay: `size` bytes of the credit that I wanted I will not use: they count as sent."""

    channel: Channel
    epoch: Epoch
    size: Number


class Credit(_Control, frozen=True, tag="credit"):
    """Receiver -> sender: you may send up to byte `limit`, counted from the epoch's (channel 0: the link's) start."""

    channel: Channel
    epoch: Epoch
    limit: Number


class Have(_Control, frozen=True, tag="have"):
    """Receiver -> sender: policy `version` has arrived whole; the next may follow."""

    incarnation: Number
    counter: Number


class Incarnation(_Control, frozen=True, tag="incarnation"):
    """Relay -> trainer: from now on you are this incarnation, since a peer knew a higher one than you had."""

    incarnation: Number


class Waits(_Control, frozen=True, tag="waits"):
    """Worker -> relay -> trainer: what this worker waits for and with which numbers; empty: it goes on collecting."""

    channel: Channel
    text: Label


TURN = "with version "
"""First words of the text of a worker that takes turns with the trainer."""


def turn_text(version: Version) -> str:
    """Return the beginning of what such a worker waits for once it has collected all that it may with a version."""
    return f"{TURN}{version[0]}.{version[1]}: "


class Direct(_Control, frozen=True, tag="direct"):
    """Trainer -> relay -> worker: an encoded `Directive` for one stream, or for all (`ALL_CHANNELS`).

    Args:
        lasting: for all: it holds on after the trainer has left, also for workers that come later, until there is
            another trainer of the run.
    """

    channel: Channel
    revision: Number
    body: bytes
    lasting: bool = False


class Report(_Control, frozen=True, tag="report"):
    """Trainer -> relay -> all workers of its run: the trainer's encoded `Progress`."""

    body: bytes


class Notice(_Control, frozen=True, tag="notice"):
    """Relay -> trainer: what only the relay sees: workers linked, bytes of samples queued, workers of other runs."""

    workers: Number
    queued_bytes: Number
    other_run_workers: Number


class StatusRequest(_Control, frozen=True, tag="look"):
    """Observer -> relay: show page `page` of what you see; page 0 takes a new snapshot."""

    page: Number


class StatusPage(_Control, frozen=True, tag="seen"):
    """Relay -> observer: one page of an encoded `ServerStatus`, which has `pages` of them."""

    page: Number
    pages: Number
    body: Annotated[bytes, msgspec.Meta(max_length=MAX_BODY_BYTES)]


class Bye(_Control, frozen=True, tag="bye"):
    """Either side: this link is being closed in order."""


Control: TypeAlias = (
    Hello
    | Probe
    | Diagnosis
    | Echo
    | Welcome
    | Refused
    | OpenStream
    | CloseStream
    | StreamOpened
    | StreamClosed
    | Resume
    | Halt
    | Ack
    | HandOver
    | Stored
    | Unused
    | Want
    | Credit
    | Have
    | Waits
    | Incarnation
    | Direct
    | Report
    | Notice
    | StatusRequest
    | StatusPage
    | Bye
)

ALL_CHANNELS = 0xFFFF_FFFF
"""As a `Direct` channel: every stream of the run, those that come later included."""

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Control] = msgspec.msgpack.Decoder(Control)


def encode_control(message: Control) -> bytes:
    """One control message as MessagePack."""
    return _encoder.encode(message)


def decode_control(data: bytes | bytearray | memoryview) -> Control:
    """The control message in `data`.

    Raises:
        RemoteProtocolError: the bytes are no declared message.
    """
    try:
        return _decoder.decode(data)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as exc:
        # What it says may quote the peer.
        raise RemoteProtocolError(f"a control message could not be decoded: {plain(str(exc), 200)}") from exc


class _AnyHello(msgspec.Struct, frozen=True, array_like=True, tag="hello", tag_field="type"):
    versions: tuple[Number, ...]


_any_hello_decoder = msgspec.msgpack.Decoder(_AnyHello)


def versions_of(data: bytes | bytearray | memoryview) -> tuple[int, ...]:
    """The protocol versions in a `Hello` of any version, also one that this code cannot read; else nothing."""
    try:
        return _any_hello_decoder.decode(data).versions
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return ()


def negotiate(theirs: Iterable[int], ours: Iterable[int]) -> int | None:
    """The newest version that both sides speak; None: there is none."""
    return max(set(theirs) & set(ours), default=None)


_body_decoders: dict[type[Any], msgspec.msgpack.Decoder[Any]] = {}


def encode_body(body: PolicyUpdate | Directive | Progress | Collect) -> bytes:
    """An application envelope as the bytes that the relay passes on."""
    return _encoder.encode(body)


def check_update_head(begin: bytes | bytearray | memoryview) -> None:
    """Check that bytes begin as an encoded `PolicyUpdate` does, without decoding what it holds.

    Raises:
        RemoteProtocolError: they do not.
    """
    start = bytes(begin[: 1 + len(_UPDATE_BEGINS)])
    # A map of two fields or more, of which the version is the first.
    if not start or not 0x82 <= start[0] <= 0x8F or start[1:] != _UPDATE_BEGINS:
        raise RemoteProtocolError("the published bytes are not a policy update")


_UPDATE_BEGINS = b"\xa7version\x92"


def decode_body(data: bytes | bytearray | memoryview, kind: type[Any]) -> Any:
    """The application envelope of type `kind` in `data`.

    Raises:
        RemoteProtocolError: the bytes are no such envelope.
    """
    decoder = _body_decoders.get(kind)
    if decoder is None:
        decoder = _body_decoders[kind] = msgspec.msgpack.Decoder(kind)
    try:
        return decoder.decode(data)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as exc:
        raise RemoteProtocolError(f"a {kind.__name__} could not be decoded: {plain(str(exc), 200)}") from exc
