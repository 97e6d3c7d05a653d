from __future__ import annotations

from pathlib import Path

import pytest

from tmrl_core.config import from_values
from tmrl_core.errors import CredentialsError
from tmrl_core.networking import Server


def make(folder: Path, **server: object) -> Server:
    return Server(port=0, config=from_values({"network": {"credentials_dir": str(folder)}, "server": server}))


def test_a_server_for_its_own_machine_makes_the_credentials_that_are_not_there(tmp_path: Path) -> None:
    make(tmp_path / "made").close()
    authority = (tmp_path / "made" / "ca.pem").read_bytes()
    make(tmp_path / "made").close()
    assert (tmp_path / "made" / "ca.pem").read_bytes() == authority


def test_a_server_for_others_has_to_be_given_its_names(tmp_path: Path) -> None:
    with pytest.raises(CredentialsError, match="credentials create"):
        make(tmp_path / "none", bind="0.0.0.0", host="relay.example")
    assert not (tmp_path / "none").exists()
