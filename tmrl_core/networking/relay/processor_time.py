"""Processor time of the Server that each principal may use besides its samples. Sans-I/O: transports measure it.

Samples cost what the trainer's credit and the turns of the principals allow. All other input (requests for credit,
streams that open and close, wait reasons, heartbeats, samples that are discarded) costs time that nothing else bounds.
Each principal has `SHARE` of a core for it, and never more than `SHARE_AT_ONCE`, so that others are read in between;
the token of a large fleet has more. Beyond that, nothing is read from any of its links for a while. `ReadSize` keeps
a single read short.

The time of a read is measured. Its consequences happen later, in the turns of other links, and have a price. Streams
and wait reasons also cost time of the trainer, in the thread that takes the samples of all workers. It has a price too,
and each principal has a share of it, `TRAINER_SHARE`.
"""

# Theory of operation
#
# Memory is bounded by credit, budgets and places; this file bounds time, the other thing that one member can take from
# all. It keeps an account for each principal and says how long its links should not be read. It measures nothing
# itself.
#
# Not reading is the only means: TCP then stops the sender, and nothing is lost or refused. The account is filled at a
# tenth of a core, with a burst of one second, so that a fleet that connects again after a restart is not slowed down.
# Example: 2,000 streams at 250 us each cost 0.5 s of the trainer's time. The burst covers 0.25 s; the rest is earned in
# 5 s, at a twentieth of a core, in which the links of the principal are not read.
#
# Pauses begin after 10 ms of use at a stretch and last at least 20 ms. Shorter turns stop the flow of samples, and
# cores idle until it has started again. They last 4 s at most, since a link that is not read for longer looks dead to
# its peer. In a pause, only links that came after its beginning can be read, and each pauses for itself: a pause of a
# thousand links takes 10 ms, so that a new one with each link that joins would be most of what is charged.
#
# One token may belong to a whole fleet, so its share grows with its links: `SHARE` for each `LINKS_OF_ONE`, which is
# all that a certificate may have, and `MOST_SHARES` at most. A thousand workers with one token have 0.39 of a core. The
# share at once grows too: beyond 512 links the burst takes a whole core, for 10 s at most (5 s of use and what is
# earned meanwhile). With half of a core, the pauses of 5,000 links alone would use it up.
#
# Handshakes, and the first stream of a link, count for certificates only, because the machines of a fleet with one
# token connect again together. A principal beyond its burst is not read for a while, on all of its links, and its
# connections count against the rate of its address.
#
# Output is not measured, because most answers are acknowledgements of honest samples; what answers cost is in
# `EFFECTS`. Rejected: a limit for samples too (one busy worker may use a whole core, and the trainer's credit bounds
# it), and only a fair share among busy principals (a flood would still take all of the idle time).

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from tmrl_core.networking.relay.stream_budget import LINKS_OF_ONE
from tmrl_core.token_bucket import TokenBucket

SHARE = 0.1
"""Part of a core that one principal may use. Honest workers use less than a hundredth."""
MOST_SHARES = 5.0
"""Maximum number of shares of a principal with very many links."""
BURST_S = 1.0
"""Processor seconds at once, enough for a fleet that connects again."""
SHARE_AT_ONCE, AT_ONCE_S = 0.5, 0.01
"""Part of a core that one principal may use while it has a burst left, and processor seconds without a pause."""
STATUS_BYTE_S = 10e-9
"""Price of a byte of the status: an observer's requests are a thousandth of their answers. It limits the answers to
10 MB/s after a burst of 100 MB."""
MIN_PAUSE_S = 0.02
"""Minimum pause. Short pauses delay others by little at a time."""
PAUSE_S = 10e-6
"""Price of a pause, for each link of the principal."""
IN_VAIN_BYTE_S = 2e-9
"""Price of a byte of samples that was received and reaches neither the trainer nor the spool."""
EFFECTS = 1.5
"""Price of input besides samples, as a multiple of the time to read it: system calls, answers, and grants of credit."""
TRAINER_SHARE, TRAINER_BURST_S = 0.05, 0.25
"""Part of a core of the trainer that one principal may use, and processor seconds in addition: a thousand streams."""
STREAM_S, SIGNATURE_BYTE_S, WAITS_S = 250e-6, 10e-9, 10e-6
"""Price, in the trainer's time, of a stream that is opened, of each byte of its signature, and of a wait reason."""
WAITS_BYTE_S = 200e-9
"""Price of each byte of a wait reason: 250 kB/s. They come before samples on the trainer's link."""
MAX_PAUSE_S = 4.0
"""Maximum pause, less than the time after which a silent link is closed."""
LOG_AGAIN_S = 60.0
"""Minimum time between two lines of the log about the same principal."""
READ_S = 0.002
"""Processor time that one read should cost at most."""
MIN_READ_BYTES, MAX_READ_BYTES = 4_096, 262_144


class _Account:
    """Processor time of one principal."""

    __slots__ = ("at_once", "logged_at", "paused_until", "share", "trainer")

    def __init__(self) -> None:
        self.share = TokenBucket(SHARE, BURST_S)
        self.trainer = TokenBucket(TRAINER_SHARE, TRAINER_BURST_S)
        self.at_once = TokenBucket(SHARE_AT_ONCE, AT_ONCE_S)
        self.logged_at = self.paused_until = float("-inf")


class ProcessorTime:
    """Processor time of all principals.

    Args:
        links: number of links by principal, as it is at each call; None: they are few.
    """

    def __init__(self, links: Mapping[str, int] | None = None) -> None:
        self._links: Mapping[str, int] = {} if links is None else links
        self._accounts = defaultdict[str, _Account](_Account)  # as many as there are certificates and roles
        self._now = float("-inf")
        """Latest time so far: a link that another one replaces knows an earlier one, and an account that went back
        would count the time since then twice."""

    def charge(self, principal: str, seconds: float, now: float, trainer_s: float = 0.0) -> float:
        """Charge processor time of the Server and of the trainer to a principal.

        Return the seconds for which its links should not be read; 0: none.
        """
        self._now = now = max(self._now, now)
        account = self._accounts[principal]
        shares = min(max(1.0, self._links.get(principal, 0) / LINKS_OF_ONE), MOST_SHARES)
        seconds, trainer_s = seconds / shares, trainer_s / shares
        pause_s = 0.0
        for bucket, share, price_s in (
            (account.share, SHARE, seconds),
            (account.trainer, TRAINER_SHARE, trainer_s),
            (account.at_once, SHARE_AT_ONCE, seconds + trainer_s),
        ):
            pause_s = max(pause_s, (price_s - bucket.available(now)) / share)
            bucket.spend(price_s)
        return min(max(pause_s, MIN_PAUSE_S), MAX_PAUSE_S) if pause_s > 0 else 0.0

    def begin_pause(self, principal: str, seconds: float, now: float) -> bool:
        """Note a pause of all links of a principal. Return False if they pause already: then one has come since."""
        account = self._accounts[principal]
        if now < account.paused_until:
            return False
        account.paused_until = now + seconds
        return True

    def charge_in_vain(self, principal: str, n: int) -> None:
        """Charge `n` bytes of samples that were received in vain, which neither credit nor turns have limited."""
        if n:
            self.charge(principal, n * IN_VAIN_BYTE_S, self._now)

    def overspent(self, principal: str, now: float) -> bool:
        """Return True if a principal has used more than a share of it."""
        self._now = now = max(self._now, now)
        account = self._accounts.get(principal)
        return account is not None and min(account.share.available(now), account.trainer.available(now)) <= 0

    def should_log(self, principal: str, now: float) -> bool:
        """Return True if a principal has used more than its share, at most once in `LOG_AGAIN_S`."""
        self._now = now = max(self._now, now)
        if not self.overspent(principal, now) or now - self._accounts[principal].logged_at < LOG_AGAIN_S:
            return False
        self._accounts[principal].logged_at = now
        return True


class ReadSize:
    """Bytes to read from one link at a time.

    A read of samples costs little, and the same bytes as tiny messages cost hundreds of times as much, in which the
    Server would read from nobody else.
    """

    def __init__(self) -> None:
        self.bytes = 4 * MIN_READ_BYTES

    def spent(self, seconds: float, n: int) -> None:
        """Take the processor time of a read of `n` bytes into account."""
        if seconds > READ_S:
            self.bytes = max(MIN_READ_BYTES, min(self.bytes, int(n * READ_S / seconds)))
        elif 2 * n >= self.bytes:  # a short read says little about a long one
            self.bytes = min(MAX_READ_BYTES, 2 * self.bytes)
