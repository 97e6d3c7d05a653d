"""Proofs of origin by certificates: signing with one's own, and checking another member's."""

from __future__ import annotations

import hashlib
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Container
from datetime import datetime, timezone
from typing import Any, NamedTuple

import msgspec
from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature, encode_dss_signature
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key
from cryptography.utils import CryptographyDeprecationWarning
from cryptography.x509.verification import PolicyBuilder, Store, VerificationError

from tmrl_core.errors import CredentialsError, ForgedError
from tmrl_core.networking.protocol.messages import plain
from tmrl_core.networking.security.certificates import clean_serial, parse_identity_uri

PROOF_BYTES = 64
"""Size of a signature: the two numbers of ECDSA P-256."""
MAX_CERTIFICATE_BYTES = 8_192
"""Maximum size of a certificate; those of this project have about 600 bytes."""

_DOMAIN = "tmrl_core end-to-end 1: "
_CHECKED_CERTIFICATES = 256
_INVALID = (
    ValueError,
    TypeError,
    UnsupportedAlgorithm,
    x509.InvalidVersion,
    x509.DuplicateExtension,
    x509.UnsupportedGeneralNameType,
    CryptographyDeprecationWarning,  # if warnings are errors
)
"""Exceptions for which a certificate counts as damaged."""
_ALGORITHM = ec.ECDSA(hashes.SHA256())
_encode = msgspec.msgpack.Encoder().encode


def statement(subject: str, *fields: str | bytes | int | tuple[Any, ...]) -> bytes:
    """Encode what a signature, a MAC or a derived key covers.

    Statements of different subjects or fields have different encodings: MessagePack writes the length of each field.
    """
    return _encode((_DOMAIN + subject, *fields))


def digest(*parts: bytes | memoryview) -> bytes:
    """Return the SHA-256 of bytes."""
    hashed = hashlib.sha256()
    for part in parts:
        hashed.update(part)
    return hashed.digest()


def sign(key: ec.EllipticCurvePrivateKey, data: bytes) -> bytes:
    """Sign bytes with ECDSA P-256 and SHA-256."""
    r, s = decode_dss_signature(key.sign(data, _ALGORITHM))
    return r.to_bytes(32, "big") + s.to_bytes(32, "big")


def is_signed(key: ec.EllipticCurvePublicKey, proof: bytes, data: bytes) -> bool:
    """Return True if `proof` is a signature of the bytes by the holder of that key."""
    r, s = int.from_bytes(proof[:32], "big"), int.from_bytes(proof[32:], "big")
    try:
        key.verify(encode_dss_signature(r, s), data, _ALGORITHM)
    except InvalidSignature:
        return False
    return True


class Signer:
    """A certificate of a client and its private key.

    Args:
        certificate, key: both PEM.

    Raises:
        CredentialsError: they are not a client's certificate and its key.
    """

    def __init__(self, certificate: str, key: str) -> None:
        try:
            parsed = x509.load_pem_x509_certificate(certificate.encode())
            loaded = load_pem_private_key(key.encode(), password=None)
            uri = _identity(parsed)
        except _INVALID:
            # The cause is left out, because it could quote the key.
            raise CredentialsError("the certificate or the key of this role is not in PEM form") from None
        if not isinstance(loaded, ec.EllipticCurvePrivateKey) or loaded.public_key() != parsed.public_key():
            raise CredentialsError("the private key of this role does not belong to its certificate")
        if uri is None:
            raise CredentialsError("this certificate names no role of tmrl_core")
        self.certificate = parsed.public_bytes(Encoding.DER)
        self.identity = uri
        """URI that names the holder's role and name."""
        self._key = loaded

    def __repr__(self) -> str:
        return f"Signer({self.identity!r})"

    def sign(self, data: bytes) -> bytes:
        """Sign bytes in the name of the certificate's holder."""
        return sign(self._key, data)


class Peer(NamedTuple):
    """The holder of a valid certificate."""

    identity: str
    """URI that names its role and name."""
    role: str
    name: str
    serial: str
    """Serial number, as `certificates.clean_serial` returns it."""
    key: ec.EllipticCurvePublicKey


class Verifier:
    """Check of certificates against the CA of this project.

    Args:
        authority: certificate of the CA, PEM.
        revoked: serial numbers of revoked certificates, as `certificates.clean_serial` returns them. It may change.
        clock: seconds since 1970.

    Raises:
        CredentialsError: `authority` is not a certificate in PEM form.
    """

    def __init__(self, authority: str, *, revoked: Container[str] = (), clock: Callable[[], float] = time.time) -> None:
        self.revoked = revoked
        self._clock = clock
        self._checked: OrderedDict[bytes, tuple[Peer, float, float]] = OrderedDict()
        """Holder and validity of the certificates checked last."""
        self.trust(authority)

    def trust(self, authority: str) -> None:
        """Check against another certificate of the CA from now on.

        Raises:
            CredentialsError: it is not a certificate in PEM form. The previous one stays in use.
        """
        try:
            self._store = Store([x509.load_pem_x509_certificate(authority.encode())])
        except ValueError:
            raise CredentialsError("the certificate of the CA is not in PEM form") from None
        self._checked.clear()

    def may_have_checked(self, serials: Container[str]) -> bool:
        """Return True unless none of these certificates can be among those checked so far."""
        return len(self._checked) >= _CHECKED_CERTIFICATES or any(
            peer.serial in serials for peer, _, _ in self._checked.values()
        )

    def check(self, certificate: bytes, roles: Collection[str], *, used_s: float | None = None) -> Peer:
        """Return the holder of a certificate (DER).

        Args:
            certificate: the certificate.
            roles: allowed roles.
            used_s: it need not be valid now if it was at this time, in seconds since 1970; None: it must be valid now.

        Raises:
            ForgedError: this CA has not signed it, it is not valid now, it is revoked, or its role is not allowed.
        """
        times = (self._clock(),) if used_s is None else (self._clock(), used_s)
        known = self._checked.get(certificate)
        if known is None or not any(known[1] <= time_s <= known[2] for time_s in times):
            known = self._checked[bytes(certificate)] = self._verify(certificate, *times)
            if len(self._checked) > _CHECKED_CERTIFICATES:
                self._checked.popitem(last=False)
        else:
            self._checked.move_to_end(certificate)
        peer = known[0]
        if peer.serial in self.revoked:
            raise ForgedError(f"the certificate of {peer.role} {peer.name} is revoked (serial number {peer.serial})")
        if peer.role not in roles:
            raise ForgedError(f"a certificate of role {plain(peer.role, 50)} in place of {' or '.join(roles)}")
        return peer

    def _verify(self, certificate: bytes, time_s: float, *others_s: float) -> tuple[Peer, float, float]:
        """Verify a certificate at one of these times."""
        try:
            return self._verify_at(certificate, time_s)
        except ForgedError:
            if not others_s:
                raise
            return self._verify(certificate, *others_s)

    def _verify_at(self, certificate: bytes, time_s: float) -> tuple[Peer, float, float]:
        policy = PolicyBuilder().store(self._store).time(datetime.fromtimestamp(time_s, timezone.utc))
        try:
            parsed = x509.load_der_x509_certificate(certificate)
            policy.build_client_verifier().verify(parsed, [])
            uri = _identity(parsed)
            key = parsed.public_key()
            serial = clean_serial(f"{parsed.serial_number:x}")
        except (*_INVALID, VerificationError, CredentialsError) as exc:
            raise ForgedError(f"a certificate is not valid here: {plain(str(exc), 200)}") from exc
        identity = parse_identity_uri(uri) if uri is not None else None
        if uri is None or identity is None or not isinstance(key, ec.EllipticCurvePublicKey):
            raise ForgedError("a certificate names no role of tmrl_core")
        begin, end = parsed.not_valid_before_utc.timestamp(), parsed.not_valid_after_utc.timestamp()
        return Peer(uri, plain(identity[0], 50), plain(identity[1], 100), serial, key), begin, end


def _identity(certificate: x509.Certificate) -> str | None:
    """Return the URI that names the holder's role and name; None: there is none, or more than one."""
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return None
    uris = names.get_values_for_type(x509.UniformResourceIdentifier)
    return uris[0] if len(uris) == 1 and parse_identity_uri(uris[0]) is not None else None
