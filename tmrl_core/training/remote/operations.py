"""Orders of operators, carried out between two updates."""

# Theory of operation
#
# The link's thread has checked the orders (`networking/trainer/orders.py`); they wait there until the training thread
# looks, which it does wherever it may write a checkpoint or waits for samples. So no order meets half an update, and
# none costs an update anything: without orders, a look is at an empty queue.
#
# Each order is answered once, with `done` or the reason against it, and recorded as an event with its operator's name:
# a run that was paused for a night should say so.
#
# A pause of training holds the training thread at a place from which a checkpoint resumes bit for bit. Arriving samples
# are still inserted, as far as the ratios allow, so that workers neither block nor drop any. A pause of a worker is a
# part of the directive that its trainer sends it; it stays in force for the label, also if the worker starts again,
# because somebody may stand beside the machine. Neither outlives the trainer's process, whose checkpoint knows nothing
# of orders.
#
# Who waits because of an order does not starve: nobody ends a run because of it.
#
# Pictures (`networking/protocol/pictures.py`). An order for a camera is repeated while somebody looks, and only the
# first is recorded. A wish ends with `CAMERA_S`, so that a worker that starts later is not asked for it.

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from typing import Protocol

from tmrl_core.errors import ConfigError
from tmrl_core.networking.protocol.pictures import CAMERA_S, Wanted
from tmrl_core.networking.protocol.telemetry import Order
from tmrl_core.networking.trainer.orders import Orders, ReceivedOrder

MAX_PAUSED = 1_024
"""Maximum number of labels of paused workers."""
_NAMED = 5


class Controls(Protocol):
    """Parts of a Trainer that orders can change."""

    def checkpoint_now(self) -> str:
        """Request a checkpoint. Return the reason against it; empty: it is written at the next occasion."""

    def change_ratio(self, updates_per_step: float) -> None:
        """Limit the updates for each environment step from now on.

        Raises:
            ConfigError: the ratio is not possible here.
        """


class Operations:
    """State that orders have put a run into.

    Args:
        orders: orders of the link.
        labels: returns the labels of linked workers.
        on_worker: called with the label of a worker that was paused or resumed, or is to show itself.
        on_event: called with the text of each order that was carried out or not.
        clock: seconds, monotonic.

    Attributes:
        paused_by: operator that has paused training; empty: it is not paused.
        paused_workers: labels of paused workers.
        controls: None: the trainer does not offer checkpoints and ratios.
        may_pause: True: the training loop has come to a place where it can be held.
        together: reason why this trainer cannot be paused or change its ratio alone; empty: it can.
    """

    def __init__(
        self,
        orders: Orders,
        labels: Callable[[], Collection[str]],
        on_worker: Callable[[str], None],
        on_event: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.paused_by = ""
        self.paused_workers: set[str] = set()
        self.controls: Controls | None = None
        self.may_pause = False
        self.together = ""
        self._orders = orders
        self._labels = labels
        self._on_worker = on_worker
        self._on_event = on_event
        self._clock = clock
        self._wanted: dict[str, tuple[float, Wanted]] = {}
        """Wishes to see workers by label, with the times of the latest orders."""
        self._number = 0
        """Number of the latest wish."""
        orders.obeys = True

    @property
    def pauses(self) -> bool:
        """Return True if training or a worker is paused."""
        return bool(self.paused_by or self.paused_workers)

    def obey(self) -> bool:
        """Carry out the orders that wait. Return True if there were some."""
        found = False
        while (order := self._orders.take()) is not None:
            found = True
            wanted = self.wanted(order.order.worker)
            looks_on = order.order.kind == "camera" and wanted is not None and wanted.camera > 0
            try:
                against = self._carry_out(order)
            except ConfigError as exc:
                against = str(exc)
            outcome = f"refused: {against}" if against else "done"
            self._orders.answer(order, outcome, done=not against)
            if against or not looks_on:
                self._on_event(f"{order.by}: {order.order.text}: {outcome}")
        return found

    def wanted(self, label: str) -> Wanted | None:
        """Return the pictures that a worker shall show now; None: none."""
        at, wanted = self._wanted.get(label, (float("-inf"), None))
        return wanted if self._clock() - at < CAMERA_S else None

    def _carry_out(self, received: ReceivedOrder) -> str:
        """Carry out an order. Return the reason against it; empty: it is done."""
        order = received.order
        match order.kind:
            case "pause":
                if self.together or not self.may_pause:
                    return self.together or _NO_REST
                self.paused_by = received.by or "an operator"
            case "resume":
                self.paused_by = ""
            case "pause_worker":
                return self._pause_worker(order.worker)
            case "resume_worker":
                if order.worker not in self.paused_workers:
                    return f"worker {order.worker!r} is not paused"
                self.paused_workers.discard(order.worker)
                self._on_worker(order.worker)
            case "camera" | "video":
                return self._want(order)
            case "checkpoint":
                return _NO_CONTROLS if self.controls is None else self.controls.checkpoint_now()
            case "ratio":
                if self.together or self.controls is None:
                    return self.together or _NO_CONTROLS
                if order.value is None:
                    return "it says no ratio"
                self.controls.change_ratio(order.value)
        return ""

    def _unlinked(self, label: str) -> str:
        labels = self._labels()
        if label in labels:
            return ""
        linked = ", ".join(sorted(labels)[:_NAMED]) or "none"
        return f"no worker {label!r} is connected; connected: {linked}"

    def _want(self, order: Order) -> str:
        label, now = order.worker, self._clock()
        if against := self._unlinked(label):
            return against
        self._wanted = {name: one for name, one in self._wanted.items() if now - one[0] < CAMERA_S}
        self._number += 1
        before = self.wanted(label) or Wanted(label)
        camera, video = (self._number, before.video) if order.kind == "camera" else (before.camera, self._number)
        self._wanted[label] = now, Wanted(label, camera, video)
        self._on_worker(label)
        return ""

    def _pause_worker(self, label: str) -> str:
        if against := self._unlinked(label):
            return against
        if len(self.paused_workers) >= MAX_PAUSED:
            return f"{MAX_PAUSED} workers are paused already"
        self.paused_workers.add(label)
        self._on_worker(label)
        return ""


_NO_REST = "this training loop has not yet called interface.rest, so it cannot be held: try again, or pause its workers"
_NO_CONTROLS = "the program that trains round by round (train_iteration) decides this itself"
