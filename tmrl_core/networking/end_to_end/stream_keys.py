"""Keys that one stream and one trainer share, the proofs that end each message of samples, and letters."""

# Theory of operation
#
# A worker makes an X25519 key pair for each stream, the trainer one for each run. Both ends derive the same keys from
# them, so that a message that was stored for weeks can still be checked after both processes have ended, without a
# message between them. This file is the arithmetic of that: it knows neither certificates nor who may be believed.
#
# The shared secret and the public facts (run, stream, both public keys) give 96 bytes, five keys of which each has one
# use and one direction:
#
#     bytes  0-16   GMAC of messages of samples         worker -> trainer, nonce: the counter of seals
#           16-32   AES-128-GCM of messages of samples  worker -> trainer, nonce: the counter of seals
#           32-64   HMAC of acknowledgements            trainer -> worker, no nonce
#           64-80   AES-128-GCM of letters              trainer -> worker, random nonce
#           80-96   GMAC of policies                    trainer -> worker, random nonce
#
# Separate keys, because a nonce must not come twice under one key, and the two modes and the two directions could not
# agree on whose turn it is. Where one end has a counter that lasts as long as the keys, the nonce is the counter (a
# process that continues the stream of another one begins at a random number of 62 bits); where the same keys come back
# without one (a trainer that restarts), it is random. 2^32 random nonces of 96 bits are the recommended limit, and
# neither letters nor policies come near it.
#
# A message of samples ends with a trailer of constant size: 64 bytes of proof and one byte that names the mode, so that
# the size of a message on the link is known before it is sealed.
#
# - `MAC`: GMAC of AES-128 over header and body; the body is readable.
# - `ENCRYPTED`: AES-128-GCM.
# - `SIGNED`: signature by the worker's certificate, if the worker has not received a run key yet.
#
# What a proof covers begins with its subject and has the length of each field (`statement`), or a fixed size
# (`header`). A proof of one kind, place or stream is therefore never valid for another. The header holds stream, mode,
# number, floor, position and samples: a relay can neither move a message to another place nor change the gap that it
# explains.
#
# Replays. A relay may send a message again; its number is then a duplicate (`delivery.py`). It may repeat an
# acknowledgement, which repeats a fact. So neither needs a record of what was seen.
#
# A letter is what the trainer sends to one stream alone. A policy's MAC covers its bytes as they are sent, encrypted or
# not, so that it is checked before anything is decrypted.

from __future__ import annotations

import hmac
import os
import struct
from collections.abc import Sequence

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import GCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from tmrl_core.errors import ForgedError, UnknownRunKeyError
from tmrl_core.networking.end_to_end.identity import PROOF_BYTES, digest, is_signed, statement
from tmrl_core.networking.protocol.messages import MessageHead, Version

MAC = 1
ENCRYPTED = 2
SIGNED = 3
KEY_BYTES = 32
"""Size of an X25519 public key."""
KEY_ID_BYTES = 8

TAG_BYTES = 16
_PADDING = bytes(PROOF_BYTES - KEY_ID_BYTES - 8 - TAG_BYTES)
_MAC_PROOF = struct.Struct(f"<{len(_PADDING)}s{KEY_ID_BYTES}sQ{TAG_BYTES}s")
SEAL_BYTES = PROOF_BYTES + 1
"""Size of the trailer of a message of samples."""
_NONCE = struct.Struct("<IQ")
NONCE_BYTES = _NONCE.size
_HEADER = struct.Struct("<27s16sBQQQI")
_DOMAIN = b"tmrl_core end-to-end 1 data"
_ONE_SHOT_BYTES = 32_768
"""Larger bodies are not copied into one buffer, which is faster for small ones."""


def header(stream: bytes, mode: int, head: MessageHead) -> bytes:
    """Encode what a message's proof covers besides its body; its size is constant."""
    return _HEADER.pack(_DOMAIN, stream, mode, *head)


def body_statement(stream: bytes, head: MessageHead, hashed: bytes) -> bytes:
    """Return what the signature of a message in mode `SIGNED` covers."""
    return statement("signed message", header(stream, SIGNED, head), hashed)


class StreamKeys:
    """Keys of one stream and one run key.

    Args:
        private: private key of this side.
        other: public key of the other side, 32 bytes.
        run, stream: name of the run and id of the stream.
        stream_key, run_key: public keys of both sides, in the same order on both.
        key_id: id of the run key.

    Raises:
        ForgedError: `other` is not the public key of an honest peer.
    """

    def __init__(
        self,
        private: X25519PrivateKey,
        other: bytes,
        *,
        run: str,
        stream: bytes,
        stream_key: bytes,
        run_key: bytes,
        key_id: bytes,
    ) -> None:
        try:
            shared = private.exchange(X25519PublicKey.from_public_bytes(other))
        except ValueError as exc:  # a point of small order
            raise ForgedError("a public key for the agreement of keys is not valid") from exc
        info = statement("stream keys", run, stream, stream_key, run_key)
        keys = HKDF(hashes.SHA256(), 96, None, info).derive(shared)
        self.key_id = key_id
        self._stream = stream
        self._ciphers = {MAC: keys[:16], ENCRYPTED: keys[16:32]}
        self._one_shot = {mode: AESGCM(key) for mode, key in self._ciphers.items()}
        self._ack_key = keys[32:64]
        self._letters = AESGCM(keys[64:80])
        self._policy_key = keys[80:]

    def seal(
        self, mode: int, counter: int, head: MessageHead, body: Sequence[bytes | memoryview]
    ) -> list[bytes | memoryview]:
        """Return the sealed body, with its trailer.

        Args:
            mode: `MAC` or `ENCRYPTED`.
            counter: a number that was never used with these keys before.
        """
        nonce = _NONCE.pack(0, counter)
        covered = header(self._stream, mode, head)
        sealed: list[bytes | memoryview]
        if sum(map(len, body)) <= _ONE_SHOT_BYTES:
            cipher = self._one_shot[mode]
            if mode == MAC:
                tag = cipher.encrypt(nonce, b"", b"".join((covered, *body)))
                sealed = list(body)
            else:
                encrypted = memoryview(cipher.encrypt(nonce, b"".join(body), covered))
                sealed, tag = [encrypted[:-TAG_BYTES]], bytes(encrypted[-TAG_BYTES:])
        else:
            encryptor = Cipher(AES(self._ciphers[mode]), GCM(nonce)).encryptor()
            encryptor.authenticate_additional_data(covered)
            if mode == MAC:
                for part in body:
                    encryptor.authenticate_additional_data(part)
                sealed = list(body)
            else:
                sealed = [encryptor.update(part) for part in body]
            encryptor.finalize()
            tag = encryptor.tag
        return [*sealed, _MAC_PROOF.pack(_PADDING, self.key_id, counter, tag) + bytes((mode,))]

    def open(self, mode: int, counter: int, tag: bytes, head: MessageHead, body: memoryview) -> memoryview | None:
        """Return the content of a body without its trailer; None: the proof is wrong. The body may be overwritten."""
        nonce = _NONCE.pack(0, counter)
        covered = header(self._stream, mode, head)
        try:
            if len(body) <= _ONE_SHOT_BYTES:
                cipher = self._one_shot[mode]
                if mode == MAC:
                    cipher.decrypt(nonce, tag, b"".join((covered, body)))
                    return body
                return memoryview(cipher.decrypt(nonce, b"".join((body, tag)), covered))
            decryptor = Cipher(AES(self._ciphers[mode]), GCM(nonce, tag)).decryptor()
            decryptor.authenticate_additional_data(covered)
            content = body
            if mode == MAC:
                decryptor.authenticate_additional_data(body)
            elif body.readonly:
                content = memoryview(decryptor.update(body))
            else:
                decryptor.update_into(body, body)  # in place, because fresh memory costs as much as decrypting
            decryptor.finalize()
        except InvalidTag:
            return None
        return content

    def ack_tag(self, next_number: int, refused: Sequence[tuple[int, str]]) -> bytes:
        """Return the proof of an acknowledgement."""
        covered = statement("acknowledgement", self._stream, next_number, tuple(refused))
        return hmac.digest(self._ack_key, covered, "sha256")[:TAG_BYTES]

    def seal_letter(self, content: bytes) -> bytes:
        """Return a letter of the trainer to the stream."""
        nonce = os.urandom(NONCE_BYTES)
        return nonce + self._letters.encrypt(nonce, content, statement("letter", self._stream))

    def open_letter(self, letter: bytes) -> bytes | None:
        """Return the content of a letter; None: it is not for this stream, or was changed."""
        try:
            return self._letters.decrypt(letter[:NONCE_BYTES], letter[NONCE_BYTES:], statement("letter", self._stream))
        except (InvalidTag, ValueError):  # ValueError: it is too short
            return None

    def policy_tag(self, nonce: bytes, version: Version, *content: bytes | memoryview) -> bytes:
        """Return the MAC of a policy for this stream. The trainer draws a random nonce for each."""
        mac = Cipher(AES(self._policy_key), GCM(nonce)).encryptor()
        for part in (statement("policy of a stream", self._stream, *version), *content):
            mac.authenticate_additional_data(part)
        mac.finalize()
        return mac.tag


class Sealed:
    """A sealed message of samples, divided into its parts.

    Raises:
        ForgedError: the trailer is missing or invalid.
    """

    def __init__(self, body: memoryview) -> None:
        if len(body) < SEAL_BYTES:
            raise ForgedError(f"a message of {len(body)} bytes has no proof of its origin")
        self.content = body[:-SEAL_BYTES]
        self.mode = body[-1]
        self.proof = bytes(body[-SEAL_BYTES:-1])
        padding, self.key_id, self.counter, self.tag = _MAC_PROOF.unpack(self.proof)
        if self.mode not in (MAC, ENCRYPTED, SIGNED) or (self.mode != SIGNED and padding != _PADDING):
            raise ForgedError("a message has no proof of its origin")

    def open(
        self, stream: bytes, head: MessageHead, key: ec.EllipticCurvePublicKey, keys: StreamKeys | None
    ) -> memoryview:
        """Return the message's content.

        Args:
            key: key of the worker's certificate.
            keys: those of the run key that the trailer names; None: this trainer does not have it.

        Raises:
            ForgedError: the proof is wrong.
            UnknownRunKeyError: `keys` are needed and missing.
        """
        content: memoryview | None
        if self.mode == SIGNED:
            signed = is_signed(key, self.proof, body_statement(stream, head, digest(self.content)))
            content = self.content if signed else None
        elif keys is None:
            raise UnknownRunKeyError(self.key_id)
        else:
            content = keys.open(self.mode, self.counter, self.tag, head, self.content)
        if content is None:
            raise ForgedError(f"message {head.number} of a stream has a wrong proof of its origin")
        return content
