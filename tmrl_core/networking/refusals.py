"""Says in the Server's log who was refused and why, without letting whoever knocks fill that log."""

from __future__ import annotations

import logging
import re
import time
from collections import OrderedDict
from collections.abc import Callable

logger = logging.getLogger(__name__)

SAID_AGAIN_S = 60.0
"""Shortest time in seconds between two lines about the same host and reason."""
MOST_REMEMBERED = 1000


class Refusals:
    """Counts refused connections and logs them: each host's first for a reason at once, further ones once a minute.

    Args:
        clock: seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.count = 0
        self._clock = clock
        # When it was said last, and how many came since, by host and reason; the longest silent first.
        self._said: OrderedDict[tuple[str, str], tuple[float, int]] = OrderedDict()

    def __call__(self, address: str, reason: str) -> None:
        """Take note of one.

        Args:
            address: `host:port` of the peer.
            reason: in words, without secrets.
        """
        self.count += 1
        # Numbers may be the peer's own choice, such as a length that it announced: they make no new reason.
        key = (address.rpartition(":")[0], re.sub(r"\d+", "0", reason))
        now = self._clock()
        said_s, since = self._said.get(key, (None, 0))
        if said_s is not None and now - said_s < SAID_AGAIN_S:
            self._said[key] = (said_s, since + 1)
            return
        self._said[key] = (now, 0)
        self._said.move_to_end(key)
        if len(self._said) > MOST_REMEMBERED:
            self._said.popitem(last=False)
        more = f" (and {since} more from there since this was last said)" if since else ""
        logger.warning("refused a connection from %s: %s%s", address, reason, more)
