"""Certificates: only those of this CA, valid now, not revoked, of an allowed role."""

from __future__ import annotations

import time
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from tests.networking.end_to_end.ends import DAYS, authority, certificate, later, signer, verifier
from tmrl_core.errors import CredentialsError, ForgedError
from tmrl_core.networking.end_to_end.identity import Signer, Verifier, is_signed, statement
from tmrl_core.networking.security.certificates import (
    Signed,
    make_client_certificate,
    make_self_signed_certificate,
    make_server_certificate,
    read_facts,
)


def test_a_certificate_of_this_ca_names_its_holder() -> None:
    peer = verifier().check(signer().certificate, ("worker",))
    assert (peer.identity, peer.role, peer.name) == ("urn:tmrl-core:worker:robot", "worker", "robot")
    assert peer.serial == read_facts(certificate().certificate).serial
    assert peer.identity == signer().identity
    assert is_signed(peer.key, signer().sign(b"text"), b"text")


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        (lambda: signer("trainer", "node"), "role trainer in place of worker"),
        (lambda: signer("observer", "eyes"), "role observer in place of worker"),
        (lambda: signer(ca="theirs"), "not valid here"),
        (lambda: signer(days=-0.5), "not valid here"),
    ],
)
def test_other_certificates_are_refused(made: Any, reason: str) -> None:
    with pytest.raises(ForgedError, match=reason):
        verifier().check(made().certificate, ("worker",))


@pytest.mark.parametrize("made", ["server", "self-signed", "authority"])
def test_certificates_without_a_role_are_refused(made: str) -> None:
    signed = {
        "server": lambda: make_server_certificate(authority("ours"), ["localhost"], later(1)),
        "self-signed": lambda: make_self_signed_certificate("self", ["localhost"], later(1)),
        "authority": lambda: authority("ours"),
    }[made]()
    with pytest.raises(CredentialsError, match="names no role"):
        Signer(signed.certificate, signed.key)
    from cryptography import x509

    der = x509.load_pem_x509_certificate(signed.certificate.encode()).public_bytes(Encoding.DER)
    with pytest.raises(ForgedError):
        verifier().check(der, ("worker", "server"))


def test_a_certificate_that_a_client_signed_is_refused() -> None:
    by_worker = make_client_certificate(certificate(), "trainer", "node", later(1))
    with pytest.raises(ForgedError, match="not valid here"):
        verifier().check(Signer(by_worker.certificate, by_worker.key).certificate, ("trainer",))


def test_an_expired_certificate_is_refused_after_it_was_valid() -> None:
    now = begun = time.time()
    check = Verifier(authority("ours").certificate, clock=lambda: now)
    assert check.check(signer().certificate, ("worker",)).name == "robot"
    now += DAYS * 86_400 + 60
    with pytest.raises(ForgedError, match="not valid here"):
        check.check(signer().certificate, ("worker",))
    assert check.check(signer().certificate, ("worker",), used_s=begun).name == "robot"
    with pytest.raises(ForgedError, match="not valid here"):
        check.check(signer().certificate, ("worker",), used_s=now)
    with pytest.raises(ForgedError, match="not valid here"):
        check.check(signer().certificate, ("worker",))


def test_a_certificate_is_refused_once_it_is_revoked() -> None:
    revoked: set[str] = set()
    check = Verifier(authority("ours").certificate, revoked=revoked)
    serial = check.check(signer().certificate, ("worker",)).serial
    revoked.add(serial)
    with pytest.raises(ForgedError, match=f"robot is revoked .serial number {serial}"):
        check.check(signer().certificate, ("worker",))


def test_no_changed_byte_gives_another_holder() -> None:
    """Only the number of unused bits at the end may change; records and cards cover it with their own proof."""
    check = verifier()
    der = signer().certificate
    honest = check.check(der, ("worker",))
    accepted = 0
    for place in range(len(der)):
        altered = bytearray(der)
        altered[place] ^= 1
        try:
            assert check.check(bytes(altered), ("worker",)) == honest
            accepted += 1
        except ForgedError:
            pass
    assert accepted <= 1


def test_checked_certificates_take_bounded_memory() -> None:
    check = verifier()
    for number in range(300):
        signed = make_client_certificate(authority("ours"), "worker", f"w{number}", later(1))
        check.check(Signer(signed.certificate, signed.key).certificate, ("worker",))
    assert len(check._checked) <= 256


def test_a_signature_covers_all_its_bytes() -> None:
    key = verifier().check(signer().certificate, ("worker",)).key
    proof = signer().sign(b"text")
    assert not is_signed(key, proof, b"text ")
    for place in range(len(proof)):
        altered = bytearray(proof)
        altered[place] ^= 1
        assert not is_signed(key, bytes(altered), b"text")
    assert not is_signed(key, bytes(64), b"text")
    assert not is_signed(key, b"\xff" * 64, b"text")


def test_statements_of_other_fields_differ() -> None:
    statements = [
        statement("a", "b", b"c"),
        statement("a", "bc", b""),
        statement("ab", "", b"c"),
        statement("a", "b", "c"),
        statement("a", b"b", b"c"),
        statement("a", "b", b"c", 0),
        statement("a", "b", (b"c",)),
    ]
    assert len(set(statements)) == len(statements)


@pytest.mark.parametrize(
    ("signed", "reason"),
    [
        (Signed("no certificate", "no key"), "not in PEM form"),
        (Signed(certificate().certificate, certificate("trainer", "node").key), "does not belong"),
        (Signed(certificate().certificate, "-----BEGIN PRIVATE KEY-----"), "not in PEM form"),
    ],
)
def test_a_signer_needs_a_certificate_and_its_key(signed: Signed, reason: str) -> None:
    with pytest.raises(CredentialsError, match=reason):
        Signer(signed.certificate, signed.key)


def test_a_verifier_needs_a_certificate() -> None:
    with pytest.raises(CredentialsError, match="not in PEM form"):
        Verifier("no certificate")


def test_a_signer_hides_its_key() -> None:
    assert repr(signer()) == "Signer('urn:tmrl-core:worker:robot')"
    form = Encoding.X962, PublicFormat.CompressedPoint
    assert len(verifier().check(signer().certificate, ("worker",)).key.public_bytes(*form)) == 33
