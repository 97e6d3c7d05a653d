"""The lists of certificates: what they hold, and that a damaged one is never taken for an empty one."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from tmrl_core.errors import CredentialsError
from tmrl_core.networking.security.revocations import Listed, add_revoked, read_list, revoked_file, write_list

NOW = datetime(2026, 11, 21, tzinfo=timezone.utc)


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


def test_a_certificate_is_revoked_once_and_for_all(tmp_path: Path) -> None:
    old = listed("1a", -1_000)
    assert [one.serial for one in add_revoked(tmp_path, [old])] == ["1a"]
    assert add_revoked(tmp_path, [old]) == []
    add_revoked(tmp_path, [listed("2b")])
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
def test_a_damaged_list_is_an_error(tmp_path: Path, text: str) -> None:
    file = tmp_path / "revoked.json"
    file.write_text(text)
    with pytest.raises(CredentialsError, match="is damaged"):
        read_list(file)
    with pytest.raises(CredentialsError, match="is damaged"):
        add_revoked(tmp_path, [listed("1a")])
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
