"""The lists of certificates: what they hold, and that a damaged one is never taken for an empty one."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from tmrl_core.errors import CredentialsError
from tmrl_core.networking.security import credentials, renewal
from tmrl_core.networking.security.revocations import (
    Listed,
    add_revoked,
    read_list,
    read_signed,
    revoked_file,
    write_list,
)
from tmrl_core.networking.security.tls_contexts import read_bundle

NOW = datetime(2026, 11, 21, tzinfo=timezone.utc)


LOSSES = ("deleted", "empty", "old")


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("authority")
    credentials.create(folder)
    return (folder / "ca.pem").read_text()


def revoked_three(folder: Path) -> list[str]:
    """Revoke three certificates of a new CA. Return their serial numbers."""
    credentials.create(folder)
    for name in ("robot1", "robot2", "robot3"):
        credentials.bundle(folder, "worker", name, folder)
    return [renewal.revoke(folder, name)[0].serial for name in ("robot1", "robot2", "robot3")]


def lose(folder: Path, loss: str) -> None:
    """Lose entries of `revoked.json`: all, or all but the first."""
    file = folder / "revoked.json"
    if loss == "deleted":
        file.unlink()
    else:
        write_list(file, read_list(file)[: loss == "old"])


def listed(serial: str, days: float = 30.0) -> Listed:
    return Listed(serial, "worker", "robot7", NOW + timedelta(days=days), NOW)


def test_a_list_is_read_as_it_was_written(tmp_path: Path) -> None:
    file = tmp_path / "revoked.json"
    assert read_list(file) == ()
    write_list(file, [listed("1a"), listed("2b")])
    assert read_list(file) == (listed("1a"), listed("2b"))


def test_a_list_of_many_thousands_is_read(tmp_path: Path) -> None:
    write_list(tmp_path / "revoked.json", (listed(f"{number:040x}".lstrip("0")) for number in range(1, 10_001)))
    assert len(read_list(tmp_path / "revoked.json")) == 10_000


def test_a_certificate_is_revoked_once_and_for_all(tmp_path: Path, authority: str) -> None:
    old = listed("1a", -1_000)
    assert [one.serial for one in add_revoked(tmp_path, [old], authority)] == ["1a"]
    assert add_revoked(tmp_path, [old], authority) == []
    add_revoked(tmp_path, [listed("2b")], authority)
    assert [one.serial for one in read_list(tmp_path / "revoked.json")] == ["1a", "2b"]


def test_the_list_is_in_the_credentials_folder_or_that_of_the_bundle(tmp_path: Path) -> None:
    bundle = tmp_path / "server.server.bundle"
    bundle.write_text("")
    assert revoked_file(tmp_path) == revoked_file(bundle) == tmp_path / "revoked.json"


def test_a_damaged_list_of_issued_ones_has_its_own_advice(tmp_path: Path) -> None:
    for name, advice in (("revoked.json", "would be valid again"), ("issued.json", "only by their files")):
        (tmp_path / name).write_text("{")
        with pytest.raises(CredentialsError, match=f"is damaged .*Restore it .* {advice}"):
            read_list(tmp_path / name)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"format": "tmrl_core certificates"}',
        '{"format": "another", "certificates": []}',
        '{"format": "tmrl_core certificates", "certificates": [], "more": 1}',
        "\x00",
    ],
)
def test_a_damaged_list_is_an_error(tmp_path: Path, text: str, authority: str) -> None:
    file = tmp_path / "revoked.json"
    file.write_text(text)
    with pytest.raises(CredentialsError, match="is damaged"):
        read_list(file)
    with pytest.raises(CredentialsError, match="is damaged"):
        add_revoked(tmp_path, [listed("1a")], authority)
    assert file.read_text() == text, "what may still be restored is not written over"


@pytest.mark.parametrize("change", [{"serial": "xyz"}, {"serial": "00A1"}, {"not_after": "2026-01-01T00:00:00"}])
def test_an_entry_that_could_match_nothing_is_an_error(tmp_path: Path, change: dict[str, str]) -> None:
    file = tmp_path / "revoked.json"
    write_list(file, [listed("1a")])
    content = json.loads(file.read_text())
    content["certificates"][0].update(change)
    file.write_text(json.dumps(content))
    with pytest.raises(CredentialsError, match="is damaged"):
        read_list(file)


def test_every_cut_of_a_list_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "revoked.json"
    write_list(file, [listed("1a")])
    whole = file.read_text().rstrip()
    for length in range(len(whole)):
        file.write_text(whole[:length])
        with pytest.raises(CredentialsError, match="is damaged"):
            read_list(file)


@pytest.mark.parametrize("loss", LOSSES)
def test_the_next_revocation_restores_lost_entries_from_the_signed_list(
    tmp_path: Path, loss: str, caplog: pytest.LogCaptureFixture
) -> None:
    serials = revoked_three(tmp_path)
    authority = (tmp_path / "ca.pem").read_text()
    number = read_signed(tmp_path, authority).number
    lose(tmp_path, loss)
    credentials.bundle(tmp_path, "worker", "robot4", tmp_path)
    (new,) = renewal.revoke(tmp_path, "robot4")
    lost = 2 if loss == "old" else 3
    (said,) = caplog.messages
    assert said.startswith(f"{tmp_path / 'revoked.json'} lacked {lost} certificates that revoked.crl revokes")
    after = read_list(tmp_path / "revoked.json")
    assert {one.serial for one in after} == {*serials, new.serial}
    assert {one.name for one in after} == {"robot1", "robot2", "robot3", "robot4"}, "named by the issued ones"
    signed = read_signed(tmp_path, authority)
    assert signed.serials == {*serials, new.serial}
    assert signed.number > number


@pytest.mark.parametrize("loss", LOSSES)
def test_each_reader_of_the_lists_counts_the_signed_one(tmp_path: Path, loss: str) -> None:
    serials = revoked_three(tmp_path)
    lose(tmp_path, loss)
    assert {one.serial for one in credentials.show(tmp_path) if one.what == "revoked"} == set(serials)
    assert renewal.holders(tmp_path) == ([], [])
    with pytest.raises(CredentialsError, match="all were revoked"):
        renewal.renew(tmp_path, ["robot2"], tmp_path)
    for role in ("server", "trainer"):
        bundle = credentials.bundle(tmp_path, role, "hpc", tmp_path / f"{role}.bundle")
        assert {one.serial for one in read_bundle(bundle).revoked} == set(serials)


def test_a_signed_list_with_a_wrong_signature_is_refused_and_nothing_written(tmp_path: Path) -> None:
    revoked_three(tmp_path)
    lines = (tmp_path / "revoked.crl").read_text().splitlines()
    lines[-2] = lines[-2][:-12] + ("A" * 8) + lines[-2][-4:]
    (tmp_path / "revoked.crl").write_text("\n".join(lines) + "\n")
    lose(tmp_path, "old")
    before = {file.name: file.read_bytes() for file in tmp_path.glob("revoked.*")}
    with pytest.raises(CredentialsError, match=r"revoked\.crl: the CA of this machine did not sign"):
        renewal.revoke(tmp_path, "robot1")
    assert {file.name: file.read_bytes() for file in tmp_path.glob("revoked.*")} == before
