"""The mode of end-to-end authentication on a machine, and the certificates in use."""

from __future__ import annotations

import ssl
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta, timezone, tzinfo
from pathlib import Path
from typing import Any, Literal

import pytest

from tmrl_core.errors import ConfigError, CredentialsError, ForgedError
from tmrl_core.networking.end_to_end.run_key import RunKey
from tmrl_core.networking.links.sealing import Identity, mode_of
from tmrl_core.networking.security import certificates, credentials
from tmrl_core.networking.security.certificates import read_facts
from tmrl_core.networking.security.renewal import renew, revoke
from tmrl_core.networking.security.revocations import ISSUED_FILE, REVOKED_FILE, SIGNED_FILE, read_list
from tmrl_core.networking.security.secret_files import writing
from tmrl_core.networking.security.tls_contexts import client_certificate
from tmrl_core.networking.trainer.seal import TrainerSeal
from tmrl_core.networking.transports.selection import LinkSettings
from tmrl_core.networking.worker.seal import WorkerSeal

Role = Literal["worker", "trainer"]


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("credentials")
    credentials.create(folder, ["localhost"])
    return folder


@pytest.fixture
def robot(authority: Path, tmp_path: Path) -> Path:
    folder = tmp_path / "robot"
    credentials.install(credentials.bundle(authority, "worker", "robot7", tmp_path), folder)
    return folder


def settings(folder: Path, **changes: Any) -> LinkSettings:
    return LinkSettings(**({"host": "relay.example.org", "credentials_dir": str(folder)} | changes))


def test_a_certificate_switches_it_on(robot: Path) -> None:
    assert mode_of(settings(robot), "worker") == "authenticate"
    assert mode_of(settings(robot, end_to_end="encrypt"), "worker") == "encrypt"
    assert mode_of(settings(robot, end_to_end="off"), "worker") == "off"


def test_a_bundle_file_is_a_certificate(authority: Path, tmp_path: Path) -> None:
    bundle = credentials.bundle(authority, "trainer", "hpc", tmp_path)
    assert mode_of(settings(bundle), "trainer") == "authenticate"
    assert mode_of(settings(bundle), "worker") == "off"


def test_where_the_key_of_the_ca_is_any_role_can_prove_itself(tmp_path: Path) -> None:
    credentials.create(tmp_path)
    roles: tuple[Role, ...] = ("worker", "trainer")
    for role in roles:
        assert mode_of(settings(tmp_path), role) == "off"
        assert mode_of(settings(tmp_path, end_to_end="authenticate"), role) == "authenticate"
        signer = Identity(tmp_path, role).signer
        assert f":{role}:local" in signer.identity
    assert not [*tmp_path.glob("*-local.*")]
    credentials.bundle(tmp_path, "worker", "robot7", tmp_path / "robot7.bundle")  # other machines will use certificates
    for role in roles:
        assert mode_of(settings(tmp_path), role) == "authenticate"


def test_a_token_alone_leaves_it_off_and_is_refused_if_it_is_demanded(authority: Path, tmp_path: Path) -> None:
    folder = tmp_path / "tokens"
    folder.mkdir()
    for name in ("ca.pem", "worker.token"):
        (folder / name).write_bytes((authority / name).read_bytes())
    assert mode_of(settings(folder), "worker") == "off"
    with pytest.raises(CredentialsError, match=r"needs one client certificate of a worker.*bundle worker --name NAME"):
        mode_of(settings(folder, end_to_end="authenticate"), "worker")


@pytest.mark.parametrize("changes", [{"transport": "local"}, {"transport": "tlspyo"}, {"security": None}])
def test_without_certificates_it_is_off_and_is_refused_if_it_is_demanded(robot: Path, changes: dict[str, Any]) -> None:
    assert mode_of(settings(robot, **changes), "worker") == "off"
    with pytest.raises(ConfigError, match=r"network\.end_to_end: encrypt signs with client certificates"):
        mode_of(settings(robot, end_to_end="encrypt", **changes), "worker")


def test_a_renewed_certificate_is_used_and_a_damaged_one_is_not(
    authority: Path, robot: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    identity = Identity(robot, "worker")
    old = identity.signer
    assert not identity.refresh()
    credentials.install(renew(authority, ["robot7"], tmp_path)[0], robot)
    assert identity.refresh()
    assert identity.signer.certificate != old.certificate
    assert identity.verifier.check(identity.signer.certificate, ["worker"]).name == "robot7"

    renewed = identity.signer
    (robot / "worker-robot7.pem").write_text("damaged")
    for _ in range(3):
        assert not identity.refresh()
    assert identity.signer is renewed
    assert sum("stay in use" in record.message for record in caplog.records) == 1


def test_a_list_of_revoked_certificates_in_the_folder_is_read_again(
    authority: Path, robot: Path, tmp_path: Path
) -> None:
    hpc = tmp_path / "hpc"
    credentials.install(credentials.bundle(authority, "trainer", "hpc", tmp_path), hpc)
    identity = Identity(hpc, "trainer")
    own = client_certificate(robot, "worker")
    assert own is not None
    shown = Identity(robot, "worker").signer.certificate
    assert identity.verifier.check(shown, ["worker"]).serial == read_facts(own.certificate).serial
    revoke(authority, "robot7")
    (hpc / REVOKED_FILE).write_bytes((authority / REVOKED_FILE).read_bytes())
    identity.refresh()
    with pytest.raises(ForgedError, match="robot7 is revoked"):
        identity.verifier.check(shown, ["worker"])


@pytest.fixture
def lists(authority: Path, tmp_path: Path) -> list[bytes]:
    """Two lists of the CA, the newer one last."""
    made = []
    for name in ("first", "second"):
        credentials.bundle(authority, "worker", name, tmp_path)
        revoke(authority, name)
        made.append((authority / SIGNED_FILE).read_bytes())
    return made


def trainer_seal(identity: Identity) -> TrainerSeal:
    seal = TrainerSeal("run", identity.signer, identity.verifier, RunKey(bytes(32)))
    identity.seal = seal
    return seal


def test_a_signed_list_is_kept_for_later_processes_and_never_replaced_by_an_older_one(
    authority: Path, lists: list[bytes], tmp_path: Path
) -> None:
    hpc = tmp_path / "hpc"
    credentials.install(credentials.bundle(authority, "trainer", "hpc", tmp_path), hpc)
    (hpc / REVOKED_FILE).unlink()
    identity = Identity(hpc, "trainer")
    seal = trainer_seal(identity)
    for body in (lists[1], lists[0], lists[1]):
        identity.take_revocations(body)
        assert not identity.refresh(), "no machine that this one has met is on it"
        assert (hpc / SIGNED_FILE).read_bytes() == lists[1]
    issued = {one.name: one.serial for one in read_list(authority / ISSUED_FILE)}
    assert {issued["first"], issued["second"]} <= set(identity.verifier.revoked)  # type: ignore[call-overload]
    assert set(Identity(hpc, "trainer").verifier.revoked) == set(identity.verifier.revoked)  # type: ignore[call-overload]
    assert seal.forged == 0


def test_the_revocation_of_a_met_machine_is_noticed_after_that_of_another_one(
    authority: Path, lists: list[bytes], tmp_path: Path
) -> None:
    hpc, met = tmp_path / "hpc", tmp_path / "met"
    credentials.install(credentials.bundle(authority, "trainer", "hpc", tmp_path), hpc)
    credentials.install(credentials.bundle(authority, "worker", "met", tmp_path), met)
    identity = Identity(hpc, "trainer")
    identity.verifier.check(Identity(met, "worker").signer.certificate, ["worker"])
    identity.take_revocations(lists[1])
    assert not identity.refresh()
    revoke(authority, "met")
    identity.take_revocations((authority / SIGNED_FILE).read_bytes())
    assert identity.refresh(), "its streams must be announced again, to be refused"


class LongAgo(datetime):
    @classmethod
    def now(cls, tz: tzinfo | None = None) -> datetime:  # type: ignore[override]
        return datetime.now(tz) - timedelta(days=120)


def test_a_revoked_certificate_opens_no_stored_stream_however_long_it_has_expired(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(certificates, "datetime", LongAgo)
    authority, hpc = tmp_path / "authority", tmp_path / "hpc"
    credentials.create(authority, ["localhost"])
    credentials.install(credentials.bundle(authority, "trainer", "hpc", tmp_path), hpc)
    identity = Identity(hpc, "trainer")
    seal = trainer_seal(identity)
    stolen = Identity(credentials.bundle(authority, "worker", "stolen", tmp_path, days=-60), "worker")
    valid = LongAgo.now(timezone.utc)
    thief = WorkerSeal("run", stolen.signer, stolen.verifier, mode="authenticate", clock=valid.timestamp)
    stream = thief.new_stream()
    assert seal.open_record(stream, thief.record(stream, b""), stored=True).name == "stolen"
    assert [one.name for one in revoke(authority, "stolen")] == ["stolen"]
    credentials.bundle(authority, "worker", "other", tmp_path)
    revoke(authority, "other")
    identity.take_revocations((authority / SIGNED_FILE).read_bytes())
    with pytest.raises(ForgedError, match="stolen is revoked"):
        seal.open_record(stream, thief.record(stream, b""), stored=True)


def test_a_list_that_the_ca_did_not_sign_is_counted_and_not_kept(
    robot: Path, lists: list[bytes], tmp_path: Path
) -> None:
    credentials.create(tmp_path / "foreign")
    credentials.bundle(tmp_path / "foreign", "worker", "x", tmp_path)
    revoke(tmp_path / "foreign", "x")
    identity = Identity(robot, "worker")
    seal = trainer_seal(identity)
    forged = [(tmp_path / "foreign" / SIGNED_FILE).read_bytes(), b"", b"\xff", lists[0][:-40]]
    der = ssl.PEM_cert_to_DER_cert(lists[0].decode().replace("X509 CRL", "CERTIFICATE"))
    of_no_version = der.replace(b"\x02\x01\x01", b"\x02\x01\x05", 1)
    forged.append(ssl.DER_cert_to_PEM_cert(of_no_version).replace("CERTIFICATE", "X509 CRL").encode())
    lines = lists[0].split(b"\n")
    for line in range(len(lines)):
        if lines[line]:
            other = bytes([b"AB"[lines[line][:1] == b"A"]]) + lines[line][1:]
            forged.append(b"\n".join([*lines[:line], other, *lines[line + 1 :]]))
    for number, body in enumerate(forged, 1):
        identity.take_revocations(body)
        assert seal.forged == number
    identity.refresh()
    assert not set(identity.verifier.revoked)  # type: ignore[call-overload]
    assert not (robot / SIGNED_FILE).exists()


def test_a_list_beside_two_bundles_is_of_one_ca_and_stops_no_other_role(
    authority: Path, lists: list[bytes], tmp_path: Path
) -> None:
    """One folder may hold bundle files of two fleets, or a new CA's bundle in the place of an old one."""
    credentials.create(tmp_path / "foreign")
    for ca, name in ((authority, "robot8"), (tmp_path / "foreign", "robot9")):
        credentials.bundle(ca, "worker", name, tmp_path)
    Identity(tmp_path / "robot8.worker.bundle", "worker").take_revocations(lists[0])
    assert (tmp_path / SIGNED_FILE).read_bytes() == lists[0]
    other = Identity(tmp_path / "robot9.worker.bundle", "worker")
    assert not set(other.verifier.revoked)  # type: ignore[call-overload]
    revoke(tmp_path / "foreign", "robot9")
    other.take_revocations((tmp_path / "foreign" / SIGNED_FILE).read_bytes())
    assert set(other.verifier.revoked)  # type: ignore[call-overload]
    Identity(tmp_path / "robot8.worker.bundle", "worker")


def test_a_signed_list_is_used_although_the_folder_cannot_be_written(
    authority: Path, robot: Path, lists: list[bytes], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    identity = Identity(robot, "worker")
    (robot / ".lock").unlink()
    (robot / ".lock").symlink_to(robot / "elsewhere")
    identity.take_revocations(lists[1])
    assert "kept until this process ends" in caplog.text
    identity.refresh()
    assert len(set(identity.verifier.revoked)) >= 2  # type: ignore[call-overload]


def test_a_lock_that_another_process_keeps_does_not_stop_the_link(
    robot: Path, lists: list[bytes], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("tmrl_core.networking.links.sealing.LINK_WAIT_S", 0.1)
    identity = Identity(robot, "worker")
    with ThreadPoolExecutor(1) as pool, writing(robot):
        pool.submit(identity.take_revocations, lists[1]).result(10.0)
    assert len(set(identity.verifier.revoked)) >= 2  # type: ignore[call-overload]
    assert "kept until this process ends" in caplog.text
