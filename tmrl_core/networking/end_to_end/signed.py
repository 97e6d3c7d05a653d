"""Signatures of orders and of pieces of pictures, and their checks."""

# Theory of operation
#
# An order goes from an operator's viewer through the relay to the trainer. The relay may read, keep, repeat or withhold
# it, and must not be able to make or change one. So it is signed with the key of a certificate of role operator, or of
# the trainer's own role, whose holder can do more already. The signature covers the run and everything that
# `OrderEnvelope` says.
#
# Repetition. The trainer remembers the ids that it has seen, as long as an order may be used (`trainer/orders.py`). An
# order names the time of the scene that its operator was looking at, which is a time of the trainer's own clock, proved
# by the trainer. So an order that was withheld for a while is too old, whatever the clocks of two machines say, and an
# order for an earlier process of the trainer is of a time before this one began.
#
# A piece of a picture goes from a worker past the trainer to all viewers, and is signed with the worker's key.

from __future__ import annotations

from typing import TypeVar

import msgspec

from tmrl_core.errors import ForgedError
from tmrl_core.networking.end_to_end.identity import PROOF_BYTES, Peer, Signer, Verifier, is_signed, statement
from tmrl_core.networking.protocol.pictures import Piece
from tmrl_core.networking.protocol.telemetry import OrderEnvelope

Message = TypeVar("Message", OrderEnvelope, Piece)
_ROLES = {OrderEnvelope: ("operator", "trainer"), Piece: ("worker",)}


def _covered(message: OrderEnvelope | Piece) -> bytes:
    if isinstance(message, Piece):
        place = (message.number, message.part, message.parts)
        shown = message.kind, place, message.content, message.text
        return statement("picture", message.run, message.worker, *shown, message.certificate)
    # Microseconds and not a float, which has several encodings.
    scene_us = round(message.scene_s * 1e6)
    return statement("order", message.run, message.id, scene_us, message.order, message.certificate)


def sign_message(message: Message, signer: Signer) -> Message:
    """Return the message with its sender's certificate and signature."""
    made = msgspec.structs.replace(message, certificate=signer.certificate)
    return msgspec.structs.replace(made, proof=signer.sign(_covered(made)))


def check_message(message: OrderEnvelope | Piece, verifier: Verifier) -> Peer:
    """Return who has signed a message.

    Raises:
        ForgedError: it is not signed, or not by the holder of a valid certificate of its role.
    """
    if not message.certificate or len(message.proof) != PROOF_BYTES:
        raise ForgedError(
            "it is not signed, and signed ones only are believed (network.end_to_end): a viewer's machine signs orders "
            "with an operator's bundle"
        )
    peer = verifier.check(message.certificate, _ROLES[type(message)])
    if not is_signed(peer.key, message.proof, _covered(message)):
        raise ForgedError(f"the signature of {peer.name} is wrong")
    return peer
