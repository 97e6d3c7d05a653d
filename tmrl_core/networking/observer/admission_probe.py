"""Client's end of a link that only checks for admission and measures the connection. Sans-I/O."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from tmrl_core.networking.protocol.connection import Connection
from tmrl_core.networking.protocol.messages import LEGAL, Control


class ProbeConnection(Connection):
    """Client's end of a probe.

    It stores the Server's messages until they are read; the first message sent is a `Probe`.
    """

    LEGAL = LEGAL["probe"]

    def __init__(self, *, silent_s: float, heartbeat_s: float, greeting_s: float) -> None:
        super().__init__(silent_s=silent_s, heartbeat_s=heartbeat_s, greeting_s=greeting_s)
        self.heard: deque[Control] = deque()
        self.on_change: Callable[[], None] = lambda: None
        """Called when a message has arrived, or when the link has ended."""

    def _on_control(self, message: Control) -> None:
        self.state = "probe"
        self.heard.append(message)
        self.on_change()

    def _on_closed(self) -> None:
        self.on_change()
