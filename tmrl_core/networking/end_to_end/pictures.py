"""Proofs of pictures: a worker's signature of each piece, and a viewer's check of it."""

from __future__ import annotations

import msgspec

from tmrl_core.errors import ForgedError
from tmrl_core.networking.end_to_end.identity import PROOF_BYTES, Peer, Signer, Verifier, is_signed, statement
from tmrl_core.networking.protocol.pictures import Piece


def _covered(piece: Piece) -> bytes:
    place = (piece.number, piece.part, piece.parts)
    return statement(
        "picture", piece.run, piece.worker, piece.kind, place, piece.content, piece.text, piece.certificate
    )


def sign_piece(piece: Piece, signer: Signer) -> Piece:
    """Return the piece with its worker's certificate and signature."""
    made = msgspec.structs.replace(piece, certificate=signer.certificate)
    return msgspec.structs.replace(made, proof=signer.sign(_covered(made)))


def check_piece(piece: Piece, verifier: Verifier) -> Peer:
    """Return the worker that has signed a piece.

    Raises:
        ForgedError: it is not signed, or not by a worker with a valid certificate.
    """
    if not piece.certificate or len(piece.proof) != PROOF_BYTES:
        raise ForgedError("a picture is not signed, and this viewer believes signed ones only (network.end_to_end)")
    peer = verifier.check(piece.certificate, ("worker",))
    if not is_signed(peer.key, piece.proof, _covered(piece)):
        raise ForgedError(f"a picture of {peer.name} has a wrong signature")
    return peer
