"""Key that a trainer shares with the workers of its run, so that the relay cannot read what it sends to all of them.

It is secret and proves nothing: each worker has it, so what it encrypts is signed, or has a MAC of the worker's stream.
"""

# Theory of operation
#
# Each process of a trainer has a random key, which each worker receives in its letter when its stream is opened. It is
# renewed before a link that opens because certificates have changed or a known machine was revoked; the new letters
# also contain the key of the last policy, which is never encrypted again under its version. Nonces are random. The
# Server may send the last values before the letter: a worker keeps the latest policy, report and directive that it
# cannot read.
#
# Rejected: a key that follows from the run's secret and the incarnation (a revoked worker would have it until the
# trainer restarts, and a random one needs no file); a key in the bundles, so that workers could read the stored policy
# without a trainer (one stolen bundle would reveal it for ever); AES-CTR alone, since each message is signed (it saves
# 0.3 ms of 10 MB, and GCM shows a wrong key).

from __future__ import annotations

import os
import struct

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import GCM

from tmrl_core.errors import ForgedError, UnknownGroupKeyError
from tmrl_core.networking.end_to_end.identity import digest, statement
from tmrl_core.networking.end_to_end.stream_keys import KEY_ID_BYTES, NONCE_BYTES, TAG_BYTES

SECRET_BYTES = 16

_HEAD = struct.Struct(f"<8s{KEY_ID_BYTES}s{NONCE_BYTES}s")
_BEGINS = b"\xc1secret1"
"""Begins with a byte that MessagePack never uses, so that it differs from a readable message."""
_POLICY_BEGINS = b"\x82\xa7version\x92\x00\x00\xa8policies\x81\xa0\x82\xa6format\xa9encrypted\xa4data\xc6"
"""Beginning of a `PolicyUpdate` with one blob of format `encrypted`, up to the length of its data: 4 bytes."""
_POLICY_HEAD_BYTES = len(_POLICY_BEGINS) + 4


class GroupKey:
    """Key of a trainer's process, until it is renewed.

    Args:
        secret: 16 random bytes; None: new ones.
    """

    def __init__(self, secret: bytes | None = None) -> None:
        self.secret = os.urandom(SECRET_BYTES) if secret is None else secret
        self.id = digest(statement("group key", self.secret))[:KEY_ID_BYTES]

    def __repr__(self) -> str:
        return f"GroupKey({self.id.hex()})"

    def encrypt(self, run: str, subject: str, content: bytes) -> tuple[bytes, ...]:
        """Return the encrypted content, as buffers in order."""
        nonce = os.urandom(NONCE_BYTES)  # the key is random too, and has far less than 2^32 messages
        encryptor = Cipher(AES(self.secret), GCM(nonce)).encryptor()
        encryptor.authenticate_additional_data(statement("group", run, subject))
        encrypted = encryptor.update(content)
        encryptor.finalize()
        head = _HEAD.pack(_BEGINS, self.id, nonce)
        if subject == "policy":  # the Server relays policy updates only
            head = _POLICY_BEGINS + (len(head) + len(content) + TAG_BYTES).to_bytes(4, "big") + head
        return head, encrypted, encryptor.tag

    def decrypt(self, run: str, subject: str, nonce: bytes, body: memoryview) -> memoryview:
        """Return the content of an encrypted body with its tag. It takes the body's place in memory, if possible.

        Raises:
            ForgedError: it was not encrypted under this key for this subject.
        """
        if body.readonly:
            body = memoryview(bytearray(body))
        content = body[:-TAG_BYTES]
        decryptor = Cipher(AES(self.secret), GCM(nonce, bytes(body[-TAG_BYTES:]))).decryptor()
        decryptor.authenticate_additional_data(statement("group", run, subject))
        try:
            decryptor.update_into(content, body)
            decryptor.finalize()
        except InvalidTag as exc:
            raise ForgedError("its content could not be decrypted") from exc
        return content


def decrypted(keys: dict[bytes, GroupKey], run: str, subject: str, content: memoryview) -> memoryview:
    """Return the content of a message that may be encrypted, and whose origin is proved.

    Args:
        keys: group keys by their ids.

    Raises:
        ForgedError: it is damaged.
        UnknownGroupKeyError: its key is missing.
    """
    begin = 0
    if subject == "policy" and content[: len(_POLICY_BEGINS)] == _POLICY_BEGINS:
        begin = _POLICY_HEAD_BYTES
    if content[begin : begin + len(_BEGINS)] != _BEGINS:
        return content
    if len(content) < begin + _HEAD.size + TAG_BYTES:
        raise ForgedError("its content could not be decrypted")
    _, key_id, nonce = _HEAD.unpack_from(content, begin)
    if key_id not in keys:
        raise UnknownGroupKeyError(key_id)
    return keys[key_id].decrypt(run, subject, nonce, content[begin + _HEAD.size :])
