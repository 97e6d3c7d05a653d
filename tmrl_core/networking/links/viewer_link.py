"""Link of a viewer, which shows a run from anywhere and gives it orders."""

# Theory of operation
#
# A viewer dials out to the Server, as workers and trainers do, so it runs on any machine that reaches the Server. It is
# admitted as an observer: it takes no worker's place and nobody waits for it. What it shows are last values, each
# replaced by one assignment in the I/O thread, so the application reads them at any time and without a lock.
#
# The Server says what it sees (`status`, every two seconds), the trainer what it knows (`scene`, `history`). Both are
# shown with their age. A Server cannot say how old a scene is, so an application that shows `scene` also says when it
# was made, by the trainer's clock.
#
# Orders are made in the application's thread and sent by the I/O thread. Their outcomes come in scenes, which all
# viewers see; those that the Server did not forward are answered by the Server, to this viewer alone.

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections.abc import Mapping

import msgspec

from tmrl_core.networking.links.base import Link
from tmrl_core.networking.links.remark_log import RemarkLog
from tmrl_core.networking.links.sealing import seal_viewer
from tmrl_core.networking.observer.viewer import ViewerConnection, ViewerState
from tmrl_core.networking.protocol.pictures import Kind, Picture
from tmrl_core.networking.protocol.status import ServerStatus
from tmrl_core.networking.protocol.telemetry import History, Order, OrderOutcome, Scene
from tmrl_core.networking.transports.base import Transport
from tmrl_core.networking.transports.selection import LinkSettings

logger = logging.getLogger(__name__)

STATUS_S = 2.0
"""Seconds between two requests for the Server's status."""


class ViewerLink(Link[ViewerConnection]):
    """A viewer's link to the Server. Call `start`; it connects again by itself until `close`.

    Args:
        settings: address and credentials of the Server. An operator's certificate signs orders, or a trainer's.
        run: run to watch; empty: the one that the Server's trainer trains.
        name: label for people, also in records of orders where nothing proves another name.
        orders: False: this viewer gives no orders, whatever its credentials allow.

    Raises:
        CredentialsError: a file of this machine is missing or damaged.
    """

    _end = ViewerConnection

    def __init__(self, settings: LinkSettings, run: str = "", *, name: str = "", orders: bool = True) -> None:
        log = RemarkLog(logger)
        identity, seal = seal_viewer(settings, log)
        self.viewer = ViewerState(run=run, name=name or f"pid {os.getpid()}", peer=os.urandom(16), seal=seal)
        self._orders = orders
        self._order_lock = threading.Lock()
        self._changes = 0
        self._seen_status: ServerStatus | None = None
        self.status_s = 0.0
        """Time at which `status` has arrived, in seconds since 1970; 0: it has not."""
        super().__init__(settings, self.viewer, identity, log)

    # --- what is seen ---

    @property
    def scene(self) -> Scene | None:
        """Return the latest scene, with the round-trip times and the answers that the Server adds; None: none yet."""
        scene = self.viewer.scene
        if scene is None:
            return None
        rtt_ms = self._rtt_ms()
        workers = tuple(
            msgspec.structs.replace(worker, rtt_ms=rtt_ms[worker.name]) if worker.name in rtt_ms else worker
            for worker in scene.workers
        )
        orders = sorted((*scene.orders, *list(self.viewer.answered.values())), key=lambda outcome: outcome.time_s)
        return msgspec.structs.replace(scene, workers=workers, orders=tuple(orders))

    def _rtt_ms(self) -> dict[str, float]:
        status = self.viewer.status
        peers = () if status is None else status.peers
        return {
            peer.name: round(1e3 * peer.rtt_s, 3)
            for peer in peers
            if peer.role == "worker" and not isinstance(peer.rtt_s, msgspec.UnsetType)
        }

    @property
    def history(self) -> History | None:
        """Return the latest curves; None: none yet."""
        return self.viewer.history

    @property
    def pictures(self) -> Mapping[tuple[str, Kind], Picture]:
        """Return the latest pictures of workers by label and kind, of which an operator has ordered some."""
        return self.viewer.pictures.shown

    @property
    def status(self) -> ServerStatus | None:
        """Return the Server's latest status; None: none yet. `status_s` is the time of its arrival."""
        return self.viewer.status

    @property
    def authenticated(self) -> bool:
        """Return True if scenes and histories are shown only if the trainer's certificate proves them."""
        return self.viewer.seal is not None

    @property
    def state(self) -> str:
        """Return the state of the link in words: `connected`, or why not."""
        if self.connected:
            unproven = self.viewer.unproven
            return f"connected, and what the Server shows is not believed: {unproven}" if unproven else "connected"
        reason = str(self._failure) if self._failure is not None else self._lost_text
        where = f"the Server at {self.settings.host} port {self.settings.port}"
        return f"not connected to {where}: {reason}" if reason else f"connecting to {where}"

    @property
    def changed(self) -> int:
        """Return a number that grows with each change of what this link shows."""
        return self._changes

    def wait(self, timeout_s: float, after: int | None = None) -> bool:
        """Wait until something has changed. False: the time is over, or the link is closed.

        Args:
            timeout_s: limit on the wait.
            after: value of `changed` whose state the caller has seen; None: the present one.
        """
        seen = self._changes if after is None else after
        with self._changed:
            return self._changed.wait_for(lambda: self._changes != seen or self.closed, timeout_s) and not self.closed

    # --- orders ---

    @property
    def may_order(self) -> bool:
        """Return True if the trainer would obey this viewer, as far as it is known."""
        return not self._why_not()

    def order(self, order: Order) -> str:
        """Send an order. Return its id, with which `outcome` finds the answer."""
        with self._order_lock:
            number, envelope = self.viewer.envelope(order)
        if reason := self._why_not() or ("" if self.connected else self.state):
            self.viewer.undelivered(number, reason)
        else:
            self._tell(lambda connection: connection.command(number, envelope))
        return envelope.id

    def _why_not(self) -> str:
        """Return the reason why the trainer would not obey this viewer, as far as it is known; empty: it would."""
        scene = self.viewer.scene
        if not self._orders:
            return "this viewer only looks"
        if scene is None:
            return "no trainer was seen yet"
        if not scene.takes_orders:
            return "the trainer carries out no orders"
        if self.viewer.signed and self.viewer.seal is None:
            return "this machine has no operator's certificate, and the trainer takes signed orders only"
        return ""

    def outcome(self, id_: str) -> OrderOutcome | None:
        """Return what came of an order; None: no answer has arrived, or it is among the latest no more."""
        scene = self.scene
        return next((one for one in (() if scene is None else scene.orders) if one.id == id_), None) or (
            self.viewer.answered.get(id_)
        )

    # --- the thread ---

    def _notify(self) -> None:
        self._changes += 1
        if self.viewer.status is not self._seen_status:
            self._seen_status, self.status_s = self.viewer.status, time.time()
        super()._notify()
        with self._changed:
            self._changed.notify_all()

    async def _keep_connected(self, transport: Transport, started: threading.Event) -> None:
        asks = asyncio.ensure_future(self._ask_for_status())
        try:
            await super()._keep_connected(transport, started)
        finally:
            asks.cancel()

    async def _ask_for_status(self) -> None:
        while True:
            if (connection := self._connection) is not None and self.connected:
                connection.request_status()
            await asyncio.sleep(STATUS_S)

    def close(self) -> None:
        """Close the link."""
        self._stop_thread()

    def __enter__(self) -> ViewerLink:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()
