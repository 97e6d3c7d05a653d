"""Status of a Server for observers: one snapshot, as typed values. Sans-I/O.

Counters count from the Server's start and only grow (a stream's: from when the Server first heard of it), so that two
snapshots give rates. Times are seconds, sizes bytes.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from tmrl_core.errors import RemoteProtocolError

MAX_STATUS_BYTES = 4 << 20
"""The longest snapshot that is told; beyond it peers and streams are left out, and their number is said."""


class PeerStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One link to the Server.

    Args:
        role: `worker`, `trainer` or `observer`.
        name: its label, which it has chosen itself.
        address: where it connected from.
        run: name of its run.
        since_s: how long the link has stood.
        heard_s: how long ago its last byte came.
        bytes_in, bytes_out: from and to it, since the link stands, without what TLS adds.
        unread_bytes: control messages that wait because it does not read.
        policy: for a worker, (incarnation, counter) of the newest policy that it has whole.
        certificate: the name in its certificate, which it cannot choose; empty: it showed none.
    """

    role: str
    name: str
    address: str
    run: str
    since_s: float
    heard_s: float
    bytes_in: int
    bytes_out: int
    unread_bytes: int
    policy: tuple[int, int] = (0, 0)
    certificate: str = ""


class StreamStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One stream of samples.

    Args:
        worker: label of the worker.
        stream: its id, hexadecimal.
        run: name of its run.
        linked: False: its worker has gone, and what is queued still goes to the trainer.
        active: True: a trainer has said from where it wants the stream.
        epoch: how often it has, modulo 65,536.
        queued_messages, queued_bytes: whole messages held for the trainer.
        reserved_bytes: of the pool: granted and not forwarded.
        limit_bytes: how far the worker may send in this epoch.
        relayed_messages, relayed_samples, relayed_bytes: passed on to a trainer, repeated ones each time.
        dropped_messages: numbers that the worker passed over: it dropped them before they left.
        position: samples that the stream carried up to the end of the last message passed on, dropped ones included.
        waits: what the worker waits for, in its own words; empty: it collects.
    """

    worker: str
    stream: str
    run: str
    linked: bool
    active: bool
    epoch: int
    queued_messages: int
    queued_bytes: int
    reserved_bytes: int
    limit_bytes: int
    relayed_messages: int
    relayed_samples: int
    relayed_bytes: int
    dropped_messages: int
    position: int
    waits: str = ""


class SpooledStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Samples that the Server stores of a stream whose worker ended while there was no trainer.

    Args:
        worker, stream, run: as in `StreamStatus`.
        messages, samples, bytes: kept until a trainer has acknowledged them.
        ended: its worker has handed over everything.
    """

    worker: str
    stream: str
    run: str
    messages: int
    samples: int
    bytes: int
    ended: bool


class BudgetStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One bounded store of the Server; `limit` None: it has no bound of its own."""

    used_bytes: int
    reserved_bytes: int = 0
    limit_bytes: int | None = None


class PolicyStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The policy that the Server keeps: its version, its run, and its size."""

    incarnation: int
    counter: int
    run: str
    size_bytes: int


class ServerStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that the Server tells of itself.

    Args:
        clock_s: the Server's own clock; only differences of it mean anything.
        version: of tmrl_core there.
        uptime_s, pid, memory_bytes, memory_peak_bytes: of the Server's process; None where it does not know.
        incarnation: the highest trainer's incarnation that it has heard of.
        policy: the latest policy; None: there is none.
        workers, max_workers: linked now, and how many may be; None: no limit.
        trainer: True: one is linked.
        peers, streams, spooled: as many as fit.
        peers_left_out, streams_left_out, spooled_left_out: how many did not.
        budgets: by name: `samples`, `policy`, and `spool` where there is one.
        relayed_messages, relayed_samples, relayed_bytes: passed on to trainers.
        dropped_messages: dropped by workers before they left, as far as the Server has seen it.
        discarded_messages: arrived for an epoch that was over; their workers send them again.
        refused_peers: could not be let in.
        protocol_errors: links closed for what the protocol does not allow.
    """

    clock_s: float
    version: str
    uptime_s: float | None = None
    pid: int | None = None
    memory_bytes: int | None = None
    memory_peak_bytes: int | None = None
    incarnation: int
    policy: PolicyStatus | None = None
    workers: int
    max_workers: int | None = None
    trainer: bool
    peers: tuple[PeerStatus, ...] = ()
    streams: tuple[StreamStatus, ...] = ()
    peers_left_out: int = 0
    streams_left_out: int = 0
    spooled: tuple[SpooledStatus, ...] = ()
    spooled_left_out: int = 0
    budgets: dict[str, BudgetStatus] = {}
    relayed_messages: int
    relayed_samples: int
    relayed_bytes: int
    dropped_messages: int
    discarded_messages: int
    refused_peers: int
    protocol_errors: int


class Rates(msgspec.Struct, frozen=True, kw_only=True):
    """Traffic from workers to trainers per second, over `seconds`; `samples_of` by a stream's id."""

    seconds: float
    messages: float
    samples: float
    bytes: float
    samples_of: Mapping[str, float]


def rates(earlier: ServerStatus, later: ServerStatus) -> Rates | None:
    """The rates between two snapshots; None: they are of two Servers, or of one moment."""
    seconds = later.clock_s - earlier.clock_s
    if seconds <= 0 or later.pid != earlier.pid or later.relayed_messages < earlier.relayed_messages:
        return None
    before = {stream.stream: stream.relayed_samples for stream in earlier.streams}
    return Rates(
        seconds=seconds,
        messages=(later.relayed_messages - earlier.relayed_messages) / seconds,
        samples=(later.relayed_samples - earlier.relayed_samples) / seconds,
        bytes=(later.relayed_bytes - earlier.relayed_bytes) / seconds,
        samples_of={
            # A stream that has come back under a new link counts from nothing again.
            stream.stream: max(0, stream.relayed_samples - before.get(stream.stream, 0)) / seconds
            for stream in later.streams
        },
    )


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(ServerStatus)


def encode_status(status: ServerStatus) -> bytes:
    """A snapshot as MessagePack."""
    return _encoder.encode(status)


def decode_status(data: bytes) -> ServerStatus:
    """The snapshot in `data`; fields that this version does not know are left out.

    Raises:
        RemoteProtocolError: the bytes are no snapshot.
    """
    try:
        return _decoder.decode(data)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as exc:
        raise RemoteProtocolError(f"the Server's status could not be decoded: {exc}") from exc
