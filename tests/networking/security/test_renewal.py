"""Certificates taken back and renewed, tokens rotated: what the files say afterwards."""

from __future__ import annotations

import json
import random
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from tmrl_core.errors import CredentialsError
from tmrl_core.networking.security import credentials, renewal, tls_contexts
from tmrl_core.networking.security.certificates import make_authority, make_client_certificate, read_end, read_facts
from tmrl_core.networking.security.revocations import NO_LIST, SIGNED_FILE, read_signed
from tmrl_core.networking.security.tls_contexts import BundleRole, read_bundle, read_revoked, server_context


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    credentials.create(tmp_path / "credentials", ["robots.example.org"])
    return tmp_path / "credentials"


def serial(bundle: Path) -> str:
    return read_facts(read_bundle(bundle).certificate).serial


def test_all_certificates_of_a_name_are_revoked_and_no_other(folder: Path, tmp_path: Path) -> None:
    first = serial(credentials.bundle(folder, "worker", "robot7", tmp_path))
    second = serial(credentials.bundle(folder, "worker", "robot7", tmp_path))
    credentials.bundle(folder, "worker", "robot8", tmp_path)
    assert read_revoked(folder) == frozenset()
    assert {one.serial for one in renewal.revoke(folder, "robot7")} == {first, second}
    assert read_revoked(folder) == {first, second}
    assert renewal.revoke(folder, "robot7") == []
    new = serial(credentials.bundle(folder, "worker", "robot7", tmp_path))
    assert new not in read_revoked(folder), "a new bundle for the name works"


def test_a_renewed_certificate_keeps_its_weight(folder: Path, tmp_path: Path) -> None:
    credentials.bundle(folder, "worker", "web", tmp_path, weight=2)
    credentials.bundle(folder, "worker", "web", tmp_path, weight=4)
    (renewed,) = renewal.renew(folder, ["web"], tmp_path)
    assert "weight 4" in read_facts(read_bundle(renewed).certificate).subject
    assert "weight" in (folder / "issued.json").read_text()


def test_one_role_of_a_name_can_be_revoked(folder: Path, tmp_path: Path) -> None:
    credentials.bundle(folder, "worker", "hpc", tmp_path)
    trainer = serial(credentials.bundle(folder, "trainer", "hpc", tmp_path))
    assert [one.role for one in renewal.revoke(folder, "hpc", "worker")] == ["worker"]
    assert trainer not in read_revoked(folder)


@pytest.mark.parametrize("what", ["bundle", "certificate"])
def test_the_file_itself_can_be_named_without_the_record(folder: Path, tmp_path: Path, what: str) -> None:
    bundle = credentials.bundle(folder, "worker", "robot7", tmp_path)
    (folder / "issued.json").unlink()
    with pytest.raises(CredentialsError, match="name the bundle or certificate file itself"):
        renewal.revoke(folder, "robot7")
    file = bundle
    if what == "certificate":
        credentials.install(bundle, tmp_path / "there")
        file = tmp_path / "there" / "worker-robot7.pem"
    (one,) = renewal.revoke(folder, str(file))
    assert (one.role, one.name) == ("worker", "robot7")
    assert read_revoked(folder) == {serial(bundle)}


def test_the_error_for_an_unknown_name_lists_the_known_ones(folder: Path, tmp_path: Path) -> None:
    credentials.bundle(folder, "worker", "robot7", tmp_path)
    with pytest.raises(CredentialsError, match=r"'robot9'.*but to robot7"):
        renewal.revoke(folder, "robot9")
    with pytest.raises(CredentialsError, match="not a client's certificate"):
        renewal.revoke(folder, str(folder / "server.pem"))


@pytest.mark.parametrize("role", ["server", "trainer"])
def test_bundles_of_the_server_and_the_trainer_carry_the_list(folder: Path, tmp_path: Path, role: BundleRole) -> None:
    taken = serial(credentials.bundle(folder, "worker", "robot7", tmp_path))
    renewal.revoke(folder, "robot7")
    assert read_bundle(credentials.bundle(folder, "worker", "other", tmp_path)).revoked == (), "it names machines"
    bundle = credentials.bundle(folder, role, "elsewhere", tmp_path / "elsewhere.bundle")
    assert read_revoked(bundle) == {taken}
    credentials.install(bundle, tmp_path / "there")
    assert read_revoked(tmp_path / "there") == {taken}
    assert not (tmp_path / "there" / "issued.json").exists()


def test_the_signed_list_has_the_same_serial_numbers_and_a_number_that_grows(folder: Path, tmp_path: Path) -> None:
    authority = (folder / "ca.pem").read_text()
    assert read_signed(folder, authority) == NO_LIST
    numbers = []
    for name in ("robot7", "robot8", "robot8"):
        credentials.bundle(folder, "worker", name, tmp_path)
        renewal.revoke(folder, name)
        signed = read_signed(folder, authority)
        assert signed.serials == read_revoked(folder)
        numbers.append(signed.number)
    assert numbers == sorted(set(numbers))
    before = (folder / SIGNED_FILE).read_bytes()
    renewal.revoke(folder, "robot8")
    assert (folder / SIGNED_FILE).read_bytes() == before, "nothing was revoked"
    (folder / SIGNED_FILE).unlink()
    renewal.revoke(folder, "robot8")
    assert read_signed(folder, authority).number >= numbers[0]
    credentials.create(folder, overwrite=True)
    assert not (folder / SIGNED_FILE).exists()


def test_a_list_in_the_folder_of_a_bundle_counts(folder: Path, tmp_path: Path) -> None:
    bundle = credentials.bundle(folder, "server", out=tmp_path / "elsewhere.bundle")
    taken = serial(credentials.bundle(folder, "worker", "robot7", tmp_path))
    renewal.revoke(folder, "robot7")
    (tmp_path / "revoked.json").write_bytes((folder / "revoked.json").read_bytes())
    assert read_revoked(bundle) == {taken}


def test_a_damaged_record_is_an_error_and_not_an_empty_one(folder: Path, tmp_path: Path) -> None:
    (folder / "issued.json").write_text("{")
    with pytest.raises(CredentialsError, match="is damaged"):
        credentials.bundle(folder, "worker", "robot7", tmp_path)
    assert not (tmp_path / "robot7.worker.bundle").exists()


# -- renewed -----------------------------------------------------------------------------------------------------------


def test_the_servers_certificate_is_renewed_with_its_names_and_nothing_else(folder: Path) -> None:
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    files = renewal.renew(folder, days=10)
    changed = {file.name for file in folder.iterdir() if file.read_bytes() != before.get(file.name)}
    assert changed == {"server.pem", "server.key"} == {file.name for file in files}
    facts = read_facts((folder / "server.pem").read_text())
    assert "robots.example.org" in facts.names
    assert facts.not_after - datetime.now(timezone.utc) < timedelta(days=10)


def test_bundles_are_renewed_in_the_role_that_they_had(folder: Path, tmp_path: Path) -> None:
    old = serial(credentials.bundle(folder, "trainer", "hpc", tmp_path))
    (file,) = renewal.renew(folder, ["hpc"], tmp_path)
    assert file == tmp_path / "hpc.trainer.bundle"
    assert serial(file) != old
    assert read_revoked(folder) == frozenset(), "the old one counts until it expires"
    credentials.bundle(folder, "worker", "robot7", tmp_path, days=-1)
    assert renewal.holders(folder) == (["hpc"], ["robot7"])


def test_revoked_names_are_not_renewed(folder: Path, tmp_path: Path) -> None:
    credentials.bundle(folder, "worker", "robot7", tmp_path)
    renewal.revoke(folder, "robot7")
    assert renewal.holders(folder) == ([], [])
    with pytest.raises(CredentialsError, match="all were revoked"):
        renewal.renew(folder, ["robot7"], tmp_path)


# -- tokens ------------------------------------------------------------------------------------------------------------


def test_a_rotated_token_replaces_its_roles_and_no_others(folder: Path) -> None:
    old = {role: str(tls_contexts.token_for(folder, role)) for role in tls_contexts.CLIENT_ROLES}
    renewal.rotate_token(folder, "worker")
    new = {role: str(tls_contexts.token_for(folder, role)) for role in tls_contexts.CLIENT_ROLES}
    assert new["worker"] != old["worker"]
    assert new["trainer"] == old["trainer"]
    verifier = server_context(folder)[1]
    assert verifier.check("worker", new["worker"])
    assert not verifier.check("worker", old["worker"])
    assert verifier.check("trainer", old["trainer"])


def test_a_token_is_rotated_where_the_ca_is(folder: Path, tmp_path: Path) -> None:
    credentials.install(credentials.bundle(folder, "server", out=tmp_path), tmp_path / "there")
    with pytest.raises(CredentialsError, match=r"ca\.key not found"):
        renewal.rotate_token(tmp_path / "there", "worker")


def test_a_bundle_holds_no_token(folder: Path, tmp_path: Path) -> None:
    for role in tls_contexts.CLIENT_ROLES:
        content = json.loads(credentials.bundle(folder, role, "any", tmp_path).read_text())
        assert "token" not in content


# -- expiry without `cryptography` -------------------------------------------------------------------------------------


def test_the_end_of_a_certificate_is_read_as_cryptography_reads_it() -> None:
    source = random.Random(7)
    authority = make_authority(datetime(2090, 1, 1, tzinfo=timezone.utc))
    for _ in range(20):
        end = datetime(2025, 1, 1, tzinfo=timezone.utc) + timedelta(seconds=source.randrange(64 * 365 * 86_400))
        made = make_client_certificate(authority, "worker", "robot7", end)  # beyond 2049 dates have another form
        assert read_end(made.certificate) == read_facts(made.certificate).not_after == end


def test_the_expiry_of_an_invalid_certificate_is_an_error() -> None:
    whole = make_authority(datetime(2090, 1, 1, tzinfo=timezone.utc)).certificate
    lines = whole.splitlines()
    for text in ("", "x", whole[:100], "\n".join([lines[0], *lines[1:3], lines[-1]])):
        with pytest.raises(CredentialsError):
            read_end(text)
