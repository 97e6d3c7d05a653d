"""Limits for unauthenticated clients: rate of connections, number of open ones, and delay of rejections.

Sans-I/O: a transport reports each connection that arrives, is secured, is admitted and leaves, and passes the time.

Theory of operation
-------------------
A *visit* is a connection that is not authenticated yet, from its first packet until it is admitted. Three rules bound
the cost of visits:

- A TLS handshake costs processor time. So each address has a token bucket, and all unknown addresses share one more.
  A connection that finds a bucket empty is closed before the handshake. An admitted connection returns its token, so
  that a fleet that reconnects at the same time does not use up its own. Addresses of recently admitted peers are
  *known*, and so is this machine. The bucket of the unknown, which many addresses can empty, does not apply to them.
- Each visit holds memory and a file descriptor. So their number is limited, in total and for each address. At the
  limit, the new connection is accepted and the oldest visit of the busiest address is closed, unless it is younger
  than `GRACE_S`. A legitimate peer is admitted within a fraction of that time, while an attacker's connections only
  wait. Visits with a valid certificate are closed last.
- A rejection for missing or invalid credentials is delayed, longer with each one from the same address. Only
  rejections are delayed: valid credentials are accepted immediately, even while other clients at that address are
  throttled. A guessing client that does not wait for the answer is limited by the bucket's rate.

IPv4 addresses count one by one, IPv6 addresses by their /64, the usual share of one customer. All tables are bounded.
An address that falls out of a table starts again, and the bucket of all unknown addresses bounds the gain from that.
"""

from __future__ import annotations

import ipaddress
from collections import OrderedDict
from collections.abc import Callable
from functools import lru_cache
from typing import TypeVar

import msgspec

from tmrl_core.token_bucket import TokenBucket

GRACE_S = 1.0
"""A visit younger than this is not closed to make room."""
KNOWN_S = 86_400.0
"""Time that an address stays known after its last peer was admitted, or left."""
MOST_ADDRESSES = 4_096
"""Most addresses remembered in each table."""
FREE_FAILURES = 3
"""Failed logins of an address that are answered at once."""
FIRST_DELAY_S = 0.25
MOST_DELAY_S = 4.0
"""Longest that a refusal is held back: shorter than peers wait for an answer (`LinkSettings.connect_timeout_s`)."""
FORGET_S = 60.0
"""In so many seconds half of an address's failed logins are forgotten."""
_ADDRESSES_AT_ONCE = 5
"""The bucket of all unknown addresses fills as fast as so many addresses' own."""
_MOST_FAILURES = 64.0


class AdmissionSettings(msgspec.Struct, frozen=True):
    """Bounds for connections whose peers have not been let in."""

    greeting_s: float = 10.0
    """Seconds from a connection's first packet within which its peer must have been let in."""
    max_unauthenticated: int = 256
    """Most visits at a time; half of it for one address."""
    connections_per_s: float = 20.0
    """New connections a second of one address, once `max_unauthenticated` have come at once."""

    @property
    def most_of_one_address(self) -> int:
        """Most visits of one address at a time."""
        return max(1, self.max_unauthenticated // 2)


class PendingConnection:
    """A connection whose peer has not been let in yet."""

    __slots__ = ("certified", "close", "known", "network", "since")

    def __init__(self, network: str, since: float, known: bool, close: Callable[[str], None]) -> None:
        self.network = network
        self.since = since
        self.known = known
        self.close = close
        self.certified = False
        """True: the peer has shown a certificate of our CA."""


class Admission:
    """Decides about connections before their peers are let in. Not thread-safe: one event loop uses it."""

    def __init__(self, settings: AdmissionSettings | None = None) -> None:
        self.settings = settings or AdmissionSettings()
        self.turned_away = 0
        """Connections closed before their handshake, for want of a token or a place."""
        self.crowded_out = 0
        """Visits closed to make room for others."""
        self.failed_logins = 0
        self._visits: dict[PendingConnection, None] = {}  # the longest waiting first
        self._of_network: dict[str, int] = {}
        self._buckets: OrderedDict[str, TokenBucket] = OrderedDict()
        rate_per_s = _ADDRESSES_AT_ONCE * self.settings.connections_per_s
        self._unknown = TokenBucket(rate_per_s, 2 * self.settings.max_unauthenticated)
        self._known: OrderedDict[str, float] = OrderedDict()
        self._failures: OrderedDict[str, tuple[float, float]] = OrderedDict()

    @property
    def waiting(self) -> int:
        """Visits at the moment."""
        return len(self._visits)

    def arrive(
        self, address: str, now: float, close: Callable[[str], None] = lambda reason: None
    ) -> PendingConnection | str:
        """Somebody has connected from `address` (`host:port`): a visit, or in words why it is to be closed at once.

        Args:
            address: where from.
            now: seconds.
            close: called with a reason when the visit has to make room for another.
        """
        network = network_of(address)
        known = self._is_known(network, now)
        bucket = self._bucket_of(network)
        if bucket.available(now) < 1.0:
            return self._turn_away("too many connections from that address in a short time")
        if not known and self._unknown.available(now) < 1.0:
            return self._turn_away("too many connections from unknown addresses in a short time")
        settings = self.settings
        full = len(self._visits) >= settings.max_unauthenticated
        if self._of_network.get(network, 0) >= settings.most_of_one_address:
            if not self._make_room(now, network):
                return self._turn_away("too many unauthenticated connections from that address")
        elif full and not self._make_room(now, None):
            return self._turn_away("too many unauthenticated connections")
        bucket.spend()
        if not known:
            self._unknown.spend()
        visit = PendingConnection(network, now, known, close)
        self._visits[visit] = None
        self._of_network[network] = self._of_network.get(network, 0) + 1
        return visit

    def let_in(self, visit: PendingConnection, now: float) -> None:
        """The peer has proved who it is: this is no visit any more."""
        if not self._remove(visit):
            return
        self._bucket_of(visit.network).give_back()
        if not visit.known:
            self._unknown.give_back()
        self.seen(visit.network, now)

    def seen(self, network: str, now: float) -> None:
        """A peer that was let in is there, or was until now."""
        _remember(self._known, network, now)

    def leave(self, visit: PendingConnection) -> None:
        """The connection is gone."""
        self._remove(visit)

    def failed(self, address: str, now: float) -> float:
        """Somebody at `address` (`host:port`) could not prove who it is: for how many seconds to hold that back."""
        self.failed_logins += 1
        network = network_of(address)
        count, at = self._failures.get(network, (0.0, now))
        count = min(_MOST_FAILURES, count * 0.5 ** (max(0.0, now - at) / FORGET_S) + 1.0)
        _remember(self._failures, network, (count, now))
        over = count - FREE_FAILURES
        return 0.0 if over <= 0 else min(MOST_DELAY_S, FIRST_DELAY_S * 2.0 ** (over - 1.0))

    def _turn_away(self, reason: str) -> str:
        self.turned_away += 1
        return reason

    def _is_known(self, network: str, now: float) -> bool:
        if network == _THIS_MACHINE:
            return True
        at = self._known.get(network)
        return at is not None and now - at < KNOWN_S

    def _bucket_of(self, network: str) -> TokenBucket:
        bucket = self._buckets.get(network)
        if bucket is None:
            bucket = TokenBucket(self.settings.connections_per_s, self.settings.max_unauthenticated)
        _remember(self._buckets, network, bucket)
        return bucket

    def _make_room(self, now: float, network: str | None) -> bool:
        """Close the visit (of that network) that is least likely to be an honest peer's; False: there is none such."""
        old = now - GRACE_S
        candidates = [
            visit for visit in self._visits if visit.since <= old and (network is None or visit.network == network)
        ]
        if not candidates:
            return False
        # The first of equals, which is the longest waiting.
        victim = max(candidates, key=lambda visit: (not visit.certified, self._of_network[visit.network]))
        self._remove(victim)
        self.crowded_out += 1
        victim.close("it was the oldest of too many unauthenticated connections")
        return True

    def _remove(self, visit: PendingConnection) -> bool:
        if visit not in self._visits:
            return False
        del self._visits[visit]
        left = self._of_network[visit.network] - 1
        if left:
            self._of_network[visit.network] = left
        else:
            del self._of_network[visit.network]
        return True


_Value = TypeVar("_Value")
_THIS_MACHINE = "this machine"


@lru_cache(maxsize=1_024)
def _network_of_host(host: str) -> str:
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is None:
            if address.is_loopback:
                return _THIS_MACHINE
            return str(ipaddress.IPv6Network((int(address) >> 64 << 64, 64)))
        address = address.ipv4_mapped
    return _THIS_MACHINE if address.is_loopback else str(address)


def network_of(address: str) -> str:
    """Return the network that counts as one address for `host:port`: the host in IPv4, its /64 in IPv6."""
    return _network_of_host(address.rpartition(":")[0])


def _remember(table: OrderedDict[str, _Value], key: str, value: _Value) -> None:
    table[key] = value
    table.move_to_end(key)
    if len(table) > MOST_ADDRESSES:
        table.popitem(last=False)
