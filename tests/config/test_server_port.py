"""The port of a run's Server, as other commands for the run find it."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tmrl_core.config import from_values
from tmrl_core.config.server_port import FILE, with_port_of_run
from tmrl_core.storage.port_record import PortRecord, recorded_port

KILLED = """
import os, sys
from pathlib import Path
from tmrl_core.storage.port_record import PortRecord
record = PortRecord(Path(sys.argv[1]) / "server_port", 4321)
print("held", flush=True)
sys.stdin.read()
"""


def test_a_record_counts_until_it_is_closed(tmp_path: Path) -> None:
    assert recorded_port(tmp_path / FILE) is None
    assert recorded_port(tmp_path / "none" / FILE) is None
    for port in (43210, 7):
        record = PortRecord(tmp_path / FILE, port)
        assert recorded_port(tmp_path / FILE) == port
        assert recorded_port(tmp_path / FILE) == port
        with pytest.raises(BlockingIOError):
            PortRecord(tmp_path / FILE, 1)
        assert recorded_port(tmp_path / FILE) == port
        record.close()
        record.close()
        assert recorded_port(tmp_path / FILE) is None


def test_a_record_of_a_killed_process_does_not_count(tmp_path: Path) -> None:
    command = [sys.executable, "-c", KILLED, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        assert recorded_port(tmp_path / FILE) == 4321
        holder.kill()
        holder.wait()
        assert (tmp_path / FILE).stat().st_size > 0
        assert recorded_port(tmp_path / FILE) is None


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        "{",
        "1",
        json.dumps({"port": 0, "host": platform.node()}),
        json.dumps({"port": 65536, "host": platform.node()}),
        json.dumps({"port": "5", "host": platform.node()}),
        json.dumps({"port": True, "host": platform.node()}),
        json.dumps({"port": 5, "host": "another machine"}),
        json.dumps({"port": 5}),
        "[" * 5000,
    ],
)
def test_other_content_does_not_count(content: str, tmp_path: Path) -> None:
    record = PortRecord(tmp_path / FILE, 5)
    (tmp_path / FILE).write_text(content, encoding="utf-8")  # the same file, still locked
    assert recorded_port(tmp_path / FILE) is None
    record.close()


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such files")
def test_a_pipe_or_a_link_in_its_place_neither_blocks_nor_is_followed(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / FILE)
    assert recorded_port(tmp_path / FILE) is None
    with pytest.raises(OSError, match=r"it is a pipe"):
        PortRecord(tmp_path / FILE, 5)
    (tmp_path / FILE).unlink()
    (tmp_path / "other").write_text("kept", encoding="utf-8")
    (tmp_path / FILE).symlink_to(tmp_path / "other")
    assert recorded_port(tmp_path / FILE) is None
    with pytest.raises(OSError, match="symbolic link"):
        PortRecord(tmp_path / FILE, 5)
    assert (tmp_path / "other").read_text(encoding="utf-8") == "kept"


@pytest.mark.parametrize(
    ("sections", "expected"),
    [
        ({}, 4321),
        ({"server": {"port": 0}}, 4321),
        ({"server": {"host": "localhost"}}, 4321),
        ({"server": {"port": 1234}}, 1234),
        ({"server": {"host": "relay.example.org"}}, 55555),
        ({"network": {"transport": "local"}}, 55555),
        ({"run": {"name": "another"}}, 55555),
    ],
)
def test_only_a_port_of_this_machine_that_is_not_set_is_taken_from_the_run(
    sections: dict[str, Any], expected: int, tmp_path: Path
) -> None:
    sections = {**sections, "run": {"folder": str(tmp_path), "name": "x", **sections.get("run", {})}}
    (tmp_path / "x").mkdir()
    record = PortRecord(tmp_path / "x" / FILE, 4321)
    config = from_values(sections)
    found = with_port_of_run(config)
    assert found.server.tcp_port == expected
    record.close()
    assert with_port_of_run(config) is config


@pytest.mark.parametrize(("last", "told"), [(4321, True), (55555, False)])
def test_the_port_of_a_run_that_has_ended_is_told(
    last: int, told: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "x").mkdir()
    PortRecord(tmp_path / "x" / FILE, last).close()
    config = from_values({"run": {"folder": str(tmp_path), "name": "x"}})
    with caplog.at_level("INFO"):
        assert with_port_of_run(config) is config
    said = "the Server of run x that listened on port 4321 has ended; port 55555 is tried"
    assert (said in caplog.text) is told
