"""The relay's bounds. Sans-I/O."""

from __future__ import annotations

import msgspec

from tmrl_core.networking.protocol.framing import message_bytes
from tmrl_core.networking.protocol.messages import SAMPLES_HEAD


class RelaySettings(msgspec.Struct, frozen=True):
    """The relay's bounds. All sizes in bytes, times in seconds."""

    max_workers: int | None = None
    budget_bytes: int = 64 << 20
    """Maximum bytes of buffered samples. It must hold two messages of `max_message_bytes`."""
    max_message_bytes: int = 16 << 20
    max_policy_bytes: int = 256 << 20
    standing_bytes: int = 65_536
    """Credit of every stream without a request, as long as half of the budget suffices for it and leaves room for the
    requests of two principals."""
    silent_s: float = 10.0
    heartbeat_s: float = 3.0
    greeting_s: float = 10.0
    stalled_s: float = 30.0
    """Time after which a link is closed whose peer reads nothing, or uses none of the credit that others wait for."""

    def __post_init__(self) -> None:
        least = 2 * message_bytes(SAMPLES_HEAD, self.max_message_bytes)
        if self.budget_bytes < least:
            raise ValueError(
                f"the Server's budget of {self.budget_bytes} bytes is too small for messages of up to "
                f"{self.max_message_bytes} bytes; it must be at least {least}"
            )

    @property
    def window_bytes(self) -> int:
        """Maximum bytes that one stream reserves, unless a single message is larger.

        A worker requests one half at a time, so that one half is in transit while the other is forwarded.
        """
        return max(self.budget_bytes // 8, min(self.budget_bytes // 2, 2 * message_bytes(SAMPLES_HEAD, 1 << 20)))

    @property
    def request_bytes(self) -> int:
        """Maximum bytes that a worker requests at a time: the largest message, or half a window."""
        return max(message_bytes(SAMPLES_HEAD, self.max_message_bytes), self.window_bytes // 2)
