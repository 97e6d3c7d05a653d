"""Creation and parsing of keys and certificates of the project's certificate authority (CA)."""

# Theory of operation
#
# This file makes and reads keys, certificates and signed lists as PEM text. It knows nothing of files and folders
# (`credentials.py`), nor of TLS (`tls_contexts.py`), and keeps no state.
#
# Who signs what. `make_authority` makes a CA: a self-signed certificate with path length 0, so that it can sign peers
# but no further CA. The CA signs two kinds of certificates, which cannot stand in for each other: a Server's (extended
# key usage "server", host names as alternative names) and a client's (usage "client", one URI as alternative name).
# Both sides of TLS check the usage, so a stolen worker cannot pose as the Server. A self-signed server certificate
# exists for transports whose clients trust one file.
#
# A client certificate names its holder in three places: common name (the name), organizational unit (the role) and the
# URI `urn:tmrl-core:<role>:<name>`. The URI is the one that is checked, because subjects have many spellings and `ssl`
# parses alternative names well; the other two are for people. The certificate of a worker that serves many clients also
# has a weight, as its subject's qualifier: `weight 4`. It is signed, so a worker cannot choose its own share.
#
# Everything is ECDSA P-256: small, fast to make, and supported by every TLS library in use.
#
# Time. The clock of a robot without a battery may be late, so a certificate is valid from a day before it was made. It
# never outlives its CA: a certificate beyond it would look valid and fail. An example: a CA of 3,650 days that has 100
# days left makes a client certificate of 100 days, whatever `--days` says.
#
# `cryptography` is imported inside the functions, because a running worker or Server does not need it: the standard
# library's `ssl` reads the files, and `read_end` reads the one date that a role wants from the DER bytes. The import
# would cost it 10 MB.
#
# What fails. Text that is not PEM, damaged DER, a wrong signature and a key that is not the certificate's are
# CredentialsErrors. Their causes are left out where they could quote a key.

from __future__ import annotations

import contextlib
import ipaddress
import re
import secrets
import ssl
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote, unquote

from tmrl_core.errors import CredentialsError

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec

LOOPBACK_HOSTS = ("localhost", "127.0.0.1", "::1")
URN = "urn:tmrl-core:"
MAX_WEIGHT = 1_000

# The clock of a robot without a battery may be late, so certificates are valid from a day before their creation.
_CLOCK_SLACK = timedelta(days=1)
_DNS_NAME = re.compile(
    r"(\*\.)?([a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?\.)*[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?\.?", re.I
)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_WEIGHT = re.compile(r"weight ([1-9]\d{0,3})")
_SERIAL = re.compile(r"[0-9A-Fa-f]{1,64}")


class Signed(NamedTuple):
    """A certificate and its private key, both PEM."""

    certificate: str
    key: str

    def __repr__(self) -> str:
        return "Signed(certificate=..., key=<hidden>)"


class SignedList(NamedTuple):
    """Revoked certificates as their CA has signed them. Of two lists, the one with the higher number is newer."""

    number: int
    serials: frozenset[str]
    """Serial numbers, as `clean_serial` returns them."""


class CertificateFacts(NamedTuple):
    """Subject, names, fingerprint, validity and serial number of a certificate.

    `names` are its DNS names, addresses and URIs; `fingerprint` is the SHA-256 of its DER form as `AB:CD:...`; `serial`
    is as `clean_serial` returns it.
    """

    subject: str
    names: tuple[str, ...]
    fingerprint: str
    not_before: datetime
    not_after: datetime
    serial: str


def clean_serial(serial: str) -> str:
    """Return a certificate's serial number in hexadecimal digits, in the form used for comparison.

    Raises:
        CredentialsError: the text is not a serial number.
    """
    # `openssl` prints serial numbers with colons and in capitals, `ssl` in capitals with leading zeros,
    # `cryptography` as a number. All of them must compare equal.
    text = serial.replace(":", "")
    if not _SERIAL.fullmatch(text):
        raise CredentialsError(f"{serial!r} is not a serial number of a certificate: use its hexadecimal digits")
    return text.lower().lstrip("0") or "0"


def check_name(name: str) -> str:
    """Return a peer's name if certificates and file names can hold it.

    Raises:
        CredentialsError: the name has other characters than letters, digits, `.`, `_`, `-`, or more than 64.
    """
    if not _NAME.fullmatch(name):
        raise CredentialsError(
            f"the name {name!r} is not allowed in a certificate: use 1 to 64 letters, digits, '.', '_' or '-', "
            "beginning with a letter or a digit."
        )
    return name


def identity_uri(role: str, name: str) -> str:
    """Return the URI that identifies the holder in a client certificate."""
    return f"{URN}{role}:{quote(name, safe='')}"


def parse_identity_uri(uri: str) -> tuple[str, str] | None:
    """Return `(role, name)` of `identity_uri`'s result; None for any other URI."""
    if not uri.startswith(URN):
        return None
    role, separator, name = uri[len(URN) :].partition(":")
    return (role, unquote(name)) if role and separator and name else None


def parse_weight(qualifier: str) -> int:
    """Return the weight that a subject's qualifier states; 1 without one."""
    stated = _WEIGHT.fullmatch(qualifier)
    # A qualifier of another form is somebody else's and no error: such a certificate counts as an ordinary
    # worker's.
    return min(int(stated[1]), MAX_WEIGHT) if stated else 1


def clean_host(host: str) -> str:
    """Return a DNS name or an IP address in canonical form, without brackets.

    Raises:
        CredentialsError: the text is neither, for example a URL or a name with a port.
    """
    text = host.strip()
    if text.startswith("[") and text.endswith("]"):
        text = text[1:-1]
    try:
        return str(ipaddress.ip_address(text))
    except ValueError:
        pass
    try:
        name = text if text.isascii() else text.encode("idna").decode("ascii")
    except UnicodeError:
        name = ""
    if len(name) > 253 or not _DNS_NAME.fullmatch(name):
        raise CredentialsError(
            f"{host!r} is neither a host name nor an IP address. Give the name alone, without 'https://' and port."
        )
    return name.rstrip(".").lower()


def make_authority(not_after: datetime) -> Signed:
    """Make a CA that can sign certificates of peers, but no further CA."""
    # The random part distinguishes CAs, so that a foreign one is reported as foreign, not as a bad signature.
    return _issue(_subject(f"tmrl_core CA {secrets.token_hex(4)}", None), not_after)


def make_server_certificate(authority: Signed, hosts: Iterable[str], not_after: datetime) -> Signed:
    """Make a certificate with which a Server proves that it is one of these hosts.

    Args:
        authority: the CA that signs.
        hosts: DNS names and IP addresses, as `clean_host` returns them.
        not_after: time of expiry; the certificate never outlives the CA.
    """
    # The common name is for display only: clients check the alternative names.
    return _issue(_subject("tmrl_core server", "server"), not_after, _host_names(hosts), authority, server=True)


def make_self_signed_certificate(common_name: str, hosts: Iterable[str], not_after: datetime) -> Signed:
    """Make a self-signed server certificate, which each client needs as a file to trust it."""
    return _issue(_subject(common_name, "server"), not_after, _host_names(hosts), server=True)


def make_client_certificate(authority: Signed, role: str, name: str, not_after: datetime, *, weight: int = 1) -> Signed:
    """Make a certificate with which a peer proves its role, name and weight. It is not valid for a Server."""
    from cryptography import x509

    names: list[x509.GeneralName] = [x509.UniformResourceIdentifier(identity_uri(role, check_name(name)))]
    qualifier = f"weight {weight}" if weight != 1 else ""
    return _issue(_subject(name, role, qualifier), not_after, names, authority, server=False)


def is_issued(certificate: str, authority: str) -> bool:
    """Return whether the holder of the second certificate signed the first one.

    Raises:
        CredentialsError: one of them is not PEM.
    """
    from cryptography.exceptions import InvalidSignature

    # Only the signature is looked at. Dates and usage are for OpenSSL, which knows the time of the handshake.
    leaf, signer = _parse(certificate), _parse(authority)
    try:
        leaf.verify_directly_issued_by(signer)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def sign_list(authority: Signed, listed: SignedList) -> str:
    """Sign a list of revoked certificates. Return it as PEM (an X.509 CRL)."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization

    parsed = _parse(authority.certificate)
    # The list has no date of its own for its readers: the number says which one is newer. The fields must be there,
    # and in order, for parsers to accept it.
    now = min(datetime.now(timezone.utc), _validity(parsed)[1]) - _CLOCK_SLACK
    builder = x509.CertificateRevocationListBuilder(parsed.subject, now, _validity(parsed)[1])
    builder = builder.add_extension(x509.CRLNumber(listed.number), critical=False)
    for serial in sorted(listed.serials):
        entry = x509.RevokedCertificateBuilder(int(serial, 16), now)
        builder = builder.add_revoked_certificate(entry.build())
    made = builder.sign(_parse_key(authority.key), hashes.SHA256())
    return made.public_bytes(serialization.Encoding.PEM).decode("ascii")


def read_signed_list(text: str, authority: str) -> SignedList | None:
    """Return the content of `sign_list`'s result; None: another CA has made it.

    Raises:
        CredentialsError: it is damaged.
    """
    from cryptography import exceptions, x509

    signer = _parse(authority)
    try:
        parsed = x509.load_pem_x509_crl(text.encode())
        # Another CA's list is not an error, so it is told apart before the signature is checked.
        if parsed.issuer != signer.subject:
            return None
        if not parsed.is_signature_valid(signer.public_key()):  # type: ignore[arg-type]
            raise CredentialsError("the CA of this machine did not sign the list of revoked certificates")
        number = parsed.extensions.get_extension_for_class(x509.CRLNumber).value.crl_number
        return SignedList(number, frozenset(clean_serial(f"{one.serial_number:x}") for one in parsed))
    except (
        ValueError,
        TypeError,
        exceptions.UnsupportedAlgorithm,
        x509.ExtensionNotFound,
        x509.InvalidVersion,
    ) as exc:
        raise CredentialsError("the list of revoked certificates is damaged") from exc


def check_issued(signed: Signed, authority: str) -> None:
    """Check that the CA with this certificate signed the other one, and that its key belongs to it.

    Raises:
        CredentialsError: the CA did not sign the certificate, the key does not belong to the CA, or an input is not
            PEM.
    """
    from cryptography import exceptions, x509
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key

    leaf, signer = _parse(signed.certificate), _parse(authority)
    try:
        is_authority = signer.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except (ValueError, x509.ExtensionNotFound):
        is_authority = False
    if not is_authority or not is_issued(signed.certificate, authority):
        raise CredentialsError("that CA did not sign its certificate")
    try:
        # Compared in their encoded form, which works for keys of every kind.
        key = load_pem_private_key(signed.key.encode(), password=None).public_key()
        form = Encoding.DER, PublicFormat.SubjectPublicKeyInfo
        belongs = key.public_bytes(*form) == leaf.public_key().public_bytes(*form)
    except (ValueError, TypeError, exceptions.UnsupportedAlgorithm):
        # The cause is left out, because it could quote the key.
        belongs = False
    if not belongs:
        raise CredentialsError("its key does not belong to its certificate")


def read_facts(certificate: str) -> CertificateFacts:
    """Return the content of a PEM certificate.

    Raises:
        CredentialsError: the text is not a PEM certificate, or the certificate is damaged.
    """
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes

    parsed = _parse(certificate)
    names: list[str] = []
    try:
        with contextlib.suppress(x509.ExtensionNotFound):
            alternatives = parsed.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
            names = [str(entry.value) for entry in alternatives]
        digest = parsed.fingerprint(hashes.SHA256()).hex(":").upper()
        begin, end = _validity(parsed)
        serial = clean_serial(f"{parsed.serial_number:x}")
        subject = parsed.subject.rfc4514_string()
    except (ValueError, TypeError, x509.DuplicateExtension, x509.UnsupportedGeneralNameType) as exc:
        # Parsing happens only here.
        raise CredentialsError("this certificate is damaged") from exc
    return CertificateFacts(subject, tuple(names), digest, begin, end, serial)


def read_end(certificate: str) -> datetime:
    """Return the expiry of a PEM certificate, without `cryptography`, which would cost a running role 10 MB.

    Raises:
        CredentialsError: the text is not a PEM certificate.

    Source: RFC 5280, sections 4.1 and 4.1.2.5.
    """
    try:
        # The path to the date: Certificate, TBSCertificate, past an optional version and three elements,
        # Validity, past its first date. No other part is looked at.
        der = ssl.PEM_cert_to_DER_cert(certificate.strip())
        start, end = _element(der, 0)  # Certificate
        start, end = _element(der, start)  # TBSCertificate
        at = start
        if der[at] == _VERSION_TAG:
            at = _element(der, at)[1]
        for _ in range(3):  # serial number, algorithm, issuer
            at = _element(der, at)[1]
        start, end = _element(der, at)  # Validity
        at = _element(der, start)[1]  # not before
        form = _TIME_FORMS[der[at]]
        start, end = _element(der, at)
        return datetime.strptime(der[start:end].decode("ascii"), form).replace(tzinfo=timezone.utc)
    except (ValueError, IndexError, KeyError):
        raise CredentialsError("this is not a certificate in PEM form") from None


_VERSION_TAG = 0xA0
_TIME_FORMS = {0x17: "%y%m%d%H%M%SZ", 0x18: "%Y%m%d%H%M%SZ"}


def _element(der: bytes, at: int) -> tuple[int, int]:
    """Return the begin and the end of the content of the DER element at `at`."""
    length = der[at + 1]
    start = at + 2
    # The long form: the lower seven bits say how many bytes hold the length (X.690, section 8.1.3.5).
    if length & 0x80:
        size = length & 0x7F
        length = int.from_bytes(der[start : start + size], "big")
        start += size
    if start + length > len(der):
        raise ValueError("an element ends after the last byte")
    return start, start + length


def _host_names(hosts: Iterable[str]) -> list[x509.GeneralName]:
    from cryptography import x509

    # Clients compare addresses with addresses only, and names with names, so each kind has its own entry.
    names: list[x509.GeneralName] = []
    for host in hosts:
        try:
            names.append(x509.IPAddress(ipaddress.ip_address(host)))
        except ValueError:
            names.append(x509.DNSName(host))
    return names


def _subject(common_name: str, unit: str | None, qualifier: str = "") -> x509.Name:
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    attributes = [x509.NameAttribute(NameOID.COMMON_NAME, common_name)]
    if unit is not None:
        attributes.append(x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, unit))
    if qualifier:
        attributes.append(x509.NameAttribute(NameOID.DN_QUALIFIER, qualifier))
    return x509.Name(attributes)


def _issue(
    subject: x509.Name,
    not_after: datetime,
    names: Sequence[x509.GeneralName] = (),
    authority: Signed | None = None,
    *,
    server: bool | None = None,
) -> Signed:
    """Make a key and a certificate: a server's, a client's, or (None) a CA's; without `authority` it signs itself."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID

    is_authority = server is None
    key = signer = ec.generate_private_key(ec.SECP256R1())
    issuer = subject
    if authority is not None:
        parsed, signer = _parse(authority.certificate), _parse_key(authority.key)
        issuer, not_after = parsed.subject, min(not_after, _validity(parsed)[1])
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        # The begin of an expired certificate must still precede its end.
        .not_valid_before(min(datetime.now(timezone.utc), not_after) - _CLOCK_SLACK)
        .not_valid_after(not_after)
        # The strict checks that Python 3.13 enables require both identifiers.
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
        .add_extension(x509.BasicConstraints(is_authority, 0 if is_authority else None), critical=True)
        .add_extension(_key_usage(sign_certificates=is_authority), critical=True)
    )
    if server is not None:
        usage = ExtendedKeyUsageOID.SERVER_AUTH if server else ExtendedKeyUsageOID.CLIENT_AUTH
        builder = builder.add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    certificate = builder.sign(signer, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
    form = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    private = key.private_bytes(serialization.Encoding.PEM, *form)
    return Signed(certificate.decode("ascii"), private.decode("ascii"))


def _key_usage(*, sign_certificates: bool) -> x509.KeyUsage:
    from cryptography import x509

    return x509.KeyUsage(
        digital_signature=not sign_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=sign_certificates,
        crl_sign=sign_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _parse(certificate: str) -> x509.Certificate:
    from cryptography import x509

    try:
        return x509.load_pem_x509_certificate(certificate.encode())
    except (ValueError, x509.InvalidVersion) as exc:
        raise CredentialsError("this is not a certificate in PEM form") from exc


def _parse_key(key: str) -> ec.EllipticCurvePrivateKey:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    try:
        parsed = serialization.load_pem_private_key(key.encode(), password=None)
    except (ValueError, TypeError):
        # The cause is left out, because it could quote the key.
        raise CredentialsError("the CA's key is not an unencrypted private key in PEM form") from None
    if not isinstance(parsed, ec.EllipticCurvePrivateKey):
        raise CredentialsError("the CA's key is not an elliptic curve key")
    return parsed


def _validity(certificate: x509.Certificate) -> tuple[datetime, datetime]:
    return certificate.not_valid_before_utc, certificate.not_valid_after_utc
