"""Viewer's end of the authentication: check of what a trainer shows, and proofs of orders."""

# Theory of operation
#
# A viewer believes the relay nothing. The trainer's card, which the relay passes on, is signed by a certificate of the
# CA whose certificate the viewer has; the card names the key that signs scenes and histories. Each has a place in their
# order, (incarnation, number), so an old scene cannot be shown again as a new one. What a relay can do is withhold
# scenes, and the viewer shows the age of the latest.
#
# A card of a lower incarnation is of an earlier trainer, and ignored. A viewer that starts accepts any, as a worker
# that has never met a trainer does.
#
# `signer` is the certificate of an operator, or the trainer's. A machine that has neither checks nothing and signs
# nothing, and what it shows is marked as unproven.

from __future__ import annotations

from collections.abc import Callable

from cryptography.hazmat.primitives.asymmetric import ec

from tmrl_core.errors import ForgedError
from tmrl_core.networking.end_to_end.identity import Signer, Verifier, digest, is_signed
from tmrl_core.networking.end_to_end.signed import check_message, sign_message
from tmrl_core.networking.end_to_end.statements import RunCard, broadcast_statement, decode_statement, split_trailer
from tmrl_core.networking.protocol.messages import Version
from tmrl_core.networking.protocol.pictures import Piece
from tmrl_core.networking.protocol.telemetry import OrderEnvelope


class ViewerSeal:
    """A viewer's end of the authentication, for the life of the process.

    Args:
        signer: certificate that signs orders.
        verifier: check of the trainer's certificate.
        on_forged: called with a text for each attempt. The callee limits the rate of its log.

    Not thread-safe: the owner serialises calls.
    """

    def __init__(
        self, signer: Signer, verifier: Verifier, *, on_forged: Callable[[str], None] = lambda text: None
    ) -> None:
        self.signer = signer
        """May be replaced by a renewed certificate of the same name."""
        self.forged = 0
        """Number of messages without a valid proof of their origin."""
        self._verifier = verifier
        self._on_forged = on_forged
        self._card: RunCard | None = None
        self._key: ec.EllipticCurvePublicKey | None = None
        self._newest: dict[str, Version] = {}
        """Version of the newest part of each kind."""

    def announced(self, body: bytes) -> None:
        """Handle a trainer's card."""
        try:
            card = decode_statement(body, RunCard)
            peer = self._verifier.check(card.certificate, ("trainer",))
            if not is_signed(peer.key, card.proof, card.covered()):
                raise ForgedError("the card of a trainer has a wrong signature")
            try:
                key = ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), card.signing_key)
            except ValueError as exc:
                raise ForgedError("the card of a trainer contains an invalid key") from exc
        except ForgedError as exc:
            self.count(str(exc))
            return
        known = self._card
        if known is not None and known.run == card.run and card.incarnation < known.incarnation:
            return
        if known is None or known.run != card.run:
            self._newest = {}
        self._card, self._key = card, key

    def recheck(self) -> None:
        """Forget the trainer's card if its certificate is not valid any more, for example because it was revoked."""
        if self._card is not None:
            try:
                self._verifier.check(self._card.certificate, ("trainer",))
            except ForgedError as exc:
                self._card = self._key = None
                self.count(f"the trainer is not believed any more: {exc}")

    def open(self, part: str, body: bytes) -> tuple[str, memoryview]:
        """Return the run of the trainer that has made a part of the telemetry, and the part without its proof.

        Raises:
            ForgedError: the trainer has not made it, or it is older than an accepted one.
        """
        try:
            if self._card is None or self._key is None:
                raise ForgedError("no trainer with a valid certificate has announced itself")
            content, signature = split_trailer(memoryview(body))
            run, version = self._card.run, signature.version
            covered = broadcast_statement(part, run, version, digest(content))
            if not is_signed(self._key, signature.proof, covered):
                raise ForgedError(f"a {part} has a wrong signature")
            if version < self._newest.get(part, (0, 0)):
                raise ForgedError(f"a {part} is older than an accepted one")
        except ForgedError as exc:
            self.count(str(exc))
            raise
        self._newest[part] = version
        return run, content

    def check_piece(self, piece: Piece) -> str:
        """Return the name in the certificate of the worker that has made a piece of a picture.

        Raises:
            ForgedError: no worker with a valid certificate has made it.
        """
        try:
            return check_message(piece, self._verifier).name
        except ForgedError as exc:
            self.count(f"a picture: {exc}")
            raise

    def sign(self, envelope: OrderEnvelope) -> OrderEnvelope:
        """Return an order with its proof."""
        return sign_message(envelope, self.signer)

    def count(self, text: str) -> None:
        """Count an attempt."""
        self.forged += 1
        self._on_forged(text)
