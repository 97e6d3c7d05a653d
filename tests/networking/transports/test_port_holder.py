"""Names of processes that hold ports."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

import pytest

from tmrl_core.networking.transports.port_holder import port_holder, port_in_use_text

LINE = "   0: 0100007F:{port:04X} 00000000:0000 {state} 00000000:00000000 00:00000000 00000000  {user} 0 {inode} 1 0"


def described(folder: Path, *lines: str, table: str = "tcp") -> Path:
    """Write the table of sockets of a machine."""
    (folder / "net").mkdir(exist_ok=True)
    (folder / "net" / table).write_text("\n".join(["  sl  local_address", *lines, ""]), encoding="ascii")
    return folder


def line(port: int = 5555, state: str = "0A", user: int = 1001, inode: int = 77) -> str:
    return LINE.format(port=port, state=state, user=user, inode=inode)


def process(folder: Path, number: int, inode: int, *words: str) -> None:
    """Describe a process that has one socket."""
    (folder / str(number) / "fd").mkdir(parents=True)
    (folder / str(number) / "fd" / "3").symlink_to(f"socket:[{inode}]")
    (folder / str(number) / "cmdline").write_text("\0".join([*words, ""]), encoding="utf-8")


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells it")
@pytest.mark.parametrize(("family", "host"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")])
def test_the_holder_of_a_real_port_is_found(family: socket.AddressFamily, host: str) -> None:
    with socket.socket(family) as sock:
        try:
            sock.bind((host, 0))
        except OSError:
            pytest.skip("this machine has no IPv6")
        port = sock.getsockname()[1]
        assert port_holder(port) is None
        sock.listen()
        assert str(port_holder(port)).startswith(f"process {os.getpid()} (")
        assert f"held by process {os.getpid()}" in port_in_use_text(port)
    assert port_holder(port) is None


@pytest.mark.skipif(sys.platform == "win32", reason="Windows needs a privilege for links")
def test_the_command_line_of_a_role_is_shown_and_only_the_name_of_other_programs(tmp_path: Path) -> None:
    described(tmp_path, line(), table="tcp6")
    process(tmp_path, 40, 12, "/usr/bin/else")
    process(tmp_path, 41, 77, "/opt/bin/python", "-m", "tmrl_core", "--server")
    assert port_holder(5555, tmp_path) == "process 41 (python -m tmrl_core --server)"
    words = ["python", "-c", "code", '["a", "long", "path"]', "tmrl_core", "--server"]
    (tmp_path / "41" / "cmdline").write_text("\0".join(words), encoding="utf-8")
    assert port_holder(5555, tmp_path) == "process 41 (python -m tmrl_core --server)"
    (tmp_path / "41" / "cmdline").write_text("/usr/bin/database\0--password=secret\0", encoding="utf-8")
    assert port_holder(5555, tmp_path) == "process 41 (database)"
    (tmp_path / "41" / "cmdline").write_text("python\0-m\0tmrl_core\0" + "x" * 999, encoding="utf-8")
    assert len(str(port_holder(5555, tmp_path))) < 200
    (tmp_path / "41" / "cmdline").unlink()
    assert port_holder(5555, tmp_path) == "process 41"


def test_another_users_process_is_named_by_its_user(tmp_path: Path) -> None:
    assert port_holder(5555, described(tmp_path, line())) == "a process of user 1001"


@pytest.mark.parametrize("rest", [line(state="01"), line(port=5556), "", "nonsense", "a b c d"])
def test_sockets_that_do_not_listen_there_are_no_holders(rest: str, tmp_path: Path) -> None:
    assert port_holder(5555, described(tmp_path, rest)) is None


def test_a_system_that_does_not_tell_gives_general_advice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert port_holder(5555, tmp_path / "none") is None
    monkeypatch.setattr("tmrl_core.networking.transports.port_holder.port_holder", lambda port: None)
    assert "another Server" in port_in_use_text(5555)
