"""Snapshot of a relay for observers. Sans-I/O.

Only a few counters per message are maintained for it. A request takes a snapshot, at most one in `FRESH_S` for all
observers together, and rates are differences of two snapshots.
"""

# Theory of operation
#
# Observers see everything that the relay counts for itself, and cost it nothing while there are none: no rates are
# measured, since rates are differences of two snapshots. A snapshot is taken when one is requested, at most five times
# a second for all observers together, and sent in pages of one control frame, each when it is asked for, so that a slow
# observer holds one page.
#
# A fleet may have more streams than 4 MB describe. Peers, streams and spooled streams have shares of that, and
# principals take turns within each, so that a worker with a thousand streams displaces neither peers nor the streams of
# others. What is left out is counted.
#
# The trainer's credentials may ask, and so may credentials on the Server's machine: the token of an observer is derived
# from the Server's private key, whose holder can read everything anyway, so no file is added. Workers may not ask: they
# stand where they can be stolen, and a snapshot names all others with their addresses. Rejected: a separate port or
# file on the Server's host (nothing for the researcher at the trainer); a token of its own (existing bundles would lack
# it).

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from operator import itemgetter
from typing import TYPE_CHECKING, TypeVar

import msgspec

from tmrl_core import __version__
from tmrl_core.networking.protocol.messages import MAX_COUNT, encode_body
from tmrl_core.networking.protocol.status import (
    MAX_STATUS_BYTES,
    BudgetStatus,
    PeerStatus,
    PolicyStatus,
    ServerStatus,
    SpooledStatus,
    StreamStatus,
)

if TYPE_CHECKING:
    from tmrl_core.networking.relay.connection import RelayConnection
    from tmrl_core.networking.relay.core import Relay
    from tmrl_core.networking.relay.streams import RelayStream
    from tmrl_core.networking.spools.spool import SpooledStream

FRESH_S = 0.2
"""Maximum age of a snapshot that is sent again."""
WATCHED_S = 1.0
"""The same for observers that watch a run: they ask all the time, and several of them cost as much as one."""
MAX_OBSERVERS = 16
"""Limit on observers, which occupy no places of workers. Each costs a link and, for each request, a snapshot."""
_LABEL_CHARACTERS = 80
_WAITS_CHARACTERS = 200

_Item = TypeVar("_Item")
_Listed = TypeVar("_Listed", PeerStatus, StreamStatus, SpooledStatus)


class Snapshots:
    """Takes snapshots of a relay and keeps the latest for a short time."""

    def __init__(self, relay: Relay) -> None:
        self._relay = relay
        self._taken = float("-inf")
        self._body = b""

    def take(self, now: float, fresh_s: float = FRESH_S) -> bytes:
        """An encoded `ServerStatus`, at most `MAX_STATUS_BYTES` long and `fresh_s` old."""
        if now - self._taken >= fresh_s:
            self._body = encode_body(snapshot(self._relay, now))
            self._taken = now
        return self._body


def snapshot(relay: Relay, now: float, limit_bytes: int = MAX_STATUS_BYTES) -> ServerStatus:
    """Return the relay's status at `now`. Peers and streams beyond `limit_bytes` are left out and counted."""
    connections = [*([relay.trainer] if relay.trainer is not None else []), *relay.workers.values(), *relay.observers]
    # Each list has a share, so that a worker with a thousand streams cannot displace peers. Other fields use the rest.
    eighth = limit_bytes // 8 - 1_024
    peers, peers_left_out = _that_fit(connections, lambda one: one.principal, lambda one: _peer(one, now), 3 * eighth)
    streams, streams_left_out = _that_fit(
        relay.streams.values(), lambda stream: stream.share.principal, _stream, 4 * eighth
    )
    spooled, spooled_left_out = _that_fit(
        relay.spool_handoff.spool.streams.values(), lambda kept: kept.info.principal, _spooled, eighth
    )
    policy, facts = relay.policies.newest, relay.process()
    return ServerStatus(
        clock_s=now,
        version=__version__,
        incarnation=relay.incarnation,
        policy=PolicyStatus(
            incarnation=policy.version[0],
            counter=policy.version[1],
            run=relay.policies.run[:_LABEL_CHARACTERS],
            size_bytes=policy.size,
        )
        if policy is not None
        else None,
        workers=len(relay.workers),
        max_workers=relay.settings.max_workers,
        trainer=relay.trainer is not None,
        peers=tuple(peers),
        streams=tuple(streams),
        peers_left_out=peers_left_out,
        streams_left_out=streams_left_out,
        spooled=tuple(spooled),
        spooled_left_out=spooled_left_out,
        budgets=_budgets(relay),
        relayed_messages=relay.flow.relayed_messages,
        relayed_samples=min(relay.flow.relayed_samples, MAX_COUNT),
        relayed_bytes=relay.flow.relayed_bytes,
        dropped_messages=min(relay.flow.dropped_messages, MAX_COUNT),
        discarded_messages=relay.flow.discarded_messages,
        refused_peers=relay.refused_peers,
        protocol_errors=relay.protocol_errors,
        **{name: facts.get(name) for name in ("uptime_s", "pid", "memory_bytes", "memory_peak_bytes")},
    )


def _that_fit(
    items: Collection[_Item], principal_of: Callable[[_Item], str], show: Callable[[_Item], _Listed], room: int
) -> tuple[list[_Listed], int]:
    """Return as many of the items, as they are shown, as fit `room` bytes, and the number of items left out.

    Principals take turns, so that one with thousands of items does not displace the others.
    """
    of: Counter[str] = Counter()
    ranked: list[tuple[int, int, _Item]] = []
    for place, item in enumerate(items):
        principal = principal_of(item)
        ranked.append((of[principal], place, item))
        of[principal] += 1
    fit: list[tuple[int, _Listed]] = []
    for _, place, item in sorted(ranked, key=itemgetter(0, 1)):
        shown = show(item)
        room -= len(encode_body(shown))
        if room < 0:
            break
        fit.append((place, shown))
    return [shown for _, shown in sorted(fit, key=itemgetter(0))], len(items) - len(fit)


def _budgets(relay: Relay) -> dict[str, BudgetStatus]:
    """Return every bounded store by its displayed name."""
    budgets = {
        "samples": BudgetStatus(
            used_bytes=relay.flow.queued_bytes,
            reserved_bytes=relay.flow.reserved_bytes,
            limit_bytes=relay.settings.budget_bytes,
        ),
        "policy": BudgetStatus(used_bytes=relay.policies.held_bytes, limit_bytes=relay.settings.max_policy_bytes),
    }
    if shown := relay.viewers.held_bytes:
        budgets["telemetry"] = BudgetStatus(used_bytes=shown)
    old = {id(policy): policy.received for policy in relay.old_policies().values()}
    if old:
        budgets["old policies"] = BudgetStatus(used_bytes=sum(old.values()))
    spool = relay.spool_handoff.spool
    if spool.limit_bytes:
        budgets["spool"] = BudgetStatus(used_bytes=spool.used_bytes, limit_bytes=spool.limit_bytes)
    return budgets


def _spooled(kept: SpooledStream) -> SpooledStatus:
    info = kept.info
    return SpooledStatus(
        worker=info.name[:_LABEL_CHARACTERS],
        stream=info.stream.hex(),
        run=info.run[:_LABEL_CHARACTERS],
        messages=len(kept.messages),
        samples=kept.samples,
        bytes=kept.body_bytes,
        ended=kept.ended,
    )


def _peer(connection: RelayConnection, now: float) -> PeerStatus:
    return PeerStatus(
        role=connection.state,
        name=connection.name[:_LABEL_CHARACTERS],
        address=connection.identity.address,
        run=connection.run[:_LABEL_CHARACTERS],
        since_s=round(connection.linked_s(now), 3),
        heard_s=round(connection.silent_for_s(now), 3),
        bytes_in=connection.bytes_in,
        bytes_out=connection.bytes_out,
        unread_bytes=connection.unread_bytes,
        policy=connection.have,
        certificate=(connection.identity.name or "")[:_LABEL_CHARACTERS],
        forged=connection.forged,
        outdated=connection.outdated,
        weight=connection.identity.weight,
        rtt_s=msgspec.UNSET if (rtt_s := connection.rtt_s()) is None else rtt_s,
    )


def _stream(stream: RelayStream) -> StreamStatus:
    late = stream.lateness
    return StreamStatus(
        worker=stream.name[:_LABEL_CHARACTERS],
        stream=stream.id.hex(),
        run=stream.run[:_LABEL_CHARACTERS],
        linked=stream.worker is not None,
        active=stream.active,
        epoch=stream.epoch,
        queued_messages=len(stream.queue),
        queued_bytes=stream.queue.nbytes,
        reserved_bytes=stream.reserved,
        limit_bytes=stream.limit,
        relayed_messages=stream.relayed_messages,
        relayed_samples=min(stream.relayed_samples, MAX_COUNT),
        relayed_bytes=stream.relayed_bytes,
        dropped_messages=min(stream.dropped_messages, MAX_COUNT),
        position=stream.position,
        waits=stream.waits[:_WAITS_CHARACTERS],
        steps=late.steps if late is not None else msgspec.UNSET,
        late_steps=late.late_steps if late is not None else msgspec.UNSET,
        lateness_p999_s=late.p999_us / 1e6 if late is not None else msgspec.UNSET,
    )
