"""API keys: what is kept of them, and how a running gateway follows their file."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

import pytest

from tmrl_core.errors import CredentialsError
from tmrl_core.gateway.api_key_command import KEY
from tmrl_core.gateway.api_keys import (
    KEYS_FILE,
    ApiKeys,
    make_key,
    make_owner_token,
    read_keys,
    revoke_key,
)
from tmrl_core.networking.security import credentials


def test_only_the_hash_of_a_key_is_stored(tmp_path: Path) -> None:
    made, text = make_key(tmp_path, "default")
    kept = (tmp_path / KEYS_FILE).read_text()
    assert text.partition(".")[2] not in kept
    assert len(text.partition(".")[2]) >= 43, "256 random bits"
    keys = ApiKeys(tmp_path)
    assert keys.check(text) == made
    assert keys.agents == {"default"}
    assert text not in repr(keys)
    assert text.startswith(f"key-{made.id}.")
    assert not made.id.startswith("key"), "nobody takes it for the key"


@pytest.mark.skipif(sys.platform == "win32", reason="mode bits")
def test_both_files_are_the_users_alone(tmp_path: Path) -> None:
    make_key(tmp_path, "default")
    owner = make_owner_token(tmp_path)
    for file in (tmp_path / KEYS_FILE, owner):
        assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_each_key_of_an_agent_is_revoked_separately(tmp_path: Path) -> None:
    first, text = make_key(tmp_path, "default")
    second, other = make_key(tmp_path, "default")
    keys = ApiKeys(tmp_path)
    assert revoke_key(tmp_path, first.id) == first
    assert keys.check(text) is None
    assert not keys.holds(first.id)
    assert keys.check(other) == second
    assert keys.holds(second.id)
    assert revoke_key(tmp_path, first.id) is None


@pytest.mark.parametrize("wrong", ["", ".", "key-00000000.x", "x" * 1000, "\ud800", "\ud800." + "x" * 40])
def test_other_texts_are_not_keys(tmp_path: Path, wrong: str) -> None:
    made, text = make_key(tmp_path, "default")
    keys = ApiKeys(tmp_path)
    for candidate in (wrong, text[:-1], text + "x", made.id, made.sha256, f"{made.id}.{made.sha256}"):
        assert keys.check(candidate) is None


def test_new_keys_are_read_while_it_runs(tmp_path: Path) -> None:
    keys = ApiKeys(tmp_path)
    made, text = make_key(tmp_path, "default")
    assert keys.check(text) == made
    (tmp_path / KEYS_FILE).unlink()
    assert keys.check(text) is None


@pytest.mark.parametrize(
    "content", ["", "[]", '{"format": "another", "keys": []}', '{"format": "tmrl_core gateway keys"}']
)
def test_a_damaged_file_is_an_error_at_the_start_and_ignored_later(
    tmp_path: Path, content: str, caplog: pytest.LogCaptureFixture
) -> None:
    made, text = make_key(tmp_path, "default")
    keys = ApiKeys(tmp_path)
    (tmp_path / KEYS_FILE).write_text(content)
    assert keys.check(text) == made
    assert keys.check(text) == made
    assert caplog.text.count("is damaged") == 1
    with pytest.raises(CredentialsError, match="is damaged"):
        ApiKeys(tmp_path)
    with pytest.raises(CredentialsError, match="is damaged"):
        make_key(tmp_path, "default")


def test_the_file_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tmrl_core.gateway.api_keys.MAX_KEYS", 2)
    make_key(tmp_path, "default")
    make_key(tmp_path, "default")
    with pytest.raises(CredentialsError, match="at most 2"):
        make_key(tmp_path, "default")
    assert len(read_keys(tmp_path)) == 2


def test_the_owners_token_is_made_once_and_checked(tmp_path: Path) -> None:
    keys = ApiKeys(tmp_path)
    assert not keys.is_owner("")
    file = make_owner_token(tmp_path)
    token = file.read_text().strip()
    assert make_owner_token(tmp_path) == file
    assert file.read_text().strip() == token
    assert keys.is_owner(token)
    assert not keys.is_owner(token + "x")
    os.unlink(file)
    assert not keys.is_owner(token)


def test_the_keys_of_a_bundle_are_in_its_folder(tmp_path: Path) -> None:
    credentials.create(tmp_path / "ca")
    bundle = credentials.bundle(tmp_path / "ca", "trainer", "hpc", tmp_path)
    made, text = make_key(bundle, "default")
    assert (tmp_path / KEYS_FILE).exists()
    assert ApiKeys(bundle).check(text) == made


def test_keys_are_listed_without_secrets(tmp_path: Path) -> None:
    made, text = make_key(tmp_path, "default")
    (shown,) = KEY.show(tmp_path)
    assert (shown.what, shown.subject, shown.names) == ("API key", made.id, ("agent default",))
    assert text not in str(shown)
