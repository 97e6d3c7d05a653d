"""Keys of a run, which the trainer keeps in its credentials folder."""

from __future__ import annotations

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from tmrl_core.networking.end_to_end.identity import digest, statement
from tmrl_core.networking.end_to_end.stream_keys import KEY_ID_BYTES

SECRET_BYTES = 32
_P256_ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551


def key_id_of(public: bytes) -> bytes:
    """Return the id of a run key, by its public key."""
    return digest(statement("run key", public))[:KEY_ID_BYTES]


class RunKey:
    """Key pairs of a run: one to agree on keys with streams, one that signs policies, directives and reports.

    Both follow from one secret, so that a restarted trainer has them again. The trainer's certificate signs them
    (`RunCard`), so that a renewed certificate changes neither.

    Args:
        secret: 32 random bytes.

    Raises:
        ValueError: the secret has another length.
    """

    def __init__(self, secret: bytes) -> None:
        if len(secret) != SECRET_BYTES:
            raise ValueError(f"the secret of a run key has {SECRET_BYTES} bytes, not {len(secret)}")
        self.private = X25519PrivateKey.from_private_bytes(_expand(secret, "agreement", 32))
        self.public = self.private.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
        self.id = key_id_of(self.public)
        # 16 bytes more than the order has make the remainder uniform (FIPS 186-5, A.2.1).
        number = int.from_bytes(_expand(secret, "signatures", 48), "big")
        self.signing = ec.derive_private_key(number % (_P256_ORDER - 1) + 1, ec.SECP256R1())
        self.signing_public = self.signing.public_key().public_bytes(Encoding.X962, PublicFormat.CompressedPoint)

    def __repr__(self) -> str:
        return f"RunKey({self.id.hex()})"


def _expand(secret: bytes, use: str, size: int) -> bytes:
    return HKDFExpand(hashes.SHA256(), size, statement("run key", use)).derive(secret)
