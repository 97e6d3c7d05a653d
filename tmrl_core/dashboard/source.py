"""The seam between the page and a run: a link to the Server, or the folder of a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from tmrl_core.networking.protocol.pictures import Kind, Picture
from tmrl_core.networking.protocol.status import ServerStatus
from tmrl_core.networking.protocol.telemetry import History, Order, Scene

CONNECTED = "connected"
"""Beginning of the state of a source that works."""


class Source(Protocol):
    """The latest that is known of a run. Any thread may read it; each value is replaced as a whole."""

    @property
    def scene(self) -> Scene | None:
        """Latest values; None: there are none yet."""

    @property
    def history(self) -> History | None:
        """Curves; None: there are none yet."""

    @property
    def status(self) -> ServerStatus | None:
        """Status of the Server; None: there is none."""

    @property
    def pictures(self) -> Mapping[tuple[str, Kind], Picture]:
        """Latest pictures of workers, by label and kind."""

    @property
    def state(self) -> str:
        """`connected`, perhaps with what is wrong nevertheless; else the reason why nothing comes."""

    @property
    def changed(self) -> int:
        """Number of changes of the attributes above."""

    @property
    def may_order(self) -> bool:
        """True: orders can be sent."""

    def wait(self, timeout_s: float, after: int | None = None) -> bool:
        """Wait until `changed` is another number than `after`. False: the time is over, or the source is closed."""

    def order(self, order: Order) -> str:
        """Send an order and return its id, with which `Scene.orders` answers it.

        Raises:
            TmrlError: it cannot be sent.
        """

    def close(self) -> None:
        """End; more than once."""
