"""A viewer's end of a link: an observer that watches a run, and gives orders. Sans-I/O."""

from __future__ import annotations

import time
from collections import OrderedDict
from typing import TYPE_CHECKING

from tmrl_core.errors import ForgedError
from tmrl_core.networking.observer.connection import ObserverConnection, ObserverState
from tmrl_core.networking.observer.pictures import ArrivingPictures
from tmrl_core.networking.protocol.messages import (
    LEGAL,
    PROOF_ENDS,
    PROVEN_BYTES,
    Announce,
    Command,
    Control,
    Film,
    Revoked,
    Show,
    Undelivered,
    Watch,
    Welcome,
    decode_body,
    encode_body,
    plain,
)
from tmrl_core.networking.protocol.pictures import Piece
from tmrl_core.networking.protocol.telemetry import History, Order, OrderEnvelope, OrderOutcome, Scene

if TYPE_CHECKING:  # loaded only where authentication is on
    from tmrl_core.networking.observer.seal import ViewerSeal

MAX_OUTCOMES = 64
"""Number of orders of this viewer whose outcomes are kept."""


class ViewerState(ObserverState):
    """State of a viewer, which outlives links.

    Args:
        run: run to watch; empty: the one that the Server's trainer trains.
        seal: checks what the trainer shows and signs orders; None: neither.
    """

    def __init__(self, *, run: str, name: str, peer: bytes, token: str = "", seal: ViewerSeal | None = None) -> None:
        super().__init__(run=run, name=name, peer=peer, token=token)
        self.seal = seal
        self.scene: Scene | None = None
        self.history: History | None = None
        self.pictures = ArrivingPictures()
        self.unproven = ""
        """Reason why the latest part of the telemetry was not believed; empty: it was."""
        self.signed = False
        """True: the latest part of the telemetry had a proof, which only a viewer with a seal checks."""
        self.answered: OrderedDict[str, OrderOutcome] = OrderedDict()
        """Orders of this viewer that the relay has not forwarded, by id."""
        self._numbers: dict[int, tuple[str, Order]] = {}
        self._next_number = 0

    def envelope(self, order: Order) -> tuple[int, OrderEnvelope]:
        """Return a new order with its number on the link, ready to be sent."""
        number, self._next_number = self._next_number, self._next_number + 1
        id_ = f"{self.peer.hex()[:16]}-{number}"
        self._numbers[number] = id_, order
        if len(self._numbers) > MAX_OUTCOMES:
            del self._numbers[next(iter(self._numbers))]
        scene = self.scene
        envelope = OrderEnvelope(
            run=scene.run if scene is not None else self.run,
            id=id_,
            scene_s=scene.time_s if scene is not None else 0.0,
            order=encode_body(order),
            by=self.name[:100],
        )
        return number, envelope if self.seal is None else self.seal.sign(envelope)

    def undelivered(self, number: int, reason: str) -> None:
        """Note that an order did not reach the trainer."""
        id_, order = self._numbers.get(number, ("", None))
        if order is not None:
            outcome = OrderOutcome(id_, order.text, f"refused: {plain(reason)}", time.time(), done=False)
            self.answered[id_] = outcome
            if len(self.answered) > MAX_OUTCOMES:
                self.answered.popitem(last=False)

    def shown(self, part: str, body: bytes) -> None:
        """Take a part of the telemetry, if it is believed.

        Raises:
            RemoteProtocolError: it cannot be read.
        """
        content: bytes | memoryview = body
        if self.seal is not None:
            try:
                run, content = self.seal.open(part, body)
                if self.run and run != self.run:
                    raise ForgedError(f"the Server shows run {plain(run, 100)!r} in place of {self.run!r}")
            except ForgedError as exc:
                self.unproven = str(exc)
                return
        elif body.endswith(PROOF_ENDS):
            content = memoryview(body)[:-PROVEN_BYTES]
        self.unproven, self.signed = "", len(content) < len(body)
        if part == "scene":
            self.scene = decode_body(content, Scene)
        else:
            self.history = decode_body(content, History)

    def filmed(self, body: bytes) -> bool:
        """Take a piece of a picture, if it is believed. Return True if a picture is complete now.

        Raises:
            RemoteProtocolError: it cannot be read.
        """
        piece: Piece = decode_body(body, Piece)
        if self.scene is None or piece.run != self.scene.run:
            return False
        try:
            return self.pictures.add(piece, self.seal.check_piece(piece) if self.seal is not None else "")
        except ForgedError:
            return False


class ViewerConnection(ObserverConnection):
    """A viewer's end of one link."""

    LEGAL = LEGAL["viewer"]

    def __init__(self, state: ViewerState, **times: float) -> None:
        super().__init__(state, **times)
        self.viewer = state

    def command(self, number: int, envelope: OrderEnvelope) -> None:
        """Send an order that `ViewerState.envelope` has made."""
        self.send(Command(number, encode_body(envelope)))

    def _on_control(self, message: Control) -> None:
        state = self.viewer
        match message:
            case Show():
                state.shown(message.part, message.body)
            case Film():
                if not state.filmed(message.body):
                    return
            case Announce():
                if state.seal is not None:
                    state.seal.announced(message.body)
                return
            case Revoked():
                state.on_revocations(message.body)
                return
            case Undelivered():
                state.undelivered(message.number, message.reason)
            case Welcome():
                super()._on_control(message)
                self.send(Watch(state.run))
                return
            case _:
                super()._on_control(message)
                return
        state.on_change()
