"""Streams whose messages the inbox has not admitted. Sans-I/O.

After a request, a stream sends all that it has, at the speed of the link. So the streams of one origin are requested
one at a time, in the order in which they were postponed, and only while the inbox has room: otherwise most of what they
send would be discarded and sent again.
"""

from __future__ import annotations

from tmrl_core.networking.trainer.inbox import Inbox

ANSWER_S = 1.0
"""Time after which a requested stream without an answer lets the next one be requested. It may have nothing to send."""


class Postponed:
    """Channels of postponed streams, by origin.

    Attributes:
        due_at: latest time for the next call of `take_due`.
    """

    def __init__(self, inbox: Inbox) -> None:
        self.due_at = float("inf")
        self._inbox = inbox
        self._waiting: dict[str, dict[int, None]] = {}
        self._requested: dict[str, tuple[int, float]] = {}
        """The channel of each origin that was requested last, and when."""
        self._origins: dict[int, str] = {}
        """Origins of all these channels."""

    def add(self, channel: int, origin: str, now: float) -> None:
        """Postpone a channel: its message was not admitted."""
        self.discard(channel)
        self.due_at = min(self.due_at, now + ANSWER_S)
        self._origins[channel] = origin
        self._waiting.setdefault(origin, {})[channel] = None

    def discard(self, channel: int) -> None:
        """Handle the arrival of a channel's message, or the channel's end."""
        origin = self._origins.pop(channel, None)
        if origin is None:
            return
        if self._requested.get(origin, (None,))[0] == channel:
            del self._requested[origin]
        waiting = self._waiting.get(origin, {})
        waiting.pop(channel, None)
        if not waiting:
            self._waiting.pop(origin, None)

    def take_due(self, now: float) -> list[int]:
        """Return the channels to request now."""
        due = []
        for origin, waiting in list(self._waiting.items()):
            earlier, since = self._requested.get(origin, (-1, float("-inf")))
            if self._inbox.is_busy(origin) or now < since + ANSWER_S:
                continue
            self._origins.pop(earlier, None)
            channel = next(iter(waiting))
            del waiting[channel]
            if not waiting:
                del self._waiting[origin]
            self._requested[origin] = channel, now
            due.append(channel)
        self.due_at = now + ANSWER_S if self._waiting else float("inf")
        return due
