"""Limits for unauthenticated clients: rate of connections, number of open ones, and delay of rejections. Sans-I/O."""

# Theory of operation
#
# This file decides which connections of unknown peers a Server keeps, before any of them has proved who it is. It knows
# nothing of TLS, tokens or messages. The transport reports four moments of each connection, with the time: it arrives
# (`arrive`), its peer is authenticated (`admit`), it ends (`leave`), a login was wrong (`failed`). `arrive` answers
# with an entry, or with the reason to close the socket at once.
#
# A connection is *pending* from its first packet until its peer is authenticated. Three rules bound the cost of pending
# connections.
#
# - Rate. A TLS handshake costs processor time, so each address has a token bucket, and all unknown addresses share one
#   more. A connection that finds a bucket empty is closed before the handshake. An admitted connection returns its
#   token, so that a fleet that reconnects at the same moment does not use up its own. Addresses of recently admitted
#   peers are *known*, and so is this machine. The bucket of unknown addresses, which an attack from many addresses can
#   empty, does not apply to them.
# - Places. Each pending connection holds memory and a file descriptor, so their number is limited, in total and for
#   each address. At the limit, the new connection is accepted and the oldest one of the busiest address is closed,
#   unless it is younger than `GRACE_S`. A legitimate peer is admitted within a fraction of that time, while an
#   attacker's connections only wait. Connections with a valid certificate are closed last. Rejected: refusing new
#   connections instead, because idle connections would then block a fleet.
# - Delay. A rejection for missing or wrong credentials is delayed, longer with each one from the same address. Only
#   rejections are delayed: valid credentials are accepted at once, also from an address with failed logins. Rejected:
#   delaying or refusing every login from such an address, because one attacker, or one machine with an old token, would
#   block a fleet behind one NAT. A guessing client that does not wait for the answer is limited by the rate.
#
# An example with the defaults (256 places, 20 connections per second). An address may connect 256 times at once, then
# 20 times per second; all unknown addresses together 512 times at once, then 100 times per second. One address holds at
# most 128 places. Its fourth failed login within a minute is answered after about 0.25 s, the next ones after 0.5, 1, 2
# and 4 s, and further ones after 4 s. After a minute without failures, the count has halved.
#
# Who counts as one: an IPv4 address, and a /64 of IPv6, which is the usual share of one customer. All tables are
# bounded; what drops out of one starts again, and the bucket of all unknown addresses limits what an attacker gains
# from that.
#
# Two attacks remain possible. A flood from the address of a fleet shares that address's rate, so that machines of the
# fleet reconnect more slowly; linked machines are not affected. Hundreds of thousands of packets per second are the
# task of a firewall.

from __future__ import annotations

import ipaddress
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeVar

import msgspec

from tmrl_core.token_bucket import TokenBucket

GRACE_S = 1.0
"""Pending connections younger than this are not closed in favour of others."""
KNOWN_S = 86_400.0
"""Time that an address stays known after its last peer was admitted, or left."""
MAX_ADDRESSES = 4_096
"""Maximum number of addresses in each table."""
FREE_FAILURES = 3
"""Number of failed logins of an address that are rejected without delay."""
FIRST_DELAY_S = 0.25
MAX_DELAY_S = 4.0
"""Maximum delay of a rejection: shorter than peers wait for an answer (`LinkSettings.connect_timeout_s`)."""
FORGET_S = 60.0
"""Half-life of an address's count of failed logins, in seconds."""
_UNKNOWN_ADDRESSES = 5
"""Refill rate of the bucket of all unknown addresses, as a multiple of one address's rate."""
_MAX_FAILURES = 64.0


class AdmissionSettings(msgspec.Struct, frozen=True):
    """Limits for unauthenticated connections."""

    greeting_s: float = 10.0
    """Seconds from a connection's first packet within which its peer must be admitted."""
    max_unauthenticated: int = 256
    """Maximum number of pending connections; one address may have half of them."""
    connections_per_s: float = 20.0
    """New connections per second from one address, after a burst of `max_unauthenticated`."""

    @property
    def max_per_address(self) -> int:
        """Maximum number of pending connections of one address."""
        return max(1, self.max_unauthenticated // 2)


@dataclass(slots=True, eq=False)
class PendingConnection:
    """Connection whose peer is not authenticated yet."""

    network: str
    since: float
    known: bool
    close: Callable[[str], None]
    certified: bool = False
    """True: the peer has shown a certificate of our CA."""


class Admission:
    """Admission control for unauthenticated connections. Not thread-safe: only one event loop may use it."""

    def __init__(self, settings: AdmissionSettings | None = None) -> None:
        self.settings = settings or AdmissionSettings()
        self.rejected = 0
        """Number of connections closed before their handshake, because of the rate or the number of pending ones."""
        self.evicted = 0
        """Number of pending connections closed in favour of others."""
        self.failed_logins = 0
        self._pending: dict[PendingConnection, None] = {}  # the oldest comes first
        self._of_network: Counter[str] = Counter()
        self._buckets: OrderedDict[str, TokenBucket] = OrderedDict()
        rate_per_s = _UNKNOWN_ADDRESSES * self.settings.connections_per_s
        self._unknown = TokenBucket(rate_per_s, 2 * self.settings.max_unauthenticated)
        self._known: OrderedDict[str, float] = OrderedDict()
        self._failures: OrderedDict[str, tuple[float, float]] = OrderedDict()

    @property
    def waiting(self) -> int:
        """Number of pending connections."""
        return len(self._pending)

    def arrive(
        self, address: str, now: float, close: Callable[[str], None] = lambda reason: None
    ) -> PendingConnection | str:
        """Handle a new connection from `address` (`host:port`). Return it, or the reason to close it immediately.

        Args:
            address: address of the peer.
            now: seconds.
            close: called with a reason when the connection is closed in favour of another.
        """
        network = network_of(address)
        known = self._is_known(network, now)
        # Both buckets are looked at before a token is taken from either: a connection that one of them turns
        # away costs nothing in the other.
        bucket = self._bucket_of(network)
        if bucket.available(now) < 1.0:
            return self._reject("too many connections from that address in a short time")
        if not known and self._unknown.available(now) < 1.0:
            return self._reject("too many connections from unknown addresses in a short time")
        settings = self.settings
        full = len(self._pending) >= settings.max_unauthenticated
        if self._of_network[network] >= settings.max_per_address:
            if not self._evict(now, network):
                return self._reject("too many unauthenticated connections from that address")
        elif full and not self._evict(now, None):
            return self._reject("too many unauthenticated connections")
        bucket.spend()
        if not known:
            self._unknown.spend()
        pending = PendingConnection(network, now, known, close)
        self._pending[pending] = None
        self._of_network[network] += 1
        return pending

    def admit(self, pending: PendingConnection, now: float, *, overspent: bool = False) -> None:
        """Admit an authenticated peer; its connection is no longer pending.

        Connections of peers that have used more than their share of the processor count against the address.
        """
        if not self._remove(pending):
            return
        # The token comes back because the handshake has served a member. A member that has used up its share of
        # the processor pays for its handshakes, or it could spend the Server's time by connecting again and
        # again.
        if not overspent:
            self._bucket_of(pending.network).give_back()
            if not pending.known:
                self._unknown.give_back()
        self.remember(pending.network, now)

    def remember(self, network: str, now: float) -> None:
        """Remember the network of an admitted peer as known."""
        _remember(self._known, network, now)

    def leave(self, pending: PendingConnection) -> None:
        """Handle the end of the connection."""
        self._remove(pending)

    def failed(self, address: str, now: float) -> float:
        """Count a failed login from `address` (`host:port`). Return the seconds by which to delay the rejection."""
        self.failed_logins += 1
        network = network_of(address)
        count, at = self._failures.get(network, (0.0, now))
        # The count decays with time instead of being cleared by a success, which an attacker behind the same
        # NAT as a valid machine would wait for. The ceiling makes an address harmless again within five
        # half-lives.
        count = min(_MAX_FAILURES, count * 0.5 ** (max(0.0, now - at) / FORGET_S) + 1.0)
        _remember(self._failures, network, (count, now))
        over = count - FREE_FAILURES
        return 0.0 if over <= 0 else min(MAX_DELAY_S, FIRST_DELAY_S * 2.0 ** (over - 1.0))

    def _reject(self, reason: str) -> str:
        self.rejected += 1
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

    def _evict(self, now: float, network: str | None) -> bool:
        """Close the pending connection (of that network) least likely to be legitimate; False: there is none."""
        old = now - GRACE_S
        candidates = [
            pending
            for pending in self._pending
            if pending.since <= old and (network is None or pending.network == network)
        ]
        if not candidates:
            return False
        # Certified connections come last in the order, because the certificate was checked in the handshake,
        # which an attacker without a bundle cannot pass.
        # Of equal candidates, take the first, which is the oldest.
        victim = max(candidates, key=lambda one: (not one.certified, self._of_network[one.network]))
        self._remove(victim)
        self.evicted += 1
        victim.close("it was the oldest of too many unauthenticated connections")
        return True

    def _remove(self, pending: PendingConnection) -> bool:
        if pending not in self._pending:
            return False
        del self._pending[pending]
        self._of_network[pending.network] -= 1
        if not self._of_network[pending.network]:
            del self._of_network[pending.network]
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
        # A socket for both versions shows clients of IPv4 as `::ffff:a.b.c.d`; as IPv6, all of them would be in
        # one /64.
        if address.ipv4_mapped is None:
            if address.is_loopback:
                return _THIS_MACHINE
            # A host with IPv6 usually has a whole /64 to itself, and could otherwise present each
            # connection as another address.
            return str(ipaddress.IPv6Network((int(address) >> 64 << 64, 64)))
        address = address.ipv4_mapped
    return _THIS_MACHINE if address.is_loopback else str(address)


def network_of(address: str) -> str:
    """Return the network that counts as one address for `host:port`: the host in IPv4, its /64 in IPv6."""
    return _network_of_host(address.rpartition(":")[0])


def _remember(table: OrderedDict[str, _Value], key: str, value: _Value) -> None:
    # The entry used longest ago goes first, so that a flood of new addresses pushes out its own entries before
    # those of addresses that are in use.
    table[key] = value
    table.move_to_end(key)
    if len(table) > MAX_ADDRESSES:
        table.popitem(last=False)
