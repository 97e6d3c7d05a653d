"""Large encrypted policy that is checked and decrypted frame by frame, in place of being copied.

Each frame is in the processor's cache then. The content may not be used before all of it has arrived and its MAC is
right.
"""

from __future__ import annotations

import hmac

from tmrl_core.networking.end_to_end.group_key import Encryption, finish
from tmrl_core.networking.end_to_end.statements import TRAILER_BYTES, PolicyTag
from tmrl_core.networking.end_to_end.stream_keys import TAG_BYTES, StreamKeys
from tmrl_core.networking.protocol.messages import Version


class ArrivingPolicy:
    """Receiver of one policy.

    Args:
        body: memory for all of it, with its trailer.
        run: name of the run.
        keys: keys of a stream of this worker.
        proof: the policy's MAC for that stream, from a letter.
        encryption: as its beginning says.
    """

    def __init__(self, body: memoryview, run: str, keys: StreamKeys, proof: PolicyTag, encryption: Encryption) -> None:
        self.keys = keys
        self._body = body
        self._proof = proof
        self._mac = keys.policy_mac(proof.nonce, proof.version)
        self._decryptor = encryption.key.decryptor(run, "policy", encryption.nonce)
        self._filled = 0
        self._trailer = len(body) - TRAILER_BYTES
        self._begin = encryption.begin
        self._end = max(self._begin, self._trailer - TAG_BYTES)

    def add(self, piece: memoryview) -> None:
        """Add the next bytes, of which there are not more than `body` holds."""
        start, size = self._filled, len(piece)
        self._filled += size
        if self._begin <= start and self._filled <= self._end:
            self._mac.authenticate_additional_data(piece)
            self._decryptor.update_into(piece, self._body[start:])
            return
        begin, end, trailer = (min(max(place - start, 0), size) for place in (self._begin, self._end, self._trailer))
        self._mac.authenticate_additional_data(piece[:trailer])
        self._body[start : self._filled] = piece
        if begin < end:
            self._decryptor.update_into(piece[begin:end], self._body[start + begin :])
            self._body[start + end : self._filled] = piece[end:]

    def holds(self, content: memoryview) -> bool:
        """Return True if `content` is in the memory of this policy."""
        return content.obj is self._body.obj

    def is_proved(self, version: Version) -> bool:
        """Return True if the trainer has made all of it. Called once."""
        self._mac.finalize()
        return self._proof.version == version and hmac.compare_digest(self._mac.tag, self._proof.tag)

    def decrypted(self) -> memoryview:
        """Return the decrypted content of a policy that is proved. Called once.

        Raises:
            ForgedError: it was not encrypted under this key.
        """
        finish(self._decryptor, self._body[self._end : self._end + TAG_BYTES])
        return self._body[self._begin : self._end]
