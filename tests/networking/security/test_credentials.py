"""Credentials: real handshakes between two SSL objects over memory, and the files behind them."""

from __future__ import annotations

import errno
import json
import logging
import os
import ssl
import stat
import sys
import threading
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import msgspec
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtensionOID, NameOID

from tmrl_core.errors import CredentialsError
from tmrl_core.networking.security import certificates, credentials, renewal, tls_contexts
from tmrl_core.networking.security.certificates import read_facts
from tmrl_core.networking.security.credentials import bundle, create
from tmrl_core.networking.security.handshakes import explain, identity_of
from tmrl_core.networking.security.renewal import rotate_token
from tmrl_core.networking.security.revocations import read_list
from tmrl_core.networking.security.tls_contexts import client_context, read_bundle, read_revoked, server_context

posix_only = pytest.mark.skipif(sys.platform == "win32", reason="mode bits mean nothing on Windows")


class Outcome:
    """How a handshake ended on both sides: errors or None, and the certificate that the Server saw."""

    def __init__(self, client: ssl.SSLContext, server: ssl.SSLContext, hostname: str = "localhost") -> None:
        self.client_error: ssl.SSLError | None = None
        self.server_error: ssl.SSLError | None = None
        to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._client = client.wrap_bio(to_client, to_server, server_hostname=hostname)
        self._server = server.wrap_bio(to_server, to_client, server_side=True)
        # Three rounds finish any handshake; the reads that follow bring alerts that come after it.
        for _ in range(3):
            self.client_error = self.client_error or self._try(self._client)
            self.server_error = self.server_error or self._try(self._server)
        self.client_error = self.client_error or self._try(self._client, read=True)
        self.peer: dict[str, Any] | None = None
        if self.server_error is None and self.client_error is None:
            self.peer = self._server.getpeercert()
            self.version = self._client.version()

    @staticmethod
    def _try(end: ssl.SSLObject, read: bool = False) -> ssl.SSLError | None:
        try:
            if read:
                end.read(1)
            else:
                end.do_handshake()
        except ssl.SSLWantReadError:
            return None
        except ssl.SSLError as exc:
            return exc
        return None

    def client_says(self, hostname: str = "localhost") -> str:
        assert self.client_error is not None
        return explain(self.client_error, host="192.0.2.1", hostname=hostname)

    def server_says(self) -> str:
        assert self.server_error is not None
        return explain(self.server_error, host="any", side="server")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    create(tmp_path / "credentials", ["robots.example.org", "192.0.2.5"])
    return tmp_path / "credentials"


def installed(folder: Path, role: tls_contexts.BundleRole, name: str, *, days: float = 30) -> Path:
    """A folder as on another machine, made of a bundle."""
    there = folder.parent / f"{role}-{name}"
    credentials.install(bundle(folder, role, name, folder.parent, days=days), there)
    return there


# -- handshakes -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("hostname", ["localhost", "127.0.0.1", "::1", "robots.example.org", "192.0.2.5"])
def test_every_name_of_the_certificate_is_accepted(folder: Path, hostname: str) -> None:
    outcome = Outcome(client_context(folder, "worker"), server_context(folder)[0], hostname)
    assert (outcome.client_error, outcome.server_error) == (None, None)
    assert outcome.version == "TLSv1.3"


def test_tls_1_2_is_accepted_and_1_1_is_not(folder: Path) -> None:
    client = client_context(folder, "worker")
    client.maximum_version = ssl.TLSVersion.TLSv1_2
    assert Outcome(client, server_context(folder)[0]).version == "TLSv1.2"
    assert client_context(folder, "worker").minimum_version == ssl.TLSVersion.TLSv1_2
    assert server_context(folder)[0].minimum_version == ssl.TLSVersion.TLSv1_2


@pytest.mark.parametrize("role", ["worker", "trainer"])
def test_server_reads_role_and_name_from_the_certificate(folder: Path, role: tls_contexts.ClientRole) -> None:
    there = installed(folder, role, "robot7")
    outcome = Outcome(client_context(there, role), server_context(folder)[0])
    assert identity_of(outcome.peer) == (role, "robot7")


def test_a_client_without_certificate_is_admitted_without_identity(folder: Path) -> None:
    outcome = Outcome(client_context(folder, "worker"), server_context(folder)[0])
    assert outcome.server_error is None
    assert identity_of(outcome.peer) is None


def test_wrong_host_name(folder: Path) -> None:
    outcome = Outcome(client_context(folder, "worker"), server_context(folder)[0], "other.example.org")
    assert "not for 'other.example.org'" in outcome.client_says("other.example.org")
    assert "--credentials create --host other.example.org" in outcome.client_says("other.example.org")
    assert "name that was dialled" in outcome.server_says()


def test_wrong_address(folder: Path) -> None:
    outcome = Outcome(client_context(folder, "worker"), server_context(folder)[0], "192.0.2.99")
    assert "not for '192.0.2.99'" in outcome.client_says("192.0.2.99")


def test_expired_server_certificate(folder: Path) -> None:
    create(folder, days=-1)
    outcome = Outcome(client_context(folder, "worker"), server_context(folder)[0])
    assert "has expired" in outcome.client_says()
    assert "this Server's certificate has expired" in outcome.server_says()


def test_expired_client_certificate(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    there = installed(folder, "worker", "robot7", days=-1)
    assert "robot7.worker.bundle expired on" in caplog.text
    outcome = Outcome(client_context(there, "worker"), server_context(folder)[0])
    assert "the peer's certificate has expired" in outcome.server_says()
    assert "this machine's client certificate has expired" in outcome.client_says()
    assert "--credentials bundle" in outcome.client_says()


def test_client_certificate_of_tomorrow(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(certificates, "_CLOCK_SLACK", timedelta(days=-1))
    outcome = Outcome(client_context(installed(folder, "worker", "robot7"), "worker"), server_context(folder)[0])
    assert "not valid yet: this machine's clock is wrong" in outcome.server_says()
    assert "may not be valid yet by the clock there" in outcome.client_says()


def test_foreign_client_certificate(folder: Path, tmp_path: Path) -> None:
    create(tmp_path / "foreign")
    there = installed(tmp_path / "foreign", "worker", "robot7")
    (there / "ca.pem").write_bytes((folder / "ca.pem").read_bytes())  # it trusts our Server, but is not ours
    outcome = Outcome(client_context(there, "worker"), server_context(folder)[0])
    assert "the peer's certificate is of a foreign CA" in outcome.server_says()
    assert "does not know the CA of this machine's client certificate" in outcome.client_says()


def test_foreign_server(folder: Path, tmp_path: Path) -> None:
    create(tmp_path / "foreign")
    outcome = Outcome(client_context(folder, "worker"), server_context(tmp_path / "foreign")[0])
    assert "another CA" in outcome.client_says()
    assert "bundle worker --name NAME`, or trainer)" in outcome.client_says()
    assert "the peer does not know the CA of this Server's certificate" in outcome.server_says()


def test_the_error_names_a_server_that_requires_a_certificate(folder: Path) -> None:
    context = server_context(folder)[0]
    context.verify_mode = ssl.CERT_REQUIRED
    outcome = Outcome(client_context(folder, "worker"), context)
    assert "showed no certificate" in outcome.server_says()
    assert "asks for a client certificate" in outcome.client_says()


def test_client_certificate_cannot_pose_as_a_server(folder: Path) -> None:
    there = installed(folder, "worker", "robot7")
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(there / "worker-robot7.pem", there / "worker-robot7.key")
    client = client_context(folder, "worker")
    assert "not a Server's" in Outcome(client, server).client_says()


def test_a_server_certificate_cannot_authenticate_a_client(folder: Path) -> None:
    client = client_context(folder, "worker")
    client.load_cert_chain(folder / "server.pem", folder / "server.key")
    assert "not a client's" in Outcome(client, server_context(folder)[0]).server_says()


def test_plain_text_is_named(folder: Path) -> None:
    incoming = ssl.MemoryBIO()
    incoming.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    end = client_context(folder, "worker").wrap_bio(incoming, ssl.MemoryBIO(), server_hostname="localhost")
    with pytest.raises(ssl.SSLError) as caught:
        end.do_handshake()
    assert "not TLS" in explain(caught.value, host="192.0.2.1")


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ConnectionRefusedError(111, "Connection refused"), "nothing listens at far.example"),
        (TimeoutError("timed out"), "does not answer"),
        (ConnectionResetError(104, "Connection reset by peer"), "cut the connection"),
        (OSError(101, "Network is unreachable"), "Network is unreachable"),
        (ssl.SSLEOFError(8, "EOF occurred in violation of protocol"), "closed the connection"),
    ],
)
def test_errors_before_tls_are_explained(error: OSError, words: str) -> None:
    said = explain(error, host="far.example")
    assert words in said
    assert "far.example" in said


# -- identities -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "certificate",
    [
        None,
        {},
        {"subjectAltName": (("DNS", "urn:tmrl-core:worker:robot7"),)},
        {"subjectAltName": (("URI", "https://example.org"),)},
        {"subjectAltName": (("URI", "urn:tmrl-core:worker"),)},
        {"subject": ((("commonName", "robot7"),),)},
    ],
)
def test_other_certificates_have_no_identity(certificate: dict[str, Any] | None) -> None:
    assert identity_of(certificate) is None


def test_tokens_are_checked_by_role(folder: Path) -> None:
    verifier = server_context(folder)[1]
    worker, trainer = tls_contexts.token_for(folder, "worker"), tls_contexts.token_for(folder, "trainer")
    assert worker is not None
    assert trainer is not None
    assert len(worker) >= 43  # 256 bits
    assert verifier.check("worker", worker)
    assert verifier.check("trainer", trainer)
    assert not verifier.check("worker", trainer)
    assert not verifier.check("trainer", worker)
    assert not verifier.check("gateway", worker)
    assert not verifier.check("gateway", "")
    assert not verifier.check("worker", "")
    assert not verifier.check("worker", "ünicode")


# -- create -----------------------------------------------------------------------------------------------------------


def test_create_again_keeps_the_authority_and_tokens(folder: Path) -> None:
    there = installed(folder, "worker", "robot7")
    before = {name: (folder / name).read_bytes() for name in ("ca.pem", "ca.key", "worker.token", "trainer.token")}
    made = create(folder, ["new.example.org"])
    assert not made.new_authority
    assert made.hosts[:3] == ("new.example.org", "robots.example.org", "192.0.2.5")  # nobody is locked out
    assert before == {name: (folder / name).read_bytes() for name in before}
    outcome = Outcome(client_context(there, "worker"), server_context(folder)[0], "new.example.org")
    assert identity_of(outcome.peer) == ("worker", "robot7")


def test_create_without_hosts_renews_the_same_names(folder: Path) -> None:
    old = (folder / "server.pem").read_bytes()
    assert create(folder).hosts[:2] == ("robots.example.org", "192.0.2.5")
    assert (folder / "server.pem").read_bytes() != old


def test_create_with_hosts_replaces_a_damaged_certificate(folder: Path) -> None:
    (folder / "server.pem").write_text("damaged")
    assert create(folder, ["new.example.org"]).hosts[0] == "new.example.org"
    (folder / "server.pem").write_text("damaged")
    with pytest.raises(CredentialsError):
        create(folder)


def test_overwrite_makes_old_bundles_useless(folder: Path) -> None:
    there = installed(folder, "worker", "robot7")
    token = tls_contexts.token_for(folder, "worker")
    assert create(folder, overwrite=True).new_authority
    outcome = Outcome(client_context(there, "worker"), server_context(folder)[0])
    assert "another CA" in outcome.client_says()
    assert token is not None
    assert not (folder / "issued.json").exists(), "what another CA handed out is none of this one's"
    assert not server_context(folder)[1].check("worker", token)


def test_overwrite_removes_certificates_of_the_old_ca(folder: Path) -> None:
    credentials.install(bundle(folder, "worker", "me", folder.parent), folder)
    create(folder, overwrite=True)
    assert not list(folder.glob("worker-*"))
    outcome = Outcome(client_context(folder, "worker"), server_context(folder)[0])
    assert outcome.client_error is None, "its token may speak for it"


def test_create_refuses_where_only_a_bundle_is(folder: Path) -> None:
    there = installed(folder, "server", "host")
    with pytest.raises(CredentialsError, match="whose key is elsewhere"):
        create(there, ["robots.example.org"])


def test_create_refuses_an_expired_authority(tmp_path: Path) -> None:
    create(tmp_path / "credentials", ca_days=-1)
    with pytest.raises(CredentialsError, match=r"has expired.*--overwrite"):
        create(tmp_path / "credentials")


@pytest.mark.parametrize(
    "host", ["https://robots.example.org", "robots:55555", "", "a b", "-x.example", "a..b", "x" * 254]
)
def test_create_refuses_invalid_hosts(tmp_path: Path, host: str) -> None:
    with pytest.raises(CredentialsError, match="neither a host name nor an IP address"):
        create(tmp_path / "credentials", [host])
    assert not (tmp_path / "credentials" / "ca.pem").exists()


def test_hosts_are_normalized(tmp_path: Path) -> None:
    made = create(tmp_path / "credentials", ["[2001:DB8::1]", "Robots.Example.ORG.", "bücher.example", "*.lab.example"])
    assert made.hosts[:4] == ("2001:db8::1", "robots.example.org", "xn--bcher-kva.example", "*.lab.example")


def test_ensure_creates_once(tmp_path: Path) -> None:
    folder = tmp_path / "credentials"
    assert credentials.ensure(folder)
    before = (folder / "ca.pem").read_bytes()
    assert not credentials.ensure(folder)
    assert (folder / "ca.pem").read_bytes() == before


def test_ensure_at_once_leaves_one_consistent_set(tmp_path: Path) -> None:
    folder = tmp_path / "credentials"
    made: list[bool] = []
    threads = [threading.Thread(target=lambda: made.append(credentials.ensure(folder))) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sorted(made) == [False] * 5 + [True]
    context, verifier = server_context(folder)
    token = tls_contexts.token_for(folder, "trainer")
    assert token is not None
    assert verifier.check("trainer", token)
    assert Outcome(client_context(folder, "trainer"), context).client_error is None


# -- files ------------------------------------------------------------------------------------------------------------


@posix_only
def test_private_files_are_their_users_only(folder: Path, tmp_path: Path) -> None:
    installed(folder, "worker", "robot7")
    private = [*tmp_path.rglob("*.key"), *tmp_path.rglob("*.token*"), *tmp_path.rglob("*.bundle")]
    assert len(private) == 7
    assert {stat.S_IMODE(file.stat().st_mode) for file in private} == {0o600}
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


@posix_only
def test_private_files_are_private_from_the_moment_they_exist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    modes: list[tuple[str, int]] = []
    really_replace = os.replace

    def replace(source: os.PathLike[str], target: os.PathLike[str]) -> None:
        modes.append((Path(target).name, stat.S_IMODE(os.stat(source).st_mode)))
        really_replace(source, target)

    opened: list[int] = []
    really_open = os.open

    def watched_open(path: Any, flags: int, mode: int = 0o777, **more: Any) -> int:
        if not os.path.isdir(path):  # folders are flushed
            opened.append(mode)
            assert flags & os.O_EXCL or Path(path).name == ".lock"  # which holds nothing
        return really_open(path, flags, mode, **more)

    monkeypatch.setattr(os, "replace", replace)
    monkeypatch.setattr(os, "open", watched_open)
    previous = os.umask(0)
    try:
        create(tmp_path / "credentials")
    finally:
        os.umask(previous)
    assert dict(modes)["ca.key"] == dict(modes)["server.key"] == dict(modes)["worker.token"] == 0o600
    assert set(opened) == {0o600, 0o644}


@posix_only
def test_a_key_that_others_can_read_is_warned_of(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    server_context(folder)
    assert caplog.records == []
    (folder / "server.key").chmod(0o644)
    server_context(folder)
    assert "chmod 600" in caplog.text


@posix_only
def test_no_incomplete_file_remains(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = sorted(file.name for file in folder.iterdir())

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(CredentialsError, match="No space left"):
        create(folder, ["new.example.org"])
    assert sorted(file.name for file in folder.iterdir()) == before


# -- bundles ----------------------------------------------------------------------------------------------------------


def test_server_bundle_holds_neither_the_authoritys_key_nor_a_token(folder: Path) -> None:
    text = bundle(folder, "server", "host", folder.parent).read_text()
    private = (folder / "ca.key").read_text().splitlines()[1:3]  # the last line is the public key's, as in ca.pem
    assert len(private) == 2
    assert not any(line in text for line in private)
    assert json.loads(text)["token_hashes"].keys() == {"worker", "trainer"}
    for role in tls_contexts.CLIENT_ROLES:
        assert str(tls_contexts.token_for(folder, role)) not in text


def test_client_bundle_holds_its_own_role_only(folder: Path) -> None:
    text = bundle(folder, "worker", "robot7", folder.parent).read_text()
    assert str(tls_contexts.token_for(folder, "worker")) not in text, "a token cannot be taken back from one machine"
    for foreign in ("ca.key", "server.key"):
        assert (folder / foreign).read_text().splitlines()[1] not in text
    assert str(tls_contexts.token_for(folder, "trainer")) not in text


def test_bundles_file_is_named_after_its_holder(folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert bundle(folder, "worker", "robot7") == Path("robot7.worker.bundle")
    assert bundle(folder, "server", out=tmp_path).name == "server.server.bundle"
    assert bundle(folder, "trainer", "hpc", tmp_path / "x.txt") == tmp_path / "x.txt"


def test_an_installed_server_and_worker_connect(folder: Path) -> None:
    server, worker = installed(folder, "server", "host"), installed(folder, "worker", "robot7")
    context, verifier = server_context(server)
    outcome = Outcome(client_context(worker, "worker"), context, "robots.example.org")
    assert identity_of(outcome.peer) == ("worker", "robot7")
    assert verifier.check("worker", str(tls_contexts.token_for(folder, "worker")))
    assert tls_contexts.token_for(worker, "worker") is tls_contexts.token_for(worker, "trainer") is None


def test_bundle_files_are_used_as_they_are(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    server, worker = bundle(folder, "server", "host", tmp_path), bundle(folder, "worker", "robot7", tmp_path)
    context, verifier = server_context(server)
    outcome = Outcome(client_context(worker, "worker"), context)
    assert identity_of(outcome.peer) == ("worker", "robot7")
    assert verifier.check("worker", str(tls_contexts.token_for(folder, "worker")))
    assert tls_contexts.token_for(worker, "worker") is None
    assert list((tmp_path / "temporary").iterdir()) == []  # OpenSSL's copy of the key is gone


def test_a_certificate_is_chosen_by_name(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    there = folder.parent / "there"
    for name in ("robot7", "robot8"):
        credentials.install(bundle(folder, "worker", name, folder.parent), there)
    context = server_context(folder)[0]
    assert identity_of(Outcome(client_context(there, "worker", "robot8"), context).peer) == ("worker", "robot8")
    assert caplog.records == []
    with_token = client_context(there, "worker", "robot9", has_token=True)
    assert identity_of(Outcome(with_token, context).peer) is None
    assert "robot9" in caplog.text


def test_several_certificates_without_a_token_are_an_error_before_any_server_is_believed(folder: Path) -> None:
    """A fake Server would admit the client without a certificate, and thus without proofs of origin."""
    there = folder.parent / "there"
    for name in ("robot7", "robot8"):
        credentials.install(bundle(folder, "worker", name, folder.parent), there)
    with pytest.raises(CredentialsError, match=r"several workers \(worker-robot7, worker-robot8\), and one is needed"):
        client_context(there, "worker")


def test_a_missing_bundle_is_named_with_the_command_that_makes_one(tmp_path: Path) -> None:
    with pytest.raises(CredentialsError, match=r"nofile not found\. .*--credentials bundle"):
        credentials.install(tmp_path / "nofile", tmp_path / "there")
    assert not (tmp_path / "there").exists()


def test_install_refuses_to_mix_authorities(folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    create(tmp_path / "foreign")
    foreign = bundle(tmp_path / "foreign", "worker", "robot7", tmp_path)
    there = installed(folder, "worker", "robot8")
    before = {file.name: file.read_text() for file in there.glob("[!.]*")}
    with pytest.raises(CredentialsError, match="another CA"):
        credentials.install(foreign, there)
    credentials.install(foreign, there, overwrite=True)
    assert [file.name for file in sorted(there.glob("worker-*"))] == ["worker-robot7.key", "worker-robot7.pem"]
    assert (there / "ca.pem").read_text() == (tmp_path / "foreign" / "ca.pem").read_text()
    (aside,) = tmp_path.glob(f"{there.name}.old-*")
    assert {file.name: file.read_text() for file in aside.iterdir()} == before
    assert str(aside) in caplog.text
    assert stat.S_IMODE(aside.stat().st_mode) == 0o700 or sys.platform == "win32"


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("role", ["worker", "server"])
def test_a_ca_that_has_issued_bundles_is_never_replaced(
    folder: Path, tmp_path: Path, role: tls_contexts.BundleRole, overwrite: bool
) -> None:
    bundle(folder, role, "robot8", tmp_path)
    create(tmp_path / "foreign")
    foreign = bundle(tmp_path / "foreign", "worker", "robot7", tmp_path)
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    with pytest.raises(CredentialsError, match=r"has issued bundles.*another folder"):
        credentials.install(foreign, folder, overwrite=overwrite)
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == before


def test_a_bundle_replaces_a_ca_that_has_issued_nothing(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    robot = tmp_path / "robot"
    assert credentials.ensure(robot)
    assert str(robot) in caplog.text, "making a CA is said"
    assert "--credentials install" in caplog.text
    key = (robot / "ca.key").read_text()
    credentials.install(bundle(folder, "worker", "robot7", tmp_path), robot)
    outcome = Outcome(client_context(robot, "worker"), server_context(folder)[0])
    assert identity_of(outcome.peer) == ("worker", "robot7")
    assert not (robot / "ca.key").exists()
    (aside,) = tmp_path.glob("robot.old-*")
    assert (aside / "ca.key").read_text() == key
    assert str(aside) in caplog.text


def changed(file: Path, **fields: object) -> Path:
    """The bundle, with other content in these fields."""
    file.write_text(json.dumps({**json.loads(file.read_text()), **fields}))
    return file


def test_a_bundle_that_its_ca_did_not_sign_is_refused(folder: Path, tmp_path: Path) -> None:
    create(tmp_path / "foreign")
    ours = (folder / "ca.pem").read_text()
    for role in ("worker", "trainer", "server"):
        foreign = changed(bundle(tmp_path / "foreign", role, "robot7", tmp_path), ca=ours)
        before = {file.name: file.read_bytes() for file in folder.iterdir()}
        for there in (folder, tmp_path / "empty"):
            with pytest.raises(CredentialsError, match="not made by the CA"):
                credentials.install(foreign, there)
        assert {file.name: file.read_bytes() for file in folder.iterdir()} == before
    assert not (tmp_path / "empty").exists()


def test_a_certificate_does_not_sign_further_ones(folder: Path, tmp_path: Path) -> None:
    file = bundle(folder, "worker", "robot7", tmp_path)
    own = json.loads(file.read_text())
    made = certificates.make_client_certificate(
        certificates.Signed(own["certificate"], own["key"]),
        "trainer",
        "robot7",
        datetime.now(timezone.utc) + timedelta(days=1),
    )
    fields = {"role": "trainer", "ca": own["certificate"], "certificate": made.certificate, "key": made.key}
    with pytest.raises(CredentialsError, match="not made by the CA"):
        credentials.install(changed(file, **fields), tmp_path / "empty")


def test_the_parts_of_a_bundle_belong_together(folder: Path, tmp_path: Path) -> None:
    def worker() -> Path:
        return bundle(folder, "worker", "robot7", tmp_path)

    def refused(file: Path, words: str, **fields: object) -> None:
        with pytest.raises(CredentialsError, match=words):
            credentials.install(changed(file, **fields), tmp_path / "there")

    other = json.loads(bundle(folder, "worker", "robot8", tmp_path).read_text())
    refused(worker(), "key does not belong", key=other["key"])
    refused(worker(), "its certificate is for the worker robot7", role="trainer")
    refused(worker(), "its certificate is for the worker robot7", role="server")
    refused(worker(), "its certificate is for the worker robot8", certificate=other["certificate"], key=other["key"])
    refused(bundle(folder, "server", "host", tmp_path), "is for a server", role="worker")
    refused(worker(), "must not have", token_hashes={"trainer": "0" * 64})
    refused(worker(), "must not have", revoked=[msgspec.to_builtins(read_list(folder / "issued.json")[0])])


def test_tokens_of_the_ca_are_not_replaced_by_a_bundle(folder: Path, tmp_path: Path) -> None:
    hashes = (folder / "server.tokens.json").read_bytes()
    file = bundle(folder, "server", "host", tmp_path)
    credentials.install(file, folder)  # its own bundle changes nothing
    with pytest.raises(CredentialsError, match="would replace tokens"):
        credentials.install(changed(file, token_hashes={"worker": "0" * 64}), folder, overwrite=True)
    with pytest.raises(CredentialsError, match="is not a bundle of tmrl_core"):
        credentials.install(changed(bundle(folder, "worker", "w", tmp_path), token="mine"), folder)
    assert (folder / "server.tokens.json").read_bytes() == hashes
    there = installed(folder, "server", "host")
    rotate_token(folder, "worker")
    credentials.install(bundle(folder, "server", "host", tmp_path), there)  # elsewhere a new bundle brings new ones
    assert (there / "server.tokens.json").read_bytes() == (folder / "server.tokens.json").read_bytes()
    part = json.loads(bundle(folder, "worker", "robot7", tmp_path).read_text())["tlspyo"]
    for key in ("certificate", "password"):
        foreign = changed(bundle(folder, "worker", "robot7", tmp_path), tlspyo={**part, key: "another"})
        with pytest.raises(CredentialsError, match="tlspyo's certificate or password"):
            credentials.install(foreign, there)


def test_wrong_bundle_for_the_role(folder: Path, tmp_path: Path) -> None:
    worker = bundle(folder, "worker", "robot7", tmp_path)
    with pytest.raises(CredentialsError, match="worker's bundle"):
        server_context(worker)
    with pytest.raises(CredentialsError, match="these are a worker's credentials"):
        client_context(worker, "trainer")


@pytest.mark.parametrize(("has", "wants"), [("trainer", "worker"), ("worker", "trainer"), ("server", "worker")])
def test_the_wrong_roles_credentials_are_named(
    folder: Path, has: tls_contexts.BundleRole, wants: tls_contexts.ClientRole
) -> None:
    there = installed(folder, has, "robot7")
    for place in (there, bundle(folder, has, "robot7", folder.parent)):
        with pytest.raises(CredentialsError, match=rf"these are a {has}'s credentials .*--credentials bundle {wants}"):
            client_context(place, wants)
    client_context(there, wants, has_token=True)  # the token may be the right one: the Server says


@pytest.mark.parametrize("has", ["worker", "trainer"])
def test_a_client_s_credentials_at_a_server_are_named(folder: Path, has: tls_contexts.BundleRole) -> None:
    for place in (installed(folder, has, "robot7"), bundle(folder, has, "robot7", folder.parent)):
        with pytest.raises(CredentialsError, match=rf"these are a {has}'s credentials .*--credentials bundle server"):
            server_context(place)


@pytest.mark.parametrize("name", ["../robot7", "robot 7", "", "x" * 65, ".hidden", "a/b", "ünicode"])
def test_names_that_do_not_fit_are_refused(folder: Path, name: str) -> None:
    with pytest.raises(CredentialsError, match="name"):
        bundle(folder, "worker", name, folder.parent)


def test_a_bundle_cannot_write_outside_its_folder(folder: Path, tmp_path: Path) -> None:
    file = bundle(folder, "worker", "robot7", tmp_path)
    content = json.loads(file.read_text())
    content["name"] = "../../escaped"
    file.write_text(json.dumps(content))
    with pytest.raises(CredentialsError, match="is not allowed"):
        credentials.install(file, tmp_path / "there")
    assert not list(tmp_path.rglob("*escaped*"))


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"format": "tmrl_core bundle", "key": 3}', "\x00\x01"])
def test_files_that_are_not_bundles_are_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "robot7.worker.bundle"
    file.write_text(text)
    with pytest.raises(CredentialsError, match="not a bundle"):
        client_context(file, "worker")


# -- show, find, missing ----------------------------------------------------------------------------------------------


def test_show_prints_fingerprints_and_expiry_without_secrets(folder: Path) -> None:
    installed_folder = installed(folder, "worker", "robot7")
    records = credentials.show(folder)
    what = [record.what for record in records]
    certificates = ["CA certificate", "server certificate", "tlspyo certificate"]
    assert what == [*certificates, "CA key", "token", "token", "issued"]
    assert (records[-1].role, records[-1].subject) == ("worker", "robot7")
    bundle(folder, "worker", "web", folder.parent, weight=4)
    assert credentials.show(folder)[-1].names == ("weight 4",)
    assert records[0].days_left in (credentials.CA_DAYS - 1, credentials.CA_DAYS)
    assert records[1].days_left in (credentials.DAYS - 1, credentials.DAYS)
    assert "robots.example.org" in records[1].names
    der = ssl.PEM_cert_to_DER_cert((folder / "ca.pem").read_text())
    import hashlib

    assert records[0].fingerprint.replace(":", "").lower() == hashlib.sha256(der).hexdigest()
    there = {record.what: record for record in credentials.show(installed_folder)}
    assert there["client certificate"].role == "worker"
    assert there["client certificate"].names == ("urn:tmrl-core:worker:robot7",)
    assert there["CA certificate"].fingerprint == records[0].fingerprint
    for role in tls_contexts.CLIENT_ROLES:
        assert str(tls_contexts.token_for(folder, role)) not in repr(records)


def test_show_reads_a_bundle(folder: Path, tmp_path: Path) -> None:
    records = credentials.show(bundle(folder, "worker", "robot7", tmp_path))
    assert [record.what for record in records] == ["CA certificate", "client certificate"]


def test_the_error_for_missing_credentials_names_the_command(tmp_path: Path) -> None:
    for call in (
        lambda: server_context(tmp_path / "none"),
        lambda: client_context(tmp_path / "none", "worker"),
        lambda: credentials.show(tmp_path / "none"),
        lambda: bundle(tmp_path / "none", "worker", "robot7"),
    ):
        with pytest.raises(CredentialsError, match=r"ca.pem not found.*--credentials create"):
            call()
    assert not (tmp_path / "none").exists()


def test_bundle_without_the_authoritys_key(folder: Path) -> None:
    there = installed(folder, "server", "host")
    with pytest.raises(CredentialsError, match=r"ca.key not found"):
        bundle(there, "worker", "robot7")


def test_key_of_another_certificate_is_refused(folder: Path) -> None:
    (folder / "server.key").write_bytes((folder / "ca.key").read_bytes())
    with pytest.raises(CredentialsError, match="do not match"):
        server_context(folder)


def test_encrypted_key_is_refused_instead_of_asking_the_terminal(folder: Path) -> None:
    from cryptography.hazmat.primitives import serialization

    key = serialization.load_pem_private_key((folder / "server.key").read_bytes(), None)
    (folder / "server.key").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"secret"),
        )
    )
    with pytest.raises(CredentialsError, match="encrypted"):
        server_context(folder)


def test_find_prefers_the_given_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert credentials.find("elsewhere") == tmp_path / "elsewhere"
    assert credentials.find() == Path(os.environ["TMRL_CORE_HOME"]) / "credentials"
    create(tmp_path / "credentials")
    assert credentials.find().resolve() == tmp_path / "credentials"


def test_nothing_secret_in_repr_or_log(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    file = bundle(folder, "worker", "robot7", folder.parent)
    context, verifier = server_context(folder)
    client_context(file, "worker")
    content = read_bundle(file)
    secrets = [str(tls_contexts.token_for(folder, role)) for role in tls_contexts.CLIENT_ROLES]
    secrets += [content.key.splitlines()[1], (folder / "ca.key").read_text().splitlines()[1]]
    said = " ".join([repr(content), repr(verifier), repr(context), str(vars(verifier)), caplog.text])
    assert not any(secret in said for secret in secrets)
    environment = " ".join(os.environ.values())
    assert not any(secret in environment for secret in secrets)


def test_the_error_names_a_certificate_with_damaged_extensions() -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "odd")])
    begin = datetime.now(timezone.utc)
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    builder = builder.serial_number(1).not_valid_before(begin).not_valid_after(begin + timedelta(days=1))
    garbage = x509.UnrecognizedExtension(ExtensionOID.SUBJECT_ALTERNATIVE_NAME, b"\xff\xff")
    made = builder.add_extension(garbage, critical=False).sign(key, hashes.SHA256())
    with pytest.raises(CredentialsError, match="damaged"):
        read_facts(made.public_bytes(serialization.Encoding.PEM).decode())
    der = made.public_bytes(serialization.Encoding.DER)
    of_no_version = der.replace(b"\xa0\x03\x02\x01\x02", b"\xa0\x03\x02\x01\x05", 1)
    with pytest.raises(CredentialsError, match="not a certificate"):
        read_facts(ssl.DER_cert_to_PEM_cert(of_no_version))


@posix_only
@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("ca.pem", server_context),
        ("server.key", server_context),
        ("revoked.json", read_revoked),
        ("trainer.token", lambda folder: tls_contexts.token_for(folder, "trainer")),
    ],
)
def test_a_pipe_in_place_of_a_file_is_refused_without_blocking(
    folder: Path, name: str, read: Callable[[Path], object]
) -> None:
    (folder / name).unlink(missing_ok=True)
    os.mkfifo(folder / name)
    with pytest.raises(CredentialsError, match=f"{name} cannot be read: it is not a regular file"):
        read(folder)


@posix_only
@pytest.mark.parametrize("code", [errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS])
def test_a_file_system_without_locks_is_named_with_the_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    import fcntl

    def refuse(descriptor: int, operation: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(CredentialsError, match=r"(?s)\.lock cannot be locked: .*no locks.*TMRL_CORE_HOME") as caught:
        create(tmp_path / "keys")
    assert "another process" not in str(caught.value)


def test_a_folder_that_cannot_be_made_names_the_way_out(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CredentialsError, match=r"cannot be written: Not a directory\. Set .*TMRL_CORE_HOME"):
        create(tmp_path / "file" / "keys")


@posix_only
def test_a_folder_that_others_may_write_into_is_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tmp_path / "keys"
    create(folder)
    server_context(folder)
    client_context(folder, "worker")
    assert not caplog.messages
    for mode in (0o777, 0o770):
        folder.chmod(mode)
        caplog.clear()
        server_context(folder)
        assert "can be written by other users" in caplog.text
        caplog.clear()
        client_context(folder, "worker")
        assert "can be written by other users" in caplog.text


# -- operators --------------------------------------------------------------------------------------------------------


def test_an_operators_bundle_admits_an_observer_and_nothing_else(folder: Path) -> None:
    there = installed(folder, "operator", "anna")
    outcome = Outcome(client_context(there, "observer"), server_context(folder)[0])
    assert identity_of(outcome.peer) == ("operator", "anna")
    content = read_bundle(folder.parent / "anna.operator.bundle")
    assert (content.token_hashes, content.added) == ({}, {})
    roles: tuple[tls_contexts.ClientRole, ...] = ("worker", "trainer")
    for role in roles:
        with pytest.raises(CredentialsError, match=f"these are an operator's credentials .* and this is a {role}"):
            client_context(there, role)
    with pytest.raises(CredentialsError, match="an operator's bundle needs a name"):
        bundle(folder, "operator")


def test_an_observer_shows_an_operators_certificate_before_a_trainers(folder: Path) -> None:
    there = installed(folder, "trainer", "hpc")
    credentials.install(bundle(folder, "operator", "anna", folder.parent), there)
    outcome = Outcome(client_context(there, "observer"), server_context(folder)[0])
    assert identity_of(outcome.peer) == ("operator", "anna")
    assert identity_of(Outcome(client_context(there, "trainer"), server_context(folder)[0]).peer) == ("trainer", "hpc")


def test_an_operators_certificate_is_listed_renewed_and_revoked(folder: Path, tmp_path: Path) -> None:
    bundle(folder, "operator", "anna", tmp_path)
    assert [record.role for record in credentials.show(folder) if record.what == "issued"] == ["operator"]
    assert [file.name for file in renewal.renew(folder, ["anna"], tmp_path)] == ["anna.operator.bundle"]
    assert {one.role for one in renewal.revoke(folder, "anna", "operator")} == {"operator"}
