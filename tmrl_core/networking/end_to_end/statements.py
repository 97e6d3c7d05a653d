"""Signed statements: the record that opens a stream, the trainer's card, and the trailer of a trainer's messages."""

from __future__ import annotations

import struct
from typing import Annotated, NamedTuple, TypeVar

import msgspec

from tmrl_core.errors import ForgedError
from tmrl_core.networking.end_to_end.identity import MAX_CERTIFICATE_BYTES, PROOF_BYTES, digest, statement
from tmrl_core.networking.end_to_end.stream_keys import KEY_BYTES, NONCE_BYTES, StreamKeys
from tmrl_core.networking.protocol.messages import MAX_SIGNATURE_BYTES, PROOF_ENDS, PROVEN_BYTES, Number, Version

_STREAM_ID = struct.Struct(">I4s8s")
MAX_STARTED_S = (1 << 32) - 1

SIGNING_KEY_BYTES = 33
"""Size of a compressed point of P-256."""

Key = Annotated[bytes, msgspec.Meta(min_length=KEY_BYTES, max_length=KEY_BYTES)]
Certificate = Annotated[bytes, msgspec.Meta(max_length=MAX_CERTIFICATE_BYTES)]
Proof = Annotated[bytes, msgspec.Meta(min_length=PROOF_BYTES, max_length=PROOF_BYTES)]

_RECORD_MAGIC = b"\xc1tmrl_core stream 1\x00"
"""Begins with a byte that MessagePack never uses, so that a signature of a stream without a record differs."""
_CARD_MAGIC = b"\xc1tmrl_core card 1\x00"
_TRAILER = struct.Struct(f"<QQ{PROOF_BYTES}s8s")
TRAILER_BYTES = _TRAILER.size
assert TRAILER_BYTES == PROVEN_BYTES, "a viewer without this package skips the trailer"


class StreamRecord(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Signed description of a stream, in the field `signature` of the message that opens it.

    Args:
        signature: the application's signature of the stream.
        certificate: the worker's, DER.
        key: the stream's X25519 public key.
        incarnation: highest incarnation of a trainer that the worker has accepted.
        started_s: the worker's clock at the start of the stream, in seconds since 1970; at least `FIRST_START_S`.
        proof: signature by the certificate's key.
    """

    signature: Annotated[bytes, msgspec.Meta(max_length=MAX_SIGNATURE_BYTES)]
    certificate: Certificate
    key: Key
    incarnation: Number
    started_s: Annotated[int, msgspec.Meta(ge=0, le=MAX_STARTED_S)]
    proof: Proof = bytes(PROOF_BYTES)

    def covered(self, run: str, stream: bytes) -> bytes:
        """Return what the proof covers."""
        fields = (self.signature, self.certificate, self.key, self.incarnation, self.started_s)
        return statement("stream record", run, stream, *fields)


class RunCard(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Signed description of a trainer.

    Args:
        run: name of the run.
        incarnation: of the trainer.
        run_key: X25519 public key, with which workers agree on the keys of their streams.
        signing_key: P-256 public key (compressed point) that signs policies, directives and reports.
        certificate: the trainer's, DER.
        proof: signature by the certificate's key.
    """

    run: Annotated[str, msgspec.Meta(max_length=200)]
    incarnation: Number
    run_key: Key
    signing_key: Annotated[bytes, msgspec.Meta(min_length=SIGNING_KEY_BYTES, max_length=SIGNING_KEY_BYTES)]
    certificate: Certificate
    proof: Proof = bytes(PROOF_BYTES)

    def covered(self) -> bytes:
        """Return what the proof covers."""
        return statement("card", self.run, self.incarnation, self.run_key, self.signing_key, self.certificate)


class PolicyTag(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """MAC of a policy for one stream. Only the trainer and the stream's worker can compute it."""

    version: Version
    nonce: Annotated[bytes, msgspec.Meta(min_length=NONCE_BYTES, max_length=NONCE_BYTES)]
    tag: bytes


class Letter(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Content of a letter of the trainer to one stream.

    Args:
        version: incarnation of the trainer and a number that grows.
        directive: the encoded directive for this stream; empty: there is none.
        policy: MAC of the latest large policy.
        keys: secrets of the group keys in use.
    """

    version: Version
    directive: bytes
    policy: PolicyTag | None
    keys: tuple[bytes, ...] = ()

    def __repr__(self) -> str:
        return f"Letter(version={self.version}, ...)"


Statement = TypeVar("Statement", StreamRecord, RunCard)

_encode = msgspec.msgpack.Encoder().encode
_decoders = {kind: msgspec.msgpack.Decoder(kind) for kind in (StreamRecord, RunCard)}
_letters = msgspec.msgpack.Decoder(Letter)
_MAGIC: dict[type, bytes] = {StreamRecord: _RECORD_MAGIC, RunCard: _CARD_MAGIC}
_NAMES: dict[type, str] = {StreamRecord: "the record of a stream", RunCard: "the card of a trainer"}


def stream_id(run: str, identity: str, key: bytes, started_s: int) -> bytes:
    """Return the id of the stream with this public key, which no other holder of a certificate can use.

    It begins with the time of its start and 4 bytes that name the holder, so that a trainer that has forgotten the
    oldest streams of a holder recognises their replay.
    """
    holder = digest(statement("holder", identity))[:4]
    return _STREAM_ID.pack(started_s, holder, digest(statement("stream id", run, identity, key, started_s))[:8])


def encode_statement(value: StreamRecord | RunCard) -> bytes:
    """Encode a statement."""
    return _MAGIC[type(value)] + _encode(value)


def decode_statement(data: bytes, kind: type[Statement]) -> Statement:
    """Decode a statement, whose proof remains to be checked.

    Raises:
        ForgedError: the bytes are not such a statement, in its only encoding.
    """
    try:
        if not data.startswith(_MAGIC[kind]):
            raise ForgedError("it is missing")
        value: Statement = _decoders[kind].decode(memoryview(data)[len(_MAGIC[kind]) :])  # type: ignore[assignment]
        if encode_statement(value) != data:
            raise ForgedError("it has another encoding")
    except (ForgedError, msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as exc:
        raise ForgedError(f"{_NAMES[kind]} could not be read: {exc}") from exc
    return value


def encode_letter(letter: Letter, keys: StreamKeys) -> bytes:
    """Return a letter for the stream of these keys."""
    return keys.seal_letter(_encode(letter)) + PROOF_ENDS


def decode_letter(body: bytes, keys: StreamKeys) -> Letter:
    """Return a letter to the stream of these keys.

    Raises:
        ForgedError: the trainer has not sent it to this stream.
    """
    content = keys.open_letter(body[: -len(PROOF_ENDS)]) if body.endswith(PROOF_ENDS) else None
    try:
        return _letters.decode(content or b"")
    except msgspec.MsgspecError as exc:
        raise ForgedError("it has no proof of its origin") from exc


class Signature(NamedTuple):
    """Trailer of a policy, directive for all workers or report: its place in their order, and the proof."""

    version: Version
    """Incarnation of the trainer and a number that grows."""
    proof: bytes


def broadcast_statement(subject: str, run: str, version: Version, hashed: bytes) -> bytes:
    """Return what the trailer of a policy, directive or report covers."""
    return statement(subject, run, *version, hashed)


def encode_trailer(signature: Signature) -> bytes:
    """Encode a trailer; its size is constant."""
    return _TRAILER.pack(*signature.version, signature.proof, PROOF_ENDS)


def split_trailer(body: memoryview) -> tuple[memoryview, Signature]:
    """Divide a policy, directive or report into its content and its trailer.

    Raises:
        ForgedError: it has no trailer.
    """
    if len(body) < TRAILER_BYTES or body[-len(PROOF_ENDS) :] != PROOF_ENDS:
        raise ForgedError("it has no proof of its origin")
    incarnation, number, proof, _ = _TRAILER.unpack(body[-TRAILER_BYTES:])
    return body[:-TRAILER_BYTES], Signature((incarnation, number), proof)
