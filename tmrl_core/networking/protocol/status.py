"""Status of a Server for observers: one snapshot, as typed values. Sans-I/O.

Counters start with the Server and only grow, so that two snapshots give rates. Counters of a stream start with its
first message. Times are seconds, sizes bytes.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from tmrl_core.decodable import decodable

MAX_STATUS_BYTES = 4 << 20
"""Maximum size of a snapshot. Peers and streams beyond it are left out and counted."""


class PeerStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One link to the Server.

    Args:
        role: `worker`, `trainer` or `observer`.
        name: label that the peer has chosen for itself.
        address: remote address.
        run: name of its run.
        since_s: age of the link.
        heard_s: time since its last byte.
        bytes_in, bytes_out: bytes from and to the peer on this link, without TLS overhead.
        unread_bytes: control messages that wait because the peer does not read.
        policy: for a worker, (incarnation, counter) of the newest policy that it has received; it may not use it yet.
        certificate: name in its certificate, which it cannot choose; empty: no certificate.
        forged: number of messages without a valid proof of their origin that it has ignored.
        outdated: number of policies, directives, reports and announcements of a trainer that it has ignored because
            they were older than accepted ones.
        weight: of its certificate in the division between credentials.
        rtt_s: round-trip time of the link; left out if the Server's system does not measure it.
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
    forged: int = 0
    outdated: int = 0
    weight: int = 1
    rtt_s: float | msgspec.UnsetType = msgspec.UNSET


class StreamStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One stream of samples.

    Args:
        worker: label of the worker.
        stream: id of the stream, hexadecimal.
        run: name of its run.
        linked: False: its worker is disconnected; queued messages still go to the trainer.
        active: True: a trainer has requested the stream from some message on.
        epoch: number of those requests, modulo 65,536.
        queued_messages, queued_bytes: complete messages queued for the trainer.
        reserved_bytes: bytes reserved from the pool: granted and not forwarded.
        limit_bytes: byte up to which the worker may send in this epoch.
        relayed_messages, relayed_samples, relayed_bytes: forwarded to a trainer, repetitions included.
        dropped_messages: messages that the worker dropped before sending them.
        position: samples of the stream up to the end of the last forwarded message, dropped ones included.
        waits: wait reason of the worker; empty: it collects.
        steps, late_steps: numbers of steps and of late steps, as the worker reports them; left out if its environment
            has no rate.
        lateness_p999_s: 99.9th percentile of the lateness of recent steps.
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
    steps: int | msgspec.UnsetType = msgspec.UNSET
    late_steps: int | msgspec.UnsetType = msgspec.UNSET
    lateness_p999_s: float | msgspec.UnsetType = msgspec.UNSET


class SpooledStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Spooled samples of a stream whose worker ended without a trainer.

    Args:
        worker, stream, run: as in `StreamStatus`.
        messages, samples, bytes: stored until a trainer has acknowledged them.
        ended: True: its worker has handed over all its samples.
    """

    worker: str
    stream: str
    run: str
    messages: int
    samples: int
    bytes: int
    ended: bool


class BudgetStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One bounded store of the Server. `limit` None: there is no separate limit."""

    used_bytes: int
    reserved_bytes: int = 0
    limit_bytes: int | None = None


class PolicyStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The policy that the Server stores: its version, run and size."""

    incarnation: int
    counter: int
    run: str
    size_bytes: int


@decodable
class ServerStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Status of the Server.

    Args:
        clock_s: the Server's clock, for differences only.
        version: version of tmrl_core on the Server.
        uptime_s, pid, memory_bytes, memory_peak_bytes: values of the Server's process; None: unknown.
        incarnation: highest known incarnation of a trainer.
        policy: latest policy; None: there is none.
        workers, max_workers: number of linked workers, and its limit; None: no limit.
        trainer: True: a trainer is linked.
        peers, streams, spooled: entries, as many as fit.
        peers_left_out, streams_left_out, spooled_left_out: numbers of entries left out.
        budgets: stores by name: `samples`, `policy`, and `spool` if there is one.
        relayed_messages, relayed_samples, relayed_bytes: forwarded to trainers.
        dropped_messages: messages that workers dropped before sending them, as far as known.
        discarded_messages: messages that arrived for an earlier epoch; their workers send them again.
        refused_peers: number of peers that were not admitted.
        protocol_errors: number of links closed for a violation of the protocol.
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
    """Return the rates between two snapshots; None: they are of different Servers or of the same moment."""
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
            # A stream that has returned under a new link counts from 0 again.
            stream.stream: max(0, stream.relayed_samples - before.get(stream.stream, 0)) / seconds
            for stream in later.streams
        },
    )
