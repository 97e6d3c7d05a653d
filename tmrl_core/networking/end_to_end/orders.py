"""Proofs of orders: an operator's signature, and the trainer's check of it."""

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

from __future__ import annotations

import msgspec

from tmrl_core.errors import ForgedError
from tmrl_core.networking.end_to_end.identity import PROOF_BYTES, Peer, Signer, Verifier, is_signed, statement
from tmrl_core.networking.protocol.telemetry import OrderEnvelope

ROLES = ("operator", "trainer")
"""Roles whose certificates sign orders."""


def _covered(envelope: OrderEnvelope) -> bytes:
    # Microseconds and not a float, which has several encodings.
    scene_us = round(envelope.scene_s * 1e6)
    return statement("order", envelope.run, envelope.id, scene_us, envelope.order, envelope.certificate)


def sign_order(envelope: OrderEnvelope, signer: Signer) -> OrderEnvelope:
    """Return the order with its operator's certificate and signature."""
    made = msgspec.structs.replace(envelope, certificate=signer.certificate)
    return msgspec.structs.replace(made, proof=signer.sign(_covered(made)))


def check_order(envelope: OrderEnvelope, verifier: Verifier) -> Peer:
    """Return the operator that has signed an order.

    Raises:
        ForgedError: it is not signed, or not by an operator with a valid certificate.
    """
    if not envelope.certificate or len(envelope.proof) != PROOF_BYTES:
        raise ForgedError(
            "it is not signed, and this trainer takes signed orders only (network.end_to_end): give the viewer's "
            "machine an operator's bundle"
        )
    peer = verifier.check(envelope.certificate, ROLES)
    if not is_signed(peer.key, envelope.proof, _covered(envelope)):
        raise ForgedError("its signature is wrong")
    return peer
