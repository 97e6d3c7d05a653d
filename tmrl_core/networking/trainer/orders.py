"""Orders that a trainer has received: checked once, and carried out by the training thread. Sans-I/O."""

# Theory of operation
#
# An order arrives in the I/O thread (`received`), is checked there, and waits for the training thread (`take`), which
# carries it out between two updates and says what came of it (`answer`). The next scene shows the outcomes.
#
# Where this trainer authenticates, an order needs the proof of an operator (`end_to_end/signed.py`). Where it does not,
# the Server is trusted with everything, so also with this: it has admitted the viewer.
#
# An order is used once, and soon. Its id is remembered for as long as its scene is recent enough, so a repeated order
# is recognized or too old. A refused one is answered too, because its operator waits for an answer; forgeries are
# counted besides, as other forged messages are.

from __future__ import annotations

import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from tmrl_core.errors import ForgedError, RemoteProtocolError
from tmrl_core.networking.protocol.messages import decode_body, plain
from tmrl_core.networking.protocol.telemetry import Order, OrderEnvelope, OrderOutcome

if TYPE_CHECKING:
    from tmrl_core.networking.trainer.seal import TrainerSeal

RECENT_S = 60.0
"""Maximum age of the scene that an operator was looking at: twice the time between two scenes that nobody watches."""
MAX_WAITING = 16
"""Maximum number of orders that wait for the training thread."""
SHOWN = 8
"""Number of outcomes that a scene shows."""
_MAX_IDS = 1_024
_MAX_REASON_CHARACTERS = 300


class ReceivedOrder(NamedTuple):
    """An order to carry out."""

    id: str
    by: str
    """Name of its operator."""
    order: Order


class Orders:
    """Orders of a trainer's process.

    Args:
        run: name of the run.
        wall_clock: seconds since 1970, as in scenes.

    Attributes:
        obeys: True: somebody takes and carries out the orders.
    """

    def __init__(self, run: str, wall_clock: Callable[[], float] = time.time) -> None:
        self.run = run
        self.obeys = False
        self._wall_clock = wall_clock
        self._began = wall_clock()
        self.waiting: deque[ReceivedOrder] = deque()
        """Orders for `take`. The training thread looks at it often, so it is no method."""
        self._lock = threading.Lock()
        """Guards it and what follows."""
        self._ids: OrderedDict[str, float] = OrderedDict()
        """Ids of orders, with the times of their scenes."""
        self._outcomes: deque[OrderOutcome] = deque(maxlen=SHOWN)

    def received(self, body: bytes, seal: TrainerSeal | None) -> None:
        """Handle an order from the relay: accept it, or refuse it with a reason."""
        text, by, id_ = "an order", "", ""
        try:
            envelope = decode_body(body, OrderEnvelope)
            id_, by = plain(envelope.id, 64), plain(envelope.by, 100)
            if seal is not None:
                by = ""  # a name that nothing proves
                by = plain(seal.check_order(envelope), 100)
            order = decode_body(envelope.order, Order)
            text = plain(order.text, 300)
            self._accept(envelope, ReceivedOrder(id_, by, order))
        except (ForgedError, RemoteProtocolError, _RefusedOrderError) as exc:
            if seal is not None and isinstance(exc, ForgedError):
                seal.count(f"an order was refused: {exc}")
            self._add(id_, text, f"refused: {exc}"[:_MAX_REASON_CHARACTERS], by, done=False)

    def _accept(self, envelope: OrderEnvelope, order: ReceivedOrder) -> None:
        now = self._wall_clock()
        if envelope.run != self.run:
            raise _RefusedOrderError(f"it is for run {plain(envelope.run, 100)!r}")
        if not self.obeys:
            raise _RefusedOrderError("this trainer carries out no orders")
        # A time in the future would make an order valid for ever; a second is what a clock that was set may differ by.
        if not now - RECENT_S <= envelope.scene_s <= now + 1.0 or envelope.scene_s < self._began:
            raise _RefusedOrderError(
                "its viewer saw the trainer too long ago: look at the present state and order again"
            )
        with self._lock:
            while self._ids and next(iter(self._ids.values())) < now - 2 * RECENT_S:
                self._ids.popitem(last=False)
            if order.id in self._ids:
                raise _RefusedOrderError("it was received before")
            if len(self.waiting) >= MAX_WAITING or len(self._ids) >= _MAX_IDS:
                raise _RefusedOrderError("too many orders wait for the trainer: try again in a while")
            self._ids[order.id] = now
            self.waiting.append(order)

    def take(self) -> ReceivedOrder | None:
        """Return the oldest order that waits; None: there is none. In the training thread."""
        if not self.waiting:  # without the lock, because the training thread asks often
            return None
        with self._lock:
            return self.waiting.popleft() if self.waiting else None

    def answer(self, order: ReceivedOrder, outcome: str, *, done: bool) -> None:
        """Record what came of an order."""
        text = plain(order.order.text, 300)
        with self._lock:
            # A page repeats its order for a camera while somebody looks, which shall not push out all others.
            if order.order.kind == "camera" and self._outcomes and self._outcomes[-1].text == text:
                self._outcomes.pop()
        self._add(order.id, text, outcome, order.by, done=done)

    def _add(self, id_: str, text: str, outcome: str, by: str, *, done: bool) -> None:
        with self._lock:
            self._outcomes.append(OrderOutcome(id_, text, outcome, self._wall_clock(), by, done))

    @property
    def outcomes(self) -> tuple[OrderOutcome, ...]:
        """Return the latest outcomes, the oldest first."""
        with self._lock:
            return tuple(self._outcomes)


class _RefusedOrderError(Exception):
    """An order whose proof is valid, and that is not carried out."""
