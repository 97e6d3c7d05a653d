"""What tlspyo looks for: made with the rest of the credentials, carried by bundles, found again."""

from __future__ import annotations

import ssl
import stat
import sys
from pathlib import Path

import pytest

from tmrl_core.errors import CredentialsError
from tmrl_core.networking.security import credentials, tls_contexts
from tmrl_core.networking.security.certificates import read_facts
from tmrl_core.networking.transports.tlspyo import files
from tmrl_core.networking.transports.tlspyo.selection import TlspyoKind


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    credentials.create(tmp_path / "made", ["robots.example.org"])
    return tmp_path / "made"


def test_create_makes_the_files_that_tlspyo_expects(folder: Path) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "certificate.pem", folder / "key.pem")
    facts = read_facts((folder / "certificate.pem").read_text())
    assert facts.names[:2] == ("default", "robots.example.org")
    assert "127.0.0.1" in facts.names


@pytest.mark.skipif(sys.platform == "win32", reason="mode bits")
def test_key_and_password_are_readable_by_their_user_only(folder: Path) -> None:
    for name in ("key.pem", "tlspyo.password"):
        assert stat.S_IMODE((folder / name).stat().st_mode) == 0o600


def test_create_keeps_the_certificate_of_clients_and_overwrite_replaces_it(folder: Path) -> None:
    before = files.load(folder, server=True)
    credentials.create(folder, ["other.example.org"])
    assert files.load(folder, server=True) == before
    credentials.create(folder, overwrite=True)
    after = files.load(folder, server=True)
    assert after.certificate != before.certificate
    assert after.key != before.key
    assert after.password != before.password


@pytest.mark.parametrize("role", ["worker", "trainer", "server"])
def test_a_bundle_contains_the_files_of_tlspyo(folder: Path, tmp_path: Path, role: tls_contexts.BundleRole) -> None:
    made = files.load(folder, server=True)
    file = credentials.bundle(folder, role, "one", tmp_path)
    credentials.install(file, tmp_path / "there")
    for place in (file, tmp_path / "there"):
        found = files.load(place, server=role == "server")
        assert (found.certificate.strip(), found.password) == (made.certificate.strip(), made.password)
        assert bool(found.key) == (role == "server"), "the key is the Server's alone"
    assert (tmp_path / "there" / "key.pem").exists() == (role == "server")


def test_a_clients_bundle_does_not_make_a_server(folder: Path, tmp_path: Path) -> None:
    file = credentials.bundle(folder, "worker", "one", tmp_path)
    with pytest.raises(CredentialsError, match="holds nothing for tlspyo"):
        files.load(file, server=True)


def test_a_folder_made_by_tlspyo_is_accepted(folder: Path, tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.mkdir()
    for name in ("certificate.pem", "key.pem"):
        (own / name).write_bytes((folder / name).read_bytes())
    found = files.load(own, server=True)
    assert found.password == "", "tlspyo is told its password in other ways"
    assert not TlspyoKind().ensure_credentials(own)
    assert sorted(path.name for path in own.iterdir()) == ["certificate.pem", "key.pem"]


def test_older_credentials_are_completed(folder: Path) -> None:
    for name in ("certificate.pem", "key.pem", "tlspyo.password"):
        (folder / name).unlink()
    with pytest.raises(CredentialsError, match=r"certificate.pem not found.*--credentials create"):
        files.load(folder, server=False)
    authority = (folder / "ca.pem").read_text()
    assert TlspyoKind().ensure_credentials(folder)
    assert files.load(folder, server=True).password
    assert (folder / "ca.pem").read_text() == authority


def test_missing_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(CredentialsError, match="not found"):
        files.load(tmp_path / "none", server=False)
    (tmp_path / "certificate.pem").write_text("x")
    with pytest.raises(CredentialsError, match=r"key.pem not found"):
        files.load(tmp_path, server=True)


def test_a_repr_shows_no_secret(folder: Path) -> None:
    assert files.load(folder, server=True).password not in repr(files.load(folder, server=True))
