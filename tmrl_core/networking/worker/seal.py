"""Worker's end: seal samples for the trainer, and check acknowledgements, policies, directives and reports."""

# Theory of operation
#
# `WorkerSeal` is the worker's end of the authentication: it proves that samples are this worker's, and finds out
# whether what comes is the trainer's. It assumes that the relay between them lies: every message may be invented,
# changed, withheld, repeated or out of order. It never talks to anybody; the connection brings bytes and acts on the
# answer. The constructions are in `end_to_end/`, the threat model in `docs/security.md`.
#
# State, in the order in which it comes to be:
#
#     a key pair for each stream    made with the stream; its id follows from run, certificate and key
#     the card                      the trainer's, once one is accepted: run key, signing key, incarnation
#     keys of a stream              derived from both at the first use; forgotten when the run key changes
#     group keys                    from letters to this worker alone
#     versions                      the newest policy (`accepted`, also on the disk), directives and report
#
# A card is accepted if the CA has signed its certificate, the certificate has signed the card, it is for this run, and
# its incarnation is not below the highest that was accepted. An equal incarnation with other keys is another trainer's:
# it is counted as outdated, and the connection reports it (`contested`).
#
# Samples. A message has a MAC (or is encrypted) under its stream's keys once there is a card. Before that it is kept,
# and only at the worker's end signed with its certificate (`signs`), so that a Server's spool can take it: a signature
# costs 95 us of both ends for a message of 1 kB, a MAC 5 us. With `encrypt` even that is not done, since a signature
# hides nothing. The nonce is a counter that grows with every sending, because a message that is sent again may have
# another floor, and no nonce may be used for two contents.
#
# What comes is checked in this order: the proof, then whether it is new, then decryption. A message that is old and
# genuine is not a forgery: it is counted as outdated and ignored. Example: the Server replays policy 4.17 after 4.18.
# Its signature is valid, its version is not above `accepted`, `outdated` grows, and the worker goes on with 4.18.
#
# The newest version that an earlier process has accepted is returned once: its weights may be lost with that process,
# and without them the worker could not act until the next publication.
#
# Large policies. Hashing 10 MB for a signature takes 6 ms, a MAC 0.5 ms. A letter may bring the MAC of a version before
# its first frame; then the signature is not checked. Rejected: checking and decrypting each frame as it arrives, in
# place of its copy, which saved 0.5 ms of an encrypted policy of 10 MB and took a state machine in this file.
#
# Everything that is not what it claims is counted (`forged`), told to the Server for its status, and ignored; nothing
# of it ends the link, or a Server could cut a worker off with one bad byte, and blame the trainer.

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from collections.abc import Callable, Sequence
from typing import Literal

import msgspec
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from tmrl_core.errors import ForgedError, UnknownGroupKeyError
from tmrl_core.networking.end_to_end.group_key import GroupKey, decrypted
from tmrl_core.networking.end_to_end.identity import Signer, Verifier, digest, is_signed
from tmrl_core.networking.end_to_end.run_key import key_id_of
from tmrl_core.networking.end_to_end.signed import sign_message
from tmrl_core.networking.end_to_end.statements import (
    MAX_STARTED_S,
    PolicyTag,
    RunCard,
    Signature,
    StreamRecord,
    broadcast_statement,
    decode_letter,
    decode_statement,
    encode_statement,
    split_trailer,
    stream_id,
)
from tmrl_core.networking.end_to_end.stream_keys import ENCRYPTED, MAC, SEAL_BYTES, SIGNED, StreamKeys, body_statement
from tmrl_core.networking.protocol.delivery import Body, StreamSecret
from tmrl_core.networking.protocol.messages import FIRST_START_S, MessageHead, Version
from tmrl_core.networking.protocol.packed_policy import is_packed
from tmrl_core.networking.protocol.pictures import Piece

Mode = Literal["authenticate", "encrypt"]


_SEALS_BITS = 62
"""Bits of the first number of a continued stream: processes that send 2^24 messages share one with odds of 2^-37."""


class _Stream:
    """A stream of this process: its key pair, the keys shared with today's trainer, and the counter of its seals."""

    def __init__(self, run: str, identity: str, started_s: int, private: X25519PrivateKey) -> None:
        self.private = private
        self.key = self.private.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
        # Without a battery, the clock of a robot may be set only after its worker has started. A trainer would take the
        # id for a random one, forget it first, and not recognise its replay.
        self.started_s = max(FIRST_START_S, min(started_s, MAX_STARTED_S))
        self.id = stream_id(run, identity, self.key, self.started_s)
        self.seals = 0
        self.keys: StreamKeys | None = None
        self.policy: PolicyTag | None = None
        """MAC of the policy that arrives next, or arrived last."""


class _Card:
    """An accepted card, with its keys."""

    def __init__(self, card: RunCard, body: bytes) -> None:
        self.body = body
        self.content = card
        self.key_id = key_id_of(card.run_key)
        try:
            self.verifying = ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), card.signing_key)
            # A trial: with a point of small order, everybody could compute the keys of the streams. It is refused here,
            # with the card, and not at the first message.
            X25519PrivateKey.generate().exchange(X25519PublicKey.from_public_bytes(card.run_key))
        except ValueError as exc:  # no point of the curve, or one of small order
            raise ForgedError("the card of a trainer contains an invalid key") from exc


class WorkerSeal:
    """A worker's end of authentication and encryption, for the life of the process.

    Args:
        run: name of the run.
        signer: the worker's certificate.
        verifier: check of the trainer's certificate.
        mode: `encrypt`: the relay cannot read the samples.
        accepted: newest policy version that an earlier process of this worker has accepted in this run.
        on_accepted: called with each newer version, to be stored.
        on_forged: called with a text for each attempt. The callee limits the rate of its log.
        clock: seconds since 1970.

    Not thread-safe: the owner serialises calls.
    """

    seal_bytes = SEAL_BYTES
    """Bytes by which `seal` makes a message longer."""

    def __init__(
        self,
        run: str,
        signer: Signer,
        verifier: Verifier,
        *,
        mode: Mode,
        accepted: Version = (0, 0),
        on_accepted: Callable[[Version], None] = lambda version: None,
        on_forged: Callable[[str], None] = lambda text: None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.run = run
        self.signer = signer
        """May be replaced by a renewed certificate of the same name."""
        self.mode = mode
        self.accepted = accepted
        """Newest policy version that was accepted, also by an earlier process."""
        self._opened: Version = (0, 0)
        """Newest policy version that this process has accepted."""
        self.forged = 0
        """Number of messages without a valid proof of their origin."""
        self.outdated = 0
        """Number of cards, policies, directives and reports that were older than accepted ones."""
        self.contested = False
        """True: the trainer has the incarnation of another one, whose card was accepted, so that it is ignored."""
        self.signs = False
        """True: without a card, messages are signed for the Server's spool, unless they must be secret."""
        self._verifier = verifier
        self._on_accepted = on_accepted
        self._on_forged = on_forged
        self._clock = clock
        self._streams: dict[bytes, _Stream] = {}
        self._card: _Card | None = None
        self.group_keys: dict[bytes, GroupKey] = {}
        """Keys of what the trainer has encrypted for all workers, by their ids."""
        self._newest: dict[tuple[str, bytes], Version] = {}
        """Version of the newest directive and report for each stream, and for all (an empty id)."""

    @property
    def ready(self) -> bool:
        """Return True if a trainer's card is accepted."""
        return self._card is not None

    @property
    def can_seal(self) -> bool:
        """Return True if messages can be sealed now."""
        return not self.contested and (self._card is not None or (self.signs and self.mode == "authenticate"))

    @property
    def incarnation(self) -> int:
        """Return the highest incarnation of a trainer that was accepted."""
        return max(self.accepted[0], self._card.content.incarnation if self._card is not None else 0)

    def new_stream(self) -> bytes:
        """Make the key pair of a stream. Return the stream's id, which follows from it."""
        stream = _Stream(self.run, self.signer.identity, int(self._clock()), X25519PrivateKey.generate())
        self._streams[stream.id] = stream
        return stream.id

    def stream_secret(self, stream: bytes) -> StreamSecret:
        """Return what a later process needs to continue a stream of `new_stream`. It is secret."""
        own = self._streams[stream]
        key = own.private.private_bytes(Encoding.Raw, PrivateFormat.Raw, NoEncryption())
        return StreamSecret(self.signer.identity, own.started_s, key)

    def continue_stream(self, stream: bytes, secret: StreamSecret) -> bool:
        """Continue a stream of an earlier process. Return False if it is of another certificate, run or key."""
        try:
            private = X25519PrivateKey.from_private_bytes(secret.key)
        except ValueError:
            return False
        own = _Stream(self.run, self.signer.identity, secret.started_s, private)
        if own.id != stream:
            return False
        # No number may be used twice with the same keys. A random beginning needs no record of those that were used,
        # which could be lost with the machine's power, or copied with its disk.
        own.seals = secrets.randbits(_SEALS_BITS)
        self._streams[stream] = own
        return True

    def record(self, stream: bytes, signature: bytes) -> bytes:
        """Return the signed record of a stream of `new_stream`, to be announced in place of its signature."""
        own = self._streams[stream]
        record = StreamRecord(signature, self.signer.certificate, own.key, self.incarnation, own.started_s)
        proof = self.signer.sign(record.covered(self.run, stream))
        return encode_statement(msgspec.structs.replace(record, proof=proof))

    def announced(self, body: bytes) -> bool:
        """Handle a trainer's card. Return True if it is valid and is used from now on."""
        try:
            card = decode_statement(body, RunCard)
            peer = self._verifier.check(card.certificate, ("trainer",))
            if not is_signed(peer.key, card.proof, card.covered()):
                raise ForgedError("the card of a trainer has a wrong signature")
            if card.run != self.run:
                raise ForgedError("the card of a trainer is for another run")
            accepted = _Card(card, body)
        except ForgedError as exc:
            if self._card is not None and self._card.body == body:  # its certificate has expired or is revoked
                self._card = None
            self.count(str(exc))
            return False
        current = self._card.content if self._card is not None else None
        same_keys = current is not None and card.run_key == current.run_key
        if card.incarnation < self.incarnation or (
            current is not None and card.incarnation == current.incarnation and not same_keys
        ):
            self.outdated += 1
            return False
        self._card = accepted
        if not same_keys:
            for stream in self._streams.values():
                # Derived again at the next message, with the new run key. The counters of seals go on.
                stream.keys = None
        return True

    def recheck(self) -> None:
        """Forget the trainer's card if its certificate is not valid any more, for example because it was revoked."""
        if self._card is None:
            return
        try:
            self._verifier.check(self._card.content.certificate, ("trainer",))
        except ForgedError as exc:
            self._card = None
            self._on_forged(f"the trainer is not believed any more: {exc}")

    def seal(self, stream: bytes, head: MessageHead, body: Body) -> Body | None:
        """Return a message of samples with its proof, for one sending; None: keep it until there is a card."""
        own = self._streams[stream]
        if self._card is None:
            return None if self.mode == "encrypt" else self._signed(stream, head, body)
        mode = ENCRYPTED if self.mode == "encrypt" else MAC
        # Before it is used, and never given back: a sealing that is not sent costs one number of 2^64.
        own.seals += 1
        return self._keys(own, self._card).seal(mode, own.seals, head, body)

    def sign_piece(self, piece: Piece) -> Piece:
        """Return a piece of a picture with its proof. It is readable, because viewers have no key of the run."""
        return sign_message(piece, self.signer)

    def _signed(self, stream: bytes, head: MessageHead, body: Body) -> Body:
        hashed = hashlib.sha256()
        for part in body:
            hashed.update(part)
        return [*body, self.signer.sign(body_statement(stream, head, hashed.digest())) + bytes((SIGNED,))]

    def _keys(self, own: _Stream, card: _Card) -> StreamKeys:
        if own.keys is None:
            own.keys = StreamKeys(
                own.private,
                card.content.run_key,
                run=self.run,
                stream=own.id,
                stream_key=own.key,
                run_key=card.content.run_key,
                key_id=card.key_id,
            )
        return own.keys

    def check_ack(self, stream: bytes, next_number: int, refused: Sequence[tuple[int, str]], tag: bytes) -> bool:
        """Return True if the trainer made this acknowledgement."""
        if self.contested:
            return False
        own, card = self._streams.get(stream), self._card
        if own is None or card is None:
            valid = False
        else:
            valid = hmac.compare_digest(self._keys(own, card).ack_tag(next_number, refused), tag)
        if not valid:
            self.count("an acknowledgement has no valid proof of its origin")
        return valid

    def open_policy(self, version: Version, body: memoryview, *, base: bool = False) -> memoryview | None:
        """Return the content of a policy; None: it is not newer than the accepted one.

        The newest version that an earlier process has accepted is returned once: the file of its weights may be lost.

        Args:
            version: version in the head of the message.
            body: its content, with its proof.
            base: return a packed policy also if it is older: the caller makes deltas usable with it, and does not act
                with it. It is what the trainer has published, and each delta is proved by itself.

        Raises:
            ForgedError: no trainer of this run published these bytes as this version.
            UnknownGroupKeyError: its key has not arrived yet.
        """
        signed, content = self._checked("policy", body)
        if content is None:
            return None
        if signed != version:
            raise self._forged(f"policy {version[0]}.{version[1]} has the proof of another version")
        # Not `<=`: the version that an earlier process has accepted passes once, see above.
        if version < self.accepted or version == self._opened:
            if base and (packed := self._old_base(content)) is not None:
                return packed
            self.outdated += 1
            return None
        content = self._decrypted("policy", content)
        self.accepted = self._opened = version
        self._on_accepted(version)
        return content

    def _old_base(self, content: memoryview) -> memoryview | None:
        """Return the content of an older policy that makes deltas usable; None: it does not."""
        try:
            content = self._decrypted("policy", content)
        except UnknownGroupKeyError:
            # Only the first policy of a process can come before its key, with the file of a newer one at hand. Later
            # ones of old keys are repetitions, which must not wait in the place of a newer policy.
            if self._opened == (0, 0):
                raise
            return None
        return content if is_packed(content) else None

    def open_directive(self, stream: bytes | None, body: bytes) -> bytes | None:
        """Return the content of a directive for one stream, or for all (None). None: there is none, or an older one.

        Raises:
            ForgedError: no trainer of this run made it for that stream.
            UnknownGroupKeyError: it is for all, and its key has not arrived yet.
        """
        if stream is None:
            return self._newer("directive", body)
        own = self._streams[stream]
        try:
            if self._card is None:
                raise ForgedError("no trainer has proved its identity")
            letter = decode_letter(body, self._keys(own, self._card))
        except ForgedError as exc:
            raise self._forged(f"a directive for one worker was refused: {exc}") from exc
        if not self._is_newest("directive", stream, letter.version):
            return None
        own.policy = letter.policy
        # A new dict only if the keys differ: the connection compares identities to see whether to try again what it
        # keeps.
        if {key.secret for key in self.group_keys.values()} != {*letter.keys}:
            self.group_keys = {key.id: key for key in map(GroupKey, letter.keys)}
        return letter.directive or None

    def open_report(self, body: bytes) -> bytes | None:
        """Return the content of a report; None: it is older than another one.

        Raises:
            ForgedError: no trainer of this run made it.
            UnknownGroupKeyError: its key has not arrived yet.
        """
        return self._newer("report", body)

    def _newer(self, subject: str, body: bytes) -> bytes | None:
        version, content = self._checked(subject, memoryview(body))
        if content is None or not self._is_newest(subject, b"", version):
            return None
        return bytes(self._decrypted(subject, content))

    def _decrypted(self, subject: str, content: memoryview) -> memoryview:
        try:
            return decrypted(self.group_keys, self.run, subject, content)
        except ForgedError as exc:
            raise self._forged(f"a {subject} was refused: {exc}") from exc

    def _is_newest(self, subject: str, stream: bytes, version: Version) -> bool:
        """Return True if a directive or report is not older than another one for that stream, or for all."""
        if version < max(self._newest.get((subject, stream), (0, 0)), (self.incarnation, 0)):
            self.outdated += 1
            return False
        self._newest[subject, stream] = version
        return True

    def _checked(self, subject: str, body: memoryview) -> tuple[Version, memoryview | None]:
        """Return the version and the content of a trainer's message; None: an earlier trainer with other keys."""
        try:
            content, signature = split_trailer(body)
        except ForgedError as exc:
            raise self._forged(f"a {subject} was refused: {exc}") from exc
        if not (subject == "policy" and self._has_tag(signature.version, content)) and not self._is_signed(
            subject, signature, content
        ):
            # An earlier trainer of this run, on another machine, had other keys. Its last policy may still be stored by
            # the Server, and that is no attack.
            if signature.version[0] < self.incarnation:
                self.outdated += 1
                return signature.version, None
            raise self._forged(f"a {subject} has a wrong proof of its origin")
        return signature.version, content

    def _is_signed(self, subject: str, signature: Signature, content: memoryview) -> bool:
        """Return True if the trainer whose card is accepted has signed a message."""
        if self._card is None:
            return False
        covered = broadcast_statement(subject, self.run, signature.version, digest(content))
        return is_signed(self._card.verifying, signature.proof, covered)

    def _has_tag(self, version: Version, content: memoryview) -> bool:
        """Return True if a letter contains the MAC of a policy, which takes a tenth of the time of its signature."""
        for own in self._streams.values():
            proof = own.policy
            if proof is not None and proof.version == version and self._card is not None:
                tag = self._keys(own, self._card).policy_tag(proof.nonce, version, content)
                return hmac.compare_digest(tag, proof.tag)
        return False

    def _forged(self, text: str) -> ForgedError:
        self.count(text)
        return ForgedError(text)

    def count(self, text: str) -> None:
        """Count an attempt."""
        self.forged += 1
        self._on_forged(text)
