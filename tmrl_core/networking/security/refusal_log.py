"""Log of refused connections with their reasons, bounded so that clients cannot fill it."""

from __future__ import annotations

import logging
import re
import time
from collections import OrderedDict
from collections.abc import Callable

from tmrl_core.networking.security.admission import network_of
from tmrl_core.token_bucket import TokenBucket

logger = logging.getLogger(__name__)

SAID_AGAIN_S = 60.0
"""Minimum time in seconds between two lines about the same host and reason."""
MOST_REMEMBERED = 1000
LINES_AT_ONCE = 100
LINES_PER_S = 0.2
"""Rate of lines after a burst, for all hosts together."""


class Refusals:
    """Counter and log of refused connections.

    The first refusal of a host for a reason is logged immediately, further ones once per minute.

    A host is a network as `admission.network_of` returns it. Many hosts cannot fill the log either: beyond
    `LINES_AT_ONCE` they are counted, and the next line contains the count.

    Args:
        clock: seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.count = 0
        self._clock = clock
        self._lines = TokenBucket(LINES_PER_S, LINES_AT_ONCE)
        self._unsaid = 0
        # Time of the last line and number of refusals since then, by host and reason; the oldest entry first.
        self._said: OrderedDict[tuple[str, str], tuple[float, int]] = OrderedDict()

    def __call__(self, address: str, reason: str) -> None:
        """Record a refused connection.

        Args:
            address: `host:port` of the peer.
            reason: reason of the refusal, without secrets.
        """
        self._say(address, reason)
        self.count += 1  # counted last: other threads take the count as proof that the line was logged

    def _say(self, address: str, reason: str) -> None:
        # The peer chooses numbers and quoted texts, such as an announced length. They must not count as new reasons,
        # because their lines would use up the allowance of other hosts.
        key = (network_of(address), re.sub(r"'.*'|\d+", "0", reason))
        now = self._clock()
        said_s, since = self._said.get(key, (None, 0))
        if said_s is not None and now - said_s < SAID_AGAIN_S:
            self._said[key] = (said_s, since + 1)
            return
        if not self._lines.take(now):
            self._unsaid += 1
            return
        self._said[key] = (now, 0)
        self._said.move_to_end(key)
        if len(self._said) > MOST_REMEMBERED:
            self._said.popitem(last=False)
        more = f" (and {since} more from there since the last message)" if since else ""
        if self._unsaid:
            more += f" (and {self._unsaid} of other hosts that were not logged)"
            self._unsaid = 0
        logger.warning("refused a connection from %s: %s%s", address, reason, more)
